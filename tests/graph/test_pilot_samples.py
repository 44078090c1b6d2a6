from __future__ import annotations

from dataclasses import replace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from strategies import draw_rows

import dask_sketch as ds
from dask_sketch.errors import ChunkError, InputError
from dask_sketch.graph.pilot_samples import PILOT_CHUNKS, pilot_samples


def gaussian(rng, n, d, scale=1.0, offset=0.0):
    return offset + scale * rng.normal(size=(n, d))


def marked(chunks):
    """Array of two columns with chunks of given lengths, whose rows are all 1 or all 0."""
    parts = [np.full((length, 2), float(mark)) for length, mark in chunks]
    for number, part in enumerate(parts):
        part[:, 1] = number + np.arange(len(part)) / len(part)  # rows are distinct
    lengths = tuple(len(part) for part in parts)
    return da.from_array(np.concatenate(parts), chunks=(lengths, 2))


def test_only_a_few_chunks_are_read():
    reads = []

    def load(block_id):
        reads.append(block_id)
        return np.random.default_rng(block_id).normal(size=(1000, 2))

    x = da.map_blocks(
        lambda block_id=None: load(block_id), chunks=((1000,) * 200, (2,)), dtype=float,
        meta=np.empty((0, 0)),
    )  # fmt: skip
    reads.clear()
    with dask.config.set(scheduler="sync"):
        ds.design(x, n_components=1)
    assert len(reads) == PILOT_CHUNKS


def test_small_chunks_are_read_until_there_are_enough_rows(rng):
    x = da.from_array(gaussian(rng, 20_000, 2), chunks=(100, 2))
    fm = ds.design(x, n_components=1)
    assert fm.scale_fit.n_samples >= 4000


def test_bad_rows_and_rows_of_weight_zero_are_not_picked(rng):
    x = gaussian(rng, 20_000, 2)
    w = np.ones(20_000)
    w[::2], x[::2] = 0.0, 1e9
    x[1::4, 0] = np.nan
    fm = ds.design(da.from_array(x, chunks=(1000, 2)), n_components=1, weights=w)
    np.testing.assert_allclose(fm.mean_variances, 1.0, rtol=0.2)
    assert np.abs(fm.center).max() < 1


def test_bad_rows_are_refused_on_demand(rng):
    x = gaussian(rng, 1000, 2)
    x[::3, 1] = np.inf
    lazy = da.from_array(x, chunks=(500, 2))
    assert ds.design(lazy, n_components=1, nan_policy="omit") == ds.design(lazy, n_components=1)
    with pytest.raises(ChunkError, match=r"chunk [01].* row \d+ .*nan_policy='omit'"):
        ds.design(lazy, n_components=1, nan_policy="raise")
    with pytest.raises(InputError, match="nan_policy='skip'"):
        ds.design(lazy, n_components=1, nan_policy="skip")
    frame = dd.from_pandas(pd.DataFrame(x, columns=["age", "income"]), npartitions=2)
    with pytest.raises(ChunkError, match=r"row \d+ .* inf in feature 1 \('income'\)"):
        ds.design(frame, n_components=1, nan_policy="raise")
    x[:] = 0.0
    with pytest.raises(ChunkError, match=r"row \d+ .* 0 in all features"):
        ds.design(x, n_components=1, nan_policy="raise", normalize=True)


def test_weights_weigh(rng):
    x = np.concatenate([gaussian(rng, 5000, 1), gaussian(rng, 5000, 1, offset=50.0)])
    w = np.repeat([1.0, 99.0], 5000)
    fm = ds.design(x, n_frequencies=20, weights=w, n_pilot=500)
    assert fm.center[0] > 45


def test_pilot_samples_are_rows_of_the_data(rng):
    x = draw_rows(0, 3000, 3)
    pilot = pilot_samples(ds.open_samples(da.from_array(x, chunks=(500, 3))), 600, seed=1)
    rows = {tuple(row) for row in x}
    assert all(tuple(row) in rows for row in pilot)
    assert len({tuple(row) for row in pilot}) == len(pilot) == 600


@pytest.mark.parametrize(
    ("chunks", "atol"),
    [
        ([(100_000, 0), (2000, 1)], 0.002),
        ([(200_000, 1)] + [(1000, 0)] * 40, 0.05),  # a large file among small ones
        ([(200_000, 1)] + [(100, 0)] * 400, 0.05),
        ([(10_000, 0)] * 9 + [(3000, 1)], 0.1),  # what is left over is no small file
    ],
    ids=["two", "large", "tiny", "rest"],
)
def test_rows_of_chunks_of_any_size_have_the_same_chance(chunks, atol):
    share = sum(n * mark for n, mark in chunks) / sum(n for n, _ in chunks)
    pilot = pilot_samples(ds.open_samples(marked(chunks)), 5000, seed=0)
    assert 4000 <= len(pilot) <= 6500
    assert abs(pilot[:, 0].mean() - share) < atol
    assert len(np.unique(pilot, axis=0)) == len(pilot)


