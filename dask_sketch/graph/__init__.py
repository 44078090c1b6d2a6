"""Samples to sketch on Dask: the pass, its plan, its design, and models over lazy input."""

from __future__ import annotations

from dask_sketch.graph.apply import apply
from dask_sketch.graph.design import design
from dask_sketch.graph.lazy import LazySketch, LazySketchGroup
from dask_sketch.graph.plan import Plan, plan
from dask_sketch.graph.sketch import sketch

__all__ = ["LazySketch", "LazySketchGroup", "Plan", "apply", "design", "plan", "sketch"]
