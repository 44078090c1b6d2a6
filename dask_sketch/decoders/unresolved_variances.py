"""Variances that the sketch hardly determines: of components of few rows, or held by a bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.efficient import RefinedFit
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.objective import Objective

_KNOWN = 0.3  # standard error of a variance that is known, relative to it
_PRIOR_ERROR = 0.5  # relative error of the variance within components, for a component of few rows
_AT_BOUND = 1.0 + 1e-6  # factor on the smallest variance up to which it counts as that


def off_bounds(objective: Objective, fit: Fit) -> Fit:
    """Fit in which variances at their smallest value become those within all components.

    The noise of heavy components decides the least-squares variance of a component of few rows. An
    efficient refinement that starts at the bound stays there. From the variance of the others it
    reaches the one of the data.

    Parameters
    ----------
    objective
        Atoms and their bounds.
    fit
        Fit of atoms with variances; others stay as they are.
    """
    d = objective.space.n_features
    if fit.theta.shape[1] != 2 * d or objective.space.family.has_matrices:
        return fit
    held = fit.theta[:, d:] <= _AT_BOUND * objective.space.lower[d:]
    if not held.any() or held[fit.weights > 0.0].all():
        return fit
    theta = fit.theta.copy()
    within = np.average(theta[:, d:], axis=0, weights=fit.weights)
    theta[:, d:] = np.where(held, within, theta[:, d:])
    return replace(fit, theta=theta, cost=objective.cost(fit.weights, theta))


def with_known_variances(
    objective: Objective, refined: RefinedFit, *, several_scales: bool
) -> Array:
    """Atoms whose variances are within their bounds, unless their errors say that they are known.

    A variance of few rows that is far too small costs more than all other errors. By a map of
    several scales, whose narrowest one may be far below the components of the data, it is raised to
    its mean with the variance of the feature within all components, as if the latter had an error
    of a half.

    Parameters
    ----------
    objective
        Atoms and their bounds.
    refined
        Fit, with standard errors if variances are to be raised.
    several_scales
        Whether the feature map has several scales, and was made without data.

    Returns
    -------
    theta
        Parameters (K, n_parameters) within the bounds, but for known variances.
    """
    theta, d = refined.fit.theta, objective.space.n_features
    clipped = objective.space.clip(theta)
    if refined.standard_errors is None or theta.shape[1] != 2 * d:
        return clipped
    means, variances = objective.space.to_data_units(theta)
    errors = refined.standard_errors[2]
    if several_scales:
        errors = np.where(errors > 0.0, errors, np.inf)  # a bound that holds one leaves no error
        within = np.average(variances, axis=0, weights=refined.fit.weights)
        precision, of_within = errors**-2, (_PRIOR_ERROR * within) ** -2
        raised = (precision * variances + of_within * within) / (precision + of_within)
        raised = objective.space.from_data_units(means, np.maximum(variances, raised))
        clipped = objective.space.clip(raised)
    known = errors < _KNOWN * variances
    clipped[:, d:] = np.where(known, theta[:, d:], clipped[:, d:])
    return clipped
