"""Test whether values are missing completely at random, by the moments of complete rows.

If they are, the observed values of a feature have the same distribution in complete rows and in
incomplete rows. Means and variances are compared, feature by feature. The test finds values that
are missing because of other values (as if a question had only been asked in one group), but not
values that are missing because of themselves, independently of all other values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.feature_map import moment_units
from dask_sketch.features.kernels.fixed_point import FEATURE_FRACTION
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.validation.tables import feature_title

if TYPE_CHECKING:
    from dask_sketch.sketching.sketch import Sketch

Array = NDArray[np.float64]
_MIN_ROWS = 30.0  # effective numbers of both kinds of rows from which moments are nearly normal
_NEGLIGIBLE = 0.01  # shift in standard deviations, or logarithm of a ratio, that does not matter
_GAUSSIAN = 3.0  # kurtosis


@dataclass(frozen=True)
class Missingness:
    """Differences between the observed values of complete rows and of incomplete rows.

    Attributes
    ----------
    complete
        Fraction of the rows without missing values, by weight.
    shifts
        Mean of each feature in complete rows minus its mean in incomplete rows, in standard
        deviations of the data, shape (n_features,); zero for too few rows.
    ratios
        Ratio of the standard deviations in complete and in incomplete rows, shape (n_features,);
        one for too few rows.
    shift_scores, ratio_scores
        Both differences in standard errors, shape (n_features,); zero also for a difference that is
        too small to matter.
    feature
        Name of the feature with the largest score, for messages.
    """

    complete: float
    shifts: Array
    ratios: Array
    shift_scores: Array
    ratio_scores: Array
    feature: str

    @property
    def excess(self) -> float:
        """Largest score."""
        return float(max(self.shift_scores.max(), self.ratio_scores.max()))

    @property
    def sentence(self) -> str:
        """Description of the largest difference, with a remedy."""
        scores = np.maximum(self.shift_scores, self.ratio_scores)
        worst = int(np.argmax(scores))
        return (
            f"Values are not missing completely at random: {self.feature} differs between the "
            f"{self.complete:.0%} of the rows that are complete and the other rows by a shift of "
            f"{self.shifts[worst]:.2g} standard deviations and a factor of "
            f"{self.ratios[worst]:.3g} in its standard deviation, {scores[worst]:.3g} standard "
            "errors. The sketch and the model are biased. Sketch groups of samples with different "
            "missing values separately; or pass nan_policy='omit' and weight complete rows by the "
            "inverse of their probability to be complete."
        )


def compare_incomplete(model: GaussianMixture | Centroids, sketch: Sketch) -> Missingness | None:
    """Compare complete rows with rows that lack some values.

    Parameters
    ----------
    model
        Model of the data, for the kurtosis of the features.
    sketch
        Sketch of the data.

    Returns
    -------
    missingness
        Differences; None without missing values, or without moments.
    """
    counters = sketch.missing
    if counters is None or sketch.privacy is not None:
        return None
    observed, unit = sketch.observed, moment_units(sketch.feature_map)
    first = counters.first.to_float(FEATURE_FRACTION) * unit
    second = counters.second.to_float(FEATURE_FRACTION) * unit**2
    sides = []
    for mass, first_sums, second_sums in (
        (np.full(len(unit), observed.complete), sketch.first_moment - first,
         sketch.second_moment - second),
        (observed.features - observed.complete, first, second),
    ):  # fmt: skip
        divisor = np.where(mass > 0.0, mass, 1.0)
        means = first_sums / divisor
        sides.append((mass, means, np.maximum(second_sums / divisor - means**2, 0.0)))
    (mass, mean, variance), (other_mass, other_mean, other_variance) = sides
    rows = sketch.effective_count / sketch.total_weight
    n, others = rows * mass, rows * other_mass
    known = (np.minimum(n, others) >= _MIN_ROWS) & (np.minimum(variance, other_variance) > 0.0)
    error = np.sqrt(np.where(known, 1.0 / np.maximum(n, 1.0) + 1.0 / np.maximum(others, 1.0), 1.0))
    deviation = np.sqrt(np.where(known, sketch.variance, 1.0))
    shifts = np.where(known, (mean - other_mean) / deviation, 0.0)
    ratios = np.sqrt(np.where(known, variance, 1.0) / np.where(known, other_variance, 1.0))
    changes = np.log(ratios)
    shift_scores = np.where(np.abs(shifts) > _NEGLIGIBLE, np.abs(shifts) / error, 0.0)
    # the logarithm of a standard deviation has the variance (kurtosis - 1) / 4 n
    spread = 0.5 * error * np.sqrt(_kurtosis(model) - 1.0)
    ratio_scores = np.where(np.abs(changes) > _NEGLIGIBLE, np.abs(changes) / spread, 0.0)
    worst = int(np.argmax(np.maximum(shift_scores, ratio_scores)))
    return Missingness(
        complete=observed.complete / sketch.total_weight,
        shifts=shifts,
        ratios=ratios,
        shift_scores=shift_scores,
        ratio_scores=ratio_scores,
        feature=feature_title(worst, sketch.feature_map.feature_names),
    )


def _kurtosis(model: GaussianMixture | Centroids) -> Array:
    """Kurtosis of each feature, shape (n_features,); for centroids, of a Gaussian."""
    if isinstance(model, Centroids):
        return np.full(model.n_features, _GAUSSIAN)
    away = (model.means - model.mean) ** 2
    fourth = model.weights @ (3.0 * model.variances**2 + 6.0 * model.variances * away + away**2)
    return np.maximum(fourth / np.maximum(model.variance, 1e-300) ** 2, 1.5)
