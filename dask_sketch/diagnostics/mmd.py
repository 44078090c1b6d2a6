"""Estimate maximum mean discrepancies (MMD) from sketches, with their noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np
import psutil
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display.html import card
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.tables import require_common_names
from dask_sketch.validation.threads import one_blas_thread

if TYPE_CHECKING:
    import xarray as xr

    from dask_sketch.features.feature_map import FeatureMap


def noise_level(sketch: Sketch, weights: NDArray[np.float64] | None = None) -> float:
    """Unbiased expected squared distance between a sketch and the sketch of its distribution.

    ``(1 - |z|**2) / (n - 1)`` with the effective count as ``n``, or with weights ``w`` of the
    features, ``(mean(w**2) - |w z|**2) / (n - 1)``. Noise added for privacy or by rounding is
    included; with missing values, the terms of a frequency are divided by the fraction of the rows
    that observe it.

    Parameters
    ----------
    sketch
        Sketch of at least two samples.
    weights
        Weights of the features, shape (n_frequencies,); by default the weights in decoders.

    Raises
    ------
    InputError
        If the sketch has fewer than two samples, so that the noise cannot be estimated.
    """
    n = sketch.effective_count
    if not n > 1.0 + 1e-9:
        raise InputError(
            f"the sketch is of {sketch.count} samples with effective count {n:g}: with fewer than "
            "two samples the noise cannot be estimated."
        )
    if weights is None:
        weights = decoder_weights(sketch)
    added = 2.0 * sketch.added_variance
    energy = np.square(weights) * (1.0 + added - np.abs(sketch.characteristic) ** 2)
    if sketch.missing is not None:
        energy /= np.maximum(sketch.observed.fractions, np.finfo(float).tiny)
    private = added * float(np.mean(np.square(weights)))
    return max(float(np.mean(energy)), 0.0) / (n - 1.0) + private


def feature_weights(feature_map: FeatureMap) -> NDArray[np.float64]:
    """Weights of the features in decoders, shape (n_frequencies,); ones if the map has none."""
    weights = feature_map.feature_weights
    return np.ones(feature_map.n_frequencies) if weights is None else weights


def feature_scales(feature_map: FeatureMap) -> NDArray[np.float64]:
    """Weights of the features over the root of their number, shape (n_frequencies,).

    Squared distances of sketch vectors in these units are squared discrepancies of :func:`mmd`,
    noise included.
    """
    return feature_weights(feature_map) / np.sqrt(feature_map.n_frequencies)


def decoder_weights(sketch: Sketch) -> NDArray[np.float64]:
    """Weights of the features of a sketch in decoders, shape (n_frequencies,).

    With missing values they are the weights of the map times the roots of the fractions of the rows
    that observe the frequencies.
    """
    weights = feature_weights(sketch.feature_map)
    return weights if sketch.missing is None else weights * np.sqrt(sketch.observed.fractions)


def effective_components(weights: ArrayLike) -> float:
    """Exponential of the entropy of the weights: ``K`` when all are equal, 1 when one has all.

    Examples
    --------
    >>> round(effective_components([0.25, 0.25, 0.25, 0.25]), 6)
    4.0
    """
    fractions = np.asarray(weights, dtype=np.float64)
    fractions = fractions[fractions > 0] / fractions.sum()
    return float(np.exp(-(fractions * np.log(fractions)).sum()))


Array = NDArray[np.float64]
N_POINTS = 256  # sampled from a model to estimate its noise: 4 % error of a standard deviation
_NUMBERS = 2**21  # complex numbers of the points' sketches in memory at once (32 MiB)


_NOISE_REACH = 5.0  # standard deviations that noise does not exceed


def difference_card(title: str, cost: float, noise_level: float, deviation: float) -> str:
    """HTML of a squared discrepancy beside its noise.

    Parameters
    ----------
    title
        Name of the class.
    cost
        Squared discrepancy as measured.
    noise_level
        Mean of the cost where there is no difference.
    deviation
        Standard deviation of the cost where there is no difference.
    """
    squared = cost - noise_level
    above = squared / deviation if deviation > 0 else math.inf
    fields = {
        "cost": f"{cost:.3g}",
        "noise level": f"{noise_level:.3g} ± {deviation:.2g}",
        "discrepancy": f"{math.sqrt(max(squared, 0.0)):.3g}",
        "squared": f"{squared:.3g}",
    }
    verdict = "more than noise explains" if above > _NOISE_REACH else "as noise explains"
    summary = f"{above:,.1f} standard deviations above noise: {verdict}"
    return card(title, fields, summary=summary)


@dataclass(frozen=True)
class Discrepancy:
    """Squared maximum mean discrepancy of a model and a distribution, estimated from a sketch.

    Attributes
    ----------
    cost
        Squared distance ``||z - A P||**2``, including the noise of the sketch.
    noise_level
        Mean contribution of the noise to the cost, from the number of samples alone.
    deviation
        Standard deviation of the cost over independent samples.
    """

    cost: float
    noise_level: float
    deviation: float

    @property
    def squared(self) -> float:
        """Cost minus its noise level; unbiased, so that it may be negative."""
        return self.cost - self.noise_level

    def _repr_html_(self) -> str:
        return difference_card("Discrepancy", self.cost, self.noise_level, self.deviation)


def discrepancy(model: GaussianMixture | Centroids, sketch: Sketch, seed: int = 0) -> Discrepancy:
    """Estimate the squared discrepancy of a model from a sketch that it was *not* decoded from.

    For the sketch that the model was decoded from, the result is biased downward, because the model
    has fitted some of the noise.

    Parameters
    ----------
    model
        Model with as many features as the sketch.
    sketch
        Sketch of at least two samples. Its feature map determines the kernel, eq. (23) of Keriven
        et al. (2018), with the weights of its features if it has them.
    seed
        Seed of the points sampled to estimate the standard deviation, ``>= 0``.

    Raises
    ------
    InputError
        If the sketch is too small, or the numbers or names of the features differ.

    Examples
    --------
    >>> from dask_sketch.features import FeatureMap
    >>> from dask_sketch import partial_sketch
    >>> truth = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    >>> sketch = partial_sketch(truth.sample(10_000, seed=0), FeatureMap(2, 50, scale=1.0))
    >>> found = discrepancy(truth, sketch)
    >>> abs(found.squared) < 4 * found.deviation
    True
    """
    require_common_names({"model": model.feature_names, "sketch": sketch.feature_map.feature_names})
    with one_blas_thread():
        return _measured(model, sketch, seed)


def _measured(model: GaussianMixture | Centroids, sketch: Sketch, seed: int) -> Discrepancy:
    level, n = noise_level(sketch), sketch.effective_count
    residual = weighted_residual(model, sketch)
    along = np.zeros(N_POINTS)
    products = np.zeros((N_POINTS, N_POINTS))
    for block, noise in noise_blocks(model, sketch, seed):
        along += noise @ halves(residual[block])
        products += noise @ noise.T
    # e = z - A P* has covariance C / n; the cost is |d|^2 + 2 d.e + |e|^2 with d = A P* - A P,
    # of which the residual is d + e
    np.fill_diagonal(products, 0.0)
    of_noise = 2.0 * float(np.sum(products**2)) / (N_POINTS * (N_POINTS - 1)) / n**2
    cross = 4.0 * float(np.mean(along**2)) / n
    return Discrepancy(
        cost=float(np.vdot(residual, residual).real),
        noise_level=level,
        deviation=float(np.sqrt(max(cross - of_noise, of_noise))),
    )


def weighted_residual(model: GaussianMixture | Centroids, sketch: Sketch) -> NDArray[np.complex128]:
    """Residual ``z - A P``, shape (n_frequencies,), multiplied by the weights of the features."""
    features = sketch.feature_map
    unit = decoder_weights(sketch) / np.sqrt(features.n_frequencies)
    return np.asarray(unit * (sketch.characteristic - model.characteristic(features.frequencies)))


def halves(values: NDArray[np.complex128]) -> Array:
    """Concatenate real and imaginary parts along the last axis."""
    return np.concatenate([values.real, values.imag], axis=-1)


def noise_blocks(
    model: GaussianMixture | Centroids, sketch: Sketch, seed: int
) -> Iterator[tuple[slice, Array]]:
    """Yield blocks of frequencies with the noise (n_points, 2B) of single samples.

    The noise of a sample is the sketch of a point of the model minus the sketch of the model.
    Points of centroids are spread around the centers so that they have the variances of the data.
    """
    features = sketch.feature_map
    distribution = data_distribution(model, sketch)
    points = distribution.sample(N_POINTS, seed=seed)
    unit = decoder_weights(sketch) / np.sqrt(features.n_frequencies)
    factors = observed_factors(sketch, seed)
    width = _NUMBERS // N_POINTS
    for start in range(0, features.n_frequencies, width):
        block = slice(start, start + width)
        omega = features.frequencies[:, block]
        noise = np.exp(-1j * (points @ omega)) - distribution.characteristic(omega)
        if factors is not None:
            noise *= factors[:, block]
        noise += added_noise(sketch, noise.shape, seed, start)
        yield block, halves(unit[block] * noise)


def observed_factors(sketch: Sketch, seed: int) -> Array | None:
    """Factors of the noise of single samples with missing values, shape (N_POINTS, m), or None.

    Parameters
    ----------
    sketch
        Sketch of the data.
    seed
        Seed of the simulation.
    """
    patterns = sketch.observed.patterns
    return None if patterns is None else patterns.simulate(N_POINTS, np.random.default_rng(seed))


def added_noise(
    sketch: Sketch, shape: tuple[int, ...], seed: int, start: int
) -> NDArray[np.complex128] | float:
    """Noise of a private sketch, as an equivalent noise of single samples; 0 if there is none.

    The noise is nearly white: one independent term for each of the samples.
    """
    if not sketch.added_variance:
        return 0.0
    rng = np.random.default_rng((seed, start))
    deviation = np.sqrt(sketch.effective_count * sketch.added_variance)
    draws: NDArray[np.float64] = rng.standard_normal((2, *shape))
    return np.asarray(deviation * (draws[0] + 1j * draws[1]))


def data_distribution(model: GaussianMixture | Centroids, sketch: Sketch) -> GaussianMixture:
    """Mixture to sample points from: the model, or centroids with the variances of the data."""
    if isinstance(model, GaussianMixture):
        return model
    mean = model.weights @ model.centers
    between = model.weights @ (model.centers - mean) ** 2
    variance = sketch.extent[1]
    floor = np.finfo(float).eps * np.maximum(variance, np.finfo(float).tiny / np.finfo(float).eps)
    within = np.maximum(variance - between, floor)
    return GaussianMixture(
        model.weights, model.centers, np.broadcast_to(within, model.centers.shape)
    )


def group_vectors(group: SketchGroup, block: slice = slice(None)) -> Array:
    """Real and imaginary parts of the sketch vectors of some groups, side by side.

    They are multiplied by :func:`feature_scales`, so that squared distances are squared
    discrepancies.

    Parameters
    ----------
    group
        Sketches of groups.
    block
        Positions of the groups.

    Returns
    -------
    vectors
        Shape (n_groups, 2 * n_frequencies); NaN for a group without weight.
    """
    return halves(feature_scales(group.feature_map) * group.characteristic(block))


_BLOCK_NUMBERS = 2**22  # numbers in a block of sketch vectors in float64


@overload
def mmd(sketches: Sketch, other: Sketch, *, squared: bool = False) -> float: ...
@overload
def mmd(sketches: SketchGroup, other: None = None, *, squared: bool = False) -> xr.DataArray: ...
def mmd(
    sketches: Sketch | SketchGroup, other: Sketch | None = None, *, squared: bool = False
) -> float | xr.DataArray:
    """Estimate the maximum mean discrepancy of two sketches, or of every two groups.

    The discrepancy is a distance between two distributions, zero if they are equal, in the kernel
    of the feature map (with its feature weights if it has them).

    The squared estimate is ``||z_a - z_b||**2`` for the two sketch vectors, minus the expected
    noise of both, ``(mean(w**2) - |w z|**2) / (n - 1)`` with the effective count ``n`` and the
    feature weights ``w``.

    Parameters
    ----------
    sketches
        Sketch, or group of sketches.
    other
        Sketch to compare with, of the same feature map; not for a group.
    squared
        Whether to return the unbiased estimate of the square, which may be negative for two
        sketches of one distribution. By default, the result is its root, or 0 if the estimate is
        negative.

    Returns
    -------
    distance
        Discrepancy of two sketches; for a group, matrix of shape (n_groups, n_groups) with the
        dimensions ``group.dim`` and ``other_`` before it, NaN for groups of fewer than two samples.

    Raises
    ------
    InputError
        If the arguments are not two sketches or one group, if a sketch has fewer than two samples,
        or if the matrix needs more memory than is free; ``select`` some groups then.
    MergeError
        If the feature maps differ.

    References
    ----------
    Gretton, Borgwardt, Rasch, Schölkopf, Smola (2012), A kernel two-sample test.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> x = np.random.default_rng(0).normal(size=(3000, 2))
    >>> label = np.arange(3000) % 3
    >>> x[label == 2] += 1.0
    >>> group = partial_sketch(x, FeatureMap(2, 100, scale=1.0), groups=label)
    >>> matrix = mmd(group)
    >>> matrix.dims, bool(matrix.sel(group=0, other_group=2) > 5 * matrix[0, 1])
    (('group', 'other_group'), True)
    >>> bool(np.isclose(mmd(group[0], group[2]), matrix[0, 2]))
    True
    """
    if isinstance(sketches, SketchGroup) and other is None:
        return _matrix(sketches, squared)
    if not isinstance(sketches, Sketch) or not isinstance(other, Sketch):
        raise InputError(
            f"sketches of type {type(sketches).__name__} with other of type "
            f"{type(other).__name__}: give two sketches, or one group of sketches; call .compute() "
            "on lazy ones. Compare a sketch with a model by "
            "dask_sketch.distributions.compare_model.",
            parameter="sketches" if not isinstance(sketches, Sketch) else "other",
        )
    sketches.feature_map.require_same(other.feature_map)
    difference = sketches.characteristic - other.characteristic
    difference = feature_scales(sketches.feature_map) * difference
    cost = float(np.vdot(difference, difference).real)
    weights = feature_weights(sketches.feature_map)
    cost -= noise_level(sketches, weights) + noise_level(other, weights)
    return cost if squared else math.sqrt(max(cost, 0.0))


def _matrix(group: SketchGroup, squared: bool) -> xr.DataArray:
    """Matrix of the discrepancies of all pairs of groups."""
    import xarray as xr

    n, m = len(group.labels), group.feature_map.n_frequencies
    if 8 * n * n > psutil.virtual_memory().available // 2:
        raise InputError(
            f"sketches: a matrix of {n:,} by {n:,} groups takes {8e-9 * n * n:.3g} GB, more than "
            "half of the free memory. select() some of the groups."
        )
    unit = feature_scales(group.feature_map)
    step = max(_BLOCK_NUMBERS // (2 * m), 1)
    blocks = [slice(start, min(start + step, n)) for start in range(0, n, step)]
    out = np.empty((n, n))
    count = group.effective_count
    energy, noise = np.empty(n), np.full(n, np.nan)
    spread = np.empty(n)  # spread of single samples
    with one_blas_thread():
        for k, block in enumerate(blocks):
            mine = group_vectors(group, block)
            energy[block] = np.einsum("ij,ij->i", mine, mine)
            spread[block] = float(unit @ unit) - energy[block]
            if group.missing is not None:
                rest = unit**2 - mine[:, :m] ** 2 - mine[:, m:] ** 2
                observed = group.observed_weight(block)
                spread[block] = (rest / observed).sum(axis=1) * group.total_weight[block]
            for other_block in blocks[: k + 1]:
                theirs = mine if other_block == block else group_vectors(group, other_block)
                out[block, other_block] = mine @ theirs.T
                out[other_block, block] = out[block, other_block].T
    enough = count > 1.0 + 1e-9
    noise[enough] = np.maximum(spread[enough], 0.0) / (count[enough] - 1.0)
    for block in blocks:
        cost = (energy[block, None] + energy) - 2.0 * out[block]
        out[block] = cost - (noise[block, None] + noise)
    np.fill_diagonal(out, np.where(enough, 0.0, np.nan))
    if not squared:
        np.sqrt(np.maximum(out, 0.0, out=out), out=out)
    dims = (group.dim, f"other_{group.dim}")
    return xr.DataArray(
        out,
        dict.fromkeys(dims, group.labels),
        dims,
        name="squared_mmd" if squared else "mmd",
    )
