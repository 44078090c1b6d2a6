"""Frequency distributions (Keriven et al. 2018, section 3.3).

All distributions are adapted to the covariances that the components of a mixture are expected to
have, never to their means: ``omega = R * Sigma**(-1/2) * phi`` with ``phi`` uniform on the sphere
(eq. 16). They differ in the distribution of the radius ``R``. For several covariances the
distribution is their mixture (eq. 18). To add a distribution, add its name to
:mod:`dask_sketch.validation.choices`, and its radius to :func:`sample_frequencies`.

``sparse-radius``, which is not from the papers, is the adapted radius in directions that use at
most four features, chosen anew for each frequency. Frequencies of few features determine a diagonal
covariance better: if a direction involves all ``d`` features, each variance contributes only a
fraction ``1 / d`` of the squared radius. Asymptotic variance of the decoded mixture on the mixtures
of sec. 5.1, mean ln symmetric KL at n = 300,000, isotropic scale, compared with the adapted radius:
by least squares -7.36 against -7.03 (d=10, K=5, m=525) and -6.90 against -6.43 (d=20, K=5, m=2050);
by efficient refinement -7.75 against -7.61 and -7.17 against -6.97. It also tolerates a scale that
is wrong by a third in either direction. With four features or fewer the two distributions are the
same.

``sparse-windows`` is the same for maps of many features that are made without data, which a decoder
searches window by window: a fifth of the frequencies have their features in the first of the
windows of :func:`feature_windows`, and two fifths in the others, in equal parts. The rest have
features at random, since no frequency of a window says how features of different windows depend on
each other.

``sparse-sums``, which is not either: groups of 32 frequencies ``u_i + v_j`` and ``u_i - v_j`` of
eight base frequencies, each of the adapted radius over ``sqrt(2)`` in a direction of at most two
features. They are as good as ``sparse-radius``: for five decoded mixtures, -7.39 against -7.40 by
least squares and -7.77 against -7.77 refined (d=10), in a third of the time of a sketch (d=10; a
fifteenth at d=128): see :mod:`dask_sketch.features.kernels.structured`. Features are dealt from a
shuffled deck and radii are stratified; with independent draws, dependence within groups costs 0.05
to 0.3 in ln KL. There are no Gaussian sums for clustering, because they lose a cluster now and then
with few frequencies.

``dense-sums`` has such groups, too, but base frequencies of all features, for mixtures with
covariance matrices: a direction in which a component is narrow may involve all features, and then
no frequency of few features is along it. Asymptotic loss of the decoded mixture, in units of that
of maximum likelihood, with five frequencies for each parameter (d=8, K=5, overlapping, eigenvalues
of 0.005 to 2.5, two mixtures): 1.5 and 1.1, and 2.3 and 1.2 with ``sparse-sums``.

``gaussian-marginals``, for comparisons, is Gaussian with some frequencies of single features, which
tell in which of them the shape differs.

``gaussian-pairs``, for comparisons too, are the sums and differences of all pairs of such base
frequencies, so that the sketch holds the second moments of the features of the base frequencies:
see :mod:`dask_sketch.features.frequency_pairs`.

``clustering`` is the distribution of Gribonval et al. (2017), section 4, with weights of the
features: :func:`importance_weights`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dask_sketch.errors import InputError
from dask_sketch.features.frequency_pairs import combine_pairs, n_blocks_of_pairs
from dask_sketch.features.kernels.structured_frequencies import SIDE, combine, n_groups
from dask_sketch.validation.categories import Categories
from dask_sketch.validation.choices import DISTRIBUTIONS

# Features of one direction of sparse-radius. Three are worse than five by least squares, and five
# are worse than three by efficient refinement; with one or two, dependence of features is lost.
FEW = 4
# Features of a window of sparse-windows, and how many of them are not in the window before. Where
# six are not, the others do not tell apart 64 clusters, ten standard deviations apart in all of 50
# features.
WINDOW, _SHIFT = 12, 4
# Cumulative fractions of the frequencies of sparse-windows, with any features and in the first
# window, and one over the fraction of the others.
_ANY_FEATURES, _FIRST_WINDOW, _OTHERS = 0.4, 0.6, 2.5
# Frequencies for each feature from which sparse-sums are as good: at 10, a feature is in too few
# base frequencies, which costs 0.2 to 0.4 in ln KL (d=30, K=1).
_MANY = 20
# Cumulative probabilities of two and three features of a frequency where some are categorical; four
# have the rest.
_FRACTIONS = (0.45, 0.9)
# Q(3/2, 2) as SciPy has it on processors of the x86-64 family. The true value is 10 units of the
# last place less; signs of zeros in sparse-sums, and so digests, depend on these bits.
_TAIL = float.fromhex("0x1.0bbd40bcd5880p-2")

# Frequencies of "gaussian-marginals" of each feature alone, at most, and at least if there are any.
_MARGINALS, _FEW_MARGINALS = 16, 4


def default_distribution(n_features: int, n_frequencies: int, task: str = "mixture") -> str:
    """Default distribution of :func:`dask_sketch.design`.

    Examples
    --------
    >>> default_distribution(10, 525), default_distribution(10, 105)
    ('sparse-sums', 'sparse-radius')
    >>> default_distribution(10, 275, "clustering")
    'gaussian'
    """
    if task == "comparison":
        return "gaussian-marginals"
    if task == "clustering":
        return "gaussian"
    enough = n_features > 1 and n_frequencies >= _MANY * n_features
    return "sparse-sums" if enough else "sparse-radius"


def adapted_radius(uniform: ArrayLike) -> NDArray[np.float64]:
    """Quantile function of the adapted radius, eq. (17).

    The density is ``C * sqrt(R**2 + R**4 / 4) * exp(-R**2 / 2)``. With ``u = 1 + R**2 / 4`` it
    becomes a Gamma(3/2, rate 2) distribution truncated to ``u >= 1``, whose quantiles are known, so
    that sampling is exact, without rejection.

    Parameters
    ----------
    uniform
        Probabilities in [0, 1), any shape.

    Returns
    -------
    radius
        Radii of the same shape, ``>= 0``, in units of one over a standard deviation.

    Examples
    --------
    >>> round(float(adapted_radius(0.5)), 5)
    1.27903
    """
    tail = _TAIL * (1.0 - np.asarray(uniform, dtype=np.float64))
    u = 0.5 * special.gammainccinv(1.5, tail)
    return np.asarray(2.0 * np.sqrt(np.maximum(u - 1.0, 0.0)))


def clustering_radius(label: ArrayLike, uniform: ArrayLike, n_features: int) -> NDArray[np.float64]:
    """Radius of the distribution of Gribonval et al. (2017) for clustering, eq. (40) and (42).

    Its density is ``C * (1 + R**2 / d)**2 * R**(d - 1) * exp(-R**2 / 2)``. Expanding the square
    shows a mixture of three chi distributions, of ``d``, ``d + 2`` and ``d + 4`` degrees of
    freedom, so that draws are exact and none is rejected.

    Parameters
    ----------
    label
        Probabilities in [0, 1) that select one of the three, any shape.
    uniform
        Probabilities in [0, 1) of the quantile of that distribution, same shape.
    n_features
        Number of features ``d``.

    Returns
    -------
    radius
        Radii of the same shape, ``>= 0``, in units of one over the kernel's bandwidth.

    Examples
    --------
    >>> round(float(clustering_radius(0.5, 0.5, n_features=2)), 5)
    1.83213
    """
    weights = np.array([1.0, 2.0, 1.0 + 2.0 / n_features])
    edges = np.cumsum(weights / weights.sum())[:-1]
    half = 0.5 * n_features + np.searchsorted(edges, np.asarray(label), side="right")
    return np.asarray(np.sqrt(2.0 * special.gammaincinv(half, np.asarray(uniform))))


def importance_weights(
    frequencies: ArrayLike, covariances: ArrayLike, weights: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Weights ``C / w(omega)`` of the features of the clustering distribution, eq. (41) and (42).

    With ``w(omega) = 1 + omega' Sigma omega / d`` and ``C = sqrt(4 + 2 / d)``: the paper prints
    ``2 / d**2``, with which the kernel of the features would not be one at zero. Features with
    these weights have the kernel ``exp(-(x - y)' Sigma**-1 (x - y) / 2)``, whatever ``w``.

    Parameters
    ----------
    frequencies
        Frequencies sampled from the distribution ``"clustering"``, shape (n_features,
        n_frequencies).
    covariances, weights
        As for :func:`sample_frequencies`. For a mixture of distributions the weight is the square
        root of the ratio of two densities: of the mixture of the Gaussian distributions, and of the
        draw.

    Returns
    -------
    weights
        Positive weights, shape (n_frequencies,), whose mean square is near one.

    Examples
    --------
    >>> omega = sample_frequencies("clustering", [1.0, 1.0], 20_000, seed=0)
    >>> round(float(np.square(importance_weights(omega, [1.0, 1.0])).mean()), 2)
    1.0
    """
    omega = np.asarray(frequencies, dtype=np.float64)
    variances = np.atleast_2d(np.asarray(covariances, dtype=np.float64))
    n_features = len(omega)
    density_weights = (
        np.full(len(variances), 1.0) if weights is None else np.asarray(weights, dtype=float)
    )
    squares = variances @ omega**2
    boost = np.square(1.0 + squares / n_features) / (4.0 + 2.0 / n_features)
    exponent = 0.5 * np.log(variances).sum(axis=1)[:, None] - 0.5 * squares
    density = density_weights[:, None] * np.exp(exponent - exponent.max(axis=0))
    return np.asarray(np.sqrt(density.sum(axis=0) / (density * boost).sum(axis=0)))


