from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.decoders.normal_equations import Cholesky, gram_of_columns
from dask_sketch.decoders.threads import SERIAL, Threads


@pytest.mark.parametrize("n", [1, 7, 8, 30])
def test_factor_and_solutions(n, monkeypatch):
    monkeypatch.setattr("dask_sketch.decoders.normal_equations._TILE", 8)
    monkeypatch.setattr("dask_sketch.decoders.normal_equations._COLUMNS", 3)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, n + 3))
    matrix = rows @ rows.T
    right = rng.normal(size=(n, 7))
    lower = np.linalg.cholesky(matrix)
    results = []
    for threads in (SERIAL, Threads(2)):
        with threads:
            # what stands above the diagonal is not read
            factor = Cholesky(np.tril(matrix) + np.triu(np.full((n, n), np.nan), 8), threads)
            forward = factor.forward(right.copy())
            np.testing.assert_allclose(lower @ forward, right, rtol=1e-9, atol=1e-11)
            back = factor.backward(forward.copy())
            np.testing.assert_allclose(matrix @ back, right, rtol=1e-7, atol=1e-9)
            gram = gram_of_columns(right, threads)
            np.testing.assert_allclose(gram, right.T @ right, rtol=1e-12, atol=1e-13)
            np.testing.assert_array_equal(gram, gram.T)
            results.append((forward, back, gram))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_matrix_that_is_not_positive_definite():
    with pytest.raises(np.linalg.LinAlgError):
        Cholesky(np.array([[1.0, 0.0], [2.0, 1.0]]), SERIAL)
