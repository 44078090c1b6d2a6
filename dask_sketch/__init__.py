"""Learn mixtures from data of any size: one pass, one small sketch, decoding from it alone.

>>> import numpy as np
>>> import dask_sketch as ds
>>> x = np.random.default_rng(0).normal(size=(5000, 2))
>>> feature_map = ds.design(x, n_components=1)
>>> model = ds.decode(ds.sketch(x, feature_map), n_components=1)
>>> model.means.shape
(1, 2)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_sketch.decoders import decode, decode_groups
    from dask_sketch.diagnostics import choose, diagnose
    from dask_sketch.errors import SketchError
    from dask_sketch.estimators import SketchGaussianMixture, SketchKMeans
    from dask_sketch.features import FeatureMap, estimate_scale
    from dask_sketch.graph import LazySketch, LazySketchGroup, Plan, design, plan, sketch
    from dask_sketch.ledger import Ledger, create_ledger, open_ledger
    from dask_sketch.models import Centroids, GaussianMixture, open_mixture, open_model
    from dask_sketch.sketching import (
        Privacy,
        Sketch,
        SketchGroup,
        merge,
        merge_groups,
        open_group,
        open_sketch,
        partial_groups,
        partial_sketch,
    )
    from dask_sketch.sources import Samples, open_samples

# Loaded when first used (PEP 562), so that the numerics can be imported without Dask.
_HOME = {
    "Centroids": "models",
    "FeatureMap": "features",
    "GaussianMixture": "models",
    "LazySketch": "graph",
    "LazySketchGroup": "graph",
    "Ledger": "ledger",
    "Plan": "graph",
    "Privacy": "sketching",
    "Samples": "sources",
    "Sketch": "sketching",
    "SketchError": "errors",
    "SketchGaussianMixture": "estimators",
    "SketchGroup": "sketching",
    "SketchKMeans": "estimators",
    "choose": "diagnostics",
    "create_ledger": "ledger",
    "decode": "decoders",
    "decode_groups": "decoders",
    "design": "graph",
    "diagnose": "diagnostics",
    "estimate_scale": "features",
    "merge": "sketching",
    "merge_groups": "sketching",
    "open_group": "sketching",
    "open_ledger": "ledger",
    "open_mixture": "models",
    "open_model": "models",
    "open_samples": "sources",
    "open_sketch": "sketching",
    "partial_groups": "sketching",
    "partial_sketch": "sketching",
    "plan": "graph",
    "sketch": "graph",
}

__all__ = [
    "Centroids",
    "FeatureMap",
    "GaussianMixture",
    "LazySketch",
    "LazySketchGroup",
    "Ledger",
    "Plan",
    "Privacy",
    "Samples",
    "Sketch",
    "SketchError",
    "SketchGaussianMixture",
    "SketchGroup",
    "SketchKMeans",
    "choose",
    "create_ledger",
    "decode",
    "decode_groups",
    "design",
    "diagnose",
    "estimate_scale",
    "merge",
    "merge_groups",
    "open_group",
    "open_ledger",
    "open_mixture",
    "open_model",
    "open_samples",
    "open_sketch",
    "partial_groups",
    "partial_sketch",
    "plan",
    "sketch",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("dask-sketch")
    if name == "dashboard":  # a module, for `ds.dashboard.install(client)`
        return importlib.import_module("dask_sketch.dashboard")
    if name not in _HOME:
        raise AttributeError(f"module 'dask_sketch' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dask_sketch.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
