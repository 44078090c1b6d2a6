"""Partial sketches, their merge, and the stored sketch."""

from dask_sketch.sketching.artifact import open_sketch
from dask_sketch.sketching.partial import partial_sketch
from dask_sketch.sketching.sketch import Sketch, merge

__all__ = ["Sketch", "merge", "open_sketch", "partial_sketch"]
