"""Kernel of one feature map together with the arrays that it needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_sketch.features.kernels.dense import DenseKernel, dense_kernel
from dask_sketch.features.kernels.structured import StructuredKernel, structured_kernel
from dask_sketch.validation.choices import STRUCTURED

Kernel = DenseKernel | StructuredKernel


def kernel_for(distribution: str, n_features: int, dtype: str) -> Kernel:
    """Compile the kernel for a frequency distribution, a number of features and a precision.

    Examples
    --------
    >>> kernel_for("gaussian", 2, "float32") is dense_kernel(2, "float32")
    True
    """
    if distribution in STRUCTURED:
        return structured_kernel(dtype)
    return dense_kernel(n_features, dtype)


@dataclass(frozen=True)
class PreparedKernel:
    """Compiled kernel with packed frequencies and the conventions of one feature map.

    Attributes
    ----------
    kernel
        Compiled kernel.
    packed
        Frequencies in the order of the kernel.
    n_frequencies
        Number of frequencies.
    dtype
        Precision of the features, ``"float32"`` or ``"float64"``.
    center
        Point that is subtracted from rows, shape (n_features,).
    units
        Units of the moments of the features, powers of two, shape (n_features,).
    row_whitening
        Matrix by which centred rows are multiplied, shape (n_features, n_features), or None.
    """

    kernel: Kernel
    packed: NDArray[np.floating]
    n_frequencies: int
    dtype: str
    center: NDArray[np.float64]
    units: NDArray[np.float64]
    row_whitening: NDArray[np.float64] | None

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.center)
