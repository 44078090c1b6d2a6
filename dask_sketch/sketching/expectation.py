"""Expectation-maximisation: exact, mergeable statistics of the samples, and one step.

A model decoded from a sketch minimises a kernel distance. A step of EM, with one more pass over the
samples, moves a mixture towards maximum likelihood, and a step of Lloyd's algorithm moves centroids
towards the least mean squared distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.features.kernels.expectation_loop import (
    COUNT_FRACTION,
    FARTHEST,
    FRACTION,
    GROUP,
    REACH,
    expectation_loop,
    weights_by_exponent,
)
from dask_sketch.features.kernels.fixed_point import MAX_EXPONENT, MIN_EXPONENT, FixedPoint
from dask_sketch.features.kernels.matrix_loop import matrix_loop
from dask_sketch.features.kernels.row_loop import OVERFLOW
from dask_sketch.features.kernels.row_reader import native_type
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.low_rank import covariances_of
from dask_sketch.sketching.arguments import (
    checked_chunk,
    refuse_not_finite,
    refuse_weight,
    require_directions,
)
from dask_sketch.validation.arrays import FrozenDataclass, unit_rows
from dask_sketch.validation.choices import rank_of, uses_matrices
from dask_sketch.validation.device import on_host

Array = NDArray[np.float64]
_SLAB = 2**15  # rows that are converted at a time
_SEEN = 1e-6  # samples, of mean weight; fewer do not determine a mean
_BITS = math.log2(math.e)
FINER = 2.0**-12  # unit of centroids whose clusters are narrow, as a fraction of the first unit
_MIN_EIGENVALUE = 1e-13  # floor of eigenvalues in units of variances, which rounding respects
_LOG2_TWO_PI = math.log2(2.0 * math.pi)
_TOO_LARGE = (
    "sums are larger than can be held exactly: a total weight of 7e13, or second moments to match. "
    "Multiply all weights by one smaller factor."
)


@dataclass(frozen=True, eq=False)
class ExpectationStatistics(FrozenDataclass):
    """Exact sums over samples of the responsibilities of the components of one model.

    Integers, which have the same bits for every order and chunking of the samples.

    Attributes
    ----------
    sums
        Sums, as flat integers: responsibilities of the components, their first moments about the
        components, for mixtures the second moments, and the logarithms of the densities.
    count
        Number of samples, including those of weight zero.
    omitted
        Number of rows with NaN or infinite values that were left out.
    """

    sums: FixedPoint
    count: int
    omitted: int

    def __eq__(self, other: object) -> bool:
        """Whether all sums have the same bits."""
        if not isinstance(other, ExpectationStatistics):
            return NotImplemented
        same = self.count == other.count and self.omitted == other.omitted
        return same and self.sums == other.sums

    __hash__ = None  # type: ignore[assignment]

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.sums.nbytes


def merge_statistics(parts: Sequence[ExpectationStatistics]) -> ExpectationStatistics:
    """Merge the statistics of parts of the samples, at least one.

    Raises
    ------
    CapacityError
        If a sum does not fit.
    """
    return ExpectationStatistics(
        FixedPoint.sum([part.sums for part in parts]),
        sum(part.count for part in parts),
        sum(part.omitted for part in parts),
    )


@dataclass(frozen=True, eq=False)
class ExpectationStep(FrozenDataclass):
    """Statistics for one step of EM of a mixture, or of Lloyd's algorithm for centroids.

    Parameters
    ----------
    model
        Mixture, whose responsibilities for a sample sum to one; or centroids, where a sample
        belongs to the nearest.
    unit
        For centroids, length in which moments are counted, near the deviations of the samples;
        by default the root mean squared distance of the centers from their mean.

    Raises
    ------
    InputError
        If components are too narrow for their distances.

    Examples
    --------
    >>> step = ExpectationStep(GaussianMixture([1.0], [[0.0]], [[1.0]]))
    >>> x = np.random.default_rng(0).normal(3.0, 2.0, (1000, 1))
    >>> parts = [step.statistics(x[:300]), step.statistics(x[300:])]
    >>> statistics = merge_statistics(parts)
    >>> statistics == step.statistics(x)
    True
    >>> better = step.maximize(statistics)
    >>> bool(np.allclose(better.means, x.mean()) and np.allclose(better.covariances, x.var()))
    True
    """

    model: GaussianMixture | Centroids
    unit: float | None = None

    def __post_init__(self) -> None:
        if not (np.abs(self._offsets) < REACH / 2).all():
            raise InputError(
                f"model has components {np.abs(self._offsets).max():.3g} of their standard "
                "deviations from its mean: decode it with a larger variance_floor."
            )

    # Parameters in the form of the compiled loop.

    @property
    def hard(self) -> bool:
        """Whether each sample belongs to its nearest component alone."""
        return isinstance(self.model, Centroids)

    @property
    def _spherical(self) -> bool:
        """Whether samples are divided by their lengths."""
        return isinstance(self.model, Centroids) and self.model.normalize

    @property
    def has_matrices(self) -> bool:
        """Whether the components have covariance matrices."""
        model = self.model
        return isinstance(model, GaussianMixture) and uses_matrices(model.covariance_type)

    @property
    def _locations(self) -> Array:
        model = self.model
        return model.centers if isinstance(model, Centroids) else model.means

    @cached_property
    def _center(self) -> Array:
        return np.asarray(self.model.weights @ self._locations)

    @cached_property
    def length(self) -> float:
        """Unit of centroids."""
        if self.unit is not None:
            return self.unit
        distance = float(np.sqrt(((self._locations - self._center) ** 2).sum(axis=1).mean()))
        return distance or float(np.abs(self._center).max()) or 1.0

    @cached_property
    def _deviations(self) -> Array:
        """Standard deviations of the components, or units, shape (n_components, n_features)."""
        if isinstance(self.model, GaussianMixture):
            return np.asarray(np.sqrt(self.model.variances))
        return np.full(self._locations.shape, self.length)

    @cached_property
    def _scale(self) -> float:
        """Deviation in the compiled loop, of one standard deviation or unit."""
        return 1.0 if self.hard else math.sqrt(0.5 * _BITS)

    @cached_property
    def _slopes(self) -> Array:
        return self._scale / self._deviations

    @cached_property
    def _factors(self) -> Array:
        """Cholesky factors of the covariance matrices, shape (K, n_features, n_features)."""
        assert isinstance(self.model, GaussianMixture)
        return np.asarray(np.linalg.cholesky(self.model.covariance_matrices))

    @cached_property
    def _whitening(self) -> Array:
        """Matrices in place of slopes, shape (K, n_features, n_features)."""
        return np.asarray(self._scale * np.linalg.inv(self._factors))

    @cached_property
    def _offsets(self) -> Array:
        away = self._center - self._locations
        if self.has_matrices:
            return np.asarray(np.einsum("kij,kj->ki", self._whitening, away))
        return away * self._slopes

    @cached_property
    def _peaks(self) -> Array:
        if not isinstance(self.model, GaussianMixture):
            return np.zeros(self.model.n_components)
        with np.errstate(divide="ignore"):
            logarithms = np.maximum(np.log2(self.model.weights), -1e300)
        if self.has_matrices:
            halves = np.log2(np.diagonal(self._factors, axis1=1, axis2=2)).sum(axis=1)
            return np.asarray(logarithms - halves - 0.5 * self.model.n_features * _LOG2_TWO_PI)
        return np.asarray(
            logarithms - 0.5 * np.log2(2.0 * np.pi * self.model.variances).sum(axis=1)
        )

    @cached_property
    def _tables(self) -> tuple[Array, ...]:
        """Center, limits, slopes or matrices, offsets and peaks.

        Features of slopes are padded with zeros.
        """
        if self.has_matrices:
            steepest = np.abs(self._whitening).max(axis=(0, 1)) * self.model.n_features
            limits = 0.5 * REACH / steepest
            tables_of_matrices = self._center, limits, self._whitening, self._offsets, self._peaks
            return tuple(map(np.ascontiguousarray, tables_of_matrices))
        padding = ((0, 0), (0, -self.model.n_features % GROUP))
        limits = 0.5 * REACH / self._slopes.max(axis=0)
        slopes, offsets = np.pad(self._slopes, padding), np.pad(self._offsets, padding)
        tables = self._center, limits, slopes, offsets, self._peaks
        return tuple(map(np.ascontiguousarray, tables))

    @property
    def _shape(self) -> tuple[int, int]:
        return self.model.n_components, self.model.n_features

    @property
    def n_sums(self) -> int:
        """Number of sums."""
        k, d = self._shape
        if self.has_matrices:
            return k + k * d + k * d * (d + 1) // 2 + 1
        return k + (1 if self.hard else 2) * k * d + 1

    def prepare(self, dtype: Any = np.float64) -> None:
        """Compile, before the first chunk arrives."""
        self._compiled(np.dtype(dtype))

    def _compiled(self, dtype: Any) -> Callable[..., tuple[int, int, int]]:
        return matrix_loop(dtype) if self.has_matrices else expectation_loop(dtype, self.hard)

    # Statistics of samples.

    def statistics(
        self,
        samples: Any,
        weights: Any = None,
        *,
        nan_policy: str = "raise",
        label: str = "samples",
    ) -> ExpectationStatistics:
        """Compute the statistics of one chunk in memory.

        Parameters
        ----------
        samples
            Chunk of shape (..., n_features) and any real dtype.
        weights
            Weights of shape (...), zero or from ``2**-32`` to ``2**32``; all one when not given.
        nan_policy
            ``"raise"`` refuses the chunk at a row with a NaN or infinite value, ``"omit"`` leaves
            such rows out and counts them.
        label
            Name of the chunk for messages.

        Raises
        ------
        InputError
            If shapes or types do not fit, or values are masked.
        ChunkError
            If a row or a weight is refused, or sums are too large.
        """
        model = self.model
        given, masses = checked_chunk(
            samples, weights, model.n_features, "the model", label, model.feature_names
        )
        x, w = on_host(given), None if masses is None else on_host(masses)
        add_rows = self._compiled(x.dtype)
        sums = np.zeros((2, self.n_sums), np.int64)
        order = np.arange(min(_SLAB, len(x)))
        omit = nan_policy == "omit"
        count = omitted = 0
        for start in range(0, len(x), _SLAB):
            rows = np.ascontiguousarray(x[start : start + _SLAB], dtype=native_type(x.dtype))
            if self._spherical:
                if not omit:
                    require_directions(rows, start, label)
                rows = unit_rows(rows).astype(rows.dtype, copy=False)
            groups, mantissas = [(0, order[: len(rows)])], self._center  # not read without weights
            if w is not None:
                given, left_out = _usable(
                    rows, w[start : start + _SLAB], omit, start, label, self.model.feature_names
                )
                groups = weights_by_exponent(given)
                count += len(rows) - left_out - sum(len(part) for _, part in groups)
                omitted += left_out
            for exponent, part in groups:
                if w is not None:
                    mantissas = np.ldexp(given, -exponent)
                taken, left_out, refused = add_rows(
                    rows, part, mantissas, w is not None, omit, *self._tables, sums,
                    exponent - MIN_EXPONENT,
                )  # fmt: skip
                if refused == OVERFLOW:
                    raise ChunkError(f"{label}: {_TOO_LARGE}")
                if refused >= 0:
                    self._refuse(rows[refused], start + refused, label)
                count += taken
                omitted += left_out
        return ExpectationStatistics(FixedPoint(*sums), count, omitted)

    def _refuse(self, row: NDArray[Any], number: int, label: str) -> NoReturn:
        finite = np.isfinite(row)
        if not finite.all():
            refuse_not_finite(row, number, label, self.model.feature_names)
        away = np.abs((row - self._locations) / self._deviations).max(axis=1).min()
        raise ChunkError(
            f"{label}: row {number} of this chunk is {away:.3g} "
            f"{'units' if self.hard else 'standard deviations'} from the nearest component; the "
            f"limit of exact sums is {math.sqrt(FARTHEST):.3g}. Remove fill values, or decode a "
            "model of these data."
        )

    # Results of the statistics.

    def _moments(self, statistics: ExpectationStatistics) -> tuple[Array, Array, Array, float]:
        """Counts, first and second moments in standard deviations, and sum of logarithms.

        With covariance matrices the samples are whitened first, and the second moments have the
        shape (n_components, n_features, n_features).
        """
        if statistics.sums.shape != (self.n_sums,):
            raise InputError(
                f"statistics has {statistics.sums.shape[0]} sums; a model of this shape has "
                f"{self.n_sums}. Compute them with the same model."
            )
        k, d = self._shape
        counts = statistics.sums.to_float(COUNT_FRACTION - MIN_EXPONENT)[:k]
        moments = statistics.sums.to_float(FRACTION - MIN_EXPONENT)
        first = moments[k : k + k * d].reshape(k, d) / self._scale
        second = moments[k + k * d : -1] / self._scale**2
        second = _symmetric(second, d) if self.has_matrices else second.reshape(-1, d)
        if not counts.sum() > 0:
            raise InputError(
                "statistics has a total count of 0: compute it from at least one sample."
            )
        return counts, first, second, float(moments[-1])

    def objective(self, statistics: ExpectationStatistics) -> float:
        """Mean log-likelihood of the model in nats, or mean squared distance to the centroids."""
        counts, _, _, total = self._moments(statistics)
        mean = total / float(counts.sum())
        return -mean * self.length**2 if self.hard else mean / _BITS

    def is_coarse(self, statistics: ExpectationStatistics) -> bool:
        """Whether clusters are so narrow for the first unit that sums are rounded too coarsely.

        A further pass, with a unit of ``FINER`` times ``length``, is then needed.
        """
        return self.hard and self.unit is None and (
            self.objective(statistics) < FINER**2 * self.length**2
        )  # fmt: skip

    def maximize(
        self, statistics: ExpectationStatistics, floor: Any = 0.0
    ) -> GaussianMixture | Centroids:
        """Perform the step, which does not decrease the likelihood (Dempster et al. 1977).

        Components without samples keep their parameters, with zero weight.

        Parameters
        ----------
        statistics
            Statistics of :meth:`statistics`.
        floor
            Smallest variances of a mixture, of a shape that broadcasts to (n_components,
            n_features). The likelihood does not decrease if they are at most those of the model.
            Covariance matrices are at least the diagonal matrix of these variances, or the largest
            part of it that bounds the matrices of the model.

        Returns
        -------
        model
            Model after the step. Covariances of one variance for each component stay so, and known
            ones stay as they are, if the model was decoded as such.

        Raises
        ------
        InputError
            If the statistics belong to a model of another shape, or to no samples.
        """
        counts, first, second, _ = self._moments(statistics)
        seen = counts > _SEEN * counts.sum() / max(statistics.count, 1)
        shift = np.where(seen[:, None], first / np.where(seen, counts, 1.0)[:, None], 0.0)
        weights = counts / counts.sum()
        model = self.model
        if self.has_matrices:
            return self._with_matrices(weights, shift, second, np.where(seen, counts, 0.0), floor)
        locations = self._locations + shift * self._deviations
        if isinstance(model, Centroids):
            if model.normalize:
                length = np.linalg.norm(locations, axis=1)[:, None]
                seen = length > 0.0
                locations = np.where(seen, locations / np.where(seen, length, 1.0), model.centers)
            return Centroids(
                weights, locations, model.decoding, normalize=model.normalize,
                feature_names=model.feature_names,
            )  # fmt: skip
        variances = model.variances
        if covariance_shape(model) != "known":
            spread = second / np.where(seen, counts, 1.0)[:, None] - shift**2
            fitted = np.maximum(spread, 0.0) * variances
            if covariance_shape(model) == "isotropic":
                fitted, floor = (
                    np.broadcast_to(
                        np.broadcast_to(values, fitted.shape).mean(axis=1)[:, None],
                        fitted.shape,
                    )
                    for values in (fitted, floor)
                )
            fitted = np.maximum(fitted, floor)
            variances = np.where(seen[:, None] & (fitted > 0.0), fitted, variances)
        kind = model.covariance_type
        fitted = variances[:, 0] if kind == "spherical" else variances
        return GaussianMixture(
            weights, locations, fitted, model.decoding, covariance_type=kind,
            feature_names=model.feature_names,
        )  # fmt: skip

    def _with_matrices(
        self, weights: Array, shift: Array, second: Array, counts: Array, floor: Any
    ) -> GaussianMixture:
        """Mixture after a step, from whitened shifts and second moments."""
        model, factors = self.model, self._factors
        assert isinstance(model, GaussianMixture)
        divisor = np.where(counts > 0.0, counts, 1.0)[:, None, None]
        spread = second / divisor - shift[:, :, None] * shift[:, None, :]
        matrices = factors @ spread @ np.swapaxes(factors, 1, 2)
        before, empty = model.covariance_matrices, counts <= 0.0
        matrices = np.where(empty[:, None, None], before, matrices)
        if model.covariance_type == "tied":
            matrices = np.einsum("k,kij->ij", counts / counts.sum(), matrices)[None]
            before = before[:1]
        smallest = np.maximum(floor, _MIN_EIGENVALUE * model.variances).min(axis=0)
        if rank_of(model.covariance_type) is not None:
            before = model.covariances
        matrices = covariances_of(model.covariance_type).constrained(matrices, before, smallest)
        if model.covariance_type != "tied":
            matrices = np.where(empty[:, None, None], before, matrices)
        return GaussianMixture(
            weights,
            model.means + np.einsum("kij,kj->ki", factors, shift),
            matrices[0] if model.covariance_type == "tied" else matrices,
            model.decoding,
            covariance_type=model.covariance_type,
            feature_names=model.feature_names,
        )

    def gain(self, statistics: ExpectationStatistics, better: GaussianMixture | Centroids) -> float:
        """Lower bound of the change of the objective by a step, from its statistics alone.

        For a mixture, it is the change of the expected log-likelihood of samples and components, in
        nats per sample; for centroids, the change of the mean squared distance with unchanged
        clusters.

        Parameters
        ----------
        statistics
            Statistics of :meth:`statistics`.
        better
            Model after the step.
        """
        counts, first, second, _ = self._moments(statistics)
        fractions = counts / counts.sum()
        seen = fractions > 0
        fractions, counts = fractions[seen], counts[seen, None]
        first = first[seen] / counts
        if isinstance(better, Centroids):
            if self._spherical:
                moved = first - (better.centers - self._locations)[seen] / self.length
                change = (moved**2).sum(axis=1) - (first**2).sum(axis=1)
                return float(fractions @ change) * self.length**2
            return -float(fractions @ (first**2).sum(axis=1)) * self.length**2
        model = self.model
        assert isinstance(model, GaussianMixture)
        if self.has_matrices:
            means = second[seen] / counts[:, :, None]
            change = self._change_of_matrices(first, means, better, seen)
            return float(
                fractions @ (_log_ratios(better.weights[seen], model.weights[seen]) + change)
            )
        second, deviations = second[seen] / counts, self._deviations[seen]
        ratio = model.variances[seen] / better.variances[seen]
        shift = (better.means[seen] - model.means[seen]) / deviations
        after = (second - 2.0 * shift * first + shift**2) * ratio
        logarithms = _log_ratios(better.weights[seen], model.weights[seen])
        change = 0.5 * (np.log(ratio) - after + second).sum(axis=1)
        return float(fractions @ (logarithms + change))

    def _change_of_matrices(
        self, first: Array, second: Array, better: GaussianMixture, seen: NDArray[np.bool_]
    ) -> Array:
        """Change of the expected log-density of each component, from whitened mean moments."""
        model = self.model
        assert isinstance(model, GaussianMixture)
        inverse = np.linalg.inv(self._factors[seen])
        shift = np.einsum("kij,kj->ki", inverse, (better.means - model.means)[seen])
        after = inverse @ better.covariance_matrices[seen] @ np.swapaxes(inverse, 1, 2)
        cross = shift[:, :, None] * first[:, None, :]
        moved = second - cross - np.swapaxes(cross, 1, 2) + shift[:, :, None] * shift[:, None, :]
        squares = np.trace(np.linalg.solve(after, moved), axis1=1, axis2=2)
        before = np.trace(second, axis1=1, axis2=2)
        return np.asarray(0.5 * (before - squares - np.linalg.slogdet(after)[1]))


def _symmetric(lower: Array, d: int) -> Array:
    """Symmetric matrices (K, d, d) of their lower triangles, row after row."""
    rows, columns = np.tril_indices(d)
    parts = lower.reshape(-1, len(rows))
    out = np.empty((len(parts), d, d))
    out[:, rows, columns] = parts
    out[:, columns, rows] = parts
    return out


def _log_ratios(after: Array, before: Array) -> Array:
    """Logarithms of ratios of weights; zero where a weight is zero."""
    with np.errstate(divide="ignore"):
        ratios = np.log(after) - np.log(before)
    return np.asarray(np.where(np.isfinite(ratios), ratios, 0.0))


def covariance_shape(model: GaussianMixture) -> str:
    """Shape of the covariances of a mixture: ``"gaussian"``, ``"isotropic"`` or ``"known"``."""
    if model.covariance_type == "spherical":
        return "isotropic"
    return "gaussian" if model.decoding is None else model.decoding.model


def _usable(
    rows: NDArray[Any],
    weights: NDArray[Any],
    omit: bool,
    start: int,
    label: str,
    names: tuple[str, ...] | None,
) -> tuple[Array, int]:
    """Weights, zero for rows that are left out, and the number of these; refuse bad ones."""
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all() and not omit:
        bad = int(np.argmin(finite))
        refuse_not_finite(rows[bad], start + bad, label, names)
    usable = np.where(finite, weights, 0.0).astype(np.float64)
    fine = (usable >= 2.0**MIN_EXPONENT) & (usable <= 2.0**MAX_EXPONENT) | (usable == 0)
    if not fine.all():
        bad = int(np.argmin(fine))
        refuse_weight(float(weights[bad]), start + bad, label)
    return usable, int((~finite).sum())
