"""Mixtures of von Mises-Fisher distributions, for directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dask_sketch.errors import InputError
from dask_sketch.models.artifact import VON_MISES_FISHER
from dask_sketch.models.density import JointDensity
from dask_sketch.models.mixture import Mixture
from dask_sketch.models.model import SHOWN_FEATURES, check_directions, unit_blocks
from dask_sketch.validation.arrays import require_integer

if TYPE_CHECKING:
    from dask_sketch.models.model import Decoding, Polishing

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]
MAX_CONCENTRATION = 1e7  # largest concentration: rounding of the Bessel functions is felt beyond it
_MAX_ORDER = 120.0  # order beyond which Bessel functions are expanded in the order
_N_TERMS = 24  # terms of the power series, whose ratio is at most one over their number
_TURNING = 0.5  # distance from a turning point, below which there is no expansion in the order
# Coefficients of Debye's polynomials u_1 to u_4, each in powers p**k, p**(k + 2), ...
_DEBYE = (
    np.array([3.0, -5.0]) / 24.0,
    np.array([81.0, -462.0, 385.0]) / 1152.0,
    np.array([30375.0, -369603.0, 765765.0, -425425.0]) / 414720.0,
    np.array([4465125.0, -94121676.0, 349922430.0, -446185740.0, 185910725.0]) / 39813120.0,
)


def log_bessel(order: float, roots: Complex) -> Complex:
    """Logarithm of ``gamma(order + 1) (2 / s)**order I_order(s) exp(-Re s)``.

    That is ``0F1(order + 1, s**2 / 4)``, scaled. Near the origin it is the power series, for small
    orders the scaled Bessel function, and for large ones Debye's expansion.

    Parameters
    ----------
    order
        Order of the modified Bessel function, at least 0.
    roots
        Values ``s`` with a real part that is not negative, of any shape.

    Returns
    -------
    logarithm
        Complex logarithms, of the same shape; ``-inf`` where the function is zero.

    References
    ----------
    NIST Digital Library of Mathematical Functions, (10.25.2) and (10.41.3).

    Examples
    --------
    >>> log_bessel(0.5, np.array([2.0 + 0.0j])).real  # sinh(2) / 2 exp(-2)
    array([-1.404...])
    """
    roots = np.asarray(roots, dtype=np.complex128)
    out = np.empty_like(roots)
    near = np.abs(roots) ** 2 <= 4.0 * (order + 1.0)
    expanded = np.zeros_like(near)
    if order > _MAX_ORDER:
        expanded = ~near & (np.abs(1.0 + np.square(roots / order)) > _TURNING)
    direct = ~near & ~expanded
    out[near] = _log_series(order, roots[near])
    with np.errstate(divide="ignore"):
        out[direct] = (
            np.log(special.ive(order, roots[direct]))
            - order * np.log(0.5 * roots[direct])
            + special.gammaln(order + 1.0)
        )
    if expanded.any():
        out[expanded] = _log_debye(order, roots[expanded])
    return out


def _log_series(order: float, roots: Complex) -> Complex:
    """Logarithm of the power series, for small arguments."""
    quarter = 0.25 * np.square(roots)
    term = np.ones_like(quarter)
    total = term.copy()
    for number in range(1, _N_TERMS):
        term = term * quarter / (number * (order + number))
        total += term
    return np.asarray(np.log(total) - roots.real)


def _log_debye(order: float, roots: Complex) -> Complex:
    """Logarithm of Debye's expansion, for large orders."""
    slope = np.sqrt(1.0 + np.square(roots / order))
    inverse = 1.0 / slope
    total = np.ones_like(roots)
    for number, coefficients in enumerate(_DEBYE, start=1):
        polynomial = np.polynomial.polynomial.polyval(np.square(inverse), coefficients)
        total += polynomial * (inverse / order) ** number
    stirling = special.gammaln(order + 1.0) - (
        order * (np.log(order) - 1.0) + 0.5 * np.log(2.0 * np.pi * order)
    )
    return np.asarray(
        order * (1.0 / (slope + roots / order) - 1.0 - np.log(0.5 * (1.0 + slope)))
        + 1j * roots.imag
        + stirling
        - 0.5 * np.log(slope)
        + np.log(total)
    )


