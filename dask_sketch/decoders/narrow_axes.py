"""Widths of covariance matrices along axes whose variances are within their errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from dask_sketch.decoders.objectives.atoms import Array, ParameterSpace, entries, unpacked
from dask_sketch.validation.warn import warn_user

_ROOT = math.sqrt(2.0 * math.pi)
_NODES = np.linspace(math.log(1e-6), math.log(40.0), 800)  # logarithms of variances by their errors
_RESOLVED = 3.0  # errors beyond which a variance is known
# smallest error, as a fraction of the variance: components without weight have no errors
_LEAST_ERROR = 1e-8
# Eigenvalues in units of the smallest one that a fit may have, up to which they are on the bound,
# and weight of such components that is warned of. One component on the bound lost 2.1 to 2.5 nats
# where its narrow axis had a 200th of the variance of the bound, and 0.06 to 0.3 with half of it;
# beyond twice the bound fits lost nothing.
_ON_BOUND, _BOUND_WEIGHT = 1.01, 0.05
_LARGE = 0.05  # nats a sample whose expected loss is warned of


class Widened(NamedTuple):
    """Widened covariance matrices.

    Attributes
    ----------
    matrices
        Matrices, shape (K, n_features, n_features).
    loss
        Expected loss of log-likelihood in nats a sample, by variances that are hardly known.
    """

    matrices: Array
    loss: float


def widened(matrices: Array, covariances: Sequence[Array], weights: Array) -> Widened:
    """Widen matrices along their narrow axes to the expected variances, which are not negative.

    A variance ``v`` with an error ``e`` becomes ``v + e phi(v / e) / Phi(v / e)``, the mean of a
    normal distribution of positive numbers. This has the largest expected log-likelihood of a
    normal density, which falls steeply for a variance too small and slowly for one too large. A
    variance of many errors hardly changes.

    Parameters
    ----------
    matrices
        Estimated matrices, shape (K, n_features, n_features).
    covariances
        Covariance of the estimated entries of each matrix, the diagonal first, then all pairs.
    weights
        Weights of the components, shape (K,).

    Returns
    -------
    widened
        Matrices, and the expected loss that is left.

    Examples
    --------
    >>> errors = np.diag([0.1, 0.1, 0.1]) ** 2
    >>> found = widened(np.array([[[1.0, 0.0], [0.0, 0.01]]]), [errors], np.ones(1))
    >>> found.matrices[0].diagonal().round(2).tolist(), round(found.loss, 2)
    ([1.0, 0.08], 0.2)
    """
    first, second = entries(matrices.shape[-1])
    out = np.empty_like(matrices)
    loss = 0.0
    for k, matrix in enumerate(matrices):
        values, axes = np.linalg.eigh(matrix)
        # derivatives of the variance along each axis by the entries of the matrix
        derivatives = np.where(first == second, 1.0, 2.0)[:, None] * axes[first] * axes[second]
        squares = np.einsum("qi,qr,ri->i", derivatives, covariances[k], derivatives)
        errors = np.maximum(np.sqrt(np.maximum(squares, 0.0)), _LEAST_ERROR * np.abs(values))
        ratios = values / errors
        means = ratios + np.exp(-0.5 * ratios**2 - special.log_ndtr(ratios)) / _ROOT
        out[k] = (axes * (errors * means)) @ axes.T
        loss += float(weights[k] * _losses(ratios, means)[ratios < _RESOLVED].sum())
    return Widened(out, loss)


def _losses(ratios: Array, means: Array) -> Array:
    """Expected losses in nats of the mean variances, half of ``log(E v) - E log(v)``."""
    densities = np.exp(_NODES - 0.5 * (np.exp(_NODES) - ratios[:, None]) ** 2)
    totals = np.maximum(densities.sum(axis=1), np.finfo(float).tiny)
    return np.asarray(0.5 * (np.log(means) - densities @ _NODES / totals))


def widened_atoms(
    space: ParameterSpace, theta: Array, covariances: Sequence[Array], weights: Array
) -> tuple[Array, float]:
    """Atoms with matrices that are :func:`widened`, and their expected loss.

    Parameters
    ----------
    space
        Space of atoms with covariance matrices.
    theta
        Atoms, shape (K, n_parameters).
    covariances
        Covariance of the parameters of each atom.
    weights
        Weights of the components, shape (K,).

    Returns
    -------
    theta, loss
        Atoms, and the loss in nats a sample; infinite for matrices as narrow as a fit allows, whose
        axes may be far narrower. Features that do not vary stay as they are.
    """
    d = space.n_features
    first, second = entries(d)
    varying = d + np.flatnonzero(space.varies[first] & space.varies[second])
    if not len(varying):
        return theta, 0.0
    size = int(space.varies.sum())
    wider, matrices = theta.copy(), unpacked(theta[:, varying], size)
    of_matrices = [of_atom[np.ix_(varying, varying)] for of_atom in covariances]
    found = widened(matrices, of_matrices, weights)
    wider[:, varying] = found.matrices[:, *entries(size)]
    root = np.sqrt(space.lower[d : 2 * d][space.varies])
    smallest = np.linalg.eigvalsh(matrices / np.outer(root, root))[:, 0]
    on_bound = weights[smallest < _ON_BOUND].sum() > _BOUND_WEIGHT * weights.sum()
    return wider, np.inf if on_bound else found.loss


def warn_of_narrow_axes(loss: float, remedy: str) -> None:
    """Warn of a mixture whose widths along some axes are hardly known.

    Parameters
    ----------
    loss
        Expected loss of :func:`widened`; infinite for components as narrow as a fit allows.
    remedy
        Advice by which random rows take part in a fit, as a clause.
    """
    if loss == np.inf:
        warn_user(
            "components are as narrow along some axes as variance_floor allows, and may be far "
            "narrower, which frequencies do not show: some features nearly follow from others, or "
            "many rows share values. The mixture may be far less likely than one Gaussian, and "
            "imputed values far from it. Leave out such features; "
            f"{remedy}; or decode covariance_type='diag'."
        )
    elif loss > _LARGE:
        warn_user(
            "components are so narrow along some axes that the sketch hardly tells their widths: "
            f"the mixture is expected to lose {loss:.1g} nats a sample or more. Sketch more "
            f"rows or frequencies; {remedy}; or decode covariance_type='diag'."
        )
