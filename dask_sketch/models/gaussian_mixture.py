"""Mixtures of Gaussians with diagonal covariances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dask_sketch.errors import InputError
from dask_sketch.models.artifact import MIXTURE
from dask_sketch.models.model import SHOWN_FEATURES, Model, in_memory, row_blocks, weighted_mean
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.lazy_input import apply_lazily

if TYPE_CHECKING:
    from dask_sketch.models.model import Decoding, Polishing, StandardErrors

Array = NDArray[np.float64]
# Squared distance of a component from the center, in its variances, up to which the expanded
# quadratic form loses fewer than seven of sixteen digits.
_MAX_EXPANDED = 1e6


def information_criterion(
    name: str, log_likelihood: float, n_samples: float, n_parameters: int
) -> float:
    """Information criterion of Schwarz or Akaike; lower is better.

    Parameters
    ----------
    name
        ``"bic"`` or ``"aic"``.
    log_likelihood
        Sum of the log-likelihoods of the samples, in nats.
    n_samples
        Number of samples.
    n_parameters
        Number of free parameters of the model.

    Examples
    --------
    >>> information_criterion("aic", -100.0, 50, 3)
    206.0
    """
    penalty = np.log(n_samples) if name == "bic" else 2.0
    return float(n_parameters * penalty - 2.0 * log_likelihood)


class RowDensity:
    """Joint log-density of samples and components.

    The quadratic form is expanded into two matrix products. To avoid cancellation, samples and
    means are taken relative to the mean of the mixture, and the few components that are still many
    standard deviations away from it are computed by differences.

    Parameters
    ----------
    weights, means, covariances
        Parameters of a :class:`dask_sketch.models.GaussianMixture`.
    """

    def __init__(self, weights: Array, means: Array, covariances: Array) -> None:
        self._center = weights @ means
        self._means = means - self._center
        self._precisions = 1.0 / covariances
        scaled = self._means * self._precisions
        distances = (self._means * scaled).sum(axis=1)
        with np.errstate(divide="ignore"):  # a weight of zero is a density of zero
            log_weights = np.log(weights)
        self._peaks = log_weights - 0.5 * np.log(2.0 * np.pi * covariances).sum(axis=1)
        self._constants = self._peaks - 0.5 * distances
        self._linear = scaled.T.copy()
        self._quadratic = (-0.5 * self._precisions).T.copy()
        self._far = np.flatnonzero(distances > _MAX_EXPANDED)

    def log_joint(self, block: Array) -> Array:
        """Log of weight times density, shape (n, n_components)."""
        x = block - self._center
        joint = x @ self._linear
        joint += (x * x) @ self._quadratic
        joint += self._constants
        for k in self._far:
            joint[:, k] = self._peaks[k] - 0.5 * ((x - self._means[k]) ** 2 @ self._precisions[k])
        return np.asarray(joint)

    def log_total(self, block: Array) -> Array:
        """Log of the mixture's density, shape (n,)."""
        return self._normalise(self.log_joint(block))[1]

    def posterior(self, block: Array) -> Array:
        """Probability of each component given the sample, shape (n, n_components)."""
        return self._normalise(self.log_joint(block))[0]

    @staticmethod
    def _normalise(joint: Array) -> tuple[Array, Array]:
        """Softmax, in place, and log-sum-exp of each row."""
        largest = joint.max(axis=1)
        joint -= largest[:, None]
        np.exp(joint, out=joint)
        total = joint.sum(axis=1)
        joint /= total[:, None]
        return joint, largest + np.log(total)


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture(Model):
    """A mixture of Gaussians with diagonal covariances.

    Methods return arrays for samples in memory, shape (n_samples, n_features); for lazy input
    (Dask, Zarr, a path, ...) they return a Dask collection, with one task per chunk.

    Parameters
    ----------
    weights
        Non-negative weights that sum to one, shape (n_components,).
    means
        Means, shape (n_components, n_features).
    covariances
        Variances, the diagonals of the covariance matrices, shape (n_components, n_features).
    decoding
        Record of the decoding, if the mixture was decoded.
    stderr
        Standard errors of the parameters, if they were estimated (``refine="efficient"``).
    polishing
        Record of the passes of :func:`dask_sketch.polish`, if there were any. The record of the
        decoding is that of the model before.

    Raises
    ------
    InputError
        If a shape or value is invalid.

    Examples
    --------
    >>> mixture = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[1.0], [1.0]])
    >>> mixture.predict([[-2.0], [4.0]])
    array([0, 1])
    """

    _arrays = ("weights", "means", "covariances")
    _schema = MIXTURE
    _kind = "mixture"

    weights: Array
    means: Array
    covariances: Array
    decoding: Decoding | None = None
    stderr: StandardErrors | None = None
    polishing: Polishing | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        means = self.means
        if self.covariances.shape != means.shape:
            raise InputError(
                f"covariances has shape {self.covariances.shape}, means {means.shape}: give one "
                "variance for each component and feature."
            )
        if not (self.covariances > 0).all():
            raise InputError(f"covariances must be positive: smallest {self.covariances.min():g}.")
        if self.stderr is not None and self.stderr.means.shape != means.shape:
            raise InputError(
                f"stderr is of shape {self.stderr.means.shape}, the means {means.shape}."
            )

    @property
    def mean(self) -> Array:
        """Mean of the mixture, shape (n_features,)."""
        return np.asarray(self.weights @ self.means)

    @property
    def variance(self) -> Array:
        """Variance of the mixture in each feature, shape (n_features,)."""
        return np.asarray(self.weights @ (self.covariances + (self.means - self.mean) ** 2))

    def characteristic(self, frequencies: ArrayLike) -> NDArray[np.complex128]:
        """Characteristic function ``E exp(-i omega . x)``, eq. (10) and (15).

        Parameters
        ----------
        frequencies
            Frequencies ``omega``, shape (n_features, n_frequencies), in radians per unit of the
            data.

        Returns
        -------
        psi
            Values, shape (n_frequencies,), complex128, at most one in modulus.
        """
        omega = self._omega(frequencies)
        exponent = -1j * (self.means @ omega) - 0.5 * (self.covariances @ omega**2)
        return np.asarray(self.weights @ np.exp(exponent))

    def interval(self, level: float = 0.95) -> dict[str, Array]:
        """Confidence intervals of all parameters, from their standard errors.

        They hold for large samples. With ten thousand samples of components that overlap, they are
        too short: see the coverage in ``tests/benchmarks/README.md``.

        Parameters
        ----------
        level
            Probability that an interval contains its parameter, in (0, 1).

        Returns
        -------
        interval
            Lower and upper ends along the last axis: ``"weights"`` (n_components, 2), ``"means"``
            and ``"covariances"`` (n_components, n_features, 2). Intervals of weights and variances
            are truncated at zero.

        Raises
        ------
        InputError
            If the mixture has no standard errors, or ``level`` is out of range.

        Examples
        --------
        >>> from dask_sketch.models import StandardErrors
        >>> errors = StandardErrors([0.0], [[0.1]], [[0.2]])
        >>> mixture = GaussianMixture([1.0], [[0.0]], [[1.0]], stderr=errors)
        >>> mixture.interval()["means"].round(3)
        array([[[-0.196,  0.196]]])
        """
        if self.stderr is None:
            raise InputError(
                "this mixture has no standard errors: decode it with refine='efficient'."
            )
        if not 0.0 < level < 1.0:
            raise InputError(f"level={level!r}: give a probability between 0 and 1.")
        reach = float(special.ndtri(0.5 + 0.5 * level))
        out = {}
        for name in ("weights", "means", "covariances"):
            value, error = getattr(self, name), reach * getattr(self.stderr, name)
            low = value - error if name == "means" else np.maximum(value - error, 0.0)
            out[name] = np.stack([low, value + error], axis=-1)
        return out

    def logpdf(self, x: Any) -> Any:
        """Compute the logarithm of the density at each sample.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features), or lazy input.

        Returns
        -------
        logpdf
            Natural logarithms, shape (n_samples,), float64; lazy if ``x`` is.

        Raises
        ------
        InputError
            If the number of features is wrong or a value is not finite.
        """
        if not in_memory(x):
            return apply_lazily(self, "logpdf", x)
        density = RowDensity(self.weights, self.means, self.covariances)
        blocks = row_blocks(x, self.n_features, self.n_components, self.feature_names)
        return np.concatenate([np.empty(0), *(density.log_total(block) for block in blocks)])

    def score(self, x: Any, weights: Any = None) -> Any:
        """Compute the mean log-likelihood of the samples.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features), or lazy input.
        weights
            Non-negative weights of the samples, shape (n_samples,); equal by default.

        Returns
        -------
        score
            Score in nats per sample; lazy if ``x`` is.

        Raises
        ------
        InputError
            As for :meth:`logpdf`, and if there are no samples or the weights are invalid.
        """
        if not in_memory(x):
            return apply_lazily(self, "score", x, weights)
        return weighted_mean(self.logpdf(x), weights)

    def score_samples(self, x: Any) -> Any:
        """Compute the log-likelihood of each sample: :meth:`logpdf`, as scikit-learn names it."""
        return self.logpdf(x)

    @property
    def n_parameters(self) -> int:
        """Number of free parameters: weights, which sum to one, means and variances.

        A decoded ``"isotropic"`` component has one variance, and one of a known covariance none.
        """
        kind = "gaussian" if self.decoding is None else self.decoding.model
        n_variances = {"isotropic": 1, "known": 0}.get(kind, self.n_features)
        return self.n_components * (1 + self.n_features + n_variances) - 1

    def bic(self, x: Any) -> Any:
        """Compute the Bayesian information criterion of the samples, as in scikit-learn.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features), or lazy input; without weights.

        Returns
        -------
        bic
            ``n_parameters * log(n_samples)`` minus twice the log-likelihood of all samples; lower
            is better. Lazy if ``x`` is.

        Raises
        ------
        InputError
            As for :meth:`score`, and if the samples have weights.

        Examples
        --------
        >>> round(GaussianMixture([1.0], [[0.0]], [[1.0]]).bic([[0.0], [1.0]]), 3)
        6.062
        """
        return self._criterion("bic", x)

    def aic(self, x: Any) -> Any:
        """Compute the Akaike information criterion of the samples, as in scikit-learn.

        Parameters
        ----------
        x
            Samples, as for :meth:`bic`.

        Returns
        -------
        aic
            ``2 * n_parameters`` minus twice the log-likelihood of all samples; lower is better.
            Lazy if ``x`` is.

        Raises
        ------
        InputError
            As for :meth:`bic`.
        """
        return self._criterion("aic", x)

    def _criterion(self, name: str, x: Any) -> Any:
        if not in_memory(x):
            return apply_lazily(self, name, x)
        values = self.logpdf(x)
        total = len(values) * weighted_mean(values, None)
        return information_criterion(name, total, len(values), self.n_parameters)

    def predict(self, x: Any) -> Any:
        """Predict the most probable component of each sample.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features), or lazy input.

        Returns
        -------
        component
            Index from 0 to n_components - 1, shape (n_samples,); lazy if ``x`` is.
        """
        if not in_memory(x):
            return apply_lazily(self, "predict", x)
        density = RowDensity(self.weights, self.means, self.covariances)
        blocks = row_blocks(x, self.n_features, self.n_components, self.feature_names)
        labels = [density.log_joint(block).argmax(axis=1) for block in blocks]
        return np.concatenate([np.empty(0, dtype=np.intp), *labels])

    def predict_proba(self, x: Any) -> Any:
        """Compute the probability of each component given each sample.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features), or lazy input.

        Returns
        -------
        probability
            Probabilities, shape (n_samples, n_components), with rows that sum to one; lazy if
            ``x`` is.
        """
        if not in_memory(x):
            return apply_lazily(self, "predict_proba", x)
        density = RowDensity(self.weights, self.means, self.covariances)
        blocks = row_blocks(x, self.n_features, self.n_components, self.feature_names)
        rows = [density.posterior(block) for block in blocks]
        return np.concatenate([np.empty((0, self.n_components)), *rows])

    def sample(self, n_samples: int, seed: int = 0) -> Array:
        """Sample from the mixture.

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
        """
        n_samples = require_integer("n_samples", n_samples, 0)
        rng = np.random.default_rng(require_integer("seed", seed, 0))
        component = np.searchsorted(np.cumsum(self.weights)[:-1], rng.random(n_samples), "right")
        x = rng.standard_normal((n_samples, self.n_features))
        deviations = np.sqrt(self.covariances)
        step = 8192
        for start in range(0, n_samples, step):
            block, k = x[start : start + step], component[start : start + step]
            block *= deviations[k]
            block += self.means[k]
        return x

    def as_dict(self) -> dict[str, Any]:
        """Sizes, parameters, standard errors, and the records of decoding and polishing."""
        errors = None if self.stderr is None else self.stderr.as_dict()
        return super().as_dict() | {"stderr": errors}

    def _repr_html_(self) -> str:
        rows, errors = [], self.stderr
        for k in range(self.n_components):
            weight = f"{self.weights[k]:.4g}"
            means = [f"{x:.4g}" for x in self.means[k, :SHOWN_FEATURES]]
            if errors is not None:
                weight += f" ± {errors.weights[k]:.2g}"
                pairs = zip(means, errors.means[k, :SHOWN_FEATURES], strict=True)
                means = [f"{mean} ± {error:.2g}" for mean, error in pairs]
            deviations = np.sqrt(self.covariances[k, :SHOWN_FEATURES])
            cells = zip(means, deviations, strict=True)
            rows.append([str(k), weight, *(f"{mean} ({width:.3g})" for mean, width in cells)])
        heading = "components: weight, mean (standard deviation)"
        return self._card(heading, ["component", "weight", *self._feature_header()], rows)
