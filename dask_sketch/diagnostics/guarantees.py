"""Guarantees of compressive learning: sizes, separation, isometry and bounds of the excess risk.

The theorems of Gribonval et al. hold for centroids, and for mixtures of known covariance, that are
many kernel bandwidths apart. Their constants are very conservative: they explain the causes of
errors, and are not meant as defaults. Printed formulas with errors are corrected, and each function
names its corrections.

References
----------
Gribonval, Blanchard, Keriven, Traonmilin (2017), Compressive statistical learning with random
feature moments, hal-01544609v2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.display.text import counted, fields_text
from dask_sketch.errors import InputError
from dask_sketch.features.design import default_n_frequencies
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer, require_number

Array = NDArray[np.float64]
_TRIES = 50  # random positions, until one is far from the others
_REFERENCES = 8_000  # frequencies that estimate a kernel without closed form
_PAIRS = 200
_FEATURES = 10**7  # features that are computed for the sampled pairs of one model: about a second
_GAUSSIAN = ("gaussian", "clustering")  # distributions whose kernel is a Gaussian


def separation_scale(n_components: int) -> float:
    """Scale ``sigma_k`` of eq. (45): separated points are ``2 / sigma_k`` kernel bandwidths apart.

    Parameters
    ----------
    n_components
        Number ``k`` of points, ``>= 1``.

    Examples
    --------
    >>> round(2 / separation_scale(10), 2)
    11.15
    """
    k = require_integer("n_components", n_components, 1)
    return (2.4 * (math.log(2 * k - 1) + 10.0)) ** -0.5


def coherence(squared_width: float) -> float:
    """Coherence of separated dipoles under the kernel ``exp(-u**2 / (2 squared_width))``, eq. (74).

    Parameters
    ----------
    squared_width
        Squared width of the kernel, in units of half the separation, in (0, 1/3].

    Examples
    --------
    >>> coherence(separation_scale(5) ** 2) < 0.01
    True
    """
    width = require_number("squared_width", squared_width, 0.0, 1.0 / 3.0)
    peak = math.exp(-0.5 / width)
    slope, curvature = peak / width, (1.0 / width) * (1.0 / width - 1.0) * peak
    return 8.0 * max(peak, 2.0 * (slope + curvature))


@dataclass(frozen=True)
class MixtureTradeOff:
    """Constants of mixtures of known covariance, eq. (62) and (64) to (66).

    Attributes
    ----------
    separation
        Half of the required distance of means ``epsilon``, in standard deviations.
    amplitude
        Squared amplitude ``C**2`` of the features.
    concentration
        Constants ``M`` of eq. (65) and of eq. (66); the smaller one applies.
    """

    separation: float
    amplitude: float
    concentration: tuple[float, float]


def mixture_trade_off(
    n_components: int, n_features: int, squared_frequency: float
) -> MixtureTradeOff:
    """Trade separation for the size of the sketch, for mixtures of known covariance (section 5.2).

    Parameters
    ----------
    n_components, n_features
        Numbers of components and of features.
    squared_frequency
        Variance of the frequencies, in units of the inverse variances of the components, in
        (0, 1/2].

    Examples
    --------
    >>> found = mixture_trade_off(5, 10, 0.1)
    >>> round(found.separation, 2), round(min(found.concentration), 2)
    (18.74, 30.85)
    """
    k, d = _sizes(n_components, n_features)
    square = require_number("squared_frequency", squared_frequency, 1e-12, 0.5)
    grown = 1.0 + 2.0 * square
    first = (1.0 + math.log(k)) * grown ** (d / 2 + 1) / square
    second = (1.0 + math.log(k) + d / 2 * math.log(grown)) ** 2 * grown ** (d / 2)
    separation = math.sqrt(2.0 + 1.0 / square) / separation_scale(k)
    return MixtureTradeOff(separation, grown ** (d / 2), (first, second))


def _sizes(n_components: Any, n_features: Any) -> tuple[int, int]:
    return (
        require_integer("n_components", n_components, 1),
        require_integer("n_features", n_features, 1),
    )


# Sizes of sketches.


@dataclass(frozen=True)
class SketchSizes:
    """Numbers of frequencies, by experience and by theorems.

    Attributes
    ----------
    practical
        Rule of this package and of Keriven et al. (2018), section 5.5, from experiments.
    scaling
        Eq. (46) or (67) with one in place of a constant that the paper does not give: only the
        growth of this number has a meaning.
    explicit
        Size for which the theorem holds, with all constants of its proof.
    lipschitz
        Size for which the features are Lipschitz with constant ``sqrt(2) lambda``, eq. (52); nan
        for mixtures.
    """

    practical: int
    scaling: float
    explicit: float
    lipschitz: float

    def fields(self) -> dict[str, str]:
        """Sizes by the names of their rules, as text."""
        out = {
            "frequencies, rule of practice": f"{self.practical:,}",
            "frequencies, growth by the theorem, unknown constant 1": f"{self.scaling:.3g}",
            "frequencies with a proof": f"{self.explicit:.3g}",
        }
        if math.isfinite(self.lipschitz):
            out["frequencies for a Lipschitz bound"] = f"{self.lipschitz:,.0f}"
        return out


def sketch_sizes(
    n_components: int,
    n_features: int,
    *,
    task: str = "clustering",
    radius: float = 10.0,
    squared_frequency: float | None = None,
    delta: float = 0.5,
    zeta: float = 0.01,
) -> SketchSizes:
    """Compute numbers of frequencies: rule of practice, growth by the theorems, sizes with a proof.

    Parameters
    ----------
    n_components, n_features
        Numbers of components and of features.
    task
        ``"clustering"`` (Theorem 4.1) or ``"mixture"`` of known covariance (Theorem 5.1).
    radius
        Radius of the ball of centroids or means, in units of half their separation, at least 1.
    squared_frequency
        Variance of the frequencies for a mixture, see :func:`mixture_trade_off`; ``1 / n_features``
        by default, at most 1/2.
    delta
        Relative error of squared distances of sketches, in (0, 1).
    zeta
        Probability that the frequencies fail, in (0, 1).

    Returns
    -------
    sizes
        Numbers of frequencies.

    Raises
    ------
    InputError
        If an argument is out of range.

    References
    ----------
    Gribonval, Blanchard, Keriven, Traonmilin (2017), Theorems 2.7, 4.1 and 5.1.

    Examples
    --------
    >>> sizes = sketch_sizes(10, 10)
    >>> sizes.practical, f"{sizes.scaling:.3g}", f"{sizes.explicit:.3g}"
    (550, '3.77e+05', '1.74e+10')
    """
    k, d = _sizes(n_components, n_features)
    radius = require_number("radius", radius, 1.0, 1e300)
    delta = require_number("delta", delta, 0.0, 1.0, strict=True)
    zeta = require_number("zeta", zeta, 0.0, 1.0, strict=True)
    if task not in ("clustering", "mixture"):
        raise InputError(f"task={task!r}: give 'clustering' or 'mixture'.")
    practical = default_n_frequencies(d, k, task)
    lek, width = 1.0 + math.log(k), separation_scale(k)
    grown = 1.0 + math.log(radius) + math.log(1.0 / delta)
    if task == "clustering":
        scaling = (
            k * lek * min(lek, d) / delta**2 * (k * d * (grown + math.log(k * d)) - math.log(zeta))
        )
        amplitude = math.sqrt(4.0 + 2.0 / d)  # the paper prints 2 / d**2
        slope = math.sqrt(d) / (2.0 * width) * amplitude
        bounds = _Bounds(
            amplitude, slope, d * amplitude / (2.0 * width**2),
            (2.0 * d * amplitude / width**2 * radius, slope * radius, slope, amplitude),
        )  # fmt: skip
        return SketchSizes(
            practical, scaling, _explicit(k, d, radius, bounds, delta, zeta),
            lipschitz_size(d, zeta=zeta),
        )  # fmt: skip
    square = min(1.0 / d, 0.5) if squared_frequency is None else squared_frequency
    constants = mixture_trade_off(k, d, square)
    smallest = min(constants.concentration)
    inner = grown + math.log(k) + math.log(smallest) + math.log(1.0 / square)
    scaling = k * smallest / delta**2 * (k * d * inner - math.log(zeta))
    amplitude, epsilon = math.sqrt(constants.amplitude), constants.separation
    slope = epsilon * amplitude / math.sqrt(math.e)
    bounds = _Bounds(
        amplitude, epsilon * amplitude, epsilon**2 * amplitude / 2.0,
        (4.0 * epsilon**2 * amplitude / math.e * radius, slope * radius, slope, amplitude),
    )  # fmt: skip
    explicit = _explicit(k, d, radius, bounds, delta, zeta)
    return SketchSizes(practical, scaling, explicit, math.nan)


@dataclass(frozen=True)
class _Bounds:
    """Bounds of the features of an atom: size, Lipschitz constant, curvature, and (166)."""

    size: float
    slope: float
    curvature: float
    tangents: tuple[float, float, float, float]


def _explicit(k: int, d: int, radius: float, bounds: _Bounds, delta: float, zeta: float) -> float:
    """Size of Theorem 2.7: eq. (25) with (87), Lemma 6.12, (92), (95) and (166).

    The exponent of the second factor of (95) is 4 and not 2, and its constant 512: by eq. (139).
    """
    t = delta / 2.0
    squared = bounds.slope**2 + 2.0 * bounds.size**2
    gamma = 4.0 * bounds.size**2
    sigma = 16.0 * math.e * k * gamma * math.log(4.0 * math.e * k * gamma) ** 2
    concentration = min(8.0 * k * squared, sigma) * 2.0 * (1.0 + t / 3.0) / t**2
    width = math.sqrt(squared)
    eta = t / (64.0 * k * width)
    far = 4.0 * radius * 256.0 * width * bounds.slope * bounds.curvature / eta**2
    apart = 512.0 * width * bounds.size * bounds.curvature / eta**2
    for_positions = 2.0 * d * _log(far) + 2.0 * _log(apart)
    first, second, third, last = bounds.tangents
    factors = 16.0 * first, 16.0 * second, 32.0 * third
    for_tangents = d * sum(_log(4.0 * factor / eta) for factor in factors) + _log(32.0 * last / eta)
    covering = (
        2 * k * (float(np.logaddexp(for_positions, for_tangents)) + _log(256.0 * k * squared / t))
    )
    return concentration * (math.log(2.0 / zeta) + covering)


def _log(value: float) -> float:
    return math.log(max(1.0, value))


def lipschitz_size(n_features: int, *, excess: float = 1.0, zeta: float = 0.01) -> int:
    """Number of frequencies of eq. (52), for a Lipschitz constant of ``lambda sqrt(1 + excess)``.

    Parameters
    ----------
    n_features
        Number of features, ``>= 1``.
    excess
        Excess of the squared Lipschitz constant, above 0.
    zeta
        Probability that the frequencies fail, in (0, 1).

    Examples
    --------
    >>> lipschitz_size(10), lipschitz_size(10, excess=0.25)
    (745, 11335)
    """
    d = require_integer("n_features", n_features, 1)
    t = require_number("excess", excess, 0.0, 1e6, strict=True)
    zeta = require_number("zeta", zeta, 0.0, 1.0, strict=True)
    return math.ceil((4.0 + 2.0 / d) / t**2 * (2.0 * d + 4.0 + d * t / 6.0) * math.log(d / zeta))


# Measurements of a feature map.


def _curvature(feature_map: FeatureMap) -> Array:
    """Matrix of second moments of the weighted frequencies, shape (n_features, n_features)."""
    omega = feature_map.frequencies
    weights = feature_map.feature_weights
    weighted = omega if weights is None else omega * weights
    return np.asarray(weighted @ weighted.T / feature_map.n_frequencies)


def lipschitz_constant(feature_map: FeatureMap) -> float:
    """Bound of the Lipschitz constant of the features, for rows in units of the scale.

    The bound is the root of the largest eigenvalue of the second moments of the frequencies (proof
    of Lemma 4.3). It is near one for many frequencies of the distributions ``"gaussian"`` and
    ``"clustering"``, whose kernel has the bandwidth of the scale.

    Examples
    --------
    >>> found = FeatureMap(10, 5000, scale=2.0, distribution="clustering")
    >>> 1.0 < lipschitz_constant(found) < 1.06
    True
    """
    unit = np.sqrt(feature_map.mean_variances)
    return float(np.sqrt(np.linalg.eigvalsh(_curvature(feature_map) * np.outer(unit, unit))[-1]))


def separations(model: GaussianMixture | Centroids, feature_map: FeatureMap) -> Array:
    """Distances of all pairs of components in kernel bandwidths, shape (n_pairs,).

    For near points, the squared distance equals the squared distance of the kernel. It follows from
    the second moments of the frequencies.
    """
    points = model.centers if isinstance(model, Centroids) else model.means
    first, second = np.triu_indices(len(points), 1)
    away = points[first] - points[second]
    return np.asarray(np.sqrt(np.einsum("pi,ij,pj->p", away, _curvature(feature_map), away)))


@dataclass(frozen=True)
class IsometrySample:
    """Extremes of the ratio of squared distances of sketches and of distributions.

    Attributes
    ----------
    minimum, maximum
        Smallest and largest ratio. Sampled pairs can refute an isometry, but not prove it.
    n_pairs
        Number of pairs.
    """

    minimum: float
    maximum: float
    n_pairs: int


def sample_isometry(
    feature_map: FeatureMap,
    n_components: int,
    *,
    low: Any,
    high: Any,
    variances: Any = None,
    separation: float = 0.0,
    n_pairs: int = _PAIRS,
    seed: int = 0,
) -> IsometrySample:
    """Sample the restricted isometry of a feature map on secants of mixtures, eq. (20).

    Pairs of mixtures with random weights are sampled in a box: one half of the pairs independent,
    the other half near to each other. The squared distance of their sketches is divided by their
    squared distance in the kernel, which is known for Gaussian frequencies, and otherwise estimated
    with 8,000 other frequencies.

    Parameters
    ----------
    feature_map
        Feature map with the frequencies.
    n_components
        Number of components of a mixture.
    low, high
        Corners of the box, shape (n_features,) or numbers.
    variances
        Variances of the components, shape (n_features,); zero, for points, by default.
    separation
        Smallest distance of the components of a mixture, in kernel bandwidths, if there is room.
    n_pairs
        Number of pairs, ``>= 1``.
    seed
        Seed of the mixtures.

    Returns
    -------
    isometry
        Smallest and largest ratio.

    Raises
    ------
    InputError
        If a number is out of range.

    Examples
    --------
    >>> found = FeatureMap(2, 600, scale=1.0, distribution="gaussian")
    >>> sampled = sample_isometry(found, 3, low=-5.0, high=5.0)
    >>> 0.5 < sampled.minimum < 1.0 < sampled.maximum < 1.6
    True
    """
    k = require_integer("n_components", n_components, 1)
    d = feature_map.n_features
    n_pairs = require_integer("n_pairs", n_pairs, 1)
    corners = [np.broadcast_to(np.asarray(c, float), (d,)) for c in (low, high)]
    spread = np.zeros(d) if variances is None else np.broadcast_to(np.asarray(variances, float), d)
    rng = np.random.default_rng(seed)
    metric = _curvature(feature_map)
    squared = _squared_distance(feature_map, spread, seed)
    features_at = _features_of(feature_map, spread)
    ratios = []
    for number in range(n_pairs):
        first = _positions(rng, k, corners, metric, separation)
        weights = rng.dirichlet(np.ones(k))
        if number % 2:
            second, others = (
                _positions(rng, k, corners, metric, separation),
                rng.dirichlet(np.ones(k)),
            )
        else:
            length = rng.uniform(0.05, 0.5) / math.sqrt(max(np.trace(metric), 1e-300))
            second, others = first + length * rng.normal(size=first.shape), weights
        points, signed = np.concatenate([first, second]), np.concatenate([weights, -others])
        distances = np.abs(features_at(points) @ signed) ** 2
        true = squared(points, signed)
        if true > 0.0:
            ratios.append(float(distances.mean()) / true)
    return IsometrySample(min(ratios), max(ratios), len(ratios))


def _positions(
    rng: np.random.Generator, k: int, corners: list[Array], metric: Array, separation: float
) -> Array:
    """Random points in a box, each far from the points before it if one of 50 tries is."""
    low, high = corners
    positions = rng.uniform(low, high)[None]
    while len(positions) < k:
        tries = rng.uniform(low, high, size=(_TRIES if separation > 0.0 else 1, len(metric)))
        away = tries[:, None] - positions[None]
        reach = np.einsum("tpi,ij,tpj->tp", away, metric, away).min(axis=1)
        fine = np.flatnonzero(reach >= separation**2)
        positions = np.append(positions, tries[[fine[0] if len(fine) else reach.argmax()]], axis=0)
    return positions


def _features_of(feature_map: FeatureMap, variances: Array) -> Callable[[Array], Array]:
    """Function from means of components to their weighted features, shape (m, n_means)."""
    omega, weights = feature_map.frequencies, feature_map.feature_weights
    modulus = np.exp(-0.5 * (variances @ omega**2))
    modulus = modulus if weights is None else modulus * weights
    return lambda means: modulus[:, None] * np.exp(-1j * (means @ omega).T)


def _squared_distance(
    feature_map: FeatureMap, variances: Array, seed: int
) -> Callable[[Array, Array], float]:
    """Function from means and signed weights of components to their squared norm in the kernel."""
    kernel = feature_map.distribution_variances
    if feature_map.distribution in _GAUSSIAN and len(kernel) == 1:
        white = feature_map.whitening
        if white is None or not variances.any():
            gamma = kernel[0]
            wide = gamma + 2.0 * variances
            scale = float(np.sqrt(np.prod(gamma / wide)))
            linear = np.eye(len(gamma)) if white is None else white

            def known(means: Array, signed: Array) -> float:
                scaled = means @ linear.T / np.sqrt(wide)
                away = ((scaled[:, None] - scaled[None]) ** 2).sum(axis=2)
                return float(scale * signed @ np.exp(-0.5 * away) @ signed)

            return known
    # independent of the frequencies of the map, since seeds of designs are small
    fresh = replace(
        feature_map, n_frequencies=_REFERENCES, seed=2**40 + seed, pilot=None, scale_fit=None
    )
    features = _features_of(fresh, variances)
    return lambda means, signed: float((np.abs(features(means) @ signed) ** 2).mean())


# Certified changes, and bounds of the excess risk.


def prune_close_centroids(centroids: Centroids, separation: float) -> tuple[Centroids, float]:
    """Leave out centroids that are near a heavier one, with a bound of the loss (Lemma F.5).

    Parameters
    ----------
    centroids
        Centroids. The weight of a centroid that is left out is added to the nearest kept centroid.
    separation
        Distance that kept centroids exceed, ``>= 0``.

    Returns
    -------
    kept
        Centroids that are kept.
    loss
        Largest distance of a centroid to the nearest kept centroid, at most ``separation``. The
        mean distance of samples (k-medians) grows by at most this distance, and so does the root of
        the mean squared distance (k-means), eq. (180) and (181).

    Raises
    ------
    InputError
        If an argument is of another type or out of range.

    Examples
    --------
    >>> points = Centroids([0.5, 0.3, 0.2], [[0.0], [5.0], [0.3]])
    >>> kept, loss = prune_close_centroids(points, 1.0)
    >>> kept.centers.ravel(), kept.weights, loss
    (array([0., 5.]), array([0.7, 0.3]), 0.3)
    """
    if not isinstance(centroids, Centroids):
        raise InputError(f"centroids of type {type(centroids).__name__}: give Centroids.")
    smallest = require_number("separation", separation, 0.0, 1e300)
    centers = centroids.centers
    distances = np.sqrt(((centers[:, None] - centers[None]) ** 2).sum(axis=2))
    chosen: list[int] = []
    for number in np.argsort(-centroids.weights, kind="stable").tolist():
        if all(distances[number, earlier] > smallest for earlier in chosen):
            chosen.append(number)
    chosen.sort()
    nearest = distances[:, chosen].argmin(axis=1)
    weights = np.bincount(nearest, centroids.weights, minlength=len(chosen))
    kept = Centroids(
        weights / weights.sum(), centers[chosen], normalize=centroids.normalize,
        feature_names=centroids.feature_names,
    )  # fmt: skip
    return kept, float(distances[:, chosen].min(axis=1).max())


@dataclass(frozen=True)
class RiskBound:
    """Bound of the excess risk of the ideal decoder.

    Attributes
    ----------
    bias
        Part that depends on the risk of the best model, without samples; nan where the paper does
        not bound it.
    sampling
        Part that falls with the number of samples, ``4 C |A(p) - A(p_n)|``.
    """

    bias: float
    sampling: float

    @property
    def total(self) -> float:
        """Sum of both parts."""
        return self.bias + self.sampling


def excess_risk_bound(
    n_components: int,
    radius: float,
    n_samples: float,
    *,
    power: int = 2,
    risk: float = 0.0,
    lipschitz: float = 1.0,
    norm: float = 1.0,
    delta: float = 0.5,
    rho: float = 0.05,
) -> RiskBound:
    """Compute the bound of the excess risk of clustering, Theorem 4.1 with Lemmas 2.8 and 4.3.

    The bound holds for separated centroids (:func:`separation_scale`) and a sketch of the explicit
    size (:func:`sketch_sizes`); for k-means, also the samples must lie in the ball. The factor of
    the sampling error is 4, by Theorem 2.7; eq. (48) prints 1.

    Parameters
    ----------
    n_components
        Number of centroids, ``>= 1``.
    radius
        Radius of the ball of centroids.
    n_samples
        Number of samples.
    power
        1 for k-medians, 2 for k-means.
    risk
        Smallest possible risk: mean distance, or mean squared distance.
    lipschitz, norm
        Lipschitz constant and norm of the features.
    delta
        Relative error of squared distances of sketches, in (0, 1).
    rho
        Probability of a larger sampling error, in (0, 1).

    Returns
    -------
    bound
        Bound in units of the risk.

    Raises
    ------
    InputError
        If an argument is out of range.

    References
    ----------
    Gribonval, Blanchard, Keriven, Traonmilin (2017).

    Examples
    --------
    >>> few = excess_risk_bound(5, 10.0, 1e4, power=1, risk=0.1)
    >>> many = excess_risk_bound(5, 10.0, 1e6, power=1, risk=0.1)
    >>> round(few.sampling / many.sampling), many.bias == few.bias
    (10, True)
    """
    k = require_integer("n_components", n_components, 1)
    if power not in (1, 2):
        raise InputError(f"power={power!r}: give 1 for k-medians, or 2 for k-means.")
    delta = require_number("delta", delta, 0.0, 1.0, strict=True)
    rho = require_number("rho", rho, 0.0, 1.0, strict=True)
    # for k-medians from the losses of the proof, for k-means as printed
    factor = 6.0 * math.sqrt(2.0) if power == 1 else 8.0 * math.sqrt(6.0)
    compatible = factor * math.sqrt(k / (1.0 - delta)) * radius**power
    error = norm / math.sqrt(n_samples) * (1.0 + math.sqrt(2.0 * math.log(1.0 / rho)))
    if power == 1:
        bias = (2.0 + 4.0 * lipschitz * compatible) * risk
    else:
        bias = 2.0 * (4.0 * radius + 2.0 * lipschitz * compatible) * math.sqrt(risk)
    return RiskBound(bias, 4.0 * compatible * error)


def component_risk_bound(
    n_components: int, risk: float, sampling_error: float, *, delta: float = 0.5
) -> RiskBound:
    """Compute the bound of the excess risk of compressive principal components, Theorem 3.1.

    Parameters
    ----------
    n_components
        Number of components, ``>= 1``.
    risk
        Smallest possible unexplained variance.
    sampling_error
        Distance of the sketch from its expectation.
    delta
        Constant of the restricted isometry (32), in (0, 1).

    Returns
    -------
    bound
        Bound in units of the variance.

    Raises
    ------
    InputError
        If an argument is out of range.

    References
    ----------
    Gribonval, Blanchard, Keriven, Traonmilin (2017).

    Examples
    --------
    >>> found = component_risk_bound(5, 1.0, 1.0)
    >>> round(found.bias, 1), round(found.sampling, 1)
    (23.9, 17.9)
    """
    k = require_integer("n_components", n_components, 1)
    delta = require_number("delta", delta, 0.0, 1.0, strict=True)
    factor = 4.0 * math.sqrt(2.0 * k / (1.0 - delta))
    return RiskBound((2.0 + factor * math.sqrt(1.0 + delta)) * risk, factor * sampling_error)


# All quantities for one fit.


@dataclass(frozen=True)
class Guarantees:
    """Quantities of the theory for one model and sketch; ``diagnose(..., theory=True)``.

    Attributes
    ----------
    n_frequencies
        Number of frequencies of the sketch.
    sizes
        Numbers of frequencies by rule and by theory.
    separation, required_separation
        Smallest distance of two components in kernel bandwidths, and the distance that the theorem
        requires; nan for one component, or if no theorem applies.
    coherence
        Bound of the coherence of dipoles of this separation, eq. (74), times ``2 K - 1``: the
        theorem requires 3/4 at most. nan if components are too close.
    isometry
        Sampled isometry of the frequencies on secants of such models in the range of the data.
    lipschitz
        Lipschitz constant of the features, for rows in units of the scale.
    bound
        Bound of the excess risk of the ideal decoder: for k-means in squared units of the scale of
        the feature map, if the smallest possible risk is zero; for a mixture in nats.
    n_pruned, pruning_loss
        Number of centroids that are nearer to another centroid than the theorem requires, and bound
        of the growth of the root of the risk without them, in units of the scale.
    """

    n_frequencies: int
    sizes: SketchSizes
    separation: float
    required_separation: float
    coherence: float
    isometry: IsometrySample
    lipschitz: float
    bound: RiskBound
    n_pruned: int
    pruning_loss: float

    @property
    def is_separated(self) -> bool:
        """Whether the components are as far apart as the theorem requires."""
        return not self.separation < self.required_separation

    def fields(self) -> dict[str, str]:
        """All quantities, as text."""
        isometry = self.isometry
        applies = not math.isnan(self.required_separation)
        outside = "no theorem applies to frequencies of such variances"
        required = f"the theorem requires {self.required_separation:.3g}" if applies else outside
        risk = "" if self.is_separated else ", if they were separated"
        out = {
            "frequencies of the sketch": f"{self.n_frequencies:,}",
            **self.sizes.fields(),
            "smallest separation": "none for one component"
            if math.isnan(self.separation)
            else f"{self.separation:.3g} kernel bandwidths; {required}",
            "coherence": f"{self.coherence:.2g}; the theorem requires 0.75 at most"
            if math.isfinite(self.coherence)
            else "not bounded, the components are too close"
            if math.isfinite(self.separation)
            else "none for one component",
            "isometry": f"{isometry.minimum:.2g} to {isometry.maximum:.2g} on "
            f"{counted(isometry.n_pairs, 'sampled pair')}, which can refute it and not prove it",
            "Lipschitz constant": f"{self.lipschitz:.3g} over the scale",
            "bound of the excess risk, sampling": outside
            if math.isnan(self.bound.sampling)
            else f"{self.bound.sampling:.3g}{risk}",
        }
        if self.n_pruned:
            out["centroids closer than required"] = (
                f"{self.n_pruned}; without them the root of the risk grows by "
                f"{self.pruning_loss:.3g} scales at most"
            )
        return out

    def as_dict(self) -> dict[str, Any]:
        """All attributes, as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        return fields_text(self.fields())


