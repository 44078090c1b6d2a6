"""Chunks to features: the laws of the frequencies, the map, the hot loop, the scale."""

from dask_sketch.features.bandwidth import clustering_scale
from dask_sketch.features.laws import LAWS, draw_frequencies
from dask_sketch.features.map import FeatureMap
from dask_sketch.features.pilot import fit_pilot
from dask_sketch.features.scale import ScaleFit, estimate_scale, observe_scale
from dask_sketch.features.size import default_n_frequencies

__all__ = [
    "LAWS",
    "FeatureMap",
    "ScaleFit",
    "clustering_scale",
    "default_n_frequencies",
    "draw_frequencies",
    "estimate_scale",
    "fit_pilot",
    "observe_scale",
]
