"""Embed densities so that squared Euclidean distances are divergences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh_tridiagonal
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from dask_sketch.distributions.nearest_neighbors import checked_rows
from dask_sketch.errors import InputError
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.validation.arrays import require_integer, require_number, require_random_state
from dask_sketch.validation.tables import (
    names_in,
    require_common_names,
    require_names,
    require_names_in,
)
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
Distributions = Sequence[GaussianMixture] | Sequence[ArrayLike]
_MAX_NODES, _MAX_FEATURES = 2**20, 2**20
_NUMBERS = 2**22  # values of kernels in memory at once
_REACH, _REACH_OF_ROWS = 4.0, 3.0  # deviations of a mixture and bandwidths beside the rows
_MASS = 0.05  # difference of a mass on the nodes from one, above which there is a warning
_NARROW = 0.5  # bandwidths below this part of the distance of nodes are too small
_TAIL, _POINTS = 8.0, 2**15  # bound and number of points of the tabulated distribution of exponents


@dataclass(frozen=True)
class SpectralMeasure:
    """Spectral measure of a homogeneous density distance (Sutherland 2016, section 4.3).

    The integrand of the distance is ``k(x, y) = mass * E |x**(order / 2 + i v) - y**(order / 2 + i
    v)|**2`` for random exponents ``v``. The measures are printed in Table 4.1, with three errors.
    For the Jensen-Shannon divergence, ``1 + 4 v**2`` is needed in place of ``1 + v**2``; for total
    variation the same, and twice the factor; for Hellinger's distance, ``v = 0``.

    Attributes
    ----------
    mass
        Total mass.
    order
        Degree of homogeneity of the integrand, eq. (4.12).
    quantile
        Quantile function of the exponents; None if all are zero.
    density
        Density of the exponents up to a factor, if it has all moments, else None.
    """

    mass: float
    order: float = 1.0
    quantile: Callable[[Array], Array] | None = None
    density: Callable[[Array], Array] | None = None

    def rule(self, n_exponents: int) -> tuple[Array, Array]:
        """Compute a quadrature rule: Gaussian if all moments exist, otherwise of equal weights.

        Parameters
        ----------
        n_exponents
            Number of exponents, ``>= 1``.

        Returns
        -------
        exponents, weights
            Exponents, and their weights, which sum to one, both of shape (n_exponents,). A measure
            whose exponents are all zero has one exponent.
        """
        if self.quantile is None:
            return np.zeros(1), np.ones(1)
        if self.density is None:
            return self.quantile((np.arange(n_exponents) + 0.5) / n_exponents), np.full(
                n_exponents, 1.0 / n_exponents
            )
        # Stieltjes' recurrence; the measure is symmetric, so that half of the nodes are positive
        grid = np.linspace(-_TAIL, _TAIL, 2 * _POINTS + 1)
        masses = self.density(grid)
        masses /= masses.sum()
        before, now = np.zeros_like(grid), np.ones_like(grid)
        squares: list[float] = []
        for _ in range(2 * n_exponents - 1):
            following = grid * now - (squares[-1] * before if squares else 0.0)
            squares.append(float(masses @ following**2 / (masses @ now**2)))
            before, now = now, following
        values, vectors = eigh_tridiagonal(np.zeros(2 * n_exponents), np.sqrt(squares))
        positive = values > 0.0
        weights: Array = 2.0 * vectors[0, positive] ** 2
        return np.asarray(values[positive], dtype=np.float64), weights


def _jensen_shannon_density(exponents: Array) -> Array:
    return np.asarray(1.0 / (np.cosh(np.pi * exponents) * (1.0 + 4.0 * exponents**2)))


def _jensen_shannon_quantile(uniform: Array) -> Array:
    grid = np.linspace(0.0, _TAIL, _POINTS)
    density = _jensen_shannon_density(grid)
    below = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    return np.interp(uniform, below / below[-1], grid)


def _total_variation_quantile(uniform: Array) -> Array:
    return np.asarray(0.5 * np.tan(0.5 * np.pi * uniform))


MEASURES = {
    "js": SpectralMeasure(
        0.5 * math.log(2.0), quantile=_jensen_shannon_quantile, density=_jensen_shannon_density
    ),
    # Table 4.1 has |p - q|, twice the total variation
    "tv": SpectralMeasure(0.5, quantile=_total_variation_quantile),
    "squared-hellinger": SpectralMeasure(0.5),
    "l2": SpectralMeasure(1.0, order=2.0),
}
"""Spectral measures by the kind of the distance."""


def _checked_distributions(
    distributions: Any,
) -> tuple[list[GaussianMixture | Array], tuple[str, ...] | None]:
    """Validate mixtures or rows, all with the same features; return also the names of these."""
    listed = list(distributions) if isinstance(distributions, Iterable) else []
    if not listed:
        raise InputError(
            f"X of type {type(distributions).__name__} has no distributions: give a list of "
            "mixtures, or of arrays of rows.",
            parameter="X",
        )
    names = require_common_names(
        {
            f"X[{k}]": distribution.feature_names
            if isinstance(distribution, GaussianMixture)
            else names_in(distribution)
            for k, distribution in enumerate(listed)
        }
    )
    out: list[GaussianMixture | Array] = []
    for k, distribution in enumerate(listed):
        out.append(
            distribution
            if isinstance(distribution, GaussianMixture)
            else checked_rows(f"X[{k}]", distribution)
        )
    counts = {_n_features(distribution) for distribution in out}
    if len(counts) > 1:
        raise InputError(
            f"X has distributions of {sorted(counts)} features: give distributions of the same "
            "features."
        )
    return out, names


def _n_features(distribution: GaussianMixture | Array) -> int:
    return (
        distribution.n_features
        if isinstance(distribution, GaussianMixture)
        else int(distribution.shape[1])
    )


@dataclass(frozen=True, eq=False)
class DensityNodes:
    """Regular grid of nodes, on which densities are evaluated.

    Sums of kernels at the nodes are a linear sketch of rows: the sums of parts of the rows add up
    to the sums of all rows, for example over the chunks of a Dask array.

    Attributes
    ----------
    lower, upper
        Corners of the box that is divided into cells, shape (n_features,); the nodes are the
        middles of the cells.
    n_side
        Number of nodes along each side.
    bandwidth
        Bandwidth of the Gaussian kernel in each feature, shape (n_features,).

    Examples
    --------
    >>> nodes = DensityNodes(np.array([-4.0]), np.array([4.0]), 40, np.array([0.4]))
    >>> x = np.random.default_rng(0).normal(size=(1000, 1))
    >>> sums = nodes.kernel_sums(x[:300]) + nodes.kernel_sums(x[300:])
    >>> bool(np.allclose(sums, nodes.kernel_sums(x)))
    True
    >>> round(float(sums.sum() / 1000 * nodes.cell), 2)
    1.0

    For a Dask array, in one pass:

    >>> import dask.array as da
    >>> rows = da.from_array(x, chunks=(300, 1))
    >>> parts = rows.map_blocks(lambda part: nodes.kernel_sums(part)[None], chunks=(1, 40))
    >>> bool(np.allclose(parts.sum(axis=0).compute(), sums))
    True
    """

    lower: Array
    upper: Array
    n_side: int
    bandwidth: Array

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return self.n_side ** len(self.lower)

    @property
    def spacing(self) -> Array:
        """Distance of neighbouring nodes in each feature, shape (n_features,)."""
        return np.asarray((self.upper - self.lower) / self.n_side)

    @property
    def cell(self) -> float:
        """Volume of the cell of a node."""
        return float(np.prod(self.spacing))

    @property
    def peak(self) -> float:
        """Density of the kernel at its center."""
        return float(1.0 / np.prod(math.sqrt(2.0 * math.pi) * self.bandwidth))

    def _axes(self) -> list[Array]:
        middle = np.arange(self.n_side) + 0.5
        return [low + step * middle for low, step in zip(self.lower, self.spacing, strict=True)]

    @property
    def points(self) -> Array:
        """Coordinates of the nodes, shape (n_nodes, n_features)."""
        grids = np.meshgrid(*self._axes(), indexing="ij")
        return np.stack([grid.ravel() for grid in grids], axis=1)

    def kernel_sums(self, rows: Array) -> Array:
        """Sum of Gaussian kernels around rows, at each node.

        Parameters
        ----------
        rows
            Rows, shape (n_samples, n_features).

        Returns
        -------
        sums
            Sums, shape (n_nodes,); divided by the number of rows, a kernel density estimate.
        """
        d = len(self.lower)
        step = max(_NUMBERS // self.n_side ** max(d - 1, 1), 1)
        total = np.zeros(self.n_nodes)
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            values = np.ones((len(block), 1))
            for feature, axis in enumerate(self._axes()):
                gap = (axis - block[:, feature, None]) / self.bandwidth[feature]
                kernel = np.exp(-0.5 * gap**2)
                if feature == d - 1:
                    total += (values.T @ kernel).ravel()
                else:
                    product = values[:, :, None] * kernel[:, None]
                    values = product.reshape(len(block), -1)
        return np.asarray(total * self.peak)

    def warn_of_gaps(self) -> None:
        """Warn if the nodes are too far apart for the bandwidth, so that they miss rows."""
        if (self.bandwidth < _NARROW * self.spacing).any():
            n_needed = int(np.ceil(np.max(_NARROW * (self.upper - self.lower) / self.bandwidth)))
            warn_user(
                f"n_side={self.n_side}: the nodes are farther apart than twice the bandwidth, so "
                f"that they miss rows. Give n_side={n_needed} or more, or a larger bandwidth."
            )

    def warn_of_mass(self, densities: Array, names: Sequence[str]) -> None:
        """Warn if the mass of a density on the nodes is far from one.

        Parameters
        ----------
        densities
            Densities at the nodes, shape (n_distributions, n_nodes).
        names
            Names of the distributions, for the message.
        """
        mass = densities.sum(axis=1) * self.cell
        worst = int(np.argmax(np.abs(mass - 1.0)))
        if abs(mass[worst] - 1.0) > _MASS:
            warn_user(
                f"{names[worst]} has the mass {mass[worst]:.3g} on the nodes, in place of 1: "
                "distances leave out the rest. Give wider bounds if there is less, and a larger "
                "n_side."
            )

    def smooth(self, values: Array, scale: float = 1.0) -> Array:
        """Sum values at the nodes with Gaussian weights, which are one at distance zero.

        Parameters
        ----------
        values
            Values at the nodes, shape (n_nodes,).
        scale
            Standard deviation of the weights, in bandwidths.

        Returns
        -------
        sums
            Weighted sums, shape (n_nodes,).
        """
        out = values.reshape((self.n_side,) * len(self.lower))
        for axis, bandwidth in zip(self._axes(), self.bandwidth, strict=True):
            gap = (axis[:, None] - axis) / (scale * bandwidth)
            # the first axis is summed and becomes the last one
            out = np.tensordot(out, np.exp(-0.5 * gap**2), axes=(0, 0))
        return np.asarray(out.ravel())

    def densities(self, distributions: Sequence[GaussianMixture | Array]) -> Array:
        """Densities of distributions at the nodes.

        Parameters
        ----------
        distributions
            Mixtures; or arrays of rows, whose densities are kernel estimates.

        Returns
        -------
        densities
            Densities, shape (n_distributions, n_nodes).
        """
        out = np.empty((len(distributions), self.n_nodes))
        points = self.points if any(isinstance(p, GaussianMixture) for p in distributions) else None
        for k, distribution in enumerate(distributions):
            if isinstance(distribution, GaussianMixture):
                out[k] = np.exp(distribution.logpdf(points))
            else:
                out[k] = self.kernel_sums(distribution) / len(distribution)
        return out


class DensityFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Transform densities to features whose squared Euclidean distances are divergences.

    Homogeneous density distances, such as the Jensen-Shannon divergence, are squared distances of
    functions: the powers ``p(x)**(1 / 2 + i v)`` with random exponents ``v``. Here these functions
    are evaluated on a grid of nodes. The features suit any method for vectors, such as
    :class:`DistributionRegressor`. The grid limits the data to few features, up to three.

    Parameters
    ----------
    kind
        Squared distance of two densities: ``"js"``, ``"tv"`` or ``"squared-hellinger"``, as in
        :func:`divergence`; or ``"l2"``, the integral of ``(p - q)**2``.
    n_side
        Number of nodes along each feature, ``>= 2``.
    n_exponents
        Number of exponents of ``"js"`` and ``"tv"``, ``>= 1``; the other kinds have one exponent,
        which is exact.
    exponents
        ``"quadrature"``, a rule of accurate weights, or ``"random"`` for random exponents of equal
        weights, as in the thesis.
    degree
        Largest frequency of a trigonometric basis on which the functions are projected, ``>= 0``.
        Each function then has ``(2 degree + 1)**n_features`` coefficients in place of its values at
        the nodes. By default, the values at the nodes are the features.
    order
        Degree of homogeneity of the integrand, above 0; 1 by default, and 2 for ``"l2"``. Other
        orders give distances of powers of the densities, eq. (4.12).
    bounds
        Lower and upper corner of the box of the nodes, each of shape (n_features,). By default they
        are chosen in the fit, somewhat outside of all rows.
    bandwidth
        Bandwidth of the kernel density estimates of rows, above 0, as a multiple of Scott's rule.
    random_state
        Seed, or an instance of ``RandomState``, for random exponents.

    Attributes
    ----------
    nodes_
        Nodes, with the bandwidth in units of the data.
    exponents_, weights_
        Exponents and their weights, which sum to one, shape (n_exponents,).
    n_features_in_, feature_names_in_
        Number of features of the data.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, section 4.3, eq.
    (4.9), (4.10) and (4.11), and Table 4.1 with its corrections, see :class:`SpectralMeasure`.

    Examples
    --------
    >>> p = GaussianMixture([1.0], [[0.0]], [[1.0]])
    >>> q = GaussianMixture([1.0], [[1.0]], [[1.0]])
    >>> features = DensityFeatures("js", n_side=100).fit_transform([p, q])
    >>> round(float(np.sum((features[0] - features[1]) ** 2)), 3)
    0.111
    >>> from dask_sketch.distributions import divergence
    >>> round(divergence(p, q, "js").value, 3)
    0.111
    """

    def __init__(
        self,
        kind: Literal["js", "tv", "squared-hellinger", "l2"] = "js",
        *,
        n_side: int = 32,
        n_exponents: int = 5,
        exponents: Literal["quadrature", "random"] = "quadrature",
        degree: int | None = None,
        order: float | None = None,
        bounds: Any = None,
        bandwidth: float = 1.0,
        random_state: Any = 0,
    ):
        self.kind = kind
        self.n_side = n_side
        self.n_exponents = n_exponents
        self.exponents = exponents
        self.degree = degree
        self.order = order
        self.bounds = bounds
        self.bandwidth = bandwidth
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> DensityFeatures:
        """Choose the box of the nodes, the bandwidth and the exponents.

        Parameters
        ----------
        X
            Sequence of mixtures, or of arrays of rows of shape (n_samples, n_features).
        y
            Ignored.

        Returns
        -------
        self
            Fitted transformer.

        Raises
        ------
        InputError
            If an argument is out of range, or there would be too many nodes or features.
        """
        if self.kind not in MEASURES:
            raise InputError(f"kind={self.kind!r}: choose one of {', '.join(MEASURES)}.")
        n_side = require_integer("n_side", self.n_side, 2)
        n_exponents = require_integer("n_exponents", self.n_exponents, 1)
        relative = require_number("bandwidth", self.bandwidth, 0.0, math.inf, strict=True)
        if self.exponents not in ("quadrature", "random"):
            raise InputError(f"exponents={self.exponents!r}: choose 'quadrature' or 'random'.")
        measure, (opened, names) = MEASURES[self.kind], _checked_distributions(X)
        order = measure.order if self.order is None else self.order
        self._order = require_number("order", order, 0.0, math.inf, strict=True)
        self.exponents_, self.weights_ = measure.rule(n_exponents)
        if self.exponents == "random" and measure.quantile is not None:
            uniform = require_random_state(self.random_state).uniform(size=n_exponents)
            self.exponents_ = measure.quantile(uniform)
            self.weights_ = np.full(n_exponents, 1.0 / n_exponents)
        self.n_features_in_ = d = _n_features(opened[0])
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
            require_names_in("bounds", self.bounds, names, "X")
        if n_side**d > _MAX_NODES:
            raise InputError(
                f"n_side={n_side} with {d} features: {float(n_side) ** d:.3g} nodes are more than "
                f"{_MAX_NODES:,}. Give fewer, or features of the data in few dimensions."
            )
        bandwidth = relative * _scott(opened)
        lower, upper = (
            _box(opened, bandwidth) if self.bounds is None else _given_box(self.bounds, d)
        )
        self.nodes_ = DensityNodes(lower, upper, n_side, bandwidth)
        if not all(isinstance(distribution, GaussianMixture) for distribution in opened):
            self.nodes_.warn_of_gaps()
        n_functions = len(self.exponents_) * (1 if measure.quantile is None else 2)
        n_numbers = self.nodes_.n_nodes
        self._basis: Array | None = None
        if self.degree is not None:
            degree = require_integer("degree", self.degree, 0)
            n_numbers = (2 * degree + 1) ** d
            if n_numbers > self.nodes_.n_nodes:
                raise InputError(
                    f"degree={degree} with n_side={n_side}: nodes resolve a degree of up to "
                    f"{(n_side - 1) // 2}.",
                    parameter="degree",
                )
        self._n_features_out = n_functions * n_numbers
        if self._n_features_out > _MAX_FEATURES:
            raise InputError(
                f"n_side={n_side}: {self._n_features_out:,} features are more than "
                f"{_MAX_FEATURES:,}. Give a degree, or fewer nodes or exponents."
            )
        if self.degree is not None:
            unit = (self.nodes_.points - lower) / (upper - lower)
            self._basis = trigonometric_basis(unit, degree) / self.nodes_.n_nodes
        return self

    def transform(self, X: Any) -> Array:
        """Compute the features of distributions.

        Parameters
        ----------
        X
            Sequence of mixtures, or of arrays of rows.

        Returns
        -------
        features
            Features, shape (n_distributions, n_features_out).

        Raises
        ------
        InputError
            If the distributions are of other features than in the fit.

        Warns
        -----
        UserWarning
            If a density has less or more mass than one on the nodes.
        """
        check_is_fitted(self)
        opened, names = _checked_distributions(X)
        if _n_features(opened[0]) != self.n_features_in_:
            raise InputError(
                f"X has distributions of {_n_features(opened[0])} features: give distributions of "
                f"{self.n_features_in_} features, as in the fit.",
                parameter="X",
            )
        fitted = getattr(self, "feature_names_in_", None)
        require_names(names, "X", fitted, "the transformer", parameter="X")
        with one_blas_thread():
            return self.transform_densities(self.nodes_.densities(opened))

    def transform_densities(self, densities: ArrayLike) -> Array:
        """Compute the features of densities at the nodes.

        Parameters
        ----------
        densities
            Densities at ``nodes_``, such as sums of :meth:`DensityNodes.kernel_sums` divided by the
            numbers of rows, shape (n_distributions, n_nodes). Counts of the bins of a histogram, or
            of the words of a group, become densities if they are divided by their total and by the
            volume :attr:`DensityNodes.cell` of a bin.

        Returns
        -------
        features
            Features, shape (n_distributions, n_features_out).

        Raises
        ------
        InputError
            If the shape differs, or a density is negative.

        Examples
        --------
        Words have no distances. With ``bounds`` that give each word a cell of volume one, any
        mixture of one feature serves for the fit. Tables of counts by group, such as results of
        ``pandas.crosstab``, add up over the parts of the data:

        >>> import pandas as pd
        >>> group, word = list("aaaabbbb"), list("xxyzyyyz")
        >>> parts = [pd.crosstab(group[k::2], word[k::2]) for k in (0, 1)]
        >>> counts = parts[0].add(parts[1], fill_value=0).fillna(0)
        >>> n_words = counts.shape[1]
        >>> words = DensityFeatures("js", n_side=n_words, bounds=([0.0], [n_words]))
        >>> words = words.fit([GaussianMixture([1.0], [[0.0]], [[1.0]])])
        >>> densities = counts.div(counts.sum(axis=1), axis=0).to_numpy()
        >>> features = words.transform_densities(densities)  # a row for each group
        >>> round(float(np.sum((features[0] - features[1]) ** 2)), 2)
        0.24
        >>> from scipy.spatial.distance import jensenshannon
        >>> round(float(jensenshannon(*densities) ** 2), 2)
        0.24
        """
        check_is_fitted(self)
        p: Array = check_array(densities, dtype=np.float64, ensure_non_negative=True)
        if p.shape[1] != self.nodes_.n_nodes:
            raise InputError(
                f"densities has shape {p.shape}: give (n_distributions, {self.nodes_.n_nodes:,}), "
                "the densities at nodes_."
            )
        self.nodes_.warn_of_mass(p, [f"X[{k}]" for k in range(len(p))])
        measure = MEASURES[self.kind]
        root = p ** (0.5 * self._order)
        log = np.log(p, out=np.zeros_like(p), where=p > 0.0)
        parts = []
        for exponent, weight in zip(self.exponents_, self.weights_, strict=True):
            scaled = math.sqrt(weight) * root
            parts.append(scaled * np.cos(exponent * log))
            if measure.quantile is not None:
                parts.append(scaled * np.sin(exponent * log))
        volume = self.nodes_.cell
        if self._basis is not None:  # eq. (4.10), with the measure of the box in place of one
            volume *= self.nodes_.n_nodes
            parts = [part @ self._basis for part in parts]
        scale = math.sqrt(measure.mass * volume)
        return np.asarray(scale * np.concatenate(parts, axis=1))


