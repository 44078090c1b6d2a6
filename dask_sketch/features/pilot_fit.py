"""Fit mixtures and clusters to pilot rows, and record them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from dask_sketch.errors import InputError
from dask_sketch.features.pilot import Pilot, PilotMixture
from dask_sketch.models.clusters import (
    Clusters,
    excess_on_others,
    one_thread,
    random_state,
    spherical_kmeans,
)
from dask_sketch.models.covariances import Components, Covariances, Moments
from dask_sketch.models.density import RowDensity
from dask_sketch.models.missing_values import (
    fill_from_near,
    fill_from_others,
    fill_rows,
    fit_observed,
    log_joint_observed,
)
from dask_sketch.models.product_em import fit_product
from dask_sketch.models.smallest_variance import (
    AT_FLOOR,
    MIN_VARIANCE,
    losses_by_floor,
    smallest_variances,
)
from dask_sketch.models.weighted_em import fit_centroids, fit_mixture, rounding_variances
from dask_sketch.validation.categories import Categories
from dask_sketch.validation.tables import feature_title

Array = NDArray[np.float64]
_N_ITERATIONS = 50
_TOLERANCE = 1e-4  # smallest gain of one iteration, in nats per row
# Of the mixture of rows with missing values: numbers of components, over those of the pilot; rows
# of a start, iterations, starts from near rows, and further starts from values that are drawn from
# the best mixture
_RICHER = (2, 4)
_START_ROWS, _START_ITERATIONS, _NEAR_STARTS, _REFILLED = 4000, 20, 2, 2
_ROWS_PER_PARAMETER = 20  # rows for each parameter from which a further start is tried
_VARIANCE_FLOOR = 1e-8  # constant added to variances, as a fraction of those of the rows
_HALF_ITERATIONS = 10  # iterations of EM on half of the rows
ROWS_PER_COMPONENT = 20  # rows of the fit for each component


def rough_mixture(rows: Array, n_components: int | None, seed: int = 0) -> PilotMixture | None:
    """Mixture by one start of EM, whose variances give the scale of a feature map.

    Parameters
    ----------
    rows
        Finite rows, shape (n, n_features).
    n_components
        Number of components that will be decoded, or None.
    seed
        Seed of the start, ``>= 0``.

    Returns
    -------
    mixture
        Mixture of that many components, or of fewer where there are few rows for each; None
        without a number of components, or if no feature varies.
    """
    varies = np.ptp(rows, axis=0) > 0
    if n_components is None or not varies.any():
        return None
    # a component needs some rows to have a variance
    n_fitted = max(min(n_components, len(rows) // ROWS_PER_COMPONENT), 1)
    mixture = fit_pilot(rows[:, varies], n_fitted, seed)
    return _with_constants(rows, mixture)


def _with_constants(rows: Array, mixture: PilotMixture) -> PilotMixture:
    """Mixture of all features, from one of the features that vary."""
    varies = np.ptp(rows, axis=0) > 0
    means = np.tile(rows[0], (len(mixture.weights), 1))
    variances = np.full(means.shape, 1e-6 * mixture.variances.mean())
    means[:, varies], variances[:, varies] = mixture.means, mixture.variances
    return PilotMixture(mixture.weights, means, variances, mixture.score)


def cluster_pilot(
    rows: Array, n_components: int | None, seed: int = 0, *, spherical: bool = False
) -> Clusters | None:
    """Cluster pilot rows by k-means, in the units of the data.

    Without random rows, a sketch of a few hundred frequencies determines centroids less precisely
    than a few thousand rows do: on seven data sets of 10,000 to 60,000 rows, K = 10 and 30,
    the mean squared error was 1.01 to 1.21 times that of k-means on all rows, and 0.99 to 1.04
    times with the centroids of the pilot rows.

    Parameters
    ----------
    rows
        Finite rows, shape (n, n_features).
    n_components
        Number of centroids that will be decoded, or None.
    seed
        Seed of the starts, ``>= 0``.
    spherical
        Whether the rows are directions, and centroids of length one.

    Returns
    -------
    clusters
        Centroids and their weights; None without a number of them, or if there are fewer rows.
    """
    if n_components is None or n_components > len(rows):
        return None
    clusters = fit_centroids(rows, None, n_components, n_starts=1, seed=seed)
    return spherical_kmeans(rows, starts=[clusters.centers]) if spherical else clusters


def record_clusters(
    rows: Array, n_components: int | None, seed: int = 0, *, spherical: bool = False
) -> Pilot:
    """Cluster pilot rows, and fit a mixture from there, without moves of components.

    Parameters
    ----------
    rows, n_components, seed, spherical
        Arguments of :func:`cluster_pilot`.

    Examples
    --------
    >>> rows = np.repeat([[0.0, 1.0], [5.0, 2.0]], 50, axis=0)
    >>> pilot = record_clusters(rows, 2)
    >>> pilot.clusters.weights, pilot.mixture.weights
    (array([0.5, 0.5]), array([0.5, 0.5]))
    """
    clusters = cluster_pilot(rows, n_components, seed, spherical=spherical)
    varies = np.ptp(rows, axis=0) > 0
    if (
        clusters is None
        or len(rows) < ROWS_PER_COMPONENT * len(clusters.weights)
        or not varies.any()
    ):
        return record_pilot(rows, rough_mixture(rows, n_components, seed), seed, clusters)
    # imported here because the import takes a second, and few callers need it
    from sklearn.metrics import pairwise_distances_argmin

    labels, x = pairwise_distances_argmin(rows, clusters.centers), rows[:, varies]
    center, deviation = x.mean(axis=0), x.std(axis=0)
    equal = np.full(len(x), 1.0 / len(x))
    parts = Covariances().from_labels(
        (x - center) / deviation, equal, labels, len(clusters.weights)
    )
    start = PilotMixture(
        parts.weights, center + deviation * parts.means, deviation**2 * parts.covariances, 0.0
    )
    return record_pilot(rows, _with_constants(rows, start), seed, clusters, n_moves=0)


def record_pilot(
    rows: Array,
    rough: PilotMixture | None,
    seed: int = 0,
    clusters: Clusters | None = None,
    n_moves: int | None = None,
) -> Pilot:
    """Fit a mixture to pilot rows, and keep what decoders need of them.

    One start of EM ends in a poor local maximum on most real data. Components move out of it
    (:func:`dask_sketch.models.weighted_em.fit_mixture`), which gains more than other starts, in
    less time: 0.03 to 6 nats on 13 of 17 real data sets, K = 10.

    Parameters
    ----------
    rows
        Finite rows, shape (n, n_features).
    rough
        Mixture to start from, of :func:`rough_mixture`; None if the number of components that will
        be decoded is not known.
    seed
        Seed of the halves of the rows, ``>= 0``.
    clusters
        Clusters of the rows, of :func:`cluster_pilot`.
    n_moves
        Largest number of moves of components, see :func:`fit_mixture`.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
    >>> pilot = record_pilot(rows, rough_mixture(rows, n_components=1))
    >>> pilot.n_rows, round(pilot.gaussian_score, 1), pilot.mixture.means.shape
    (1000, -2.8, (1, 2))
    """
    variance = rows.var(axis=0)
    varies = np.ptp(rows, axis=0) > 0
    gaussian = float(-0.5 * (np.log(2 * np.pi * variance[varies]) + 1.0).sum())
    excess = 0.0 if clusters is None else excess_on_others(rows, len(clusters.weights), seed)
    if rough is None:
        return Pilot(len(rows), variance, gaussian, clusters=clusters, clusters_excess=excess)
    x, k = rows[:, varies], len(rough.weights)
    mixture = fit_mixture(
        x,
        None,
        k,
        starts=[(rough.weights, rough.means[:, varies], rough.variances[:, varies])],
        n_starts=0,
        n_iterations=_N_ITERATIONS,
        tolerance=_TOLERANCE,
        n_moves=n_moves,
    )
    best = PilotMixture(mixture.weights, mixture.means, mixture.covariances, mixture.log_likelihood)
    smallest, loss = None, sampling_loss(x, (best.weights, best.means, best.variances), seed)
    floor = smallest_variances(rows, variance)[0]
    if (floor < MIN_VARIANCE * variance).any():
        smallest = floor
    return Pilot(
        len(rows), variance, gaussian, _with_constants(rows, best), loss, clusters,
        clusters_excess=excess, floor_loss=_loss_by_floor(x, best, mixture.smallest),
        smallest_variances=smallest,
    )  # fmt: skip


def _loss_by_floor(rows: Array, mixture: PilotMixture, floor: Array) -> float:
    """Log-likelihood lost by clusters narrower than the smallest variances (n_features,)."""
    weights, means, variances = mixture.weights, mixture.means, mixture.variances
    if not (variances < AT_FLOOR * floor).any():  # shortcut for most data
        return 0.0
    nearest = RowDensity(weights, means, variances).log_joint(rows).argmax(axis=1)
    return float(losses_by_floor(rows, nearest, weights, variances, floor)[0].sum())


def with_further_start(pilot: Pilot, rows: Array, seed: int = 0) -> Pilot:
    """Record with a likelier mixture than its own, if another start finds one.

    The start has twice as many components, which are merged. With few rows for each parameter, a
    larger likelihood does not tell which mixture is likelier for other rows.

    Parameters
    ----------
    pilot
        Record of the rows.
    rows
        Finite rows, shape (n, n_features).
    seed
        Seed of the start, ``>= 0``.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
    >>> pilot = record_pilot(rows, rough_mixture(rows, n_components=2))
    >>> with_further_start(pilot, rows).mixture.score >= pilot.mixture.score
    True
    """
    varies, earlier = np.ptp(rows, axis=0) > 0, pilot.mixture
    k = 0 if earlier is None else len(earlier.weights)
    if (
        earlier is None
        or k < 2
        or len(rows) < _ROWS_PER_PARAMETER * k * (2 * int(varies.sum()) + 1)
    ):
        return pilot
    x, variances = rows[:, varies], earlier.variances[:, varies]
    rounding = rounding_variances(x, variances)
    mixture = fit_mixture(
        x, None, k, n_starts=0, merged=True, seed=seed, n_iterations=_N_ITERATIONS,
        tolerance=_TOLERANCE, rounding=rounding,
    )  # fmt: skip
    density = RowDensity(earlier.weights, earlier.means[:, varies], variances + rounding)
    if not mixture.score > float(density.log_total(x).mean()):
        return pilot
    best = PilotMixture(mixture.weights, mixture.means, mixture.covariances, mixture.log_likelihood)
    return replace(pilot, mixture=_with_constants(rows, best))


def record_mixed_pilot(
    rows: Array, categories: Categories, n_components: int | None, seed: int = 0
) -> Pilot:
    """Fit a mixture of products to pilot rows with categorical features.

    Parameters
    ----------
    rows
        Rows of numbers and codes, shape (n, n_features), NaN where values are missing.
    categories
        Levels of the categorical features.
    n_components
        Number of components that will be decoded, or None.
    seed
        Seed of the starts, ``>= 0``.

    Examples
    --------
    >>> codes = np.repeat([[0.0, 0.0], [1.0, 1.0]], 100, axis=0)
    >>> pilot = record_mixed_pilot(codes, Categories((("a", "b"), ("c", "d"))), 2)
    >>> pilot.mixture.probabilities.shape
    (2, 4)
    """
    single = fit_product(rows, None, 1, categories, n_starts=1)
    variance = np.nanvar(rows, axis=0)
    if n_components is None:
        return Pilot(len(rows), variance, single.log_likelihood)
    k = max(min(n_components, len(rows) // ROWS_PER_COMPONENT), 1)
    fitted = fit_product(rows, None, k, categories, seed=seed)
    mixture = fitted.mixture
    means, variances = np.empty((2, k, rows.shape[1]))
    means[:, categories.numeric] = mixture.means
    variances[:, categories.numeric] = mixture.variances
    for column, part in zip(categories.columns, categories.slices, strict=True):
        codes = np.arange(part.stop - part.start)
        probabilities = mixture.probabilities[:, part]
        means[:, column] = probabilities @ codes
        variances[:, column] = probabilities @ codes**2 - means[:, column] ** 2
    best = PilotMixture(
        mixture.weights, means, variances, fitted.log_likelihood, mixture.probabilities
    )
    return Pilot(len(rows), variance, single.log_likelihood, best)


def sampling_loss(
    rows: Array, start: tuple[Array, Array, Array], seed: int, covariance_type: str = "diag"
) -> float:
    """Estimated loss on other rows of a mixture that was fitted to few, in nats.

    With ``p`` parameters and ``n`` rows, a fit is too likely by ``p / (2 n)`` on its rows, and too
    unlikely by as much on others. Fits to halves of the rows differ by four times that between the
    rows of their own and the others, and by more if the data is not a mixture of Gaussians.

    Parameters
    ----------
    rows
        Finite rows, shape (n, n_features).
    start
        Weights, means, and variances or matrices of the mixture.
    seed
        Seed of the halves, ``>= 0``.
    covariance_type
        Type of its covariances.
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    middle, k = len(rows) // 2, len(start[0])
    gap = 0.0
    for fitted, others in ((order[:middle], order[middle:]), (order[middle:], order[:middle])):
        if len(fitted) < k or not (np.ptp(rows[fitted], axis=0) > 0).all():
            return 0.0
        half = fit_mixture(
            rows[fitted], None, k, starts=[start], n_starts=0, n_moves=0,
            n_iterations=_HALF_ITERATIONS, tolerance=10.0 * _TOLERANCE,
            covariance_type=covariance_type,
        )  # fmt: skip
        density = RowDensity(half.weights, half.means, half.covariances)
        gap += 0.5 * (half.log_likelihood - float(density.log_total(rows[others]).mean()))
    return max(gap / 4.0, 0.0)


