"""Frequencies of feature maps, sampled once in a process for each specification."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.features.distributions import sample_frequencies
from dask_sketch.features.kernels.dense import MomentKernel, moment_kernel
from dask_sketch.features.kernels.structured import SumsKernel, sums_kernel
from dask_sketch.features.kernels.structured_frequencies import round_to_grid, truncate_to_grid
from dask_sketch.validation.arrays import frozen

if TYPE_CHECKING:
    from dask_sketch.features.feature_map import FeatureMap


class SampledFrequencies:
    """Frequencies of one specification, and what is derived from them.

    Attributes
    ----------
    frequencies
        For the samples as they are, shape (n_features, n_frequencies).
    cycles
        For the rows that a kernel is given, float32: whitened ones, where the map says so.
    digest
        SHA-256 over the specification and the cycles.
    """

    def __init__(self, spec: str, cycles: NDArray[np.floating], feature_map: FeatureMap):
        self.spec = spec
        # whatever the distribution, cycles are float32 numbers: see FeatureMap, Notes
        with np.errstate(over="ignore"):  # refused below
            cycles = np.asarray(cycles, dtype=np.float32)
        expected = (feature_map.n_features, feature_map.n_frequencies)
        if cycles.shape != expected:
            raise ArtifactError(f"frequencies have shape {cycles.shape}, not {expected}.")
        if not np.isfinite(cycles).all():
            raise InputError(
                "the frequencies are too large for float32: the scale or covariances of the "
                "feature map are too small. Give the samples in another unit."
            )
        frequencies = cycles.astype(np.float64) * (2 * np.pi)
        white = feature_map.row_whitening
        self.frequencies = frozen(frequencies if white is None else white.T @ frequencies)
        self.cycles_per_unit = frozen(cycles)
        self.digest = hashlib.sha256(
            spec.encode() + b"\0" + cycles.astype("<f4", copy=False).tobytes()
        ).hexdigest()
        self._distribution = (feature_map.distribution, feature_map.n_features, feature_map.dtype)

    @cached_property
    def packed(self) -> NDArray[np.floating]:
        """The frequencies in the kernel's order."""
        return frozen(kernel_for(*self._distribution).pack(self.cycles_per_unit))


def kernel_for(distribution: str, n_features: int, dtype: str) -> MomentKernel | SumsKernel:
    """The compiled kernel for the frequencies of a distribution."""
    return sums_kernel(dtype) if distribution == "sparse-sums" else moment_kernel(n_features, dtype)


class FrequencyCache:
    """The last few draws of this process, by specification."""

    def __init__(self, size: int):
        self._size = size
        self._entries: OrderedDict[str, SampledFrequencies] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, drawn: SampledFrequencies) -> None:
        """Keep frequencies that came from elsewhere."""
        with self._lock:
            self._entries[drawn.spec] = drawn
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)

    def get(self, feature_map: FeatureMap) -> SampledFrequencies:
        """Draw, or give what was drawn before."""
        # the lock is held while drawing: threads of one worker wait for one draw, not make four
        with self._lock:
            drawn = self._entries.get(feature_map.spec)
            if drawn is None:
                drawn = _draw(feature_map)
                self._entries[feature_map.spec] = drawn
                while len(self._entries) > self._size:
                    self._entries.popitem(last=False)
            else:
                self._entries.move_to_end(feature_map.spec)
            return drawn


CACHE = FrequencyCache(size=8)


def _draw(feature_map: FeatureMap) -> SampledFrequencies:
    frequencies = sample_frequencies(
        feature_map.distribution,
        feature_map.distribution_variances,
        feature_map.n_frequencies,
        weights=feature_map.covariance_weights,
        seed=feature_map.seed,
    )
    if feature_map.whitening is not None and feature_map.row_whitening is None:
        frequencies = feature_map.whitening.T @ frequencies
    cycles = frequencies / (2 * np.pi)
    return SampledFrequencies(
        feature_map.spec,
        truncate_to_grid(cycles) if feature_map.distribution == "sparse-sums" else cycles,
        feature_map,
    )


def stored(
    feature_map: FeatureMap, frequencies: NDArray[np.float64], digest: str | None
) -> SampledFrequencies:
    """What :attr:`SampledFrequencies.frequencies` of a map were, from a file.

    Raises
    ------
    ArtifactError
        If they do not match the digest.
    """
    white = feature_map.row_whitening
    if white is None or frequencies.shape[:1] != white.shape[:1]:
        drawn = SampledFrequencies(feature_map.spec, frequencies / (2 * np.pi), feature_map)
    else:
        cycles = round_to_grid(np.asarray(np.linalg.solve(white.T, frequencies) / (2 * np.pi)))
        drawn = SampledFrequencies(feature_map.spec, cycles, feature_map)
        if drawn.digest != digest:
            # the product with an extreme matrix has lost the last bits: drawn afresh, they are seen
            # to be the same
            fresh = CACHE.get(feature_map)
            if np.allclose(fresh.frequencies, frequencies, rtol=1e-9, atol=0.0):
                drawn = fresh
    if drawn.digest != digest:
        raise ArtifactError(
            f"the stored frequencies have digest {drawn.digest[:12]}, not "
            f"{str(digest)[:12]} as stated: the file was edited or is damaged."
        )
    return drawn


def frequencies_of(feature_map: FeatureMap) -> SampledFrequencies:
    """Draw the frequencies of a map, and hold them against its digest if it states one.

    Raises
    ------
    ArtifactError
        If this process draws other frequencies than the one the map comes from.
    """
    drawn = CACHE.get(feature_map)
    expected = feature_map.__dict__.get("digest")
    if expected is not None and drawn.digest != expected:
        raise ArtifactError(
            f"this process drew frequencies of digest {drawn.digest[:12]}, but the feature map "
            f"states {expected[:12]}. NumPy {np.__version__} is in use here: run the same version "
            "on the client and on every worker."
        )
    return drawn
