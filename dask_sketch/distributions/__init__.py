"""Compare and test distributions by their sketches, and learn from groups of samples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_sketch.distributions.anomalies import AnomalyScores, RankedRows
    from dask_sketch.distributions.comparison_report import write_comparison
    from dask_sketch.distributions.control_variates import MeanEstimate
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
    from dask_sketch.distributions.empirical_distribution import EmpiricalDistribution
    from dask_sketch.distributions.feature_errors import (
        is_sine_cosine_better,
        kernel_variance,
        mean_map_variance,
        random_features,
        required_frequencies,
    )
    from dask_sketch.distributions.group_neighbors import nearest_groups
    from dask_sketch.distributions.kernel_widths import kernel_covariances
    from dask_sketch.distributions.learning.embeddings import mean_embedding
    from dask_sketch.distributions.learning.group_estimators import (
        DistributionClassifier,
        DistributionRegressor,
    )
    from dask_sketch.distributions.learning.group_features import DistributionFeatures
    from dask_sketch.distributions.learning.learning_report import write_learning
    from dask_sketch.distributions.mean_maps import (
        BlockMMD,
        MMDEstimate,
        estimate_mmd,
        mean_map_kernel,
        witness,
    )
    from dask_sketch.distributions.node_divergences import node_divergence
    from dask_sketch.distributions.pattern_search import (
        PatternSearch,
        ProbitRegions,
        SampledRegions,
    )
    from dask_sketch.distributions.testing.homogeneity import HomogeneityTest, compare_all
    from dask_sketch.distributions.testing.independence import (
        IndependenceTest,
        compare_columns,
        split_columns,
    )
    from dask_sketch.distributions.testing.independent_rows import compare_model, compare_rows
    from dask_sketch.distributions.testing.many_tests import ManyTests, compare_each
    from dask_sketch.distributions.testing.result import FeatureDifference, TwoSampleTest
    from dask_sketch.distributions.testing.segmentation import (
        ChangePoint,
        ChangePoints,
        change_points,
    )
    from dask_sketch.distributions.testing.two_sample import compare

# Loaded when first used (PEP 562), so that jobs can test for drift without scikit-learn.
_HOME = {
    "AnomalyScores": "anomalies",
    "BlockMMD": "mean_maps",
    "ChangePoint": "testing.segmentation",
    "ChangePoints": "testing.segmentation",
    "DensityFeatures": "density_features",
    "DensityNodes": "density_features",
    "DistanceKernel": "distance_kernels",
    "DistributionClassifier": "learning.group_estimators",
    "DistributionFeatures": "learning.group_features",
    "DistributionRegressor": "learning.group_estimators",
    "Divergence": "divergences",
    "EmpiricalDistribution": "empirical_distribution",
    "MeanEstimate": "control_variates",
    "FeatureDifference": "testing.result",
    "HomogeneityTest": "testing.homogeneity",
    "IndependenceTest": "testing.independence",
    "MMDEstimate": "mean_maps",
    "ManyTests": "testing.many_tests",
    "NystroemKernel": "distance_kernels",
    "PatternSearch": "pattern_search",
    "ProbitRegions": "pattern_search",
    "RankedRows": "anomalies",
    "SampledRegions": "pattern_search",
    "SpectralMeasure": "density_features",
    "TwoSampleTest": "testing.result",
    "change_points": "testing.segmentation",
    "compare": "testing.two_sample",
    "compare_all": "testing.homogeneity",
    "compare_columns": "testing.independence",
    "compare_each": "testing.many_tests",
    "compare_model": "testing.independent_rows",
    "compare_rows": "testing.independent_rows",
    "divergence": "divergences",
    "divergence_matrix": "divergences",
    "estimate_mmd": "mean_maps",
    "is_sine_cosine_better": "feature_errors",
    "kernel_covariances": "kernel_widths",
    "kernel_variance": "feature_errors",
    "mean_embedding": "learning.embeddings",
    "mean_map_kernel": "mean_maps",
    "mean_map_variance": "feature_errors",
    "nearest_groups": "group_neighbors",
    "node_divergence": "node_divergences",
    "random_features": "feature_errors",
    "repair_kernel": "distance_kernels",
    "required_frequencies": "feature_errors",
    "split_columns": "testing.independence",
    "trigonometric_features": "density_features",
    "witness": "mean_maps",
    "write_comparison": "comparison_report",
    "write_learning": "learning.learning_report",
}
__all__ = [
    "AnomalyScores",
    "BlockMMD",
    "ChangePoint",
    "ChangePoints",
    "DensityFeatures",
    "DensityNodes",
    "DistanceKernel",
    "DistributionClassifier",
    "DistributionFeatures",
    "DistributionRegressor",
    "Divergence",
    "EmpiricalDistribution",
    "FeatureDifference",
    "HomogeneityTest",
    "IndependenceTest",
    "MMDEstimate",
    "ManyTests",
    "MeanEstimate",
    "NystroemKernel",
    "PatternSearch",
    "ProbitRegions",
    "RankedRows",
    "SampledRegions",
    "SpectralMeasure",
    "TwoSampleTest",
    "change_points",
    "compare",
    "compare_all",
    "compare_columns",
    "compare_each",
    "compare_model",
    "compare_rows",
    "divergence",
    "divergence_matrix",
    "estimate_mmd",
    "is_sine_cosine_better",
    "kernel_covariances",
    "kernel_variance",
    "mean_embedding",
    "mean_map_kernel",
    "mean_map_variance",
    "nearest_groups",
    "node_divergence",
    "random_features",
    "repair_kernel",
    "required_frequencies",
    "split_columns",
    "trigonometric_features",
    "witness",
    "write_comparison",
    "write_learning",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
