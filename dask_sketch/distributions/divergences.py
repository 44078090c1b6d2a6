"""Divergences of two distributions, with their errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dask_sketch.display.html import card
from dask_sketch.display.text import describe, one_line
from dask_sketch.distributions.nearest_neighbors import (
    NeighborEstimate,
    Neighbors,
    neighbor_divergence,
    opened_rows,
    require_neighbors,
    sampled_rows,
)
from dask_sketch.distributions.parameter_noise import (
    likelihood_covariance,
    n_parameters,
    rescaled,
    sample_sizes,
    scores,
    standard_errors,
)
from dask_sketch.errors import InputError
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.row_sample import DEFAULT_ROWS
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.choices import rank_of, refuse_unused
from dask_sketch.validation.tables import names_in, require_common_names
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
Kind = Literal["kl", "js", "tv", "squared-hellinger", "renyi", "alpha"]
KINDS = ("kl", "js", "tv", "squared-hellinger", "renyi", "alpha")
SYMMETRIC = ("js", "tv", "squared-hellinger")
_N_DRAWS, _MAX_PAIRS = 100_000, 500_000
_N_SHARED_DRAWS = 2000  # draws of each mixture of a matrix
_N_NEIGHBORS = 5
_OF_ROWS = "has no effect between mixtures: they have densities"
_OF_MIXTURES = "has no effect between rows: they are counted, and nothing is drawn from them"
_SMALL = 0.3  # error of the simulation, relative to that of the parameters, that does not matter
_COORDINATES = 2**23  # coordinates of the draws of a mixture in memory, at most
_N_SCORED = 10_000  # pairs of draws from which the noise of the parameters is estimated
_MAX_PARAMETERS = 1500  # parameters of a mixture whose information matrix is estimated, at most
_SCORES, _MIN_SCORED = 2**22, 200  # scores of a mixture in memory, and pairs of draws at least
_NUMBERS = 2**21  # scores of a block
_NARROW = 1e-12  # deviation of a relative density that is none
_RULED_BY_BIAS = 5.0  # standard errors of a bias of which users are warned
_DOMINANT = 0.05  # share of the estimate that one pair of draws may have


@dataclass(frozen=True, repr=False)
class Divergence:
    """Divergence of two distributions with its error; the result of :func:`divergence`.

    :func:`node_divergence` returns it as well.

    Attributes
    ----------
    kind
        Kind of the divergence.
    value
        Divergence of the two mixtures as they are given, or estimate from rows.
    bias
        Expected excess of the value over the divergence of the true distributions. For mixtures, it
        arises because the parameters are estimates, and is 0 if their errors are unknown. For rows,
        it is a rough estimate.
    standard_error
        Standard error of the value, from all known causes; NaN for few rows.
    simulation_error
        Standard error because the number of draws is finite; None for rows and nodes.
    parameter_error
        Standard error because the parameters are estimates; None for rows and nodes, and if the
        errors of the parameters of both mixtures are unknown.
    interval
        Confidence interval of the divergence of the true distributions, which are mixtures of as
        many components as those that were fitted; of the mixtures as they are given, if
        ``parameter_error`` is None; or of the smoothed densities on nodes. It is centered at the
        value minus its bias, and contains the value. For rows, and for total variation on nodes,
        the bias is added to the standard error as well. NaN for few rows.
    level
        Probability that the interval misses the divergence.
    alpha
        Order of ``"renyi"`` and ``"alpha"``, else None.
    method
        ``"simulation"``, ``"nearest neighbors"`` or ``"nodes"``.
    """

    kind: str
    value: float
    bias: float
    standard_error: float
    simulation_error: float | None
    parameter_error: float | None
    interval: tuple[float, float]
    level: float
    alpha: float | None
    method: str

    def as_dict(self) -> dict[str, Any]:
        """All attributes."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"<Divergence: {one_line(self._fields())}>"

    def _repr_html_(self) -> str:
        low, high = self.interval
        summary = f"{self.kind} {self.value:.4g}, within [{low:.4g}, {high:.4g}]"
        if self.parameter_error is None and self.method == "simulation":
            summary += ", of the mixtures as they are"
        return card("Divergence", describe(self._fields()), summary=summary)

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in self.as_dict().items() if value is not None}


