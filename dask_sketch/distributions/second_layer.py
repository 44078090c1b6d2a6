"""Second layers of features, for kernels of the discrepancy of two groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.metrics.pairwise import euclidean_distances

Array = NDArray[np.float64]
Kernel = Literal["matern", "rbf"]
_RANK = 1e-10  # smallest eigenvalue of the kernel of the landmarks, relative to the largest
_ROOT = np.sqrt(3.0)


def _matern(squared: Array) -> Array:
    distance = _ROOT * np.sqrt(squared)
    return np.asarray((1.0 + distance) * np.exp(-distance))


def _rbf(squared: Array) -> Array:
    return np.asarray(np.exp(-0.5 * squared))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {"matern": _matern, "rbf": _rbf}
"""Kernels as functions of squared distances in units of the bandwidth."""


@dataclass(frozen=True, eq=False)
class RandomLayer:
    """Random Fourier features of points (Rahimi and Recht 2007).

    Attributes
    ----------
    frequencies
        Shape (n_inputs, n_frequencies).
    """

    frequencies: Array

    @classmethod
    def sample(
        cls,
        n_inputs: int,
        n_frequencies: int,
        kernel: Kernel,
        bandwidth: float,
        random: np.random.RandomState,
    ) -> RandomLayer:
        """Sample the frequencies.

        Parameters
        ----------
        n_inputs, n_frequencies
            Numbers of features of a point, and of frequencies.
        kernel
            Kernel that inner products of features approximate.
        bandwidth
            Bandwidth in units of the points.
        random
            Source of the random numbers.
        """
        frequencies = random.standard_normal((n_inputs, n_frequencies)) / bandwidth
        if kernel == "matern":  # of the smoothness 3/2: Student's t with 3 degrees of freedom
            frequencies *= np.sqrt(3.0 / random.chisquare(3.0, n_frequencies))
        return cls(frequencies)

    @property
    def n_outputs(self) -> int:
        """Number of features."""
        return 2 * self.frequencies.shape[1]

    def apply(self, points: Array) -> Array:
        """Features of points, shape (n_points, 2 * n_frequencies)."""
        angles = points @ self.frequencies
        n_frequencies = angles.shape[1]
        out = np.empty((len(angles), 2 * n_frequencies))
        np.cos(angles, out=out[:, :n_frequencies])
        np.sin(angles, out=out[:, n_frequencies:])
        out /= np.sqrt(n_frequencies)
        return out


@dataclass(frozen=True, eq=False)
class LandmarkLayer:
    """Features whose inner products are the kernel itself for landmarks (Nyström's method).

    Attributes
    ----------
    landmarks
        Some of the points, shape (n_landmarks, n_inputs).
    basis
        Map from values of the kernel to features, shape (n_landmarks, rank).
    kernel
        Kernel of two points.
    bandwidth
        Bandwidth in units of the points.
    """

    landmarks: Array
    basis: Array
    kernel: Kernel
    bandwidth: float

    @classmethod
    def fit(cls, landmarks: Array, kernel: Kernel, bandwidth: float) -> LandmarkLayer:
        """Compute the basis.

        Parameters
        ----------
        landmarks
            Points, shape (n_landmarks, n_inputs).
        kernel
            Kernel of two points.
        bandwidth
            Bandwidth in units of the points.
        """
        squared = euclidean_distances(landmarks, squared=True) / bandwidth**2
        values, vectors = eigh(FUNCTIONS[kernel](squared))
        large = values > _RANK * values[-1]
        # in C order, as it is stored, so that a product has the same bits after reading
        basis = np.ascontiguousarray(vectors[:, large] / np.sqrt(values[large]))
        return cls(np.ascontiguousarray(landmarks), basis, kernel, bandwidth)

    @property
    def n_outputs(self) -> int:
        """Number of features."""
        return int(self.basis.shape[1])

    def apply(self, points: Array) -> Array:
        """Features of points, shape (n_points, rank)."""
        squared = euclidean_distances(points, self.landmarks, squared=True) / self.bandwidth**2
        return np.asarray(FUNCTIONS[self.kernel](squared) @ self.basis)
