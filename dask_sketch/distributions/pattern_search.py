"""Active search for regions with a pattern, from observations at single points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import psutil
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.sparse import csr_array

from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.threads import one_blas_thread

Array = NDArray[np.float64]
_COPIES = 4  # copies of the covariance of the points in memory, at most
_FEW = 0.2  # fraction of nonzero weights below which they are stored as a sparse matrix
_TINY = 1e-12  # relative variance below which an observation changes nothing
_CONTRADICTION = 1e-3  # largest error of an observation of a known value, in prior deviations


class Regions(Protocol):
    """Regions with a probability of a pattern, for a field with a Gaussian distribution."""

    @property
    def n_regions(self) -> int:
        """Number of regions."""
        ...

    def probabilities(self, mean: Array, covariance: Array) -> Array:
        """Probability of the pattern in each region, shape (n_regions,)."""
        ...

    def rewards(
        self,
        mean: Array,
        covariance: Array,
        candidates: NDArray[np.intp],
        noise_variance: float,
        threshold: float,
    ) -> Array:
        """Probability that a region is found after an observation at a candidate.

        A region is found if the probability of its pattern exceeds the threshold. The shape is
        (n_regions, n_candidates).
        """
        ...


@dataclass(frozen=True, eq=False)
class ProbitRegions:
    """Regions whose pattern depends on a linear function of the field, in closed form.

    The probability of the pattern for a field ``f`` at the points is ``Phi(weights @ f +
    offsets)``, with the normal distribution function ``Phi``, eq. (7.7) of Sutherland (2016).

    Parameters
    ----------
    weights
        Weights of the points, shape (n_regions, n_points).
    offsets
        Offsets, shape (n_regions,).

    Raises
    ------
    InputError
        If the shapes do not go together.

    Examples
    --------
    >>> regions = ProbitRegions.of_means([[True, True, False], [False, True, True]], level=1.0)
    >>> regions.probabilities(np.array([1.0, 1.0, 3.0]), np.zeros((3, 3))).round(2)
    array([0.5, 1. ])
    """

    weights: Array
    offsets: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", np.asarray(self.weights, dtype=np.float64))
        object.__setattr__(self, "offsets", np.asarray(self.offsets, dtype=np.float64))
        if self.weights.ndim != 2 or self.offsets.shape != self.weights.shape[:1]:
            raise InputError(
                f"offsets has shape {self.offsets.shape} with weights of shape "
                f"{self.weights.shape}: give (n_regions,) and (n_regions, n_points).",
                parameter="offsets",
            )

    @classmethod
    def of_means(cls, members: ArrayLike, level: float, sharpness: float = 10.0) -> ProbitRegions:
        """Regions whose mean is above a level.

        Parameters
        ----------
        members
            Points of each region, bool, shape (n_regions, n_points).
        level
            Level of the mean of the field.
        sharpness
            Steepness of the pattern, above 0: for a known mean, its probability is
            ``Phi(sharpness * (mean - level))``.

        Returns
        -------
        regions
            Regions with weights and offsets for their means.

        Raises
        ------
        InputError
            If a region has no points.
        """
        inside = np.asarray(members, dtype=np.float64)
        sharpness = require_number("sharpness", sharpness, 0.0, math.inf, strict=True)
        if inside.ndim != 2 or not inside.any(axis=1).all():
            raise InputError(
                f"members has shape {inside.shape}: give the points of each region, (n_regions, "
                "n_points), at least one for each.",
                parameter="members",
            )
        weights = sharpness * inside / inside.sum(axis=1, keepdims=True)
        return cls(weights, np.full(len(inside), -sharpness * float(level)))

    @property
    def n_regions(self) -> int:
        """Number of regions."""
        return len(self.weights)

    @cached_property
    def _operator(self) -> Any:
        """Weights; a sparse matrix if most of them are zero."""
        few = np.count_nonzero(self.weights) < _FEW * self.weights.size
        return csr_array(self.weights) if few else self.weights

    def probabilities(self, mean: Array, covariance: Array) -> Array:
        """Probability of the pattern in each region, shape (n_regions,).

        Parameters
        ----------
        mean, covariance
            Mean and covariance of the field at the points, shape (n_points,) and (n_points,
            n_points).
        """
        variance = np.einsum("gn,gn->g", self._operator @ covariance, self.weights)
        return np.asarray(
            special.ndtr((self.weights @ mean + self.offsets) / np.sqrt(1.0 + variance))
        )

    def rewards(
        self,
        mean: Array,
        covariance: Array,
        candidates: NDArray[np.intp],
        noise_variance: float,
        threshold: float,
    ) -> Array:
        """Probability that a region is found after one more observation, eq. (7.11).

        Parameters
        ----------
        mean, covariance
            Mean and covariance of the field at the points.
        candidates
            Positions of the points that may be observed.
        noise_variance
            Variance of the noise of an observation.
        threshold
            Probability of the pattern above which a region is found.

        Returns
        -------
        rewards
            Probabilities, shape (n_regions, n_candidates).
        """
        linked = self._operator @ covariance
        center = self.weights @ mean + self.offsets
        variance = np.einsum("gn,gn->g", linked, self.weights)
        observed = covariance[candidates, candidates] + noise_variance
        change = linked[:, candidates] ** 2 / np.maximum(observed, np.finfo(float).tiny)
        left = np.sqrt(np.maximum(1.0 + variance[:, None] - change, 1.0))
        gap = center[:, None] - left * float(special.ndtri(threshold))
        moves = change > _TINY * (1.0 + variance[:, None])
        ratio = gap / np.sqrt(np.where(moves, change, 1.0))
        return np.where(moves, special.ndtr(ratio), gap > 0.0)


@dataclass(frozen=True, eq=False)
class SampledRegions:
    """Regions with any classifier, evaluated on sampled fields.

    Parameters
    ----------
    classify
        Function from fields at the points, shape (n_fields, n_points), to the probabilities of the
        pattern, shape (n_fields, n_regions), between 0 and 1.
    n_regions
        Number of regions.
    n_fields
        Number of sampled fields for each value of an observation, ``>= 1``.
    n_values
        Number of values of an observation, ``>= 1``.
    seed
        Seed of the sampled fields, ``>= 0``. They are the same in each step, for all candidates.

    Raises
    ------
    InputError
        If a number is out of range.

    Examples
    --------
    >>> def above_zero(fields):
    ...     return (fields > 0.0).astype(float)
    >>> regions = SampledRegions(above_zero, n_regions=2, n_fields=4000)
    >>> regions.probabilities(np.array([0.0, 1.0]), np.eye(2)).round(1)
    array([0.5, 0.8])
    """

    classify: Callable[[Array], Array]
    n_regions: int
    n_fields: int = 200
    n_values: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_regions", "n_fields", "n_values"):
            require_integer(name, getattr(self, name), 1)
        require_integer("seed", self.seed, 0)

    def _classified(self, fields: Array) -> Array:
        values = np.asarray(self.classify(fields), dtype=np.float64)
        if values.shape != (len(fields), self.n_regions):
            raise InputError(
                f"classify returned shape {values.shape} for {len(fields)} fields: return "
                f"(n_fields, {self.n_regions}).",
                parameter="classify",
            )
        return values

    def _fields(self, mean: Array, covariance: Array, rng: np.random.Generator) -> Array:
        values, basis = np.linalg.eigh(covariance)
        root = basis * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(mean + rng.standard_normal((self.n_fields, len(mean))) @ root.T)

    def probabilities(self, mean: Array, covariance: Array) -> Array:
        """Probability of the pattern in each region, shape (n_regions,), eq. (7.1).

        Parameters
        ----------
        mean, covariance
            Mean and covariance of the field at the points.
        """
        fields = self._fields(mean, covariance, np.random.default_rng(self.seed))
        return np.asarray(self._classified(fields).mean(axis=0))

    def rewards(
        self,
        mean: Array,
        covariance: Array,
        candidates: NDArray[np.intp],
        noise_variance: float,
        threshold: float,
    ) -> Array:
        """Probability that a region is found after one more observation, eq. (7.4).

        Values are quantiles of their distribution, eq. (7.3). Fields given a value are corrections
        of fields that are sampled once (Matheron's rule).

        Parameters
        ----------
        mean, covariance
            Mean and covariance of the field at the points.
        candidates
            Positions of the points that may be observed.
        noise_variance
            Variance of the noise of an observation.
        threshold
            Probability of the pattern above which a region is found.

        Returns
        -------
        rewards
            Probabilities, shape (n_regions, n_candidates).
        """
        rng = np.random.default_rng(self.seed)
        fields = self._fields(mean, covariance, rng)
        noise = math.sqrt(noise_variance) * rng.standard_normal(self.n_fields)
        # quantiles of the observed value in place of random ones
        steps = special.ndtri((np.arange(self.n_values) + 0.5) / self.n_values)
        out = np.zeros((self.n_regions, len(candidates)))
        for position, candidate in enumerate(candidates):
            variance = float(covariance[candidate, candidate]) + noise_variance
            gain = covariance[candidate] / max(variance, np.finfo(float).tiny)
            for step in steps:
                value = mean[candidate] + step * math.sqrt(max(variance, 0.0))
                gap = value - fields[:, candidate] - noise
                fractions = self._classified(fields + gap[:, None] * gain).mean(axis=0)
                out[:, position] += fractions > threshold
        return out / self.n_values


class PatternSearch:
    """Search for regions with a pattern, by the observations that are expected to find the most.

    A field has a Gaussian process as its prior and is observed at points, one after the other. A
    region is found when the probability of its pattern is above a threshold. The next point has the
    largest expected number of regions that are found after its observation.

    Parameters
    ----------
    points
        Points where the field may be observed, shape (n_points, n_dims). The covariance of all
        pairs is kept in memory.
    kernel
        Kernel of scikit-learn, such as ``RBF(3.0)``, or any function from points to their
        covariance, shape (n_points, n_points).
    regions
        :class:`ProbitRegions`, in closed form, or :class:`SampledRegions`, for any classifier.
    noise_variance
        Variance of the noise of an observation, ``>= 0``.
    mean
        Mean of the field.
    threshold
        Probability of the pattern above which a region is found, in (0, 1).

    Attributes
    ----------
    mean
        Mean of the field at the points, given the observations, shape (n_points,).
    covariance
        Covariance of the field at the points, given the observations, shape (n_points, n_points).
    found
        Whether a region was found, after any of the observations, bool, shape (n_regions,).

    Raises
    ------
    InputError
        If an argument is out of range, or the points need more memory than is free.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, chapter 7. Ma,
    Sutherland, Garnett, Schneider (2015), Active pointillistic pattern search.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> points = np.arange(20.0)[:, None]
    >>> halves = [points[:, 0] < 10, points[:, 0] >= 10]
    >>> regions = ProbitRegions.of_means(halves, level=0.5)
    >>> search = PatternSearch(points, RBF(4.0), regions, noise_variance=0.01)
    >>> field = np.where(points[:, 0] < 10, -1.0, 2.0)
    >>> for _ in range(6):
    ...     position = search.next_point()
    ...     search.observe(position, field[position])
    >>> search.found
    array([False,  True])
    """

    def __init__(
        self,
        points: ArrayLike,
        kernel: Any,
        regions: Regions,
        *,
        noise_variance: float,
        mean: float = 0.0,
        threshold: float = 0.7,
    ):
        array = np.asarray(points, dtype=np.float64)
        if array.ndim != 2 or not array.size:
            raise InputError(
                f"points has shape {array.shape}: give (n_points, n_dims).", parameter="points"
            )
        n_bytes = 8 * _COPIES * len(array) ** 2
        if n_bytes > psutil.virtual_memory().available:
            raise InputError(
                f"points has {len(array):,} rows, whose covariance takes {n_bytes / 1e9:.3g} GB. "
                "Give fewer points.",
                parameter="points",
            )
        self.noise_variance = require_number("noise_variance", noise_variance, 0.0, math.inf)
        self.threshold = require_number("threshold", threshold, 0.0, 1.0, strict=True)
        if not callable(kernel):
            raise InputError(
                f"kernel={kernel!r}: give a kernel of scikit-learn, like RBF(3.0), or a function.",
                parameter="kernel",
            )
        self.points, self.regions = array, regions
        self.mean = np.full(len(array), float(mean))
        self.covariance: Array = np.array(kernel(array), dtype=np.float64)
        if self.covariance.shape != (len(array), len(array)):
            raise InputError(
                f"kernel returned shape {self.covariance.shape} for {len(array)} points: return "
                "(n_points, n_points).",
                parameter="kernel",
            )
        if isinstance(regions, ProbitRegions) and regions.weights.shape[1] != len(array):
            raise InputError(
                f"regions has weights of {regions.weights.shape[1]} points: give weights of the "
                f"{len(array)} points.",
                parameter="regions",
            )
        self._deviation = math.sqrt(max(float(np.diagonal(self.covariance).max()), 0.0))
        self.found = np.zeros(regions.n_regions, dtype=bool)
        self.found |= self.probabilities > self.threshold

    @property
    def probabilities(self) -> Array:
        """Probability of the pattern in each region, given the observations."""
        with one_blas_thread():
            return self.regions.probabilities(self.mean, self.covariance)

    def observe(self, position: int, value: float) -> None:
        """Add an observation of the field.

        Parameters
        ----------
        position
            Position of the point, from 0.
        value
            Observed value, with noise.

        Raises
        ------
        InputError
            If there is no such point, the value is not finite, or it contradicts an earlier value
            without noise.
        """
        position = self._position("position", position)
        value = require_number("value", value, -math.inf, math.inf, strict=True)
        column = self.covariance[:, position].copy()
        variance = float(column[position]) + self.noise_variance
        if variance > _TINY * max(float(np.diagonal(self.covariance).max()), 1e-300):
            self.mean = self.mean + column * ((value - self.mean[position]) / variance)
            self.covariance -= np.outer(column, column / variance)
        elif abs(value - self.mean[position]) > _CONTRADICTION * self._deviation:
            raise InputError(
                f"value={value:g} at position {position}, where the field is known to be "
                f"{self.mean[position]:g}: give a noise_variance above {self.noise_variance:g} if "
                "observations of one point differ.",
                parameter="value",
            )
        self.found = self.found | (self.probabilities > self.threshold)

    def _position(self, name: str, given: object) -> int:
        position = require_integer(name, given, 0)
        if position >= len(self.points):
            raise InputError(
                f"{name}={position}: give a position from 0 to {len(self.points) - 1:,}."
            )
        return position

    def expected_rewards(self, candidates: ArrayLike | None = None) -> Array:
        """Expected number of further regions that one observation finds, eq. (7.2).

        Parameters
        ----------
        candidates
            Positions of the points that may be observed; all by default.

        Returns
        -------
        rewards
            Expected numbers, shape (n_candidates,), without regions that were found before.

        Raises
        ------
        InputError
            If a candidate is not the position of a point.
        """
        chosen = self._candidates(candidates)
        with one_blas_thread():
            rewards = self.regions.rewards(
                self.mean, self.covariance, chosen, self.noise_variance, self.threshold
            )
        return np.asarray(rewards[~self.found].sum(axis=0))

    def next_point(self, candidates: ArrayLike | None = None) -> int:
        """Choose the point with the largest expected reward.

        Among points with equal rewards, such as after all regions were found, the point with the
        largest variance is chosen.

        Parameters
        ----------
        candidates
            Positions of the points that may be observed; all by default.

        Returns
        -------
        position
            Position of the point, from 0.

        Raises
        ------
        InputError
            If a candidate is not the position of a point.
        """
        chosen = self._candidates(candidates)
        rewards = self.expected_rewards(chosen)
        best = np.flatnonzero(rewards >= rewards.max())
        variances = self.covariance[chosen[best], chosen[best]]
        return int(chosen[best[np.argmax(variances)]])

    def _candidates(self, candidates: ArrayLike | None) -> NDArray[np.intp]:
        if candidates is None:
            return np.arange(len(self.points))
        chosen = np.asarray(candidates)
        if chosen.ndim != 1 or not chosen.size or chosen.dtype.kind not in "iu":
            raise InputError(
                f"candidates has shape {chosen.shape} and type {chosen.dtype}: give positions of "
                "points, integers of shape (n_candidates,).",
                parameter="candidates",
            )
        for position in (int(chosen.min()), int(chosen.max())):
            self._position("candidates", position)
        return chosen.astype(np.intp)
