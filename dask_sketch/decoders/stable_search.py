"""Mixtures of elliptical alpha-stable distributions from a sketch.

The search starts from Gaussian mixtures: of the sketch, of the pilot of its feature map, and of its
random rows without those far away. From each, all parameters descend together, from several tails.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from dask_sketch.decoders.checks.misfit import is_suspect
from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.greedy import search_of_size
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.problem import Problem, Report, Solution
from dask_sketch.decoders.search import search_atoms
from dask_sketch.decoders.starts import pilot_start
from dask_sketch.decoders.transform_fit import (
    Complex,
    Target,
    descend,
    descend_best,
    refine,
    refine_best,
    require_size,
    solution,
    standard_errors,
    warn_of_fit,
)
from dask_sketch.errors import DecodeError
from dask_sketch.models.alpha_stable import MAX_ALPHA, MIN_ALPHA
from dask_sketch.models.weighted_em import fit_mixture
from dask_sketch.validation.threads import Threads
from dask_sketch.validation.warn import warn_user

_ALPHAS = (1.9, 1.4, 0.9)  # values of alpha, one for each start
_TRIMMED = 0.02  # fraction of the rows left out on each side of each feature
_MIN_ROWS = 20  # rows of the sample for each component from which their mixture is a start
_MIN_LOG_SCALE, _MAX_LOG_SCALE = -300.0, 300.0
_LARGE_ALPHA, _LARGE_SCALE = 0.1, 0.25  # standard errors that are warned of
_MARGIN = 1e-3  # distance of alpha from its excluded bound


class StableTransforms:
    """Characteristic functions ``exp(-i w . t - (|w s|**2 / 2)**(alpha / 2))``.

    Parameters of a component are its location ``t``, the logarithms of its scales ``s``, and
    ``alpha``.
    """

    def values(self, theta: Array, frequencies: Array) -> Complex:
        """Values at the frequencies (n_features, m), shape (K, m)."""
        location, squares, alpha = self._parts(theta)
        spread = (squares @ frequencies**2) ** (0.5 * alpha)
        return np.exp(-1j * (location @ frequencies) - spread)

    def derivatives(self, theta: Array, frequencies: Array) -> tuple[Complex, Complex]:
        """Values, and derivatives by all parameters, shape (K, 2 n_features + 1, m)."""
        location, squares, alpha = self._parts(theta)
        half = np.maximum(squares @ frequencies**2, 1e-300)
        spread = half ** (0.5 * alpha)
        values = np.exp(-1j * (location @ frequencies) - spread)
        by_location = -1j * frequencies * values[:, None]
        by_half = -alpha * spread / half * values  # derivative of log scales, per square
        by_scale = by_half[:, None] * (squares[:, :, None] * frequencies**2)
        by_alpha = -0.5 * np.log(half) * spread * values
        return values, np.concatenate([by_location, by_scale, by_alpha[:, None]], axis=1)

    def clip(self, theta: Array) -> Array:
        """Nearest possible parameters."""
        out, d = theta.copy(), theta.shape[1] // 2
        np.clip(out[:, d:-1], _MIN_LOG_SCALE, _MAX_LOG_SCALE, out=out[:, d:-1])
        np.clip(out[:, -1], MIN_ALPHA + _MARGIN, MAX_ALPHA, out=out[:, -1])
        return out

    def _parts(self, theta: Array) -> tuple[Array, Array, Array]:
        """Locations, halves of the squared scales, and a column of alphas."""
        d = theta.shape[1] // 2
        return theta[:, :d], 0.5 * np.exp(2.0 * theta[:, d:-1]), theta[:, -1:]


TRANSFORMS = StableTransforms()


def require_alphas(model: str | None, shared_alpha: bool) -> None:
    """Raise an error if the components of a model have no alpha to share.

    Parameters
    ----------
    model, shared_alpha
        Arguments of :func:`dask_sketch.decode`.

    Raises
    ------
    DecodeError
        If ``shared_alpha`` is given for another model than ``"alpha-stable"``.
    """
    if shared_alpha and model != "alpha-stable":
        raise DecodeError(
            f"shared_alpha={shared_alpha!r} with model={model!r}: only components of "
            "model='alpha-stable' have an alpha. Leave shared_alpha out, or give that model."
        )


def _target(problem: Problem) -> Target:
    """Values of the sketch, relative to the center of its map."""
    center = problem.sketch.feature_map.center
    return Target.of(TRANSFORMS, problem.sketch, center, n_shared=int(problem.shared_alpha))


def fit_replicate(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Fit:
    """Fit of one replicate; a row of :data:`dask_sketch.decoders.methods.TABLE`."""
    target, k = _target(problem), problem.required_size
    center = problem.sketch.feature_map.center
    starts = []
    for weights, means, variances in _gaussians(problem, rng, report, threads):
        scales = 0.5 * np.log(np.maximum(variances, 1e-300))
        for alpha in _ALPHAS:
            shapes = np.column_stack([means - center, scales, np.full(k, alpha)])
            starts.append((weights, shapes))
    return descend_best(target, starts, report)


def fit_from_start(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> Fit:
    """Fit of one replicate from the components of an earlier model."""
    del rng, threads
    require_size(problem)
    start, center = problem.start, problem.sketch.feature_map.center
    assert start is not None and start.parameters is not None  # noqa: PT018
    scales, alphas = (start.parameters[name] for name in ("scales", "alphas"))
    theta = np.column_stack([start.means - center, np.log(scales), alphas])
    return descend_best(_target(problem), [(start.weights, theta)], report)


def _gaussians(
    problem: Problem, rng: np.random.Generator, report: Report, threads: Threads
) -> list[tuple[Array, Array, Array]]:
    """Weights, means and variances of Gaussian mixtures to start from."""
    k, sketch = problem.required_size, problem.sketch
    gaussian = replace(problem, model="gaussian", method="cl-ompr")
    fit = search_atoms(gaussian, rng, report, threads, algorithm=search_of_size(k))
    mixtures = []
    if fit.weights.sum() > 0.0 and len(fit.weights) == k:
        means, variances = gaussian.objective(threads).space.to_data_units(fit.theta)
        mixtures.append((fit.weights, means, variances))
    pilot = pilot_start(sketch, k, problem.seed)
    if pilot is not None:
        mixtures.append((pilot.weights, pilot.means, pilot.variances))
    if sketch.sample is not None and len(sketch.sample) >= _MIN_ROWS * k:
        rows = np.asarray(sketch.sample.rows, dtype=np.float64)
        low, high = np.quantile(rows, [_TRIMMED, 1.0 - _TRIMMED], axis=0)
        inside = ((rows >= low) & (rows <= high)).all(axis=1)
        near = rows[inside]
        if len(near) >= _MIN_ROWS * k and (np.ptp(near, axis=0) > 0.0).all():
            seed = int(rng.integers(2**31))
            weights = sketch.sample.weights[inside]
            mixture = fit_mixture(near, weights / weights.sum(), k, seed=seed)
            mixtures.append((mixture.weights, mixture.means, mixture.covariances))
    if not mixtures:
        mean, variance = sketch.extent
        means = mean + np.sqrt(variance) * rng.standard_normal((k, len(mean)))
        mixtures.append((np.full(k, 1.0 / k), means, np.tile(variance, (k, 1))))
    return mixtures


def _warn_of_errors(problem: Problem, target: Target, fit: Fit) -> None:
    """Warn of parameters that the frequencies hardly determine."""
    errors = standard_errors(target, problem.sketch, fit)
    if errors is None:
        return
    d = problem.n_features
    of_scales, of_alphas = errors[:, d:-1].max(axis=1), errors[:, -1]
    k = int(np.argmax(np.maximum(of_scales / _LARGE_SCALE, of_alphas / _LARGE_ALPHA)))
    if of_scales[k] > _LARGE_SCALE or of_alphas[k] > _LARGE_ALPHA:
        warn_user(
            f"model={problem.model!r}: of a component of weight {fit.weights[k]:.2g}, the standard "
            f"error of alpha is {of_alphas[k]:.2g}, and that of the logarithm of a scale up to "
            f"{of_scales[k]:.2g}: the frequencies hardly determine them. Design the feature map "
            "from rows that are clipped to quantiles of each feature, or decode fewer components."
        )


def _parts(theta: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Two components in place of one, on opposite sides of it."""
    d = len(theta) // 2
    away = np.zeros_like(theta)
    away[:d] = np.exp(theta[d:-1]) * rng.standard_normal(d)
    narrow = theta.copy()
    narrow[d:-1] -= 0.35
    return narrow + away, narrow - away


