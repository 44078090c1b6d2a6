"""Partial sketches, their merge, and the stored sketch; and those of groups of samples."""

from __future__ import annotations

from dask_sketch.sketching.artifact import open_sketch
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.group_artifact import open_group
from dask_sketch.sketching.group_merge import merge_groups
from dask_sketch.sketching.group_partial import partial_groups
from dask_sketch.sketching.partial import partial_sketch
from dask_sketch.sketching.privacy import Privacy
from dask_sketch.sketching.privatise import privatise
from dask_sketch.sketching.sketch import Sketch, merge

__all__ = [
    "Privacy",
    "Sketch",
    "SketchGroup",
    "merge",
    "merge_groups",
    "open_group",
    "open_sketch",
    "partial_groups",
    "partial_sketch",
    "privatise",
]
