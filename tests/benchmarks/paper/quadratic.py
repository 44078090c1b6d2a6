"""Gribonval et al., section 3: principal components from quadratic measurements.

Both kinds of measurements are linear functions of the second moments, ``y = M(Sigma)``, so that
their sketch of any data is computed from exact second moments. Tables of the paper have no figures:
the grids are ours, and beside them are as many numbers of the products with a test matrix.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch import second_moments
from dask_sketch.decoders.leading_components import principal_components
from dask_sketch.sketching.second_moments import SecondMoments
from tests.benchmarks.paper.records import Job, Run, timed

Array = NDArray[Any]
RATIOS = (1.0, 2.0, 3.0, 4.0, 6.0)  # m / (k d)
K = 3
# features, ratios, numbers of samples and of draws
SECTION_3 = {
    "full": (30, RATIOS, 20_000, 10),
    "quick": (30, (2.0, 4.0), 5_000, 2),
    "toy": (10, (3.0,), 500, 1),
}
STEPS = 1500


def dense(d: int, m: int, rng: np.random.Generator) -> Array:
    """Matrices ``L_j / sqrt(m)`` with standard normal entries, shape (m, d, d).

    With this scale the squared norm of ``M(X)`` is ``|X|_F^2`` in expectation, as in (32).
    """
    return rng.normal(size=(m, d, d)) / np.sqrt(m)


def rank_one(d: int, m: int, rng: np.random.Generator) -> Array:
    """Matrices ``a_j a_j^* / sqrt(m)`` of standard complex Gaussian vectors, shape (m, d, d)."""
    a = (rng.normal(size=(m, d)) + 1j * rng.normal(size=(m, d))) / np.sqrt(2.0)
    # of real symmetric matrices the real part is measured
    return np.einsum("ji,jk->jik", a, a.conj()).real / np.sqrt(m)


def measure(operator: Array, matrix: Array) -> Array:
    """Measurements ``<L_j, matrix>``, shape (m,)."""
    return np.tensordot(operator, matrix, 2)


def positive(matrix: Array, rank: int | None = None) -> Array:
    """Nearest positive-semidefinite matrix, of at most a rank."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    values = np.maximum(values, 0.0)
    if rank is not None:
        values[: len(values) - rank] = 0.0
    return (vectors * values) @ vectors.T


def low_rank_decoder(operator: Array, y: Array, rank: int) -> Array:
    """Least squares over positive-semidefinite matrices of a rank, (33), by projected gradients.

    Each step has the length that is best along the gradient in the tangent space.
    """
    symmetric = 0.5 * (operator + operator.transpose(0, 2, 1))
    found = positive(np.tensordot(y, symmetric, 1), rank)
    for _ in range(STEPS):
        gradient = np.tensordot(y - measure(symmetric, found), symmetric, 1)
        vectors = np.linalg.eigh(found)[1][:, len(found) - rank :]
        inside = vectors @ (vectors.T @ gradient)
        tangent = inside + inside.T - vectors @ (vectors.T @ inside.T)
        size = (measure(symmetric, tangent) ** 2).sum()
        if not size > 1e-28 * (y**2).sum():
            break
        found = positive(found + (tangent**2).sum() / size * gradient, rank)
    return found


def semidefinite_decoder(operator: Array, y: Array) -> Array:
    """Least squares over positive-semidefinite matrices, (36), by accelerated gradients."""
    flat = operator.reshape(len(operator), -1)
    step = 1.0 / np.linalg.norm(flat, 2) ** 2
    found = point = np.zeros(operator.shape[1:])
    pace = 1.0
    for _ in range(2 * STEPS):
        gradient = np.tensordot(measure(operator, point) - y, operator, 1)
        after = positive(point - step * gradient)
        if ((after - point) * (found - after)).sum() > 0:
            pace = 1.0  # begin again, where the momentum leads uphill
        later = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * pace**2))
        point = after + (pace - 1.0) / later * (after - found)
        found, pace = after, later
    return found


def excess(covariance: Array, components: Array) -> float:
    """Percents of the total variance that components explain less than the best ones.

    A difference that rounding leaves is 0.
    """
    values = np.linalg.eigvalsh(covariance)
    best = values[-len(components) :].sum()
    reached = np.trace(components @ covariance @ components.T)
    loss = float((best - reached) / values.sum())
    return 100.0 * loss if loss > 1e-12 else 0.0


def leading(matrix: Array) -> Array:
    """Leading eigenvectors, shape (K, d)."""
    return np.linalg.eigh(matrix)[1][:, -K:].T


def draw(d: int, spectrum: str, ratios: tuple[float, ...], n_samples: int, seed: int) -> list[Run]:
    """All methods for one draw of the data."""
    rng = np.random.default_rng(seed)
    values = 1.0 / np.arange(1.0, d + 1.0)
    if spectrum == "rank 3":
        values[K:] = 0.0
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    x = (rng.normal(size=(n_samples, d)) * np.sqrt(values)) @ axes.T + 1.0
    covariance = second_moments(x).covariance
    runs = []
    for ratio in ratios:
        m = round(ratio * K * d)
        columns = max(m // d, K)
        products: SecondMoments = second_moments(x, n_columns=columns, seed=seed)
        fits = {
            "dense (33)": lambda m=m: low_rank(dense(d, m, rng), covariance),
            "rank one (36)": lambda m=m: convex(rank_one(d, m, rng), covariance),
            f"{columns} columns": lambda p=products: principal_components(p, K).components,
        }
        for method, fit in fits.items():
            components, seconds = timed(fit)
            setting = {"spectrum": spectrum, "m/(kd)": ratio}
            name = "test matrix" if method.endswith("columns") else method
            runs.append(Run(setting, name, seed, excess(covariance, components), seconds))
    return runs


def low_rank(operator: Array, covariance: Array) -> Array:
    """Components from dense measurements, decoded by (33) and (34)."""
    return leading(low_rank_decoder(operator, measure(operator, covariance), K))


def convex(operator: Array, covariance: Array) -> Array:
    """Components from rank-one measurements, decoded by (36) and (34)."""
    return leading(semidefinite_decoder(operator, measure(operator, covariance)))


def section_3(form: str) -> list[Job]:
    """Excess risk of principal components against the number of measurements."""
    d, ratios, n_samples, n_draws = SECTION_3[form]
    return [
        partial(draw, d, spectrum, ratios, n_samples, seed)
        for spectrum in ("rank 3", "1/i")
        for seed in range(n_draws)
    ]
