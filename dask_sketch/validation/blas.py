"""Linear algebra in one thread."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _libraries() -> ThreadpoolController:
    """BLAS of NumPy and of SciPy, which take milliseconds to find."""
    import scipy.linalg  # noqa: F401 - it loads its BLAS

    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread, so that rounding does not depend on the number of threads.

    Small matrices are multiplied no slower by one thread.

    Examples
    --------
    >>> import numpy as np
    >>> with one_blas_thread():
    ...     total = np.ones((2, 2)) @ np.ones(2)
    """
    return _libraries().limit(limits=1, user_api="blas")
