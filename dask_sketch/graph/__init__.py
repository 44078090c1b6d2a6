"""Samples to sketch on Dask: the pass, its plan, its design, and models over lazy input."""

from dask_sketch.graph.design import design
from dask_sketch.graph.one_pass import LazySketch, sketch
from dask_sketch.graph.plan import Plan, plan

__all__ = ["LazySketch", "Plan", "design", "plan", "sketch"]
