"""Mixtures of components that are known by their characteristic functions, fitted to a sketch.

Section 2.6 of Keriven et al. (2018): a sketch determines any mixture whose components have a
characteristic function and its derivatives. Levenberg and Marquardt's method fits all parameters.
The entries of the sketch are weighted last by the inverse of their covariance under the fit, which
the characteristic function gives as well, so that estimates are as precise as the frequencies
allow, and the residual is tested against its noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from dask_sketch.decoders.checks.misfit import is_suspect, warn_of_overidentification
from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.problem import Problem, Report, Solution
from dask_sketch.errors import DecodeError
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.warn import warn_user

Complex = NDArray[np.complex128]
Split = Callable[[Array, np.random.Generator], tuple[Array, Array]]
_N_STEPS = 200
_TOLERANCE = 1e-10  # relative gain of a step that ends the descent
_FIRST_DAMPING, _MAX_DAMPING = 1e-3, 1e12
_ROUNDS = 2  # rounds of weighting and descent
_CUT = 1e-7  # eigenvalues of the covariance below this fraction of the largest are left out
_MAX_WEIGHTED = 4_000_000  # components times squared frequencies up to which entries are weighted
_BLOCK = 200_000  # values of characteristic functions at once
_LIGHT = 1e-6  # smallest weight of a component
_TRIALS, _SHORT = 6, 30  # swaps for each component, and steps of the descent from each
_GAIN = 0.99  # cost of a swap that is kept, relative to that before
_SWAP_WORK = 5e10  # multiplications of all swaps
_SEARCHES = 2  # searches where the statistic of the refined fit is too large
_SMALL_COST = 3.0  # noise levels up to which noise may explain the cost


class Transforms(Protocol):
    """Characteristic functions of a family of components.

    Parameters ``theta`` of the components have the shape (K, n_parameters).
    """

    def values(self, theta: Array, frequencies: Array) -> Complex:
        """Values at the frequencies (n_features, m), shape (K, m)."""

    def derivatives(self, theta: Array, frequencies: Array) -> tuple[Complex, Complex]:
        """Values, and derivatives by all parameters, shape (K, n_parameters, m)."""

    def clip(self, theta: Array) -> Array:
        """Nearest possible parameters."""


@dataclass(frozen=True, eq=False)
class Target:
    """Values of a characteristic function to which a mixture is fitted.

    Attributes
    ----------
    transforms
        Family of the components.
    frequencies
        Frequencies, shape (n_features, m).
    values
        Real parts, then imaginary parts, shape (2 m,).
    whitening
        Matrix (r, 2 m) that residuals are multiplied by, or None.
    n_shared
        Number of last parameters that are the same in all components.
    """

    transforms: Transforms
    frequencies: Array
    values: Array
    whitening: Array | None = None
    n_shared: int = 0

    @classmethod
    def of(
        cls,
        transforms: Transforms,
        sketch: Sketch,
        center: Array | None = None,
        n_shared: int = 0,
    ) -> Target:
        """Target of a sketch, relative to a center."""
        omega = sketch.feature_map.frequencies
        values = sketch.characteristic
        if center is not None:
            values = values * np.exp(1j * (center @ omega))
        return cls(transforms, omega, _stacked(values), n_shared=n_shared)

    def residual(self, weights: Array, theta: Array) -> Array:
        """Difference between target and mixture, whitened."""
        model = weights @ self.transforms.values(theta, self.frequencies)
        return self._whitened(self.values - _stacked(model))

    def linearised(self, weights: Array, theta: Array) -> tuple[Array, Array]:
        """Residual, and derivatives of the mixture by all parameters, shape (r, n_columns).

        The weights are a softmax, whose logits come first. Shared parameters come last.
        """
        values, derivatives = self.transforms.derivatives(theta, self.frequencies)
        model = weights @ values
        derivatives = weights[:, None, None] * derivatives
        n_own = theta.shape[1] - self.n_shared
        columns = [
            weights[:, None] * (values - model),
            derivatives[:, :n_own].reshape(-1, values.shape[1]),
            derivatives[:, n_own:].sum(axis=0),
        ]
        jacobian = np.concatenate([_stacked(part) for part in columns])
        residual = self._whitened(self.values - _stacked(model))
        return residual, self._whitened(jacobian.T)

    def by_component(self, columns: Array, n_components: int) -> Array:
        """Numbers (K, p) of the parameters, from the numbers of the columns after the weights."""
        n_own = len(columns) - n_components - self.n_shared
        of_components = columns[n_components : n_components + n_own].reshape(n_components, -1)
        shared = np.tile(columns[n_components + n_own :], (n_components, 1))
        return np.concatenate([of_components, shared], axis=1)

    def with_shared(self, weights: Array, theta: Array) -> Array:
        """Parameters whose shared ones are their means."""
        n_own = theta.shape[1] - self.n_shared
        shared = np.tile(weights @ theta[:, n_own:] / weights.sum(), (len(theta), 1))
        return np.concatenate([theta[:, :n_own], shared], axis=1)

    def cost(self, fit: Fit) -> float:
        """Mean squared modulus of the residual, not whitened."""
        plain = replace(self, whitening=None).residual(fit.weights, fit.theta)
        return float(plain @ plain) / self.frequencies.shape[1]

    def _whitened(self, columns: Array) -> Array:
        return columns if self.whitening is None else self.whitening @ columns


def _stacked(values: Complex) -> Array:
    return np.concatenate([values.real, values.imag], axis=-1)


def descend(target: Target, weights: Array, theta: Array, n_steps: int = _N_STEPS) -> Fit:
    """Local minimum of the squared residual, by Levenberg and Marquardt's method.

    Parameters
    ----------
    target
        Values to fit.
    weights
        Weights to start from, shape (K,), positive.
    theta
        Parameters to start from, shape (K, n_parameters).
    n_steps
        Largest number of steps.

    Returns
    -------
    fit
        Fit whose weights sum to one, with the cost of :meth:`Target.cost`.
    """
    k = len(weights)
    weights = np.maximum(weights / weights.sum(), _LIGHT)
    weights = weights / weights.sum()
    theta = target.transforms.clip(target.with_shared(weights, theta))
    damping, converged, n_evaluations = _FIRST_DAMPING, False, 1
    residual, jacobian = target.linearised(weights, theta)
    squares = float(residual @ residual)
    for _ in range(n_steps):
        curvature, gradient = jacobian.T @ jacobian, jacobian.T @ residual
        diagonal = np.diagonal(curvature).copy()
        diagonal = np.maximum(diagonal, 1e-12 * diagonal.max(initial=1e-300))
        accepted = False
        while damping < _MAX_DAMPING and not accepted:
            step = _solve(curvature + np.diag(damping * diagonal), gradient)
            logits = np.log(weights) + np.clip(step[:k], -3.0, 3.0)
            moved = np.maximum(np.exp(logits - logits.max()), _LIGHT)
            moved /= moved.sum()
            candidate = target.transforms.clip(theta + target.by_component(step, k))
            residual = target.residual(moved, candidate)
            n_evaluations += 1
            after = float(residual @ residual)
            accepted = after < squares
            damping = max(damping / 5.0, 1e-12) if accepted else 4.0 * damping
        if not accepted:
            converged = True  # no step is better to the precision of the numbers
            break
        converged = squares - after < _TOLERANCE * squares
        weights, theta, squares = moved, candidate, after
        if converged:
            break
        residual, jacobian = target.linearised(weights, theta)
        n_evaluations += 1
    message = "converged" if converged else f"{n_steps} steps"
    fit = Fit(weights, theta, np.inf, converged, message, n_evaluations)
    return replace(fit, cost=target.cost(fit))


def _solve(matrix: Array, vector: Array) -> Array:
    try:
        return np.asarray(linalg.cho_solve(linalg.cho_factor(matrix), vector))
    except linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(matrix, vector)[0])


def require_size(problem: Problem) -> None:
    """Raise unless a start has as many components as are decoded.

    Parameters
    ----------
    problem
        Sketch and arguments, with a start.

    Raises
    ------
    DecodeError
        If it has another number.
    """
    assert problem.start is not None  # the method "start" has a start
    n_given = len(problem.start.weights)
    if problem.n_components not in (None, n_given):
        raise DecodeError(
            f"n_components={problem.n_components} with a start of {n_given} components and "
            f"model={problem.model!r}: leave n_components out, or start."
        )


def descend_best(target: Target, starts: Sequence[tuple[Array, Array]], report: Report) -> Fit:
    """Fit of lowest cost of the descents from several starts.

    Parameters
    ----------
    target
        Values to fit.
    starts
        Weights and parameters of each start.
    report
        Function called with the cost of each.
    """
    fits = []
    for weights, theta in starts:
        fits.append(descend(target, weights, theta))
        report(fits[-1].cost)
    best = min(fits, key=lambda each: each.cost)
    return replace(best, n_evaluations=sum(each.n_evaluations for each in fits))


def swap_components(
    target: Target,
    fit: Fit,
    split: Split,
    rng: np.random.Generator,
    report: Report,
) -> Fit:
    """Leave a poor minimum: one component is split in two, another one is left out.

    Parameters
    ----------
    target
        Values to fit.
    fit
        Fit to start from.
    split
        Function of the parameters of one component and a generator: parameters of two parts.
    rng
        Random number generator.
    report
        Function called with the cost after each trial.
    """
    k = len(fit.weights)
    n_evaluations = fit.n_evaluations
    work = len(target.values) * (fit.theta.size + k) ** 2 * _SHORT
    for _ in range(min(_TRIALS * k, int(_SWAP_WORK / work)) if k > 1 else 0):
        halved, replaced = rng.choice(k, 2, replace=False)
        weights, theta = fit.weights.copy(), fit.theta.copy()
        theta[halved], theta[replaced] = split(fit.theta[halved], rng)
        weights[halved] = weights[replaced] = 0.5 * fit.weights[halved]
        swapped = descend(target, weights, theta, _SHORT)
        n_evaluations += swapped.n_evaluations
        if swapped.cost < _GAIN * fit.cost:
            fit = descend(target, swapped.weights, swapped.theta)
            n_evaluations += fit.n_evaluations
        report(fit.cost)
    return replace(fit, n_evaluations=n_evaluations)


def _covariance(target: Target, fit: Fit) -> Array:
    """Covariance of the real and imaginary parts of the features of one row, (2 m, 2 m)."""
    omega, m = target.frequencies, target.frequencies.shape[1]
    step = max(_BLOCK // (m * len(fit.weights)), 1)
    out = np.empty((2 * m, 2 * m))

    def psi(frequencies: Array) -> Complex:
        flat = frequencies.reshape(len(omega), -1)
        return np.asarray(fit.weights @ target.transforms.values(fit.theta, flat))

    for first in range(0, m, step):
        part = omega[:, first : first + step, None]
        size = part.shape[1]
        # entries of these rows and later columns: the matrix is symmetric
        rest = omega[:, None, first:]
        below = psi(part - rest).reshape(size, -1)
        above = psi(part + rest).reshape(size, -1)
        rows, columns = slice(first, first + size), slice(first, m)
        other_rows, other_columns = slice(m + first, m + first + size), slice(m + first, 2 * m)
        out[rows, columns] = 0.5 * (below + above).real
        out[other_rows, other_columns] = 0.5 * (below - above).real
        out[rows, other_columns] = 0.5 * (above - below).imag
        out[other_rows, columns] = 0.5 * (above + below).imag
        for down, across in ((rows, columns), (other_rows, other_columns)):
            out[across, down] = out[down, across].T
        out[other_columns, rows] = out[rows, other_columns].T
        out[columns, other_rows] = out[other_rows, columns].T
    mean = _stacked(psi(omega))
    return out - np.outer(mean, mean)


def _is_weighable(sketch: Sketch, n_components: int) -> bool:
    """Whether the covariance of the entries is known (complete rows) and small enough."""
    plain = sketch.missing is None and sketch.added_variance == 0.0
    return plain and n_components <= max_weighted(sketch.feature_map.n_frequencies)


def max_weighted(n_frequencies: int) -> int:
    """Largest number of components whose fit is weighted by the noise of the sketch, and tested.

    Parameters
    ----------
    n_frequencies
        Number of frequencies of the sketch.
    """
    return _MAX_WEIGHTED // n_frequencies**2


def refine(
    target: Target, sketch: Sketch, fit: Fit, report: Report
) -> tuple[Fit, tuple[float, float, float] | None]:
    """Fit weighted by the noise of the sketch, and its overidentification statistic.

    Parameters
    ----------
    target
        Values of the sketch.
    sketch
        Sketch of the data.
    fit
        Fit of least squares.
    report
        Function called with the cost after each round.

    Returns
    -------
    fit, test
        Refined fit; statistic, its mean and its standard deviation for data of such a mixture.
        The fit itself where noise does not explain the statistic; the fit itself, and None, for
        sketches with missing values or added noise, or of too many frequencies.
    """
    if not _is_weighable(sketch, len(fit.weights)):
        return fit, None
    plain, test = fit, None
    for _ in range(_ROUNDS):
        weighted = _weighted(target, fit)
        before = fit.n_evaluations
        fit = descend(weighted, fit.weights, fit.theta)
        fit = replace(fit, n_evaluations=fit.n_evaluations + before)
        residual = weighted.residual(fit.weights, fit.theta)
        n_repeated = target.n_shared * (len(fit.weights) - 1)
        freedom = float(len(residual) - fit.theta.size + n_repeated - len(fit.weights) + 1)
        statistic = sketch.effective_count * float(residual @ residual)
        test = statistic, freedom, float(np.sqrt(2.0 * max(freedom, 1.0)))
        report(fit.cost)
    # weights by the noise of a wrong model lead further from the data
    return (plain if is_suspect(sketch, test) else fit), test


def refine_best(
    problem: Problem,
    target: Target,
    fits: Sequence[Fit],
    split: Split,
    report: Report,
    search: Callable[[np.random.Generator], Fit] | None = None,
) -> tuple[Fit, tuple[float, float, float] | None]:
    """Fit of lowest cost, refined, with its overidentification statistic.

    Where noise does not explain the statistic, components are swapped, and then the search starts
    again with another seed.

    Parameters
    ----------
    problem
        Sketch and arguments.
    target
        Values of the sketch.
    fits
        Fits of all replicates.
    split
        Argument of :func:`swap_components`.
    report
        Function called with the cost after each round of refinement.
    search
        Function of a generator that fits a further replicate; None for no further search.
    """
    sketch, first = problem.sketch, min(fits, key=lambda each: each.cost)
    fit, test = refine(target, sketch, first, report)
    for number in range(1 if search is None else _SEARCHES):
        if len(fit.weights) == 1 or test is None or not is_suspect(sketch, test):
            break
        rng = np.random.default_rng((problem.seed, problem.replicates + number))
        if search is not None and number > 0:
            first = search(rng)
        swapped = swap_components(target, first, split, rng, report)
        refined, refined_test = refine(target, sketch, swapped, report)
        if refined_test is not None and refined_test[0] < test[0]:
            fit, test = refined, refined_test
    return fit, test


def standard_errors(target: Target, sketch: Sketch, fit: Fit) -> Array | None:
    """Standard errors of the parameters of a fit weighted by noise, shape (K, n_parameters).

    Parameters
    ----------
    target
        Values of the sketch.
    sketch
        Sketch of the data.
    fit
        Refined fit.

    Returns
    -------
    errors
        Asymptotic errors for data of such a mixture; infinite where the frequencies do not
        determine a parameter. None where entries are not weighted.
    """
    if not _is_weighable(sketch, len(fit.weights)):
        return None
    _, jacobian = _weighted(target, fit).linearised(fit.weights, fit.theta)
    curvature = jacobian.T @ jacobian
    scale = np.sqrt(np.maximum(np.diagonal(curvature), 1e-300))
    # the logits of the weights have a common shift that changes nothing: it is left out
    shift = np.zeros(len(scale))
    shift[: len(fit.weights)] = scale[: len(fit.weights)]
    unit = shift / np.linalg.norm(shift)
    inverse = np.linalg.pinv(curvature / np.outer(scale, scale) + np.outer(unit, unit))
    with np.errstate(over="ignore"):
        variances = np.diagonal(inverse) / scale**2 / sketch.effective_count
    errors = np.where(variances > 0.0, np.sqrt(np.maximum(variances, 0.0)), np.inf)
    return target.by_component(errors, len(fit.weights))


def _weighted(target: Target, fit: Fit) -> Target:
    """Target whose entries are weighted by their noise under a fit."""
    values, vectors = np.linalg.eigh(_covariance(target, fit))
    used = values > _CUT * values[-1]
    return replace(target, whitening=vectors[:, used].T / np.sqrt(values[used])[:, None])


def warn_of_fit(
    problem: Problem, cost: float, test: tuple[float, float, float] | None, rivals: dict[str, float]
) -> None:
    """Warn of a fit that noise does not explain, or that a simple rival beats.

    Parameters
    ----------
    problem
        Sketch and arguments.
    cost
        Cost of the fit.
    test
        Overidentification statistic, its mean and its standard deviation, if it is known.
    rivals
        Costs of simple rivals by their names.
    """
    sketch, noise = problem.sketch, problem.sketch.noise_level
    for name, rival_cost in rivals.items():
        if rival_cost < 0.999 * cost and cost > _SMALL_COST * noise:
            warn_user(
                f"model={problem.model!r}: the fit costs {cost:.3g}, and {name} {rival_cost:.3g}: "
                "the search stopped at a poor minimum. Decode with replicates=5, or fewer "
                "components."
            )
            return
    if test is not None:
        warn_of_overidentification(sketch, *test)
    elif cost > _SMALL_COST * noise:
        warn_user(
            f"model={problem.model!r}: the cost {cost:.3g} is {cost / noise:.3g} noise levels: the "
            "search stopped at a poor minimum, or the data is not such a mixture. Decode with "
            "replicates=5 or another number of components."
        )


def solution(
    problem: Problem,
    fit: Fit,
    means: Array,
    parameters: dict[str, Array],
    **more: Any,
) -> Solution:
    """Solution of a fit, by decreasing weight.

    Parameters
    ----------
    problem
        Sketch and arguments.
    fit
        Fit to the sketch, or a mixture of maximum likelihood with its cost.
    means
        Locations or directions of the components, shape (K, n_features).
    parameters
        Further arrays of the model, each with K rows.
    more
        Further attributes of the solution.
    """
    order = np.argsort(-fit.weights, kind="stable")
    values: dict[str, Any] = {
        "weights": fit.weights[order],
        "means": means[order],
        "variances": None,
        "cost": fit.cost,
        "noise_level": problem.sketch.noise_level,
        "converged": fit.converged,
        "message": fit.message,
        "n_evaluations": fit.n_evaluations,
        "parameters": {name: value[order] for name, value in parameters.items()},
    }
    return Solution(**(values | more))
