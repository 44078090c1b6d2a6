"""Compute with samples on Dask: sketch, design, plan, polish and apply models."""

from __future__ import annotations

from dask_sketch.graph.apply import apply
from dask_sketch.graph.design import design
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.plan import Plan, plan
from dask_sketch.graph.polish import polish
from dask_sketch.graph.sketch import sketch

__all__ = ["LazyResult", "Plan", "apply", "design", "plan", "polish", "sketch"]
