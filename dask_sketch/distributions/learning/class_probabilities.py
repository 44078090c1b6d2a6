"""Probabilities of classes from the leave-one-out predictions of a ridge regression."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context
from sklearn.linear_model import LogisticRegression

from dask_sketch.distributions.learning.ridge_selection import SelectedRidge
from dask_sketch.validation.threads import one_blas_thread

Array = NDArray[np.float64]
_INVERSE_PENALTY = 100.0  # inverse penalty of the logistic regression on leave-one-out predictions


def fit_logistic(
    selected: SelectedRidge,
    targets: Array,
    codes: NDArray[np.intp],
    weights: Array,
    left_out: NDArray[np.intp] | None,
) -> LogisticRegression:
    """Fit a logistic regression on leave-one-out predictions.

    Of few groups, chance may make larger predictions of a class those of the other classes. The
    predictions are taken as probabilities then.

    Parameters
    ----------
    selected
        Regression with leave-one-out predictions, shape (n_groups, n_targets); NaN of groups that
        have none.
    targets
        Indicators of the classes, shape (n_groups, n_targets).
    codes
        Numbers of the classes, shape (n_groups,).
    weights
        Weights of the groups, shape (n_groups,).
    left_out
        Codes of groups that were left out together, shape (n_groups,); None if each was alone.

    Returns
    -------
    logistic
        Fitted regression, whose inputs are predictions.
    """
    predicted = np.isfinite(selected.predictions[:, 0])
    inputs = about_one_mean(selected, targets, left_out)[predicted]
    known, masses = codes[predicted], weights[predicted]
    logistic = LogisticRegression(C=_INVERSE_PENALTY, max_iter=1000)
    with one_blas_thread(), config_context(enable_metadata_routing=False):
        logistic.fit(inputs, known, masses)
    n_targets, n_classes = targets.shape[1], len(logistic.classes_)
    if n_targets not in (1, n_classes):  # classes without predictions
        return logistic
    own = logistic.coef_.diagonal()
    others = (logistic.coef_.sum(axis=1) - own) / max(n_targets - 1, 1)
    if (own > others).all():
        return logistic
    # slope of the logit by a probability near 1 / n_classes
    slope = n_classes**2 / (n_classes - 1.0)
    shares = np.bincount(np.searchsorted(logistic.classes_, known), masses) / masses.sum()
    logits = np.log(shares) if n_targets > 1 else np.log(shares[1:] / shares[:1])
    logistic.coef_ = slope * np.eye(n_targets)
    logistic.intercept_ = logits - slope * np.average(inputs, axis=0, weights=masses)
    return logistic


def about_one_mean(
    selected: SelectedRidge, targets: Array, left_out: NDArray[np.intp] | None
) -> Array:
    """Leave-one-out predictions with the mean of all groups in place of that of the others.

    The mean of the other groups leans away from the class of a group. Of few groups, a logistic
    regression on predictions with that mean has learned the classes in reverse.

    Parameters
    ----------
    selected, targets, left_out
        Arguments of :func:`fit_logistic`.

    Returns
    -------
    predictions
        Predictions, shape (n_groups, n_targets).
    """
    masses = np.where(np.isfinite(selected.predictions[:, 0]), selected.weights, 0.0)
    sums = masses[:, None] * targets
    own_mass, own_sums = masses, sums
    if left_out is not None:
        own_mass = np.bincount(left_out, masses)[left_out]
        by_label = [np.bincount(left_out, column)[left_out] for column in sums.T]
        own_sums = np.stack(by_label, axis=1)
    total, total_sums = masses.sum(), sums.sum(axis=0)
    others = np.maximum(total - own_mass, np.finfo(float).tiny)[:, None]
    return np.asarray(selected.predictions + total_sums / total - (total_sums - own_sums) / others)
