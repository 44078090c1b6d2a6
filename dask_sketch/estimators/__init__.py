"""Estimators with the interface of scikit-learn (extra ``sklearn``)."""

from dask_sketch.estimators.kmeans import SketchKMeans
from dask_sketch.estimators.mixture import SketchGaussianMixture

__all__ = ["SketchGaussianMixture", "SketchKMeans"]
