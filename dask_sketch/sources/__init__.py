"""Stores and collections to chunks: one door for every kind of input."""

from dask_sketch.sources.door import open_samples
from dask_sketch.sources.samples import Samples

__all__ = ["Samples", "open_samples"]
