"""Random mixtures (Keriven et al. 2018, sections 5.1 and 5.4), and divergences between mixtures."""

from __future__ import annotations

import math

import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.tables import require_common_names


def random_mixture(
    n_components: int,
    n_features: int,
    seed: int = 0,
    weights: str = "uniform",
    anisotropy: float = 1.0,
) -> GaussianMixture:
    """Generate a mixture whose components overlap slightly, for any sizes.

    Variances are ``U(0.25, 1.75)``, one on average, and means ``N(0, K**(2 / d) I)``, which gives
    the volume of ``K`` components of variance one.

    Parameters
    ----------
    n_components, n_features
        Sizes ``K`` and ``d``, ``>= 1``.
    seed
        Seed, ``>= 0``.
    weights
        Distribution of the weights: ``"uniform"`` for equal weights, or ``"dirichlet"`` for
        uniform weights on the simplex. (The paper does not specify the weights.)
    anisotropy
        Factor ``A > 0`` of section 5.4, by which the first half of the features is divided.

    Returns
    -------
    mixture
        Random mixture.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> random_mixture(3, 2, seed=0).means.shape
    (3, 2)
    """
    for name, value in (("n_components", n_components), ("n_features", n_features)):
        require_integer(name, value, 1)
    if weights not in ("uniform", "dirichlet"):
        raise InputError(f"weights={weights!r} is unknown; choose 'uniform' or 'dirichlet'.")
    if not (np.isfinite(anisotropy) and anisotropy > 0):
        raise InputError(f"anisotropy={anisotropy!r}: give a positive factor.")
    rng = np.random.default_rng(require_integer("seed", seed, 0))
    shape = (n_components, n_features)
    means = rng.standard_normal(shape) * n_components ** (1.0 / n_features)
    variances = rng.uniform(0.25, 1.75, shape)
    fractions = np.full(n_components, 1.0 / n_components)
    if weights == "dirichlet":
        fractions = rng.dirichlet(np.ones(n_components))
    half = n_features // 2
    means[:, :half] /= anisotropy
    variances[:, :half] /= anisotropy**2
    return GaussianMixture(fractions, means, variances)


_BLOCK_SIZE = 65_536  # samples in memory at once


def symmetric_kl(
    p: GaussianMixture, q: GaussianMixture, n_samples: int = 500_000, seed: int = 0
) -> float:
    """Estimate the symmetric Kullback-Leibler divergence ``D(p||q) + D(q||p)``, eq. (24).

    The estimate is the mean of ``ln(p/q) + (q/p) ln(q/p)`` over samples of ``p``. It is too small
    where ``q`` has mass and ``p`` has none.

    Parameters
    ----------
    p, q
        Mixtures of the same features; samples are generated from ``p``.
    n_samples
        Number of samples, ``>= 1``.
    seed
        Seed, ``>= 0``.

    Returns
    -------
    divergence
        Divergence in nats, ``>= 0``.

    Raises
    ------
    InputError
        If the mixtures have different numbers or names of features, or ``n_samples < 1``.

    Examples
    --------
    >>> p = GaussianMixture([1.0], [[0.0]], [[1.0]])
    >>> q = GaussianMixture([1.0], [[0.1]], [[1.0]])
    >>> round(symmetric_kl(p, q), 3)  # exactly 0.01
    0.01
    """
    if p.n_features != q.n_features:
        raise InputError(
            f"p has {p.n_features} features, q has {q.n_features}: give mixtures of the same "
            "features."
        )
    require_common_names({"p": p.feature_names, "q": q.feature_names})
    n_samples = require_integer("n_samples", n_samples, 1)
    seed = require_integer("seed", seed, 0)
    seeds = np.random.SeedSequence(seed).generate_state(math.ceil(n_samples / _BLOCK_SIZE))
    total = 0.0
    for index, block_seed in enumerate(seeds):
        x = p.sample(min(_BLOCK_SIZE, n_samples - index * _BLOCK_SIZE), seed=int(block_seed))
        log_ratio = q.logpdf(x) - p.logpdf(x)
        # (r - 1) ln r, every term of it positive
        total += float(np.sum(np.expm1(log_ratio) * log_ratio))
    return total / n_samples
