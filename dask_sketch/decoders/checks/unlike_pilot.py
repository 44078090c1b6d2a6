"""Part of the rows that are unlike the pilot rows of a feature map, by the sketch of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dask_sketch.decoders.objectives.atoms import VARIANCE_FLOOR, Array
from dask_sketch.decoders.starts import pilot_residual
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.warn import warn_user

Complex = NDArray[np.complex128]
# Squared distance that is put down to chance, in that of two random samples: ten real data sets,
# in the order of their files or sorted, and in 8 to 200 chunks, had 0.1 to 1.25. Few frequencies
# that are nearly independent vary more; then the quantile of its distribution counts.
_CHANCES, _QUANTILE = 1.5, 1.0 - 1e-4
_LARGEST_MISFIT = 2.0  # the same, for the pilot rows and their mixture
_CHOSEN = 128  # frequencies from whose covariances the distribution is estimated
# Part of the rows that is warned of. Where the pilot lacked rows beyond a quantile of a feature,
# 1 to 2 % cost 0.03 to 0.09 nats a sample, 3.5 % of a spiral 0.3.
_WARNED_FRACTION = 0.01
# Smallest variance that the decoder resolves, in that of the map or of the data.
_RESOLVED = VARIANCE_FLOOR * (1.0 + 1e-6)
# Squared modulus of a feature that noise does not explain, in that of noise. With no more of them
# than parameters, data 5 to 12 times as wide as the pilot rows lost 0.06 to 20 nats a sample.
_ABOVE_NOISE = 9.0
_ROUNDING = 2.0 / 12.0 / 127.0**2  # mean square of the rounding of the pilot's values


@dataclass(frozen=True)
class Difference:
    """Difference of the data from the pilot rows, in characteristic functions.

    Attributes
    ----------
    values
        Characteristic function of the data, less that of the pilot rows, shape (n_frequencies,).
    fraction
        Smallest fraction of the rows of the data that must be unlike the pilot rows.
    """

    values: Complex
    fraction: float


def difference_from_pilot(sketch: Sketch) -> Difference | None:
    """Difference of the data of a sketch from the pilot rows, if chance does not explain it.

    If a part ``e`` of the data is of another distribution, characteristic functions differ by ``e``
    times the difference of two of them, at most ``e (1 + |p|)`` where the pilot rows have ``p``.
    The root mean square over the frequencies, less chance, so gives the least ``e``.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.

    Returns
    -------
    difference
        None without a record of the pilot rows, for private sketches and with missing values.
    """
    pilot = sketch.feature_map.pilot
    known = None if pilot is None else pilot.characteristic
    if known is None or sketch.privacy is not None or sketch.missing is not None:
        return None
    assert pilot is not None
    phase = sketch.feature_map.center @ sketch.feature_map.frequencies
    values = sketch.characteristic - np.exp(-1j * phase) * known
    moduli = np.abs(known)
    by_chance = float(np.mean(np.maximum(1.0 - moduli**2, 0.0)))
    by_chance *= 1.0 / pilot.n_rows + 1.0 / sketch.effective_count
    by_chance += _ROUNDING + 2.0 * sketch.added_variance
    squared = float(np.mean(np.abs(values) ** 2))
    if squared <= max(_CHANCES, _largest_chance(sketch)) * by_chance:
        return None
    fraction = np.sqrt((squared - by_chance) / np.mean((1.0 + moduli) ** 2))
    return Difference(values, min(float(fraction), 1.0))


def pilot_is_such_a_mixture(sketch: Sketch) -> bool:
    """Whether chance explains how the pilot rows differ from the mixture that was fitted to them.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    """
    pilot, feature_map = sketch.feature_map.pilot, sketch.feature_map
    if pilot is None or pilot.mixture is None or pilot.characteristic is None:
        return False
    values = pilot_residual(pilot, feature_map)
    moduli = np.abs(pilot.characteristic)
    by_chance = float(np.mean(np.maximum(1.0 - moduli**2, 0.0))) / pilot.n_rows + _ROUNDING
    return float(np.mean(np.abs(values) ** 2)) <= _LARGEST_MISFIT * by_chance


def _largest_chance(sketch: Sketch) -> float:
    """Quantile of the squared distance of two samples of one distribution, in its mean.

    It is nearly a sum of squared normal variables, to which a chi-squared variable of the same
    mean and variance is fitted.
    """
    pilot, feature_map = sketch.feature_map.pilot, sketch.feature_map
    if pilot is None or pilot.mixture is None:
        return _CHANCES
    known, m = pilot.mixture, feature_map.n_frequencies
    model = GaussianMixture(known.weights, known.means - feature_map.center, known.variances)
    chosen = np.unique(np.linspace(0, m - 1, min(m, _CHOSEN)).astype(int))
    omega = feature_map.frequencies[:, chosen]
    pairs = omega[:, :, None], omega[:, None, :]
    values = model.characteristic(omega)
    squares = 0.0  # squared covariances, with the values and with their conjugates
    for second, factors in ((pairs[0] - pairs[1], values.conj()), (pairs[0] + pairs[1], values)):
        moments = model.characteristic(second.reshape(len(omega), -1))
        covariances = moments.reshape(len(chosen), -1) - np.outer(values, factors)
        squared = np.abs(covariances) ** 2
        diagonal = float(np.trace(squared)) / len(chosen)
        between = (squared.sum() - np.trace(squared)) / max(len(chosen) * (len(chosen) - 1), 1)
        squares += m * diagonal + m * (m - 1) * float(between)
    total = m * float(np.mean(1.0 - np.abs(values) ** 2))
    freedom = max(2.0 * total**2 / squares, 1.0)
    return float(stats.chi2.ppf(_QUANTILE, freedom) / freedom)


def warn_of_unlike_rows(sketch: Sketch, mixture: tuple[Array, Array, Array] | None) -> None:
    """Warn if a model that begins with the pilot rows does not describe what they lack.

    Parameters
    ----------
    sketch
        Sketch without rows that was decoded.
    mixture
        Weights (K,), means (K, n_features) and variances (K, n_features) or covariance matrices
        (K, n_features, n_features); None for the centroids of the pilot rows.
    """
    difference, pilot = difference_from_pilot(sketch), sketch.feature_map.pilot
    if difference is None or pilot is None:
        return
    fraction = difference.fraction
    remedy = (
        "Design a feature map for this data, or sketch with sample=True where rows may be kept."
    )
    if mixture is not None and pilot.mixture is not None:
        known = pilot.mixture
        modelled, start = (
            GaussianMixture(*parts).characteristic(sketch.feature_map.frequencies)
            for parts in (mixture, (known.weights, known.means, known.variances))
        )
        fraction = fraction_left_out(difference, modelled, start)
    if fraction > _WARNED_FRACTION:
        result = "centroids do" if mixture is None else "mixture does"
        warn_user(
            f"at least {fraction:.1%} of the rows are unlike the {pilot.n_rows:,} pilot rows of "
            f"the feature map, and the {result} not describe them. {remedy}"
        )
    elif mixture is not None and difference.fraction > _WARNED_FRACTION and mixture[2].ndim == 2:
        bound = _RESOLVED * np.minimum(sketch.feature_map.mean_variances, sketch.variance)
        narrow = (mixture[2] < bound).any(axis=1)
        part = float(mixture[0] @ narrow)
        if part > _WARNED_FRACTION:
            warn_user(
                f"{part:.0%} of the weight is in components narrower than the frequencies resolve, "
                "and the data is unlike the pilot rows of the feature map: EM on rows may be far "
                f"likelier. {remedy}"
            )


def warn_of_unresolved_components(sketch: Sketch, n_parameters: int) -> bool:
    """Warn if most frequencies are too high for the data, so that few features determine a fit.

    Components that are far wider than the feature map expects have no features but noise, and any
    wide mixture agrees with them.

    Parameters
    ----------
    sketch
        Sketch without rows that was decoded.
    n_parameters
        Number of parameters of the mixture.

    Returns
    -------
    warned
        Whether there are fewer features above noise than parameters.
    """
    squares = np.abs(sketch.characteristic) ** 2
    noise = np.maximum(1.0 - squares, 0.0) / sketch.effective_count + 2.0 * sketch.added_variance
    n_above = int(np.sum(squares > _ABOVE_NOISE * noise))
    few = n_above < min(n_parameters, sketch.feature_map.n_frequencies // 2)
    if few:
        warn_user(
            f"{n_above:,} of {sketch.feature_map.n_frequencies:,} features are above their noise, "
            f"and the mixture has {n_parameters:,} parameters: the data is wider than the feature "
            "map expects, or has too few rows, so that EM on rows may be far likelier. Design a "
            "feature map for this data, or sketch with sample=True where rows may be kept."
        )
    return few


def fraction_left_out(difference: Difference, modelled: Complex, pilot: Complex) -> float:
    """Least part of the rows that are unlike the pilot rows and that a model does not describe.

    A model that describes them differs from the mixture of the pilot rows as the data differs from
    these rows.

    Parameters
    ----------
    difference
        Difference of the data from the pilot rows.
    modelled, pilot
        Characteristic functions of the model and of the mixture of the pilot rows, shape
        (n_frequencies,).
    """
    energy = float(np.vdot(difference.values, difference.values).real)
    followed = float(np.vdot(difference.values, modelled - pilot).real) / energy
    return difference.fraction * min(max(1.0 - followed, 0.0), 1.0)
