"""Samples to sketch on Dask: the pass, its plan, its design, and models over lazy input."""

from dask_sketch.graph.designing import design
from dask_sketch.graph.one_pass import LazySketch, sketch
from dask_sketch.graph.planning import Plan, plan

__all__ = ["LazySketch", "Plan", "design", "plan", "sketch"]
