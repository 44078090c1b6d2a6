"""Errors of random Fourier features, and numbers of features for a given error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.tables import names_in, require_common_names

Array = NDArray[np.float64]
Kernel = Callable[[Array], Array]
Form = Literal["sine-cosine", "offset"]
FORMS = ("sine-cosine", "offset")
_MAX_TERMS = 2**27  # pairs of pairs of points
_NUMBERS = 2**21  # shifts in memory at once


def random_features(
    x: ArrayLike, frequencies: ArrayLike, offsets: ArrayLike | None = None
) -> Array:
    """Compute random Fourier features of rows, whose inner products approximate a kernel.

    There are two forms: sines and cosines, or cosines with random offsets. Sketches of this package
    are means of the first form. ``RBFSampler`` of scikit-learn uses the second. For the same number
    of features, the first form has the smaller error for most kernels, see
    :func:`is_sine_cosine_better`.

    Parameters
    ----------
    x
        Rows, shape (n_samples, n_features).
    frequencies
        Frequencies, shape (n_features, n_frequencies), drawn from the spectral distribution of the
        kernel.
    offsets
        Phases, uniform from 0 to ``2 pi``, shape (n_frequencies,), for the second form; None for
        the first form.

    Returns
    -------
    features
        Sines and cosines, shape (n_samples, 2 * n_frequencies), eq. (3.1) of Sutherland (2016); or
        cosines with offsets, shape (n_samples, n_frequencies), eq. (3.2).

    Raises
    ------
    InputError
        If the shapes do not go together.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(2, 3))
    >>> features = random_features(x, rng.normal(size=(3, 2000)))
    >>> exact = np.exp(-0.5 * np.sum((x[0] - x[1]) ** 2))
    >>> bool(abs(features[0] @ features[1] - exact) < 0.1)
    True
    """
    rows = np.asarray(x, dtype=np.float64)
    omega = np.asarray(frequencies, dtype=np.float64)
    if rows.ndim != 2 or omega.ndim != 2 or rows.shape[1] != omega.shape[0]:
        raise InputError(
            f"frequencies has shape {omega.shape}, x {rows.shape}: give frequencies of shape "
            "(n_features, n_frequencies) and x of shape (n_samples, n_features).",
            parameter="frequencies",
        )
    angles = rows @ omega
    m = omega.shape[1]
    if offsets is None:
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1) / math.sqrt(m)
    phases = np.asarray(offsets, dtype=np.float64)
    if phases.shape != (m,):
        raise InputError(
            f"offsets has shape {phases.shape} for {m} frequencies: give one for each.",
            parameter="offsets",
        )
    return np.asarray(math.sqrt(2.0 / m) * np.cos(angles + phases))


def _require_form(form: str) -> None:
    if form not in FORMS:
        raise InputError(f"form={form!r}: choose 'sine-cosine' or 'offset'.")


def kernel_variance(
    kernel: Kernel, shifts: ArrayLike, n_frequencies: int, form: Form = "sine-cosine"
) -> Array:
    """Variance over random frequencies of the kernel value that random features approximate.

    Parameters
    ----------
    kernel
        Kernel as a function of shifts, from shape (..., n_features) to (...); one at zero.
    shifts
        Differences of two points, shape (..., n_features).
    n_frequencies
        Number of independent frequencies, ``>= 1``.
    form
        ``"sine-cosine"`` or ``"offset"``, see :func:`random_features`.

    Returns
    -------
    variance
        Variances, shape (...), eq. (3.4) and (3.6) of Sutherland (2016).

    Raises
    ------
    InputError
        If the form or the number of frequencies is out of range.

    Examples
    --------
    >>> def gaussian(shifts):
    ...     return np.exp(-0.5 * np.sum(shifts**2, axis=-1))
    >>> kernel_variance(gaussian, [[0.0], [1.0]], 100)
    array([0.        , 0.00199788])
    >>> kernel_variance(gaussian, [[0.0], [1.0]], 200, "offset")  # as many features
    array([0.0025    , 0.00349894])
    """
    _require_form(form)
    m = require_integer("n_frequencies", n_frequencies, 1)
    delta = np.asarray(shifts, dtype=np.float64)
    value, twice = kernel(delta), kernel(2.0 * delta)
    if form == "sine-cosine":
        return np.asarray((1.0 + twice - 2.0 * value**2) / (2 * m))
    return np.asarray((1.0 + 0.5 * twice - value**2) / m)


def is_sine_cosine_better(kernel: Kernel, shifts: ArrayLike) -> NDArray[np.bool_]:
    """Whether sines and cosines have at most the error of the same number of cosines with offsets.

    This holds at all shifts for Gaussian, Laplace and Matérn kernels; for any kernel where its
    value is above 0.71, and where its value at twice the shift is not positive. It fails for some
    mixtures of bandwidths.

    Parameters
    ----------
    kernel
        Kernel as a function of shifts, from shape (..., n_features) to (...); one at zero.
    shifts
        Differences of two points, shape (..., n_features).

    Returns
    -------
    better
        Whether ``k(2 shift) <= 2 k(shift)**2``, Definition 3.1 of Sutherland (2016), bool, shape
        (...).

    Examples
    --------
    >>> shifts = np.linspace(0.0, 5.0, 50)[:, None]
    >>> def of_two_bandwidths(shifts):
    ...     squares = np.sum(shifts**2, axis=-1)
    ...     return 0.9 * np.exp(-squares / 2) + 0.1 * np.exp(-squares / 200)
    >>> bool(is_sine_cosine_better(of_two_bandwidths, shifts).all())
    False
    """
    delta = np.asarray(shifts, dtype=np.float64)
    return np.asarray(kernel(2.0 * delta) <= 2.0 * kernel(delta) ** 2)


def mean_map_variance(
    kernel: Kernel,
    x: ArrayLike,
    y: ArrayLike,
    n_frequencies: int,
    form: Form = "sine-cosine",
    quantity: Literal["kernel", "squared-mmd"] = "kernel",
) -> float:
    """Exact variance over random frequencies of a comparison of two small samples.

    The time grows with the fourth power of the sizes. For sketches of any size, the attribute
    ``feature_error`` of the result of :func:`estimate_mmd` is an estimate.

    Parameters
    ----------
    kernel
        Kernel as a function of shifts, from shape (..., n_features) to (...); one at zero.
    x, y
        Samples, shape (n_samples, n_features), a few dozen rows each.
    n_frequencies
        Number of independent frequencies, ``>= 1``.
    form
        ``"sine-cosine"`` or ``"offset"``, see :func:`random_features`.
    quantity
        ``"kernel"`` for the mean map kernel, eq. (4.4) and (4.5) of Sutherland (2016); or
        ``"squared-mmd"`` for the squared distance of the mean features.

    Returns
    -------
    variance
        Variance of the quantity.

    Raises
    ------
    InputError
        If an argument is out of range, or the samples are too large.

    Examples
    --------
    >>> def gaussian(shifts):
    ...     return np.exp(-0.5 * np.sum(shifts**2, axis=-1))
    >>> x, y = np.random.default_rng(0).normal(size=(2, 5, 2))
    >>> mean_map_variance(gaussian, x, y, 100) < float(kernel_variance(gaussian, [9.0, 9.0], 100))
    True
    """
    _require_form(form)
    m = require_integer("n_frequencies", n_frequencies, 1)
    require_common_names({"x": names_in(x), "y": names_in(y)})
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if quantity == "kernel":
        left, right = a, b
        weights = np.full(len(a) * len(b), 1.0 / (len(a) * len(b)))
    elif quantity == "squared-mmd":
        left = right = np.concatenate([a, b])
        signs = np.repeat([1.0 / len(a), -1.0 / len(b)], [len(a), len(b)])
        weights = np.outer(signs, signs).ravel()
    else:
        raise InputError(f"quantity={quantity!r}: choose 'kernel' or 'squared-mmd'.")
    n_pairs = len(weights)
    if n_pairs**2 > _MAX_TERMS:
        raise InputError(
            f"x has {len(a):,} rows, y {len(b):,}: their variance is a sum of "
            f"{float(n_pairs) ** 2:.2g} terms. Give a few dozen rows of each.",
            parameter="x",
        )
    shifts = (left[:, None] - right).reshape(n_pairs, -1)
    sums = (left[:, None] + right).reshape(n_pairs, -1)
    value, total = kernel(shifts), 0.0
    step = max(_NUMBERS // n_pairs, 1)
    for start in range(0, n_pairs, step):
        block = slice(start, start + step)
        apart = kernel(shifts[block, None] - shifts) + kernel(shifts[block, None] + shifts)
        if form == "sine-cosine":  # eq. (3.3)
            covariance = 0.5 * apart - np.outer(value[block], value)
        else:  # eq. (3.5)
            covariance = 0.5 * apart - np.outer(value[block], value)
            covariance += 0.5 * kernel(sums[block, None] - sums)
        total += float(weights[block] @ covariance @ weights)
    return total / m


def required_frequencies(
    error: float,
    probability: float = 0.05,
    *,
    quantity: Literal["mean-map", "mmd", "squared-mmd", "kernel"] = "mean-map",
    form: Form = "sine-cosine",
    variance: float | None = None,
    n_features: int | None = None,
    reach: float | None = None,
) -> int:
    """Number of random frequencies that keep an error in bounds with high probability.

    The bounds hold for any samples, and are far from sharp: errors are typically a few times
    smaller.

    Parameters
    ----------
    error
        Largest absolute error, above 0.
    probability
        Probability of a larger error, in (0, 1).
    quantity
        ``"mean-map"`` for the mean map kernel of two fixed samples (Proposition 4.5); ``"mmd"`` for
        their discrepancy; ``"squared-mmd"`` for the squared discrepancy (Corollary 4.6); or
        ``"kernel"`` for the kernel at all pairs of points of a domain at once (Propositions 3.6 and
        3.7).
    form
        ``"sine-cosine"`` or ``"offset"``, see :func:`random_features`.
    variance
        Largest variance of the quantity with a single frequency, from :func:`kernel_variance` or
        :func:`mean_map_variance` with ``n_frequencies=1``. The number is smaller if the variance is
        known. By default, it is unknown. It is refused for discrepancies.
    n_features
        Number of features of the data, for ``"kernel"``.
    reach
        Diameter of the domain times the root of the mean squared length of the frequencies, for
        ``"kernel"``; for a Gaussian kernel, ``diameter * sqrt(n_features) / bandwidth``.

    Returns
    -------
    n_frequencies
        Number of independent frequencies.

    Raises
    ------
    InputError
        If an argument is out of range, or missing for ``"kernel"``.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, Propositions 3.6,
    3.7 and 4.5, and Corollary 4.6. The bounds of the centred terms in Bernstein's inequality are
    corrected, from 1 to 2 and from 2 to 3. For ``"mmd"``, Corollary 4.8 and its proof are in error.
    The number here follows from Bernstein's inequality for the square. Its terms are not negative,
    so that their variance is at most their largest value times their mean. The lower tail is the
    larger one (Maurer 2003, A bound on the deviation probability for sums of non-negative random
    variables).

    Examples
    --------
    >>> required_frequencies(0.1), required_frequencies(0.1, form="offset")
    (738, 2952)
    >>> required_frequencies(0.1, quantity="mmd")
    2952
    >>> required_frequencies(0.1, quantity="kernel", n_features=1, reach=6.0)
    9853
    """
    _require_form(form)
    error = require_number("error", error, 0.0, math.inf, strict=True)
    probability = require_number("probability", probability, 0.0, 1.0, strict=True)
    if variance is not None:
        variance = require_number("variance", variance, 0.0, math.inf)
    if quantity == "kernel":
        if n_features is None or reach is None:
            raise InputError(
                f"n_features={n_features!r} and reach={reach!r}: quantity='kernel' needs both."
            )
        d = require_integer("n_features", n_features, 1)
        reach = require_number("reach", reach, 0.0, math.inf, strict=True)
        number = _for_kernel(error, probability, form, variance, d, reach)
    elif quantity == "mean-map":
        number = _exponent(error, form, variance) * math.log(2.0 / probability) / error**2
    elif quantity in ("mmd", "squared-mmd") and variance is not None:
        raise InputError(
            f"variance={variance:g}: the bound of {quantity!r} does not use it. Leave it out."
        )
    elif quantity == "squared-mmd":
        number = 16.0 * _exponent(error, form, None) * math.log(6.0 / probability) / error**2
    elif quantity == "mmd":  # a square is a mean of terms of at most 4, with offsets 8
        number = 16.0 * math.log(2.0 / probability) / error**2
    else:
        raise InputError(
            f"quantity={quantity!r}: choose 'mean-map', 'mmd', 'squared-mmd' or 'kernel'."
        )
    return max(math.ceil(number / 2.0 if form == "sine-cosine" else number), 1)


def _exponent(error: float, form: str, variance: float | None) -> float:
    """Constant of Proposition 4.5: Hoeffding's, or Bernstein's if it is smaller."""
    if form == "sine-cosine":  # variances of a frequency are half of those of a feature
        return 4.0 if variance is None else min(4.0, 4.0 * variance + 8.0 / 3.0 * error)
    return 8.0 if variance is None else min(8.0, 2.0 * variance + 2.0 * error)


def _for_kernel(
    error: float, probability: float, form: str, variance: float | None, d: int, reach: float
) -> float:
    """Number of features of Propositions 3.6 and 3.7."""
    ratio = max(reach / error, 1.0)
    if form == "sine-cosine":
        constant = (0.5 * d) ** (-d / (d + 2)) + (0.5 * d) ** (2 / (d + 2))
        constant *= 2.0 ** ((6 * d + 2) / (d + 2))
        alpha = 1.0 if variance is None else min(1.0, variance + error / 3.0)
        factor, power = 8.0 * (d + 2) * alpha, 2.0 / (1.0 + 2.0 / d)
    else:
        constant = d ** (-d / (d + 1)) + d ** (1 / (d + 1))
        constant *= 2.0 ** ((5 * d + 1) / (d + 1)) * 3.0 ** (d / (d + 1))
        alpha = 1.0 if variance is None else min(1.0, 0.25 * variance + error / 8.0)
        factor, power = 32.0 * (d + 1) * alpha, 2.0 / (1.0 + 1.0 / d)
    terms = power * math.log(ratio) + math.log(constant / probability)
    return factor * max(terms, 0.0) / error**2
