"""A decoding problem with its checked arguments, and the solution that every method returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dask_sketch.decoders.factor_descent import FactorObjective
from dask_sketch.decoders.names import TRANSFORMS
from dask_sketch.decoders.objectives.atoms import VARIANCE_FLOOR, Array, count_shapes
from dask_sketch.decoders.objectives.cuda import DeviceObjective
from dask_sketch.decoders.objectives.matrix_objective import MatrixObjective
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.starts import Start
from dask_sketch.errors import DecodeError
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.choices import rank_of, uses_matrices
from dask_sketch.validation.threads import Threads

Report = Callable[[float], None]  # called with the cost after each iteration
# Fraction of the variance floor down to which efficient refinement may lower variances.
_REFINED_FLOOR = 0.1


@dataclass(frozen=True)
class Problem:
    """A sketch to decode, with the checked arguments of :func:`dask_sketch.decode`.

    Attributes
    ----------
    sketch
        Sketch of at least one sample.
    n_components
        Number of components; None if the method or the start determines it.
    method, model, maxima, merge, refine, seed, replicates, variance_floor, device, shared_alpha
        Arguments of :func:`dask_sketch.decode`.
    box
        Lowest and highest means, shape (2, n_features), in data units; None without bounds.
    covariance
        Known covariance matrix (n_features, n_features), in data units, of ``model="known"``.
    start
        Components to start from, in place of a method.
    covariance_type
        Type of the covariances of ``model="gaussian"``, as in :class:`GaussianMixture`.
    is_default
        Whether the method is the default one, chosen by the sketch and the other arguments.
    """

    sketch: Sketch
    n_components: int | None
    method: str
    model: str
    box: Array | None = None
    covariance: Array | None = None
    start: Start | None = None
    maxima: str = "shift"
    merge: bool = False
    refine: str | None = None
    seed: int = 0
    replicates: int = 1
    variance_floor: float = VARIANCE_FLOOR
    device: str | None = None
    covariance_type: str = "diag"
    shared_alpha: bool = False
    is_default: bool = False

    @property
    def has_matrices(self) -> bool:
        """Whether components have covariance matrices."""
        return uses_matrices(self.covariance_type)

    @property
    def family(self) -> str:
        """Family of the atoms: the model, or the covariance type of matrices."""
        return self.covariance_type if self.has_matrices else self.model

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.sketch.feature_map.n_features

    @property
    def n_frequencies(self) -> int:
        """Number of frequencies."""
        return self.sketch.feature_map.n_frequencies

    @property
    def size(self) -> int | None:
        """Number of components, of the start if there is no other; None if it is to be found."""
        if self.n_components is None and self.start is not None:
            return len(self.start.weights)
        return self.n_components

    @property
    def required_size(self) -> int:
        """Number of components, for methods that do not find it."""
        assert self.size is not None  # the table lists the methods that find the number
        return self.size

    def count_parameters(self, family: str | None = None) -> int:
        """Number of parameters of one component of a family, its weight included.

        A matrix that all components share counts as a part for each of them.

        Parameters
        ----------
        family
            Family of atoms, by default the family of the problem.
        """
        family = family or self.family
        if family in TRANSFORMS:
            return 2 + self.n_features if family == "von-mises-fisher" else 2 + 2 * self.n_features
        n_shapes = count_shapes(family, self.n_features)
        if family == "tied":
            n_shapes = -(-n_shapes // (self.size or 1))
        return 1 + self.n_features + n_shapes

    def count_solved(self) -> int:
        """Number of parameters of all components in the equations for their matrices."""
        d = self.n_features
        family = self.family if rank_of(self.family) is not None else "full"
        return self.required_size * (1 + d + count_shapes(family, d))

    def objective(self, threads: Threads, variance_floor: float | None = None) -> Objective:
        """Objective of the problem, on the processor or the GPU.

        Parameters
        ----------
        threads
            Threads that work on blocks of frequencies.
        variance_floor
            Smallest variance, by default the floor of the problem.
        """
        kind: type[Objective] = Objective if self.device is None else DeviceObjective
        if rank_of(self.covariance_type) is not None:
            kind = FactorObjective
        elif uses_matrices(self.family) and self.device is None:
            kind = MatrixObjective
        return kind(
            self.sketch,
            self.family,
            box=self.box,
            variance_floor=self.variance_floor if variance_floor is None else variance_floor,
            covariance=self.covariance,
            threads=threads,
        )

    def released_objective(self, threads: Threads) -> Objective:
        """Objective with a lower variance floor, for efficient refinement.

        Parameters
        ----------
        threads
            Threads that work on blocks of frequencies.
        """
        return self.objective(threads, _REFINED_FLOOR * self.variance_floor)


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Components found by a method, in the units of the data.

    Attributes
    ----------
    weights
        Weights, shape (K,); those of the final solution are decreasing and sum to one.
    means
        Means or centroids, shape (K, n_features).
    variances
        Variances, shape (K, n_features); None for centroids.
    cost
        Cost ``||z - A P||**2``.
    noise_level
        Noise level of the sketch.
    converged, message
        Whether the last descent converged, and how it ended.
    n_evaluations
        Number of evaluations of correlation or cost.
    standard_errors
        Standard errors of weights, means and variances or matrices, of the same shapes, and of the
        noise variances of components with factors, if there are any.
    searched
        Noise level at the last search for other components; None if it was this one.
    score
        Mean log-likelihood of the calibrated rows in nats, or for centroids their negative mean
        squared error; None without such rows.
    gain
        Excess of the score over that of the rejected candidate.
    matrices
        Covariance matrices, shape (K, n_features, n_features), whose diagonals are the variances;
        None for problems without.
    factors
        Noise variances and loadings of the matrices, shape (K, n_features, 1 + rank), for
        ``covariance_type="low-rank:r"``; else None.
    overidentification
        Overidentification statistic, its mean and its standard deviation for data of such a
        mixture; None unless it was computed.
    parameters
        Further arrays of a model that has neither variances nor matrices nor centroids, each with K
        rows, by their names; None for other models. Its ``means`` are locations or directions.
    unresolved
        Expected loss in nats a sample by axes of covariance matrices whose variances are within
        their errors; infinite for matrices as narrow as a fit allows.
    is_like_pilot
        Whether it is as likely as the mixture with matrices of the pilot rows, within chance.
    """

    weights: Array
    means: Array
    variances: Array | None
    cost: float
    noise_level: float
    converged: bool
    message: str
    n_evaluations: int
    standard_errors: tuple[Array, ...] | None = None
    searched: float | None = None
    score: float | None = None
    gain: float | None = None
    matrices: Array | None = None
    factors: Array | None = None
    overidentification: tuple[float, float, float] | None = None
    parameters: dict[str, Array] | None = None
    unresolved: float = 0.0
    is_like_pilot: bool = False

    @property
    def shapes(self) -> Array | None:
        """Covariance matrices where there are any, else variances."""
        return self.variances if self.matrices is None else self.matrices


def require_weight(weights: Array) -> None:
    """Raise an error if all weights are zero.

    Raises
    ------
    DecodeError
        If they are.
    """
    if not weights.sum() > 0:
        raise DecodeError(
            "no component explains the sketch: all weights are zero, so that the frequencies do "
            "not see the data. Design the feature map on a sample of the data; for "
            "covariance_type='spherical', scale the features alike, or sketch with sample=True."
        )


def lowest_cost(
    problem: Problem, solutions: list[Solution], threads: Threads, report: Report
) -> Solution:
    """Solution of the replicate of lowest cost, its weights divided by their sum."""
    best = min(solutions, key=lambda each: each.cost)
    require_weight(best.weights)
    return replace(
        best,
        weights=best.weights / best.weights.sum(),
        n_evaluations=sum(each.n_evaluations for each in solutions),
    )
