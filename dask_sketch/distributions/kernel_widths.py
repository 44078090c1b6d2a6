"""Feature maps of kernels that are mixtures of Gaussian kernels of several widths."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dask_sketch.errors import InputError
from dask_sketch.validation.arrays import require_integer, require_number

KernelName = Literal["gaussian", "laplace", "matern", "rational-quadratic"]
KERNELS: tuple[str, ...] = get_args(KernelName)


def kernel_covariances(
    kernel: KernelName, length_scale: ArrayLike, *, order: float = 1.5, n_scales: int = 64
) -> NDArray[np.float64]:
    """Compute the covariances with which a feature map has a given kernel.

    The kernels are the kernels of scikit-learn's Gaussian processes. They depend on the distance
    ``r`` of two rows after each feature is divided by its length scale. Each kernel is a mean of
    Gaussian kernels of random widths, so its spectral distribution is a mixture of Gaussians. A map
    with ``distribution="gaussian"`` draws its frequencies from this mixture. The widths are equally
    probable quantiles.

    Parameters
    ----------
    kernel
        ``"gaussian"``: ``exp(-r**2 / 2)``; ``"laplace"``: ``exp(-r)``; ``"matern"``: the Matérn
        kernel of smoothness ``order``, whose frequencies have a Student distribution with
        ``2 order`` degrees of freedom; or ``"rational-quadratic"``:
        ``(1 + r**2 / (2 order))**-order``.
    length_scale
        Length scale of each feature, ``> 0``, shape (n_features,).
    order
        Order of ``"matern"`` and ``"rational-quadratic"``, ``> 0``.
    n_scales
        Number of widths, ``>= 1``; a Gaussian kernel has one.

    Returns
    -------
    covariances
        Variances for :class:`dask_sketch.FeatureMap`, shape (n_scales, n_features).

    Raises
    ------
    InputError
        If an argument is out of range.

    References
    ----------
    Rasmussen, Williams (2006), Gaussian processes for machine learning, section 4.2.1.

    Examples
    --------
    >>> import dask_sketch as ds
    >>> covariances = kernel_covariances("matern", [1.0, 2.0], order=2.5)
    >>> feature_map = ds.FeatureMap(2, 500, covariances=covariances, distribution="gaussian")
    >>> feature_map.n_frequencies
    500
    """
    if kernel not in KERNELS:
        raise InputError(f"kernel={kernel!r}: choose one of {', '.join(KERNELS)}.")
    lengths = np.asarray(length_scale, dtype=np.float64)
    if lengths.ndim != 1 or not lengths.size or not (np.isfinite(lengths) & (lengths > 0)).all():
        raise InputError(
            f"length_scale={length_scale!r}: give a positive number for each feature.",
            parameter="length_scale",
        )
    require_number("order", order, 0.0, math.inf, strict=True)
    require_integer("n_scales", n_scales, 1)
    if kernel == "gaussian":
        return lengths[np.newaxis] ** 2
    shape = 0.5 if kernel == "laplace" else order
    widths = stats.gamma.ppf((np.arange(n_scales) + 0.5) / n_scales, shape) / shape
    if kernel == "rational-quadratic":
        widths = 1.0 / widths
    return np.asarray(widths[:, np.newaxis] * lengths**2)