@dataclass(frozen=True, eq=False)
class Integrand:
    """Integrand of a divergence at draws of the mean of both mixtures, and its derivatives.

    The divergence is the integral of a convex function ``k(p, q)`` of two densities, homogeneous of
    degree one. A linear function with integral zero is subtracted from it, so that the integrand is
    zero and flat at ``p = q``. Then no draw has a negative term, and the noise vanishes as fast as
    the divergence itself.

    Attributes
    ----------
    values
        ``k(p, q) / m`` with the density ``m = (p + q) / 2``.
    first
        ``p k_p / m``; by homogeneity ``q k_q / m`` is ``values - first``.
    curvature
        ``p**2 k_pp / m``, equal to ``q**2 k_qq / m`` and ``-p q k_pq / m``; None for total
        variation.
    """

    values: Array
    first: Array
    curvature: Array | None


def integrand(kind: str, log_ratio: Array, alpha: float) -> Integrand:
    """Integrand of a divergence and its derivatives.

    Parameters
    ----------
    kind, alpha
        Arguments of :func:`divergence`.
    log_ratio
        Logarithm of ``p / q``, of any shape.
    """
    p, q = 2.0 * special.expit(log_ratio), 2.0 * special.expit(-log_ratio)
    if kind == "kl":
        return Integrand(p * log_ratio - p + q, p * log_ratio, p)
    if kind == "tv":
        sign = 0.5 * np.sign(log_ratio)
        return Integrand(sign * (p - q), sign * p, None)
    log_p = math.log(2.0) - np.logaddexp(0.0, -log_ratio)
    log_q = math.log(2.0) - np.logaddexp(0.0, log_ratio)
    if kind == "js":
        first = 0.5 * p * log_p
        return Integrand(np.maximum(first + 0.5 * q * log_q, 0.0), first, 0.25 * p * q)
    if kind == "squared-hellinger":
        root = np.exp(0.5 * (log_p + log_q))
        return Integrand(0.5 * (p + q) - root, 0.5 * (p - root), 0.25 * root)
    power = np.exp(alpha * log_p + (1.0 - alpha) * log_q)
    first, second = (p - power) / (1.0 - alpha), (q - power) / alpha
    return Integrand(np.maximum(first + second, 0.0), first, power)


def largest_value(kind: str, alpha: float) -> float:
    """Largest value of a divergence; for ``"renyi"``, of the alpha divergence of the same order.

    Parameters
    ----------
    kind, alpha
        Arguments of :func:`divergence`.
    """
    if kind in ("renyi", "alpha") and 0.0 < alpha < 1.0:
        return 1.0 / (alpha * (1.0 - alpha))
    return {"js": math.log(2.0), "tv": 1.0, "squared-hellinger": 1.0}.get(kind, math.inf)


def _renyi(value: float, alpha: float) -> float:
    """Convert an alpha divergence to the Rényi divergence of the same order."""
    integral = 1.0 - alpha * (1.0 - alpha) * value
    return math.log(integral) / (alpha - 1.0) if integral > 0.0 else math.inf


