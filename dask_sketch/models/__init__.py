"""Mixtures: densities, samples, storage, synthetic truths and distances."""

from dask_sketch.models.artifact import open_mixture, save_mixture
from dask_sketch.models.decoding import Decoding
from dask_sketch.models.divergence import symmetric_kl
from dask_sketch.models.mixture import GaussianMixture
from dask_sketch.models.synthetic import random_mixture

__all__ = [
    "Decoding",
    "GaussianMixture",
    "open_mixture",
    "random_mixture",
    "save_mixture",
    "symmetric_kl",
]
