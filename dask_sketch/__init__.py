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

from dask_sketch.validation.lazy_input import register_lazy_methods

if TYPE_CHECKING:
    from dask_sketch.decoders.decode import decode, decode_groups
    from dask_sketch.diagnostics.fit import diagnose
    from dask_sketch.diagnostics.model_selection import select_model
    from dask_sketch.errors import SketchError
    from dask_sketch.estimators import SketchGaussianMixture, SketchKMeans
    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.features.scale import estimate_scale
    from dask_sketch.graph.apply import apply
    from dask_sketch.graph.design import design
    from dask_sketch.graph.lazy import LazySketch, LazySketchGroup
    from dask_sketch.graph.plan import Plan, plan
    from dask_sketch.graph.sketch import sketch
    from dask_sketch.jobs.ledger.ledger import Ledger, create_ledger, open_ledger
    from dask_sketch.models.artifact import open_mixture, open_model
    from dask_sketch.models.centroids import Centroids
    from dask_sketch.models.gaussian_mixture import GaussianMixture
    from dask_sketch.sketching.artifact import open_sketch
    from dask_sketch.sketching.group import SketchGroup
    from dask_sketch.sketching.group_artifact import open_group
    from dask_sketch.sketching.group_merge import merge_groups
    from dask_sketch.sketching.group_partial import partial_groups
    from dask_sketch.sketching.partial import partial_sketch
    from dask_sketch.sketching.privacy import Privacy
    from dask_sketch.sketching.sketch import Sketch, merge
    from dask_sketch.sources.open import open_samples
    from dask_sketch.sources.samples import Samples

# Loaded when first used (PEP 562), so that the numerics can be imported without Dask.
_HOME = {
    "Centroids": "models",
    "FeatureMap": "features",
    "GaussianMixture": "models",
    "LazySketch": "graph",
    "LazySketchGroup": "graph",
    "Ledger": "jobs.ledger",
    "Plan": "graph",
    "Privacy": "sketching",
    "Samples": "sources",
    "Sketch": "sketching",
    "SketchError": "errors",
    "SketchGaussianMixture": "estimators",
    "SketchGroup": "sketching",
    "SketchKMeans": "estimators",
    "apply": "graph",
    "select_model": "diagnostics",
    "create_ledger": "jobs.ledger",
    "decode": "decoders",
    "decode_groups": "decoders",
    "design": "graph",
    "diagnose": "diagnostics",
    "estimate_scale": "features",
    "merge": "sketching",
    "merge_groups": "sketching",
    "open_group": "sketching",
    "open_ledger": "jobs.ledger",
    "open_mixture": "models",
    "open_model": "models",
    "open_samples": "sources",
    "open_sketch": "sketching",
    "partial_groups": "sketching",
    "partial_sketch": "sketching",
    "plan": "graph",
    "privatise": "sketching",
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
    "apply",
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
    "privatise",
    "select_model",
    "sketch",
]


# models hand lazy input over, and know nothing of Dask
register_lazy_methods(lambda: importlib.import_module("dask_sketch.graph.apply").apply)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("dask-sketch")
    if name == "dashboard":  # a module, for `ds.dashboard.install(client)`
        return importlib.import_module("dask_sketch.cluster.dashboard")
    if name not in _HOME:
        raise AttributeError(f"module 'dask_sketch' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dask_sketch.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
