"""First-order statistics of least squares: expected cost, standard errors, lost likelihood.

Near the distribution of the samples, the sketch ``A P`` of a mixture changes along its derivatives
``J`` with respect to the parameters. The noise of the data's sketch is the mean of ``n``
independent terms ``v``: the sketch of a sample minus the sketch of the distribution. Least squares
attributes the projection of the noise on the span of ``J`` to the parameters, ``G^-1 J v`` for each
sample with ``G = J J^T``, and leaves the rest, ``Q v``, as cost. Means over points sampled from the
mixture give the mean and variance of the cost at the best fit, the standard error of every
parameter, and the expected Kullback-Leibler divergence to the truth. Parameters that the sketch
does not determine have errors of their own size: a standard deviation for a mean, a factor of e for
a variance. Time is proportional to the number of frequencies and the square of the number of
parameters: two CPU seconds for 64 components, 12 features and 8000 frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from dask_sketch.decoders.descent import Fit
from dask_sketch.decoders.efficient import Overidentification, refine_efficiently
from dask_sketch.decoders.factor_descent import FactorObjective, FactorSpace
from dask_sketch.decoders.objectives.atoms import VARIANCE_FLOOR, count_shapes, entries
from dask_sketch.decoders.objectives.matrix_objective import MatrixObjective
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.diagnostics.degenerate_components import floored_variances
from dask_sketch.diagnostics.mmd import N_POINTS, added_noise, halves, observed_factors
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.density import RowDensity
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import StandardErrors
from dask_sketch.models.open import AnyModel
from dask_sketch.validation.choices import rank_of, uses_matrices
from dask_sketch.validation.threads import SERIAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dask_sketch.sketching.sketch import Sketch

Array = NDArray[np.float64]
_FARTHEST = 1e12  # scales of the sketch: cosines of larger phases have no correct digits
# Relative to the noise per parameter: too small to affect a parameter known to a tenth of its size.
_RIDGE = 1e-3
# Smallest variance of the mixture of a test, as a fraction of the variance that the frequencies
# expect, and number of parameters above which the mixture is refined in float32.
_TESTED_FLOOR, _MANY_PARAMETERS = 0.01, 1500
# Rows whose inverse number is the smallest ridge of a test. With that of refinements, 1e-5, the
# p-value of true mixtures was below 0.01 in 7 % of 80 draws of 3000 rows, and the statistic of 300
# rows up to 40 standard deviations above its mean; now in 2.5 %, and up to 4.9.
_RIDGE_ROWS = 3.0
_MIN_WEIGHT = 1e-12  # the mean of components of smaller weight is not determined


@dataclass(frozen=True)
class Linearization:
    """First-order statistics of least squares at a mixture.

    Attributes
    ----------
    reducible
        Gain of one least-squares step, as a difference of cost.
    expected_cost, cost_deviation
        Mean and standard deviation of the cost after such a step, if the mixture is the true
        distribution of the samples. Variances at their floor are fixed in this step, but included
        in the errors below.
    weights, weight_errors
        Weights and their standard errors, shape (n_components,).
    variance_errors
        Standard errors of the natural logarithms of the variances, shape (n_components,
        n_features); nan where they are not fitted. Both errors are nan for components without
        weight.
    divergence
        Expected symmetric Kullback-Leibler divergence between the fit and the truth, in nats, of
        least squares on the sketch.
    attainable
        Expected divergence of maximum likelihood on the samples: the number of free parameters
        divided by ``n``.
    """

    reducible: float
    expected_cost: float
    cost_deviation: float
    weights: Array
    weight_errors: Array
    variance_errors: Array
    divergence: float
    attainable: float


class LogVarianceAtoms:
    """Mixture in the coordinates of the decoders' objective, with logarithms of the variances.

    Parameters
    ----------
    model
        Mixture with positive weights.
    sketch
        Sketch of at least one sample.
    """

    def __init__(self, model: GaussianMixture, sketch: Sketch) -> None:
        objective = _objective(model, sketch)
        space = objective.space
        self.scale, self.shift, self.omega = space.scale, space.shift, objective.omega
        self.weights, self.groups = model.weights, variance_groups(model)
        self.means = (model.means - self.shift) / self.scale
        self.variances = model.variances / self.scale**2
        self._matrices = None
        if space.family.has_matrices:
            self._matrices = model.covariance_matrices / np.outer(self.scale, self.scale)
        self.amplitude = objective.feature_weights / np.sqrt(objective.n_frequencies)
        self.target = objective.target[0] + 1j * objective.target[1]
        self.n_parameters = len(self.weights) * (1 + space.n_parameters)
        self._objective = objective
        self._theta = _atoms(objective, model)
        self._loadings: Array | None = None  # shape (K, n_features, rank)
        if isinstance(objective, FactorObjective):
            self._loadings = objective.space.factors(self._theta)[:, :, 1:]

    def blocks(self) -> Iterator[tuple[slice, Array, NDArray[np.complex128]]]:
        """Yield blocks of frequencies with derivatives (P, 2B) and the mixture's sketch (B,).

        Derivatives are ordered by component, then weight, means and log variances.
        """
        k, d = len(self.weights), self._objective.space.n_features
        shapes = self._units()[:, :, None, None]
        for block, rows in self._objective.jacobian_blocks(self.weights, self._theta):
            atoms = rows[:k]
            by_theta = rows[k:].reshape(k, -1, *rows.shape[1:])
            if self._loadings is not None:
                self._keep_variances(by_theta[:, d : 2 * d], by_theta[:, 2 * d :])
            by_theta[:, d:] *= shapes
            by_atom = np.concatenate([atoms[:, None], by_theta], axis=1)
            mixture = np.tensordot(self.weights, atoms, axes=1)
            yield block, by_atom.reshape(self.n_parameters, -1), mixture[0] + 1j * mixture[1]

    def _keep_variances(self, by_noise: Array, by_loading: Array) -> None:
        """Change derivatives (K, q, ...) by loadings in place, so that variances are kept.

        Derivatives by noise variances (K, n_features, ...) are then derivatives by variances.
        """
        assert self._loadings is not None  # the method is only called with loadings
        k, d, rank = self._loadings.shape
        each = by_loading.reshape(k, d, rank, *by_loading.shape[2:])
        twice = 2.0 * self._loadings.reshape(k, d, rank, *[1] * (by_loading.ndim - 2))
        each -= twice * by_noise[:, :, None]

    def _units(self) -> Array:
        """Units (K, q) of the shape parameters: their values, or products of two deviations."""
        if self._matrices is None:
            return self._theta[:, self._objective.space.n_features :]
        if self._loadings is not None:
            loadings = np.repeat(np.sqrt(self.variances), self._loadings.shape[2], axis=1)
            return np.concatenate([self.variances, loadings], axis=1)
        first, second = entries(self._objective.space.n_features)
        return np.asarray(np.sqrt(self.variances[:, first] * self.variances[:, second]))

    def sizes(self) -> Array:
        """Scales (P,) of weights, means (standard deviations) and shapes (one)."""
        deviations = np.sqrt(self.variances)
        ones = np.ones((len(self.weights), len(self.groups)))
        return np.concatenate([self.weights[:, None], deviations, ones], axis=1).ravel()

    def scores(self, x: Array) -> Array:
        """Derivatives (P, n) of the log-density at points with respect to the same parameters."""
        matrices = self._matrices
        density = RowDensity(
            self.weights, self.means, self.variances if matrices is None else matrices
        )
        responsibilities = density.posterior(x).T
        away = (x - self.means[:, None]).transpose(0, 2, 1)
        if matrices is None:
            by_mean = responsibilities[:, None] * away / self.variances[:, :, None]
            squares = away**2 / self.variances[:, :, None] - 1.0
            by_shape = responsibilities[:, None] * (0.5 * self.groups @ squares)
        else:
            inverse = np.linalg.inv(matrices)
            white = inverse @ away
            by_mean = responsibilities[:, None] * white
        if self._loadings is not None:
            by_noise = 0.5 * (white**2 - np.diagonal(inverse, axis1=1, axis2=2)[:, :, None])
            projected = np.swapaxes(self._loadings, 1, 2) @ white  # (K, rank, n)
            by_loading = white[:, :, None] * projected[:, None]
            by_loading -= (inverse @ self._loadings)[..., None]
            by_loading = by_loading.reshape(len(responsibilities), -1, len(x))
            self._keep_variances(by_noise, by_loading)
            squares = np.concatenate([by_noise, by_loading], axis=1) * self._units()[:, :, None]
            by_shape = responsibilities[:, None] * squares
        elif matrices is not None:
            first, second = entries(matrices.shape[1])
            squares = white[:, first] * white[:, second] - inverse[:, first, second, None]
            squares *= np.where(first == second, 0.5, 1.0)[:, None] * self._units()[:, :, None]
            by_shape = responsibilities[:, None] * squares
        by_weight = (
            responsibilities / self.weights[:, None] - 1.0
        )  # minus a constant: weights sum to one
        rows = np.concatenate([by_weight[:, None], by_mean, by_shape], axis=1)
        return np.asarray(rows.reshape(self.n_parameters, -1))


def overidentify(model: GaussianMixture, sketch: Sketch) -> Overidentification:
    """Test whether the data of a sketch is a mixture of such components.

    A descent from the model finds the mixture nearest to the sketch in the metric of the inverse
    covariance of its noise (:func:`~dask_sketch.decoders.efficient.refine_efficiently`). The
    squared distance, Hansen's J, is a chi-squared variable if the data is such a mixture. Some sums
    of features hardly vary except in a few far rows, and one such row alone would decide the test.
    A ridge of the metric, which is larger for fewer rows, leaves these sums out. The p-value is
    below 0.05 in 2 to 10 %, and below 0.01 in 0 to 3 % of 50 to 80 draws of 300 to 20,000 rows.

    Parameters
    ----------
    model
        Mixture near the sketch.
    sketch
        Sketch of at least two samples, with the same number of features.

    Returns
    -------
    test
        Statistic with its degrees of freedom.

    References
    ----------
    Hansen (1982), Large sample properties of generalized method of moments estimators,
    Econometrica 50(4).
    """
    objective = _objective(model, sketch, _TESTED_FLOOR)
    part = _part(model, np.flatnonzero(model.weights > _MIN_WEIGHT))
    theta = objective.space.clip(_atoms(objective, part))
    fit = Fit(part.weights, theta, objective.cost(part.weights, theta), converged=True)
    single = len(theta) * (1 + objective.space.n_parameters) > _MANY_PARAMETERS
    refined = refine_efficiently(
        objective, fit, lambda cost: None, single=single, errors=False, test=True,
        ridge=_RIDGE_ROWS / objective.effective_count,
    )  # fmt: skip
    assert refined.overidentification is not None  # there is a statistic because of test=True
    return refined.overidentification


def _objective(
    model: GaussianMixture, sketch: Sketch, variance_floor: float = VARIANCE_FLOOR
) -> Objective:
    """Objective with atoms as the components of a mixture."""
    if rank_of(model.covariance_type) is not None:
        kind = model.covariance_type
        return FactorObjective(sketch, kind, variance_floor=variance_floor, threads=SERIAL)
    name = _family(model)
    known = model.covariances[0] if name == "known" else None
    matched = MatrixObjective if uses_matrices(name) else Objective
    return matched(sketch, name, covariance=known, variance_floor=variance_floor)


def _atoms(objective: Objective, model: GaussianMixture) -> Array:
    """Atoms (K, n_parameters) of the components of a mixture."""
    space = objective.space
    if isinstance(space, FactorSpace):
        return space.from_factors(model.means, model.covariances)
    shapes = model.covariance_matrices if space.family.has_matrices else model.variances
    return space.from_data_units(model.means, shapes)


def _part(model: GaussianMixture, chosen: NDArray[np.intp]) -> GaussianMixture:
    """Mixture of some of the components, with normalised weights."""
    weights, has_own = model.weights[chosen], model.covariance_type != "tied"
    return replace(
        model,
        weights=weights / weights.sum(),
        means=model.means[chosen],
        covariances=model.covariances[chosen] if has_own else model.covariances,
        stderr=None if model.stderr is None else _part_of_errors(model.stderr, chosen, has_own),
    )


def _part_of_errors(
    errors: StandardErrors, chosen: NDArray[np.intp], has_own: bool
) -> StandardErrors:
    noise = errors.noise_variances
    return StandardErrors(
        errors.weights[chosen],
        errors.means[chosen],
        errors.covariances[chosen] if has_own else errors.covariances,
        None if noise is None else noise[chosen],
    )


def variance_groups(model: GaussianMixture) -> Array:
    """Indicators (q, n_features) of the features that share each variance parameter.

    Parameters for covariances of two features are zero for all features.
    """
    d = model.n_features
    if uses_matrices(model.covariance_type):
        rank = rank_of(model.covariance_type)
        if rank is not None:
            return np.eye(d * (1 + rank), d)
        return np.eye(count_shapes("full", d), d)
    return {"isotropic": np.ones((1, d)), "known": np.empty((0, d))}.get(_family(model), np.eye(d))


def _family(model: GaussianMixture) -> str:
    """Family of atoms of a mixture; with a tied matrix, as if each component had its own."""
    if uses_matrices(model.covariance_type):
        return "full"
    if model.covariance_type == "spherical":
        return "isotropic"
    return "gaussian" if model.decoding is None else model.decoding.model


def count_parameters(model: AnyModel) -> int:
    """Number of free parameters; the weights sum to one."""
    if not isinstance(model, Centroids):
        return model.n_parameters
    return model.n_components * (1 + model.n_features) - 1


def _normal_equations(
    atoms: LogVarianceAtoms, points: Array, sketch: Sketch, seed: int
) -> tuple[Array, Array, Array, Array]:
    """Products of the derivatives with themselves, the residual and the noise of points.

    The last result has the products of the noise of every two points.
    """
    p, n_points = atoms.n_parameters, len(points)
    gram, right = np.zeros((p, p)), np.zeros(p)
    inner, products = np.zeros((p, n_points)), np.zeros((n_points, n_points))
    factors = observed_factors(sketch, seed)
    for block, rows, mixture in atoms.blocks():
        features_of_points = np.exp(-1j * (points @ atoms.omega[:, block]))
        features_of_points += added_noise(sketch, features_of_points.shape, seed, block.start)
        noise = atoms.amplitude[block] * features_of_points - mixture
        if factors is not None:
            noise *= factors[:, block]
        residual = atoms.target[block] - mixture
        draws = halves(noise)
        gram += rows @ rows.T
        right += rows @ halves(residual)
        inner += rows @ draws.T
        products += draws @ draws.T
    return gram, right, inner, products


def linearise(model: GaussianMixture, sketch: Sketch, seed: int = 0) -> Linearization:
    """Linearise the sketch of a mixture around its parameters.

    Parameters
    ----------
    model
        Mixture. Parameters that its decoder kept fixed (``model="isotropic"``, ``"known"``)
        stay fixed.
    sketch
        Sketch of at least one sample, with the same number of features.
    seed
        Seed of the points sampled from the mixture.

    Returns
    -------
    linearization
        Expected cost, standard errors and expected divergence.

    Raises
    ------
    InputError
        If the mixture is too far from the data of the sketch.
    """
    alive = np.flatnonzero(model.weights > _MIN_WEIGHT)
    part = _part(model, alive)
    atoms = LogVarianceAtoms(part, sketch)
    n, n_points, p = sketch.effective_count, N_POINTS, atoms.n_parameters
    points = (model.sample(n_points, seed=seed) - atoms.shift) / atoms.scale
    if not np.abs(points).max() < _FARTHEST:
        raise InputError(
            f"model: means up to {np.abs(part.means).max():.3g} are too far from the data of the "
            "sketch for a diagnosis. Decode a model of this sketch."
        )
    gram, right, inner, products = _normal_equations(atoms, points, sketch, seed)
    # in units of the parameters' scales, which are their prior standard deviations for the ridge
    sizes = atoms.sizes()
    gram *= sizes
    gram *= sizes[:, None]
    inner *= sizes[:, None]
    right *= sizes
    noise_fraction = float(np.trace(products)) / n_points / n / p
    rounding = 10.0 * p * np.finfo(float).eps * float(np.diagonal(gram).max())
    ridge = max(_RIDGE * noise_fraction, rounding)
    gram.reshape(-1)[:: p + 1] += ridge
    inverse = cho_solve(cho_factor(gram), np.eye(p))
    influence = inverse @ inner  # influence of each point on the parameters, times n

    # the cost can decrease only along parameters that are not at a bound
    floored = floored_variances(part, sketch) @ atoms.groups.T > 0
    stays = np.pad(floored, ((0, 0), (1 + part.n_features, 0))).ravel()
    moves = np.flatnonzero(~stays)
    free = cho_factor(gram[np.ix_(moves, moves)])
    reducible = float(right[moves] @ cho_solve(free, right[moves]))
    products -= inner[moves].T @ cho_solve(free, inner[moves])
    pairs = products - np.diag(np.diagonal(products))
    n_pairs = n_points * (n_points - 1)

    # directions that the data do not determine have the error of the prior, the bias of the ridge
    inverse *= ridge
    scores = atoms.scores(points) * sizes[:, None]
    # E (s'u)^2 over independent scores s and influences u: Fisher information times covariance
    lost = scores.T @ influence
    np.fill_diagonal(lost, 0.0)
    divergence = float(np.sum(lost**2)) / n_pairs / n
    divergence += float(np.mean(np.sum((inverse @ scores) ** 2, axis=0)))

    k, d = atoms.means.shape
    influence *= sizes[:, None]
    by_atom = influence.reshape(k, -1, n_points)
    by_atom[:, 0] -= atoms.weights[:, None] * by_atom[:, 0].sum(axis=0)  # weights sum to one
    bias = (sizes**2 * np.sum(inverse**2, axis=1)).reshape(k, -1)
    errors = np.full((model.n_components, p // k), np.nan)
    errors[alive] = np.sqrt(np.mean(by_atom**2, axis=2) / n + bias)
    variance_errors = np.full((model.n_components, d), np.nan)
    for row, group in zip(errors[:, 1 + d :].T, atoms.groups, strict=True):
        if group.any():
            variance_errors[:, group > 0] = row[:, None]
    return Linearization(
        reducible=reducible,
        expected_cost=max(float(np.trace(products)), 0.0) / n_points / n,
        cost_deviation=float(np.sqrt(2.0 * np.sum(pairs**2) / n_pairs)) / n,
        weights=model.weights,
        weight_errors=errors[:, 0],
        variance_errors=variance_errors,
        divergence=divergence,
        attainable=(p - 1) / n,
    )
