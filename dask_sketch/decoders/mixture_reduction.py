"""Mixtures by way of a finer density: fit more atoms than components, then reduce them (ours).

Where the data is a mixture of as many Gaussians as are asked for, least squares finds them. Where
it is none, as speech is none, somebody must say which components stand for it best, and least
squares and maximum likelihood do not agree: the first weighs errors of the density by its square,
and puts atoms where the data is densest; the second weighs them by mass, and covers all of it. The
sketch knows more of the data than either answer shows: with 64 generated voices (K = 64, d = 12,
m = 10,000), what 64 Gaussians leave of it is ten times the noise.

So the number of atoms is doubled until noise explains what is left of the sketch, each of one
parameter for its width, to have many; and the components are those of greatest likelihood for that
density, by expectation-maximisation on points drawn from it. Many densities explain a sketch:
those of several replicates are put together, for what is chance in one is not in the next. A
fit of 512 atoms takes 8 CPU seconds, 22 by ``"splitting"`` into 64.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from dask_sketch.decoders.arguments import require_enough
from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.descent import coarsened, descend
from dask_sketch.decoders.objective import Objective
from dask_sketch.decoders.optimizers import Effort
from dask_sketch.decoders.replicates import Progress, Reporter, fit_all, watched
from dask_sketch.decoders.splitting import hierarchical_splitting, n_levels
from dask_sketch.decoders.support import Fit
from dask_sketch.decoders.threads import SERIAL, Threads
from dask_sketch.errors import DecodeError
from dask_sketch.features.pilot import fit_pilot
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import Decoding
from dask_sketch.sketching.sketch import Sketch

_FINE = Effort(tolerance=1e-5, n_iterations=100)
_POINTS = 60_000  # that stand for the density


@dataclass(frozen=True)
class DensitySearch:
    """A search for a density that explains a sketch; replicates differ in their starting points.

    Attributes
    ----------
    sketch
        What is decoded.
    n_components
        Atoms at first.
    box, variance_floor
        As of :class:`Objective`.
    seed
        Seed of the starting points.
    """

    sketch: Sketch
    n_components: int
    box: Array | None
    variance_floor: float
    seed: int

    def __call__(
        self, replicate: int, report: Callable[[float], None], threads: Threads
    ) -> tuple[GaussianMixture, Fit, int]:
        """The density of one replicate, its fit, and the evaluations that it took."""
        rng = np.random.default_rng((self.seed, replicate))
        objective = Objective(
            self.sketch,
            "scaled",
            box=self.box,
            variance_floor=self.variance_floor,
            threads=threads,
        )
        most = most_atoms(objective.n_features, objective.n_frequencies)
        # as many atoms as components find all clusters, on a part of the frequencies
        coarse = coarsened(objective, self.n_components)
        fit = hierarchical_splitting(coarse, self.n_components, rng, report)
        fit = descend(objective, fit.theta, effort=_FINE)
        report(fit.cost)
        while fit.cost > objective.unit and 2 * len(fit.theta) <= most:
            fit = descend(objective, objective.split(fit.theta), effort=_FINE)
            report(fit.cost)
        if not fit.weights.sum() > 0.0:
            raise DecodeError(
                "no atom explains the sketch: all weights are zero. The frequencies do not see "
                "the data; design the feature map on a sample of it."
            )
        density = GaussianMixture(
            fit.weights / fit.weights.sum(), *objective.to_data_units(fit.theta)
        )
        spent = 0 if coarse is objective else coarse.n_evaluations
        return density, fit, objective.n_evaluations + spent


def most_atoms(n_features: int, n_frequencies: int) -> int:
    """Atoms that have as many parameters as the sketch has numbers.

    Examples
    --------
    >>> most_atoms(n_features=12, n_frequencies=10_000)
    1428
    """
    return 2 * n_frequencies // (n_features + 2)


def decode_density(
    sketch: Sketch,
    n_components: int,
    box: Array | None,
    variance_floor: float,
    seed: int,
    replicates: int,
    progress: Progress | bool | None,
    n_threads: int,
    executor: Executor | None,
) -> GaussianMixture:
    """Decode a mixture by way of a density of more atoms.

    Parameters
    ----------
    sketch, n_components, variance_floor, seed, progress, executor
        As of :func:`dask_sketch.decode`.
    box
        Bounds on means, shape (2, n_features), in data units, if there are any.
    replicates
        Number of densities that are put together.
    n_threads
        Number of threads.

    Returns
    -------
    mixture
        Components by decreasing weight.

    Raises
    ------
    DecodeError
        If the sketch is too short, or no atom explains it.
    """
    begun = time.perf_counter()
    features = sketch.feature_map
    require_enough(sketch, n_components, features.n_features + 2)
    most = max(most_atoms(features.n_features, features.n_frequencies) // n_components, 1)
    search = DensitySearch(sketch, n_components, box, variance_floor, seed)
    with (
        threadpool_limits(1, user_api="blas"),
        Threads(n_threads) as threads,
        watched(progress) as show,
    ):
        reporter = Reporter(show, replicates * (n_levels(n_components) + most.bit_length()))
        found = fit_all(search, replicates, executor, threads, reporter)
        each = -(-max(_POINTS, n_components) // replicates)
        points = np.concatenate(
            [density.sample(each, seed=seed + i) for i, ((density, *_), _) in enumerate(found)]
        )
        reduced = fit_pilot(points, n_components, seed)
        objective = Objective(sketch, "gaussian", variance_floor=variance_floor, threads=threads)
        order = np.argsort(-reduced.weights, kind="stable")
        weights, means = reduced.weights[order], reduced.means[order]
        theta = objective.from_data_units(means, reduced.variances[order])
        cost = objective.cost(weights, theta)
    (_, best, _), trace = min(found, key=lambda each: each[0][1].cost)
    record = Decoding(
        method="density",
        model="gaussian",
        cost=cost,
        noise_level=objective.noise_level,
        trace=tuple(trace),
        seconds=time.perf_counter() - begun,
        seed=seed,
        replicates=replicates,
        n_evaluations=sum(spent for (_, _, spent), _ in found) + objective.n_evaluations,
        converged=best.converged,
        message=best.message,
        variance_floor=variance_floor,
        feature_names=sketch.feature_map.feature_names,
    )
    return GaussianMixture(weights, means, reduced.variances[order], decoding=record)


# Least squares on a sketch and on the first two moments of the data, which sketches carry too.

# Weight of the moments beside a sketch, whose squared norm is at most one: all of them wrong by one
# standard deviation cost twice the square of this. Median RSE of centroids on MNIST's spectral
# features (m = 500, 8 seeds) with weights 0, 0.1, 0.3, 1 and 3: 2.06, 1.33, 1.15, 1.12 and 1.12 at
# scale 1, and 1.07, 1.07, 1.07, 1.07 and 1.06 at scale 2. On 20 clusters with tails in 5 features
# and on MNIST's pixels in 20, one costs 0.02 more than 0.3.
_WEIGHT = 0.3


class MomentObjective(Objective):
    """An objective whose cost also counts how far off the moments of the mixture are.

    To the residual are appended the total weight less one, the mean of the mixture less that of
    the data in standard deviations, and its variance less that of the data in variances, for each
    feature, all multiplied by one weight. The data's moments are sums that every sketch carries
    (:attr:`dask_sketch.Sketch.mean` and ``variance``). They pin down what the sketch at the
    frequencies at hand says least about: the reach of long tails.

    Parameters
    ----------
    sketch, model, box, threads
        As of :class:`Objective`.
    """

    def __init__(
        self,
        sketch: Sketch,
        model: str,
        *,
        box: Array | None = None,
        threads: Threads = SERIAL,
    ) -> None:
        super().__init__(sketch, model, box=box, threads=threads)
        variance = sketch.extent[1] / self.scale**2
        self._data_variance = variance
        # a feature that does not vary is measured by the distribution's variance instead
        self._variance = np.where(variance > 0.0, variance, 1.0)
        # a private sketch holds no moments
        weight = _WEIGHT if sketch.privacy is None else 0.0
        self._row_weight = weight / np.sqrt(self.n_features)

    def cost(self, weights: Array, theta: Array) -> float:
        """Cost of the sketch and of the moments."""
        moments = self._moments(weights, theta)
        return super().cost(weights, theta) + float(moments @ moments)

    def sketch_cost(self, weights: Array, theta: Array) -> float:
        """Cost of the sketch alone."""
        return super().cost(weights, theta)

    def cost_gradient(self, weights: Array, theta: Array) -> tuple[float, Array, Array]:
        """Cost and its gradient, as of :meth:`Objective.cost_gradient`."""
        cost, by_weight, by_theta = super().cost_gradient(weights, theta)
        moments = self._moments(weights, theta)
        right = -2.0 * self._moment_jacobian(weights, theta) @ moments
        n_atoms = len(theta)
        by_weight = by_weight + right[:n_atoms]
        by_theta = by_theta + right[n_atoms:].reshape(by_theta.shape)
        return cost + float(moments @ moments), by_weight, by_theta

    def gram(self, weights: Array, theta: Array) -> Array:
        """Gram matrix of both, as of :meth:`Objective.gram`."""
        jacobian = self._moment_jacobian(weights, theta)
        return super().gram(weights, theta) + jacobian @ jacobian.T

    def _moments(self, weights: Array, theta: Array) -> Array:
        """Residual of the moments, shape (1 + 2 n_features,); the data's mean is the origin."""
        means = theta[:, : self.n_features]
        squares = means**2 + self.variances(theta)
        return self._row_weight * np.concatenate(
            [
                [1.0 - weights.sum()],
                -(weights @ means) / np.sqrt(self._variance),
                (self._data_variance - weights @ squares) / self._variance,
            ]
        )

    def _moment_jacobian(self, weights: Array, theta: Array) -> Array:
        """Derivative (P, 1 + 2 n_features) of the mixture's moments, rows as of the Jacobian."""
        d, n_atoms = self.n_features, len(theta)
        means = theta[:, :d]
        deviation = np.sqrt(self._variance)
        squares = means**2 + self.variances(theta)
        by_weight = np.concatenate(
            [np.ones((n_atoms, 1)), means / deviation, squares / self._variance], axis=1
        )
        by_theta = np.zeros((n_atoms, self.n_parameters, 1 + 2 * d))
        features = np.arange(d)
        by_theta[:, features, 1 + features] = 1.0 / deviation
        by_theta[:, features, 1 + d + features] = 2.0 * means / self._variance
        by_theta[:, d:, 1 + d :] = self.family.spread / self._variance
        by_theta *= weights[:, None, None]
        return self._row_weight * np.concatenate([by_weight, by_theta.reshape(-1, 1 + 2 * d)])
