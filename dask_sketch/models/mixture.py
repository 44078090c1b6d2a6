"""Base class of the mixtures: densities, probabilities and predictions of rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.models.density import JointDensity
from dask_sketch.models.model import Model, in_memory, row_blocks, weighted_mean
from dask_sketch.validation.registry import apply_lazily

Array = NDArray[np.float64]


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


class Mixture(Model):
    """Base class of models with a density of each component."""

    @abstractmethod
    def density(self) -> JointDensity:
        """Joint log-density of rows and components, for repeated use on rows in memory."""

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Number of free parameters."""

    def _blocks(self, x: Any) -> Iterator[Array]:
        """Validated blocks of rows in memory."""
        return row_blocks(x, self.n_features, self.n_components, self.feature_names)

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
            If the number of features is wrong or a value is infinite.
        """
        if not in_memory(x):
            return apply_lazily(self, "logpdf", x)
        density = self.density()
        blocks = self._blocks(x)
        return np.concatenate([np.empty(0), *(density.log_total(block) for block in blocks)])

    def score(self, x: Any, weights: Any = None) -> Any:
        """Compute the mean log-likelihood of the samples.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features), or lazy input.
        weights
            Non-negative weights of the samples, shape (n_samples,); equal by default. A Series of
            pandas must have the index of ``x``.

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
        return weighted_mean(self.logpdf(x), weights, x)

    def score_samples(self, x: Any) -> Any:
        """Compute the log-likelihood of each sample: :meth:`logpdf`, as scikit-learn names it."""
        return self.logpdf(x)

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
        >>> from dask_sketch import GaussianMixture
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
        density = self.density()
        blocks = self._blocks(x)
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
        density = self.density()
        blocks = self._blocks(x)
        rows = [density.posterior(block) for block in blocks]
        return np.concatenate([np.empty((0, self.n_components)), *rows])