def log_normaliser(concentrations: Array, n_features: int) -> Array:
    """Logarithm of the mean of ``exp(k (cosine - 1))`` over the sphere.

    Parameters
    ----------
    concentrations
        Concentrations ``k``, not negative, of any shape.
    n_features
        Number of features ``d``.
    """
    return log_bessel(0.5 * n_features - 1.0, np.asarray(concentrations, dtype=complex)).real


def resultant_lengths(concentrations: Array, n_features: int) -> Array:
    """Lengths of the mean vectors, ratios of Bessel functions.

    Parameters
    ----------
    concentrations
        Concentrations ``k``, not negative, of any shape.
    n_features
        Number of features ``d``.

    Returns
    -------
    lengths
        Lengths in [0, 1).

    Examples
    --------
    >>> resultant_lengths(np.array([0.0, 2.0]), 3)  # coth(2) - 1 / 2 for three features
    array([0.   , 0.537...])
    """
    k = np.asarray(concentrations, dtype=np.float64)
    half, roots = 0.5 * n_features, k.astype(complex)
    ratio = np.exp((log_bessel(half, roots) - log_bessel(half - 1.0, roots)).real)
    return np.asarray(k / n_features * ratio)


def concentrations_of(lengths: Array, n_features: int) -> Array:
    """Concentrations of greatest likelihood for lengths of mean vectors.

    Newton's method from an approximation of Banerjee et al. (2005).

    Parameters
    ----------
    lengths
        Lengths of the mean vectors, in [0, 1].
    n_features
        Number of features.

    Examples
    --------
    >>> concentrations_of(resultant_lengths(np.array([2.0, 500.0]), 3), 3).round(6)
    array([  2., 500.])
    """
    d = n_features
    r = np.clip(np.asarray(lengths, dtype=np.float64), 0.0, 1.0 - 0.4 * (d - 1) / MAX_CONCENTRATION)
    k = r * (d - r**2) / (1.0 - r**2)
    for _ in range(4):
        reached = resultant_lengths(k, d)
        slope = 1.0 - reached**2 - (d - 1) * reached / np.where(k > 0.0, k, 1.0)
        slope = np.where(k > 0.0, slope, 1.0 / d)
        k = np.maximum(k - (reached - r) / np.where(slope > 0.0, slope, np.inf), 0.0)
    return np.minimum(k, MAX_CONCENTRATION)


def transforms(
    directions: Array, concentrations: Array, frequencies: Array
) -> tuple[Complex, Complex]:
    """Characteristic functions of components, and their derivatives by ``s**2``.

    ``psi = [k**v / I_v(k)] I_v(s) / s**v``, with ``v = d / 2 - 1`` and ``s**2 = k**2 - |omega|**2 -
    2 i k mu . omega``, where ``I_v(s) / s**v`` is an entire function of ``s**2``.

    Parameters
    ----------
    directions
        Mean directions ``mu``, shape (n_components, n_features).
    concentrations
        Concentrations ``k``, shape (n_components,).
    frequencies
        Frequencies ``omega``, shape (n_features, m).

    Returns
    -------
    values, derivatives
        ``psi``, and the derivative of ``I_v(s) / s**v`` times ``k**v / I_v(k)``, each of shape
        (n_components, m).
    """
    d, order = len(frequencies), 0.5 * len(frequencies) - 1.0
    roots, scale = _roots(directions, concentrations, frequencies)
    values = np.exp(log_bessel(order, roots) + scale)
    derivatives = np.exp(log_bessel(order + 1.0, roots) + scale) / (2.0 * d)
    return np.asarray(values), np.asarray(derivatives)