def _scott(opened: Sequence[GaussianMixture | Array]) -> Array:
    """Bandwidths by Scott's rule, from the mean size and variance of the groups of rows."""
    groups = [
        distribution for distribution in opened if not isinstance(distribution, GaussianMixture)
    ]
    d = _n_features(opened[0])
    if not groups:
        return np.ones(d)
    deviation = np.sqrt(np.mean([group.var(axis=0) for group in groups], axis=0))
    if not (deviation > 0.0).all():
        feature = int(np.argmin(deviation))
        raise InputError(
            f"X is constant in feature {feature} within each group: it has no density. Leave the "
            "feature out.",
            parameter="X",
        )
    size = np.mean([len(group) for group in groups])
    return np.asarray(deviation * size ** (-1.0 / (d + 4)))


def _box(opened: Sequence[GaussianMixture | Array], bandwidth: Array) -> tuple[Array, Array]:
    lower, upper = [], []
    for distribution in opened:
        if isinstance(distribution, GaussianMixture):
            reach = _REACH * np.sqrt(distribution.variances)
            lower.append((distribution.means - reach).min(axis=0))
            upper.append((distribution.means + reach).max(axis=0))
        else:
            lower.append(distribution.min(axis=0) - _REACH_OF_ROWS * bandwidth)
            upper.append(distribution.max(axis=0) + _REACH_OF_ROWS * bandwidth)
    return np.min(lower, axis=0), np.max(upper, axis=0)


