"""Streams of blocks: the sketch of all rows, whatever the blocks."""

from __future__ import annotations

from itertools import tee

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import STREAMS
from strategies import draw_rows, feature_map

import dask_sketch as ds
from dask_sketch.errors import ChunkError, InputError

N = 90
X = draw_rows(5, N, 3)
W = np.random.default_rng(6).random(N)
FM = feature_map()


def cut(values, edges):
    return (values[a:b] for a, b in zip([0, *edges], [*edges, N], strict=True))


@given(st.lists(st.integers(0, N), max_size=6).map(sorted))
@settings(max_examples=10, deadline=None)
@pytest.mark.slow
def test_blocks_do_not_matter(edges):
    assert ds.sketch(cut(X, edges), FM, sample=20).identical(ds.sketch(X, FM, sample=20))


def test_weights_and_groups_are_streams_too():
    names, edges = np.resize(["ann", "bob"], N), [10, 40]
    found = ds.sketch(cut(X, edges), FM, cut(W, edges), sample=20)
    assert found.identical(ds.sketch(X, FM, W, sample=20))
    group = ds.sketch(cut(X, edges), FM, cut(W, edges), groups=cut(names, edges))
    whole = ds.sketch(X, FM, W, groups=names)
    assert list(group.labels) == ["ann", "bob"]
    assert group["bob"].identical(whole["bob"])


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_with_weights_groups_and_missing_values(kind, tmp_path):
    x = np.where(np.random.default_rng(7).random(X.shape) < 0.1, np.nan, X)
    w = np.random.default_rng(8).integers(1, 5, N) / 2.0
    fm = feature_map(distribution="sparse-sums")
    blocks, weights, options = STREAMS[kind](x, w, tmp_path)
    groups = STREAMS[kind](x, w, tmp_path)[1]
    found = ds.sketch(blocks, fm, weights, groups=groups, nan_policy="available", **options)
    assert found.identical(ds.partial_sketch(x, fm, w, groups=w, nan_policy="available"))


def test_names_are_those_of_each_block():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(w=W)
    frames = (part for part in np.split(np.arange(N), [20, 50]))
    found = ds.sketch((frame.iloc[part] for part in frames), FM, "w")
    assert found.identical(ds.sketch(frame, FM, "w"))
    reader = pa.Table.from_pandas(frame).to_reader(max_chunksize=7)
    assert ds.sketch(reader, FM, "w").identical(ds.sketch(frame, FM, "w"))


class Loader:
    """Iterable with a length and without items by number, as data loaders are."""

    def __len__(self):
        return 9

    def __iter__(self):
        return iter(np.split(X, 9))


def test_iterables_that_are_no_sequences():
    assert ds.sketch(Loader(), FM).identical(ds.sketch(X, FM))


class Tensor:
    """Tensor as far as loaders need one; PyTorch's own takes its place where it is installed."""

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __len__(self):
        return len(self.values)

    def __getitem__(self, chosen):
        return Tensor(self.values[chosen])

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)


class FakeLoader:
    """Loader of a data set of several tensors, in the order that PyTorch's has."""

    def __init__(self, *tensors, batch_size):
        self.tensors, self.size = tensors, batch_size

    def __len__(self):
        return -(-len(self.tensors[0]) // self.size)

    def __iter__(self):
        for start in range(0, len(self.tensors[0]), self.size):
            yield [tensor[start : start + self.size] for tensor in self.tensors]


def loader(*arrays, batch_size=16):
    try:
        import torch
    except ModuleNotFoundError:
        return FakeLoader(*map(Tensor, arrays), batch_size=batch_size)
    data = torch.utils.data.TensorDataset(*map(torch.as_tensor, arrays))
    return torch.utils.data.DataLoader(data, batch_size=batch_size)


def test_loaders_of_tensors():
    rows = (block for (block,) in loader(X))
    assert ds.sketch(rows, FM, sample=20).identical(ds.sketch(X, FM, sample=20))


def test_loaders_of_rows_weights_and_labels():
    labels = np.arange(N) % 3
    first, second, third = tee(loader(X, W, labels), 3)  # each batch is read and kept once
    found = ds.sketch(
        (batch[0] for batch in first),
        FM,
        (batch[1] for batch in second),
        groups=(batch[2] for batch in third),
    )
    assert found.identical(ds.sketch(X, FM, W, groups=labels))


@pytest.mark.parametrize("arrays", [(X,), (X, W), (X, X)])
def test_batches_of_several_tensors_are_refused_with_the_remedy(arrays):
    with pytest.raises(InputError, match=rf"block 0 is a list of {len(arrays)} .*block\[0\]"):
        ds.sketch(loader(*arrays), FM)


def test_a_position_goes_on_from_block_to_block():
    whole = ds.sketch(X, FM, sample=20)
    first = ds.sketch(cut(X, [30]), FM, sample=20)
    assert first.identical(whole)
    moved = ds.sketch(cut(X, [30]), FM, sample=20, position=1000)
    assert moved.identical(ds.sketch(X, FM, sample=20, position=1000))


def test_rows_to_omit_may_fill_a_block():
    x = np.concatenate([np.full((10, 3), np.nan), X])
    blocks = (x[i : i + 5] for i in range(0, len(x), 5))
    found = ds.sketch(blocks, FM, nan_policy="omit", sample=False)
    assert (found.count, found.omitted) == (N, 10)
    with pytest.raises(InputError, match="all of its 10 rows"):
        ds.sketch(iter([x[:10]]), FM, nan_policy="omit")
    with pytest.raises(ChunkError, match="block 1 of the stream: row 0"):
        ds.sketch(iter([X, x[8:]]), FM)


def test_refused_streams():
    with pytest.raises(InputError, match="x is"):
        ds.sketch(iter([]), FM)
    with pytest.raises(InputError, match="weights of type ndarray"):
        ds.sketch(cut(X, [10]), FM, W)
    with pytest.raises(InputError, match="groups"):
        ds.sketch(cut(X, [10]), FM, groups=list(range(N)))
    with pytest.raises(InputError, match="weights has shape"):
        ds.sketch(cut(X, [10]), FM, cut(W, [10, 20]))
    with pytest.raises(InputError, match="weights is"):
        ds.sketch(cut(X, [10]), FM, iter([W[:10]]))
    with pytest.raises(InputError, match="block 1 of type Array"):
        ds.sketch(iter([X, da.from_array(X)]), FM)
    with pytest.raises(InputError, match="n_features=3"):
        ds.sketch(iter([X, X[:, :2]]), FM)
    with pytest.raises(TypeError, match="nonsense"):
        ds.sketch(iter([X]), FM, nonsense=1)
    with pytest.raises(InputError, match="x of type .* stream"):
        ds.design(iter([X]), n_components=2)


@pytest.mark.parametrize(
    ("rows", "groups", "count"),
    [(np.zeros((7, 3)), None, 7), (np.full((7, 3), np.nan), [0] * 7, 7), (X[:7], [None] * 7, 7)],
)
def test_rows_that_are_all_left_out_are_counted(rows, groups, count):
    directions = ds.FeatureMap(3, 40, scale=1.0, normalize=True)
    labels = groups if groups is None else iter([pd.Series(groups, dtype=object)])
    for x, names in ((rows, groups), (iter([rows]), labels)):
        with pytest.raises(InputError, match=f"all of its {count} rows .* only zeros"):
            ds.sketch(x, directions, groups=names, nan_policy="omit")
