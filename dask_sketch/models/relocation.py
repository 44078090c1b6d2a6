"""Moves of components and centroids out of local optima: merge here, split there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_sketch.models.covariances import Components, Covariances

Array = NDArray[np.float64]
_MIN_FRACTION = 0.05  # rows below this probability of a component do not decide how it is split
_MAX_ROWS = 4000  # rows that a split is fitted to
_N_ITERATIONS = 5  # iterations of EM of two components on the rows of one
_MIN_ROWS = 5.0  # effective rows of each half, and one more for every four features
# Fewer rows suffice for halves far from each other: the gain must exceed this many nats in all, and
# more for each feature. Chance gained at most 1.9 times the number of features, and six nats.
_FEWEST_ROWS, _CLEAR_GAIN, _GAIN_PER_FEATURE = 3.0, 8.0, 2.0
_FEW_FOR_FEATURE = 2  # rows for each feature, below which the widest feature divides them as well
_POINT_MASS = 0.1  # smallest share of the rows that have the same value of a feature
_COUNTED = 200  # rows among which that value is looked for
# Of mergers of centroids: rows of which the best takes the place of one, smallest ratio of what it
# gains to what the merger costs, before iterations, smallest gain, and failures that end them.
_FAR_ROWS, _WORTH_TRYING, _MIN_GAIN, _MAX_MERGERS_FAILED = 8, 0.7, 1e-4, 20
_FAR = 0.995  # quantile of the distance of the row that a far cluster is looked for at


def relocations(
    family: Covariances,
    components: Components,
    rows: Array,
    weights: Array,
    floor: float | Array,
    together: float | None = None,
) -> Iterator[Components]:
    """Mixtures with one component removed and another one split, the most promising first.

    A component is removed by leaving its rows to all others, or by merging it with one of them. The
    loss of leaving is the likelihood that the rows lose under the others; the loss of merging is
    bounded by Runnalls (2007, eq. 23). The gain of a split is the gain of EM with two components on
    the rows of one, weighted by its probabilities. After split and merge EM (Ueda, Nakano,
    Ghahramani and Hinton 2000), with other criteria.

    Parameters
    ----------
    family
        Type of the covariances.
    components
        Mixture at a maximum of the likelihood.
    rows, weights
        Rows in standard units, shape (n_rows, n_features), and their weights, shape (n_rows,).
    floor
        Smallest variance, or one for each feature, shape (n_features,).
    together
        Expected gain of likelihood, in nats, above which moves are made together in a first
        mixture, if there are several of different components; None for no such mixture.
    """
    responsibilities, without = family.posterior(components, rows, weights)
    removals = [_removal(family, components, k, float(loss)) for k, loss in enumerate(without)]
    if together is not None:  # few moves must do: their losses are worth more time
        removals = [
            _merger(family, components, k, found, responsibilities, rows, weights)
            for k, found in enumerate(removals)
        ]
    losses = np.array([loss for loss, _ in removals])
    splits = [
        _split(family, components, k, responsibilities[:, k], rows, weights, floor)
        for k in range(len(components.weights))
    ]
    gains = np.array([gain for gain, _ in splits])
    expected = gains[:, None] - losses
    np.fill_diagonal(expected, -np.inf)

    def moved(whole: Components, k: int, removed: int) -> Components:
        halves, partner = splits[k][1], removals[removed][1]
        assert halves is not None  # its gain is positive
        if partner is not None and partner != k:
            whole = _merge(family, whole, removed, partner)
        return _replace(whole, k, removed, halves)

    pairs = [] if together is None else _disjoint(expected, removals, together)
    if len(pairs) > 1:
        all_moved = components
        for k, removed in pairs:
            all_moved = moved(all_moved, k, removed)
        yield all_moved
    used: set[int] = set()
    for pair in np.argsort(-expected, axis=None, kind="stable"):
        k, removed = (int(index) for index in np.unravel_index(pair, expected.shape))
        if not np.isfinite(expected[k, removed]):
            return
        if k in used:  # the same split beside another removal seldom succeeds
            continue
        used.add(k)
        yield moved(components, k, removed)


def _disjoint(
    expected: Array, removals: list[tuple[float, int | None]], min_gain: float
) -> list[tuple[int, int]]:
    """Moves of different components that gain more than ``min_gain``, the most promising first."""
    moves: list[tuple[int, int]] = []
    used: set[int | None] = set()
    for pair in np.argsort(-expected, axis=None, kind="stable"):
        k, removed = (int(index) for index in np.unravel_index(pair, expected.shape))
        if not expected[k, removed] > min_gain:
            break
        partner = removals[removed][1]
        if not used & {k, removed, partner}:
            moves.append((k, removed))
            used |= {k, removed} | ({partner} if partner is not None else set())
    return moves


def agglomerate(family: Covariances, components: Components, n_components: int) -> Components:
    """Merge pairs of components until ``n_components`` are left, by increasing loss."""
    bounds = np.array(
        [_merge_bounds(family, components, k) for k in range(len(components.weights))]
    )
    while len(bounds) > n_components:
        partner, k = sorted(int(index) for index in np.unravel_index(bounds.argmin(), bounds.shape))
        merged = _merge(family, components, k, partner)
        components = Components(*(np.delete(each, k, axis=0) for each in vars(merged).values()))
        bounds = np.delete(np.delete(bounds, k, axis=0), k, axis=1)
        bounds[partner] = bounds[:, partner] = _merge_bounds(family, components, partner)
    return components


def _merge_bounds(family: Covariances, components: Components, k: int) -> Array:
    """Bounds of the loss of likelihood by merging ``k`` with each component, shape (K,)."""
    determinants = family.log_determinants(components.covariances, components.means.shape[1])
    merged = family.merged(components, k)[2]
    weights = components.weights
    bounds = 0.5 * (
        (weights[k] + weights) * merged - weights[k] * determinants[k] - weights * determinants
    )
    bounds[k] = np.inf
    return np.asarray(bounds)


def _removal(
    family: Covariances, components: Components, k: int, loss: float
) -> tuple[float, int | None]:
    """Loss of the likelihood without a component, and the component that it is merged with."""
    bounds = _merge_bounds(family, components, k)
    partner = int(np.argmin(bounds))
    return (float(bounds[partner]), partner) if bounds[partner] < loss else (loss, None)


def _merger(
    family: Covariances,
    components: Components,
    k: int,
    removal: tuple[float, int | None],
    responsibilities: Array,
    rows: Array,
    weights: Array,
) -> tuple[float, int | None]:
    """Removal of a component, by merging it if that loses less on the rows than its bound says.

    The bound of two components of one cluster, which overlap, is several times their loss.
    """
    partner = int(np.argmin(_merge_bounds(family, components, k)))
    both = [k, partner]
    responsibility = responsibilities[:, both].sum(axis=1)
    kept = np.flatnonzero(responsibility > _MIN_FRACTION)
    step = max(len(kept) // _MAX_ROWS, 1)
    kept = kept[::step]
    if not len(kept):
        return removal
    merged = _merge(family, components, k, partner)
    whole, pair = (
        Components(each.weights[part], each.means[part], each.covariances[part])
        for each, part in ((merged, [partner]), (components, both))
    )
    x, q = rows[kept], np.minimum(responsibility[kept], 1.0)
    ratios = family.joint(whole, x)[0] - np.logaddexp(*family.joint(pair, x))
    with np.errstate(under="ignore"):
        changes = np.log(np.maximum(1.0 - q + q * np.exp(np.minimum(ratios, 50.0)), 1e-300))
    loss = -step * float(weights[kept] @ changes)
    return (loss, partner) if loss < removal[0] else removal


def _merge(family: Covariances, components: Components, k: int, partner: int) -> Components:
    """Mixture whose component ``partner`` has the moments of both, and ``k`` no weight."""
    weights, means = components.weights.copy(), components.means.copy()
    covariances = components.covariances.copy()
    merged_means, merged_covariances, _ = family.merged(components, k)
    means[partner] = merged_means[partner]
    covariances[partner] = family.of_merged(merged_covariances[partner])
    weights[partner] += weights[k]
    weights[k] = 0.0
    return Components(weights, means, covariances)


def _replace(components: Components, k: int, removed: int, halves: Components) -> Components:
    weights, means = components.weights.copy(), components.means.copy()
    covariances = components.covariances.copy()
    both = np.array([k, removed])
    weights[both] = components.weights[k] * halves.weights
    means[both], covariances[both] = halves.means, halves.covariances
    return Components(weights / weights.sum(), means, covariances)


def _split(
    family: Covariances,
    components: Components,
    k: int,
    responsibility: Array,
    rows: Array,
    weights: Array,
    floor: float | Array,
) -> tuple[float, Components | None]:
    """Gain of the likelihood by splitting a component in two, and its halves."""
    kept = np.flatnonzero(responsibility > _MIN_FRACTION)
    kept = kept[:: max(len(kept) // _MAX_ROWS, 1)]
    n_min = _MIN_ROWS + rows.shape[1] / 4.0
    if len(kept) < 2 * _FEWEST_ROWS:
        return -np.inf, None
    x, w = rows[kept], weights[kept] * responsibility[kept]
    n_rows = w.sum() ** 2 / (w @ w)
    clear = _CLEAR_GAIN + _GAIN_PER_FEATURE * rows.shape[1]
    w = w / w.sum()
    one = Components(np.ones(1), components.means[[k]], components.covariances[[k]])
    single = family.maximization(family.expectation(one, x, w), one, floor)
    alone = family.expectation(single, x, w).log_likelihood
    starts = [family.from_labels(x, w, upper.astype(np.intp), 2) for upper in _divisions(x, w)]
    if not starts:
        return -np.inf, None
    pairs = Components(
        np.concatenate([start.weights for start in starts]) / len(starts),
        np.concatenate([start.means for start in starts]),
        np.concatenate([start.covariances for start in starts]),
    )
    for _ in range(_N_ITERATIONS):
        moments = family.expectation(pairs, x, w, len(starts))
        pairs = family.maximization(moments, pairs, floor)
    rows_of = moments.counts**2 / np.maximum(moments.squared_counts, 1e-300)
    fewest, gains = rows_of.reshape(-1, 2).min(axis=1), moments.log_likelihoods - alone
    is_clear = (fewest > _FEWEST_ROWS) & (gains * n_rows > clear)
    gains = np.where((fewest > n_min) | is_clear, gains, -np.inf)
    best = int(np.argmax(gains))
    if not np.isfinite(gains[best]):
        return -np.inf, None
    both = slice(2 * best, 2 * best + 2)
    halves = Components(
        pairs.weights[both] * len(starts), pairs.means[both], pairs.covariances[both]
    )
    return float(components.weights[k] * gains[best]), halves


def _divisions(x: Array, w: Array) -> Iterator[NDArray[np.bool_]]:
    """Divisions of rows in two: by the widest direction, distance, and the least normal feature.

    Rows that share a value of a feature, such as hours without rain or wind, are divided from the
    others: EM hardly finds components of no width.
    """
    deviation = x - w @ x
    scale = np.sqrt(w @ deviation**2)
    standard = deviation / np.where(scale > 0.0, scale, 1.0)
    _, vectors = np.linalg.eigh((standard * w[:, None]).T @ standard)
    along = standard @ vectors[:, -1]
    distance = (standard**2).sum(axis=1)
    odd = standard[:, int(np.argmax(np.abs(w @ standard**4 - 3.0)))]
    far = standard[int(np.argsort(distance, kind="stable")[int(_FAR * (len(x) - 1))])]
    nearer = standard @ far > 0.5 * (far @ far)
    wide = distance > np.quantile(distance, 0.7)
    divisions = [along > 0.0, wide, odd > 0.0, nearer, _point_mass(x)]
    if len(x) < _FEW_FOR_FEATURE * x.shape[1]:  # correlations are noise then, large variances not
        divisions.append(deviation[:, int(np.argmax(scale))] > 0.0)
    for divided in divisions:
        if divided.any() and not divided.all():
            yield divided


def _point_mass(x: Array) -> NDArray[np.bool_]:
    """Rows with the same value of the feature where about half of them have it; none if few do."""
    some = np.sort(x[:: max(len(x) // _COUNTED, 1)], axis=0)
    is_repeated, balance = np.zeros(len(x), dtype=bool), 0.0
    # places to the last one of as many equal values
    n_places = math.ceil(_POINT_MASS * len(some)) - 1
    repeated = (some[n_places:] == some[: len(some) - n_places]).any(axis=0)
    for index in np.flatnonzero(repeated):
        values, counts = np.unique(some[:, index], return_counts=True)
        fraction = float(counts.max()) / len(some)
        if fraction * (1.0 - fraction) > balance:
            is_repeated, balance = (
                x[:, index] == values[counts.argmax()],
                fraction * (1.0 - fraction),
            )
    return is_repeated


def tied_relocations(
    family: Covariances, components: Components, rows: Array, weights: Array
) -> Iterator[Components]:
    """Mixtures of one matrix with one component moved to split another, the most promising first.

    In the units of the matrix they are centroids, and move as such.

    Parameters
    ----------
    family
        Type of the covariances, ``"tied"``.
    components
        Mixture at a maximum of the likelihood.
    rows, weights
        Rows in standard units, shape (n_rows, n_features), and their weights, shape (n_rows,).
    """
    shares, _ = family.posterior(components, rows, weights)
    lower = np.linalg.cholesky(components.covariances)
    whitening = np.linalg.inv(lower).T
    white, centers = rows @ whitening, components.means @ whitening
    for moved in centroid_relocations(white, weights, centers, shares.argmax(axis=1)):
        mass = np.bincount(_assigned(white, weights, moved).labels, weights, len(moved))
        yield Components(mass / mass.sum(), moved @ lower.T, components.covariances)


def centroid_relocations(
    rows: Array, weights: Array, centers: Array, labels: NDArray[np.intp]
) -> Iterator[Array]:
    """Centroids one of which is moved to split the cluster of another, the most promising first.

    Parameters
    ----------
    rows, weights
        Rows, shape (n_rows, n_features), and their weights, shape (n_rows,).
    centers, labels
        Centroids, shape (n_components, n_features), and the number of the centroid of each row,
        shape (n_rows,).
    """
    k = len(centers)
    losses, gains, halves = np.zeros(k), np.full(k, -np.inf), np.zeros((k, 2, rows.shape[1]))
    for index in range(k):
        kept = labels == index
        x, w = rows[kept], weights[kept]
        if len(x) < 2:
            continue
        squares = (x * x).sum(axis=1)[:, None] - 2.0 * x @ centers.T + (centers**2).sum(axis=1)
        own = squares[:, index].copy()
        squares[:, index] = np.inf
        losses[index] = w @ (squares.min(axis=1) - own)
        gains[index], halves[index] = _best_halves(x, w)
    expected = gains[:, None] - losses
    np.fill_diagonal(expected, -np.inf)
    for split in np.argsort(-expected.max(axis=1), kind="stable"):
        removed = int(np.argmax(expected[split]))
        if not np.isfinite(expected[split, removed]):
            return
        moved = centers.copy()
        moved[[split, removed]] = halves[split]
        yield moved


def _best_halves(x: Array, w: Array) -> tuple[float, Array]:
    """Squared error that two centroids save, and the two, shape (2, n_features)."""
    fractions = w / w.sum()
    best, halves = -np.inf, np.zeros((2, x.shape[1]))
    for upper in _divisions(x, fractions):
        for _ in range(3):
            mass = np.array([fractions[~upper].sum(), fractions[upper].sum()])
            if not mass.min() > 0.0:
                break
            means = (
                np.stack([fractions[~upper] @ x[~upper], fractions[upper] @ x[upper]])
                / mass[:, None]
            )
            gain = float(w.sum() * mass.prod() * ((means[1] - means[0]) ** 2).sum())
            if gain > best:
                best, halves = gain, means
            upper = (x - means.mean(axis=0)) @ (means[1] - means[0]) > 0.0
    return best, halves


def merge_and_reseed(rows: Array, weights: Array, centers: Array, seed: int) -> Array:
    """Merge two centroids and place one of them at a far row, as long as the error falls.

    A search for one cluster to split misses small clusters far from their centroid, whose rows
    hardly change where the two halves lie. Here a far row is sampled by its squared distance, as in
    k-means++ and its local search (Lattanzi and Sohler 2019), but the two centroids whose merger
    costs least (Ward 1963) make room for it, and both sides are then moved by two iterations.

    Parameters
    ----------
    rows, weights
        Rows, shape (n_rows, n_features), and their weights, shape (n_rows,), not negative.
    centers
        Centroids, shape (n_centers, n_features).
    seed
        Seed of the far rows, ``>= 0``.

    Returns
    -------
    centers
        Centroids of no greater error, the same ones if nothing was gained.
    """
    rng, failures = np.random.default_rng(seed), 0
    origin = weights @ rows / weights.sum()
    x = rows - origin
    best = _assigned(x, weights, centers - origin)
    while failures < _MAX_MERGERS_FAILED:
        moved = _with_far_row(x, weights, best, rng)
        trial = None if moved is None else _assigned(x, weights, _moved(x, weights, moved))
        if trial is None or trial.error > best.error * (1.0 - _MIN_GAIN):
            failures += 1
        else:
            best, failures = trial, 0
    return best.centers + origin


@dataclass(frozen=True, eq=False)
class _Assignment:
    """Centroids, the number of the one nearest to each row, its squared distance, and their sum."""

    centers: Array
    labels: NDArray[np.intp]
    squares: Array
    error: float


def _assigned(x: Array, weights: Array, centers: Array) -> _Assignment:
    # imported here because the import takes a second, and few callers need it
    from sklearn.metrics import pairwise_distances_argmin_min

    labels, squares = pairwise_distances_argmin_min(x, centers, metric="sqeuclidean")
    return _Assignment(centers, labels, squares, float(weights @ squares))


def _moved(x: Array, weights: Array, centers: Array) -> Array:
    """Centroids after two iterations of Lloyd's algorithm."""
    for _ in range(2):
        labels = _assigned(x, weights, centers).labels
        mass = np.bincount(labels, weights, len(centers))
        sums = [np.bincount(labels, weights * column, len(centers)) for column in x.T]
        kept = mass > 0.0
        centers = centers.copy()
        centers[kept] = np.stack(sums, axis=1)[kept] / mass[kept, None]
    return centers


