"""Kernels of distances between distributions, for kernel machines."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.threads import one_blas_thread

Array = NDArray[np.float64]
Repair = Literal["clip", "flip", "shift", "square", "none"]
REPAIRS = ("clip", "flip", "shift", "square", "none")
_ROUNDING = 1e-10  # eigenvalues, relative to the largest, that are rounding
_ASYMMETRY = 1e-8  # relative difference of two entries of a symmetric matrix


def _require_square(name: str, values: Array, what: str) -> Array:
    """Validate a symmetric matrix, and average it with its transpose."""
    if values.shape[0] != values.shape[1]:
        raise InputError(
            f"{name} has shape {values.shape}: give the {what} of all pairs, shape (n, n).",
            parameter=name,
        )
    apart = np.abs(values - values.T)
    if apart.max() > _ASYMMETRY * max(float(np.abs(values).max()), np.finfo(float).tiny):
        i, j = (int(k) for k in np.unravel_index(apart.argmax(), apart.shape))
        raise InputError(
            f"{name} is not symmetric: entry ({i}, {j}) is {values[i, j]:g} and ({j}, {i}) is "
            f"{values[j, i]:g}. Give (matrix + matrix.T) / 2 for its symmetric part.",
            parameter=name,
        )
    return np.asarray(0.5 * (values + values.T))


def _require_repair(repair: str) -> None:
    if repair not in REPAIRS:
        raise InputError(f"repair={repair!r}: choose one of {', '.join(REPAIRS)}.")


def _spectrum(kernel: Array) -> tuple[Array, Array]:
    """Eigenvalues, with zeros in place of rounding errors, and eigenvectors."""
    values, basis = eigh(kernel)
    values[np.abs(values) <= _ROUNDING * np.abs(values).max()] = 0.0
    return values, basis


def repair_kernel(kernel: ArrayLike, repair: Repair = "clip") -> Array:
    """Make a kernel matrix positive semidefinite.

    Kernels that are estimated, or computed from distances that are not Euclidean, may have negative
    eigenvalues, so that the problem of a kernel machine is not convex. This function needs training
    and test points together. :class:`DistanceKernel` repairs kernels of later test points.

    Parameters
    ----------
    kernel
        Symmetric matrix, shape (n, n).
    repair
        ``"clip"`` replaces negative eigenvalues by zero, which gives the nearest positive
        semidefinite matrix; ``"flip"`` replaces them by their absolute values; ``"shift"`` adds the
        absolute value of the smallest one to all eigenvalues; ``"square"`` multiplies the matrix
        with itself; ``"none"`` changes nothing.

    Returns
    -------
    kernel
        Matrix, shape (n, n), positive semidefinite except with ``"none"``.

    Raises
    ------
    InputError
        If the matrix is not symmetric, or the repair is unknown.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, section 2.4.1. Chen,
    Garcia, Gupta, Rahimi, Cazzanti (2009), Similarity-based classification.

    Examples
    --------
    >>> repair_kernel([[1.0, 2.0], [2.0, 1.0]], "clip")
    array([[1.5, 1.5],
           [1.5, 1.5]])
    """
    _require_repair(repair)
    matrix = _require_square(
        "kernel", check_array(kernel, dtype=np.float64, input_name="kernel"), "kernel"
    )
    with one_blas_thread():
        values, basis = _spectrum(matrix)
        return _repaired(matrix, values, basis, repair)


def _repaired(kernel: Array, values: Array, basis: Array, repair: str) -> Array:
    if repair == "square":
        return np.asarray(kernel @ kernel.T)
    if repair == "none" or values[0] >= 0.0:
        return kernel
    if repair == "shift":
        return np.asarray(kernel - values[0] * np.eye(len(kernel)))
    repaired = np.abs(values) if repair == "flip" else np.maximum(values, 0.0)
    return np.asarray((basis * repaired) @ basis.T)


class DistanceKernel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Transform distances of distributions to a kernel, for ``SVC(kernel="precomputed")``.

    Any distance may be used, such as discrepancies of :func:`dask_sketch.mmd`, or roots of
    Jensen-Shannon or squared Hellinger divergences of :func:`divergence_matrix`. Discrepancies, and
    roots of Jensen-Shannon divergences, squared Hellinger distances and total variations, are
    Euclidean: their kernels are positive semidefinite, except for the noise of estimates. Symmetric
    Kullback-Leibler and Rényi divergences are not Euclidean, and need the repair.

    The repair is found from the training points alone. Rows of test points are multiplied by the
    same matrix that repairs the rows of training points.

    Parameters
    ----------
    kind
        ``"rbf"``, the kernel ``exp(-distance**2 / (2 bandwidth**2))``; or ``"linear"``, the inner
        product ``(d(x, o)**2 + d(y, o)**2 - d(x, y)**2) / 2`` with an origin ``o``.
    bandwidth
        Bandwidth of ``"rbf"``, above 0, relative to the median distance of the training points.
    origin
        Origin of ``"linear"``: the position of a training point, or ``"mean"`` for the mean of all.
    repair
        Repair of negative eigenvalues, see :func:`repair_kernel`.

    Attributes
    ----------
    bandwidth_
        Bandwidth in units of the distance.
    negative_
        Share of the negative eigenvalues in the sum of the absolute values of all eigenvalues
        before the repair, in [0, 1).
    n_features_in_
        Number of training points.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, eq. (2.2), (2.3)
    and (2.4).

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.svm import SVC
    >>> from dask_sketch import FeatureMap, mmd, partial_sketch
    >>> rng, day = np.random.default_rng(0), np.repeat(np.arange(40), 100)
    >>> wide = np.arange(40) % 2 == 1
    >>> x = rng.normal(size=(4000, 2)) * np.where(wide, 1.5, 1.0)[day, None]
    >>> distances = mmd(partial_sketch(x, FeatureMap(2, 50, scale=1.0), groups=day)).to_numpy()
    >>> model = make_pipeline(DistanceKernel(), SVC(kernel="precomputed"))
    >>> model = model.fit(distances[:30, :30], wide[:30])
    >>> model.score(distances[30:, :30], wide[30:])
    1.0
    """

    def __init__(
        self,
        kind: Literal["rbf", "linear"] = "rbf",
        *,
        bandwidth: float = 1.0,
        origin: int | Literal["mean"] = "mean",
        repair: Repair = "clip",
    ):
        self.kind = kind
        self.bandwidth = bandwidth
        self.origin = origin
        self.repair = repair

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True  # cross-validation selects columns like rows
        tags.input_tags.positive_only = True
        return tags

    def fit(self, X: Any, y: Any = None) -> DistanceKernel:
        """Choose the bandwidth and the repair.

        Parameters
        ----------
        X
            Distances of the training points, shape (n_train, n_train).
        y
            Ignored.

        Returns
        -------
        self
            Fitted transformer.

        Raises
        ------
        InputError
            If an argument is out of range, or the distances are negative or not symmetric.
        """
        self._fit(X)
        return self

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Array:
        """Fit to distances, and return their kernel.

        Parameters
        ----------
        X
            Distances of the training points, shape (n_train, n_train).
        y
            Ignored.
        **params
            Ignored.

        Returns
        -------
        kernel
            Matrix, shape (n_train, n_train), positive semidefinite except with ``repair="none"``.
        """
        return self._fit(X)

    def _fit(self, X: Any) -> Array:
        _require_repair(self.repair)
        if self.kind not in ("rbf", "linear"):
            raise InputError(f"kind={self.kind!r}: choose 'rbf' or 'linear'.")
        relative = require_number("bandwidth", self.bandwidth, 0.0, math.inf, strict=True)
        values = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        distances = _require_square("X", values, "distances")
        if distances.min() < 0.0:
            raise InputError(
                f"X has the distance {distances.min():g}. Negative values in data are not "
                "distances: give roots of squared estimates that are clipped at zero.",
                parameter="X",
            )
        apart = distances[distances > 0.0]
        self.bandwidth_ = relative * (float(np.median(apart)) if len(apart) else 1.0)
        squares = distances**2
        self._column, self._shift = None, 0.0
        if self.kind == "linear":
            if self.origin == "mean":
                self._shift = -0.5 * float(squares.mean())
                self._to_origin = squares.mean(axis=1) + self._shift
            else:
                self._column = require_integer("origin", self.origin, 0)
                if self._column >= len(squares):
                    raise InputError(
                        f"origin={self._column}: give a position below {len(squares)}, or 'mean'."
                    )
                self._to_origin = squares[self._column]
        with one_blas_thread():
            kernel = self._kernel(distances)
            kernel = 0.5 * (kernel + kernel.T)
            spectrum, basis = _spectrum(kernel)
            total = float(np.abs(spectrum).sum())
            self.negative_ = float(-spectrum[spectrum < 0].sum()) / total if total > 0 else 0.0
            self._factor: Array | None = None
            if self.repair == "square":
                self._factor = kernel
            elif self.negative_ > 0.0 and self.repair in ("clip", "flip"):
                signs = np.sign(spectrum) if self.repair == "flip" else spectrum >= 0.0
                self._factor = (basis * signs) @ basis.T
            self._n_features_out = len(kernel)
            return _repaired(kernel, spectrum, basis, self.repair)

    def _kernel(self, distances: Array) -> Array:
        squares = distances**2
        if self.kind == "rbf":
            return np.asarray(np.exp(-0.5 * squares / self.bandwidth_**2))
        if self._column is not None:
            mine = squares[:, self._column]
        else:
            mine = squares.mean(axis=1) + self._shift
        return np.asarray(0.5 * (mine[:, None] + self._to_origin - squares))

    def transform(self, X: Any) -> Array:
        """Compute the kernel of test and training points.

        Parameters
        ----------
        X
            Distances from the training points, shape (n_test, n_train).

        Returns
        -------
        kernel
            Kernel, shape (n_test, n_train), multiplied by the matrix of the repair, eq. (2.4). The
            repair ``"shift"`` changes only the kernel of a point with itself, and so nothing here.
        """
        check_is_fitted(self)
        distances: Array = validate_data(self, X, dtype=np.float64, reset=False)
        with one_blas_thread():
            kernel = self._kernel(distances)
            return kernel if self._factor is None else np.asarray(kernel @ self._factor)


