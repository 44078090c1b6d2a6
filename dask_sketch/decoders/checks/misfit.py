"""Compare a decoded mixture with a simple rival, and warn of a mixture that the rival beats."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from dask_sketch.decoders.checks.expected_loss import expected_loss
from dask_sketch.decoders.checks.few_pilot_rows import warn_of_few_pilot_rows
from dask_sketch.decoders.checks.unlike_pilot import (
    pilot_is_such_a_mixture,
    warn_of_unlike_rows,
    warn_of_unresolved_components,
)
from dask_sketch.decoders.checks.unusual_rows import (
    counted_rows,
    more_rows,
    rows_remedy,
    warn_of_combinations,
    warn_of_dependence,
    warn_of_few_values,
    warn_of_floored_pilot,
    warn_of_narrow_components,
    warn_of_range,
    warn_of_shared_values,
    warn_of_single_rows,
)
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.starts import (
    complete_pilot_rows,
    nearby_mixture,
    pilot_mixture,
    squared_distance,
)
from dask_sketch.features.pilot import PilotMixture
from dask_sketch.models.covariances import floored
from dask_sketch.models.density import RowDensity
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.smallest_variance import smallest_variances
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.tables import feature_title
from dask_sketch.validation.warn import warn_user

WARNED_NATS = 0.1  # loss of log-likelihood that is warned of, in nats a sample
_EXPLAINED = 3.0  # noise levels up to which the cost may show that the model is true
# A mixture may be less likely than the pilot's by _LIKELY times what the numbers of rows explain,
# by _LOSSES times, if its cost is _SMALLER times smaller than the pilot's; beyond that,
# _MUCH_SMALLER times. Mixtures of ten to 64 Gaussians had at most 3.8 times the loss, mostly under
# 1.5 times, and costs at least 18 times smaller; real data had at least 12 times the loss, but
# speech with 64 components about 4 times, and costs at most 12 times smaller.
_LIKELY, _LOSSES, _SMALLER, _MUCH_SMALLER = 2.0, 6.0, 15.0, 50.0
# Such a cost says nothing of components that the sketch does not resolve: with a variance below
# this fraction of the smallest one of the fit, and this weight in all.
_UNRESOLVED, _UNRESOLVED_WEIGHT = 0.1, 0.05
_SHARED = 1e-3  # variance of a component whose rows share a value, in that of the feature
# Cost that is too large without a comparison: in noise levels, and as a fraction of the energy.
_UNEXPLAINED = 30.0, 3e-4
# The same without a pilot, an overidentification statistic or arguments that restrict the fit.
# Fits of mixtures by their own family had 0.2 to 0.5 noise levels. A fit that missed 6 of 64
# clusters had 8 of them, and 1.1e-4 of the sketch, with a loss of 0.7 nats.
_UNEXPLAINED_WITHOUT_PILOT = 3.0, 5e-5
_CONTRADICTED = 0.05  # part of a sketch by which it is of data unlike that of the pilot rows
# Standard deviations of the overidentification statistic that noise explains, and the smallest loss
# of which users are warned, in nats a sample.
SUSPECT, WARNED_LOSS = 4.0, 1e-3
_OUT_OF_RANGE = 10.0  # standard deviations of a component beyond which it has no rows
_FAR_OUT = 30.0  # the same for components of data that the pilot rows are from
# Distance of the mean of a mixture from that of the data in its standard deviations, and logarithm
# of the ratio of their variances, from which users are warned; and so many deviations by chance
_SHIFTED, _RESCALED, _CHANCES, _TINY = 0.05, 0.1, 1.5, 1e-300
_MIN_COMPARED = 300  # effective rows from which moments are compared
# Arguments that keep mixtures from having the moments of the data.
_CONSTRAINING = frozenset({"bounds", "covariance", "model", "start"})
_OF_OTHER_DATA = "Design a feature map for this data, which is unlike that of the pilot rows."
_WITHOUT_PILOT = (
    "A feature map of design() knows where clusters are; one that is made without data finds them "
    "with several scales: FeatureMap.from_scales(n_features, n_frequencies, smallest, largest)."
)
_POINTS = 10_000  # rows that a comparison uses at most
_WIDE = 1e13  # ratio of variances beyond which rounding may make a matrix singular


def mean_log_likelihood(rows: Array, weights: Array, mixture: tuple[Array, Array, Array]) -> float:
    """Weighted mean log-likelihood of rows under a mixture of Gaussians, in nats.

    Variances count as at least those that :func:`fit_mixture` allows, so that thinner point masses
    do not make a model better.

    Parameters
    ----------
    rows
        Rows, shape (n, n_features).
    weights
        Weights of the rows, shape (n,), summing to one.
    mixture
        Weights (K,), means (K, n_features) and variances (K, n_features), or covariance matrices
        (K, n_features, n_features).
    """
    floor = smallest_variances(rows, weights @ (rows - weights @ rows) ** 2)[0]
    fractions, means, covariances = mixture
    if covariances.ndim == 3:
        unit = np.sqrt(np.outer(floor, floor))
        unit = np.where(unit > 0.0, unit, 1.0)  # unit one for a feature that does not vary
        scaled = floored(covariances / unit, 1.0)
        # what rounding of a component that is far wider in one direction takes from the others
        largest = np.trace(scaled, axis1=1, axis2=2)
        lost = np.where(largest > _WIDE, largest / _WIDE, 0.0)
        scaled += lost[:, None, None] * np.eye(len(floor))
        density = RowDensity(fractions, means, unit * scaled)
    else:
        density = RowDensity(fractions, means, np.maximum(covariances, floor))
    return float(weights @ density.log_total(rows))


def is_explained(
    sketch: Sketch,
    mixture: tuple[Array, Array, Array],
    cost: float,
    noise_level: float,
    loss: float,
) -> bool:
    """Whether a fit to the sketch says more about the data than rows simulated from the pilot.

    A cost that noise explains does not prove this: with many components, or few samples, a mixture
    of much smaller likelihood has such a cost too. If the data is such a mixture, the fit differs
    from the mixture of the pilot by what the numbers of their rows explain, or the pilot has a much
    greater cost and no components that are too narrow for the sketch, such as values that many rows
    share.

    Parameters
    ----------
    sketch
        Sketch without rows, of data like the pilot's.
    mixture
        Weights, means and variances, or covariance matrices, of the fit to the sketch.
    cost, noise_level
        Cost of the fit, and noise level of the sketch.
    loss
        Log-likelihood of the simulated rows under the fit, below that under the mixture of the
        pilot, in nats a sample.
    """
    pilot, rival = sketch.feature_map.pilot, nearby_mixture(sketch)
    if cost > _EXPLAINED * noise_level or pilot is None or rival is None:
        return cost <= _EXPLAINED * noise_level
    half = 0.5 * sum(part.size for part in mixture)  # half of the number of parameters
    by_chance = max(pilot.sampling_loss, half / complete_pilot_rows(sketch))
    by_chance += half / sketch.effective_count
    if loss <= _LIKELY * by_chance:
        return True
    if rival is not pilot.mixture and not pilot_is_such_a_mixture(sketch):
        return False  # nor is the data, which is that of the pilot on another scale
    variances = _diagonals(mixture[2])
    narrow = (rival.variances < _UNRESOLVED * variances.min(axis=0)).any(axis=1)
    if rival.weights[narrow].sum() > _UNRESOLVED_WEIGHT:
        return False
    smaller = _SMALLER if loss <= _LOSSES * by_chance else _MUCH_SMALLER
    return smaller * cost < squared_distance(sketch, rival)


def warn_of_misfit(
    sketch: Sketch,
    weights: Array,
    means: Array,
    variances: Array,
    cost: float,
    noise_level: float,
    non_default_arguments: Collection[str] = (),
    *,
    compared: bool = False,
    tested: bool = False,
    regularized: bool = False,
    restricted: str | None = None,
    is_diagonal: bool = True,
) -> None:
    """Warn if a simpler mixture is better for the random rows, or for the pilot rows.

    Without a sample, rows are simulated from the mixture of the pilot, and no comparison is made
    where noise explains the cost, or the sketch is of other data than the pilot.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    weights, means, variances
        Components: weights (K,), means (K, n_features) and variances (K, n_features), or
        covariance matrices (K, n_features, n_features).
    cost, noise_level
        Cost of the mixture, and noise level of the sketch.
    non_default_arguments
        Names of the arguments of :func:`dask_sketch.decode` that keep it from a comparison with
        maximum likelihood; ``"n_components"`` where it was not given.
    compared
        Whether the decoder has compared the likelihood with a rival.
    tested
        Whether the overidentification statistic tells if noise explains the cost.
    regularized
        Whether few rows are fitted less closely than they are by the mixture of the pilot rows.
    restricted
        Covariance type of a mixture of greatest likelihood with fewer covariances than the mixture
        of the pilot rows, ``"tied"`` or ``"spherical"``; None for another one.
    is_diagonal
        Whether each component has a variance of its own in each feature.
    """
    if sketch.privacy is not None:
        return
    warn_of_few_values(sketch, len(weights))
    mixture, k = (weights, means, variances), len(weights)
    pilot = None if regularized else pilot_mixture(sketch)
    if sketch.sample is None and pilot is not None:
        _warn_of_rows_beside_pilot(sketch, mixture, pilot)
    warn_of_single_rows(sketch, *mixture)
    warn_of_combinations(sketch, means, variances)
    warn_of_narrow_components(sketch, *mixture, WARNED_NATS)
    warn_of_dependence(sketch, weights, variances)
    if pilot is not None or has_rows(sketch, k):
        remedy = remedy_of(
            sketch, k, non_default_arguments, has_pilot=pilot is not None, is_diagonal=is_diagonal
        )
        rival = _compared(mixture, pilot, *rows_to_compare(sketch, k, pilot))
        if rival is not None:
            _warn_of_mixture(sketch, mixture, rival, cost, noise_level, remedy, restricted)
    elif not regularized:
        remedy = remedy_of(sketch, k, non_default_arguments, is_diagonal=is_diagonal)
        is_bound = not _CONSTRAINING.isdisjoint(non_default_arguments)
        _warn_without_rival(sketch, mixture, cost, noise_level, remedy, compared, is_bound, tested)


def _warn_of_rows_beside_pilot(
    sketch: Sketch, mixture: tuple[Array, Array, Array], pilot: PilotMixture
) -> None:
    """Warn of rows of a sketch without a sample that neither its mixture nor the pilot has."""
    weights, means, variances = mixture
    rows = "rows" if sketch.missing is None else "many complete rows"
    remedy = f"Remove or clip such rows, or sketch with sample=True where {rows} may be kept."
    warn_of_range(sketch, weights, means, _diagonals(variances), _FAR_OUT, remedy)
    if variances.ndim == 2:
        if pilot.probabilities is None:
            warn_of_shared_values(sketch, pilot.weights, pilot.variances)
        warn_of_floored_pilot(sketch, weights, variances, WARNED_NATS)
    warn_of_unlike_rows(sketch, mixture)


def _warn_without_rival(
    sketch: Sketch,
    mixture: tuple[Array, Array, Array],
    cost: float,
    noise_level: float,
    remedy: str,
    compared: bool,
    is_bound: bool,
    tested: bool,
) -> None:
    """Warn of a poor mixture by its cost, range and moments, where there is no rival for it."""
    weights, means, variances = mixture
    alone, warned = sketch.sample is None, False
    energy = float(np.vdot(sketch.z, sketch.z).real)
    if not compared or (alone and cost > _CONTRADICTED * energy):
        warned = _warn_of_cost(sketch, cost, noise_level, remedy, tested or is_bound)
    elif cost > _EXPLAINED * noise_level:
        warn_of_few_pilot_rows(sketch)
    diagonal, of_map = (weights, means, _diagonals(variances)), _map_remedy(sketch)
    warned |= warn_of_range(sketch, *diagonal, _OUT_OF_RANGE, of_map)
    if not (warned or compared or is_bound):
        warned = _warn_of_moments(sketch, *diagonal, of_map)
    if alone and not warned:
        n_parameters = weights.size + means.size + variances.size
        warned = warn_of_unresolved_components(sketch, n_parameters)
    if alone and not warned:
        warn_of_unlike_rows(sketch, mixture)


def is_suspect(sketch: Sketch, test: tuple[float, float, float] | None) -> bool:
    """Whether neither noise nor a small loss of likelihood explains the statistic of a fit.

    Parameters
    ----------
    sketch
        Sketch of the data.
    test
        Statistic, its mean and its standard deviation, which hold for many rows; None without a
        test.
    """
    if test is None or sketch.effective_count < _MIN_COMPARED:
        return False
    excess = test[0] - test[1]
    loss = 0.5 * excess / sketch.effective_count
    return excess > SUSPECT * test[2] and loss > WARNED_LOSS


def warn_of_overidentification(
    sketch: Sketch, statistic: float, freedom: float, deviation: float, *, searched: bool = True
) -> None:
    """Warn if noise does not explain the residual of a fit that is weighted by its noise.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    statistic, freedom, deviation
        Overidentification statistic, its mean and its standard deviation for data of such a
        mixture. A larger statistic costs at least ``(statistic - freedom) / 2n`` nats a sample to
        first order.
    searched
        Whether the fit is of a search, so that replicates may find others. Those that start at the
        mixture of the pilot rows are all alike.
    """
    if is_suspect(sketch, (statistic, freedom, deviation)):
        loss = 0.5 * (statistic - freedom) / sketch.effective_count
        warn_user(
            f"the mixture leaves an overidentification statistic of {statistic:,.0f}, where one of "
            f"the data's distribution leaves {freedom:,.0f} ± {deviation:,.0f}: it is at least "
            f"about {loss:.2g} nats a sample from the distribution, because the search stopped at "
            "a poor minimum or the data is not such a mixture. Decode "
            f"{'with replicates=5 or ' if searched else ''}another number of components, or "
            f"{rows_remedy(sketch)}.",
        )


def warn_of_narrow_features(sketch: Sketch, weights: Array, means: Array, matrices: Array) -> bool:
    """Warn of covariance matrices that are too wide for values which many rows share.

    The frequencies do not show how narrow such components are, but the pilot does. Rows simulated
    from the pilot have no correlations, so that each feature is compared on its own: the loss in
    all features together is at least as large.

    Parameters
    ----------
    sketch
        Sketch without rows that was decoded.
    weights, means, matrices
        Components: weights (K,), means (K, n_features) and matrices (K, n_features, n_features).

    Returns
    -------
    warned
        Whether there was a warning.
    """
    pilot_fit = pilot_mixture(sketch)
    if pilot_fit is None or sketch.privacy is not None or len(pilot_fit.weights) > len(weights):
        return False
    rows, masses = rows_to_compare(sketch, len(weights), pilot_fit)
    variances = _diagonals(matrices)
    bound = np.minimum(_UNRESOLVED * variances.min(axis=0), _SHARED * rows.var(axis=0))
    narrow = pilot_fit.variances < bound
    shared = (pilot_fit.weights @ narrow > _UNRESOLVED_WEIGHT) & (np.ptp(rows, axis=0) > 0)
    losses = np.zeros(rows.shape[1])
    for feature in np.flatnonzero(shared):
        column = np.s_[:, feature : feature + 1]
        pilot = pilot_fit.weights, pilot_fit.means[column], pilot_fit.variances[column]
        fit = weights, means[column], variances[column]
        losses[feature] = mean_log_likelihood(rows[column], masses, pilot)
        losses[feature] -= mean_log_likelihood(rows[column], masses, fit)
    worst = int(losses.argmax())
    warned = bool(losses[worst] > WARNED_NATS)
    if warned:
        warn_user(
            f"the mixture is at least {losses[worst]:.2g} nats a sample below EM on the pilot "
            f"rows, by {feature_title(worst, sketch.feature_map.feature_names)} alone: components "
            "are narrow there, or many rows share values, and frequencies do not show how narrow. "
            "Decode covariance_type='diag', leave out such features or state them as categories, "
            f"or {rows_remedy(sketch)}."
        )
    return warned


def loss_to_rival(
    sketch: Sketch, weights: Array, means: Array, variances: Array
) -> tuple[float, str] | None:
    """Compare a mixture with simple rivals: one Gaussian, and the mixture of the pilot rows.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    weights, means, variances
        Components: weights (K,), means (K, n_features) and variances (K, n_features), or
        covariance matrices (K, n_features, n_features).

    Returns
    -------
    loss, rival
        Log-likelihood below that of the best rival in nats a sample, on the random rows of the
        sketch or on rows simulated from the pilot, and the name of the rival; ``None`` if there are
        neither, or the sketch is of other data than the pilot.
    """
    pilot = pilot_mixture(sketch)
    if variances.ndim == 3 and not has_rows(sketch, len(weights)):
        return None  # rows simulated from the pilot have no correlations
    if sketch.privacy is not None or (pilot is None and not has_rows(sketch, len(weights))):
        return None
    rows, masses = rows_to_compare(sketch, len(weights), pilot)
    return _compared((weights, means, variances), pilot, rows, masses)


def has_rows(sketch: Sketch, n_components: int) -> bool:
    """Whether rows are compared: enough of them, or all that there are."""
    sample = sketch.sample
    return sample is not None and (len(sample) >= 10 * n_components or sketch.holds_all_rows)


def rows_to_compare(
    sketch: Sketch, n_components: int, pilot: PilotMixture | None
) -> tuple[Array, Array]:
    """Rows by which models are compared: of the sample, or simulated from the pilot.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    n_components
        Number of components that the rows of a sample must suffice for.
    pilot
        Mixture of the pilot rows, which is needed if they do not suffice.

    Returns
    -------
    rows, masses
        Rows, shape (n, n_features), and their weights, shape (n,), which sum to one.
    """
    sample = sketch.sample
    if sample is not None and has_rows(sketch, n_components):
        rows, masses = sample.rows.astype(np.float64), sample.weights
        if len(rows) > _POINTS:  # rows are in the order of their keys, which are random
            rows, masses = rows[:_POINTS], masses[:_POINTS] / masses[:_POINTS].sum()
        return rows, masses
    assert pilot is not None
    rows = GaussianMixture(pilot.weights, pilot.means, pilot.variances).sample(_POINTS, seed=0)
    return rows, np.full(len(rows), 1.0 / len(rows))


def _compared(
    mixture: tuple[Array, Array, Array], pilot: PilotMixture | None, rows: Array, masses: Array
) -> tuple[float, str] | None:
    """Loss of a mixture to the likeliest rival, and the name of the rival."""
    varies = np.ptp(rows, axis=0) > 0  # a constant feature has a density without bound
    if not varies.any():
        return None
    rows = rows[:, varies]
    mean = masses @ rows
    variance = masses @ (rows - mean) ** 2

    def score(weights: Array, means: Array, variances: Array) -> float:
        varying = variances[:, varies]
        varying = varying[:, :, varies] if varying.ndim == 3 else varying
        mixture = weights, means[:, varies], varying
        return mean_log_likelihood(rows, masses, mixture)

    single = np.ones(1), mean[None], variance[None]
    rivals = {"one Gaussian": mean_log_likelihood(rows, masses, single)}
    if pilot is not None and len(pilot.weights) <= len(mixture[0]):
        rivals["EM on the pilot rows"] = score(pilot.weights, pilot.means, pilot.variances)
    name = max(rivals, key=lambda key: rivals[key])
    return rivals[name] - score(*mixture), name


def _diagonals(covariances: Array) -> Array:
    """Variances (K, n_features), also of covariance matrices."""
    return np.diagonal(covariances, axis1=1, axis2=2) if covariances.ndim == 3 else covariances


def is_large_cost(
    cost: float, noise_level: float, energy: float, *, is_lenient: bool = False
) -> bool:
    """Whether a cost is warned of without a comparison with rows or a pilot.

    Parameters
    ----------
    cost, noise_level
        Cost of a fit, and expected cost of the distribution of the samples.
    energy
        Squared norm of the sketch.
    is_lenient
        Whether something else shows poor fits as well, or arguments restrict the fit.
    """
    n_levels, fraction = _UNEXPLAINED if is_lenient else _UNEXPLAINED_WITHOUT_PILOT
    return cost > n_levels * noise_level and cost > fraction * energy


def _warn_of_cost(
    sketch: Sketch, cost: float, noise_level: float, remedy: str, is_lenient: bool
) -> bool:
    """Warn of a large cost, where there are neither rows nor a pilot to compare with."""
    energy = float(np.vdot(sketch.z, sketch.z).real)
    is_lenient |= sketch.feature_map.pilot is not None
    large = is_large_cost(cost, noise_level, energy, is_lenient=is_lenient)
    if large:
        warn_user(
            f"the mixture leaves a cost of {cost / noise_level:.3g} noise levels, "
            f"{cost / energy:.2g} of the sketch: components are missing, for instance far from the "
            "others, the data is not such a mixture, or rows depend on each other. "
            f"{remedy} {_map_remedy(sketch)}"
        )
    return large


def _warn_of_moments(
    sketch: Sketch, weights: Array, means: Array, variances: Array, remedy: str
) -> bool:
    """Warn of means and variances that are not those of the data, which a sketch holds exactly.

    Maximum likelihood has the moments of the data, and so have good fits to a sketch: variances of
    18 mixtures without a pilot differed by up to 2 %, those of fits that lost 6 to 30 nats by 20 %
    or more.
    """
    spherical = variances.shape[1] > 1 and not np.ptp(variances, axis=1).any()
    if spherical or sketch.effective_count < _MIN_COMPARED:
        return False
    mean = weights @ means / weights.sum()
    variance = weights @ (variances + (means - mean) ** 2) / weights.sum()
    varies = sketch.variance > 0.0
    known = np.where(varies, sketch.variance, 1.0)
    by_chance = np.sqrt(2.0 / sketch.effective_count)
    shifts = np.where(varies, np.abs(mean - sketch.mean) / np.sqrt(known), 0.0)
    ratios = np.where(varies, np.abs(np.log(np.maximum(variance, _TINY) / known)), 0.0)
    excess = np.maximum(
        shifts / (_SHIFTED + _CHANCES * by_chance), ratios / (_RESCALED + _CHANCES * by_chance)
    )
    worst = int(excess.argmax())
    if excess[worst] > 1.0:
        warn_user(
            f"the mixture has {mean[worst]:.4g} ± {np.sqrt(variance[worst]):.3g} in "
            f"{feature_title(worst, sketch.feature_map.feature_names)}, where the data has "
            f"{sketch.mean[worst]:.4g} ± {np.sqrt(sketch.variance[worst]):.3g}: components are "
            "missing or do not fit, so that EM on rows may be far likelier. "
            f"{remedy}"
        )
    return bool(excess[worst] > 1.0)


def _warn_of_mixture(
    sketch: Sketch,
    mixture: tuple[Array, Array, Array],
    rival: tuple[float, str],
    cost: float,
    noise_level: float,
    remedy: str,
    restricted: str | None,
) -> None:
    """Warn of a mixture that is less likely than a rival, by the loss and the name of the rival."""
    loss, name = rival
    rows = sketch.sample if has_rows(sketch, len(mixture[0])) else None
    if rows is None and is_explained(sketch, mixture, cost, noise_level, loss):
        _warn_of_noise(sketch, mixture)
        return
    n_rows = _POINTS if rows is None else min(len(rows), _POINTS)
    # a rival fitted to these rows is too likely by half of its parameters over their number
    if loss > WARNED_NATS + mixture[1].size / n_rows and restricted and rows is not None:
        warn_user(
            f"the mixture is {loss:.2g} nats a sample below {name} with covariance_type='diag': "
            f"its components have no variances of their own in each feature, by covariance_type="
            f"{restricted!r}. Decode with 'diag' or 'full', unless components should be alike."
        )
    elif loss > WARNED_NATS + mixture[1].size / n_rows:
        warn_user(
            f"the mixture is {loss:.2g} nats a sample below {name}: the components that are "
            "nearest to a sketch are not the likeliest where the data is not a mixture of "
            f"{len(mixture[0])} Gaussians. {remedy}"
        )
    elif sketch.sample is None:
        warn_of_few_pilot_rows(sketch)


def _warn_of_noise(sketch: Sketch, mixture: tuple[Array, Array, Array]) -> None:
    """Warn of a mixture that agrees with the sketch, where that hardly determines it."""
    pilot, pilot_fit = sketch.feature_map.pilot, pilot_mixture(sketch)
    if pilot is None or pilot_fit is None or mixture[2].ndim == 3:
        return
    loss = expected_loss(
        sketch, mixture, pilot_fit, round(complete_pilot_rows(sketch)), WARNED_NATS
    )
    if loss is not None and loss > WARNED_NATS:
        weights = mixture[0]
        warn_user(
            f"the mixture agrees with the sketch, but is expected to lose about {loss:.2g} nats a "
            f"sample: {counted_rows(sketch)} are few for a sketch to determine {len(weights)} "
            f"components, the smallest of weight {weights.min():.2g}. "
            f"{more_rows(sketch, pilot.n_rows)}"
        )


def _map_remedy(sketch: Sketch) -> str:
    """Advice on the feature map of a sketch about which its pilot says nothing."""
    return _WITHOUT_PILOT if sketch.feature_map.pilot is None else _OF_OTHER_DATA


def remedy_of(
    sketch: Sketch,
    n_components: int,
    non_default_arguments: Collection[str],
    result: str = "mixture",
    *,
    has_pilot: bool = False,
    is_diagonal: bool = True,
) -> str:
    """Advice for a model that a rival beats: first the defaults of :func:`dask_sketch.decode`.

    Parameters
    ----------
    sketch
        Sketch that was decoded.
    n_components
        Number of components or centroids.
    non_default_arguments
        Names of the arguments that keep :func:`dask_sketch.decode` from the comparison.
    result
        ``"mixture"`` or ``"centroids"``.
    has_pilot
        Whether the feature map has pilot rows of the same data.
    is_diagonal
        Whether each component has a variance of its own in each feature.
    """
    steps = []
    if sketch.sample is not None or has_pilot:
        if "n_components" in non_default_arguments:
            steps.append(f"with n_components={n_components}, or another number,")
        others = [name for name in non_default_arguments if name != "n_components"]
        if others:
            steps.append(f"without {' and '.join(others)},")
    if sketch.sample is not None:
        if not steps:
            return "Decode another number of components, or with replicates=5."
        rival = "k-means" if result == "centroids" else "maximum likelihood"
        return f"Decode {' '.join(steps)} which compares it with {rival} on the sample."
    first = f"Decode {' '.join(steps)} which compares it with the pilot rows. " if steps else ""
    if result == "centroids":
        return (
            "Sketch with sample=True where rows may be kept; otherwise design the feature map with "
            f"task='clustering' and n_components={n_components}."
        )
    otherwise = "take four times the frequencies and method='density'"
    if not is_diagonal:  # mixtures of method='density' are diagonal
        otherwise = "decode covariance_type='diag', or another number of components"
    remedy = rows_remedy(sketch)
    return f"{first}{remedy[0].upper()}{remedy[1:]}; otherwise {otherwise}."
