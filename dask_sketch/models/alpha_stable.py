"""Mixtures of elliptical alpha-stable distributions, for heavy tails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.interpolate import CubicSpline

from dask_sketch.errors import InputError
from dask_sketch.models.artifact import ALPHA_STABLE
from dask_sketch.models.density import JointDensity
from dask_sketch.models.mixture import Mixture
from dask_sketch.models.model import SHOWN_FEATURES
from dask_sketch.validation.arrays import require_integer

if TYPE_CHECKING:
    from dask_sketch.models.model import Decoding, Polishing

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]
MIN_ALPHA, MAX_ALPHA = 0.5, 2.0  # the first is excluded
_NEARLY_TWO = 1e-3  # distance of alpha from 2, within which the density is interpolated
# Panels of Gauss and Legendre's quadrature: nodes of each, and ends.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
# angles near pi, as logarithms of distances to the power 1 / beta
_ANGLES = np.linspace(-60.0, 0.0, 61)
_EXPONENTIALS = np.linspace(-40.0, 7.0, 95)  # logarithms of exponential variables
_SQUARES = np.arange(-110.0, 70.0, 0.05)  # logarithms of squared distances
_RADII = np.arange(np.log(1e-5), np.log(1e9), 0.03)  # logarithms of tabulated distances


def _panels(ends: Array) -> tuple[Array, Array]:
    """Nodes and weights of the quadrature over all panels between ends."""
    half = 0.5 * np.diff(ends)[:, None]
    middle = 0.5 * (ends[1:] + ends[:-1])[:, None]
    return (middle + half * _NODES).ravel(), (half * _WEIGHTS).ravel()


def _log_variances(beta: float) -> tuple[Array, Array]:
    """Logarithms of ``B(u)**((1 - beta) / beta)`` at angles ``u``, and of their masses.

    A positive stable variable of index ``beta`` is this variance, times an independent exponential
    variable to the power ``(beta - 1) / beta``, where the angle is uniform in (0, pi).
    """
    logs, weights = _panels(beta * _ANGLES + np.log(0.5 * np.pi))
    near = np.exp(logs)
    middle, middle_weights = _panels(np.linspace(0.0, 0.5 * np.pi, 12))
    angles = np.concatenate([middle, np.pi - near])
    from_pi = np.concatenate([middle, near])  # angles with the same sine, without cancellation
    masses = np.concatenate([middle_weights, weights * near]) / np.pi
    log_variances = (
        np.log(np.sin(beta * angles))
        + (1.0 - beta) / beta * np.log(np.sin((1.0 - beta) * angles))
        - np.log(np.sin(from_pi)) / beta
    )
    return log_variances, np.log(masses)


@lru_cache(maxsize=64)
def _radial_spline(alpha: float, n_features: int) -> CubicSpline:
    """Log-density of unit scales as a function of the logarithm of the distance.

    References
    ----------
    Kanter (1975), Stable densities under change of scale and total variation inequalities, Annals
    of Probability 3.
    """
    beta = 0.5 * alpha
    power = (1.0 - beta) / beta
    # Gaussian densities over exponential variables e, of the squared distance over B(u)**power
    logs, weights = _panels(_EXPONENTIALS)
    peaks = logs - np.exp(logs) + np.log(weights)
    peaks += 0.5 * n_features * (power * logs - np.log(2.0 * np.pi))
    exponent = np.exp(np.minimum(_SQUARES[:, None] + power * logs, 700.0))
    inner = CubicSpline(_SQUARES, special.logsumexp(peaks - 0.5 * exponent, axis=1))
    log_variances, log_masses = _log_variances(beta)
    squares = np.clip(2.0 * _RADII[:, None] - log_variances, _SQUARES[0], _SQUARES[-1])
    log_masses = log_masses - 0.5 * n_features * log_variances
    return CubicSpline(_RADII, special.logsumexp(inner(squares) + log_masses, axis=1))


def log_radial(distances: Array, alpha: float, n_features: int) -> Array:
    """Log-density of an elliptical stable distribution with location zero and scales one.

    It is a mixture of Gaussians over a positive stable variance, computed by quadrature, and
    beyond a distance of 1e9 by its tail, ``distance**(-alpha - n_features)``.

    Parameters
    ----------
    distances
        Euclidean distances from the location, in units of the scales, of any shape.
    alpha
        Index in (0.5, 2].
    n_features
        Number of features.

    Examples
    --------
    >>> log_radial(np.array([0.0]), 1.0, 1).round(6)  # Cauchy, of half width 1 / sqrt(2)
    array([-0.798156])
    """
    if alpha > MAX_ALPHA - _NEARLY_TWO:
        gaussian = -0.5 * np.square(distances) - 0.5 * n_features * np.log(2.0 * np.pi)
        if alpha == MAX_ALPHA:
            return np.asarray(gaussian)
        part = (MAX_ALPHA - alpha) / _NEARLY_TWO
        tail = log_radial(distances, MAX_ALPHA - _NEARLY_TWO, n_features)
        return np.logaddexp(np.log1p(-part) + gaussian, np.log(part) + tail)
    spline = _radial_spline(float(alpha), int(n_features))
    with np.errstate(divide="ignore"):
        logs = np.log(distances)
    beyond = np.maximum(logs - _RADII[-1], 0.0)
    return np.asarray(spline(np.clip(logs, _RADII[0], _RADII[-1])) - (alpha + n_features) * beyond)


class StableDensity(JointDensity):
    """Joint log-density of samples and elliptical stable components.

    Parameters
    ----------
    weights, locations, scales, alphas
        Parameters of :class:`AlphaStableMixture`.
    """

    def __init__(self, weights: Array, locations: Array, scales: Array, alphas: Array) -> None:
        self._locations, self._scales, self._alphas = locations, scales, alphas
        with np.errstate(divide="ignore"):  # a weight of zero is a density of zero
            self._constants = np.log(weights) - np.log(scales).sum(axis=1)

    def log_joint(self, block: Array) -> Array:
        """Log of weight times density, shape (n, n_components)."""
        joint = np.empty((len(block), len(self._constants)))
        for k, (location, scale) in enumerate(zip(self._locations, self._scales, strict=True)):
            away = (block - location) / scale
            distances = np.sqrt(np.einsum("ij,ij->i", away, away))
            joint[:, k] = log_radial(distances, self._alphas[k], block.shape[1])
        return joint + self._constants


@dataclass(frozen=True, eq=False, repr=False)
class AlphaStableMixture(Mixture):
    """A mixture of elliptical alpha-stable distributions, for heavy tails.

    The characteristic function of a component is ``exp(-i omega . location - (sum_l (omega_l
    scale_l)**2 / 2)**(alpha / 2))``. With ``alpha = 2`` it is a Gaussian of variances
    ``scale**2``; with ``alpha = 1`` a Cauchy distribution. For ``alpha < 2`` there is no variance,
    for ``alpha <= 1`` no mean. Densities have no closed form: they are computed by quadrature, to
    about 1e-5 in relative terms.

    Methods return a Dask collection for lazy input, with one task per chunk.

    Parameters
    ----------
    weights
        Non-negative weights that sum to one, shape (n_components,).
    locations
        Centers of the components, shape (n_components, n_features).
    scales
        Positive scales of the features, shape (n_components, n_features).
    alphas
        Indices of stability in (0.5, 2], shape (n_components,).
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
    Nolan (2013), Multivariate elliptically contoured stable distributions: theory and estimation,
    Computational Statistics 28. Keriven, Bourrier, Gribonval, Pérez (2018), section 2.6.

    Examples
    --------
    >>> mixture = AlphaStableMixture([0.5, 0.5], [[0.0], [9.0]], [[1.0], [1.0]], [1.2, 1.8])
    >>> mixture.predict([[-500.0], [8.0]])
    array([0, 1])
    """

    _arrays = ("weights", "locations", "scales", "alphas")
    _schema = ALPHA_STABLE
    _kind = "alpha-stable mixture"

    weights: Array
    locations: Array
    scales: Array
    alphas: Array
    decoding: Decoding | None = None
    polishing: Polishing | None = None
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, shape in (("scales", self.locations.shape), ("alphas", self.weights.shape)):
            if getattr(self, name).shape != shape:
                raise InputError(
                    f"{name} has shape {getattr(self, name).shape}; for locations of shape "
                    f"{self.locations.shape} give {shape}."
                )
        if not (self.scales > 0.0).all():
            raise InputError(
                f"scales: the smallest is {self.scales.min():g}; give positive numbers."
            )
        alphas = self.alphas
        if not ((alphas > MIN_ALPHA) & (alphas <= MAX_ALPHA)).all():
            raise InputError(
                f"alphas range from {alphas.min():g} to {alphas.max():g}: give numbers above "
                f"{MIN_ALPHA:g}, and at most {MAX_ALPHA:g}."
            )

    def density(self) -> StableDensity:
        """Joint log-density of rows and components, for repeated use on rows in memory."""
        return StableDensity(self.weights, self.locations, self.scales, self.alphas)

    @property
    def n_parameters(self) -> int:
        """Number of free parameters: weights, which sum to one, locations, scales and alphas.

        Equal alphas are one parameter, which the components share.
        """
        n_alphas = self.n_components if np.ptp(self.alphas) > 0.0 else 1
        return self.n_components * (2 * self.n_features + 1) - 1 + n_alphas

    def characteristic(self, frequencies: ArrayLike) -> Complex:
        """Characteristic function ``E exp(-i omega . x)``.

        Parameters
        ----------
        frequencies
            Frequencies ``omega``, shape (n_features, n_frequencies), in radians per unit of the
            data.

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
        spread = (0.5 * self.scales**2 @ omega**2) ** (0.5 * self.alphas[:, None])
        return np.asarray(self.weights @ np.exp(-1j * (self.locations @ omega) - spread))

    def marginal(self, features: int | Sequence[int]) -> AlphaStableMixture:
        """Mixture of some of the features, which is elliptical and stable with the same alphas.

        Parameters
        ----------
        features
            Index of one feature, or several, each once.

        Returns
        -------
        mixture
            Mixture of these features, in their order, without a record of decoding.

        Raises
        ------
        InputError
            If an index is out of range or given twice, or there is none.

        Examples
        --------
        >>> mixture = AlphaStableMixture([1.0], [[0.0, 5.0]], [[1.0, 2.0]], [1.5])
        >>> mixture.marginal(1).scales
        array([[2.]])
        """
        chosen = np.atleast_1d(np.asarray(features))
        if (
            chosen.dtype.kind not in "iu"
            or chosen.ndim != 1
            or not chosen.size
            or len(np.unique(chosen)) < len(chosen)
            or not ((chosen >= 0) & (chosen < self.n_features)).all()
        ):
            raise InputError(
                f"features={features!r}: give different numbers from 0 to {self.n_features - 1}."
            )
        locations, scales = self.locations[:, chosen], self.scales[:, chosen]
        names = self.feature_names and tuple(self.feature_names[k] for k in chosen)
        return AlphaStableMixture(self.weights, locations, scales, self.alphas, feature_names=names)

    def sample(self, n_samples: int, seed: int = 0) -> Array:
        """Sample from the mixture: Gaussians times the root of a positive stable variable.

        Parameters
        ----------
        n_samples
            Number of samples, ``>= 0``.
        seed
            Seed, ``>= 0``; the same seed gives the same bits.

        Returns
        -------
        x
            Samples, shape (n_samples, n_features), float64.

        Raises
        ------
        InputError
            If ``n_samples`` or ``seed`` is not a non-negative integer.

        References
        ----------
        Chambers, Mallows, Stuck (1976), A method for simulating stable random variables, Journal
        of the American Statistical Association 71.
        """
        n_samples = require_integer("n_samples", n_samples, 0)
        rng = np.random.default_rng(require_integer("seed", seed, 0))
        component = np.searchsorted(np.cumsum(self.weights)[:-1], rng.random(n_samples), "right")
        roots = np.sqrt(_sample_subordinator(rng, 0.5 * self.alphas[component]))
        x = rng.standard_normal((n_samples, self.n_features))
        step = 8192
        for start in range(0, n_samples, step):
            block, k = x[start : start + step], component[start : start + step]
            block *= self.scales[k] * roots[start : start + step, None]
            block += self.locations[k]
        return x

    def _repr_html_(self) -> str:
        rows = []
        for k in range(self.n_components):
            pairs = zip(self.locations[k], self.scales[k], strict=True)
            cells = [f"{location:.4g} ({scale:.3g})" for location, scale in pairs]
            numbers = [str(k), f"{self.weights[k]:.4g}", f"{self.alphas[k]:.4g}"]
            rows.append([*numbers, *cells[:SHOWN_FEATURES]])
        header = ["component", "weight", "alpha", *self._feature_header()]
        return self._card("components: weight, alpha, location (scale)", header, rows)


def _sample_subordinator(rng: np.random.Generator, beta: Array) -> Array:
    """Positive stable variables with Laplace transforms ``exp(-t**beta)``, one for each index."""
    angles = np.pi * (1.0 - rng.random(len(beta)))  # angles in (0, pi]
    exponential = rng.standard_exponential(len(beta))
    out, inside = np.ones(len(beta)), beta < 1.0
    b, u, e = beta[inside], angles[inside], exponential[inside]
    sine = np.maximum(np.sin(u), 1e-300)
    logs = np.log(np.sin(b * u)) - np.log(sine) / b
    logs += (1.0 - b) / b * (np.log(np.sin((1.0 - b) * u)) - np.log(np.maximum(e, 1e-300)))
    out[inside] = np.exp(logs)
    return out
