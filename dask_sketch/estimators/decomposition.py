"""Principal component analysis with the interface of scikit-learn, in one pass over any data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from dask_sketch.decoders.leading_components import principal_components
from dask_sketch.errors import InputError
from dask_sketch.estimators.conventions import (
    LazyOutput,
    VersionedPickle,
    is_lazy,
    open_lazy,
    restores_on_error,
    validate_rows,
    validate_weights,
)
from dask_sketch.graph.apply import apply
from dask_sketch.graph.compute import compute_plain
from dask_sketch.graph.moments import in_larger_chunks, second_moments
from dask_sketch.models.principal_components import AffineMap, ComponentDensity
from dask_sketch.sketching.arguments import require_nan_policy
from dask_sketch.sketching.moment_grid import MAX_FEATURES, default_n_columns, moment_bytes
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.sources.open import is_stream, open_samples
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_integer, require_random_state
from dask_sketch.validation.tables import names_of

_REMEDY = "leave out such rows, or fill them"


class SketchPCA(
    LazyOutput, ClassNamePrefixFeaturesOutMixin, TransformerMixin, VersionedPickle, BaseEstimator
):
    """Principal component analysis in one pass over data of any size.

    The second moments of the samples are summed exactly, or for many features their products with a
    random test matrix (Tropp et al. 2017), and decoded. The result is the same as from
    scikit-learn's ``PCA`` on all samples.

    Parameters
    ----------
    n_components
        Number of components; or the least fraction of the variance, above 0 and below 1, that the
        components explain together. All components by default. A number is needed with
        ``n_columns``, and for more than 5,000 features.
    whiten
        Whether ``transform`` divides by the standard deviations of the components.
    n_columns
        Number of columns of the test matrix, about eight for each component. By default all second
        moments of up to 5,000 features are summed, and ``max(80, 8 n_components)`` columns for
        more.
    nan_policy
        Treatment of rows with NaN or infinite values in a fit: ``"raise"``, ``"omit"`` to leave
        such rows out and count them in ``moments_.omitted``, or ``"available"`` to leave out only
        these values, see :func:`dask_sketch.second_moments`. ``transform`` refuses them.
    columns
        Names of the columns of tables that are features; all by default, which must then be
        numeric.
    random_state
        Seed of the test matrix, or an instance of ``RandomState``.

    Attributes
    ----------
    components_
        Principal axes by decreasing variance, shape (n_components, n_features), with the signs of
        scikit-learn: the entry of largest size is positive.
    explained_variance_, explained_variance_ratio_
        Variance along each component, shape (n_components,), and its fraction of the total.
    singular_values_
        Singular values of the centered samples, shape (n_components,).
    mean_
        Mean of the samples, shape (n_features,).
    noise_variance_
        Mean variance along the directions orthogonal to the components.
    excess_risk_
        Estimated variance that these components miss and the best ones would explain, as a fraction
        of the variance that is not explained; 0 for all second moments.
    n_components_, n_samples_, n_features_in_, feature_names_in_
        Numbers of components, samples and features, and names of the features.
    moments_
        Second moments of the samples, a :class:`dask_sketch.SecondMoments`.

    Notes
    -----
    Covariances with weights are defined as in ``numpy.cov(aweights=...)``: one factor for all
    weights changes nothing.

    References
    ----------
    Tropp, Yurtsever, Udell, Cevher (2017), Fixed-rank approximation of a positive-semidefinite
    matrix from streaming data, Advances in Neural Information Processing Systems 30.

    Gribonval, Blanchard, Keriven, Traonmilin (2021), Compressive statistical learning with random
    feature moments, Mathematical Statistics and Learning 3(2), section 3.

    Examples
    --------
    >>> import dask.array as da
    >>> x = da.random.default_rng(0).normal(size=(10_000, 3), chunks=(1000, 3)) * [5.0, 2.0, 1.0]
    >>> found = SketchPCA(2).fit(x)
    >>> found.explained_variance_.round()
    array([25.,  4.])
    >>> found.transform(x).shape
    (10000, 2)
    """

    moments_: SecondMoments

    def __init__(
        self,
        n_components: float | int | None = None,
        *,
        whiten: bool = False,
        n_columns: int | None = None,
        nan_policy: str = "raise",
        columns: Sequence[str] | None = None,
        random_state: Any = 0,
    ):
        self.n_components = n_components
        self.whiten = whiten
        self.n_columns = n_columns
        self.nan_policy = nan_policy
        self.columns = columns
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> SketchPCA:
        """Sum the second moments of ``X`` in one pass and decode.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features), or anything that
            :func:`dask_sketch.second_moments` takes, such as a stream of blocks; or their
            :class:`dask_sketch.SecondMoments`, such as the total of a ledger.
        y
            Ignored.
        sample_weight
            Non-negative weight of each sample; for lazy input also lazy, or the name of a column.

        Returns
        -------
        self
            Fitted estimator.

        Raises
        ------
        ValueError
            If an argument or a sample is invalid, such as NaN with ``nan_policy="raise"``.
        """
        return self._learn(X, sample_weight, fresh=True)

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> SketchPCA:
        """Add samples to the second moments and decode again.

        The result does not depend on the division of the samples into later batches. If the
        first batch has fewer samples than ``n_components``, as many components as samples are
        decoded.

        Parameters
        ----------
        X, y, sample_weight
            Samples and weights, as for :meth:`fit`.

        Returns
        -------
        self
            Fitted estimator.
        """
        return self._learn(X, sample_weight, fresh=not hasattr(self, "moments_"), partial=True)

    @restores_on_error
    def _learn(
        self, x: Any, sample_weight: Any, *, fresh: bool, partial: bool = False
    ) -> SketchPCA:
        require_nan_policy(self.nan_policy)
        names, checked = None, False
        if isinstance(x, SecondMoments):
            moments = x if fresh else self.moments_ + x
            names = x.grid.feature_names
        else:
            seed = int(require_random_state(self.random_state).randint(2**31 - 1))
            options: dict[str, Any] = {"nan_policy": self.nan_policy, "seed": seed}
            if not fresh:
                options["like"] = self.moments_
            if is_stream(x) and not issparse(x):  # scikit-learn refuses sparse arrays
                settings = options | {"weights": sample_weight, "columns": self.columns}
                if fresh:
                    settings["n_columns"] = self.n_columns
                new = second_moments(x, **settings)
            else:
                samples, checked = self._opened(x, sample_weight, fresh=fresh)
                if fresh:
                    options["n_columns"] = self._columns(samples)
                new = second_moments(samples, **options)
            new = new if isinstance(new, SecondMoments) else new.compute()
            names = new.grid.feature_names
            moments = new if fresh else self.moments_ + new
        wanted = self.n_components
        if partial and isinstance(wanted, (int, np.integer)):
            wanted = min(wanted, moments.count)
        decoded = principal_components(moments, wanted)
        self.moments_ = moments
        self.n_features_in_ = moments.n_features
        if fresh and not checked:
            self.__dict__.pop("feature_names_in_", None)
            if names is not None:
                self.feature_names_in_ = np.array(names, dtype=object)
        self.mean_, self.components_ = decoded.mean, decoded.components
        self.explained_variance_ = decoded.explained_variance
        self.explained_variance_ratio_ = decoded.explained_variance_ratio
        self.singular_values_ = np.sqrt(decoded.explained_variance * (moments.effective_count - 1))
        self.noise_variance_ = decoded.noise_variance
        self.excess_risk_ = decoded.excess_risk
        self.n_components_ = len(decoded.components)
        self.n_samples_ = moments.count
        self._n_features_out = self.n_components_
        return self

    def _columns(self, samples: Samples) -> int | None:
        """Number of columns of the test matrix, None for all second moments."""
        d = samples.n_features
        if self.n_columns is not None or d is None or d <= MAX_FEATURES:
            return self.n_columns
        if not isinstance(self.n_components, (int, np.integer)):
            raise InputError(
                f"n_components={self.n_components!r}: give a number of components for {d:,} "
                f"features, more than {MAX_FEATURES:,}."
            )
        return default_n_columns(d, require_integer("n_components", self.n_components, 1))

    def _opened(self, x: Any, weights: Any, *, fresh: bool) -> tuple[Samples, bool]:
        """Open the samples of a fit; input in memory is validated by scikit-learn."""
        if is_lazy(x):
            return open_samples(x, weights=weights, columns=self.columns), False
        rows = validate_rows(
            self, x, reset=fresh, finite=self.nan_policy == "raise",
            remedy="give nan_policy='omit' or 'available', or fill them",
        )  # fmt: skip
        if fresh and len(rows) < 2:
            raise InputError(f"n_samples={len(rows)} is too few: give at least 2 samples.")
        if weights is not None:
            weights = validate_weights(weights, len(rows), x)
        names = names_of(getattr(self, "feature_names_in_", []))
        samples = open_samples(rows, weights=weights)
        n_bytes = moment_bytes(
            rows.shape[1], self._columns(samples), pairwise=self.nan_policy == "available"
        )
        samples = in_larger_chunks(samples, n_bytes, rows, weights=weights)
        return replace(samples, feature_names=names), True

    # Maps of samples.

    def _scales(self) -> Any:
        """Standard deviations of the components if ``whiten``, else one."""
        if not self.whiten:
            return 1.0
        deviations = np.sqrt(self.explained_variance_)
        # as in scikit-learn: components without variance are not amplified
        return np.maximum(deviations, np.finfo(np.float64).eps)

    def transform(self, X: Any) -> Any:
        """Project samples on the components.

        Parameters
        ----------
        X
            Samples, in memory or lazy.

        Returns
        -------
        scores
            Coordinates along the components, shape (n_samples, n_components); lazy if ``X`` is.
        """
        check_is_fitted(self)
        matrix = self.components_.T / self._scales()
        names = names_of(getattr(self, "feature_names_in_", []))
        mapping = AffineMap(self.mean_, matrix, np.zeros(matrix.shape[1]), names)
        if is_lazy(X):
            return apply(mapping, "transform", open_lazy(X, self.columns))
        return mapping.transform(validate_rows(self, X, remedy=_REMEDY))

    def inverse_transform(self, X: Any) -> Any:
        """Map coordinates along the components back to samples.

        Parameters
        ----------
        X
            Coordinates, shape (n_samples, n_components), in memory or lazy.

        Returns
        -------
        samples
            Samples, shape (n_samples, n_features), without their parts along other directions; lazy
            if ``X`` is.
        """
        check_is_fitted(self)
        matrix = self.components_ * np.reshape(self._scales(), (-1, 1))
        mapping = AffineMap(np.zeros(len(matrix)), matrix, self.mean_)
        if is_lazy(X):
            return apply(mapping, "transform", X)
        return mapping.transform(check_array(X, dtype=[np.float64, np.float32], input_name="X"))

    def get_covariance(self) -> Any:
        """Covariance matrix of the model: the components, and noise in other directions.

        Returns
        -------
        covariance
            Shape (n_features, n_features).
        """
        check_is_fitted(self)
        excess = np.maximum(self.explained_variance_ - self.noise_variance_, 0.0)
        covariance = (self.components_.T * excess) @ self.components_
        covariance.flat[:: len(covariance) + 1] += self.noise_variance_
        return covariance

    def score_samples(self, X: Any) -> Any:
        """Log-likelihood of each sample under the model, in nats (Tipping and Bishop 1999).

        Parameters
        ----------
        X
            Samples, in memory or lazy.

        Returns
        -------
        values
            Shape (n_samples,); lazy if ``X`` is.

        Raises
        ------
        InputError
            If there is no density, because the data does not vary in some direction.
        """
        density = self._density()
        if is_lazy(X):
            return apply(density, "logpdf", open_lazy(X, self.columns))
        return density.logpdf(validate_rows(self, X, remedy=_REMEDY))

    def score(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> float:
        """Mean log-likelihood of the samples, in nats, as for scikit-learn's ``PCA``.

        Parameters
        ----------
        X
            Samples, in memory or lazy.
        y
            Ignored.
        sample_weight
            Non-negative weight of each sample in the mean; for lazy input also lazy, or the name of
            a column.

        Returns
        -------
        score
            Weighted mean; for lazy samples, computed immediately.
        """
        density = self._density()
        if is_lazy(X):
            lazy = apply(density, "score", open_lazy(X, self.columns, sample_weight))
            return float(compute_plain(lazy)[0])
        rows = validate_rows(self, X, remedy=_REMEDY)
        if sample_weight is not None:
            sample_weight = validate_weights(sample_weight, len(rows), X)
        return density.score(rows, sample_weight)

    def _density(self) -> ComponentDensity:
        check_is_fitted(self)
        d, k = self.n_features_in_, self.n_components_
        values = np.maximum(self.explained_variance_, self.noise_variance_)
        smallest = float(min(values.min(), self.noise_variance_ if k < d else np.inf))
        # rounding leaves such variances
        if not smallest > d * np.finfo(np.float64).eps * float(values.max()):
            raise InputError(
                f"score_samples with n_components={k} of {d} features: the smallest variance is "
                f"{smallest:.3g}, the largest {values.max():.3g}, so the samples have no density. "
                "Leave out features that are constant or repeat others, fit more samples, or "
                "scale tiny values up."
            )
        names = names_of(getattr(self, "feature_names_in_", []))
        return ComponentDensity(self.mean_, self.components_, values, self.noise_variance_, names)
