"""Non-negative least squares of a sketch on a few atoms."""

from __future__ import annotations

import numpy as np
from scipy.optimize import lsq_linear, nnls

from dask_sketch.decoders.families import Array


def non_negative_weights(rows: Array, target: Array) -> Array:
    """Weights ``argmin_{alpha >= 0} ||target - alpha @ rows||``.

    A QR factorisation first leaves K + 1 equations instead of 2m, with the same solution.

    Parameters
    ----------
    rows
        Atoms as real numbers, shape (K, 2 * n_frequencies).
    target
        Shape (2 * n_frequencies,).

    Returns
    -------
    weights
        Shape (K,), not negative.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> non_negative_weights(rows, np.array([2.0, -1.0, 5.0])).tolist()
    [2.0, 0.0]
    """
    n_atoms = len(rows)
    system = np.asarray(np.linalg.qr(np.vstack([rows, target]).T, mode="r"))
    matrix, right = system[:, :n_atoms], system[:, n_atoms]
    try:
        return np.asarray(nnls(matrix, right, maxiter=30 * n_atoms)[0])
    except RuntimeError:  # nearly equal atoms can make the active set cycle
        return np.maximum(lsq_linear(matrix, right, bounds=(0.0, np.inf)).x, 0.0)
