"""Mixtures of Gaussians from a sketch, with the interface of scikit-learn."""

from __future__ import annotations

from typing import Any

from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dask_sketch.estimators.fitting import SketchEstimator, number
from dask_sketch.models import GaussianMixture


class SketchGaussianMixture(DensityMixin, SketchEstimator):
    """A mixture with diagonal covariances of data of any size, from one pass over it.

    Parameters
    ----------
    n_components
        Number of components.
    n_frequencies
        Size of the sketch; ``5 (2 d + 1) n_components`` by default.
    scale
        Deviation of a component, in units of the data; found for each feature by default.
    method, refine, variance_floor
        Of the decoder, see :func:`dask_sketch.decode`.
    n_init
        Independent decodings, of which the best is kept.
    random_state
        Seed, or an instance of ``RandomState``; the same seed gives the same result.

    Attributes
    ----------
    weights_, means_, covariances_
        Shapes (n_components,), (n_components, n_features) and (n_components, n_features), of which
        the last holds variances: what scikit-learn calls ``covariance_type="diag"``.
    precisions_
        One over ``covariances_``.
    converged_
        Whether the decoder did.
    sketch_
        All that was kept of the samples, a :class:`dask_sketch.Sketch`.
    feature_map_, model_
        What was averaged, and the :class:`dask_sketch.GaussianMixture` decoded.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.concatenate([np.random.default_rng(0).normal(c, 1, (2000, 2)) for c in (-5, 5)])
    >>> found = SketchGaussianMixture(2).fit(x)
    >>> np.sort(found.means_[:, 0]).round().astype(int)
    array([-5,  5])
    """

    _task = "mixture"
    _size = "n_components"

    def __init__(
        self,
        n_components: int = 1,
        *,
        n_frequencies: int | None = None,
        scale: float | None = None,
        method: str = "cl-ompr",
        refine: str | None = None,
        variance_floor: float = 0.1,
        n_init: int = 1,
        random_state: Any = 0,
    ):
        self.n_components = n_components
        self.n_frequencies = n_frequencies
        self.scale = scale
        self.method = method
        self.refine = refine
        self.variance_floor = variance_floor
        self.n_init = n_init
        self.random_state = random_state

    def predict(self, X: Any) -> Any:
        """Most probable component of each sample.

        Parameters
        ----------
        X
            Samples, in memory or lazy.

        Returns
        -------
        labels
            Shape (n_samples,); lazy if ``X`` is.
        """
        rows = self._given(X)
        return self.model_.predict(rows)

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit, and give the most probable component of each sample."""
        return self.fit(X, y, sample_weight).predict(X)

    def predict_proba(self, X: Any) -> Any:
        """Probability of each component given each sample.

        Parameters
        ----------
        X
            Samples, in memory or lazy.

        Returns
        -------
        probability
            Shape (n_samples, n_components); lazy if ``X`` is.
        """
        rows = self._given(X)
        return self.model_.predict_proba(rows)

    def score_samples(self, X: Any) -> Any:
        """Log-likelihood of each sample, shape (n_samples,), in nats; lazy if ``X`` is."""
        rows = self._given(X)
        return self.model_.logpdf(rows)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the samples, in nats; lazy samples are passed over at once."""
        rows = self._given(X)
        return number(self.model_.score(rows))

    def sample(self, n_samples: int = 1) -> tuple[Any, Any]:
        """Draw samples.

        Parameters
        ----------
        n_samples
            Number of samples.

        Returns
        -------
        X, y
            Shape (n_samples, n_features), and the component of each, most probable given it.
        """
        check_is_fitted(self)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        drawn = self.model_.sample(n_samples, seed=seed)
        return drawn, self.model_.predict(drawn)

    def _design(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def _decoding(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "refine": self.refine,
            "variance_floor": self.variance_floor,
        }

    def _told(self, model: Any, x: Any) -> None:
        assert isinstance(model, GaussianMixture)
        assert model.decoding is not None
        self.weights_, self.means_ = model.weights, model.means
        self.covariances_, self.precisions_ = model.covariances, 1.0 / model.covariances
        self.converged_ = model.decoding.converged