def transform_values(directions: Array, concentrations: Array, frequencies: Array) -> Complex:
    """Characteristic functions of components: the first result of :func:`transforms`.

    Parameters
    ----------
    directions, concentrations, frequencies
        Arguments of :func:`transforms`.
    """
    roots, scale = _roots(directions, concentrations, frequencies)
    return np.asarray(np.exp(log_bessel(0.5 * len(frequencies) - 1.0, roots) + scale))


def _roots(directions: Array, concentrations: Array, frequencies: Array) -> tuple[Complex, Array]:
    """Roots ``s``, and ``Re s - k`` without cancellation, less the normaliser."""
    k = concentrations[:, None]
    shift = -np.square(frequencies).sum(axis=0) - 2j * k * (directions @ frequencies)
    roots = np.sqrt(k**2 + shift)
    growth = (shift / np.where(roots + k == 0.0, 1.0, roots + k)).real
    return roots, growth - log_normaliser(concentrations, len(frequencies))[:, None]


class DirectionDensity(JointDensity):
    """Joint log-density of directions and components, on the surface of the sphere.

    Parameters
    ----------
    weights, directions, concentrations
        Parameters of :class:`VonMisesFisherMixture`.
    """

    def __init__(self, weights: Array, directions: Array, concentrations: Array) -> None:
        d = directions.shape[1]
        self._scaled = (directions * concentrations[:, None]).T
        surface = np.log(2.0) + 0.5 * d * np.log(np.pi) - special.gammaln(0.5 * d)
        with np.errstate(divide="ignore"):  # a weight of zero is a density of zero
            log_weights = np.log(weights)
        self._constants = log_weights - log_normaliser(concentrations, d) - concentrations - surface

    def log_joint(self, block: Array) -> Array:
        """Log of weight times density, shape (n, n_components)."""
        return np.asarray(block @ self._scaled + self._constants)


