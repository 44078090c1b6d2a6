"""Mixtures and centroids: densities, samples, storage, synthetic truths and distances."""

from __future__ import annotations

from dask_sketch.models.alpha_stable import AlphaStableMixture
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.latent_class_mixture import LatentClassMixture
from dask_sketch.models.model import Decoding, Polishing, StandardErrors
from dask_sketch.models.simulation import random_mixture, symmetric_kl
from dask_sketch.models.von_mises_fisher import VonMisesFisherMixture

__all__ = [
    "AlphaStableMixture",
    "Centroids",
    "Decoding",
    "GaussianMixture",
    "LatentClassMixture",
    "Polishing",
    "StandardErrors",
    "VonMisesFisherMixture",
    "random_mixture",
    "symmetric_kl",
]
