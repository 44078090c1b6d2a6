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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dask_sketch.validation.registry import (
    register_lazy_methods,
    register_reader,
    register_unpacker,
)

if TYPE_CHECKING:
    from dask_sketch.decoders.calibrated_sample import calibrate
    from dask_sketch.decoders.decode import decode
    from dask_sketch.diagnostics.fit import diagnose
    from dask_sketch.diagnostics.mmd import mmd
    from dask_sketch.diagnostics.model_selection import select_model
    from dask_sketch.errors import SketchError
    from dask_sketch.estimators.decomposition import SketchPCA
    from dask_sketch.estimators.sketch_estimators import (
        SketchGaussianMixture,
        SketchKMeans,
        SketchKMedians,
    )
    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.graph.apply import apply
    from dask_sketch.graph.design import design
    from dask_sketch.graph.moments import second_moments
    from dask_sketch.graph.plan import Plan, plan
    from dask_sketch.graph.polish import polish
    from dask_sketch.graph.sketch import sketch
    from dask_sketch.jobs.ledger.ledger import Ledger, create_ledger, open_ledger
    from dask_sketch.models.centroids import Centroids
    from dask_sketch.models.gaussian_mixture import GaussianMixture
    from dask_sketch.sketching.group import SketchGroup
    from dask_sketch.sketching.merge import merge
    from dask_sketch.sketching.moment_grid import MomentGrid
    from dask_sketch.sketching.open import open
    from dask_sketch.sketching.partial import partial_sketch
    from dask_sketch.sketching.privatise import privatise
    from dask_sketch.sketching.second_moments import SecondMoments
    from dask_sketch.sketching.sketch import Sketch
    from dask_sketch.sources.open import open_samples
    from dask_sketch.sources.samples import Samples

# Loaded when first used (PEP 562), so that the numerics can be imported without Dask.
_HOME = {
    "Centroids": "models",
    "FeatureMap": "features",
    "GaussianMixture": "models",
    "Ledger": "jobs.ledger",
    "MomentGrid": "sketching.moment_grid",
    "Plan": "graph",
    "Samples": "sources.samples",
    "SecondMoments": "sketching.second_moments",
    "Sketch": "sketching.sketch",
    "SketchError": "errors",
    "SketchGaussianMixture": "estimators.sketch_estimators",
    "SketchGroup": "sketching.group",
    "SketchKMeans": "estimators.sketch_estimators",
    "SketchKMedians": "estimators.sketch_estimators",
    "SketchPCA": "estimators.decomposition",
    "apply": "graph",
    "calibrate": "decoders.calibrated_sample",
    "create_ledger": "jobs.ledger",
    "decode": "decoders.decode",
    "design": "graph",
    "diagnose": "diagnostics",
    "merge": "sketching.merge",
    "mmd": "diagnostics.mmd",
    "open": "sketching.open",
    "open_ledger": "jobs.ledger",
    "open_samples": "sources.open",
    "partial_sketch": "sketching.partial",
    "plan": "graph",
    "polish": "graph",
    "privatise": "sketching.privatise",
    "second_moments": "graph.moments",
    "select_model": "diagnostics",
    "sketch": "graph",
}
__all__ = [
    "Centroids",
    "FeatureMap",
    "GaussianMixture",
    "Ledger",
    "MomentGrid",
    "Plan",
    "Samples",
    "SecondMoments",
    "Sketch",
    "SketchError",
    "SketchGaussianMixture",
    "SketchGroup",
    "SketchKMeans",
    "SketchKMedians",
    "SketchPCA",
    "apply",
    "calibrate",
    "create_ledger",
    "decode",
    "design",
    "diagnose",
    "merge",
    "mmd",
    "open",
    "open_ledger",
    "open_samples",
    "partial_sketch",
    "plan",
    "polish",
    "privatise",
    "second_moments",
    "select_model",
    "sketch",
]


def _imported_later(module: str, name: str) -> Callable[[], Any]:
    """Function that imports a module of the package when called, and returns its attribute."""
    return lambda: getattr(importlib.import_module(f"dask_sketch.{module}"), name)


# Methods of models pass lazy input on, `Sketch.from_bytes` unpacks, and `open` reads artifacts, by
# functions of modules that these may not import.
register_lazy_methods(_imported_later("graph.apply", "apply"))
register_unpacker(_imported_later("sketching.open", "sketch_from_bytes"))
for _schema, _module, _reader in (
    ("dask-sketch/distribution-classifier", "distributions.learning.open", "read_estimator"),
    ("dask-sketch/distribution-regressor", "distributions.learning.open", "read_estimator"),
    ("dask-sketch/quantized-phases", "sketching.quantized_phases", "read_phases"),
):
    register_reader(_schema, 1, _imported_later(_module, _reader))


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
