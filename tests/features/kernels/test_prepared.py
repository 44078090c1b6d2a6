"""Both kernels add integers: of each row alone, in any order, and without overflow."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_sketch.features.kernels.dense import FLUSH, DenseKernel, dense_kernel
from dask_sketch.features.kernels.structured import BLOCK, StructuredKernel, structured_kernel
from dask_sketch.features.kernels.structured_frequencies import (
    GROUP,
    SIDE,
    combine,
    n_groups,
    truncate_to_grid,
)

DISTRIBUTIONS = ["any", "sums"]
DTYPES = ["float32", "float64"]
# (largest error of one row in one moment, what is left of it on average over many)
ERROR = {
    ("any", "float32"): (6e-7, 3e-9),
    ("sums", "float32"): (8e-7, 3e-9),
    ("any", "float64"): (1e-14, 1e-16),
    ("sums", "float64"): (4e-15, 1e-16),
}


class Summing:
    """A kernel with its frequencies."""

    def __init__(self, distribution, cycles, dtype, kernel=None):
        shared = (
            structured_kernel(dtype) if distribution == "sums" else dense_kernel(len(cycles), dtype)
        )
        self.kernel = shared if kernel is None else kernel
        self.packed = self.kernel.pack(cycles)
        self.shape = cycles.shape

    def steps(self, x, weights=None, cuts=()):
        """Sums over the rows, given in pieces that end at ``cuts``."""
        sums = self.kernel.zeros(self.packed)
        for piece in np.split(np.arange(len(x)), cuts):
            share = None if weights is None else weights[piece]
            self.kernel.add(x[piece], self.packed, sums, share)
        found = self.kernel.unpack(sums, self.shape[1])
        assert found.dtype == np.int64
        assert found.shape == (2, self.shape[1])
        return found

    def moments(self, x, weights=None):
        real, imaginary = self.steps(x, weights) * 2.0**-self.kernel.fraction
        return real + 1j * imaginary


def drawn(distribution, d, m, dtype, kernel=None):
    rng = np.random.default_rng(0)
    cycles = 0.5 * rng.normal(size=(d, m))
    if distribution == "sums":
        cycles = truncate_to_grid(combine(0.5 * rng.normal(size=(n_groups(m), 2, SIDE, d)), m))
    return Summing(distribution, cycles.astype(np.float32), dtype, kernel)


def rows_and_weights(rng, n, d, dtype):
    """Rows of every size, some zero, and weights in (1/16, 1], some one or zero."""
    x = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-3, 3, size=(n, 1))
    x[rng.random(n) < 0.1] = 0.0
    w = 1.0 - 15 / 16 * rng.random(n)
    w[rng.random(n) < 0.3] = 1.0
    w[rng.random(n) < 0.1] = 0.0
    return x.astype(dtype), w.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
@pytest.mark.few_cases(2)
def test_order_and_pieces_change_no_bit(distribution, dtype, data):
    d = data.draw(st.sampled_from([1, 12, 65]), label="n_features")  # each is compiled
    n = data.draw(st.integers(1, 2 * BLOCK + 70), label="n_samples")
    summing = drawn(distribution, d, data.draw(st.sampled_from([1, 33, 130])), dtype)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    x, w = rows_and_weights(rng, n, d, dtype)
    expected, weighted = summing.steps(x), summing.steps(x, w)
    np.testing.assert_array_equal(summing.steps(x, np.ones_like(w)), expected)
    order = rng.permutation(n)
    cuts = np.sort(data.draw(st.lists(st.integers(0, n), max_size=12), label="cuts"))
    np.testing.assert_array_equal(summing.steps(x[order], cuts=cuts), expected)
    np.testing.assert_array_equal(summing.steps(x[order], w[order], cuts), weighted)
    # rows of weight zero leave no trace, and may be left out
    kept = w > 0
    np.testing.assert_array_equal(summing.steps(x[kept], w[kept]), weighted)
    # what was added can be taken out again
    half = rng.random(n) < 0.5
    rest = weighted - summing.steps(x[half], w[half])
    np.testing.assert_array_equal(rest, summing.steps(x[~half], w[~half]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("d", [1, 12, 65])
def test_rows_one_by_one_give_the_same_integers(d, distribution, dtype, rng):
    summing = drawn(distribution, d, 100, dtype)
    x, w = rows_and_weights(rng, 300, d, dtype)
    for weights in (None, w):
        alone = sum(
            summing.steps(x[i : i + 1], None if weights is None else w[i : i + 1])
            for i in range(len(x))
        )
        np.testing.assert_array_equal(summing.steps(x, weights), alone)


# each is compiled twice, without and with weights
WIDTHS = [
    ("any", "float32", (512, 128)),
    ("sums", "float64", (512, 128)),
    pytest.param("any", "float64", (512, 256, 128), marks=pytest.mark.slow),
    pytest.param("sums", "float32", (512, 256, 128), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("distribution", "dtype", "widths"), WIDTHS)
def test_the_width_of_vectors_changes_no_bit(distribution, dtype, widths, rng):
    x, w = rows_and_weights(rng, 700, 9, dtype)
    kinds = {"any": partial(DenseKernel, 9, dtype), "sums": partial(StructuredKernel, dtype)}
    found = []
    for bits in widths:
        summing = drawn(distribution, 9, 70, dtype, kinds[distribution](bits=bits))
        found.append([summing.steps(x), summing.steps(x, w)])
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_every_row_at_an_end_of_the_range(quarters, distribution, dtype):
    # sines of one, cosines of minus one: where 32 bits would overflow, were they not emptied
    cycles = np.full((1, GROUP), quarters / 4, dtype=np.float32)
    if distribution == "sums":  # u + v a quarter, half or three quarters of a turn, u - v another
        parts = np.array([[[[quarters / 4]] * SIDE, [[0.0], [0.25], [0.5], [0.75]]]])
        cycles = combine(parts, GROUP).astype(np.float32)
    summing = Summing(distribution, cycles, dtype)
    n = min(20 * BLOCK + 3, summing.kernel.capacity)
    x = np.ones((n, 1), dtype)
    expected = np.exp(-2j * np.pi * cycles[0].astype(np.float64))
    for weights in (None, np.full(n, 0.75, dtype), np.full(n, 0.7123456, dtype)):
        share = None if weights is None else weights[:1]
        alone = summing.steps(x[:1], share)
        w = 1.0 if weights is None else float(weights[0])
        error = np.abs(summing.moments(x[:1], share) - w * expected)
        assert error.max() <= ERROR[distribution, dtype][0]
        np.testing.assert_array_equal(summing.steps(x, weights), n * alone)
        for count in (FLUSH - 1, FLUSH, FLUSH + 1, 255, 256, 257, 512):
            part = None if weights is None else weights[:count]
            np.testing.assert_array_equal(summing.steps(x[:count], part), count * alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_sums_hold_as_many_rows_as_they_say(quarters, distribution, dtype):
    cycles = np.full((1, GROUP), quarters / 4, dtype=np.float32)
    if distribution == "sums":
        parts = np.array([[[[quarters / 4]] * SIDE, [[0.0], [0.25], [0.5], [0.75]]]])
        cycles = combine(parts, GROUP).astype(np.float32)
    summing = Summing(distribution, cycles, dtype)
    kernel, packed = summing.kernel, summing.packed
    alone = summing.steps(np.ones((1, 1), dtype))
    sums = kernel.zeros(packed)
    for _ in range(2):  # 63 empty rows go with a single one
        kernel.add(np.ones((1, 1), dtype), packed, sums)
    kernel.add(np.ones((2046, 1), dtype), packed, sums)
    with np.errstate(over="raise"):
        for _ in range(int(np.log2(kernel.capacity)) - 11):
            sums += sums  # as if the same rows had come once more
        np.testing.assert_array_equal(kernel.unpack(sums, GROUP), alone * kernel.capacity)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_rows_at_the_center_weigh_what_they_weigh(distribution):
    summing = drawn(distribution, 3, 40, "float32")
    one = 2**summing.kernel.fraction
    real, imaginary = summing.steps(np.zeros((999, 3), dtype=np.float32))
    assert (real == 999 * one).all()
    assert not imaginary.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("weight", [None, 0.75, 0.7123456])
def test_the_error_of_one_row_is_bounded_and_has_no_side(weight, distribution, dtype, rng):
    # phases are exact here, so that all that is seen is cosine, sine and grid
    if distribution == "sums":
        bases = np.rint(2.0**22 * rng.uniform(-1, 1, size=(3000, 2, SIDE, 1))) * 2.0**-23
        cycles = combine(bases, 3000 * GROUP)
    else:
        cycles = np.concatenate([np.linspace(-1, 1, 40_001), rng.uniform(-9, 9, size=60_000)])[None]
    cycles = cycles.astype(np.float32)
    summing = Summing(distribution, cycles, dtype)
    share = None if weight is None else np.array([weight], dtype)
    got = summing.moments(np.ones((1, 1), dtype), share)
    w = 1.0 if share is None else float(share[0])
    error = got - w * np.exp(-2j * np.pi * cycles[0].astype(np.float64))
    largest, mean = ERROR[distribution, dtype]
    assert max(np.abs(error.real).max(), np.abs(error.imag).max()) <= largest
    assert max(abs(error.real.mean()), abs(error.imag.mean())) <= mean


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_thousand_rows_are_within_2e7(distribution, rng):
    summing = drawn(distribution, 12, 500, "float32")
    x = rng.normal(size=(1000, 12)).astype(np.float32)
    exact = drawn(distribution, 12, 500, "float64").moments(x.astype(np.float64))
    assert np.abs(summing.moments(x) - exact).max() / 1000 <= 2e-7
