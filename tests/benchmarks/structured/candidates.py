"""The sketches that are compared: which frequencies, and how their moment sums are computed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dask_sketch import FeatureMap
from dask_sketch.features.frequencies import SampledFrequencies
from dask_sketch.features.frequency_distributions import adapted_radius, sample_frequencies
from dask_sketch.features.kernels.prepared import kernel_for
from dask_sketch.features.kernels.structured_frequencies import GROUP, SIDE, split
from tests.benchmarks.structured import prototypes
from tests.benchmarks.structured.prototypes import ROWS, Sums

# frequencies (n_features, n_frequencies), and what computes sums at them or at a few more
Made = tuple[np.ndarray, Sums]


@dataclass(frozen=True)
class Candidate:
    """A name, and what makes its frequencies for variances of components, a size and a seed."""

    name: str
    make: Callable[[np.ndarray, int, int], Made]

    def feature_map(self, like: FeatureMap, n_frequencies: int, seed: int) -> FeatureMap:
        """A map that holds these frequencies, for samples as ``like`` is for."""
        variances = like.distribution_variances[0]
        blank = FeatureMap(
            like.n_features,
            n_frequencies,
            covariances=variances,
            center=like.center,
            # maps are kept by specification: none that is drawn may look the same
            seed=10**6 * (1 + [c.name for c in CANDIDATES].index(self.name)) + seed,
        )
        omega = self.make(variances, n_frequencies, seed)[0]
        digest = SampledFrequencies(blank._sampling, omega / (2 * np.pi)).digest
        return FeatureMap.from_spec(blank.spec, digest, omega)

    def rate(self, n_features: int, n_frequencies: int, repeats: int = 9) -> float:
        """G (sample, frequency) pairs per second of CPU time: the fastest of some runs."""
        omega, sums = self.make(np.ones(n_features), n_frequencies, 0)
        n = max(int(1e7 / n_frequencies) // ROWS, 1) * ROWS
        x = np.random.default_rng(0).normal(size=(n, n_features)).astype(np.float32)
        spent = []
        for _ in range(repeats + 1):
            start = time.process_time()
            done = sums(x)
            spent.append(time.process_time() - start)
        assert len(done) >= omega.shape[1]
        return n * len(done) / max(min(spent[1:]), 1e-9) / 1e9


def by_distribution(distribution: str) -> Callable[[np.ndarray, int, int], Made]:
    """A distribution of the library with the kernel that it has there."""

    def make(variances: np.ndarray, m: int, seed: int) -> Made:
        fm = FeatureMap(
            len(variances), m, covariances=variances, distribution=distribution, seed=seed
        )
        kernel = kernel_for(distribution, fm.n_features, fm.dtype)
        packed = kernel.pack(fm.cycles_per_unit)
        block = 4096 * 12 // max(fm.n_features, 12) // ROWS * ROWS or ROWS

        def sums(x: np.ndarray) -> np.ndarray:
            totals = kernel.zeros(packed)
            for start in range(0, len(x), block):
                kernel.add(x[start : start + block], packed, totals)
            real, imaginary = kernel.unpack(totals, m) * 2.0**-kernel.fraction
            return np.asarray(real + 1j * imaginary)

        return fm.frequencies, sums

    return make


def sparse(variances: np.ndarray, m: int, seed: int) -> Made:
    """``sparse-radius``, of which the kernel multiplies four features, not all."""
    omega = sample_frequencies("sparse-radius", variances, m, seed=seed)
    return omega, prototypes.sparse(omega / (2 * np.pi))


def harmonics(count: int) -> Callable[[np.ndarray, int, int], Made]:
    """Multiples of base frequencies of ``sparse-radius``, of its radii on average."""

    def make(variances: np.ndarray, m: int, seed: int) -> Made:
        n = -(-m // count)
        bases = sample_frequencies("sparse-radius", variances, n, seed=seed) * 2 / (count + 1)
        omega = np.concatenate([h * bases for h in range(1, count + 1)], axis=1)
        return omega[:, :m], prototypes.harmonics(bases / (2 * np.pi), count)

    return make


def product(variances: np.ndarray, m: int, seed: int) -> Made:
    """Two sets of base frequencies of ``sparse-sums``, each sum and difference of the two."""
    side = int(np.ceil(np.sqrt(m / 2)))
    groups = -(-side // SIDE)
    bases = split(sample_frequencies("sparse-sums", variances, groups * GROUP, seed=seed))
    u, v = (bases[:, n].reshape(-1, len(variances))[:side].T for n in (0, 1))
    pairs = np.stack([u[:, :, None] + v[:, None], u[:, :, None] - v[:, None]], axis=-1)
    omega = pairs.reshape(len(variances), -1)[:, :m]
    return omega, prototypes.product(u / (2 * np.pi), v / (2 * np.pi))


def hadamard(variances: np.ndarray, m: int, seed: int) -> Made:
    """The adapted radius in directions ``H D H D``, orthogonal in blocks; for many features."""
    d = len(variances)
    size = 1 << (d - 1).bit_length()
    blocks = -(-m // size)
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], size=(blocks, 2, size))
    n = blocks * size
    radii = adapted_radius((rng.permutation(n) + rng.random(n)) / n)
    transform = np.ones((1, 1))
    while len(transform) < size:
        transform = np.block([[transform, transform], [transform, -transform]])
    rows = [(transform * second) @ transform * first for first, second in signs]
    directions = np.concatenate(rows)[:, :d] / size
    omega = (directions * radii[:, None])[:m].T / np.sqrt(variances)[:, None]
    return omega, prototypes.hadamard(signs, radii / (2 * np.pi))


BASELINE = Candidate("sparse-radius", by_distribution("sparse-radius"))
CANDIDATES = (
    Candidate("adapted-radius", by_distribution("adapted-radius")),
    BASELINE,
    Candidate("sparse-radius, sparse kernel", sparse),
    Candidate("harmonics, 2", harmonics(2)),
    Candidate("harmonics, 3", harmonics(3)),
    Candidate("one product", product),
    Candidate("Hadamard-diagonal", hadamard),
    Candidate("sparse-sums", by_distribution("sparse-sums")),
)
