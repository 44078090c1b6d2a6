"""Sketch to mixture: the objective, its searches and the algorithms of Keriven et al. (2018)."""

from dask_sketch.decoders.decoder import METHODS, decode
from dask_sketch.decoders.families import MODELS

__all__ = ["METHODS", "MODELS", "decode"]