def filled_pilot(
    rows: Array,
    n_components: int | None,
    seed: int = 0,
    feature_names: tuple[str, ...] | None = None,
) -> Array:
    """Draw the missing values of pilot rows from a mixture fitted to the observed ones.

    The mixture is the likeliest of several starts: from complete rows, and from rows whose missing
    values are filled in from other rows. One start alone often ends in a poor local optimum. It has
    up to four times as many components as will be decoded, if the data has them.

    Parameters
    ----------
    rows
        Rows with NaN where values are missing, shape (n, n_features).
    n_components
        Number of components that will be decoded; one if it is not known.
    seed
        Seed of the mixture and of the draws, ``>= 0``.
    feature_names
        Names of the features for messages.

    Raises
    ------
    InputError
        If a feature has fewer than two observed values.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
    >>> rows[::3, 0] = np.nan
    >>> filled = filled_pilot(rows, n_components=1)
    >>> bool(np.isnan(filled).any()), filled.std(axis=0).round(1)
    (False, array([1., 1.]))
    """
    seen = (~np.isnan(rows)).sum(axis=0)
    if seen.min() < 2:
        feature = int(np.argmin(seen))
        raise InputError(
            f"{feature_title(feature, feature_names)} has {seen[feature]} observed values in "
            f"{len(rows)} pilot rows: leave that feature out, or give a larger n_pilot."
        )
    rng, k = np.random.default_rng(seed), n_components or 1
    some = rows[rng.permutation(len(rows))[:_START_ROWS]]
    some = some if (~np.isnan(some)).any(axis=0).all() else rows
    start = fill_from_others(some, rng)
    if not np.ptp(start, axis=0).any():
        return fill_from_others(rows, rng)
    starts = [start]
    if k > 1:
        starts += [fill_from_near(some, rng) for _ in range(_NEAR_STARTS)]
        complete = some[~np.isnan(some).any(axis=1)]
        if len(complete) >= ROWS_PER_COMPONENT * k and np.ptp(complete, axis=0).all():
            starts.append(complete)
    tried = [_observed_mixture(some, each, k, seed) for each in starts]
    for _ in range(_REFILLED if k > 1 else 0):
        _, best = max(tried, key=lambda pair: pair[0])
        tried.append(_observed_mixture(some, fill_rows(some, best, rng), k, seed))
    # Where the data has more clusters than k, k components describe values between them. A mixture
    # with more is taken if it gains more than its parameters do by chance.
    likelihood, mixture = max(tried, key=lambda pair: pair[0])
    for richer in (k * factor for factor in _RICHER):
        if richer > len(some) // ROWS_PER_COMPONENT:
            break
        reached, other = _observed_mixture(some, fill_rows(some, mixture, rng), richer, seed)
        n_added = (richer - len(mixture[0])) * (2 * rows.shape[1] + 1)
        if reached - likelihood > n_added / len(some):
            likelihood, mixture = reached, other
    return fill_rows(rows, mixture, rng)


