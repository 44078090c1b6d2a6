"""Compute stored sketches and groups again from their data, by the names of today."""

from __future__ import annotations

from typing import Any

import numpy as np

import dask_sketch as ds


def map_of(case: dict[str, Any]) -> ds.FeatureMap:
    """Feature map of a case."""
    return ds.FeatureMap.from_spec(case["spec"])


def sketch_of(case: dict[str, Any], rows: Any, **options: Any) -> Any:
    """Sketch of some rows of a case."""
    weights = case.get("weights")
    weights = None if weights is None else weights[rows]
    policy = case.get("nan_policy", "raise")
    return ds.partial_sketch(case["x"][rows], map_of(case), weights, nan_policy=policy, **options)


def _halves(case: dict[str, Any]) -> list[slice]:
    cut = len(case["x"]) // 3
    return [slice(cut, None), slice(None, cut)]


def sketch(case: dict[str, Any]) -> ds.Sketch:
    """Sketch of a case, from two parts."""
    found: ds.Sketch = ds.merge([sketch_of(case, rows) for rows in _halves(case)])
    if "taken_out" in case:
        found = found - ds.partial_sketch(case["x"][: case["taken_out"]], map_of(case))
    return ds.privatise(found, **case["private"]) if "private" in case else found


def group(case: dict[str, Any]) -> ds.SketchGroup:
    """Group of sketches of a case, from two parts."""
    labels = np.asarray(case["labels"])
    return ds.merge(
        [sketch_of(case, rows, groups=labels[rows], dim="speaker") for rows in _halves(case)]
    )