def guarantees(model: GaussianMixture | Centroids, sketch: Sketch, seed: int = 0) -> Guarantees:
    """Compute the quantities of the theory of compressive learning for a model and its sketch.

    Parameters
    ----------
    model
        Decoded model.
    sketch
        Sketch with the same number of features.
    seed
        Seed of the sampled secants.

    Returns
    -------
    guarantees
        Quantities; nan where the theory gives no bound.
    """
    feature_map = sketch.feature_map
    unit = np.sqrt(feature_map.mean_variances)
    k, d, n = model.n_components, model.n_features, sketch.effective_count
    distances = separations(model, feature_map)
    closest = float(distances.min()) if len(distances) else math.nan
    is_points = isinstance(model, Centroids)
    points = model.centers if isinstance(model, Centroids) else model.means
    middle = 0.5 * (points.min(axis=0) + points.max(axis=0))
    lipschitz = lipschitz_constant(feature_map)
    pruned, loss = 0, 0.0
    if isinstance(model, Centroids):
        required = 2.0 / separation_scale(k)
        radius = float(np.sqrt((((points - middle) / unit) ** 2).sum(axis=1).max()))
        sizes = sketch_sizes(k, d, radius=max(2.0 * radius / required, 1.0))
        weights = feature_map.feature_weights
        norm = 1.0 if weights is None else math.sqrt(float(np.square(weights).mean()))
        bound = excess_risk_bound(k, radius, n, lipschitz=lipschitz, norm=norm)
        scaled = Centroids(model.weights, points / unit)
        kept, loss = prune_close_centroids(scaled, required)
        pruned = k - kept.n_components
        width, spread = closest, None
    else:
        widths = np.sqrt(model.weights @ model.variances)
        spread = widths**2
        # variance of the frequencies, in units of the inverse variances of the components
        square = float(np.mean(spread * np.diag(_curvature(feature_map))))
        radius = float(np.sqrt((((points - middle) / widths) ** 2).sum(axis=1).max()))
        applies = square <= 0.5
        constants = mixture_trade_off(k, d, min(square, 0.5))
        required = 2.0 * constants.separation * math.sqrt(square) if applies else math.nan
        inside = max(radius / constants.separation, 1.0)
        sizes = sketch_sizes(
            k, d, task="mixture", radius=inside, squared_frequency=min(square, 0.5)
        )
        compatible = 4.0 * math.sqrt(6.0 * k) * max(radius, constants.separation) ** 2
        error = math.sqrt(constants.amplitude / n) * (1.0 + math.sqrt(2.0 * math.log(20.0)))
        bound = RiskBound(math.nan, 4.0 * compatible * error if applies else math.nan)
        width = closest / math.sqrt(1.0 + 2.0 * square)  # width of the kernel of means
    squared = 4.0 / width**2 if width > 0.0 else math.inf
    each = 2 * k * (feature_map.n_frequencies + _REFERENCES)
    return Guarantees(
        n_frequencies=feature_map.n_frequencies,
        sizes=sizes,
        separation=closest,
        required_separation=required,
        coherence=(2 * k - 1) * coherence(squared) if squared <= 1.0 / 3.0 else math.nan,
        isometry=sample_isometry(
            feature_map, k, low=sketch.minimum, high=sketch.maximum, variances=spread,
            separation=closest if is_points and math.isfinite(closest) else 0.0,
            n_pairs=min(max(_FEATURES // each, 20), _PAIRS), seed=seed,
        ),
        lipschitz=lipschitz,
        bound=bound,
        n_pruned=pruned,
        pruning_loss=loss,
    )  # fmt: skip