@dataclass(frozen=True, eq=False, repr=False)
class VonMisesFisherMixture(Mixture):
    """A mixture of von Mises-Fisher distributions of directions.

    The density of a component is proportional to ``exp(k mu . x)`` for rows ``x`` of length one.
    Methods divide rows by their Euclidean lengths first, as a feature map with ``normalize=True``
    does, and return a Dask collection for lazy input, with one task per chunk. Rows of zeros have
    no direction, and are refused.

    Parameters
    ----------
    weights
        Non-negative weights that sum to one, shape (n_components,).
    directions
        Mean directions ``mu``, vectors of length one, shape (n_components, n_features), with at
        least two features.
    concentrations
        Concentrations ``k``, from 0 (a uniform component) to 1e7, shape (n_components,). The
        squared angle of a row to its mean direction is about ``(n_features - 1) / k`` if ``k`` is
        large.
    decoding
        Record of the decoding, if the mixture was decoded.
    polishing
        None, since :func:`dask_sketch.polish` does not take this model.
    feature_names
        Names of the features; by default those in the record of the decoding. Samples with other
        names, or another order of the names, are refused.

    Raises
    ------
    InputError
        If a shape or value is invalid.

    References
    ----------
    Banerjee, Dhillon, Ghosh, Sra (2005), Clustering on the unit hypersphere using von Mises-Fisher
    distributions, Journal of Machine Learning Research 6.

    Examples
    --------
    >>> mixture = VonMisesFisherMixture([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], [20.0, 20.0])
    >>> mixture.predict([[5.0, 1.0], [0.1, 0.3]])
    array([0, 1])
    """

    _arrays = ("weights", "directions", "concentrations")
    _schema = VON_MISES_FISHER
    _kind = "von Mises-Fisher mixture"

    weights: Array
    directions: Array
    concentrations: Array
    decoding: Decoding | None = None
    polishing: Polishing | None = None
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_features < 2:
            raise InputError("directions have 1 feature: give at least 2.")
        check_directions("directions", self.directions)
        k = self.concentrations
        if k.shape != self.weights.shape:
            raise InputError(
                f"concentrations has shape {k.shape}; for {self.n_components} directions give "
                f"({self.n_components},)."
            )
        if not ((k >= 0.0) & (k <= MAX_CONCENTRATION)).all():
            raise InputError(
                f"concentrations range from {k.min():g} to {k.max():g}: give numbers from 0 to "
                f"{MAX_CONCENTRATION:g}."
            )

    def _blocks(self, x: Any) -> Iterator[Array]:
        return unit_blocks(x, self.n_features, self.n_components, self.feature_names)

    def density(self) -> DirectionDensity:
        """Joint log-density of rows of length one and components, by area of the sphere."""
        return DirectionDensity(self.weights, self.directions, self.concentrations)

    @property
    def n_parameters(self) -> int:
        """Number of free parameters: weights, which sum to one, directions and concentrations."""
        return self.n_components * (self.n_features + 1) - 1

    @property
    def resultants(self) -> Array:
        """Length of the mean vector of each component, in [0, 1), shape (n_components,)."""
        return resultant_lengths(self.concentrations, self.n_features)

    def characteristic(self, frequencies: ArrayLike) -> Complex:
        """Characteristic function ``E exp(-i omega . x)`` of the directions.

        Parameters
        ----------
        frequencies
            Frequencies ``omega``, shape (n_features, n_frequencies).

        Returns
        -------
        psi
            Values, shape (n_frequencies,), complex128, at most one in modulus.

        Raises
        ------
        InputError
            If the frequencies have another number of features.
        """
        omega = self._omega(frequencies)
        return np.asarray(
            self.weights @ transform_values(self.directions, self.concentrations, omega)
        )

    def sample(self, n_samples: int, seed: int = 0) -> Array:
        """Sample directions from the mixture, by rejection.

        Parameters
        ----------
        n_samples
            Number of samples, ``>= 0``.
        seed
            Seed, ``>= 0``; the same seed gives the same bits.

        Returns
        -------
        x
            Rows of length one, shape (n_samples, n_features), float64.

        Raises
        ------
        InputError
            If ``n_samples`` or ``seed`` is not a non-negative integer.

        References
        ----------
        Wood (1994), Simulation of the von Mises Fisher distribution, Communications in Statistics:
        Simulation and Computation 23.
        """
        n_samples = require_integer("n_samples", n_samples, 0)
        rng = np.random.default_rng(require_integer("seed", seed, 0))
        component = np.searchsorted(np.cumsum(self.weights)[:-1], rng.random(n_samples), "right")
        away = _distances_along(rng, self.concentrations[component], self.n_features)
        x = rng.standard_normal((n_samples, self.n_features))
        step = 8192
        for start in range(0, n_samples, step):
            block, part = x[start : start + step], slice(start, start + step)
            mean = self.directions[component[part]]
            block -= np.einsum("ij,ij->i", block, mean)[:, None] * mean
            block /= np.linalg.norm(block, axis=1)[:, None]
            block *= np.sqrt(away[part] * (2.0 - away[part]))[:, None]
            block += (1.0 - away[part])[:, None] * mean
        return x

    def _repr_html_(self) -> str:
        rows = [
            [str(k), f"{self.weights[k]:.4g}", f"{self.concentrations[k]:.4g}"]
            + [f"{x:.4g}" for x in direction[:SHOWN_FEATURES]]
            for k, direction in enumerate(self.directions)
        ]
        header = ["component", "weight", "concentration", *self._feature_header()]
        return self._card("components: weight, concentration, mean direction", header, rows)


