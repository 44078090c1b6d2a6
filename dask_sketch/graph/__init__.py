"""Samples to sketch on Dask: the pass, its plan, its design, and models over lazy input."""

from dask_sketch.graph.cost import Plan
from dask_sketch.graph.designing import design
from dask_sketch.graph.group_pass import LazySketchGroup
from dask_sketch.graph.one_pass import LazySketch, sketch
from dask_sketch.graph.planning import plan

__all__ = ["LazySketch", "LazySketchGroup", "Plan", "design", "plan", "sketch"]
