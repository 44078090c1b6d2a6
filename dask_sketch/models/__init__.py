"""Mixtures and centroids: densities, samples, storage, synthetic truths and distances."""

from dask_sketch.models.artifact import open_mixture, open_model
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.decoding import Decoding
from dask_sketch.models.divergence import symmetric_kl
from dask_sketch.models.mixture import GaussianMixture
from dask_sketch.models.synthetic import random_mixture
from dask_sketch.models.uncertainty import StandardErrors

__all__ = [
    "Centroids",
    "Decoding",
    "GaussianMixture",
    "StandardErrors",
    "open_mixture",
    "open_model",
    "random_mixture",
    "symmetric_kl",
]