def _with_far_row(
    x: Array, weights: Array, assignment: _Assignment, rng: np.random.Generator
) -> Array | None:
    """Centroids with two of them merged and one at a far row; None if that cannot pay."""
    mass = np.bincount(assignment.labels, weights, len(assignment.centers))
    norms = (assignment.centers**2).sum(axis=1)
    between = np.maximum(
        norms[:, None] + norms - 2.0 * assignment.centers @ assignment.centers.T, 0.0
    )
    shared = mass[:, None] * mass / np.maximum(mass[:, None] + mass, np.finfo(float).tiny)
    costs = between * shared
    np.fill_diagonal(costs, np.inf)
    one, other = np.unravel_index(int(costs.argmin()), costs.shape)
    total = np.cumsum(weights * assignment.squares)
    if not total[-1] > 0.0:
        return None
    far = x[np.searchsorted(total, rng.random(_FAR_ROWS) * total[-1])]
    squares = (x * x).sum(axis=1)[:, None] - 2.0 * x @ far.T + (far * far).sum(axis=1)
    gains = weights @ np.maximum(assignment.squares[:, None] - np.maximum(squares, 0.0), 0.0)
    chosen = int(gains.argmax())
    if gains[chosen] < _WORTH_TRYING * costs[one, other]:
        return None
    centers = assignment.centers.copy()
    both = max(mass[one] + mass[other], np.finfo(float).tiny)
    centers[one] = (mass[one] * centers[one] + mass[other] * centers[other]) / both
    centers[other] = far[chosen]
    return centers
