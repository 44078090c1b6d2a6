"""Ledgers of second moments: the total has the bits of one pass over what is left."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs.ledger.world import Nights, World, record

import dask_sketch as ds
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.jobs.ledger import Partition, manifest, moment_arrays
from dask_sketch.jobs.ledger.backends import open_backend
from dask_sketch.jobs.ledger.objects import fresh_name, with_checksum, write_group
from dask_sketch.jobs.past_models import model_history
from dask_sketch.sketching.partial_moments import partial_moments

UNITS = [0.5, 4.0, 1.0]
GRIDS = {
    "all": ds.MomentGrid([0.1, 0.2, -3.0], UNITS, feature_names=("a", "b", "c")),
    "columns": ds.MomentGrid([0.1, 0.2, -3.0], [1.0] * 3, 2, seed=5),
    "pairwise": ds.MomentGrid([0.1, 0.2, -3.0], UNITS, pairwise=True),
}
grids = pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
GRID = GRIDS["all"]


@pytest.fixture
def moments(tmp_path):
    """An empty ledger of second moments, and its partitions."""
    return ds.create_ledger(tmp_path / "moments.zarr", GRID), World(GRID)


def one_pass(world, versions):
    """Second moments of all rows of some partitions, in one lazy pass."""
    rows = np.concatenate([world.rows(key, version) for key, version in versions.items()])
    lazy = da.from_array(rows, chunks=(7, rows.shape[1]))
    policy = "available" if world.feature_map.pairwise else "raise"
    return ds.sketch(lazy, world.feature_map, nan_policy=policy).compute()


@grids
def test_nights_have_the_bits_of_one_pass(grid):
    world, place = World(grid), f"memory://nights-{uuid.uuid4()}/ledger.zarr"
    Nights(world, 3).run(ds.create_ledger(place, grid))
    again = ds.open_ledger(place)
    assert again.feature_map == grid
    assert again.feature_map.feature_names == grid.feature_names
    versions = Nights(world, 3).expected(3)
    total = again.total()
    assert total == one_pass(world, versions) == again.total(versions)
    for key, version in versions.items():
        assert again.sketch_of(key) == world.sketch(key, version)
    k = None if total.is_complete else 1
    with pytest.warns(UserWarning, match="n_columns=2") if k else nullcontext():
        assert ds.SketchPCA(k).fit(total).n_samples_ == total.count
    nights = Nights(world, 3)
    states = dict(again.states(3))
    assert states
    assert all(state == nights.total(nights.expected(night)) for night, state in states.items())
    chosen = again.verify(1, 0, lambda keys: {k: world.sketch(k, versions[k]) for k in keys})
    assert chosen.is_sound
    assert again.verify(0.5, 0, lambda keys: {k: world.sketch("other") for k in keys}).differing


@settings(max_examples=6)
@given(data=st.data())
def test_any_history_has_the_bits_of_one_pass(data):
    world = World(GRID)
    ledger = ds.create_ledger(f"memory://moments-{uuid.uuid4()}", GRID)
    live: dict[str, int] = {}
    with ledger.lock():
        for step in range(data.draw(st.integers(1, 6))):
            fresh = data.draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=4))
            out = [key for key in data.draw(st.sets(st.sampled_from("abcdef"))) if key in live]
            if data.draw(st.booleans()):
                ledger.forget(out)
                live = {key: version for key, version in live.items() if key not in out}
                out = []
            fresh = [key for key in fresh if key not in ledger.forgotten]
            ledger.commit(added=[p for k in fresh for p in world.new(k, version=step)], removed=out)
            live = {k: v for k, v in live.items() if k not in out} | dict.fromkeys(fresh, step)
    found = ds.open_ledger(ledger.label).total()
    assert found == (one_pass(world, live) if live else ds.SecondMoments.empty(GRID))


def test_weights_and_omitted_rows(moments):
    ledger, world = moments
    rng = np.random.default_rng(0)
    x, w = world.rows("a"), np.exp(rng.normal(size=len(world.rows("a"))))
    x[0, 1] = np.nan
    parts = [ds.sketch(x, GRID, w, nan_policy="omit"), ds.sketch(x[1:], GRID, w[1:] * 2.0**-20)]
    with ledger.lock():
        ledger.commit(added=[(Partition(key, "1"), p) for key, p in zip("ab", parts, strict=True)])
        assert ledger.total() == parts[0] + parts[1]
        assert ledger.total().omitted == 1
        assert ds.open_ledger(ledger.label).sketch_of("a") == parts[0]
        ledger.commit(removed=["a"])
    assert ds.open_ledger(ledger.label).total() == parts[1]


def test_erased_rows_are_in_no_object(moments):
    ledger, world = moments
    with ledger.lock():
        ledger.commit(added=world.new("a", "b", "c"), run=record(1))
    ledger.forget(["b"])
    gone = moment_arrays.stack([world.sketch("b")], GRID)["words"][0]
    root = zarr.open_group(ledger.label, mode="r")
    stored = [
        zarr.open_array(place, mode="r")[...]
        for folder in ("batches", "totals")
        for place in Path(ledger.label).glob(f"{folder}/*/words")
    ]
    assert root.attrs["schema_version"] == 3
    assert stored
    assert not any((row == gone).all() for words in stored for row in words)
    assert ledger.total() == world.total("ac")
    assert ledger.forgotten == {"b"}
    with ledger.lock(), pytest.raises(LedgerError, match="'b' was forgotten"):
        ledger.commit(added=world.new("b"))


def test_windows_and_half_life(moments):
    ledger, world = moments
    with ledger.lock():
        for night, key in enumerate("abc", 1):
            start = f"2026-06-{night:02d}T02:00:00+00:00"
            run = replace(record(night), started=start, ended=start)
            ledger.commit(added=world.new(key), run=run)
    assert ledger.window(2) == world.total("bc")
    found = ledger.window(half_life="1 day")
    parts = zip("abc", (0.25, 0.5, 1.0), strict=True)
    assert found == sum(world.sketch(key).scale(weight) for key, weight in parts)
    rows = [world.rows(key) for key in "abc"]
    weights = np.repeat([0.25, 0.5, 1.0], [len(x) for x in rows])
    expected = np.cov(np.concatenate(rows).T, aweights=weights)
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-7)


@pytest.mark.parametrize("factor", [-1.0, 2.0**-33, 2.0**33, "two", np.nan])
def test_factors_out_of_range(factor):
    with pytest.raises(InputError, match=r"factor="):
        ds.SecondMoments.empty(GRID).scale(factor)


def test_what_a_ledger_of_moments_refuses(moments, tmp_path, feature_map):
    ledger, world = moments
    with ledger.lock():
        ledger.commit(added=world.new("a"), run=record(1))
        for sums in (
            ds.partial_sketch(np.zeros((3, 2)), feature_map),
            partial_moments(np.zeros((3, 3)), replace(GRID, center=[0.0, 0.0, 0.0])),
            "sums",
        ):
            with pytest.raises(LedgerError, match="'x'"):
                ledger.commit(added=[(Partition("x", "1"), sums)])
    for refused in (ledger.drift, ledger.change_points, lambda: model_history(ledger, 2)):
        with pytest.raises(LedgerError, match="second moments"):
            refused()
    with pytest.raises(InputError, match="sample=5"):
        ds.create_ledger(tmp_path / "rows.zarr", GRID, sample=5)
    large = ds.MomentGrid(np.zeros(200_000), np.ones(200_000), 1000)
    with pytest.raises(InputError, match="n_columns=1000"):
        ds.create_ledger(tmp_path / "large.zarr", large)
    assert not list(tmp_path.glob("[rl]*.zarr"))
    sketches = ds.create_ledger(tmp_path / "sketches.zarr", feature_map)
    with sketches.lock(), pytest.raises(LedgerError, match="'a'"):
        sketches.commit(added=world.new("a"))


def test_descriptions(moments):
    ledger, world = moments
    with ledger.lock():
        ledger.commit(added=world.new("a"))
    assert GRID.digest[:12] in repr(ledger)
    assert GRID.digest[:12] in ledger._repr_html_()


def test_earlier_software_refuses_moments(moments, monkeypatch):
    monkeypatch.setattr(manifest, "ROOT_VERSIONS", (1, 2))
    with pytest.raises(LedgerError, match="schema version 3"):
        ds.open_ledger(moments[0].label)


def test_rows_come_back():
    parts = [partial_moments(np.full((n, 3), 1.5), GRID) for n in (1, 4)]
    arrays = moment_arrays.stack(parts, GRID)
    assert [moment_arrays.unstack(arrays, row, GRID, "batch") for row in (0, 1)] == parts


@pytest.mark.parametrize(
    ("word", "value"),
    [(0, -1), (1, -1), (0, 0), (5, -1), (9, -1), (-1, -1), (5, 2**62), (4, 2**60), (0, 1)],
)
def test_impossible_numbers_are_refused(word, value):
    arrays = moment_arrays.stack([partial_moments(np.full((3, 3), 1.5), GRID)] * 2, GRID)
    arrays["words"][1, word] = value
    moment_arrays.unstack(arrays, 0, GRID, "batch")
    with pytest.raises(LedgerError, match="batch holds impossible"):
        moment_arrays.unstack(arrays, 1, GRID, "batch")


def test_edited_grids_are_refused(moments, tmp_path):
    large = ds.MomentGrid(np.zeros(30_000), np.ones(30_000))
    manifest.write_root(open_backend(tmp_path / "large.zarr"), large, None)
    with pytest.raises(LedgerError, match="30,000 features"):
        ds.open_ledger(tmp_path / "large.zarr")
    for change in ({"digest": "0" * 64}, {"spec": "{}"}):
        backend = open_backend(tmp_path / f"{next(iter(change))}.zarr")
        stated = {"spec": GRID.spec, "digest": GRID.digest} | change
        reference = write_group(backend, fresh_name("grid", 0), {}, stated)
        content = {"grid": reference.to_json()}
        backend.write_new("zarr.json", with_checksum(manifest.ROOT_SCHEMA, 3, content))
        with pytest.raises(LedgerError, match=r"spec|digest"):
            ds.open_ledger(backend.label)