def _given_box(bounds: Any, d: int) -> tuple[Array, Array]:
    try:
        lower, upper = (np.asarray(side, dtype=np.float64) for side in bounds)
        valid = lower.shape == upper.shape == (d,) and bool(np.isfinite([lower, upper]).all())
    except (TypeError, ValueError):
        valid = False
    if not valid or not (lower < upper).all():
        raise InputError(
            f"bounds={bounds!r}: give a lower and an upper corner, each of shape ({d},)."
        )
    return lower, upper


def trigonometric_frequencies(n_features: int, degree: int) -> NDArray[np.int64]:
    """Integer frequencies without zero, and without the opposite of another (section 4.2.1).

    Parameters
    ----------
    n_features
        Number of features.
    degree
        Largest absolute entry.

    Returns
    -------
    frequencies
        Frequencies whose first entry other than zero is positive, shape
        (((2 degree + 1)**n_features - 1) / 2, n_features).

    Examples
    --------
    >>> trigonometric_frequencies(2, 1).tolist()
    [[0, 1], [1, -1], [1, 0], [1, 1]]
    """
    entries = itertools.product(range(-degree, degree + 1), repeat=n_features)
    positive = [entry for entry in entries if entry > (0,) * n_features]
    return np.array(positive, dtype=np.int64).reshape(-1, n_features)


