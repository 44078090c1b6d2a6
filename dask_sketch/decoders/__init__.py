"""Sketch to model: one objective, its searches, the papers' algorithms, efficient refinement."""

from __future__ import annotations

from dask_sketch.decoders.atoms import MODELS
from dask_sketch.decoders.decode import METHODS, decode, decode_groups

__all__ = ["METHODS", "MODELS", "decode", "decode_groups"]