def count_reports(problem: Problem) -> int:
    """Number of reports of one replicate, roughly."""
    return 2 * problem.required_size + 3 * len(_ALPHAS) + 3


def conclude(problem: Problem, fits: list[Fit], threads: Threads, report: Report) -> Solution:
    """Solution of the fit of lowest cost, refined; the search starts again where it is suspect."""
    target, sketch = _target(problem), problem.sketch
    search = partial(fit_replicate, problem, report=report, threads=threads)
    fit, test = refine_best(problem, target, fits, _parts, report, search)
    d, locations = problem.n_features, fit.theta[:, : problem.n_features]
    widest = np.exp(2.0 * fit.theta[:, d:-1]).max(axis=0)
    start = np.concatenate([fit.weights @ locations, 0.5 * np.log(widest), [1.5]])[None]
    single = descend(target, np.ones(1), start)
    warn_of_fit(problem, fit.cost, test, {"a single component": single.cost})
    if not is_suspect(sketch, test):
        _warn_of_errors(problem, target, fit)
    return _solution(problem, fit, test)


def conclude_from_start(
    problem: Problem, fits: list[Fit], threads: Threads, report: Report
) -> Solution:
    """Solution of the fit of lowest cost, refined; there is no search for other components."""
    del threads
    best = min(fits, key=lambda each: each.cost)
    fit, test = refine(_target(problem), problem.sketch, best, report)
    warn_of_fit(problem, fit.cost, test, {})
    return _solution(problem, fit, test)


def _solution(problem: Problem, fit: Fit, test: tuple[float, float, float] | None) -> Solution:
    d, center = problem.n_features, problem.sketch.feature_map.center
    scales, alphas = np.exp(fit.theta[:, d:-1]), fit.theta[:, -1]
    return solution(
        problem,
        fit,
        center + fit.theta[:, :d],
        {"scales": scales, "alphas": alphas},
        overidentification=test,
    )
