"""Compare and test distributions by their sketches, and learn from groups of samples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_sketch.distributions.density_features import (
        DensityFeatures,
        DensityNodes,
        SpectralMeasure,
        trigonometric_features,
    )
    from dask_sketch.distributions.distance_kernels import (
        DistanceKernel,
        NystroemKernel,
        repair_kernel,
    )
    from dask_sketch.distributions.divergences import Divergence, divergence, divergence_matrix
    from dask_sketch.distributions.embeddings import mean_embedding
    from dask_sketch.distributions.group_estimators import (
        DistributionClassifier,
        DistributionRegressor,
    )
    from dask_sketch.distributions.group_features import DistributionFeatures
    from dask_sketch.distributions.independent_rows import compare_rows
    from dask_sketch.distributions.result import FeatureDifference, TwoSampleTest
    from dask_sketch.distributions.two_sample import compare

# Loaded when first used (PEP 562), so that jobs can test for drift without scikit-learn.
_HOME = {
    "DensityFeatures": "density_features",
    "DensityNodes": "density_features",
    "DistanceKernel": "distance_kernels",
    "DistributionClassifier": "group_estimators",
    "DistributionFeatures": "group_features",
    "DistributionRegressor": "group_estimators",
    "Divergence": "divergences",
    "FeatureDifference": "result",
    "NystroemKernel": "distance_kernels",
    "SpectralMeasure": "density_features",
    "TwoSampleTest": "result",
    "compare": "two_sample",
    "compare_rows": "independent_rows",
    "divergence": "divergences",
    "divergence_matrix": "divergences",
    "mean_embedding": "embeddings",
    "repair_kernel": "distance_kernels",
    "trigonometric_features": "density_features",
}
__all__ = [
    "DensityFeatures",
    "DensityNodes",
    "DistanceKernel",
    "DistributionClassifier",
    "DistributionFeatures",
    "DistributionRegressor",
    "Divergence",
    "FeatureDifference",
    "NystroemKernel",
    "SpectralMeasure",
    "TwoSampleTest",
    "compare",
    "compare_rows",
    "divergence",
    "divergence_matrix",
    "mean_embedding",
    "repair_kernel",
    "trigonometric_features",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
