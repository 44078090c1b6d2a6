from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.decoders.objectives.normal_equations import Cholesky, GramSums, gram_of_columns
from dask_sketch.validation.threads import SERIAL, Threads


@pytest.mark.parametrize("n", [1, 30, 600])  # up to two tiles
def test_factor_and_solutions(n):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, n + 3))
    matrix = rows @ rows.T + n * np.eye(n)
    right = rng.normal(size=(n, 500))  # two blocks of columns
    lower = np.linalg.cholesky(matrix)
    results = []
    for threads in (SERIAL, Threads(2)):
        with threads:
            # entries far above the diagonal are not read
            factor = Cholesky(np.tril(matrix) + np.triu(np.full((n, n), np.nan), 512), threads)
            forward = factor.forward(right.copy())
            np.testing.assert_allclose(lower @ forward, right, rtol=1e-9, atol=1e-10)
            back = factor.backward(forward.copy())
            np.testing.assert_allclose(matrix @ back, right, rtol=1e-7, atol=1e-9)
            gram = gram_of_columns(right, threads)
            np.testing.assert_allclose(gram, right.T @ right, rtol=1e-12, atol=1e-11)
            np.testing.assert_array_equal(gram, gram.T)
            results.append((forward, back, gram))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_matrix_that_is_not_positive_definite():
    with pytest.raises(np.linalg.LinAlgError):
        Cholesky(np.array([[1.0, 0.0], [2.0, 1.0]]), SERIAL)


def test_sums_of_pairs_by_tiles():
    # 136 pairs in tiles of 128, and 500 frequencies in tiles of 192; factors 1, w (mean), b (shape)
    rng = np.random.default_rng(0)
    atoms = rng.normal(size=(16, 500)) + 1j * rng.normal(size=(16, 500))
    factors = np.concatenate([np.ones((1, 500)), rng.normal(size=(2, 500))])
    rows = np.arange(48).reshape(16, 3)
    derivatives = (atoms[:, None] * factors * np.array([1, -1j, 1])[:, None]).reshape(48, -1)
    expected = (derivatives.conj() @ derivatives.T).real
    multipliers = rng.normal(size=48)
    results = []
    for threads in (SERIAL, Threads(2)):
        with threads:
            sums = GramSums(16, 1, 1)
            for block in (slice(0, 300), slice(300, 500)):
                real, imag = atoms.real[:, block].copy(), atoms.imag[:, block].copy()
                sums.add(real, imag, factors[:, block].copy(), threads)
            results.append(sums.matrix(rows, multipliers))
    np.testing.assert_allclose(
        results[0], expected * multipliers * multipliers[:, None], atol=1e-10
    )
    np.testing.assert_array_equal(*results)
