"""Stores and collections to chunks: one door for every kind of input."""

from __future__ import annotations

from dask_sketch.sources.open import open_samples
from dask_sketch.sources.samples import Samples

__all__ = ["Samples", "open_samples"]