def trigonometric_basis(unit: Array, degree: int) -> Array:
    """Orthonormal functions on the unit box: one, and sqrt(2) times cosines and sines.

    Parameters
    ----------
    unit
        Points in the unit box, shape (n, n_features).
    degree
        Largest frequency.

    Returns
    -------
    values
        Values of the functions, shape (n, (2 degree + 1)**n_features).
    """
    angles = 2.0 * np.pi * (unit @ trigonometric_frequencies(unit.shape[1], degree).T)
    root = math.sqrt(2.0)
    return np.hstack([np.ones((len(unit), 1)), root * np.cos(angles), root * np.sin(angles)])


def trigonometric_features(
    distributions: Distributions, lower: ArrayLike, upper: ArrayLike, degree: int = 10
) -> Array:
    """Embed distributions so that Euclidean distances are L2 distances of their densities.

    The features are means of trigonometric functions on a box: the coefficients of the density in
    this basis, eq. (4.6). They are exact for mixtures. For rows they are means, which merge as
    sketches do. The degree takes the place of a bandwidth. The densities are wrapped around the
    box, so the box should contain nearly all rows.

    Parameters
    ----------
    distributions
        Mixtures, or arrays of rows of shape (n_samples, n_features).
    lower, upper
        Corners of the box, shape (n_features,).
    degree
        Largest frequency, in periods of the box, ``>= 0``.

    Returns
    -------
    features
        Features, shape (n_distributions, (2 degree + 1)**n_features). Their squared distances are
        integrals of ``(p - q)**2`` for densities that are smoothed to this degree.

    Raises
    ------
    InputError
        If an argument is out of range, or there would be too many features.

    References
    ----------
    Sutherland (2016), section 4.2. Oliva, Neiswanger, Póczos, Xing, Trac, Ho, Schneider (2015),
    Fast function to function regression.

    Examples
    --------
    >>> p, q = (GaussianMixture([1.0], [[m]], [[1.0]]) for m in (0.0, 1.0))
    >>> features = trigonometric_features([p, q], [-8.0], [9.0])
    >>> exact = (1.0 - np.exp(-0.25)) / np.sqrt(np.pi)
    >>> bool(np.isclose(np.sum((features[0] - features[1]) ** 2), exact))
    True
    """
    opened, names = _checked_distributions(distributions)
    degree = require_integer("degree", degree, 0)
    d = _n_features(opened[0])
    for argument, corner in (("lower", lower), ("upper", upper)):
        require_names_in(argument, corner, names, "distributions")
    low, high = _given_box((lower, upper), d)
    if (2 * degree + 1) ** d > _MAX_FEATURES:
        raise InputError(
            f"degree={degree} with {d} features: {float(2 * degree + 1) ** d:.3g} functions are "
            f"more than {_MAX_FEATURES:,}. Give a lower degree.",
            parameter="degree",
        )
    frequencies = trigonometric_frequencies(d, degree).T.astype(np.float64)
    omega = 2.0 * np.pi * frequencies / (high - low)[:, None]
    shift = np.exp(1j * (low @ omega))
    out = np.empty((len(opened), 1 + 2 * omega.shape[1]))
    for k, distribution in enumerate(opened):
        values = shift * _characteristic(distribution, omega)
        out[k] = [1.0, *(math.sqrt(2.0) * values.real), *(-math.sqrt(2.0) * values.imag)]
    return np.asarray(out / math.sqrt(float(np.prod(high - low))))


def _characteristic(distribution: GaussianMixture | Array, omega: Array) -> NDArray[np.complex128]:
    """Mean of ``exp(-i omega . x)``."""
    if isinstance(distribution, GaussianMixture):
        return distribution.characteristic(omega)
    step = max(_NUMBERS // max(omega.shape[1], 1), 1)
    total = np.zeros(omega.shape[1], dtype=np.complex128)
    for start in range(0, len(distribution), step):
        total += np.exp(-1j * (distribution[start : start + step] @ omega)).sum(axis=0)
    return total / len(distribution)
