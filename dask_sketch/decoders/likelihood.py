"""Maximum likelihood on the calibrated rows of a sketch, beside the fit to the sketch.

Real data is not a mixture of a few Gaussians, and the mixture that is nearest in the distance of
the sketch is not the likeliest one. Expectation-maximisation on the calibrated rows is as good
there as on all rows. If the data is such a mixture, on the other hand, the sketch of all rows
determines it better than a sample can. Both are fitted, each is a start of the other, and the
likelihood of the calibrated rows decides. Where no rows are kept, the mixture that was fitted to
the pilot rows of the feature map takes their place, unless noise explains the cost of the fit to
the sketch. For the sketch of other data, such as a group, rows that are simulated from it are
calibrated to the sketch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dask_sketch.decoders.calibrated_sample import (
    CalibratedSample,
    calibrate,
    calibrate_rows,
    equally_weighted,
)
from dask_sketch.decoders.checks.expected_loss import gain_by_chance, sampling_losses
from dask_sketch.decoders.checks.few_pilot_rows import warn_of_few_pilot_rows
from dask_sketch.decoders.checks.misfit import (
    WARNED_NATS,
    is_explained,
    mean_log_likelihood,
)
from dask_sketch.decoders.checks.unusual_rows import counted_rows
from dask_sketch.decoders.descent import Fit, descend_fully
from dask_sketch.decoders.greedy import search_of_size
from dask_sketch.decoders.matrix_search import conclude_matrices, fit_matrices
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.problem import Problem, Report, Solution
from dask_sketch.decoders.rare_components import keep_rare_components
from dask_sketch.decoders.search import conclude_search, search_atoms
from dask_sketch.decoders.starts import (
    Start,
    complete_pilot_rows,
    nearby_mixture,
    pilot_mixture,
    pilot_start,
)
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.low_rank import covariances_of
from dask_sketch.models.model import LIKELIEST, REGULARIZED
from dask_sketch.models.smallest_variance import MIN_VARIANCE
from dask_sketch.models.weighted_em import (
    FittedMixture,
    choose_prior,
    fit_mixture,
)
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.choices import MAX_SOLVABLE, rank_of, uses_matrices
from dask_sketch.validation.threads import Threads
from dask_sketch.validation.warn import collect_warnings, issue_warnings, warn_user

_MIN_EFFECTIVE = 1000.0  # effective rows, below which calibrated rows say nothing of the data
_SIMULATED = 20_000  # rows simulated from the mixture of the pilot, where there is no sample
_NEAR = 2.0  # noise levels up to which the descent from EM's solution needs no search
# Products of the numbers of parameters and of frequencies up to which there is a search, and a fit
# to the sketch at all: 64 components of 12 features with m = 8000 make 1.3e7, in 5 to 20 CPU
# seconds; 10 components of 64 features with m = 6450 make 8e6.
# A sample of all rows needs neither, except where they take no time.
_MAX_SEARCH, _MAX_COMPLETE, _MAX_DESCENT = 2e7, 4e5, 1e8
_FEW_ROWS = 5.0  # effective rows for each parameter, below which rows are left out to test fits
# Rows, and rows times components, of such tests, which take a few times as long as a fit
_MIN_TESTED, _MAX_TESTED = 4, 5e4
# Rows of the first fit, which has the starts: at least the first, and the second over components
_FIRST_ROWS, _FIRST_WORK = 20_000, 1.28e6
_CLEARLY_MORE = 1.2  # multiple of the effective rows of the sample from which pilot rows are more
_PRIOR = 1.0  # rows that a weak prior of the covariances counts as
_LARGEST_NATS = 100.0  # largest loss that a warning states
_WARNED_OPTIMISM = 0.2  # excess of the likelihood of the rows of a fit over others, in nats


@dataclass(frozen=True)
class LikelihoodCandidates:
    """Result of one replicate.

    Attributes
    ----------
    fit
        Fit to the sketch; None where it would take too long.
    likeliest
        Weights, means and variances, or covariance matrices, of greatest likelihood.
    score
        Mean log-likelihood of the calibrated rows under them, in nats.
    converged
        Whether the iterations of EM converged.
    calibrated
        Calibrated rows.
    factors
        Noise variances and loadings of the matrices, for types that have them.
    optimism
        Log-likelihood of the rows of such fits above that of rows left out, where there are few.
    prior
        Rows that a prior of the covariances counts as.
    of_pilot
        Whether the components are those of the pilot, which has more rows than the sample.
    """

    fit: Fit | None
    likeliest: tuple[Array, Array, Array]
    score: float
    converged: bool
    calibrated: CalibratedSample
    factors: Array | None = None
    optimism: float | None = None
    prior: float = 0.0
    of_pilot: bool = False

    @property
    def cost(self) -> float:
        """Cost of the fit to the sketch; infinite if there is none."""
        return np.inf if self.fit is None else self.fit.cost


def fit_replicate(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> LikelihoodCandidates:
    """Fits of one replicate; a row of :data:`dask_sketch.decoders.methods.TABLE`."""
    seed = int(rng.integers(2**31))
    calibrated = _rows_of(problem.sketch, seed)
    pilot = pilot_start(problem.sketch, problem.required_size, seed)
    if problem.sketch.sample is not None:
        return _fit_with_rows(problem, calibrated, pilot, seed, rng, report, threads)
    assert pilot is not None  # the arguments were checked
    return _fit_without_rows(problem, calibrated, pilot, rng, report, threads)


def _fit_without_rows(
    problem: Problem,
    calibrated: CalibratedSample,
    pilot: Start,
    rng: np.random.Generator,
    report: Report,
    threads: Threads,
) -> LikelihoodCandidates:
    """Fit to the sketch, beside the mixture of the pilot, from which the rows are simulated."""
    sketch, k = problem.sketch, problem.required_size
    if k == 1 and _has_moments(problem):
        gaussian = np.ones(1), sketch.mean[None], sketch.variance[None]
        # score of all rows
        score = -0.5 * float((np.log(2.0 * np.pi * sketch.variance) + 1.0).sum())
        return LikelihoodCandidates(None, gaussian, score, True, calibrated)
    rows, masses = np.asarray(calibrated.rows, dtype=np.float64), calibrated.weights
    likeliest = pilot.weights, pilot.means, pilot.variances
    is_same_data = pilot_mixture(sketch) is not None
    score = mean_log_likelihood(rows, masses, likeliest) if is_same_data else -np.inf
    if is_calibrated(calibrated):  # else the rows show no more than their mixture
        fitted = fit_mixture(rows, masses, k, starts=[likeliest], n_starts=0, n_moves=0)
        likeliest, score = mixture_of(fitted), fitted.log_likelihood
    start, record = Start(*likeliest), sketch.feature_map.pilot
    fit = _fit_to_sketch(problem, start, rng, report, threads)
    if is_same_data and fit is not None and problem.refine is None and len(fit.weights) == k:
        assert record is not None
        fit = keep_rare_components(problem.objective(threads), fit, start, record.n_rows)
    return LikelihoodCandidates(fit, likeliest, score, True, calibrated)


def _fit_with_rows(
    problem: Problem,
    calibrated: CalibratedSample,
    pilot: Start | None,
    seed: int,
    rng: np.random.Generator,
    report: Report,
    threads: Threads,
) -> LikelihoodCandidates:
    """Fits to the sketch and to its calibrated rows, of which each is a start of the other."""
    kind = "spherical" if problem.model == "isotropic" else problem.covariance_type
    starts = [] if pilot is None else [(pilot.weights, pilot.means, pilot.variances)]
    prior, optimism = _tested_prior(problem, calibrated, kind)
    fitted = _fit_rows(problem, calibrated, starts, seed, kind, prior)
    likeliest = mixture_of(fitted)
    if prior > 0.0:  # a fit to the sketch of few rows has no prior
        score, converged = fitted.log_likelihood, fitted.converged
        return LikelihoodCandidates(
            None, likeliest, score, converged, calibrated, optimism=optimism, prior=prior
        )
    fit = _fit_to_sketch(problem, Start(*likeliest), rng, report, threads)
    if fit is not None and fit.weights.sum() > 0 and len(fit.weights) == problem.required_size:
        fitted = _likelier_near(problem, fit, calibrated, fitted, threads)
        likeliest = mixture_of(fitted)
    if pilot is not None and kind == "diag" and _pilot_is_better(problem, calibrated, fitted):
        rows, masses = np.asarray(calibrated.rows, dtype=np.float64), calibrated.weights
        likeliest = pilot.weights, pilot.means, pilot.variances
        score = mean_log_likelihood(rows, masses, likeliest)
        return LikelihoodCandidates(fit, likeliest, score, True, calibrated, of_pilot=True)
    factors = fitted.covariances if rank_of(kind) is not None else None
    score, converged = fitted.log_likelihood, fitted.converged
    return LikelihoodCandidates(fit, likeliest, score, converged, calibrated, factors, optimism)


def _likelier_near(
    problem: Problem,
    fit: Fit,
    calibrated: CalibratedSample,
    fitted: FittedMixture,
    threads: Threads,
) -> FittedMixture:
    """Mixture of greater likelihood that EM finds from the fit to the sketch, or the given one.

    The fit to the sketch may lie in the basin of a better maximum of the likelihood.
    """
    space = problem.objective(threads).space
    means, shapes = space.to_data_units(fit.theta)
    if problem.has_matrices:
        shapes = space.matrices(fit.theta)
    near = fit_mixture(
        np.asarray(calibrated.rows, dtype=np.float64),
        calibrated.weights,
        problem.required_size,
        starts=[(fit.weights / fit.weights.sum(), means, shapes)],
        n_starts=0,
        covariance_type=fitted.covariance_type,
        rounding=fitted.rounding,
    )
    return near if near.score > fitted.score else fitted


def _fit_rows(
    problem: Problem,
    calibrated: CalibratedSample,
    mixtures: list[tuple[Array, Array, Array]],
    seed: int,
    covariance_type: str,
    prior: float,
) -> FittedMixture:
    """Maximum likelihood on the calibrated rows; of many rows, from that on some of them."""
    k, sample = problem.required_size, problem.sketch.sample
    assert sample is not None  # else there are no calibrated rows
    fit = partial(fit_mixture, seed=seed, covariance_type=covariance_type, prior=prior)
    rows = np.asarray(calibrated.rows, dtype=np.float64)
    n_first = _FIRST_ROWS if uses_matrices(covariance_type) else int(_FIRST_WORK / k)
    n_first = max(n_first, _FIRST_ROWS)
    if len(rows) <= n_first:
        return fit(rows, calibrated.weights, k, starts=mixtures)
    some = sample.resized(n_first)
    first = fit(some.rows, some.weights, k, starts=mixtures)
    starts = [mixture_of(first), *mixtures]
    rounding = first.rounding
    return fit(rows, calibrated.weights, k, starts=starts, n_starts=0, rounding=rounding)


def _pilot_is_better(problem: Problem, calibrated: CalibratedSample, fitted: FittedMixture) -> bool:
    """Whether the pilot, of more rows than the sample, has the likelier mixture for other rows.

    Maximum likelihood on few rows is too likely there by as much as it loses on other rows.
    """
    record, same = problem.sketch.feature_map.pilot, pilot_mixture(problem.sketch)
    n_rows = calibrated.effective_count
    if record is None or same is None or problem.sketch.holds_all_rows:
        return False
    # pilot rows are drawn by their weights
    if min(record.n_rows, problem.sketch.effective_count) < _CLEARLY_MORE * n_rows:
        return False
    if len(same.weights) != len(fitted.weights) or fitted.rounding.any():
        return False
    d = problem.n_features
    optimism = len(fitted.weights) * (2 * d + 1) / (2.0 * n_rows)
    loss = float(sampling_losses(fitted.weights, d, round(n_rows)).sum())
    rows, masses = np.asarray(calibrated.rows, dtype=np.float64), calibrated.weights
    score = mean_log_likelihood(rows, masses, (same.weights, same.means, same.variances))
    return score > fitted.log_likelihood - optimism - loss


def _has_moments(problem: Problem) -> bool:
    """Whether one component is known exactly, as the mean and variances of all rows are."""
    sketch = problem.sketch
    varies = (sketch.variance > MIN_VARIANCE * sketch.feature_map.mean_variances).all()
    known = sketch.privacy is None and sketch.missing is None and bool(varies)
    return known and problem.refine is None


def _tested_prior(
    problem: Problem, calibrated: CalibratedSample, covariance_type: str
) -> tuple[float, float | None]:
    """Prior of the covariances, and the loss of rows left out, where there are few rows.

    Maximum likelihood on few rows fits them too closely, though values that many rows share need a
    close fit: rows that are left out decide. A sketch of more rows than its sample shows more.
    """
    k, n_rows = problem.required_size, len(calibrated.rows)
    n_parameters = k * problem.count_parameters()
    if (
        problem.refine is not None
        or rank_of(covariance_type) is not None
        or not problem.sketch.holds_all_rows
        or not max(2 * k, _MIN_TESTED) <= n_rows <= _MAX_TESTED / k
        or calibrated.effective_count >= _FEW_ROWS * n_parameters
    ):
        return 0.0, None
    rows = np.asarray(calibrated.rows, dtype=np.float64)
    priors = 0.0, _PRIOR, problem.n_features + 2.0  # the last of Fraley and Raftery (2007)
    seen = calibrated.weights > 0.0
    return choose_prior(rows[seen], calibrated.weights[seen], k, covariance_type, priors)


def _rows_of(sketch: Sketch, seed: int) -> CalibratedSample:
    """Calibrated rows of the sample; without one, rows simulated from the mixture of the pilot.

    If the sketch is of other data than the pilot, such as a group, these are calibrated to it.
    """
    if sketch.sample is not None:
        return calibrate(sketch)
    pilot = nearby_mixture(sketch)
    assert pilot is not None  # the arguments were checked
    mixture = GaussianMixture(pilot.weights, pilot.means, pilot.variances)
    rows = mixture.sample(_SIMULATED, seed=seed)
    equal = equally_weighted(rows)
    if pilot_mixture(sketch) is None:
        return calibrate_rows(rows, equal.weights, sketch, seed=seed)
    return equal


def is_calibrated(sample: CalibratedSample) -> bool:
    """Whether simulated rows agree with the sketch, and enough of them count.

    Parameters
    ----------
    sample
        Simulated rows.
    """
    return bool(np.isfinite(sample.ridge)) and sample.effective_count >= _MIN_EFFECTIVE


def _fit_to_sketch(
    problem: Problem, start: Start, rng: np.random.Generator, report: Report, threads: Threads
) -> Fit | None:
    """Descent from the likeliest components, and a search where it does not explain the sketch."""
    k = problem.required_size
    effort = k * problem.count_parameters() * problem.n_frequencies
    # the likelihood may be of all rows: then the fit is one start among others
    complete = problem.sketch.holds_all_rows
    if effort > _MAX_DESCENT or (complete and problem.refine is None and effort > _MAX_COMPLETE):
        return None
    if problem.has_matrices:
        if problem.count_solved() > min(MAX_SOLVABLE, problem.n_frequencies):
            return None
        return fit_matrices(problem, start, report, threads)
    objective = problem.objective(threads)
    fit = descend_fully(objective, objective.space.clip(start.atoms(objective)), start.weights)
    report(fit.cost)
    n_evaluations = objective.n_evaluations
    max_effort = _MAX_COMPLETE if complete else _MAX_SEARCH
    if fit.cost > _NEAR * objective.unit and effort <= max_effort:
        algorithm = search_of_size(k)
        other = search_atoms(problem, rng, report, threads, algorithm=algorithm, from_pilot=False)
        n_evaluations += other.n_evaluations
        fit = min(fit, other, key=lambda each: each.cost)
    return replace(fit, n_evaluations=n_evaluations)


def mixture_of(fitted: FittedMixture) -> tuple[Array, Array, Array]:
    """Weights, means and variances, or covariance matrices of the types that have them.

    Parameters
    ----------
    fitted
        Mixture fitted to rows.
    """
    family = covariances_of(fitted.covariance_type)
    of = family.matrices if uses_matrices(fitted.covariance_type) else family.variances
    return fitted.weights, fitted.means, of(fitted.covariances, *fitted.means.shape)


def conclude(
    problem: Problem, results: list[LikelihoodCandidates], threads: Threads, report: Report
) -> Solution:
    """The likelier of the fit to the sketch and of maximum likelihood, over all replicates.

    With ``p`` parameters and ``r`` effective rows, ``2 r`` times the likelihood of a maximum
    exceeds the likelihood of the truth by ``p`` on average, with a standard deviation of
    ``sqrt(2 p)``, and on other rows it falls short by as much (Akaike 1974). So the fit to the
    sketch of all rows is preferred unless it is less likely by the sum of both and four standard
    deviations; less so the larger the fraction of all rows that the sample holds, unless standard
    errors are asked for.
    """
    calibrated = results[0].calibrated
    best = max(results, key=lambda result: result.score)
    _warn_of_few_rows(problem, best)
    _warn_of_cluster_map(problem)
    fits = [result.fit for result in results if result.fit is not None]
    if not fits:
        return likeliest_solution(problem, best, threads, n_evaluations=0, gain=None)
    with collect_warnings() as collected:  # about a model that may be rejected
        end = conclude_matrices if problem.has_matrices else conclude_search
        nearest = end(problem, fits, threads, report)
    assert nearest.shapes is not None  # all models in the table have shapes
    mixture = nearest.weights, nearest.means, nearest.shapes
    score = mean_log_likelihood(calibrated.rows.astype(np.float64), calibrated.weights, mixture)
    gain = best.score - score
    # simulated rows say less than a sketch that is explained
    simulated = problem.sketch.sample is None
    explained = simulated and is_explained(
        problem.sketch, mixture, nearest.cost, nearest.noise_level, gain
    )
    if not explained and gain > _gain_by_chance(problem, best):
        if problem.refine is not None:
            _warn_of_refinement(problem, best, gain)
        return likeliest_solution(problem, best, threads, nearest.n_evaluations, gain)
    issue_warnings(collected)
    return replace(nearest, score=score, gain=-gain if np.isfinite(gain) else None)


def _gain_by_chance(problem: Problem, best: LikelihoodCandidates) -> float:
    """Gain of maximum likelihood that fitted noise explains, in nats."""
    calibrated = best.calibrated
    n_parameters = problem.required_size * problem.count_parameters() - 1
    by_chance = gain_by_chance(n_parameters)
    if problem.sketch.sample is None or best.of_pilot:
        n_rows, effective = complete_pilot_rows(problem.sketch), problem.sketch.effective_count
        if effective > 0.99 * problem.sketch.count:  # the weights are equal
            return float(by_chance / n_rows)
        # pilot rows are drawn by their weights: few rows of large weight make the noise of both
        return float(by_chance / min(n_rows, effective) + by_chance / effective)
    if problem.refine is None:
        by_chance *= max(1.0 - len(calibrated.rows) / problem.sketch.count, 0.0)
    return float(by_chance / calibrated.effective_count)


def _warn_of_few_rows(problem: Problem, best: LikelihoodCandidates) -> None:
    """Warn of a mixture that is much less likely for other rows than for its own."""
    if best.optimism is None or best.optimism < _WARNED_OPTIMISM:
        return
    k, nats = problem.required_size, best.optimism
    loss = f"{nats:.2g}" if nats < _LARGEST_NATS else f"over {_LARGEST_NATS:g}"
    warn_user(
        f"{counted_rows(problem.sketch)} are few for n_components={k} with "
        f"{k * problem.count_parameters() - 1:,} parameters: rows that were left out of such fits "
        f"are {loss} nats a sample less likely than rows of the fit. "
        "Sketch more rows, or give fewer components, which have fewer parameters."
    )


def _warn_of_cluster_map(problem: Problem) -> None:
    """Warn of a feature map for centroids, whose pilot mixture is a rough one, without rows."""
    pilot = problem.sketch.feature_map.pilot
    if problem.sketch.sample is None and pilot is not None and pilot.clusters is not None:
        warn_user(
            "the feature map was designed with task='clustering', with fewer frequencies and a "
            "rougher mixture of the pilot rows than for mixtures: this one may be several tenths "
            "of a nat a sample less likely than it could be. Design with task='mixture', or keep "
            "random rows."
        )


def _warn_of_few_random_rows(problem: Problem, best: LikelihoodCandidates) -> None:
    """Warn of maximum likelihood on far fewer rows than the sketch is of.

    With ``p`` parameters and ``r`` rows it loses ``p / 2r`` nats a sample (Akaike 1974), and more
    where components have few rows.
    """
    n_parameters = problem.required_size * problem.count_parameters() - 1
    n_rows, n_samples = best.calibrated.effective_count, problem.sketch.effective_count
    if best.of_pilot:
        warn_of_few_pilot_rows(problem.sketch)
        return
    by_rows = [
        float(sampling_losses(best.likeliest[0], problem.n_features, round(n)).sum())
        for n in (n_rows, max(n_samples, n_rows))
    ]
    each = problem.count_parameters() / (2 * problem.n_features + 1)
    loss = each * (by_rows[0] - by_rows[1])
    if problem.sketch.sample is not None and loss > WARNED_NATS:
        warn_user(
            f"{n_rows:,.0f} random rows of {n_samples:,.0f} are few for {n_parameters:,} "
            f"parameters: the mixture is about {loss:.2g} nats a sample below maximum likelihood "
            "on all rows. polish(model, x) takes all rows; or sketch with a larger sample, or "
            "decode fewer components."
        )


def _warn_of_refinement(problem: Problem, best: LikelihoodCandidates, gain: float) -> None:
    warn_user(
        f"refine={problem.refine!r}: {_likeliest_on(problem, best)} is {gain:.2g} nats a sample "
        f"likelier than the refined fit, for the data is not a mixture of {problem.required_size} "
        "Gaussians. It is returned, without standard errors; method='cl-ompr' returns the refined "
        "fit."
    )


def likeliest_solution(
    problem: Problem,
    best: LikelihoodCandidates,
    threads: Threads,
    n_evaluations: int,
    gain: float | None,
) -> Solution:
    """Solution of greatest likelihood.

    Parameters
    ----------
    problem
        Problem that was solved.
    best
        Its candidates of greatest likelihood.
    threads
        Threads that work on blocks of frequencies.
    n_evaluations
        Number of evaluations of correlation or cost.
    gain
        Excess of the score over that of the rejected candidate.
    """
    _warn_of_few_random_rows(problem, best)
    order = np.argsort(-best.likeliest[0], kind="stable")
    weights, means, shapes = (part[order] for part in best.likeliest)
    objective = problem.objective(threads)
    theta = objective.space.from_data_units(means, shapes)
    has_matrices = shapes.ndim == 3
    return Solution(
        weights=weights,
        means=means,
        variances=np.diagonal(shapes, axis1=1, axis2=2) if has_matrices else shapes,
        matrices=shapes if has_matrices else None,
        factors=None if best.factors is None else best.factors[order],
        cost=objective.cost(weights, theta),
        noise_level=objective.noise_level,
        converged=best.converged,
        message=_likeliest_on(problem, best) + (REGULARIZED if best.prior > 0.0 else ""),
        n_evaluations=n_evaluations,
        score=best.score,
        gain=gain,
    )


def _likeliest_on(problem: Problem, best: LikelihoodCandidates) -> str:
    """Maximum likelihood, with the rows that it is of."""
    has_rows = problem.sketch.sample is not None and not best.of_pilot
    if has_rows:
        return f"{LIKELIEST}the calibrated rows"
    if problem.size == 1 and _has_moments(problem):
        return f"{LIKELIEST}all rows, by their mean and variances"
    same = pilot_mixture(problem.sketch) is not None
    calibrated = "" if same else ", calibrated to the sketch"
    return f"{LIKELIEST}the pilot rows of the feature map{calibrated}"
