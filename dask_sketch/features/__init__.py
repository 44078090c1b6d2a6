"""Chunks to features: the distributions of the frequencies, the map, the hot loop, the scale."""

from __future__ import annotations

from dask_sketch.features.design import default_n_frequencies
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.frequency_distributions import sample_frequencies
from dask_sketch.features.pilot_fit import fit_pilot
from dask_sketch.features.scale import ScaleFit, clustering_scale, estimate_scale, observe_scale

__all__ = [
    "FeatureMap",
    "ScaleFit",
    "clustering_scale",
    "default_n_frequencies",
    "estimate_scale",
    "fit_pilot",
    "observe_scale",
    "sample_frequencies",
]
