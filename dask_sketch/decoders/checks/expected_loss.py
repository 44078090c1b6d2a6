"""Expected loss of a mixture that agrees with a sketch, because of the noise of the sketch.

A sketch of few samples determines components of small weight, or many parameters, poorly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.features.pilot import PilotMixture
from dask_sketch.sketching.sketch import Sketch

Array = NDArray[np.float64]
_TINY = 1e-100
_MAX_PARAMETERS = 2500  # parameters of a mixture whose equations are solved in a second
_FREQUENCIES = 4  # frequencies for each parameter that the equations are made with, at most
_RIDGE = 1e-9  # ridge added to the diagonal of the scaled equations
# True losses were one to 3.5 times those expected from white noise: the noise of frequencies
# close to each other is correlated, and the losses of few rows are larger than to first order.
_CORRELATED = 2.5
_OVERLAP = 50.0  # loss in that of components that are apart, at most
_MIN_ROWS = 5.0  # rows from which a variance is estimated
_MAX_FACTOR = 6.0  # loss of a component that the sketch does not determine, in that of the pilot's


def gain_by_chance(n_parameters: int) -> float:
    """Gain of a maximum of the likelihood that fitted noise explains, in nats times the rows.

    Twice the gain over the truth has ``n_parameters`` degrees of freedom, and as much is lost on
    other rows (Akaike 1974); with four standard deviations.

    Examples
    --------
    >>> gain_by_chance(50)
    70.0
    """
    return float(n_parameters + 2.0 * np.sqrt(2.0 * n_parameters))


def expected_loss(
    sketch: Sketch,
    mixture: tuple[Array, Array, Array],
    pilot: PilotMixture,
    n_rows: int,
    enough: float,
) -> float | None:
    """Expected loss of log-likelihood to the distribution, in nats a sample.

    To first order, from the equations of least squares and the information of the samples; for
    components that were taken from the pilot, from the number of their rows.

    Parameters
    ----------
    sketch
        Sketch that the mixture agrees with.
    mixture
        Weights (K,), means (K, n_features) and variances (K, n_features).
    pilot
        Mixture of the pilot rows.
    n_rows
        Number of pilot rows.
    enough
        Loss below which the components are taken as apart from each other, which takes less time.

    Returns
    -------
    loss
        None if there are too many parameters, or all components were taken from the pilot.
    """
    weights, means, _ = mixture
    k, d = means.shape
    if k * (2 * d + 1) > _MAX_PARAMETERS:
        return None
    of_pilot = sampling_losses(weights, d, n_rows)
    from_pilot = (means[:, None] == pilot.means).all(axis=2).any(axis=1)
    if from_pilot.all():
        return None
    of_sketch = _losses_by_noise(sketch, mixture, from_pilot, enough)
    of_sketch = np.nan_to_num(_CORRELATED * of_sketch, nan=np.inf)
    of_sketch = np.minimum(of_sketch, _MAX_FACTOR * of_pilot)
    return float(np.where(from_pilot, of_pilot, of_sketch).sum())


def expected_loss_by_noise(sketch: Sketch, mixture: tuple[Array, Array, Array]) -> float:
    """Expected loss by white noise, such as that of privacy, in nats a sample to first order.

    Parameters
    ----------
    sketch
        Sketch that the mixture agrees with.
    mixture
        Weights (K,), means (K, n_features) and variances (K, n_features).

    Returns
    -------
    loss
        NaN if there are too many parameters; large values say only that much is lost.
    """
    k, d = mixture[1].shape
    if k * (2 * d + 1) > _MAX_PARAMETERS:
        return np.nan
    with np.errstate(all="ignore"):  # components without width are not determined
        losses = _losses_by_noise(sketch, mixture, np.zeros(k, bool), 0.0)
    return float(np.nan_to_num(losses, nan=np.inf).sum())


def _losses_by_noise(
    sketch: Sketch,
    mixture: tuple[Array, Array, Array],
    from_pilot: NDArray[np.bool_],
    enough: float,
) -> Array:
    """Expected losses (K,), of components that overlap if those apart are not below ``enough``."""
    weights, means, variances = mixture
    k, d = means.shape
    n_parameters = k * (2 * d + 1)
    objective = Objective(sketch)
    theta = objective.space.from_data_units(means, variances)
    per_value = objective.noise_level / (2.0 * objective.n_frequencies)
    curvatures = [np.maximum(each, _TINY) for each in objective.curvatures(weights, theta)]
    losses = per_value * _loss_by(objective, weights, theta, *(1.0 / c for c in curvatures))
    if losses[~from_pilot].sum() * _OVERLAP <= enough:
        return losses
    if objective.n_frequencies > _FREQUENCIES * n_parameters:
        objective = objective.subsample(_FREQUENCIES * n_parameters)
    gram = np.asarray(objective.gram(weights, theta), dtype=np.float64)
    units = np.sqrt(np.maximum(np.diagonal(gram), _TINY))
    gram = gram / units / units[:, None]
    gram[np.diag_indices_from(gram)] += _RIDGE
    spread = np.diagonal(np.linalg.inv(gram)) / units**2
    parts = spread[:k], spread[k:].reshape(k, -1)
    return per_value * _loss_by(objective, weights, theta, *parts)


def sampling_losses(weights: Array, n_features: int, n_rows: int) -> Array:
    """Expected losses (K,) of components from the small numbers of their rows, in nats a sample.

    A variance of few rows is far from the true one: the loss is larger than to first order by the
    factor ``n / (n - 4)`` for ``n`` rows of a component, within a tenth from six rows.

    Parameters
    ----------
    weights
        Weights, shape (K,).
    n_features
        Number of features.
    n_rows
        Number of rows that all components are fitted to.
    """
    rows_of = np.maximum(weights * n_rows, _MIN_ROWS)
    return (2 * n_features + 1) / (2.0 * n_rows) * rows_of / (rows_of - 4.0)


def _loss_by(
    objective: Objective, weights: Array, theta: Array, of_weight: Array, of_theta: Array
) -> Array:
    """Loss (K,) by variances of the weights (K,) and of the parameters (K, 2 * n_features)."""
    scaled = objective.space.variances(theta)
    d = scaled.shape[1]
    terms = of_theta[:, :d] / scaled + of_theta[:, d:] / (2.0 * scaled**2)
    return 0.5 * weights * terms.sum(axis=1) + 0.5 * of_weight / np.maximum(weights, _TINY)
