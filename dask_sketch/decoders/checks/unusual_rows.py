"""Warn of rows and features that a mixture or centroids describe badly, whatever the decoder.

Outliers, rows of few distinct values, and features that depend on each other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.starts import pilot_mixture
from dask_sketch.models.density import RowDensity, uncovered_features
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.smallest_variance import (
    AT_FLOOR,
    MIN_VARIANCE,
    losses_by_floor,
    smallest_variances,
)
from dask_sketch.models.weighted_em import rounding_step
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.tables import feature_title
from dask_sketch.validation.warn import warn_user

_OUTLYING = 10.0  # standard deviations of the pilot beyond which rows are outliers
# excess of a variance beside chance, and part of the squared error, that are warned of
_EXCESS, _WARNED_OUTLIERS = 0.1, 0.2
_PER_COMPONENT = 20  # rows among which distinct ones are counted first
_WARNED_PART = 0.02  # part of the squared error by one row that is warned of
_CHANCE = 4.0  # standard errors of a mean over random rows, or of a variance of pilot rows
_MIN_ROWS_EACH = 2.0  # rows for each parameter of a component without a warning
_SINGLE_ROW = 1.5  # rows of a component that is an outlier
_MIN_HELD = 20  # rows of a component whose width is compared without its farthest row
_OUT_OF_RANGE = 10.0  # standard deviations of a component beyond which it has no rows
_TINY = np.finfo(float).tiny
# Features narrower than this fraction of the variance depend on no others, they have no width; a
# direction shows dependence up to a multiple of the smallest variance that is allowed, and the
# features with large entries take part in it
_NARROW, _NEAR_FLOOR, _TAKES_PART = 1e-3, 20.0, 0.1
# Weight of components of the smallest variance, and of the others, from which a feature has both
_SHARED = 0.05
# gain in log-density of a component whose variance in one feature falls to a tenth
_DECADE = 0.5 * np.log(10.0)
_ALIKE = 0.5  # ratio of effective and actual numbers of rows whose weights are about alike
_LISTED = 4  # features that a message names at most
_FEW_VALUES = 12  # distinct values of a feature that may be a category


def warn_of_outliers(sketch: Sketch, centers: Array) -> bool:
    """Warn of rows far from all centroids, by the variance that the pilot rows do not have.

    So few rows hardly change the random features, but they may rule the squared error. The mean
    and the variance that a sketch carries hold them.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    centers
        Centroids, shape (n_components, n_features).

    Returns
    -------
    warned
        Whether there are such rows.
    """
    pilot = sketch.feature_map.pilot
    if pilot is None:
        return False
    varies = pilot.variance > 0
    below, above = centers.min(axis=0) - sketch.minimum, sketch.maximum - centers.max(axis=0)
    reach = np.maximum(below, above) / np.sqrt(np.where(varies, pilot.variance, 1.0))
    shift = sketch.mean - sketch.feature_map.center
    excess = sketch.variance + shift**2 - pilot.variance
    chance = _EXCESS + _CHANCE * np.sqrt(2.0 / pilot.n_rows)
    far = varies & (reach > _OUTLYING) & (excess > chance * pilot.variance)
    error = float(pilot.variance.sum()) if pilot.clusters is None else pilot.clusters.inertia
    part = float(excess[far].sum())
    warned = part > _WARNED_OUTLIERS * error
    if warned:
        feature = int(np.where(far, reach, 0.0).argmax())
        value = (sketch.minimum if below[feature] > above[feature] else sketch.maximum)[feature]
        fraction = f"{part / error:.0%} to" if error > 0.0 else "all of"
        warn_user(
            f"{feature_title(feature, sketch.feature_map.feature_names)} has values up to "
            f"{value:.4g}, {reach[feature]:.3g} standard deviations of the pilot rows from every "
            f"centroid: so few rows hardly change the sketch, but they add about {fraction} the "
            "mean squared error of the centroids, which do not know them. Sketch with sample=True "
            "where rows may be kept; otherwise clip the values, or design with a larger n_pilot."
        )
    return warned


def warn_of_range(
    sketch: Sketch, weights: Array, means: Array, variances: Array, n_deviations: float, remedy: str
) -> bool:
    """Warn of values far from all components, which are too few to matter in the cost.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    weights, means, variances
        Components: weights (K,), means and variances (K, n_features).
    n_deviations
        Standard deviations of every component beyond which values are far.
    remedy
        Last sentence of the warning.

    Returns
    -------
    warned
        Whether a value is far.
    """
    reach = n_deviations * np.sqrt(variances[weights > 0])
    low, high = means[weights > 0] - reach, means[weights > 0] + reach
    missed = (sketch.minimum < low.min(axis=0)) | (sketch.maximum > high.max(axis=0))
    if missed.any():
        feature = int(np.argmax(missed))
        warn_user(
            f"{feature_title(feature, sketch.feature_map.feature_names)} has values from "
            f"{sketch.minimum[feature]:.4g} to "
            f"{sketch.maximum[feature]:.4g}, more than {n_deviations:g} standard deviations from "
            f"every component: far rows or rare clusters are missing. {remedy}"
        )
    return bool(missed.any())


def warn_of_missing_rows(sketch: Sketch, centers: Array, error: float) -> None:
    """Warn of a row far away that is not among the random rows, but rules the squared error.

    Parameters
    ----------
    sketch
        Sketch with random rows that was decoded.
    centers
        Centroids, shape (n_components, n_features).
    error
        Mean squared error of the centroids on the random rows.
    """
    if sketch.sample is None or not error > 0.0:
        return
    rows = sketch.sample.rows
    # distance of the centroids from extremes that no random row has
    below = np.where(rows.min(axis=0) > sketch.minimum, centers.min(axis=0) - sketch.minimum, 0.0)
    above = np.where(rows.max(axis=0) < sketch.maximum, sketch.maximum - centers.max(axis=0), 0.0)
    away = np.maximum(below, above)
    feature = int(away.argmax())
    is_low = below[feature] > above[feature]
    if sketch.sample.is_weighted:
        nearest = float((centers.min(axis=0) if is_low else centers.max(axis=0))[feature])
        part = _unseen_squares(sketch, feature, nearest) / error
    else:
        part = float(away[feature]) ** 2 / (sketch.effective_count * error)
    if part > _WARNED_PART:
        value = (sketch.minimum if is_low else sketch.maximum)[feature]
        rows_that_add = "such rows add" if sketch.sample.is_weighted else "one row adds"
        warn_user(
            f"{feature_title(feature, sketch.feature_map.feature_names)} has the value "
            f"{value:.4g}, which none of the {len(rows):,} random rows has: {rows_that_add} about "
            f"{part:.1%} to the mean squared error of the centroids, which do not know it. Clip "
            f"such values, or keep more rows, such as sample={2 * len(rows)} in sketch()."
        )


def counted_rows(sketch: Sketch) -> str:
    """Number of rows for a message, and what they count as, if their weights differ much.

    Parameters
    ----------
    sketch
        Sketch of the rows.
    """
    count, effective = f"{sketch.count:,} rows", f"{sketch.effective_count:,.0f}"
    if sketch.effective_count > _ALIKE * sketch.count:
        return count
    return f"{count}, whose unequal weights leave an effective number of {effective},"


def more_rows(sketch: Sketch, n_pilot: int) -> str:
    """Remedy for too few rows of the pilot: there may be no more.

    Parameters
    ----------
    sketch
        Sketch of the rows.
    n_pilot
        Number of the pilot rows.
    """
    if sketch.holds_all_rows:
        return "Sketch more rows, or decode fewer components."
    more = f"design the feature map with n_pilot={min(4 * n_pilot, sketch.count)}."
    if n_pilot >= sketch.count:
        more = "sketch more rows."
    if sketch.missing is not None:  # its random rows, the complete ones, are too few
        return more[0].upper() + more[1:]
    if sketch.sample is not None:
        return f"Sketch with a larger sample, or {more}"
    return f"Sketch with sample=True where rows may be kept; otherwise {more}"


def rows_remedy(sketch: Sketch) -> str:
    """Advice by which random rows take part in a fit, as a clause.

    Random rows of data with missing values are the complete ones, which are kept by default, and
    take no part where they are few.

    Parameters
    ----------
    sketch
        Sketch whose fit has no random rows.
    """
    if sketch.missing is not None:
        return "leave out features of few values, so that more rows are complete"
    rows, pilot = "sketch with sample=True where rows may be kept", sketch.feature_map.pilot
    has_pilot = pilot is not None and pilot.mixture is not None and sketch.sample is None
    if has_pilot and pilot_mixture(sketch) is None:
        return f"design a feature map for this data, which is unlike the pilot rows, or {rows}"
    return rows


def _unseen_squares(sketch: Sketch, feature: int, center: float) -> float:
    """Mean square about a point that the random rows lack, above chance: of rows of any weight."""
    sample = sketch.sample
    assert sample is not None
    squares = (sample.rows[:, feature].astype(np.float64) - center) ** 2
    sampled = float(sample.weights @ squares)
    noise = float(np.sqrt(sample.weights**2 @ (squares - sampled) ** 2))
    total = float(sketch.variance[feature] + (sketch.mean[feature] - center) ** 2)
    return max(total - sampled - _CHANCE * noise, 0.0)


def warn_of_few_samples(sketch: Sketch, n_components: int, n_each: int) -> None:
    """Warn of fewer samples than parameters, for fits that no rows are left out to test.

    Parameters
    ----------
    sketch
        Sketch that is decoded.
    n_components, n_each
        Number of components, and of the parameters of each.
    """
    rows, n_variances = sketch.effective_count, 2 * sketch.feature_map.n_features + 1
    simpler = " or covariance_type='diag'" if n_each > n_variances else ""
    if n_components > 1 and rows < n_components * n_each:
        warn_user(
            f"{counted_rows(sketch)} are few for n_components={n_components} with "
            f"{n_components * n_each} parameters: components may lie where there are no samples, "
            "and EM on the rows may be many nats likelier. Sketch more rows, decode fewer "
            f"components{simpler}, or merge groups with merge_by()."
        )


def warn_of_small_components(sketch: Sketch, weights: Array, n_each: int) -> None:
    """Warn of components with so few rows that a sketch alone hardly determines them.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    weights
        Weights of the components, shape (n_components,).
    n_each
        Number of parameters of each component.
    """
    rows = weights * sketch.effective_count
    small = rows < _MIN_ROWS_EACH * n_each
    if small.any():
        warn_user(
            f"{int(small.sum())} of {len(weights)} components have about {rows.min():,.0f} rows, "
            f"which are few for {n_each} parameters each: a sketch alone determines them badly, "
            "for losses of 0.01 to 0.3 nats a sample. Decode fewer components, or sketch with "
            "sample=True where rows may be kept."
        )


def warn_of_few_values(sketch: Sketch, n_components: int) -> None:
    """Warn of fewer distinct rows than components, which are then not determined.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    n_components
        Number of components.
    """
    if sketch.sample is None:
        return
    rows = sketch.sample.rows
    first = np.unique(rows[: _PER_COMPONENT * n_components], axis=0)
    if len(first) < n_components:  # nearly always enough, so that the others are not looked at
        distinct = len(np.unique(rows, axis=0))
        if distinct < n_components:
            warn_user(
                f"n_components={n_components} exceeds the number of distinct rows, {distinct:,} "
                f"among {len(rows):,} at random: the other components mean nothing. Give at most "
                f"n_components={distinct}."
            )


def warn_of_combinations(sketch: Sketch, means: Array, variances: Array) -> None:
    """Warn of combinations of few values without density, which other rows may have.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    means, variances
        Means and variances of the components, shape (n_components, n_features).
    """
    if sketch.sample is None or not len(sketch.sample) or variances.ndim == 3:
        return
    features = uncovered_features(sketch.sample.rows.astype(np.float64), means, variances)
    if len(features):
        names = [feature_title(k, sketch.feature_map.feature_names) for k in features[:3]]
        warn_user(
            f"components have no width in {len(features)} features of few values, such as "
            f"{', '.join(names)}: one row in {len(sketch.sample):,} with another combination of "
            "these values would lower the mean log-likelihood by many nats. Leave such features "
            "out, state them as categories in design(), or decode fewer components."
        )


def warn_of_shared_values(sketch: Sketch, weights: Array, variances: Array) -> None:
    """Warn of pilot components of the smallest variance where no rows are kept.

    They are values that many rows share, such as zeros, or narrow clusters. Which of them have a
    component, and how narrow it is, decides over many nats; a few pilot rows hardly show it.

    Parameters
    ----------
    sketch
        Sketch without rows that was decoded.
    weights, variances
        Mixture of the pilot rows: weights (K,), and variances (K, n_features).
    """
    pilot = sketch.feature_map.pilot
    if pilot is None:
        return
    weight = weights @ (variances < AT_FLOOR * pilot.floor)
    mixed = np.flatnonzero((weight > _SHARED) & (weight < 1.0 - _SHARED))
    if len(mixed):
        first = int(mixed[np.argmax(weight[mixed])])
        others = f" and {len(mixed) - 1} more" if len(mixed) > 1 else ""
        warn_user(
            f"about {weight[first]:.0%} of the rows are in components of the smallest variance, "
            f"{MIN_VARIANCE:g} of the variance of the data, in "
            f"{feature_title(first, sketch.feature_map.feature_names)}{others}: they share a "
            "value, or are a narrow cluster. Which of them have a component, and how narrow it is, "
            "may decide over several nats a sample, and few pilot rows hardly show it. Sketch with "
            "sample=True where rows may be kept."
        )


def warn_of_floored_pilot(sketch: Sketch, weights: Array, variances: Array, enough: float) -> None:
    """Warn of clusters of the pilot rows that are narrower than the smallest variance.

    Parameters
    ----------
    sketch
        Sketch without rows that was decoded.
    weights, variances
        Weights (n_components,) and variances (n_components, n_features) of its mixture.
    enough
        Loss of log-likelihood of which users are warned, in nats a sample.
    """
    pilot = sketch.feature_map.pilot
    if pilot is None or pilot.floor_loss <= enough:
        return
    weight = weights @ (variances < AT_FLOOR * pilot.floor)
    if weight.max() > _SHARED:
        title = feature_title(int(weight.argmax()), sketch.feature_map.feature_names)
        _warn_of_floor(f"those of {title}", pilot.floor_loss)


def _warn_of_floor(cluster: str, loss: float) -> None:
    warn_user(
        f"clusters are narrower than the smallest variance, {MIN_VARIANCE:g} of the variance of "
        f"the data, such as {cluster}: this loses about {loss:.2g} nats a sample. If a far value "
        "is a code, such as 999999 for a missing value, make it NaN. Else make steps of EM with a "
        "smaller variance, as in polish(model, x, variance_floor=1e-12), or fit such clusters "
        "apart."
    )


def warn_of_narrow_components(
    sketch: Sketch, weights: Array, means: Array, variances: Array, enough: float
) -> None:
    """Warn of components of the smallest variance: values that many rows share, or clusters.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    weights
        Weights of the components, shape (n_components,).
    means, variances
        Means and variances of the components, shape (n_components, n_features); covariance matrices
        are narrow if a variance is.
    enough
        Loss of log-likelihood by clusters of which users are warned, in nats a sample.
    """
    if sketch.sample is None or not len(sketch.sample):
        return
    floor = MIN_VARIANCE * sketch.variance
    matrices = variances.ndim == 3
    mixture = weights, means, variances
    if matrices:
        variances = np.diagonal(variances, axis1=1, axis2=2)
    if not (variances < AT_FLOOR * floor).any():
        return
    rows = sketch.sample.rows.astype(np.float64)
    floor = smallest_variances(rows, sketch.variance)[0]
    kind = "full" if matrices else "diag"
    nearest = GaussianMixture(*mixture, covariance_type=kind).predict(rows)
    losses, fractions, values = losses_by_floor(rows, nearest, weights, variances, floor)
    if losses.sum() > enough:
        k, j = np.unravel_index(int(losses.argmax()), losses.shape)
        title = feature_title(int(j), sketch.feature_map.feature_names)
        _warn_of_floor(f"component {k} in {title}", float(losses.sum()))
    # a feature of nothing but shared values is one of categories, of which users are warned
    total = fractions.sum(axis=0)
    mixed = np.flatnonzero((total > 0.2 * _SHARED) & (total < 1.0 - _SHARED))
    if total[mixed].sum() > _SHARED:
        _warn_of_values(sketch, values[:, mixed], fractions[:, mixed], mixed)


def _warn_of_values(
    sketch: Sketch, values: Array, fractions: Array, features: npt.NDArray[np.intp]
) -> None:
    """Warn of components that are values (K, n) of these features, with shares of the rows."""
    assert sketch.sample is not None  # the caller looked at the rows of the sample
    k, worst = np.unravel_index(int(fractions.argmax()), fractions.shape)
    j = int(features[worst])
    column = sketch.sample.rows[:, j].astype(np.float64)
    step, n_values = rounding_step(column), len(np.unique(column))
    remedy = "Fit the rows of such values apart, or leave such features out"
    if step is not None:
        remedy = (
            f"The values are rounded to {step:.3g}: for clusters, add uniform noise from "
            f"{-0.5 * step:.3g} to {0.5 * step:.3g} to them"
        )
    if n_values <= _FEW_VALUES:
        remedy += f"; or state the {n_values} values as levels, by design(x, categories=...)"
    warn_user(
        f"about {fractions[:, worst].sum():.0%} of the rows are in components of one value that "
        f"many rows share, such as {values[k, worst]:.4g} in "
        f"{feature_title(j, sketch.feature_map.feature_names)}. They have no density: if the "
        f"smallest variance, {MIN_VARIANCE:g} of the variance of the data, were ten times smaller, "
        f"the log-likelihood would be {_DECADE * fractions.sum():.2g} nats a sample greater. "
        f"{remedy}."
    )


def warn_of_single_rows(sketch: Sketch, weights: Array, means: Array, variances: Array) -> None:
    """Warn of a row that is a component of its own, or decides how wide one is.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    weights, means, variances
        Components; covariance matrices (K, n_features, n_features) may take the place of
        variances.
    """
    names = sketch.feature_map.feature_names
    sizes = weights * sketch.effective_count
    away = np.abs(means - sketch.mean) / np.sqrt(
        np.where(sketch.variance > 0.0, sketch.variance, np.inf)
    )
    alone = (sizes > 0.0) & (sizes < _SINGLE_ROW) & (away.max(axis=1) > _OUT_OF_RANGE)
    # there is no row beyond the values: such a component is noise
    alone &= ((means >= sketch.minimum) & (means <= sketch.maximum)).all(axis=1)
    if alone.any():
        k = int(np.argmax(alone))
        far = int(np.argmax(away[k]))
        warn_user(
            f"component {k} has the weight of {sizes[k]:.2g} of {sketch.count:,} rows, and the "
            f"mean {means[k, far]:.4g} in {feature_title(far, names)}, where the data has "
            f"{sketch.mean[far]:.4g} ± {np.sqrt(sketch.variance[far]):.3g}: it is an outlier "
            "rather than a cluster. Remove or clip such rows, or decode fewer components."
        )
        return
    if sketch.sample is None or not len(sketch.sample):
        return
    rows, masses = sketch.sample.rows.astype(np.float64), sketch.sample.weights
    joint = RowDensity(weights, means, variances).log_joint(rows)
    for k in range(len(weights)):
        with np.errstate(under="ignore"):
            responsibilities = masses * np.exp(joint[:, k] - np.logaddexp.reduce(joint, axis=1))
        total = responsibilities.sum()
        if not total > 0.0 or total**2 < _MIN_HELD * (responsibilities @ responsibilities):
            continue
        parts = responsibilities[:, None] * (rows - responsibilities @ rows / total) ** 2
        largest = parts.max(axis=0)
        feature = int(np.argmax(largest / (parts.sum(axis=0) + _TINY)))
        i = int(np.argmax(parts[:, feature]))
        others, rest = responsibilities.copy(), masses.copy()
        others[i] = rest[i] = 0.0
        mean, deviation = _moments(rows[:, feature], others)
        _, spread = _moments(rows[:, feature], rest)
        distance = abs(rows[i, feature] - mean)
        ruled = 2.0 * largest[feature] > parts[:, feature].sum()
        if ruled and distance > _OUT_OF_RANGE * max(deviation, spread):
            warn_user(
                f"one row, with {rows[i, feature]:.4g} in {feature_title(feature, names)}, decides "
                f"how wide component {k} is: the other rows of the component have {mean:.4g} ± "
                f"{deviation:.3g} there. Remove or clip such rows."
            )
            return


def _moments(values: Array, masses: Array) -> tuple[float, float]:
    """Weighted mean and standard deviation."""
    fractions = masses / masses.sum()
    mean = float(fractions @ values)
    return mean, float(np.sqrt(fractions @ (values - mean) ** 2))


def warn_of_dependence(sketch: Sketch, weights: Array, matrices: Array) -> None:
    """Warn of features that depend on each other, so that matrices are at the smallest variance.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    weights
        Weights of the components, shape (n_components,).
    matrices
        Covariance matrices, shape (n_components, n_features, n_features); nothing is said of
        variances.
    """
    if matrices.ndim != 3:
        return
    within = np.einsum("k,kij->ij", weights, matrices) / weights.sum()
    wide = np.flatnonzero(np.diagonal(within) > _NARROW * sketch.variance)
    if len(wide) < 2:
        return
    scale = np.sqrt(np.diagonal(within)[wide])
    values, vectors = np.linalg.eigh(within[np.ix_(wide, wide)] / np.outer(scale, scale))
    n_directions = int((values < _NEAR_FLOOR * MIN_VARIANCE).sum())
    if n_directions == 0:
        return
    taking = wide[(np.abs(vectors[:, :n_directions]) > _TAKES_PART).any(axis=1)]
    names = [feature_title(int(k), sketch.feature_map.feature_names) for k in taking]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    if len(names) > _LISTED:
        listed = f"{len(names)} features, such as {', '.join(names[:_LISTED])},"
    warn_user(
        f"{listed} are linearly dependent: the likelihood grows without bound as covariance "
        f"matrices narrow there, and depends on the smallest variance, {MIN_VARIANCE:g} of the "
        f"variance of the data. Leave out {n_directions} of them, or decode with "
        "covariance_type='diag'."
    )
