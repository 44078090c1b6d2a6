"""The laws that frequencies are drawn from (Keriven et al. 2018, section 3.3).

All laws are adapted to the covariances that a mixture's components are expected to have,
never to their means: ``omega = R * Sigma**(-1/2) * phi`` with ``phi`` uniform on the sphere
(eq. 16). They differ in the law of the radius ``R``. For several covariances the law is their
mixture (eq. 18).

``sparse-radius`` is ours: the adapted radius in directions that use at most four features, drawn
anew for each frequency. A diagonal covariance is told apart by features that move with few
coordinates: where a direction is spread over all ``d``, each variance is seen through a share
``1 / d`` of the squared radius. Asymptotic variance of the decoded mixture on the mixtures of
sec. 5.1, mean ln symmetric KL at n = 300,000, isotropic scale, against the adapted radius: by
least squares -7.36 against -7.03 (d=10, K=5, m=525) and -6.90 against -6.43 (d=20, K=5, m=2050);
by efficient refinement -7.75 against -7.61 and -7.17 against -6.97. It also forgives a scale that
is wrong by a third either way. With four features or fewer the two are one law.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dask_sketch.errors import InputError

Law = Literal["adapted-radius", "sparse-radius", "folded-gaussian", "gaussian"]
LAWS: tuple[str, ...] = get_args(Law)

# Features of one direction of sparse-radius. Three lose as much to five (by least squares) as
# five to three (by efficient refinement); one and two do not see how features go together.
_FEW = 4


def adapted_radius(uniform: ArrayLike) -> NDArray[np.float64]:
    """Quantile function of the adapted radius law, eq. (17).

    The density is ``C * sqrt(R**2 + R**4 / 4) * exp(-R**2 / 2)``. With ``u = 1 + R**2 / 4`` it
    becomes a Gamma(3/2, rate 2) law truncated to ``u >= 1``, whose quantiles are known, so that
    draws are exact and none is rejected.

    Parameters
    ----------
    uniform
        Probabilities in [0, 1), any shape.

    Returns
    -------
    radius
        Radii of the same shape, ``>= 0``, in units of one over a standard deviation.

    Examples
    --------
    >>> round(float(adapted_radius(0.5)), 5)
    1.27903
    """
    tail = special.gammaincc(1.5, 2.0) * (1.0 - np.asarray(uniform, dtype=np.float64))
    u = 0.5 * special.gammainccinv(1.5, tail)
    return np.asarray(2.0 * np.sqrt(np.maximum(u - 1.0, 0.0)))


def draw_frequencies(
    law: str,
    covariances: ArrayLike,
    n_frequencies: int,
    *,
    weights: ArrayLike | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Draw frequencies for one or several diagonal covariances (function DrawFreq, eq. 16-18).

    Parameters
    ----------
    law
        ``"adapted-radius"``, ``"sparse-radius"`` (the adapted radius in directions of at most four
        features, for mixtures with diagonal covariances), ``"folded-gaussian"`` (radius
        ``|N(0, 1)|``) or ``"gaussian"`` (``omega ~ N(0, Sigma**-1)``, useless in high dimension).
    covariances
        Variances, shape (n_features,), or (n_laws, n_features) for a mixture of laws.
    n_frequencies
        Number of frequencies, ``>= 1``.
    weights
        Probabilities of the laws of a mixture, shape (n_laws,); equal when not given.
    seed
        Seed of the draw.

    Returns
    -------
    frequencies
        Shape (n_features, n_frequencies), radians per unit of the data.

    Raises
    ------
    InputError
        For an unknown law.

    Examples
    --------
    >>> draw_frequencies("adapted-radius", [1.0, 4.0], 5, seed=1).shape
    (2, 5)
    """
    if law not in LAWS:
        raise InputError(f"law={law!r} is unknown; choose one of {', '.join(LAWS)}.")
    variances = np.atleast_2d(np.asarray(covariances, dtype=np.float64))
    rng = np.random.default_rng(seed)
    chosen = variances[_labels(rng, len(variances), weights, n_frequencies)]
    normal = rng.standard_normal((n_frequencies, variances.shape[1]))
    if law != "gaussian":
        uniform = rng.random(n_frequencies)
        radius = (
            special.ndtri(0.5 + uniform / 2)
            if law == "folded-gaussian"
            else adapted_radius(uniform)
        )
        if law == "sparse-radius":
            order = rng.random(normal.shape).argsort(axis=1)
            normal[order >= _FEW] = 0.0
        normal *= (radius / np.linalg.norm(normal, axis=1))[:, None]
    return np.ascontiguousarray((normal / np.sqrt(chosen)).T)


def _labels(
    rng: np.random.Generator, n_laws: int, weights: ArrayLike | None, n_frequencies: int
) -> NDArray[np.intp]:
    """Which law of the mixture each frequency comes from."""
    if n_laws == 1:
        return np.zeros(n_frequencies, dtype=np.intp)
    share = np.full(n_laws, 1.0) if weights is None else np.asarray(weights, dtype=np.float64)
    edges = np.cumsum(share / share.sum())[:-1]
    return np.searchsorted(edges, rng.random(n_frequencies), side="right")
