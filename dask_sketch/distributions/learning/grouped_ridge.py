"""Ridge regression whose ridge has the smallest error on groups of observations left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, svd
from sklearn.linear_model import RidgeCV

from dask_sketch.errors import InputError

Array = NDArray[np.float64]
_MIN_SQUARE = 1e-9  # squared diagonal entry of a Cholesky factor of a matrix with entries of one


def grouped_ridge(
    values: Array, y: Array, weights: Array, codes: NDArray[np.intp], alphas: Array
) -> tuple[RidgeCV, Array]:
    """Fit a ridge regression, with predictions of each group of observations by the others.

    A linear smoother with the matrix ``H`` has residuals ``r`` in the fit to all observations. The
    residuals of the group ``g`` in a fit to all others are ``(I - H_gg)^-1 r_g``, where the
    intercept is part of ``H`` and observations are multiplied by the roots of their weights.

    Parameters
    ----------
    values
        Features, shape (n, n_features).
    y
        Targets, shape (n, n_targets).
    weights
        Weight of each observation, above 0, shape (n,).
    codes
        Group of each observation, integers from 0 of at least two groups, shape (n,).
    alphas
        Ridges to choose from, above 0. Those that are too small for accurate residuals are not
        chosen.

    Returns
    -------
    ridge
        Fitted regression with the smallest error on groups left out.
    predictions
        Prediction of each observation by a fit to the other groups, shape (n, n_targets).

    Raises
    ------
    InputError
        If all ridges are too small.

    References
    ----------
    Cook and Weisberg (1982), Residuals and influence in regression, for several left out.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, y, speaker = rng.normal(size=(9, 2)), rng.normal(size=(9, 1)), np.arange(9) // 3
    >>> ridge, predictions = grouped_ridge(x, y, np.ones(9), speaker, np.array([1.0]))
    >>> others = RidgeCV([1.0]).fit(x[3:], y[3:])
    >>> bool(np.allclose(others.predict(x[:3]).ravel(), predictions[:3, 0]))
    True
    """
    roots, mass = np.sqrt(weights)[:, None], float(weights.sum())
    center, level = weights @ values / mass, weights @ y / mass
    left, singular, right = svd((values - center) * roots, full_matrices=False)
    targets = (y - level) * roots
    turned = left.T @ targets
    members = [np.flatnonzero(codes == code) for code in range(int(codes.max()) + 1)]
    best: tuple[float, float, Array, Array] | None = None
    for alpha in alphas.tolist():
        shrinkage = singular**2 / (singular**2 + alpha)
        residuals = targets - left @ (shrinkage[:, None] * turned)
        smoother = np.hstack([left * np.sqrt(shrinkage), roots / np.sqrt(mass)])
        try:
            for rows in members:
                residuals[rows] = _left_out(smoother[rows], residuals[rows])
        except LinAlgError:
            continue
        score = -float(np.sum(residuals**2)) / (mass * y.shape[1])
        if best is None or score > best[0]:
            coefficients = right.T @ ((singular / (singular**2 + alpha))[:, None] * turned)
            best = score, alpha, coefficients, y - residuals / roots
    if best is None:
        raise InputError(
            f"alphas={alphas.tolist()} are too small for features as large as these to leave out "
            "groups: give larger ones, or features of about length one.",
            parameter="alphas",
        )
    score, alpha, coefficients, predictions = best
    return ridge_of(alphas, alpha, score, coefficients, level - center @ coefficients), predictions


def _left_out(smoother: Array, residuals: Array) -> Array:
    """Residuals of a group that is left out, from a root of its block of the smoother matrix."""
    n, rank = smoother.shape
    if n <= rank:
        return _solved(np.eye(n) - smoother @ smoother.T, residuals)
    inner = _solved(np.eye(rank) - smoother.T @ smoother, smoother.T @ residuals)
    return np.asarray(residuals + smoother @ inner)


def _solved(matrix: Array, right: Array) -> Array:
    factor = cho_factor(matrix)
    if np.min(np.diag(factor[0])) ** 2 < _MIN_SQUARE:
        raise LinAlgError("the matrix is singular within rounding")
    return np.asarray(cho_solve(factor, right))


def ridge_of(
    alphas: Array, alpha: float, score: float, coefficients: Array, intercept: Array
) -> RidgeCV:
    """Ridge regression of scikit-learn with known coefficients.

    Parameters
    ----------
    alphas, alpha, score
        Ridges to choose from, the chosen one, and its score.
    coefficients
        Shape (n_features, n_targets).
    intercept
        Shape (n_targets,).
    """
    ridge: Any = RidgeCV(alphas)
    ridge.best_score_, ridge.alpha_ = score, alpha
    ridge.coef_ = np.ascontiguousarray(coefficients.T)  # coefficients are stored in this order
    ridge.intercept_, ridge.n_features_in_ = intercept, len(coefficients)
    return ridge