def _distances_along(rng: np.random.Generator, concentrations: Array, n_features: int) -> Array:
    """One minus the cosine to the mean direction of each sample, by rejection."""
    out, left = np.empty(len(concentrations)), np.arange(len(concentrations))
    half = 0.5 * (n_features - 1)
    while len(left):
        k = concentrations[left]
        b = 2.0 * half / (2.0 * k + np.hypot(2.0 * k, 2.0 * half))
        z = rng.beta(half, half, len(left))
        below = 1.0 - (1.0 - b) * z
        away = 2.0 * b * z / below  # one minus the cosine
        # relative to the peak of the envelope, where one minus the cosine is 2 b / (1 + b)
        peak = 2.0 * b / (1.0 + b)
        log_ratio = k * (peak - away) + 2.0 * half * np.log(
            (1.0 - (1.0 - b) / (1.0 + b) * (1.0 - away)) * (1.0 + b) ** 2 / (4.0 * b)
        )
        kept = log_ratio >= np.log1p(-rng.random(len(left)))
        out[left[kept]] = away[kept]
        left = left[~kept]
    return out


@dataclass(frozen=True)
class FittedDirections:
    """Von Mises-Fisher mixture of greatest likelihood for points.

    Attributes
    ----------
    weights, directions, concentrations
        Parameters of :class:`VonMisesFisherMixture`.
    log_likelihood
        Mean log-likelihood of the points, in nats.
    converged
        Whether the iterations converged.
    """

    weights: Array
    directions: Array
    concentrations: Array
    log_likelihood: float
    converged: bool


def fit_directions(
    points: Array,
    weights: Array | None,
    starts: Sequence[tuple[Array, Array, Array]],
    *,
    n_iterations: int = 300,
    tolerance: float = 1e-7,
) -> FittedDirections:
    """Fit a von Mises-Fisher mixture to points by expectation-maximisation.

    Parameters
    ----------
    points
        Points of length one, shape (n, n_features).
    weights
        Weights of the points, shape (n,), not negative; equal by default.
    starts
        Weights, directions and concentrations to start from, at least one; the likeliest result is
        returned.
    n_iterations
        Largest number of iterations of each start.
    tolerance
        Gain of an iteration in nats a point, below which iterations end.

    Examples
    --------
    >>> truth = VonMisesFisherMixture([1.0], [[0.0, 1.0]], [5.0])
    >>> points = truth.sample(20_000)
    >>> start = np.ones(1), points[:1], np.ones(1)
    >>> fit_directions(points, None, [start]).concentrations.round(1)
    array([5.])
    """
    masses = np.ones(len(points)) if weights is None else np.asarray(weights, dtype=np.float64)
    masses = masses / masses.sum()
    found = [_ascend(points, masses, start, n_iterations, tolerance) for start in starts]
    return max(found, key=lambda each: each.log_likelihood)


def _ascend(
    points: Array,
    masses: Array,
    start: tuple[Array, Array, Array],
    n_iterations: int,
    tolerance: float,
) -> FittedDirections:
    """Local maximum of the likelihood."""
    weights, directions, concentrations = start
    d, k, before = points.shape[1], len(weights), -np.inf
    step = max(1_000_000 // (k + d), 16)
    for iteration in range(n_iterations + 1):
        density = DirectionDensity(weights, directions, concentrations)
        sums, mass, total = np.zeros((k, d)), np.zeros(k), 0.0
        for first in range(0, len(points), step):
            block, part = points[first : first + step], masses[first : first + step]
            posterior, logs = density.normalised(block)
            total += float(part @ logs)
            posterior *= part[:, None]
            mass += posterior.sum(axis=0)
            sums += posterior.T @ block
        converged = total - before < tolerance
        if converged or iteration == n_iterations:
            break
        before, weights = total, mass / mass.sum()
        lengths = np.linalg.norm(sums, axis=1)
        held = (mass > 0.0) & (lengths > 0.0)  # an empty component stays where it is
        directions = np.where(
            held[:, None], sums / np.where(held, lengths, 1.0)[:, None], directions
        )
        of_rows = concentrations_of(lengths / np.where(mass > 0.0, mass, 1.0), d)
        concentrations = np.where(held, of_rows, concentrations)
    return FittedDirections(weights, directions, concentrations, total, converged)
