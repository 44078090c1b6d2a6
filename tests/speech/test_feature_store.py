from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("librosa")
pytest.importorskip("soundfile")

from dask_sketch.speech.feature_store import plan_shards


@given(
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    shard_frames=st.integers(1, 60),
)
def test_every_row_has_one_owner_and_every_shard_one_task(counts, shard_frames):
    paths = [f"{i}.wav" for i in range(len(counts))]
    shards = plan_shards(paths, list(range(len(counts))), counts, shard_frames)

    owner = np.full(sum(counts), -1)
    for k, shard in enumerate(shards):
        # whole shards: it starts on a border, and ends on one or at the end of the store
        assert shard.start == k * shard_frames
        assert shard.stop == min((k + 1) * shard_frames, sum(counts))
        assert (owner[shard.start : shard.stop] == -1).all()
        owner[shard.start : shard.stop] = k
    assert (owner >= 0).all()

    rows = [
        (piece.file, frame)
        for shard in shards
        for piece in shard.pieces
        for frame in range(piece.start, piece.stop)
    ]
    assert rows == [(file, frame) for file, count in enumerate(counts) for frame in range(count)]
    for shard in shards:
        assert sum(p.stop - p.start for p in shard.pieces) == shard.stop - shard.start
        for piece in shard.pieces:
            assert piece.start < piece.stop <= piece.n_frames == counts[piece.file]
            assert piece.path == paths[piece.file]
            assert piece.speaker == piece.file


def test_a_long_file_spans_shards():
    shards = plan_shards(["a", "b"], [0, 0], [1, 25], 10)
    assert [(p.path, p.start, p.stop) for s in shards for p in s.pieces] == [
        ("a", 0, 1),
        ("b", 0, 9),
        ("b", 9, 19),
        ("b", 19, 25),
    ]
