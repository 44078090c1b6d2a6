"""Distribution of the rows of a sketch: expectations, histograms and densities with errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import dask
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.display.html import card
from dask_sketch.display.text import describe, one_line
from dask_sketch.distributions.anomalies import (
    AnomalyScores,
    RankedRows,
    WhitenedFeatures,
    rank_rows,
)
from dask_sketch.distributions.control_variates import (
    FeatureRegression,
    LocalMeans,
    MeanEstimate,
    exact_fractions,
    weighted_rows,
)
from dask_sketch.errors import InputError
from dask_sketch.graph.apply import apply_per_row
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.latent_class_mixture import LatentClassMixture
from dask_sketch.sketching.missing import refuse_missing
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.open import open_samples, require_options
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.tables import feature_title, names_in, require_names, require_names_in

Array = NDArray[np.float64]
_MAX_BINS = 1_000_000  # bins of a histogram, at most
_MIN_WIDTH = 1e-9  # smallest width of a kernel, in standard deviations of its feature
_FUNCTIONS = 256  # functions whose expectations are estimated at once
_SAME_VALUE = 1e-6  # difference of two values that rounding makes, as a fraction of the range


class EmpiricalDistribution:
    """Distribution of all rows of a sketch: expectations, histograms, densities, anomaly scores.

    The estimates are of quantities of the rows themselves, such as their share in a box or their
    kernel density, and have standard errors. Any function is regressed on the features of the
    sketch over its random rows. The mean of the fitted part over all rows is known from the sketch,
    so that only the mean of the residuals has an error.

    Parameters
    ----------
    sketch
        Sketch of the data. With a feature map that has ``normalize=True``, the rows are directions:
        functions and densities are of points on the unit sphere.
    model
        Mixture from which rows are drawn in place of the random rows of the sketch, such as for a
        private sketch, which has no rows; a :class:`~dask_sketch.models.LatentClassMixture` if
        there are categorical features. By default, a sketch without random rows uses the mixture of
        pilot rows in its feature map. The errors are then estimated from frequencies that are left
        out. They are too small where the model is wrong in ways that no frequency sees, such as far
        tails or values that repeat: shares of boxes of counts or of rounded values may be wrong by
        many errors.
    seed
        Seed of the draws and of the choice of frequencies, ``>= 0``.

    Attributes
    ----------
    sketch
        The sketch.

    Raises
    ------
    InputError
        If the sketch is empty or has missing values, has no random rows and there is no model, or
        the model has other features.

    References
    ----------
    Deville and Särndal (1992), Calibration estimators in survey sampling, section 1: the regression
    estimator.

    Examples
    --------
    >>> import dask_sketch as ds
    >>> x = np.random.default_rng(0).normal(size=(20_000, 2))
    >>> sketch = ds.sketch(x, ds.FeatureMap(2, 50, scale=1.0), sample=1000)
    >>> rows = EmpiricalDistribution(sketch)
    >>> found = rows.expectation(lambda x: x[:, 0] > x[:, 1])
    >>> bool(abs(found.value - np.mean(x[:, 0] > x[:, 1])) < 4 * found.standard_error)
    True
    >>> density = rows.kernel_density([[0.0, 0.0]], bandwidth=0.3)
    >>> bool(abs(density.value[0] - 1 / (2 * np.pi * 1.09)) < 0.02)
    True
    """

    def __init__(
        self,
        sketch: Sketch,
        model: GaussianMixture | LatentClassMixture | None = None,
        *,
        seed: int = 0,
    ):
        if not isinstance(sketch, Sketch):
            raise InputError(
                f"sketch of type {type(sketch).__name__}: give a Sketch, one of a group by its "
                "position; call .compute() on a lazy one."
            )
        mixed = sketch.feature_map.categories is not None
        kind = LatentClassMixture if mixed else GaussianMixture
        if model is not None and not isinstance(model, kind):
            raise InputError(
                f"model of type {type(model).__name__}: give a {kind.__name__}, as decode() "
                "returns it for such a sketch."
            )
        if model is not None and model.n_features != sketch.feature_map.n_features:
            raise InputError(
                f"model has {model.n_features} features, the sketch "
                f"{sketch.feature_map.n_features}: give a model of the same features."
            )
        if model is not None:
            names = sketch.feature_map.feature_names
            require_names(model.feature_names, "model", names, "the sketch", parameter="model")
        refuse_missing("sketch", sketch)
        if not sketch.total_weight > 0:
            raise InputError("sketch has no samples: give a sketch of one row or more.")
        self.sketch = sketch
        self._model = model
        self._seed = require_integer("seed", seed, 0)
        self._weighted = weighted_rows(sketch, model, self._seed)

    @cached_property
    def _regression(self) -> FeatureRegression:
        return FeatureRegression(self._weighted, self.sketch, self._seed)

    def expectation(self, function: Callable[[Array], ArrayLike]) -> MeanEstimate:
        """Mean of a function over all rows.

        Parameters
        ----------
        function
            Function of rows, from an array of shape (n_rows, n_features) to numbers or booleans of
            shape (n_rows, ...). It should be bounded, or grow slowly, if rows are drawn from a
            model. Few rows decide the error of a function that grows far out: the error is
            increased then, and is still too small for skewed data.

        Returns
        -------
        estimate
            Means and standard errors, of the shape of one value of the function.

        Raises
        ------
        InputError
            If the values have another shape, or are not finite.
        """
        if not callable(function):
            raise InputError(
                f"function of type {type(function).__name__}: give a function of rows.",
                parameter="function",
            )
        rows = self._weighted.rows
        values = _numbers("function", function(rows), "give one that returns real numbers.")
        if values.shape[:1] != (len(rows),) or not np.isfinite(values).all():
            raise InputError(
                f"function has values of shape {values.shape} for {len(rows):,} rows: give one "
                "that returns finite values of shape (n_rows, ...).",
                parameter="function",
            )
        estimate = self._blockwise(values.reshape(len(rows), -1))
        shape = values.shape[1:]
        return MeanEstimate(*(array.reshape(shape) if shape else array[0] for array in estimate))

    def covariance(self) -> MeanEstimate:
        """Covariance matrix of the features.

        The variances are taken from the sketch, where they are exact, except in a private sketch.
        For skewed data without random rows, the errors are too small: covariances of lognormal
        rows were within 1.96 errors in 7 of 24 draws.

        Returns
        -------
        estimate
            Covariances and standard errors, shape (n_features, n_features).
        """
        private = self.sketch.privacy is not None
        rows = self._weighted.rows
        mean = self._blockwise(rows).value if private else self.sketch.mean
        d = len(mean)
        first, second = np.tril_indices(d, 0 if private else -1)
        value, error = np.zeros((d, d)), np.zeros((d, d))
        if not private:
            np.fill_diagonal(value, self.sketch.variance)
        unseen = self._errors_of_unseen_rows()
        for start in range(0, len(first), _FUNCTIONS):
            j, k = (part[start : start + _FUNCTIONS] for part in (first, second))
            estimate = self._regression.estimate((rows[:, j] - mean[j]) * (rows[:, k] - mean[k]))
            value[j, k] = value[k, j] = estimate.value
            error[j, k] = error[k, j] = np.hypot(estimate.standard_error, unseen[j, k])
        return MeanEstimate(value, error)

    def _errors_of_unseen_rows(self) -> Array:
        """Errors of covariances by rows beyond all random rows, shape (n_features, n_features).

        Far rows of little weight are seldom among the random rows, and no other row shows their
        products. One row of mean weight is assumed at each end of the data beyond the random rows,
        a standard deviation from the mean in the other feature.
        """
        sketch, weighted = self.sketch, self._weighted
        d = sketch.feature_map.n_features
        if sketch.privacy is not None or weighted.inclusion is None or weighted.is_exact:
            return np.zeros((d, d))
        rows, away = weighted.rows, np.zeros(d)
        # rounding of random rows in float32
        margin = _SAME_VALUE * (sketch.maximum - sketch.minimum)
        for end, unseen in (
            (sketch.maximum, sketch.maximum > rows.max(axis=0) + margin),
            (sketch.minimum, sketch.minimum < rows.min(axis=0) - margin),
        ):
            away = np.maximum(away, np.where(unseen, np.abs(end - sketch.mean), 0.0))
        products = np.outer(away, np.sqrt(sketch.variance)) / sketch.effective_count
        return np.asarray(np.hypot(products, products.T))

    def box_counts(self, lower: ArrayLike, upper: ArrayLike) -> MeanEstimate:
        """Total weight of the rows in boxes; without weights, the number of these rows.

        Parameters
        ----------
        lower, upper
            Corners of the boxes, shape (n_features,) or (n_boxes, n_features); infinite where a
            feature may have any value. Boxes contain rows on their lower sides, but not on their
            upper sides.

        Returns
        -------
        estimate
            Counts and standard errors, shape () or (n_boxes,).

        Raises
        ------
        InputError
            If the corners have other shapes, or are not in order.
        """
        d, names = self.sketch.feature_map.n_features, self.sketch.feature_map.feature_names
        for argument, array in (("lower", lower), ("upper", upper)):
            require_names(names_in(array), argument, names, "the sketch", parameter=argument)
        corners = [
            _numbers(name, corner, f"give real numbers of shape (n_boxes, {d}).")
            for name, corner in (("lower", lower), ("upper", upper))
        ]
        low, high = (np.atleast_2d(corner) for corner in corners)
        sizes = {corner.shape[0] for corner in (low, high)}
        fits = all(corner.ndim == 2 and corner.shape[1] == d for corner in (low, high))
        if not fits or len(sizes - {1}) > 1 or not (low < high).all():
            raise InputError(
                f"lower has shape {corners[0].shape}, upper {corners[1].shape}: give (n_boxes, "
                f"{d}), with each lower corner below the upper one.",
                parameter="lower",
            )
        estimate = self._fractions(*np.broadcast_arrays(low, high))
        if max(corner.ndim for corner in corners) < 2:
            return MeanEstimate(*(corner[0] for corner in estimate))
        return estimate

    def histogram(
        self,
        feature: int | str = 0,
        bins: int | Sequence[float] = 10,
        range: tuple[float, float] | None = None,
    ) -> tuple[MeanEstimate, NDArray[Any]]:
        """Histogram of one feature, like ``numpy.histogram``.

        If the feature map has all characters of a categorical feature, like maps of ``design``,
        counts of its levels are exact up to the rounding of the pass and added noise.

        Parameters
        ----------
        feature
            Number or name of the feature.
        bins
            Number of bins of equal width, or their increasing edges; without effect on a
            categorical feature.
        range
            Lower and upper end of the bins; by default the bounds of the data.

        Returns
        -------
        counts
            Total weights of the rows in the bins and standard errors, shape (n_bins,).
        edges
            Edges of the bins, shape (n_bins + 1,), where the last bin includes its upper edge; for
            a categorical feature its levels, shape (n_bins,).

        Raises
        ------
        InputError
            If an argument is out of range.
        """
        k = self._features([feature])[0]
        low, high, edges = self._intervals(k, bins, range)
        exact = self._exact([k])
        if exact is not None:
            return exact, edges
        return self._fractions(*self._boxes([k], low[:, None], high[:, None])), edges

    def histogram2d(
        self,
        first: int | str,
        second: int | str,
        bins: int | tuple[Any, Any] = 10,
        range: tuple[Any, Any] | None = None,
    ) -> tuple[MeanEstimate, NDArray[Any], NDArray[Any]]:
        """Histogram of two features, like ``numpy.histogram2d``; a table if both are categorical.

        Parameters
        ----------
        first, second
            Numbers or names of the features.
        bins
            Number of bins for both, or a pair of the ``bins`` of :meth:`histogram`; without effect
            on a categorical feature.
        range
            Pair of the ``range`` of :meth:`histogram`.

        Returns
        -------
        counts
            Total weights of the rows in the cells and standard errors, shape (n_bins,
            n_other_bins).
        first_edges, second_edges
            Edges of the bins, or levels.

        Raises
        ------
        InputError
            If an argument is out of range, or both features are the same.

        Examples
        --------
        >>> import dask_sketch as ds, pandas as pd
        >>> sold = [True] * 60 + [False] * 40
        >>> frame = pd.DataFrame({"color": ["red", "blue"] * 50, "sold": sold})
        >>> levels = {"color": ["red", "blue"], "sold": [False, True]}
        >>> feature_map = ds.design(frame, n_frequencies=20, categories=levels)
        >>> rows = EmpiricalDistribution(ds.sketch(frame, feature_map))
        >>> rows.histogram2d("color", "sold")[0].value.round(1)
        array([[20., 30.],
               [20., 30.]])
        """
        features = self._features([first, second])
        if features[0] == features[1]:
            raise InputError(f"second={second!r} is the first feature: give another one.")
        both = bins if isinstance(bins, tuple) else (bins, bins)
        ranges = (None, None) if range is None else range
        if len(both) != 2 or len(ranges) != 2:
            raise InputError(
                f"bins={bins!r}, range={range!r}: give one, or a pair for two features."
            )
        pairs = zip(features, both, ranges, strict=True)
        (low, high, edges), (left, right, others) = (
            self._intervals(*settings) for settings in pairs
        )
        shape = len(low), len(left)
        cells = self._exact(features)
        if cells is None:
            if math.prod(shape) > _MAX_BINS:
                raise InputError(
                    f"bins={bins!r}: {math.prod(shape):,} cells; give at most {_MAX_BINS:,}."
                )
            lower = np.stack([np.repeat(low, shape[1]), np.tile(left, shape[0])], axis=1)
            upper = np.stack([np.repeat(high, shape[1]), np.tile(right, shape[0])], axis=1)
            counts = self._fractions(*self._boxes(features, lower, upper))
            cells = MeanEstimate(*(array.reshape(shape) for array in counts))
        return cells, edges, others

    def _exact(self, features: list[int]) -> MeanEstimate | None:
        """Counts of levels from the sums of the sketch alone; None if these do not determine them.

        The features are categorical, and their counts have no sampling error.
        """
        categories = self.sketch.feature_map.categories
        if categories is None or any(categories.levels[k] is None for k in features):
            return None
        fractions = exact_fractions(self.sketch, features)
        total = self.sketch.total_weight
        return (
            None
            if fractions is None
            else MeanEstimate(total * fractions.value, total * fractions.standard_error)
        )

    def _intervals(
        self, k: int, bins: int | Sequence[float], range: tuple[float, float] | None
    ) -> tuple[Array, Array, NDArray[Any]]:
        """Lower and upper ends of the bins of a feature, and the edges, or levels, of the bins."""
        categories = self.sketch.feature_map.categories
        levels = None if categories is None else categories.levels[k]
        if levels is not None:
            codes = np.arange(len(levels), dtype=np.float64)
            texts = any(isinstance(level, str) for level in levels)
            return codes - 0.5, codes + 0.5, np.array(levels, dtype=object if texts else None)
        if range is None:
            range = float(self.sketch.minimum[k]), float(self.sketch.maximum[k])
        try:
            given: Any = bins
            if isinstance(given, str) or (np.ndim(given) == 0 and given > _MAX_BINS):
                raise ValueError(f"bins are at most {_MAX_BINS:,}, and no name of a rule")
            edges = np.histogram_bin_edges(np.empty(0), given, range).astype(np.float64)
            if len(edges) < 2 or not (edges[:-1] <= edges[1:]).all():
                raise ValueError("there is no bin, or the edges are not in order")
        except (TypeError, ValueError) as error:
            raise InputError(
                f"bins={bins!r} with range={range!r}: {error}. Give a number of bins and a finite "
                "range, or increasing edges.",
                parameter="bins",
            ) from error
        high = edges[1:].copy()
        high[-1] = np.nextafter(edges[-1], np.inf)
        return edges[:-1], high, edges

    def _boxes(self, features: list[int], low: Array, high: Array) -> tuple[Array, Array]:
        """Corners of boxes in some features, infinite in the others."""
        d = self.sketch.feature_map.n_features
        lower, upper = np.full((len(low), d), -np.inf), np.full((len(low), d), np.inf)
        lower[:, features], upper[:, features] = low, high
        return lower, upper

    def _refuse_categorical(self, features: Sequence[int], argument: str) -> None:
        """Raise InputError for features whose codes have no distances."""
        categories = self.sketch.feature_map.categories
        chosen = [] if categories is None else [k for k in features if categories.levels[k]]
        if chosen:
            names = self.sketch.feature_map.feature_names
            raise InputError(
                f"{argument} uses {feature_title(chosen[0], names)}, a categorical feature, whose "
                "levels have no distances: use histogram or histogram2d, or the densities of "
                "decode().",
                parameter=argument,
            )

    def kernel_density(
        self, x: Any, *, bandwidth: float | ArrayLike | None = None, **options: Any
    ) -> MeanEstimate:
        """Kernel density of all rows at points, with a Gaussian kernel.

        Parameters
        ----------
        x
            Points, shape (n_points, n_features), in any form that
            :func:`~dask_sketch.open_samples` takes.
        bandwidth
            Standard deviation of the kernel in the units of the data, a number or shape
            (n_features,), above 1e-9 times the standard deviation of the feature. By default the
            rule of Scott for all rows: ``sigma * n_samples**(-1 / (n_features + 4))`` with the
            standard deviation ``sigma`` of each feature.
        options
            Further keyword arguments of :func:`~dask_sketch.open_samples`.

        Returns
        -------
        estimate
            Densities and standard errors, shape (n_points,): Dask arrays for lazy input, bags for
            bags, labelled if the points are labelled. The errors are errors of the kernel density
            of all rows, and are too small far from all random rows. Both are NaN for points that
            are not finite. A point takes up to a few milliseconds of CPU time.

        Raises
        ------
        InputError
            If the bandwidth is out of range, or the points have other features.
        """
        d = self.sketch.feature_map.n_features
        self._refuse_categorical(range(d), "x")
        samples = self._opened("kernel_density", x, options)
        widths = self._bandwidths(bandwidth, list(range(d)))
        means = LocalMeans(self._regression, np.arange(d), widths)
        return _pairs(means, "density", samples)

    def conditional_mean(
        self,
        target: int | str,
        x: ArrayLike,
        given: Sequence[int | str] | None = None,
        *,
        bandwidth: float | ArrayLike | None = None,
    ) -> MeanEstimate:
        """Mean of a feature over the rows near points, by kernel regression.

        The rows are weighted by a Gaussian kernel in the features that are given (Nadaraya-Watson
        regression).

        Parameters
        ----------
        target
            Number or name of the feature.
        x
            Points, shape (n_points, n_given).
        given
            Numbers or names of the features of the points; by default all but the target.
        bandwidth
            Standard deviation of the kernel, a number or shape (n_given,). By default the rule of
            Scott, as for :meth:`kernel_density`.

        Returns
        -------
        estimate
            Estimates of the means of the same regression on all rows, and their standard errors,
            shape (n_points,); NaN where there are no rows, or fewer than three random ones.

        Raises
        ------
        InputError
            If an argument is out of range.
        """
        goal = self._features([target])[0]
        d = self.sketch.feature_map.n_features
        if isinstance(given, (str, int, np.integer)):
            given = [given]
        chosen = [k for k in range(d) if k != goal] if given is None else self._features(given)
        self._refuse_categorical([goal], "target")
        self._refuse_categorical(chosen, "given")
        points = _numbers("x", x, "give real numbers.")
        if not chosen or points.ndim != 2 or points.shape[1] != len(chosen):
            raise InputError(
                f"x has shape {points.shape}: give points of shape (n_points, {len(chosen)}), with "
                "the features of given.",
                parameter="x",
            )
        names = self.sketch.feature_map.feature_names
        if names is not None:
            require_names_in("x", x, tuple(names[k] for k in chosen), "the sketch")
        means = LocalMeans(
            self._regression, np.array(chosen), self._bandwidths(bandwidth, chosen), goal
        )
        estimates = means.regress(points)
        return MeanEstimate(estimates[:, 0], estimates[:, 1])

    def anomaly_scores(self, x: Any, **options: Any) -> AnomalyScores:
        """Compute anomaly scores of rows: squared lengths of their whitened features.

        The score is ``phi(x) . (C + r I)**-1 phi(x)`` with the centered random Fourier features
        ``phi(x)``, their covariance ``C`` over the random rows and a ridge ``r``, divided by its
        mean over the data. It is large where there are few rows, also between clusters.

        Parameters
        ----------
        x
            Rows, shape (n_samples, n_features), in any form that
            :func:`~dask_sketch.open_samples` takes.
        options
            Further keyword arguments of :func:`~dask_sketch.open_samples`.

        Returns
        -------
        scores
            Scores, about one on average over the data, and p-values: shares of the random rows that
            have a score at least as large, without the rows of the covariance. Both have shape
            (n_samples,): Dask arrays for lazy input, bags for bags, labelled if the rows are
            labelled. They are NaN for rows that are not finite.

        Raises
        ------
        InputError
            If there are too few random rows, or the rows have other features.
        """
        samples = self._opened("anomaly_scores", x, options)
        return AnomalyScores(*_pairs(self._whitened_features, "scores", samples))

    def ranked_rows(self, x: Any, n_rows: int = 10, **options: Any) -> RankedRows | LazyResult:
        """Find the most typical and the most surprising rows of any data, in one pass.

        Parameters
        ----------
        x
            Rows, shape (n_samples, n_features), in any form that
            :func:`~dask_sketch.open_samples` takes.
        n_rows
            Number of rows of both kinds, ``>= 1``.
        options
            Further keyword arguments of :func:`~dask_sketch.open_samples`.

        Returns
        -------
        rows
            Rows with the lowest and with the highest :meth:`anomaly_scores`; for lazy input a Dask
            collection, whose ``.compute()`` returns them. Rows with values that are not finite are
            left out.

        Raises
        ------
        InputError
            If there are too few random rows, or the rows have other features.
        """
        n_rows = require_integer("n_rows", n_rows, 1)
        samples = self._opened("ranked_rows", x, options)
        ranked = rank_rows(self._whitened_features, samples, n_rows)
        return ranked if samples.lazy else ranked.compute(scheduler="threads")

    @cached_property
    def _whitened_features(self) -> WhitenedFeatures:
        # draws beyond the range of the data keep p-values conservative where its edges are hard
        weighted = weighted_rows(self.sketch, self._model, self._seed, within=False)
        return WhitenedFeatures.fit(weighted, self.sketch, self._seed)

    def _opened(self, method: str, x: Any, options: dict[str, Any]) -> Samples:
        require_options(method, options)
        feature_map = self.sketch.feature_map
        options.setdefault("categories", feature_map.categories)
        samples = open_samples(x, **options)
        samples = samples.named_like(feature_map.feature_names, "the sketch")
        samples.require_features(feature_map.n_features, "the sketch", feature_map.feature_names)
        samples.require_categories(feature_map.categories, "the sketch")
        return samples

    def _features(self, chosen: Sequence[int | str]) -> list[int]:
        """Numbers of the features that are given by number or name."""
        d, names = self.sketch.feature_map.n_features, self.sketch.feature_map.feature_names
        out = []
        for feature in chosen:
            if isinstance(feature, str) and names is not None and feature in names:
                out.append(names.index(feature))
            elif isinstance(feature, (int, np.integer)) and 0 <= feature < d:
                out.append(int(feature))
            else:
                known = "" if names is None else f", or one of {', '.join(names)}"
                raise InputError(f"feature={feature!r}: give a number from 0 to {d - 1}{known}.")
        return out

    def _bandwidths(self, bandwidth: float | ArrayLike | None, features: list[int]) -> Array:
        if bandwidth is None:
            rate = self.sketch.effective_count ** (-1.0 / (len(features) + 4))
            widths = rate * np.sqrt(self.sketch.extent[1][features])
            if (widths > 0).all():
                return np.asarray(widths)
            raise InputError(
                f"bandwidth=None: feature {features[int(np.argmin(widths))]} does not vary. Give "
                "bandwidths, or leave the feature out of the sketch.",
                parameter="bandwidth",
            )
        names = self.sketch.feature_map.feature_names
        if names is not None:
            chosen = tuple(names[k] for k in features)
            require_names_in("bandwidth", bandwidth, chosen, "the sketch")
        array = _numbers("bandwidth", bandwidth, "give a number above 0, or one for each feature.")
        if array.shape not in ((), (len(features),)):
            raise InputError(
                f"bandwidth has shape {array.shape}: give a number, or one for each of the "
                f"{len(features)} features.",
                parameter="bandwidth",
            )
        widths = np.broadcast_to(array, len(features))
        deviations = np.sqrt(self.sketch.extent[1][features])
        for width, deviation in zip(widths, deviations, strict=True):
            floor = _MIN_WIDTH * float(deviation)
            require_number("bandwidth", float(width), floor, math.inf, strict=True)
        return np.array(widths)

    def _blockwise(self, values: Array) -> MeanEstimate:
        blocks = range(0, max(values.shape[1], 1), _FUNCTIONS)
        estimates = [self._regression.estimate(values[:, k : k + _FUNCTIONS]) for k in blocks]
        return MeanEstimate(*(np.concatenate(parts) for parts in zip(*estimates, strict=True)))

    def _fractions(self, low: Array, high: Array) -> MeanEstimate:
        """Total weights in boxes."""
        rows, weights = self._weighted.rows, self._weighted.weights
        fractions = []
        for start in range(0, max(len(low), 1), _FUNCTIONS):
            block = slice(start, start + _FUNCTIONS)
            inside = np.ones((len(rows), len(low[block])), dtype=bool)
            for k, column in enumerate(rows.T):
                if np.isfinite(low[block, k]).any() or np.isfinite(high[block, k]).any():
                    inside &= (column[:, None] >= low[block, k]) & (
                        column[:, None] < high[block, k]
                    )
            fractions.append(self._regression.estimate(inside.astype(np.float64)))
        value, error = (np.concatenate(arrays) for arrays in zip(*fractions, strict=True))
        # a box without random rows may have rows: as if one more random row were in it
        if not self._weighted.is_exact:
            error = np.hypot(error, float(weights @ weights))
        total = self.sketch.total_weight
        return MeanEstimate(total * np.clip(value, 0.0, 1.0), total * error)

    def as_dict(self) -> dict[str, Any]:
        """Origin and number of the rows that represent the data, and sizes of the sketch."""
        weighted = self._weighted
        return {
            "rows": "draws of a model" if weighted.inclusion is None else "random rows",
            "n_rows": len(weighted.rows),
            "is_exact": weighted.is_exact,
            "n_samples": self.sketch.count,
            "n_features": self.sketch.feature_map.n_features,
            "n_frequencies": self.sketch.feature_map.n_frequencies,
        }

    def __repr__(self) -> str:
        return f"<EmpiricalDistribution: {one_line(self.as_dict())}>"

    def _repr_html_(self) -> str:
        values = self.as_dict()
        summary = f"{values['n_samples']:,} samples by {values['n_rows']:,} {values['rows']}"
        return card("EmpiricalDistribution", describe(values), summary=summary)


def _numbers(name: str, argument: Any, remedy: str) -> Array:
    """Argument as real numbers."""
    try:
        array = np.asarray(argument)
        if array.dtype.kind in "fiubO":
            return array.astype(np.float64)
    except (TypeError, ValueError):
        array = np.asarray(argument, dtype=object)
    shown = repr(argument) if array.ndim == 0 else f"values of type {array.dtype}"
    raise InputError(f"{name}={shown}: {remedy}", parameter=name)


def _pairs(model: Any, method: str, samples: Samples) -> MeanEstimate:
    """Two values for each row, as two lazy collections, or two arrays if the rows are in memory."""
    # sent to each worker once
    pairs = apply_per_row(dask.delayed(model, pure=False, traverse=False), method, samples, width=2)
    if samples.is_bag:
        return MeanEstimate(pairs.pluck(0), pairs.pluck(1))
    if not samples.lazy:
        pairs = pairs.compute(scheduler="threads")
    return MeanEstimate(pairs[..., 0], pairs[..., 1])
