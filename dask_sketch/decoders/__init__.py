"""Sketch to model: one objective, its searches, the papers' algorithms, efficient refinement."""

from dask_sketch.decoders.decoder import METHODS, decode
from dask_sketch.decoders.families import MODELS
from dask_sketch.decoders.groups import decode_groups

__all__ = ["METHODS", "MODELS", "decode", "decode_groups"]