def sample_frequencies(
    distribution: str,
    covariances: ArrayLike,
    n_frequencies: int,
    *,
    weights: ArrayLike | None = None,
    seed: int = 0,
    axes: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Sample frequencies for one or several diagonal covariances (function DrawFreq, eq. 16-18).

    Parameters
    ----------
    distribution
        Frequency distribution: ``"adapted-radius"``; ``"sparse-radius"`` (the adapted radius in
        directions of at most four features, for mixtures with diagonal covariances);
        ``"sparse-windows"`` (the same, but 60 % of them have features of one window);
        ``"sparse-sums"`` (nearly the same, from sums and differences of a few base frequencies,
        which are faster to sketch); ``"dense-sums"`` (such sums of base frequencies of all
        features); ``"folded-gaussian"`` (radius ``|N(0, 1)|``); ``"gaussian"``
        (``omega ~ N(0, Sigma**-1)``: features with a Gaussian kernel of covariance ``Sigma``);
        ``"gaussian-marginals"`` (the same, but up to a quarter of them have one feature alone, 4 to
        16 for each); ``"gaussian-pairs"`` (all sums and differences of a few of these); or
        ``"clustering"`` (the same kernel from weighted features, see
        :func:`importance_weights`).
    covariances
        Variances, shape (n_features,), or (n_distributions, n_features) for a mixture of
        distributions.
    n_frequencies
        Number of frequencies, ``>= 1``; of ``"gaussian-pairs"``, ``b (b + 4)`` for ``b = 4, 8,
        12, ...`` base frequencies.
    weights
        Probabilities of the distributions of a mixture, shape (n_distributions,); equal when not
        given.
    seed
        Seed of the random generator.
    axes
        For ``"dense-sums"``: matrices of which one multiplies the base frequencies of each group,
        in place of one over the standard deviations, shape (n_axes, n_features, n_features).

    Returns
    -------
    frequencies
        Frequencies, shape (n_features, n_frequencies), radians per unit of the data.

    Raises
    ------
    InputError
        For an unknown distribution, or a number of frequencies that it cannot have.

    Examples
    --------
    >>> sample_frequencies("adapted-radius", [1.0, 4.0], 5, seed=1).shape
    (2, 5)
    """
    if distribution not in DISTRIBUTIONS:
        raise InputError(
            f"distribution={distribution!r} is unknown; choose one of {', '.join(DISTRIBUTIONS)}."
        )
    variances = np.atleast_2d(np.asarray(covariances, dtype=np.float64))
    rng = np.random.default_rng(seed)
    if distribution == "sparse-sums":
        return _sparse_sums(rng, variances, weights, n_frequencies)
    if distribution == "dense-sums":
        return _dense_sums(rng, variances, weights, n_frequencies, axes)
    if distribution == "gaussian-pairs":
        return _gaussian_pairs(rng, variances, weights, n_frequencies)
    chosen = variances[_labels(rng, len(variances), weights, n_frequencies)]
    normal = rng.standard_normal((n_frequencies, variances.shape[1]))
    if distribution == "gaussian-marginals":
        _keep_one_feature(normal)
    elif distribution != "gaussian":
        uniform = rng.random(n_frequencies)
        if distribution == "folded-gaussian":
            radius = np.asarray(special.ndtri(0.5 + uniform / 2))
        elif distribution == "clustering":
            radius = clustering_radius(rng.random(n_frequencies), uniform, normal.shape[1])
        else:
            radii = ("adapted-radius", "sparse-radius", "sparse-windows")
            assert distribution in radii, distribution
            radius = adapted_radius(uniform)
        if distribution == "sparse-radius":
            order = rng.random(normal.shape).argsort(axis=1)
            normal[order >= FEW] = 0.0
        elif distribution == "sparse-windows":  # features outside of the window have last ranks
            ranked = rng.random(normal.shape) + _outside_of_windows(rng, normal.shape)
            normal[ranked.argsort(axis=1).argsort(axis=1) >= FEW] = 0.0
        normal *= (radius / np.linalg.norm(normal, axis=1))[:, None]
    return np.ascontiguousarray((normal / np.sqrt(chosen)).T)


def feature_windows(n_features: int) -> NDArray[np.intp]:
    """Windows of neighbouring features, each of which shares features with the one before.

    Parameters
    ----------
    n_features
        Number of features; one window has them all if they are no more than ``WINDOW``.

    Returns
    -------
    windows
        Numbers of the features of each window, shape (n_windows, min(WINDOW, n_features)).

    Examples
    --------
    >>> feature_windows(20)[:, [0, -1]].tolist()
    [[0, 11], [4, 15], [8, 19]]
    """
    size = min(WINDOW, n_features)
    starts = np.unique(np.minimum(np.arange(0, n_features, _SHIFT), n_features - size))
    return starts[:, None] + np.arange(size)


def _outside_of_windows(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Whether a feature is outside of the window of a frequency; some frequencies have none."""
    windows = feature_windows(shape[1])
    inside = np.zeros((len(windows), shape[1]), dtype=bool)
    inside[np.arange(len(windows))[:, None], windows] = True
    uniform = rng.random(shape[0])
    others = np.maximum(uniform - _FIRST_WINDOW, 0.0) * _OTHERS * (len(windows) - 1)
    return ~inside[np.ceil(others).astype(np.intp)] & (uniform >= _ANY_FEATURES)[:, None]


def sample_mixed(
    distribution: str,
    covariances: ArrayLike,
    categories: Categories,
    n_frequencies: int,
    *,
    weights: ArrayLike | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Sample frequencies in cycles for numeric and categorical features.

    The coordinate of a categorical feature of ``L`` levels is ``h / L`` with an integer ``h``, or
    zero. With ``"sparse-radius"`` the first frequencies are the characters of single columns, at
    most half of all, and the others use two to four features: these determine latent classes, which
    pairs alone do not. Half of those with numeric features use no others. Of six columns with four
    levels and four classes, m = 380, the variances of the probabilities are 1.2 times those of
    maximum likelihood in the median (7 if all frequencies used four features). Frequencies that
    repeat others are taken last. With ``"gaussian"`` each categorical feature is used with
    probability one half; the kernel of the features is the Gaussian one of the numeric features,
    times one half for each categorical one that differs.

    Parameters
    ----------
    distribution
        ``"sparse-radius"`` or ``"gaussian"``.
    covariances, n_frequencies, weights, seed
        Arguments of :func:`sample_frequencies`; variances of categorical features have no effect.
    categories
        Levels of the categorical features.

    Returns
    -------
    cycles
        Frequencies over ``2 pi``, shape (n_features, n_frequencies).

    Examples
    --------
    >>> levels = Categories((None, ("red", "green", "blue")))
    >>> cycles = sample_mixed("sparse-radius", [1.0, 1.0], levels, 5)
    >>> cycles.shape, float((cycles[1] * 3).round(6)[0])
    ((2, 5), 1.0)
    """
    variances = np.atleast_2d(np.asarray(covariances, dtype=np.float64))
    rng = np.random.default_rng(seed)
    d, n = variances.shape[1], 4 * n_frequencies
    chosen = variances[_labels(rng, len(variances), weights, n)]
    normal = rng.standard_normal((n, d))
    numeric, columns = categories.numeric, categories.columns
    if distribution == "gaussian":
        used = rng.random((n, d)) < 0.5
        used[:, numeric] = True
    else:
        sizes = np.minimum(np.searchsorted(_FRACTIONS, rng.random(n), side="right") + 2, d)
        used = rng.random((n, d)).argsort(axis=1) < sizes[:, None]
        # a level that is independent of a number says nothing about it, and hides it if it is
        # uniform
        alone = used[:, numeric].any(axis=1) & (rng.random(n) < 0.5)
        used[np.ix_(alone, columns)] = False
        radius = adapted_radius(rng.random(n))
        normal = np.where(used, normal, 0.0)
        norms = np.linalg.norm(normal[:, numeric], axis=1)
        normal *= (radius / np.where(norms > 0.0, norms, 1.0))[:, None]
    cycles = normal / np.sqrt(chosen) / (2.0 * np.pi)
    levels = np.array(categories.sizes)
    uniform = rng.random((n, len(columns)))
    positive = distribution != "gaussian"  # h from 1 to L - 1, or from 0
    h = np.floor(uniform * (levels - positive)) + positive
    h = np.where(used[:, columns], h - levels * (2 * h > levels), 0.0)
    cycles[:, columns] = h / levels
    if distribution == "gaussian":
        return np.ascontiguousarray(cycles[:n_frequencies].T)
    cycles = np.concatenate([_characters(categories)[: max(n_frequencies // 2, 1)], cycles])
    # one sign for a frequency and its negative, whose features are conjugate
    first = np.take_along_axis(cycles, (cycles != 0.0).argmax(axis=1)[:, None], axis=1)
    _, index = np.unique(cycles * np.where(first < 0.0, -1.0, 1.0), axis=0, return_index=True)
    repeated = np.ones(len(cycles), dtype=bool)
    repeated[index] = False
    order = np.argsort(repeated, kind="stable")[:n_frequencies]
    return np.ascontiguousarray(cycles[order].T)


def _characters(categories: Categories) -> NDArray[np.float64]:
    """Characters of single columns in cycles, one of each conjugate pair, low orders first."""
    pairs = [
        (order, column, order / size)
        for column, size in zip(categories.columns, categories.sizes, strict=True)
        for order in range(1, size // 2 + 1)
    ]
    out = np.zeros((len(pairs), categories.n_features))
    for row, (_, column, value) in enumerate(sorted(pairs)):
        out[row, column] = value
    return out


def _sparse_sums(
    rng: np.random.Generator,
    variances: NDArray[np.float64],
    weights: ArrayLike | None,
    n_frequencies: int,
) -> NDArray[np.float64]:
    """Sample structured frequencies; each group for one distribution of the mixture."""
    groups, d = n_groups(n_frequencies), variances.shape[1]
    n = groups * SIDE
    sides = []
    for _ in range(2):
        # two cards for each direction, which may be the same feature at the end of a deck
        deck = np.concatenate([rng.permutation(d) for _ in range(-(-2 * n // d))])
        normal = np.zeros((n, d))
        for cards in (deck[: 2 * n : 2], deck[1 : 2 * n : 2]):
            normal[np.arange(n), cards] = rng.standard_normal(n)
        radius = adapted_radius(_strata(rng, n)) * np.sqrt(0.5)
        normal *= (radius / np.linalg.norm(normal, axis=1))[:, None]
        sides.append(normal.reshape(groups, SIDE, d))
    chosen = variances[_distributions(_strata(rng, groups), len(variances), weights)]
    bases = np.stack(sides, axis=1) / np.sqrt(chosen)[:, None, None]
    return combine(bases, n_frequencies)


def _dense_sums(
    rng: np.random.Generator,
    variances: NDArray[np.float64],
    weights: ArrayLike | None,
    n_frequencies: int,
    axes: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """Sample structured frequencies of all features; each group for one matrix, or distribution."""
    groups, d = n_groups(n_frequencies), variances.shape[1]
    n = groups * SIDE
    sides = []
    for _ in range(2):
        normal = rng.standard_normal((n, d))
        radius = adapted_radius(_strata(rng, n)) * np.sqrt(0.5)
        normal *= (radius / np.linalg.norm(normal, axis=1))[:, None]
        sides.append(normal.reshape(groups, SIDE, d))
    bases, uniform = np.stack(sides, axis=1), _strata(rng, groups)
    if axes is None:
        chosen = _distributions(uniform, len(variances), weights)
        return combine(bases / np.sqrt(variances[chosen])[:, None, None], n_frequencies)
    chosen = _distributions(uniform, len(axes), None)
    # feature by feature: the last bits of a product of matrices depend on the processor
    rotated = np.zeros_like(bases)
    for feature in range(d):
        rotated += axes[chosen][:, None, None, :, feature] * bases[..., feature, None]
    return combine(rotated, n_frequencies)


def _gaussian_pairs(
    rng: np.random.Generator,
    variances: NDArray[np.float64],
    weights: ArrayLike | None,
    n_frequencies: int,
) -> NDArray[np.float64]:
    """Sample base frequencies, the first of them zero, and combine them to pairs."""
    n = SIDE * n_blocks_of_pairs(n_frequencies)
    chosen = variances[_distributions(_strata(rng, n), len(variances), weights)]
    normal = rng.standard_normal((n, variances.shape[1]))
    _keep_one_feature(normal)
    normal[0] = 0.0  # its sums are the base frequencies themselves
    return combine_pairs(normal / np.sqrt(chosen))


def min_with_marginals(n_features: int) -> int:
    """Smallest number of frequencies of which "gaussian-marginals" has some of single features.

    Parameters
    ----------
    n_features
        Number of features, ``>= 2``.
    """
    return 4 * _FEW_MARGINALS * n_features


def _keep_one_feature(normal: NDArray[np.float64]) -> None:
    """Leave one feature to the last of the rows, which get as long as the rows of all features."""
    m, d = normal.shape
    each = min(_MARGINALS, m // 4 // d)
    n = d * each if d > 1 and each >= _FEW_MARGINALS else 0
    last = normal[m - n :]
    last[:] = np.where(np.arange(d) == np.arange(n)[:, None] % d, np.sqrt(d) * last, 0.0)


def _strata(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Sample one uniform number in each of ``n`` equal parts of [0, 1), in random order."""
    return (rng.permutation(n) + rng.random(n)) / n


def _labels(
    rng: np.random.Generator, n_distributions: int, weights: ArrayLike | None, n_frequencies: int
) -> NDArray[np.intp]:
    """Sample the number of a distribution of the mixture for each frequency."""
    if n_distributions == 1:
        return np.zeros(n_frequencies, dtype=np.intp)
    return _distributions(rng.random(n_frequencies), n_distributions, weights)


def _distributions(
    uniform: NDArray[np.float64], n_distributions: int, weights: ArrayLike | None
) -> NDArray[np.intp]:
    """Number of the distribution at each quantile of the weights."""
    density_weights = (
        np.full(n_distributions, 1.0) if weights is None else np.asarray(weights, dtype=np.float64)
    )
    edges = np.cumsum(density_weights / density_weights.sum())[:-1]
    return np.searchsorted(edges, uniform, side="right")
