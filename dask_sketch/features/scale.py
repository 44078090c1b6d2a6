"""Estimate scales from a few thousand samples: of components (section 3.3.3), and bandwidths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize
from scipy.spatial import distance

from dask_sketch.display.html import card
from dask_sketch.errors import InputError
from dask_sketch.features.frequency_distributions import sample_frequencies
from dask_sketch.models.clusters import kmeans
from dask_sketch.validation.arrays import require_integer, require_memory, require_unmasked

Array = NDArray[np.float64]
# Maps that compare distributions.
N_BANDWIDTHS = 8
BAND_FREQUENCIES = 64  # frequencies of one bandwidth
PILOT_COMPONENTS = 8  # components of the mixture of the pilot rows, which whitens the features
_N_ROWS = 1000  # rows whose distances are computed
_QUANTILES = 0.05, 0.95
_NORMAL = 1.349  # interquartile range of a standard normal distribution


@dataclass(frozen=True)
class ScaleFit:
    """Estimated scale and the moduli that it was fitted to: the data of Figure 2 of the paper.

    Attributes
    ----------
    scale
        Estimated standard deviation of a component, in the units of the samples.
    path
        Scale after each iteration, shape (n_iterations,).
    radii, moduli
        Radius of each pilot frequency and ``|z|`` there, both shape (n_frequencies,), sorted by
        radius; from the last iteration.
    peak_radii, peak_moduli
        Radius and value of the largest modulus of each block, shape (n_blocks,), to which the scale
        was fitted.
    n_samples
        Number of samples.
    """

    scale: float
    path: NDArray[np.float64]
    radii: NDArray[np.float64]
    moduli: NDArray[np.float64]
    peak_radii: NDArray[np.float64]
    peak_moduli: NDArray[np.float64]
    n_samples: int

    def curve(self, radii: ArrayLike) -> NDArray[np.float64]:
        """Fitted envelope ``exp(-radius**2 scale**2 / 2)`` at ``radii``, in (0, 1]."""
        return np.exp(-0.5 * np.square(np.asarray(radii, dtype=np.float64) * self.scale))

    def _repr_html_(self) -> str:
        fields = {
            "scale": f"{self.scale:.6g}",
            "samples": f"{self.n_samples:,}",
            "scale after each iteration": ", ".join(f"{scale:.4g}" for scale in self.path),
        }
        return card("ScaleFit", fields)


def estimate_scale(
    samples: ArrayLike,
    *,
    n_frequencies: int = 500,
    n_blocks: int = 30,
    n_iterations: int = 5,
    seed: int = 0,
) -> ScaleFit:
    """Estimate the mean standard deviation of the components (function EstimMeanSigma).

    The modulus of the characteristic function oscillates below ``exp(-r**2 s**2 / 2)``. The
    largest modulus in each of ``n_blocks`` shells of radius traces that envelope, to which ``s``
    is fitted by least squares; frequencies are then sampled again for the new ``s``.

    Parameters
    ----------
    samples
        Random subset of the data, shape (n_samples, n_features); the paper uses 5000 samples.
    n_frequencies, n_blocks, n_iterations
        Numbers of pilot frequencies, blocks and iterations; ``m0 = 500``, ``c = 30``, ``T = 5`` in
        the paper.
    seed
        Seed of the pilot frequencies.

    Returns
    -------
    fit
        Fit with ``fit.scale``, in the units of the samples.

    Raises
    ------
    InputError
        If ``samples`` is not (n, d) with ``n >= 2``, is not finite, or does not vary.

    Notes
    -----
    Moduli are fitted, although the printed algorithm has complex values. Blocks have
    ``n_frequencies // n_blocks`` frequencies; the few of largest radius beyond the last block are
    not used. The samples are divided by their overall standard deviation first, because the initial
    scale of 1 in the paper leads to nothing but noise for data of another size. The estimate lies
    between the mean variance of the components and the variance of all data, nearer to the latter
    if the components overlap.

    Examples
    --------
    >>> samples = np.random.default_rng(0).normal(scale=3.0, size=(5000, 2))
    >>> round(estimate_scale(samples).scale, 1)
    3.0
    """
    sizes = {"n_frequencies": n_frequencies, "n_blocks": n_blocks, "n_iterations": n_iterations}
    for name, value in sizes.items():
        require_integer(name, value, 1)
    require_memory(samples, "samples", "design() reads a few chunks; give an array in memory.")
    require_unmasked(samples, "rows", "samples")
    try:
        x = np.asarray(samples, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"samples is not an array of numbers: {error}") from error
    if x.ndim != 2 or len(x) < 2 or not x.shape[1]:
        raise InputError(f"samples has shape {x.shape}: give at least two rows for a scale.")
    if not np.isfinite(x).all():
        raise InputError("samples holds NaN or infinite values; the scale needs finite ones.")
    x = x - x.mean(axis=0)
    unit = float(np.sqrt(np.mean(np.square(x))))
    if unit == 0.0:
        raise InputError(f"all {len(x):,} samples are equal, so there is no scale to find.")
    x /= unit
    seeds = np.random.SeedSequence(seed).generate_state(n_iterations)
    scale, path = 1.0, []
    for iteration in range(n_iterations):
        fit = _observe(x, scale, n_frequencies, n_blocks, int(seeds[iteration]))
        scale = _fit_envelope(fit.peak_radii, fit.peak_moduli)
        path.append(scale * unit)
    return replace(
        fit,
        scale=scale * unit,
        path=np.array(path),
        radii=fit.radii / unit,
        peak_radii=fit.peak_radii / unit,
    )


def observe_scale(
    samples: ArrayLike, scale: float, *, n_frequencies: int = 500, n_blocks: int = 30, seed: int = 0
) -> ScaleFit:
    """Compute the moduli of :func:`estimate_scale` for a scale that is already known.

    Parameters
    ----------
    samples
        Samples, shape (n_samples, n_features), finite.
    scale
        Standard deviation of a component, in the units of the samples, positive.
    n_frequencies, n_blocks, seed
        Arguments of :func:`estimate_scale`.

    Returns
    -------
    fit
        Fit with that scale, for plots: moduli are computed in float32, five times as fast.

    Examples
    --------
    >>> samples = np.random.default_rng(0).normal(size=(1000, 2))
    >>> observe_scale(samples, 1.0).radii.shape
    (500,)
    """
    x = np.asarray(samples, dtype=np.float64)
    centred = (x - x.mean(axis=0)).astype(np.float32)
    return _observe(centred, scale, n_frequencies, n_blocks, seed)


def _observe(
    x: NDArray[Any], scale: float, n_frequencies: int, n_blocks: int, seed: int
) -> ScaleFit:
    """Compute moduli at pilot frequencies of a scale, and the largest one of each shell."""
    variances = np.full(x.shape[1], scale**2)
    omega = sample_frequencies("adapted-radius", variances, n_frequencies, seed=seed)
    radii = np.linalg.norm(omega, axis=0)
    order = np.argsort(radii, kind="stable")
    omega, radii = omega[:, order], radii[order]
    moduli = _moduli(x, omega)
    size = max(1, n_frequencies // n_blocks)
    blocks = moduli[: size * n_blocks].reshape(-1, size)
    peaks = blocks.argmax(axis=1) + size * np.arange(len(blocks))
    return ScaleFit(
        scale=scale,
        path=np.array([scale]),
        radii=radii,
        moduli=moduli,
        peak_radii=radii[peaks],
        peak_moduli=moduli[peaks],
        n_samples=len(x),
    )


def _moduli(x: NDArray[Any], omega: NDArray[np.float64]) -> NDArray[np.float64]:
    """Modulus of the empirical characteristic function, in blocks of samples of one precision."""
    total = np.zeros(omega.shape[1], dtype=np.complex128)
    frequencies = omega.astype(x.dtype)
    for start in range(0, len(x), 1024):
        phase = x[start : start + 1024] @ frequencies
        total += np.cos(phase).sum(axis=0) - 1j * np.sin(phase).sum(axis=0)
    return np.abs(total) / len(x)


def _fit_envelope(radii: NDArray[np.float64], moduli: NDArray[np.float64]) -> float:
    """Fit ``exp(-r**2 s**2 / 2)`` to the moduli by least squares: a grid, then a bounded search."""

    def cost(log_scale: float) -> float:
        envelope = np.exp(-0.5 * np.square(radii * np.exp(log_scale)))
        return float(np.square(moduli - envelope).sum())

    middle = -np.log(np.median(radii))
    grid = middle + np.linspace(-8.0, 8.0, 161)
    best = int(np.argmin([cost(g) for g in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    minimum = optimize.minimize_scalar(
        cost, bounds=(low, high), method="bounded", options={"xatol": 1e-10}
    )
    return float(np.exp(minimum.x))


# Squared bandwidth in units of the mean squared distance of a sample to its centroid. With half of
# it, clusters of ten and more features are lost in the noise of 500 frequencies; with twice of it,
# clusters that touch are separated less well.
_RATIO = 2.0


def clustering_scale(pilot: ArrayLike, n_components: int, *, seed: int = 0) -> float:
    """Scale of the distribution ``"gaussian"`` at which clusters are best decoded.

    Twice the risk of k-means on the pilot samples, ``scale = sqrt(2 W)``, where ``W`` is the mean
    squared distance to the nearest centroid. In the sketch, a cluster of total variance ``W`` is
    then damped by about ``exp(-W / (2 scale**2)) = 0.78`` for any number of features, while
    centroids that are further apart than ``scale`` are separated.

    Clusters of equal rows have no width. The scale is then half of the smallest distance between
    them.

    Parameters
    ----------
    pilot
        Random subset of the data, shape (n_samples, n_features), finite.
    n_components
        Number of centroids that will be decoded.
    seed
        Seed of the starts of k-means.

    Returns
    -------
    scale
        Positive scale, in the units of the samples.

    Raises
    ------
    InputError
        If there are fewer samples than centroids, or the clusters are too narrow for their
        distances.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> pilot = rng.choice([-5.0, 5.0], (2000, 1)) + 0.1 * rng.standard_normal((2000, 1))
    >>> round(clustering_scale(pilot, 2), 2)
    0.14
    """
    try:
        x = np.asarray(pilot, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"pilot is not an array of numbers: {error}") from error
    if x.ndim != 2 or len(x) < n_components or not x.shape[1]:
        raise InputError(
            f"pilot has shape {x.shape}: for n_components={n_components} give {n_components} rows "
            "or more."
        )
    if not np.isfinite(x).all():
        raise InputError("pilot holds NaN or infinite values: leave these rows out.")
    risk = kmeans(x, n_components, seed=seed).inertia
    spread = float(np.square(x - x.mean(axis=0)).sum(axis=1).mean())
    if risk > 1e-12 * spread:
        return float(np.sqrt(_RATIO * risk))
    values = np.unique(x, axis=0)
    if len(values) > n_components:
        raise InputError(
            "pilot has clusters below 1e-6 times as wide as they are distant: the largest value "
            f"is {np.abs(x).max():.3g}, the median {np.median(np.abs(x)):.3g}. Leave distant rows "
            "out, or give the scale."
        )
    if len(values) == 1:
        return float(np.abs(values).max()) or 1.0
    return float(distance.pdist(values).min()) / 2


def comparison_covariances(rows: Array, seed: int) -> Array:
    """Variances of Gaussian kernels that see differences of all sizes.

    A difference of two distributions is seen by kernels about as wide as it is, so that the
    bandwidths go from half of the small distances between rows to twice the large ones. A single
    bandwidth, such as the median distance, misses what is much narrower. Each feature is
    measured in its own deviation, by quartiles, which outliers do not change.

    Parameters
    ----------
    rows
        Pilot rows, shape (n_samples, n_features).
    seed
        Seed of the choice of rows whose distances are computed.

    Returns
    -------
    covariances
        Variance of each feature for each bandwidth, shape (8, n_features).

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(2000, 2)) * [1.0, 100.0]
    >>> found = comparison_covariances(rows, seed=0)
    >>> found.shape, bool(np.allclose(np.sqrt(found[:, 1] / found[:, 0]), 100.0, rtol=0.1))
    ((8, 2), True)
    """
    scale = np.subtract(*np.quantile(rows, [0.75, 0.25], axis=0)) / _NORMAL
    deviation = rows.std(axis=0)
    # over half of the values are equal
    scale = np.where(scale > 0, scale, deviation)
    varies = scale > 0
    scale[~varies] = scale[varies].mean() if varies.any() else 1.0
    chosen = rows
    if len(rows) > _N_ROWS:
        chosen = rows[np.random.default_rng(seed).choice(len(rows), _N_ROWS, replace=False)]
    distances = distance.pdist(chosen[:, varies] / scale[varies])
    distances = distances[distances > 0]
    low, high = np.quantile(distances, _QUANTILES) if len(distances) else (1.0, 1.0)
    bandwidths = np.geomspace(0.5 * low, 2.0 * high, N_BANDWIDTHS)
    covariances = (bandwidths[:, None] * scale) ** 2
    # rounded, so that the digest does not depend on the machine
    return np.array([[float(f"{value:.4g}") for value in row] for row in covariances])
