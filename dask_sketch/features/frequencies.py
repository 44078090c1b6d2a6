"""Sample the frequencies of feature maps, once in a process for each specification."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.features.frequency_distributions import sample_frequencies, sample_mixed
from dask_sketch.features.kernels.structured_frequencies import (
    round_to_grid,
    signs_of_zeros,
    truncate_to_grid,
)
from dask_sketch.validation.arrays import frozen
from dask_sketch.validation.categories import Categories
from dask_sketch.validation.choices import STRUCTURED

_MAX_TRIALS = 2**14  # combinations of signs that are compared with a digest
_MAX_HASHED = 2**30  # bytes of all of them: about a second


@dataclass(frozen=True)
class FrequencySampling:
    """Arguments of a draw of frequencies.

    Attributes
    ----------
    spec
        Specification of the feature map as JSON text, which the digest covers.
    distribution, variances, weights, n_frequencies, seed
        Arguments of :func:`~dask_sketch.features.frequency_distributions.sample_frequencies`.
    whitening
        Matrix that multiplies the sampled frequencies, shape (n_features, n_features), or None.
    row_whitening
        Matrix that multiplies the rows of the data instead, of the same shape, or None.
    categories
        Levels of categorical features, or None.
    axes
        Matrices of ``"dense-sums"``, shape (n_axes, n_features, n_features), or None.
    """

    spec: str
    distribution: str
    variances: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    n_frequencies: int
    seed: int
    whitening: NDArray[np.float64] | None
    row_whitening: NDArray[np.float64] | None
    categories: Categories | None = None
    axes: NDArray[np.float64] | None = None


class SampledFrequencies:
    """Frequencies of one specification.

    Parameters
    ----------
    sampling
        Arguments of the draw.
    cycles_per_unit
        Sampled frequencies divided by ``2 pi``, shape (n_features, n_frequencies).

    Attributes
    ----------
    spec
        Specification of the feature map as JSON text.
    frequencies
        Frequencies for the samples, shape (n_features, n_frequencies), radians per unit.
    cycles_per_unit
        Frequencies for the rows that the kernel receives, float32, shape (n_features,
        n_frequencies): for whitened rows, if the map whitens rows.
    digest
        SHA-256 over the specification and ``cycles_per_unit``, 64 hexadecimal digits.

    Raises
    ------
    ArtifactError
        If the shape does not match the specification.
    InputError
        If a frequency exceeds the range of float32.
    """

    def __init__(self, sampling: FrequencySampling, cycles_per_unit: NDArray[np.floating]):
        self.spec = sampling.spec
        with np.errstate(over="ignore"):  # checked below
            cycles = np.asarray(cycles_per_unit, dtype=np.float32)
        expected = (sampling.variances.shape[1], sampling.n_frequencies)
        if cycles.shape != expected:
            raise ArtifactError(f"frequencies have shape {cycles.shape}, not {expected}.")
        if not np.isfinite(cycles).all():
            raise InputError(
                "the frequencies are too large for float32: the scale or covariances of the "
                "feature map are too small. Give the samples in another unit."
            )
        frequencies = cycles.astype(np.float64) * (2 * np.pi)
        white = sampling.row_whitening
        self.frequencies = frozen(frequencies if white is None else white.T @ frequencies)
        self.cycles_per_unit = frozen(cycles)
        self.digest = _digest(sampling.spec, cycles)


def _digest(spec: str, cycles: NDArray[np.float32]) -> str:
    total = hashlib.sha256(spec.encode() + b"\0")
    total.update(np.ascontiguousarray(cycles, dtype="<f4").data)
    return total.hexdigest()


class _Cache:
    """Sampled frequencies of the last few specifications of this process."""

    def __init__(self, size: int):
        self._size = size
        # entries by specification, and by the digest where it is not that of this process
        self._entries: OrderedDict[tuple[str, str], SampledFrequencies] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, sampled: SampledFrequencies) -> None:
        """Keep frequencies that were read from a file."""
        with self._lock:
            self._put((sampled.spec, ""), sampled)

    def _put(self, key: tuple[str, str], sampled: SampledFrequencies) -> None:
        self._entries[key] = sampled
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def get(self, sampling: FrequencySampling, digest: str | None = None) -> SampledFrequencies:
        """Sample frequencies, or return those of an earlier call.

        Parameters
        ----------
        sampling
            Arguments of the draw.
        digest
            Digest of the frequencies of another process, whose zeros may have other signs.
        """
        # the lock is held while sampling: the threads of a worker wait for one draw
        with self._lock:
            sampled = self._get((sampling.spec, ""))
            if sampled is None:
                sampled = _sample(sampling)
                self._put((sampling.spec, ""), sampled)
            if digest in (None, sampled.digest):
                return sampled
            key = sampling.spec, str(digest)
            matching = self._get(key)
            if matching is None:
                matching = _with_other_signs(sampling, sampled, key[1])
                self._put(key, matching)
            return matching

    def _get(self, key: tuple[str, str]) -> SampledFrequencies | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry


_CACHE = _Cache(size=8)


def _sample(sampling: FrequencySampling) -> SampledFrequencies:
    if sampling.categories is not None:
        cycles = sample_mixed(
            sampling.distribution,
            sampling.variances,
            sampling.categories,
            sampling.n_frequencies,
            weights=sampling.weights,
            seed=sampling.seed,
        )
        return SampledFrequencies(sampling, cycles)
    frequencies = sample_frequencies(
        sampling.distribution,
        sampling.variances,
        sampling.n_frequencies,
        weights=sampling.weights,
        seed=sampling.seed,
        axes=sampling.axes,
    )
    if sampling.whitening is not None and sampling.row_whitening is None:
        frequencies = sampling.whitening.T @ frequencies
    cycles = frequencies / (2 * np.pi)
    if sampling.distribution in STRUCTURED:
        cycles = truncate_to_grid(cycles)
    return SampledFrequencies(sampling, cycles)


def _with_other_signs(
    sampling: FrequencySampling, sampled: SampledFrequencies, digest: str
) -> SampledFrequencies:
    """Frequencies of a digest that differ from others by signs of zeros alone.

    The last bits of SciPy's gamma functions and of products of matrices depend on the processor and
    on the version of the libraries. Of structured frequencies they decide signs of zeros, and
    nothing else. Few of them differ, so combinations of few changes come first.

    Returns
    -------
    sampled
        Frequencies of the digest; the given ones if none of the first combinations has it.
    """
    if sampling.distribution not in STRUCTURED:
        return sampled
    cycles = sampled.cycles_per_unit.copy()
    limit = min(_MAX_TRIALS, _MAX_HASHED // cycles.nbytes)
    for signs in itertools.islice(_signs(cycles), limit):
        for feature, numbers, sign in signs:
            cycles[feature, numbers] = sign
        if _digest(sampling.spec, cycles) == digest:
            return SampledFrequencies(sampling, cycles)
        for feature, numbers, _ in signs:
            cycles[feature, numbers] = sampled.cycles_per_unit[feature, numbers]
    return sampled


def _signs(
    cycles: NDArray[np.float32],
) -> Iterator[list[tuple[int, NDArray[np.intp], NDArray[np.float32]]]]:
    """Other zeros for the features and groups of :func:`signs_of_zeros`, few changes first."""
    choices = []
    for feature, sums, differences in signs_of_zeros(cycles):
        numbers = np.concatenate([sums, differences])
        parts = np.repeat([1, 2], [len(sums), len(differences)])
        zeros = [np.where(parts == k, -0.0, 0.0).astype(np.float32) for k in range(3)]
        now = np.signbit(cycles[feature, numbers])
        choices.append(
            [(feature, numbers, z) for z in zeros if not np.array_equal(np.signbit(z), now)]
        )
    for changes in range(1, len(choices) + 1):
        for chosen in itertools.combinations(choices, changes):
            for signs in itertools.product(*chosen):
                yield list(signs)


def sampled_frequencies(
    sampling: FrequencySampling, digest: str | None = None
) -> SampledFrequencies:
    """Sample the frequencies of a feature map, and compare them with its digest.

    Signs of zeros depend on the processor. Where the digest belongs to other signs, they are set.

    Parameters
    ----------
    sampling
        Arguments of the draw.
    digest
        Digest that the feature map states, if any.

    Raises
    ------
    ArtifactError
        If this process samples frequencies of another digest.
    """
    sampled = _CACHE.get(sampling, digest)
    if digest is not None and sampled.digest != digest:
        raise ArtifactError(
            f"this process drew frequencies of digest {sampled.digest[:12]}, but the feature map "
            f"states {digest[:12]}. NumPy {np.__version__}, SciPy {scipy.__version__} are in use "
            "here: run the same versions on the client and on every worker, or store with to_zarr, "
            "which keeps the frequencies."
        )
    return sampled


def stored_frequencies(
    sampling: FrequencySampling, frequencies: NDArray[np.float64], digest: str | None
) -> SampledFrequencies:
    """Take the frequencies of a feature map from a file.

    Parameters
    ----------
    sampling
        Arguments of the draw that made them.
    frequencies
        Stored :attr:`SampledFrequencies.frequencies`, shape (n_features, n_frequencies).
    digest
        Digest that the file states.

    Raises
    ------
    ArtifactError
        If the frequencies do not match the digest.
    """
    white = sampling.row_whitening
    if white is None or frequencies.shape[:1] != white.shape[:1]:
        sampled = SampledFrequencies(sampling, frequencies / (2 * np.pi))
    else:
        cycles = round_to_grid(np.asarray(np.linalg.solve(white.T, frequencies) / (2 * np.pi)))
        sampled = SampledFrequencies(sampling, cycles)
        if sampled.digest != digest:
            # the product with an ill-conditioned matrix has lost the last bits: sample again, and
            # compare with a tolerance
            fresh = _CACHE.get(sampling, digest)
            if np.allclose(fresh.frequencies, frequencies, rtol=1e-9, atol=0.0):
                sampled = fresh
    if sampled.digest != digest:
        raise ArtifactError(
            f"the stored frequencies have digest {sampled.digest[:12]}, not "
            f"{str(digest)[:12]} as stated: the file was edited or is damaged."
        )
    _CACHE.put(sampled)
    return sampled
