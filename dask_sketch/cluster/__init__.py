"""Connect to Dask clusters and watch them."""