def _observed_mixture(
    rows: Array, filled: Array, n_components: int, seed: int
) -> tuple[float, tuple[Array, Array, Array]]:
    """Mixture by EM on observed values from one start, after its mean log-likelihood."""
    rough = rough_mixture(filled, n_components, seed)
    assert rough is not None  # some feature varies
    mixture = fit_observed(
        rows, rough.weights, rough.means, rough.variances, n_iterations=_START_ITERATIONS
    )
    return float(logsumexp(log_joint_observed(*mixture, rows), axis=1).mean()), mixture


def fit_pilot(rows: Array, n_components: int, seed: int = 0) -> PilotMixture:
    """Fit a mixture to a few rows by expectation-maximisation, starting from k-means.

    The fit is only as good as the few thousand rows of a pilot allow, which suffices for the
    variances of the components: the frequencies depend on nothing else.

    Parameters
    ----------
    rows
        Finite rows, shape (n, n_features); every feature must vary.
    n_components
        Number ``K`` of components, from 1 to n.
    seed
        Seed of the start, ``>= 0``.

    Returns
    -------
    mixture
        Weights, means and variances in the units of the rows.

    Raises
    ------
    InputError
        If there are fewer rows than components, or a feature does not vary.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = np.concatenate([rng.normal(-3.0, 1.0, (1000, 1)), rng.normal(3.0, 0.5, (1000, 1))])
    >>> sorted(np.sqrt(fit_pilot(rows, n_components=2).variances).ravel().round(1).tolist())
    [0.5, 1.0]
    """
    if not 1 <= n_components <= len(rows):
        raise InputError(
            f"n_components={n_components!r}: there are {len(rows)} rows; give 1 to {len(rows)}."
        )
    center, deviation = rows.mean(axis=0), rows.std(axis=0)
    if not (deviation > 0.0).all():
        constant = np.flatnonzero(~(deviation > 0.0)).tolist()
        raise InputError(
            f"features {constant} do not vary, so that a mixture has no width there: leave them "
            "out."
        )
    # imported here because the import takes a second, and few callers need it
    from sklearn.cluster import KMeans

    x, family, likelihood = (rows - center) / deviation, Covariances(), -np.inf
    equal, responsibilities = np.full(len(x), 1.0 / len(x)), np.zeros((n_components, len(x)))
    with one_thread():
        clusters = KMeans(n_components, n_init=1, random_state=random_state(seed)).fit(x)
        responsibilities[clusters.labels_, np.arange(len(x))] = equal
        counts, sums, squares = (
            responsibilities.sum(axis=1),
            responsibilities @ x,
            responsibilities @ (x * x),
        )
        moments = Moments(counts, counts, sums, squares, np.full(1, -np.inf))
        mixture = _maximized(family, moments, Components(counts, sums, squares))
        for _ in range(_N_ITERATIONS):
            before = likelihood
            moments = family.expectation(mixture, x, equal, single=False)
            mixture, likelihood = _maximized(family, moments, mixture), moments.log_likelihood
            if abs(likelihood - before) < _TOLERANCE:
                break
    return PilotMixture(
        weights=mixture.weights,
        means=center + deviation * mixture.means,
        variances=deviation**2 * mixture.covariances,
        score=float(likelihood - np.log(deviation).sum()),
    )


def _maximized(family: Covariances, moments: Moments, before: Components) -> Components:
    """M-step with the floor added to all variances, as scikit-learn has it."""
    components = family.maximization(moments, before, 0.0)
    return replace(components, covariances=components.covariances + _VARIANCE_FLOOR)