def divergence(
    first: Any,
    second: Any,
    kind: Kind = "kl",
    *,
    alpha: float | None = None,
    n_samples: tuple[float, float] | None = None,
    n_draws: int | None = None,
    n_neighbors: int | None = None,
    n_rows: int | None = None,
    level: float = 0.05,
    seed: int = 0,
) -> Divergence:
    """Estimate a divergence of two mixtures, or of two sets of rows, with its error.

    Between mixtures, the integral is a mean over draws of both. The same seed gives the same random
    numbers, so that divergences of similar mixtures can be compared. The error includes the errors
    of the parameters, by the delta method of second order, if the mixtures have standard errors
    (``decode(..., refine="efficient")``) or ``n_samples`` is given. Otherwise it is the error of
    the simulation alone, for the two mixtures as they are given.

    Between rows, distances to nearest neighbours replace the densities. They need no model, but
    have a bias that decreases slowly, about like ``n**(-1 / n_features)``, and more slowly where
    the second distribution has lighter tails; for ``"kl"`` a warning says so. Lazy rows are
    replaced by a random sample of ``n_rows``, drawn in one pass over each side, and the error is
    the error of this sample.

    Parameters
    ----------
    first, second
        Two mixtures, such as results of :func:`dask_sketch.decode`; or rows, shape (n_samples,
        n_features): two arrays, or lazy input such as Dask arrays and paths of Zarr or Parquet, in
        any form that :func:`~dask_sketch.open_samples` takes or returns.
    kind
        With densities ``p`` of ``first`` and ``q`` of ``second``:

        - ``"kl"``, Kullback and Leibler: the integral of ``p log(p / q)``, in nats;
        - ``"js"``, Jensen and Shannon: half of ``KL(p, m) + KL(q, m)`` with ``m = (p + q) / 2``,
          at most ``log(2)``. Its root is a metric;
        - ``"tv"``, total variation: half of the integral of ``|p - q|``, at most 1. Not for rows;
        - ``"squared-hellinger"``: half of the integral of ``(sqrt(p) - sqrt(q))**2``, at most 1.
          Its root is a metric;
        - ``"renyi"``: ``log(c) / (alpha - 1)`` with ``c`` the integral of
          ``p**alpha q**(1 - alpha)``, in nats;
        - ``"alpha"``: ``(1 - c) / (alpha (1 - alpha))``. With ``alpha = 1 / 2`` it is four times
          the squared Hellinger distance.
    alpha
        Order of ``"renyi"`` and ``"alpha"``, above 0 and 0.5 by default. It is not 1, where the
        limit is ``"kl"``. Integrals of orders above 1 may be infinite. Other kinds have no order.
    n_samples
        Numbers of independent samples that ``first`` and ``second`` were fitted to, ``>= 1``, for
        mixtures without standard errors: their parameters then have the errors of maximum
        likelihood. Infinity for a mixture that is known. If the data is not such a mixture, fits to
        samples of one distribution may be different local maxima, and the interval may exclude 0.
        Then compare rows, or use :func:`compare`; neither assumes a model.
    n_draws
        Number of draws from both mixtures together, ``>= 100``. By default 100,000, and up to a
        million where the parameters are known so well that the error of the simulation matters.
    n_neighbors
        Rank of the neighbour whose distance is used between rows, ``>= 1``: 1 for the nearest one,
        5 by default.
    n_rows
        Maximum number of random rows of each lazy side, ``>= 1``, 20,000 by default; all rows in
        memory are used.
    level
        Probability that the interval misses the divergence, in (0, 1).
    seed
        Seed of the draws, or of the choice and order of rows, ``>= 0``.

    Returns
    -------
    divergence
        Value, standard error and interval.

    Raises
    ------
    InputError
        If an argument is out of range or has no effect, the numbers or names of the features
        differ, or rows are repeated.

    Warns
    -----
    UserWarning
        If a few draws decide the value, as for orders above 1, or the bias of ``"kl"`` between rows
        is several standard errors.

    References
    ----------
    Sutherland (2016), sections 2.1 and 2.2. Wang, Kulkarni, Verdú (2009), Divergence estimation
    for multidimensional densities via k-nearest-neighbor distances. Póczos, Xiong, Sutherland,
    Schneider (2012), Nonparametric kernel estimators for image classification. Kozachenko,
    Leonenko (1987), for the entropies of ``"js"``.

    Examples
    --------
    >>> p = GaussianMixture([1.0], [[0.0]], [[1.0]])
    >>> q = GaussianMixture([1.0], [[1.0]], [[1.0]])
    >>> found = divergence(p, q)  # exactly 0.5
    >>> abs(found.value - 0.5) < 4 * found.standard_error
    True
    >>> x, y = p.sample(2000, seed=0), q.sample(2000, seed=1)
    >>> round(divergence(x, y).value, 1)
    0.5

    Of lazy rows, for example in Zarr stores, a sample is enough:

    >>> import dask.array as da
    >>> lazy = [da.from_array(rows, chunks=(500, 1)) for rows in (x, y)]
    >>> low, high = divergence(*lazy, n_rows=1000).interval
    >>> low < 0.5 < high
    True
    """
    alpha = checked_kind(kind, alpha)
    level = require_number("level", level, 0.0, 1.0, strict=True)
    seed = require_integer("seed", seed, 0)
    if isinstance(first, GaussianMixture) and isinstance(second, GaussianMixture):
        refuse_unused(_OF_ROWS, n_neighbors=n_neighbors, n_rows=n_rows)
        n_pairs = require_integer("n_draws", _N_DRAWS if n_draws is None else n_draws, 100) // 2
        _require_same_features({"first": first, "second": second})
        sizes = sample_sizes(n_samples, (first, second))
        with one_blas_thread():
            result = _simulated(first, second, kind, alpha, n_pairs, sizes, level, seed)
            more = _pairs_needed(result, n_pairs, first.n_features) if n_draws is None else n_pairs
            if more > n_pairs:
                result = _simulated(first, second, kind, alpha, more, sizes, level, seed)
        return result
    if not any(isinstance(side, GaussianMixture) for side in (first, second)):
        refuse_unused(_OF_MIXTURES, n_samples=n_samples, n_draws=n_draws)
    x, y = _rows_of({"first": first, "second": second}, n_rows, seed)
    n_neighbors = _N_NEIGHBORS if n_neighbors is None else n_neighbors
    estimate = neighbor_divergence(x, y, kind, alpha, n_neighbors, seed)
    return _from_rows(estimate, kind, alpha, level)


