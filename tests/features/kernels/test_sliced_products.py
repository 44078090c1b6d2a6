"""Exact sums of products, against Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_sketch.errors import CapacityError
from dask_sketch.features.kernels import sliced_products
from dask_sketch.features.kernels.fixed_point import FixedPoint
from dask_sketch.features.kernels.sliced_products import add_products, add_squares, slices


def integers(values):
    return np.array([[int(value) for value in row] for row in values], dtype=object)


def sums_of(values):
    return FixedPoint(*values).integers()


def random_rows(rng, n, p, bits):
    return np.rint(rng.uniform(-1.0, 1.0, (n, p)) * 2.0**bits)


@pytest.mark.parametrize("bits", [3, 21, 41, 52])
def test_slices_add_up(bits):
    values = random_rows(np.random.default_rng(0), 50, 3, bits)
    parts = slices(values)
    assert all(np.abs(part).max() <= 2**20 for part in parts)
    total = sum(integers(part) << (21 * k) for k, part in enumerate(parts))
    assert (total == integers(values)).all()


@given(
    n=st.integers(0, 40),
    p=st.integers(1, 6),
    r=st.integers(1, 5),
    bits=st.tuples(st.integers(0, 45), st.integers(0, 45)),
    shift=st.sampled_from([0, 4, 28]),
    seed=st.integers(0, 99),
)
def test_products_are_those_of_integers(n, p, r, bits, shift, seed):
    rng = np.random.default_rng(seed)
    left, right = random_rows(rng, n, p, bits[0]), random_rows(rng, n, r, bits[1])
    one, two = integers(left).reshape(n, p), integers(right).reshape(n, r)
    sums = np.zeros((2, p * r + 2), np.int64)
    sums[0, 1:-1], sums[1, 1:-1] = -1, 2**56 - 5  # two words of -5
    add_products(sums, left, right, start=1, shift=shift)
    expected = (one.T @ two).ravel() * 2**shift - 5 if n else np.full(p * r, -5, dtype=object)
    assert (sums_of(sums)[1:-1] == expected).all()
    assert not sums[:, [0, -1]].any()
    same = np.zeros((2, p * (p + 1) // 2), np.int64)
    add_products(same, left, shift=shift)
    gram = one.T @ one if n else np.zeros((p, p), dtype=object)
    assert (sums_of(same) == gram[np.triu_indices(p)] * 2**shift).all()
    squares = np.zeros((2, p), np.int64)
    add_squares(squares, left)
    assert (sums_of(squares) == np.diag(gram)).all()


def test_many_rows_of_the_largest_size(monkeypatch):
    """Sums of a block reach the last bit that float64 holds, in several tiles."""
    monkeypatch.setattr(sliced_products, "TILE", 4)
    rows = np.full((5000, 9), 2.0**41 + 2.0**20)
    rows[::3] *= -1.0
    sums = np.zeros((2, 45), np.int64)
    add_products(sums, rows)
    assert (sums_of(sums) == 5000 * (2**41 + 2**20) ** 2).all()
    sums = np.zeros((2, 9 * 6), np.int64)
    add_products(sums, rows, np.abs(rows[:, :6]))
    signs = 5000 - 2 * len(rows[::3])
    assert (sums_of(sums) == signs * (2**41 + 2**20) ** 2).all()


def test_capacity():
    sums = np.zeros((2, 1), np.int64)
    with pytest.raises(CapacityError):
        add_products(sums, np.full((10, 1), 2.0**52), shift=20)
