"""Fit Gaussian mixtures and centroids to weighted rows in memory, from several starts.

Mixtures by expectation-maximisation, centroids by Lloyd's algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.models.clusters import Clusters, one_thread
from dask_sketch.models.covariances import Components, Covariances
from dask_sketch.models.low_rank import covariances_of, require_rank
from dask_sketch.models.relocation import (
    agglomerate,
    centroid_relocations,
    merge_and_reseed,
    relocations,
    tied_relocations,
)
from dask_sketch.models.smallest_variance import MIN_VARIANCE, smallest_variances

Array = NDArray[np.float64]
_MIN_ROWS = 3.0  # effective rows of a component; with fewer its likelihood has no bound
_MAX_RESEEDED = 3  # moves of degenerate components, per component
_START_WORK, _MOVE_WORK = 4e6, 2e7  # components times rows of all starts, and of all moves
_FIRST = 20  # iterations of each start before the best are continued
_CONTINUED = 3  # starts that are continued to convergence
_MERGED = 5  # iterations of twice as many components before they are merged
_MIN_CLUSTER = 10  # mean rows of each of them
_TRIAL = 15  # iterations of a mixture with a moved component before it is compared
_MAX_FAILED = 4  # moves in a row without gain that end the moves
_MIN_GAIN = 1e-4  # smallest gain of a move, in nats
_LARGE_GAIN = 5e-3  # gain of a move that is not counted, where there are fewer than components
_ON_GRID = 0.05  # distance of rounded values from multiples of their step, as a fraction of it
_KMEANS_ITERATIONS = 30  # iterations of k-means before EM starts
_TINY = 1e-300
_N_FOLDS = 4  # parts of the rows, each of which is left out once
# Moves of components in the fits to the others, and rows times parameters of all such moves
_FOLD_MOVES, _FOLD_WORK = 10, 3e6
_FOLD_TOLERANCE = 1e-4  # gain of an iteration below which these end, in nats


@dataclass(frozen=True)
class FittedMixture:
    """Mixture of Gaussians fitted to weighted rows.

    Attributes
    ----------
    weights
        Weights of the components, shape (n_components,), decreasing, summing to one.
    means
        Means, shape (n_components, n_features), in the units of the rows.
    covariances
        Covariances as in scikit-learn: shape (n_components, n_features) for ``"diag"``,
        (n_components,) for ``"spherical"``, (n_features, n_features) for ``"tied"`` and
        (n_components, n_features, n_features) for ``"full"``; noise variances and loadings
        (n_components, n_features, 1 + r) for ``"low-rank:r"``.
    covariance_type
        Type of the covariances.
    log_likelihood
        Mean weighted log-likelihood of the rows, in nats.
    n_iterations
        Number of iterations from the best start.
    converged
        Whether the last iteration gained less than the tolerance.
    start
        Position of the best start: given starts first, then starts by k-means.
    start_likelihoods
        Mean log-likelihoods that the starts reached, shape (n_starts,): after a few iterations, or
        after all for those that were continued.
    score
        Mean log-likelihood with the variances of rounding added, by which mixtures are compared.
    rounding
        Variances of rounding, shape (n_features,), in squared units of the rows.
    smallest
        Smallest variances that the fit allowed, shape (n_features,), in squared units of the rows.
    """

    weights: Array
    means: Array
    covariances: Array
    covariance_type: str
    log_likelihood: float
    n_iterations: int
    converged: bool
    start: int
    start_likelihoods: Array
    score: float
    rounding: Array
    smallest: Array


@dataclass
class _Run:
    """Iterations from one start."""

    components: Components
    start: int
    log_likelihood: float = -np.inf
    n_iterations: int = 0
    converged: bool = False
    n_reseeded: int = 0


def _best(runs: list[_Run], n_runs: int) -> list[_Run]:
    """Runs of the largest likelihoods, the best one first."""
    return sorted(runs, key=lambda run: -run.log_likelihood)[:n_runs]


def _distinct(runs: list[_Run]) -> list[_Run]:
    """Runs that have not reached the likelihood of a run before them, the best one first."""
    kept: list[_Run] = []
    for run in _best(runs, len(runs)):
        if all(abs(run.log_likelihood - each.log_likelihood) > _MIN_GAIN for each in kept):
            kept.append(run)
    return kept


def rounding_step(values: Array) -> float | None:
    """Step that values are rounded to, of which all their differences are multiples.

    Parameters
    ----------
    values
        Values of one feature, shape (n,).

    Returns
    -------
    step
        None if more than half of the values are distinct, or differences are not multiples.

    Examples
    --------
    >>> rounding_step(np.array([0.5, 1.0, 1.0, 1.0, 2.5, 2.5]))
    0.5
    """
    distinct = np.unique(values)
    steps = np.diff(distinct)
    if not len(steps) or 2 * len(distinct) > len(values):
        return None
    positions = (distinct - distinct[0]) / steps.min()
    return float(steps.min()) if np.abs(positions - positions.round()).max() < _ON_GRID else None


def rounding_variances(rows: Array, variances: Array) -> Array:
    """Variances of rounding of the features in which no component has a single value.

    Parameters
    ----------
    rows
        Rows, shape (n, n_features).
    variances
        Variances of the components of a mixture, shape (n_components, n_features).

    Returns
    -------
    rounding
        Variances, shape (n_features,); zero also where values are not rounded, or hardly.

    Examples
    --------
    >>> rows = np.repeat([[0.0], [0.5], [1.0]], 10, axis=0)
    >>> rounding_variances(rows, np.array([[0.2]])).round(2).tolist()
    [0.04]
    """
    steps = [rounding_step(column) or 0.0 for column in rows.T]
    rounding = np.asarray(np.square(steps) / (2.0 * np.pi))
    rounding[rounding < MIN_VARIANCE * rows.var(axis=0)] = 0.0
    rounding[(variances < rounding).any(axis=0)] = 0.0
    return rounding


class _Rows:
    """Rows in standard units, with their weights, and iterations on them."""

    def __init__(
        self, rows: Array, weights: Array, family: Covariances, prior: float = 0.0
    ) -> None:
        self.prior = prior
        self.center = weights @ rows
        variance = weights @ (rows - self.center) ** 2
        smallest, middle = smallest_variances(rows, variance)
        is_far = smallest < MIN_VARIANCE * variance
        varies = np.ptp(rows, axis=0) > 0
        if family.isotropic or not varies.any():
            mean = float(variance.mean())
            variance = np.full(len(variance), mean if mean > 0 else 1.0)
        else:
            variance = np.where(varies, variance, variance[varies].mean())
        self.fraction: float | Array = 1.0  # smallest variance, over that of most data
        if is_far.any():
            self.fraction = np.where(is_far, smallest / (MIN_VARIANCE * variance), 1.0)
            if family.isotropic:
                self.fraction = float(smallest.mean() / (MIN_VARIANCE * variance[0]))
            # a center that keeps the digits of most rows
            self.center = np.where(is_far, middle, self.center)
        self.scale = np.sqrt(variance)
        self.rows = (rows - self.center) / self.scale
        self.weights = weights
        self.family = family
        self.rounding: Array = np.zeros(rows.shape[1])

    def allow_for_rounding(self, run: _Run) -> None:
        """Compare likelihoods with variances of rounding, but where EM fits single values.

        A component of one value that many rows share has no bound of its likelihood. With the
        variance ``step**2 / (2 pi)`` added, its density is the share of the value over the step,
        which is the density of the rounded data.

        Parameters
        ----------
        run
            Run from a common start. The features in which it has components of single values keep
            their likelihood: a fit without such components would be less likely.
        """
        shape = run.components.means.shape
        variances = self.family.variances(run.components.covariances, *shape)
        self.rounding = rounding_variances(self.rows, variances)

    def score(self, run: _Run) -> float:
        """Mean log-likelihood, with the variances of rounding added."""
        if not self.rounding.any():
            return run.log_likelihood
        parts = run.components
        covariances = self.family.plus_variances(parts.covariances, self.rounding)
        smooth = Components(parts.weights, parts.means, covariances)
        return float(self.weights @ self.family.log_density(smooth, self.rows))

    def inward(self, weights: Array, means: Array, covariances: Array) -> Components:
        """Components in standard units."""
        means = (means - self.center) / self.scale
        return Components(weights, means, self.family.rescaled(covariances, 1.0 / self.scale))

    def iterate(self, run: _Run, n_iterations: int, tolerance: float, floor: float | Array) -> None:
        """Iterate until the gain is below the tolerance; re-seed degenerate components."""
        for _ in range(n_iterations):
            moments = self.family.expectation(run.components, self.rows, self.weights)
            gain = moments.log_likelihood - run.log_likelihood
            run.log_likelihood = moments.log_likelihood
            few = np.flatnonzero(moments.counts**2 < _MIN_ROWS * moments.squared_counts)
            reseeded = len(few) > 0 and run.n_reseeded < _MAX_RESEEDED * len(moments.counts)
            if not reseeded and abs(gain) < tolerance:
                run.converged = True
                return
            # a prior makes matrices definite, without the eigenvalues that a floor needs
            smallest = 0.0 if self.prior > 0.0 and self.family.name == "full" else floor
            run.components = self.family.maximization(moments, run.components, smallest)
            if self.prior > 0.0:
                rows_of = moments.counts**2 / np.maximum(moments.squared_counts, _TINY)
                run.components = self.family.shrunk(run.components, rows_of, self.prior)
            run.n_iterations += 1
            if reseeded:
                self._reseed(run, few)
                run.log_likelihood = -np.inf
            elif len(few):
                run.components = self.family.widened(run.components, few)
        if run.log_likelihood == -np.inf and run.n_iterations:  # re-seeded in the last iteration
            moments = self.family.expectation(run.components, self.rows, self.weights)
            run.log_likelihood = moments.log_likelihood

    def relocate(
        self,
        run: _Run,
        n_moves: int,
        n_iterations: int,
        tolerance: float,
        floor: float | Array,
    ) -> None:
        """Remove one component and split another, as long as the likelihood grows.

        With fewer moves than components, several are made together, and those that gain much are
        not counted: of many small clusters far apart, most may share one component at first.
        """
        k = len(run.components.weights)
        if k < 2:
            return
        splits = self.family.splits
        together, n_large = (_MIN_GAIN, k) if n_moves < k and splits else (None, 0)
        is_large = False
        while n_moves > 0:
            given = self.family, run.components, self.rows, self.weights
            moves = relocations(*given, floor, together) if splits else tied_relocations(*given)
            before = self.score(run)
            enough = before + _MIN_GAIN
            for moved in islice(moves, min(_MAX_FAILED, n_moves)):
                n_moves -= 1
                trial = _Run(moved, run.start)
                self.iterate(trial, _TRIAL, tolerance, floor)
                if self.score(trial) > enough:
                    break
            else:
                break
            is_large = n_large > 0 and self.score(trial) > before + _LARGE_GAIN
            if is_large:
                n_moves, n_large = n_moves + 1, n_large - 1
            else:
                self.iterate(trial, n_iterations, tolerance, floor)
            if self.rounding.any() and self.score(trial) < enough:
                break
            run.components, run.converged = trial.components, trial.converged
            run.log_likelihood = trial.log_likelihood
            run.n_iterations += trial.n_iterations
        if is_large and not run.converged:
            self.iterate(run, n_iterations, tolerance, floor)

    def _reseed(self, run: _Run, degenerate: NDArray[np.intp]) -> None:
        """Move components to rows whose likelihood is poorest, with the pooled covariance."""
        density = self.family.log_density(run.components, self.rows)
        n = max(len(self.rows) // 50, len(degenerate))
        poorest = np.argsort(density, kind="stable")[:n]
        # deterministic: evenly spaced among the poorest two per cent, since the very poorest are
        # single outliers
        picked = poorest[np.linspace(0, n - 1, len(degenerate) + 2).astype(int)[1:-1]]
        run.components = self.family.replaced(run.components, degenerate, self.rows[picked])
        run.n_reseeded += len(degenerate)


def fit_mixture(
    rows: ArrayLike,
    weights: ArrayLike | None,
    n_components: int,
    *,
    starts: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]] = (),
    n_starts: int | None = None,
    merged: bool | None = None,
    seed: int = 0,
    covariance_type: str = "diag",
    regularization: float = MIN_VARIANCE,
    tolerance: float = 1e-5,
    n_iterations: int = 500,
    n_moves: int | None = None,
    prior: float = 0.0,
    rounding: Array | None = None,
) -> FittedMixture:
    """Fit a mixture to weighted rows by expectation-maximisation.

    A few iterations are made from every start, and the best three are continued to convergence. The
    starts are those given, k-means, and a mixture of twice as many components, merged in pairs of
    the least loss of likelihood (Runnalls 2007), since clusters that share components have many
    local maxima. Then components move: one is removed and another one split, as long as the
    likelihood grows (:func:`~dask_sketch.models.relocation.relocations`), which takes the
    solution out of poor local maxima. Rows are standardised, so that the result does not depend on
    their units. Components that hold fewer than three effective rows are moved to where the
    likelihood is poorest, and if they lose their rows again, they get the mean covariances of all
    components: their likelihood would have no bound.

    Parameters
    ----------
    rows
        Finite rows, shape (n_rows, n_features).
    weights
        Weights of the rows, shape (n_rows,), not negative; equal if None.
    n_components
        Number of components of the starts from k-means.
    starts
        Other starts: weights (n_components,), means and variances (n_components, n_features), or
        covariances of the shape of the type (except of ``"low-rank:r"``), or covariance matrices
        (n_components, n_features, n_features).
    n_starts
        Number of starts from k-means; by default 4, or fewer for many components and rows.
    merged
        Whether the mixture of twice as many components is a start; by default, if there are starts
        from k-means. It needs twenty rows for each component.
    seed
        Seed of the starts, ``>= 0``.
    covariance_type
        ``"diag"``, ``"spherical"``, ``"tied"`` or ``"full"``, as in scikit-learn; or
        ``"low-rank:r"``, factor analysers of ``r`` factors.
    regularization
        Smallest variance, as a fraction of the variance of the rows, or less where a few rows are
        far out (:func:`~dask_sketch.models.smallest_variance.smallest_variances`); for ``"full"``
        and ``"tied"``, the smallest eigenvalue of the covariances of standardised rows; for
        ``"low-rank:r"``, the smallest noise variance.
    tolerance
        Gain of an iteration below which iterations end, in nats.
    n_iterations
        Largest number of iterations of each start.
    n_moves
        Largest number of moves of components that are tried; by default 40, or fewer for many
        components and rows.
    prior
        Number of rows ``>= 0`` that a prior of the covariances counts as, for few rows: each
        M-step gives the mean of the covariances and of spheres that fill the space of the rows
        (Fraley and Raftery 2007, Bayesian regularization for normal mixture estimation). Not for
        ``"low-rank:r"``.
    rounding
        Variances of rounding, shape (n_features,), in squared units of the rows; by default those
        of the values of each feature in which EM from the common starts fits no single values.

    Returns
    -------
    mixture
        Mixture of largest mean weighted log-likelihood, with the variances of rounding added.

    Raises
    ------
    InputError
        If a shape or value is invalid, or there is no start.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = np.concatenate([rng.normal(-3.0, 1.0, (1000, 1)), rng.normal(3.0, 0.5, (1000, 1))])
    >>> fit_mixture(rows, None, 2).means.round(1).ravel().tolist()
    [-3.0, 3.0]
    """
    values, masses = checked_rows(rows, weights)
    family = covariances_of(covariance_type)
    require_rank(covariance_type, values.shape[1])
    require_components(n_components, len(values))
    work = n_components * len(values)
    if n_starts is None:
        n_starts = min(max(round(_START_WORK / work), 1), 4)
    if n_moves is None:
        n_moves = min(max(round(_MOVE_WORK / work), 2), 40)
    enough = family.splits and 2 * n_components * _MIN_CLUSTER <= len(values)
    merged = enough and (n_starts > 0 if merged is None else merged)
    if not starts and n_starts < 1 and not merged:
        raise InputError(f"n_starts={n_starts!r}: give at least one, or starts.")
    with one_thread():
        data = _Rows(values, masses, family, prior)
        floor = regularization * data.fraction
        runs = [_Run(data.inward(*_given(start, family)), k) for k, start in enumerate(starts)]
        runs += [
            _Run(_kmeans_start(data, n_components, seed_of), len(starts) + k)
            for k, seed_of in enumerate(np.random.SeedSequence(seed).spawn(n_starts))
        ]
        if merged:
            finer = _Run(_kmeans_start(data, 2 * n_components, np.random.SeedSequence(seed)), -1)
            data.iterate(finer, _MERGED, tolerance, floor)
            runs.append(_Run(agglomerate(family, finer.components, n_components), len(runs)))
        for run in runs:
            data.iterate(run, min(_FIRST, n_iterations), tolerance, floor)
        continued = _best(runs, _CONTINUED)
        for run in continued:
            data.iterate(run, n_iterations - run.n_iterations, tolerance, floor)
        if rounding is None:
            common = [run for run in continued if run.start < len(starts) + n_starts]
            data.allow_for_rounding(_best(common or continued, 1)[0])
        else:
            data.rounding = rounding / data.scale**2
        for run in _distinct(continued):
            data.relocate(run, n_moves, n_iterations, tolerance, floor)
        best = max(continued, key=data.score)
    shift = float(np.log(data.scale).sum())
    order = np.argsort(-best.components.weights, kind="stable")
    covariances = family.rescaled(best.components.covariances, data.scale)
    return FittedMixture(
        best.components.weights[order],
        data.center + data.scale * best.components.means[order],
        covariances if covariance_type == "tied" else covariances[order],
        covariance_type,
        best.log_likelihood - shift,
        best.n_iterations,
        best.converged,
        best.start,
        np.array([run.log_likelihood - shift for run in runs]),
        data.score(best) - shift,
        data.rounding * data.scale**2,
        np.asarray(floor * data.scale**2),
    )


def choose_prior(
    rows: Array, weights: Array, n_components: int, covariance_type: str, priors: Sequence[float]
) -> tuple[float, float]:
    """Choose the prior under which rows that are left out of the fit are the likeliest.

    Each of four parts of the rows is left out once. Repeated values stay apart or together by
    chance, as they would in other rows of the data. A prior is dropped as soon as it would stay
    behind the best one even if the other rows left out were as likely as the rows of the fit. No
    components move, which would take several times as long; but as values that many rows share are
    often found by moves, another prior than the first must then be better with them, too.

    Parameters
    ----------
    rows
        Finite rows in a random order, shape (n_rows, n_features), at least two for each component.
    weights
        Positive weights of the rows, shape (n_rows,).
    n_components, covariance_type
        Arguments of :func:`fit_mixture`.
    priors
        Values of its argument ``prior``, increasing.

    Returns
    -------
    prior
        One of ``priors``.
    optimism
        Mean log-likelihood of the rows of such fits, less that of the rows left out, in nats.
    """
    folds = _Folds(rows, weights / weights.sum(), n_components, covariance_type)
    found = _left_out(folds, priors, 0)
    best = max(found, key=lambda prior: found[prior][0])
    if best != priors[0] and folds.n_moves > 0:
        moved = _left_out(folds, (priors[0], best), folds.n_moves)
        best = max(moved, key=lambda prior: moved[prior][0])
        found = moved | found
    other, own = found[best]
    return best, own - other


class _Folds:
    """Parts of the rows, each of which is left out once."""

    def __init__(self, rows: Array, weights: Array, n_components: int, covariance_type: str):
        self.family, self.covariance_type = covariances_of(covariance_type), covariance_type
        self.data, self.n_components = _Rows(rows, weights, self.family), n_components
        work = len(rows) * self.family.n_parameters(n_components, rows.shape[1])
        self.n_moves = min(int(_FOLD_WORK / work), _FOLD_MOVES)

    def likelihoods(self, part: int, prior: float, n_moves: int) -> tuple[float, float, float]:
        """Mean log-likelihoods of a part and of the rows of the fit without it; its weight."""
        rows, weights = self.data.rows, self.data.weights
        other = np.arange(len(rows)) % _N_FOLDS == part
        found = fit_mixture(
            rows[~other], weights[~other], self.n_components, n_starts=1, n_moves=n_moves,
            covariance_type=self.covariance_type, prior=prior, tolerance=_FOLD_TOLERANCE,
        )  # fmt: skip
        mixture = Components(found.weights, found.means, found.covariances)
        mass = float(weights[other].sum())
        density = self.family.log_density(mixture, rows[other])
        return float(weights[other] @ density) / mass, found.log_likelihood, mass


def _left_out(
    folds: _Folds, priors: Sequence[float], n_moves: int
) -> dict[float, tuple[float, float]]:
    """Mean log-likelihoods of rows left out and of rows of the fits, for priors that may win."""
    sums, bounds, seen = dict.fromkeys(priors, (0.0, 0.0)), dict.fromkeys(priors, 0.0), 0.0
    for part in range(_N_FOLDS):
        for prior, (others, own) in sums.items():
            other, fitted, mass = folds.likelihoods(part, prior, n_moves)
            sums[prior] = others + mass * other, own + mass * fitted
            bounds[prior] = sums[prior][0] + (1.0 - seen - mass) * fitted
        seen += mass
        best = max(sums, key=lambda prior: sums[prior][0])
        sums = {
            prior: total
            for prior, total in sums.items()
            if prior == best or bounds[prior] > sums[best][0] / seen
        }
    return sums


def checked_rows(rows: ArrayLike, weights: ArrayLike | None) -> tuple[Array, Array]:
    """Rows as float64, and weights that sum to one.

    Parameters
    ----------
    rows
        Rows, shape (n_rows, n_features).
    weights
        Weights, shape (n_rows,); equal if None.

    Raises
    ------
    InputError
        If a shape or value is invalid.
    """
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise InputError(f"rows has shape {values.shape}: give (n_rows, n_features).")
    if not np.isfinite(values).all():
        raise InputError("rows holds values that are not finite: leave those rows out.")
    masses = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    if masses.shape != values.shape[:1]:
        raise InputError(
            f"weights has shape {masses.shape}: give ({len(values)},), one for each row."
        )
    if not (np.isfinite(masses).all() and (masses >= 0).all() and masses.sum() > 0):
        raise InputError(
            f"weights must be finite, not negative and not all zero: smallest {masses.min():g}, "
            f"sum {masses.sum():g}."
        )
    seen = masses > 0
    return values[seen], masses[seen] / masses.sum()


def _given(
    start: tuple[ArrayLike, ArrayLike, ArrayLike], family: Covariances
) -> tuple[Array, Array, Array]:
    """Weights, means and covariances of a start; variances are converted to the type."""
    weights, means, shapes = (np.array(part, dtype=np.float64) for part in start)
    if shapes.ndim == 3:
        shapes = family.from_matrices(weights / weights.sum(), shapes)
    elif shapes.shape == means.shape and family.name != "diag":
        shapes = family.from_variances(weights / weights.sum(), shapes)
    return weights / weights.sum(), means, shapes


def _kmeans_start(data: _Rows, n_components: int, seed: np.random.SeedSequence) -> Components:
    """Weights, means and variances of the clusters of k-means."""
    # imported here because the import takes a second, and few callers need it
    from sklearn.cluster import KMeans

    rows, weights = data.rows, data.weights
    state = int(seed.generate_state(1)[0])
    found = KMeans(n_components, n_init=1, max_iter=_KMEANS_ITERATIONS, random_state=state)
    found.fit(rows, sample_weight=weights * len(rows))
    return data.family.from_labels(rows, weights, found.labels_, n_components)


def fit_centroids(
    rows: ArrayLike,
    weights: ArrayLike | None,
    n_components: int,
    *,
    starts: Sequence[ArrayLike] = (),
    n_starts: int = 10,
    seed: int = 0,
) -> Clusters:
    """Fit centroids to weighted rows by k-means.

    From the best of all starts, two centroids are merged and one is placed at a far row, and then
    one at a time is moved to split the cluster of another, as long as the error falls.

    Parameters
    ----------
    rows
        Finite rows, shape (n_rows, n_features).
    weights
        Weights of the rows, shape (n_rows,), not negative; equal if None.
    n_components
        Number of centroids of the starts by k-means++.
    starts
        Other starts: centroids, shape (n_components, n_features).
    n_starts
        Number of starts by k-means++ (Arthur and Vassilvitskii 2007).
    seed
        Seed of the starts, ``>= 0``.

    Returns
    -------
    clusters
        Centroids of the smallest mean squared distance.

    Raises
    ------
    InputError
        If a shape or value is invalid, or there is no start.

    Examples
    --------
    >>> points = [[0.0], [1.0], [10.0], [12.0]]
    >>> sorted(fit_centroids(points, [1, 3, 1, 1], 2).centers.ravel().tolist())
    [0.75, 11.0]
    """
    values, masses = checked_rows(rows, weights)
    require_components(n_components, len(values))
    if not starts and n_starts < 1:
        raise InputError(f"n_starts={n_starts!r}: give at least one, or starts.")
    # imported here because the import takes a second, and few callers need it
    from sklearn.cluster import KMeans

    scaled = masses * len(values)
    with one_thread():
        state = int(np.random.SeedSequence(seed).generate_state(1)[0])
        estimators = [KMeans(len(start), init=start, n_init=1) for start in map(np.asarray, starts)]
        if n_starts:
            estimators.append(KMeans(n_components, n_init=n_starts, random_state=state))
        for each in estimators:
            each.fit(values, sample_weight=scaled)
        best = min(estimators, key=lambda each: float(each.inertia_))
        if len(best.cluster_centers_) > 1:
            centers = merge_and_reseed(values, scaled, best.cluster_centers_, seed)
            trial = KMeans(len(centers), init=centers, n_init=1).fit(values, sample_weight=scaled)
            best = min(best, trial, key=lambda each: float(each.inertia_))
        n_moves = min(max(round(_MOVE_WORK / (n_components * len(values))), 2), 40)
        while n_moves > 0 and len(best.cluster_centers_) > 1:
            moves = centroid_relocations(values, scaled, best.cluster_centers_, best.labels_)
            for centers in islice(moves, min(_MAX_FAILED, n_moves)):
                n_moves -= 1
                trial = KMeans(len(centers), init=centers, n_init=1)
                trial.fit(values, sample_weight=scaled)
                if trial.inertia_ < best.inertia_ * (1.0 - _MIN_GAIN):
                    best = trial
                    break
            else:
                break
    mass: Array = np.zeros(len(best.cluster_centers_))
    np.add.at(mass, best.labels_, masses)
    return Clusters(best.cluster_centers_, mass, float(best.inertia_) / len(values))


def require_components(n_components: int, n_rows: int) -> None:
    """Raise unless there are as many rows as components.

    Parameters
    ----------
    n_components, n_rows
        Numbers of components and of rows of positive weight.

    Raises
    ------
    InputError
        If there are fewer rows, or no component.
    """
    if not 1 <= n_components <= n_rows:
        raise InputError(f"n_components={n_components!r}: there are {n_rows} rows; give 1 to that.")
