"""Divergences of densities on nodes, with their errors, from sums of kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dask_sketch.distributions.density_features import DensityNodes
from dask_sketch.distributions.divergences import (
    Divergence,
    Integrand,
    Kind,
    checked_kind,
    folded_excess,
    integrand,
    largest_value,
    with_interval,
)
from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import require_number
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
_TINY = 1e-300  # density in place of zero
_FEW = 0.5  # relative variance of a density at a node with hardly any rows
_FRACTION = 0.05  # share of the divergence from such nodes, above which there is a warning
_NEAR = 2.0  # bandwidths over which the squared gap of two densities is averaged
_CHANGE = 1.0  # change by the smoothing, in standard errors, above which there is a warning


def node_divergence(
    nodes: DensityNodes,
    first: ArrayLike,
    second: ArrayLike,
    n_samples: tuple[Any, Any],
    kind: Kind = "js",
    *,
    alpha: float | None = None,
    level: float = 0.05,
) -> Divergence:
    """Estimate a divergence of two distributions from sums of kernels at nodes, with its error.

    The sums add over chunks, so that one pass over any number of rows is enough. No model is
    fitted. The nodes limit the data to few features, up to three; see :func:`divergence` for more.

    The error follows from the delta method of second order. It covers the randomness of the rows:
    in simulations of 2,000 to 20,000 rows of one to three features, intervals of 95 % covered the
    divergence of the smoothed densities in 90 to 100 % of the cases. With sums of all rows of a
    side, rows are assumed to be independent. With sums of partitions, such as days or files, the
    partitions are independent units, whose rows may depend on each other: intervals of 95 % covered
    the divergence in 90, 91 and 94 % of 300 simulations of 8, 20 and 50 such partitions a side.

    The error does not cover the smoothing. The estimate is the divergence of both densities after
    convolution with the kernel, which is smaller than the divergence of the distributions. A
    warning follows if this matters, judged by a second smoothing.

    Parameters
    ----------
    nodes
        Nodes, with the bandwidth of the kernel.
    first, second
        Sums of :meth:`DensityNodes.kernel_sums`, shape (n_nodes,) for all rows of a side, or
        (n_parts, n_nodes) for two or more partitions of each side.
    n_samples
        Numbers of rows in ``first`` and ``second``, above 0: two numbers, or two arrays of shape
        (n_parts,).
    kind, alpha, level
        Arguments of :func:`divergence`.

    Returns
    -------
    divergence
        Value, bias, standard error and interval. With partitions, the interval has a quantile of
        Student's distribution, by the approximation of Welch and Satterthwaite.

    Raises
    ------
    InputError
        If an argument is out of range, or a shape differs.

    Warns
    -----
    UserWarning
        If the nodes miss rows, or much of an unbounded divergence such as ``"kl"`` comes from nodes
        with hardly any rows of a side, as in the tails, or the smoothing changes the divergence by
        more than its standard error.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, sections 2.2 and
    4.3. Welch (1947), The generalization of Student's problem when several different population
    variances are involved.

    Examples
    --------
    >>> import dask.array as da
    >>> nodes = DensityNodes(np.array([-6.0]), np.array([7.0]), 80, np.array([0.1]))
    >>> rng = np.random.default_rng(0)
    >>> sides = [da.from_array(rng.normal(m, 1, (20_000, 1)), chunks=(1000, 1)) for m in (0, 1)]

    Sums of all rows, as of independent ones:

    >>> def sums(rows):
    ...     made = rows.map_blocks(lambda x: nodes.kernel_sums(x)[None], chunks=(1, 80))
    ...     return made.compute()
    >>> p, q = map(sums, sides)
    >>> found = node_divergence(nodes, p.sum(axis=0), q.sum(axis=0), (20_000, 20_000), "kl")
    >>> abs(found.value - 0.5 / 1.01) < 4 * found.standard_error  # of the smoothed densities
    True

    Sums of chunks, whose rows may depend:

    >>> n_rows = np.full(20, 1000)
    >>> low, high = node_divergence(nodes, p, q, (n_rows, n_rows), "kl").interval
    >>> low < 0.5 / 1.01 < high
    True
    """
    alpha = checked_kind(kind, alpha)
    level = require_number("level", level, 0.0, 1.0, strict=True)
    if not isinstance(n_samples, (tuple, list)) or len(n_samples) != 2:
        raise InputError(f"n_samples={n_samples!r}: give a pair, one element for each side.")
    sides = [
        _Side.of(name, sums, n, nodes)
        for name, sums, n in zip(("first", "second"), (first, second), n_samples, strict=True)
    ]
    if len({side.parts is None for side in sides}) > 1:
        raise InputError(
            f"first has shape {np.shape(first)}, second {np.shape(second)}: give the sums of all "
            "rows of both sides, or of the partitions of both."
        )
    nodes.warn_of_gaps()
    nodes.warn_of_mass(np.stack([side.density for side in sides]), ("first", "second"))
    densities = [side.density for side in sides]
    terms, masses = _terms(nodes, densities, kind, alpha)
    parts = terms.values * masses
    value = float(parts.sum())
    relative = [side.relative_variance(nodes) for side in sides]
    slopes = terms.first * masses, (terms.values - terms.first) * masses
    linear = [side.variance(slope, nodes) for side, slope in zip(sides, slopes, strict=True)]
    bias, second_order = _second_order(nodes, sides, terms, masses, relative)
    # Slopes of estimates contain noise, which has twice the variance of second order. Between few
    # partitions this variance, and the bias, are not known well enough to be taken off.
    of_parts = sides[0].parts is not None
    error = math.sqrt(max(sum(linear) - (0.0 if of_parts else second_order), second_order))
    if math.isinf(largest_value(kind, alpha)):
        _warn_of_few(kind, parts, [side > _FEW for side in relative], error)
    smoother = [nodes.smooth(p) * nodes.peak * nodes.cell for p in densities]
    coarse, coarse_masses = _terms(nodes, smoother, kind, alpha)
    # the bias is less with the kernel convolved with itself
    lost = bias * (1.0 - 2.0 ** (-0.5 * len(nodes.lower)))
    _warn_of_smoothing(kind, value - float(coarse.values @ coarse_masses) - lost, error)
    return with_interval(
        Divergence(
            kind=kind,
            value=value,
            bias=bias,
            standard_error=error,
            simulation_error=None,
            parameter_error=None,
            interval=(math.nan, math.nan),
            level=level,
            alpha=alpha if kind in ("renyi", "alpha") else None,
            method="nodes",
        ),
        # the bias of total variation is not known well if the densities are nearly equal
        _quantile(sides, linear, level)
        * (math.hypot(error, bias) if terms.curvature is None or of_parts else error),
    )


def _terms(
    nodes: DensityNodes, densities: list[Array], kind: str, alpha: float
) -> tuple[Integrand, Array]:
    """Integrand at the nodes, and mean mass of both densities there."""
    p, q = (np.maximum(density, _TINY) for density in densities)
    return integrand(kind, np.log(p) - np.log(q), alpha), 0.5 * (p + q) * nodes.cell


@dataclass(frozen=True, eq=False)
class _Side:
    """Density of one side at the nodes, and its noise.

    Attributes
    ----------
    density
        Density, shape (n_nodes,).
    n_samples
        Number of rows.
    parts
        Deviation of each partition from the density, divided by the density and scaled so that the
        sum of squares is the relative variance, shape (n_parts, n_nodes); None for independent
        rows.
    """

    density: Array
    n_samples: float
    parts: Array | None

    @classmethod
    def of(cls, name: str, given: Any, n_samples: Any, nodes: DensityNodes) -> _Side:
        sums, counts = _numbers(name, given), _numbers("n_samples", n_samples)
        if sums.ndim not in (1, 2) or sums.shape[-1] != nodes.n_nodes:
            raise InputError(
                f"{name} has shape {sums.shape}: give sums at the {nodes.n_nodes:,} nodes, or a "
                "row of them for each partition.",
                parameter=name,
            )
        if counts.shape != sums.shape[:-1] or not (counts > 0.0).all() or sums.shape[0] < 2:
            raise InputError(
                f"n_samples of shape {counts.shape} for {name} of shape {sums.shape}: give a "
                "number of rows above 0 for each row of sums, of two partitions or more.",
                parameter="n_samples",
            )
        if sums.ndim == 1:
            return cls(sums / counts, float(counts), None)
        total, n_parts = float(counts.sum()), len(sums)
        density = sums.sum(axis=0) / total
        noise = (sums - counts[:, None] * density) / total
        noise *= math.sqrt(n_parts / (n_parts - 1))
        return cls(density, total, noise / np.maximum(density, _TINY))

    def relative_variance(self, nodes: DensityNodes) -> Array:
        """Variance of the density relative to its square, at most one, shape (n_nodes,)."""
        if self.parts is not None:
            return np.minimum(np.einsum("bu,bu->u", self.parts, self.parts), 1.0)
        return np.maximum(self._kernel_variance(nodes) - 1.0 / self.n_samples, 0.0)

    def variance(self, slopes: Array, nodes: DensityNodes) -> float:
        """Variance of the sum of ``slopes`` times the relative noise of the density."""
        if self.parts is not None:
            return float(np.sum((self.parts @ slopes) ** 2))
        # noise of kernels is correlated over the width of the kernel convolved with itself
        scaled = slopes * np.sqrt(self._kernel_variance(nodes))
        variance = float(scaled @ nodes.smooth(scaled, math.sqrt(2.0)))
        return max(variance - float(slopes.sum()) ** 2 / self.n_samples, 0.0)

    def _kernel_variance(self, nodes: DensityNodes) -> Array:
        """Mean square of a kernel relative to the density, over the number of rows, at most one."""
        squared_kernel = nodes.peak / 2.0 ** (0.5 * len(nodes.lower))  # its integral
        ratio = squared_kernel / np.maximum(self.density, _TINY)
        return np.minimum(ratio / self.n_samples, 1.0)


def _numbers(name: str, given: Any) -> Array:
    try:
        out = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        out = np.array(math.nan)
    if not np.isfinite(out).all() or (out < 0.0).any() or not out.any():
        raise InputError(
            f"{name} of type {type(given).__name__}: give finite numbers >= 0, not all 0.",
            parameter=name,
        )
    return out


def _second_order(
    nodes: DensityNodes,
    sides: list[_Side],
    terms: Integrand,
    masses: Array,
    relative: list[Array],
) -> tuple[float, float]:
    """Bias, and variance of the terms of second order.

    The terms are half of the sum of ``curvature * masses * (a - b)**2``, where ``a`` and ``b`` are
    the relative noises of the two densities.
    """
    if terms.curvature is None:  # the mean of an absolute value of a normal variable
        fractions = [side.density * nodes.cell / masses for side in sides]
        square = fractions[0] ** 2 * relative[0] + fractions[1] ** 2 * relative[1]
        # the squared gap without its noise, both over a few bandwidths
        over = (masses**2 * ((fractions[0] - fractions[1]) ** 2 - square), masses**2)
        gap, weight = (nodes.smooth(values, _NEAR) for values in over)
        gap = np.sqrt(np.maximum(gap / np.maximum(weight, _TINY), 0.0) + square)
        return float(masses @ folded_excess(gap, np.sqrt(square))), 0.0
    weights = terms.curvature * masses
    bias = 0.5 * float(weights @ (relative[0] + relative[1]))
    total = 0.0
    for i, first in enumerate(sides):
        for j, second in enumerate(sides):
            if first.parts is None or second.parts is None:
                product = weights * np.sqrt(relative[i] * relative[j])
                total += float(product @ nodes.smooth(product))
                continue
            left, right = (
                side.parts * np.sqrt(r / np.maximum(np.sum(side.parts**2, axis=0), _TINY))
                for side, r in ((first, relative[i]), (second, relative[j]))
                if side.parts is not None
            )
            squares = ((left * weights) @ right.T) ** 2
            if i == j:  # pairs of different partitions have no bias
                n_parts = len(left)
                total += float(squares.sum() - np.trace(squares)) * n_parts / (n_parts - 1)
            else:
                total += float(squares.sum())
    return bias, 0.5 * total


def _warn_of_few(kind: str, parts: Array, few: list[NDArray[np.bool_]], error: float) -> None:
    total = float(np.abs(parts).sum())
    for name, nodes in zip(("first", "second"), few, strict=True):
        lost = float(np.abs(parts[nodes]).sum())
        if lost > max(_FRACTION * total, error):
            warn_user(
                f"kind={kind!r}: {lost / total:.0%} of the divergence comes from nodes with hardly "
                f"any rows of {name}, so that its error cannot be trusted. Give more rows, or a "
                "larger bandwidth; the terms of kind='js' are bounded."
            )


def _warn_of_smoothing(kind: str, change: float, error: float) -> None:
    """Warn if smoothing twice changes the divergence, as smoothing once does in leading order."""
    if change > _CHANGE * error:
        warn_user(
            f"kind={kind!r}: the smoothing lowers the divergence by about {change:.2g}, more than "
            f"its error of {error:.2g}, which does not cover that. Give a smaller bandwidth."
        )


def _quantile(sides: list[_Side], linear: list[float], level: float) -> float:
    """Quantile of the normal distribution, or of Student's for partitions."""
    if sides[0].parts is None:
        return float(special.ndtri(1.0 - 0.5 * level))
    freedoms = [len(side.parts) - 1 for side in sides if side.parts is not None]
    lost = sum(v**2 / n for v, n in zip(linear, freedoms, strict=True))
    degrees = sum(linear) ** 2 / lost if lost > 0.0 else float(min(freedoms))
    return float(special.stdtrit(degrees, 1.0 - 0.5 * level))