def test_few_chunks_of_different_sizes_are_read():
    reads = set()

    def load(block, block_id=None):
        reads.add(block_id[0])
        return block

    lengths = (100_000, *range(5000, 5300))
    rows = np.random.default_rng(0).normal(size=(sum(lengths), 2))
    x = da.from_array(rows, chunks=(lengths, 2)).map_blocks(load, dtype=float)
    with dask.config.set(scheduler="sync"):
        reads.clear()
        pilot_samples(ds.open_samples(x), 5000, seed=0)
    assert 0 in reads
    assert len(reads) <= 2 * PILOT_CHUNKS + 2


def test_partitions_of_unknown_length_have_their_part():
    frames = [
        dd.from_pandas(pd.DataFrame({"a": mark + np.zeros(n), "b": np.arange(float(n))}), 1)
        for n, mark in ((50_000, 0.0), (2000, 1.0))
    ]
    pilot = pilot_samples(ds.open_samples(dd.concat(frames)), 3000, seed=0)
    assert abs(pilot[:, 0].mean() - 2 / 52) < 0.01


@pytest.mark.parametrize("chunk", [10_000, 1000])
def test_large_weights_have_their_part(chunk):
    # a twentieth of the rows has 73 % of the weight, in some chunks more than in others
    x = np.column_stack([np.arange(10_000.0) < 500, np.arange(10_000.0)])
    w = np.where(x[:, 0] > 0, 50.0, 1.0)
    samples = ds.open_samples(
        da.from_array(x, chunks=(chunk, 2)), weights=da.from_array(w, chunks=chunk)
    )
    pilot = pilot_samples(samples, 2000, seed=0)
    share = w @ x[:, 0] / w.sum()
    assert abs(pilot[:, 0].mean() - share) < (0.01 if chunk == 10_000 else 0.1)
    light = pilot[pilot[:, 0] == 0]
    assert len(np.unique(light, axis=0)) == len(light)  # only heavy rows are drawn several times


def test_a_mixture_is_fitted_without_rows_to_large_weights(rng):
    x = np.concatenate([gaussian(rng, 19_800, 2), gaussian(rng, 200, 2, scale=0.2, offset=10.0)])
    w = np.where(x[:, 0] > 5, 250.0, 1.0)
    order = rng.permutation(len(x))
    x, w = x[order], w[order]
    model = ds.SketchGaussianMixture(2, sample_size=False).fit(x, sample_weight=w).model_
    rare = int(model.means[:, 0].argmax())
    assert abs(model.weights[rare] - w[w > 1].sum() / w.sum()) < 0.01
    np.testing.assert_allclose(model.variances[rare], 0.04, rtol=0.25)


@pytest.mark.parametrize("sizes", [(200,) * 100, (12_000,) + (200,) * 40], ids=["even", "uneven"])
@pytest.mark.slow
def test_rows_are_of_many_chunks_where_chunks_differ(rng, sizes):
    position = np.arange(sum(sizes)) / sum(sizes)
    x = da.from_array(np.column_stack([position, rng.normal(size=len(position))]), (sizes, 2))
    pilot = pilot_samples(ds.open_samples(x), 5000, seed=0)
    assert 4000 <= len(pilot) <= 7000
    shares = np.histogram(pilot[:, 0], bins=10, range=(0.0, 1.0))[0] / len(pilot)
    assert np.abs(shares - 0.1).max() < 0.03


@pytest.mark.slow
def test_a_mixture_of_sorted_rows_is_fitted_without_rows(rng):
    t = np.arange(20_000) / 20_000
    x = np.column_stack([20 * np.cos(6 * t), 20 * np.sin(6 * t)]) + rng.normal(size=(20_000, 2))
    chunks = da.from_array(x, chunks=(1000, 2))
    model = ds.SketchGaussianMixture(6, sample_size=False).fit(chunks).model_
    one_chunk = ds.SketchGaussianMixture(6, sample_size=False).fit(x).model_
    assert model.score(x) > one_chunk.score(x) - 0.05


@pytest.mark.parametrize(
    ("largest", "number"),
    [pytest.param(2**12, 512, marks=pytest.mark.slow), (2**22, 64), (2**26, 32), (2**30, 16)],
)
def test_fewer_large_chunks_are_read_where_chunks_differ(largest, number):
    """Their bytes are stated, as by a source, so that no large chunk is made."""
    reads = set()

    def load(block, block_id=None):
        reads.add(block_id[0])
        return block

    position = np.arange(30_000.0).reshape(-1, 1)
    x = da.from_array(position, chunks=(50, 1)).map_blocks(load, dtype=float)
    samples = replace(ds.open_samples(x), largest_chunk=largest)
    with dask.config.set(scheduler="sync"):
        reads.clear()
        pilot_samples(samples, 300, seed=0)
    assert number <= len(reads) <= number + PILOT_CHUNKS
