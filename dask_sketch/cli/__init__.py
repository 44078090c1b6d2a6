"""Command line of dask-sketch."""