class NystroemKernel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Transform kernels of points and anchors to features, for kernels that may be indefinite.

    Inner products of the features approximate the kernel of all points from its values at a few
    anchors, so that the cost is linear in the number of points. Published variants for indefinite
    kernels repair the kernel of the anchors only, so that an anchor that is also a point has two
    sets of features. Here all points are repaired in the same way.

    Parameters
    ----------
    repair
        ``"flip"`` takes absolute values of the negative eigenvalues of the kernel of the anchors,
        ``"clip"`` leaves them out. Without negative eigenvalues, both are Nyström's method.

    Attributes
    ----------
    basis_
        Map from kernel values to features, shape (n_anchors, n_features_out).
    n_features_in_
        Number of anchors.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, section 2.4.2.
    Williams and Seeger (2001), Using the Nyström method to speed up kernel machines.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(300, 1))
    >>> kernel = np.exp(-0.5 * (x - x[:20].T) ** 2)
    >>> features = NystroemKernel().fit(kernel[:20]).transform(kernel)
    >>> bool(np.abs(features @ features.T - np.exp(-0.5 * (x - x.T) ** 2)).mean() < 1e-3)
    True
    """

    def __init__(self, repair: Literal["flip", "clip"] = "flip"):
        self.repair = repair

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        return tags

    def fit(self, X: Any, y: Any = None) -> NystroemKernel:
        """Compute the eigenvectors of the kernel of the anchors.

        Parameters
        ----------
        X
            Kernel of the anchors, shape (n_anchors, n_anchors).
        y
            Ignored.

        Returns
        -------
        self
            Fitted transformer.

        Raises
        ------
        InputError
            If the matrix is not symmetric, zero, or the repair is unknown.
        """
        if self.repair not in ("flip", "clip"):
            raise InputError(f"repair={self.repair!r}: choose 'flip' or 'clip'.")
        kernel = _require_square("X", validate_data(self, X, dtype=np.float64), "kernel")
        with one_blas_thread():
            values, basis = _spectrum(kernel)
        nonzero = values != 0.0 if self.repair == "flip" else values > 0.0
        if not nonzero.any():
            raise InputError("X has no positive eigenvalue: give anchors with a kernel above zero.")
        # rows k of a kernel have the features k U inverse(values) sqrt(|values|)
        scale = np.sign(values[nonzero]) / np.sqrt(np.abs(values[nonzero]))
        self.basis_ = basis[:, nonzero] * scale
        self._n_features_out = int(nonzero.sum())
        return self

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Array:
        """Fit to the kernel of the anchors, and return their features.

        Parameters
        ----------
        X
            Kernel of the anchors, shape (n_anchors, n_anchors).
        y
            Ignored.
        **params
            Ignored.

        Returns
        -------
        features
            Features of the anchors, shape (n_anchors, n_features_out).
        """
        return self.fit(X).transform(X)

    def transform(self, X: Any) -> Array:
        """Compute the features of points.

        Parameters
        ----------
        X
            Kernel of points and anchors, shape (n_points, n_anchors).

        Returns
        -------
        features
            Features, shape (n_points, n_features_out).
        """
        check_is_fitted(self)
        kernel: Array = validate_data(self, X, dtype=np.float64, reset=False)
        with one_blas_thread():
            return np.asarray(kernel @ self.basis_)