def _rows_of(arguments: dict[str, Any], n_rows: int | None, seed: int) -> list[Array]:
    """Rows of arguments by their names, which have features of one name.

    Samples of lazy ones are drawn with different seeds.
    """
    n_rows = require_integer("n_rows", DEFAULT_ROWS if n_rows is None else n_rows, 1)
    seeds = np.random.SeedSequence(seed).generate_state(len(arguments))
    opened = {name: opened_rows(source) for name, source in arguments.items()}
    require_common_names(
        {
            name: source.feature_names if isinstance(source, Samples) else names_in(source)
            for name, source in opened.items()
        }
    )
    pairs = zip(opened.items(), seeds, strict=True)
    return [sampled_rows(name, source, n_rows, int(state)) for (name, source), state in pairs]


def _pairs_needed(estimate: Divergence, n_pairs: int, n_features: int) -> int:
    """Number of pairs of draws with which the errors of the parameters dominate."""
    parameters, simulation = estimate.parameter_error, estimate.simulation_error
    if not parameters or simulation is None or simulation <= _SMALL * parameters:
        return n_pairs
    max_pairs = min(_MAX_PAIRS, max(_COORDINATES // n_features, n_pairs))
    return int(min(max_pairs, n_pairs * (simulation / (_SMALL * parameters)) ** 2))


def checked_kind(kind: str, alpha: float | None) -> float:
    """Validate the kind of a divergence, and the order of a kind that has one.

    Parameters
    ----------
    kind, alpha
        Arguments of :func:`divergence`.

    Returns
    -------
    alpha
        Order; 0.5 for kinds without an order.

    Raises
    ------
    InputError
        If the kind is not known, the order is out of range, or the kind has no order.
    """
    if kind not in KINDS:
        raise InputError(f"kind={kind!r}: choose one of {', '.join(KINDS)}.")
    if kind not in ("renyi", "alpha"):
        refuse_unused(f"has no effect on kind={kind!r}", alpha=alpha)
    if alpha is None:
        return 0.5
    alpha = require_number("alpha", alpha, 0.0, math.inf, strict=True)
    if alpha == 1.0:
        raise InputError("alpha=1: this limit is kind='kl'.")
    return alpha


def _require_same_features(mixtures: Mapping[str, GaussianMixture]) -> None:
    """Raise unless mixtures, by the names of the arguments, have the same features."""
    (first, reference), *others = mixtures.items()
    for name, other in others:
        if reference.n_features != other.n_features:
            raise InputError(
                f"{first} has {reference.n_features} features, {name} {other.n_features}: give "
                "mixtures of the same features.",
                parameter=name,
            )
    require_common_names({name: mixture.feature_names for name, mixture in mixtures.items()})


def _simulated(
    first: GaussianMixture,
    second: GaussianMixture,
    kind: str,
    alpha: float,
    n_pairs: int,
    sizes: tuple[float, float] | None,
    level: float,
    seed: int,
) -> Divergence:
    points = [mixture.sample(n_pairs, seed=seed) for mixture in (first, second)]
    log_ratio = np.stack([first.logpdf(x) - second.logpdf(x) for x in points])
    # the two draws of a pair have the same random numbers, so that only pairs are independent
    values = integrand(kind, log_ratio, alpha).values.mean(axis=0)
    value = float(values.mean())
    _warn_of_dominant(values, kind)
    simulation = float(values.std(ddof=1)) / math.sqrt(n_pairs)
    noise = _parameter_noise((first, second), sizes, kind, alpha, points, log_ratio)
    bias, parameters = (0.0, 0.0) if noise is None else noise
    return with_interval(
        Divergence(
            kind=kind,
            value=value,
            bias=bias,
            standard_error=math.hypot(simulation, parameters),
            simulation_error=simulation,
            parameter_error=None if noise is None else parameters,
            interval=(math.nan, math.nan),
            level=level,
            alpha=alpha if kind in ("renyi", "alpha") else None,
            method="simulation",
        ),
        float(special.ndtri(1.0 - 0.5 * level)) * math.hypot(simulation, parameters),
    )


def with_interval(estimate: Divergence, reach: float) -> Divergence:
    """Add the interval to an estimate, and convert an alpha divergence to Rényi's for ``"renyi"``.

    Parameters
    ----------
    estimate
        Estimate with its bias and errors; for ``"renyi"``, of the alpha divergence.
    reach
        Half of the length of the interval; for ``"renyi"``, of the alpha divergence.

    Returns
    -------
    divergence
        Estimate with its interval, clipped to the range of the divergence.
    """
    kind, alpha, value = estimate.kind, estimate.alpha or 0.5, estimate.value
    center = value - estimate.bias
    ends = np.array([center - reach, max(center + reach, value)])
    ends = np.clip(ends, 0.0, largest_value(kind, alpha))
    if kind != "renyi":
        return replace(estimate, interval=(float(ends[0]), float(ends[1])))
    integral = 1.0 - alpha * (1.0 - alpha) * value
    slope = alpha / integral if integral > 0.0 else math.inf
    simulation, parameters = (
        None if error is None else slope * error
        for error in (estimate.simulation_error, estimate.parameter_error)
    )
    return replace(
        estimate,
        value=_renyi(value, alpha),
        bias=slope * estimate.bias,
        standard_error=slope * estimate.standard_error,
        simulation_error=simulation,
        parameter_error=parameters,
        interval=(_renyi(float(ends[0]), alpha), _renyi(float(ends[1]), alpha)),
    )


def _warn_of_dominant(values: Array, kind: str) -> None:
    total = float(values.sum())
    largest = float(values.max())
    if total > 0.0 and largest > _DOMINANT * total:
        warn_user(
            f"kind={kind!r}: one of {len(values):,} pairs of draws makes up {largest / total:.0%} "
            "of the estimate, so that its standard error cannot be trusted. Give a larger n_draws, "
            "an alpha below 1, or kind='js', whose terms are bounded."
        )


def _parameter_noise(
    mixtures: tuple[GaussianMixture, GaussianMixture],
    sizes: tuple[float, float] | None,
    kind: str,
    alpha: float,
    points: Sequence[Array],
    log_ratio: Array,
) -> tuple[float, float] | None:
    """Bias and standard error because of the estimated parameters of either mixture.

    The first derivative of the divergence by a parameter is the mean of ``first`` times the score
    of the parameter. The second derivative is the mean of ``curvature`` times products of scores.
    Second derivatives of the densities are left out of it: their factor vanishes at ``p = q``.
    """
    max_parameters = max(map(n_parameters, mixtures))
    n_scored = min(_N_SCORED, len(points[0]), max(_SCORES // max_parameters, _MIN_SCORED))
    x = np.concatenate([side[:n_scored] for side in points])
    ratio = log_ratio[:, :n_scored].ravel()
    terms = integrand(kind, ratio, alpha)
    masses = [2.0 * special.expit(ratio), 2.0 * special.expit(-ratio)]
    slopes = terms.first, terms.values - terms.first
    known_sizes = (None, None) if sizes is None else sizes
    sides = zip(mixtures, masses, slopes, known_sizes, strict=True)
    known = [side for side in sides if side[0].stderr is not None or side[3] is not None]
    if not known:
        return None
    scored = [_scored(mixture, x, mass, size) for mixture, mass, _, size in known]
    variance = 0.0
    for side, noise in zip(known, scored, strict=True):
        variance += _squared_norm(noise, side[2][:, None])
    if terms.curvature is None:  # the mean of an absolute value of a normal variable
        pairs = zip(known, scored, strict=True)
        spread = [side[1] ** 2 * np.einsum("ij,ij->i", noise, noise) for side, noise in pairs]
        deviation = np.sqrt(np.sum(spread, axis=0))
        return float(folded_excess(masses[0] - masses[1], deviation).mean()), math.sqrt(variance)
    bias, curved = 0.0, [noise * terms.curvature[:, None] for noise in scored]
    for noise, bent in zip(scored, curved, strict=True):
        bias += 0.5 * float(np.einsum("ij,ij->", noise, bent)) / len(x)
        variance += 0.5 * _squared_norm(noise, bent)
    if len(scored) == 2:
        variance += _squared_norm(scored[0], curved[1])
    return bias, math.sqrt(variance)


def _squared_norm(left: Array, right: Array) -> float:
    """Squared norm of the mean of outer products, unbiased: from pairs of different draws."""
    n = len(left)
    if left.shape[1] <= n:
        total = float(np.sum((left.T @ right) ** 2))
    else:
        total = float(np.sum((left @ left.T) * (right @ right.T)))
    diagonal = np.einsum("ij,ij->i", left, left) * np.einsum("ij,ij->i", right, right)
    return max(total - float(diagonal.sum()), 0.0) / (n * (n - 1))


def _scored(mixture: GaussianMixture, x: Array, masses: Array, size: float | None) -> Array:
    """Scores times a root of the covariance of the parameters, shape (n, rank)."""
    step = max(_NUMBERS // max(mixture.n_features * mixture.n_components, 1), 1)
    blocks = [scores(mixture, x[start : start + step]) for start in range(0, len(x), step)]
    gradients = np.concatenate(blocks)
    # mixtures of factors have standard errors of the matrices, but scores of the factors
    known = mixture.stderr is not None and rank_of(mixture.covariance_type) is None
    errors = standard_errors(mixture) if known else None
    if gradients.shape[1] > _MAX_PARAMETERS:  # errors as if the parameters were not correlated
        if errors is None:
            raise InputError(
                f"n_samples={size}: errors are estimated for at most {_MAX_PARAMETERS:,} "
                f"parameters; a mixture has {gradients.shape[1]:,}. Give n_samples=None."
            )
        return gradients * errors
    information = (masses[:, None] * gradients).T @ gradients / len(x)
    covariance = likelihood_covariance(information, mixture.n_components)
    if errors is not None:
        covariance = rescaled(covariance, errors)
    elif size is not None:
        covariance /= size
    values, basis = np.linalg.eigh(covariance)
    return np.asarray(gradients @ (basis * np.sqrt(np.maximum(values, 0.0))))


def folded_excess(gap: Array, spread: Array) -> Array:
    """Half of the expected excess of ``|gap + spread Z|`` over ``|gap|``, with normal ``Z``.

    The expected square of the noise is first subtracted from the squared gap: it would hide most of
    the bias where the true gap is zero.

    Parameters
    ----------
    gap, spread
        Differences, and their standard errors, both of any one shape.

    Returns
    -------
    excess
        Excess, of the same shape.
    """
    wide = spread > _NARROW
    ratio = np.divide(np.abs(gap), spread, out=np.full_like(gap, 1.0 / _NARROW), where=wide)
    ratio = np.sqrt(np.maximum(ratio**2 - 1.0, 0.0))
    # spread (phi(t) - t Phi(-t)) with t = |gap| / spread
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2.0 * math.pi)
    return np.asarray(spread * (density - ratio * special.ndtr(-ratio)))


def _from_rows(estimate: NeighborEstimate, kind: str, alpha: float, level: float) -> Divergence:
    largest = largest_value(kind, alpha)
    if kind == "renyi" and alpha < 1.0:
        largest = math.inf
    # few parts leave the standard error uncertain
    reach = float(special.stdtrit(estimate.degrees, 1.0 - 0.5 * level))
    reach *= math.hypot(estimate.standard_error, estimate.bias)
    center = estimate.value - estimate.bias
    low, high = np.clip([center - reach, center + reach], 0.0, largest)
    if kind == "kl" and abs(estimate.bias) > _RULED_BY_BIAS * estimate.standard_error:
        warn_user(
            f"kind='kl' between rows: the bias is about {estimate.bias:.2g}, beyond the standard "
            f"error of {estimate.standard_error:.2g}. Where densities differ much it decreases "
            "slowly, and may be several times as large. Give more rows, or the mixtures that are "
            "decoded from sketches of both."
        )
    return Divergence(
        kind=kind,
        value=estimate.value,
        bias=estimate.bias,
        standard_error=estimate.standard_error,
        simulation_error=None,
        parameter_error=None,
        interval=(float(low), float(high)),
        level=level,
        alpha=alpha if kind in ("renyi", "alpha") else None,
        method="nearest neighbors",
    )


def divergence_matrix(
    distributions: Sequence[Any],
    kind: Kind = "js",
    *,
    alpha: float | None = None,
    n_draws: int | None = None,
    n_neighbors: int | None = None,
    n_rows: int | None = None,
    seed: int = 0,
) -> Array:
    """Estimate the divergences of all pairs of several mixtures, or of several sets of rows.

    Each mixture has one set of draws, which all of its pairs share.

    Parameters
    ----------
    distributions
        Mixtures, or rows in memory or lazy, at least two.
    kind, alpha, n_neighbors, n_rows
        Arguments of :func:`divergence`.
    n_draws
        Number of draws from each mixture, ``>= 100``, 2,000 by default.
    seed
        Seed of the draws, or of the choice and order of rows, ``>= 0``.

    Returns
    -------
    matrix
        Divergences, shape (n, n): entry ``(i, j)`` has distribution ``i`` as ``first`` and ``j`` as
        ``second``. The diagonal is zero, and the matrix of a symmetric kind is symmetric.

    Raises
    ------
    InputError
        If an argument is out of range, the distributions are not all mixtures or all rows, or the
        numbers or names of their features differ.

    Examples
    --------
    >>> mixtures = [GaussianMixture([1.0], [[m]], [[1.0]]) for m in (0.0, 0.1, 3.0)]
    >>> divergence_matrix(mixtures, "tv").round(1)
    array([[0. , 0. , 0.9],
           [0. , 0. , 0.9],
           [0.9, 0.9, 0. ]])
    """
    alpha = checked_kind(kind, alpha)
    seed = require_integer("seed", seed, 0)
    listed = list(distributions)
    if len(listed) < 2:
        raise InputError(f"distributions has {len(listed)} elements: give two or more.")
    mixtures = [each for each in listed if isinstance(each, GaussianMixture)]
    if len(mixtures) == len(listed):
        refuse_unused(_OF_ROWS, n_neighbors=n_neighbors, n_rows=n_rows)
        n_draws = require_integer("n_draws", _N_SHARED_DRAWS if n_draws is None else n_draws, 100)
        with one_blas_thread():
            return _matrix_of_mixtures(mixtures, kind, alpha, n_draws, seed)
    if mixtures:
        raise InputError(
            f"distributions has {len(mixtures)} mixtures and {len(listed) - len(mixtures)} others: "
            "give mixtures only, or rows only."
        )
    refuse_unused(_OF_MIXTURES, n_draws=n_draws)
    n_neighbors = _N_NEIGHBORS if n_neighbors is None else n_neighbors
    rows = _rows_of(
        {f"distributions[{k}]": distribution for k, distribution in enumerate(listed)}, n_rows, seed
    )
    require_neighbors(rows, kind, alpha, n_neighbors)
    rng = np.random.default_rng(seed)
    sides = [Neighbors.of(x[rng.permutation(len(x))], n_neighbors) for x in rows]
    out = np.zeros((len(sides), len(sides)))
    for i, x in enumerate(sides):
        for j, y in enumerate(sides):
            if i != j and not (j < i and kind in SYMMETRIC):
                out[i, j] = x.divergence(y, kind, alpha)
    return out + np.triu(out).T if kind in SYMMETRIC else out


def _matrix_of_mixtures(
    mixtures: list[GaussianMixture], kind: str, alpha: float, n_draws: int, seed: int
) -> Array:
    _require_same_features({f"distributions[{k}]": one for k, one in enumerate(mixtures)})
    densities = [mixture.density() for mixture in mixtures]
    draws = [mixture.sample(n_draws, seed=seed) for mixture in mixtures]
    own = [density.log_total(x) for density, x in zip(densities, draws, strict=True)]
    out = np.zeros((len(mixtures), len(mixtures)))
    for i, j in itertools.combinations(range(len(mixtures)), 2):
        ratios = [own[i] - densities[j].log_total(draws[i])]
        ratios.append(densities[i].log_total(draws[j]) - own[j])
        out[i, j] = _mean_of(kind, np.stack(ratios), alpha)
        if kind not in SYMMETRIC:
            out[j, i] = _mean_of(kind, -np.stack(ratios[::-1]), alpha)
    return out + np.triu(out).T if kind in SYMMETRIC else out


def _mean_of(kind: str, log_ratio: Array, alpha: float) -> float:
    value = float(integrand(kind, log_ratio, alpha).values.mean())
    return _renyi(value, alpha) if kind == "renyi" else value
