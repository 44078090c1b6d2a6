"""Distances between mixtures."""

from __future__ import annotations

import math

import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.features.arguments import whole_number
from dask_sketch.models.mixture import GaussianMixture

_BLOCK = 65_536  # samples drawn at a time


def symmetric_kl(
    p: GaussianMixture, q: GaussianMixture, n_samples: int = 500_000, seed: int = 0
) -> float:
    """Symmetric Kullback-Leibler divergence ``D(p||q) + D(q||p)``, estimated by eq. (24).

    The mean of ``ln(p/q) + (q/p) ln(q/p)`` over samples of ``p``. Both terms come from the same
    samples; where ``q`` has mass that ``p`` has not, the estimate is too small.

    Parameters
    ----------
    p, q
        Mixtures of the same features; samples are drawn from ``p``.
    n_samples
        Number of samples, ``>= 1``.
    seed
        Seed of the draw.

    Returns
    -------
    divergence
        In nats, ``>= 0``.

    Raises
    ------
    InputError
        If the mixtures have different numbers of features, or ``n_samples < 1``.

    Examples
    --------
    >>> p = GaussianMixture([1.0], [[0.0]], [[1.0]])
    >>> q = GaussianMixture([1.0], [[0.1]], [[1.0]])
    >>> round(symmetric_kl(p, q), 3)  # exactly 0.01
    0.01
    """
    if p.n_features != q.n_features:
        raise InputError(f"p has {p.n_features} features, q has {q.n_features}.")
    n_samples = whole_number("n_samples", n_samples, 1)
    seed = whole_number("seed", seed, 0)
    seeds = np.random.SeedSequence(seed).generate_state(math.ceil(n_samples / _BLOCK))
    total = 0.0
    for index, block_seed in enumerate(seeds):
        x = p.sample(min(_BLOCK, n_samples - index * _BLOCK), seed=int(block_seed))
        log_ratio = q.logpdf(x) - p.logpdf(x)
        # (r - 1) ln r, every term of it positive
        total += float(np.sum(np.expm1(log_ratio) * log_ratio))
    return total / n_samples
