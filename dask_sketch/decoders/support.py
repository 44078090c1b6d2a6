"""Steps 3 and 4 of Algorithm 1, which all decoders share: which atoms, and what they weigh."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear, nnls

from dask_sketch.decoders.atoms import Array
from dask_sketch.decoders.objective import Objective

# Non-negative least squares of a sketch on a few atoms.


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


_UNSEEN = 1e-100  # largest of the numbers in the sketch of an atom


@dataclass(frozen=True)
class Fit:
    """Weights (K,) and atoms (K, n_parameters) with their cost, and how the descent ended."""

    weights: Array
    theta: Array
    cost: float
    converged: bool
    message: str


def nothing(objective: Objective) -> Fit:
    """The empty support, of which the whole sketch is the residual."""
    real, imag = objective.target
    return Fit(
        weights=np.empty(0),
        theta=np.empty((0, objective.n_parameters)),
        cost=float(real @ real + imag @ imag),
        converged=False,
        message="",
    )


def threshold(objective: Objective, theta: Array, n_components: int) -> Array:
    """Step 3: keep the atoms that weigh most in a non-negative fit of *normalised* atoms.

    Ties and zeros are broken by order, so that exactly ``n_components`` atoms remain.
    """
    if len(theta) <= n_components:
        return theta
    rows = objective.atoms(theta)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)
    weights = non_negative_weights(rows, np.concatenate(objective.target))
    order = np.argsort(-weights, kind="stable")
    return theta[np.sort(order[:n_components])]


def fit_weights(objective: Objective, theta: Array) -> Array:
    """Step 4: weights ``argmin_{alpha >= 0} ||z - sum_k alpha_k a_k||``, of un-normalised atoms."""
    atoms = objective.atoms(theta)
    # what no frequency sees has no weight, rather than one of 1e300
    atoms[np.abs(atoms).max(axis=1, initial=0.0) < _UNSEEN] = 0.0
    return non_negative_weights(atoms, np.concatenate(objective.target))
