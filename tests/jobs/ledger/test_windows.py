"""Windows of a ledger, and the test of the newest one against the others."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import create_ledger, partial_sketch
from dask_sketch.distributions import compare
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.jobs.ledger import Partition, RunRecord
from dask_sketch.jobs.ledger.windows import window_keys
from dask_sketch.sketching.group import SketchGroup

N_NIGHTS = 21


@pytest.fixture(scope="module")
def nights(tmp_path_factory, feature_map):
    """Two partitions a night; on weekends and in the last two nights, from elsewhere."""
    ledger = create_ledger(tmp_path_factory.mktemp("nights") / "ledger.zarr", feature_map)
    rng = np.random.default_rng(0)
    with ledger.lock():
        for night in range(1, N_NIGHTS + 1):
            shift = 3.0 * (night % 7 in (0, 6)) + 1.5 * (night > N_NIGHTS - 2)
            rows = rng.normal(size=(2, 60, 2)) + 0.2 * rng.normal(size=(2, 1, 2)) + shift
            added = [
                (
                    Partition(f"{night:02d}{part}", "v0", 60, 100),
                    partial_sketch(x, feature_map),
                )
                for part, x in zip("ab", rows, strict=True)
            ]
            start = f"2026-06-{night:02d}T02:00:00+00:00"  # the first one is a Monday
            ledger.commit(added=added, run=RunRecord(night, start, start, "done"))
    return ledger


@pytest.mark.parametrize(
    ("window", "first"),
    [(1, 21), (3, 19), ("1 day", 21), ("7 days", 15), ("36 hours", 20), (99, 1)],
)
@pytest.mark.few_cases(2)
def test_windows_end_with_the_newest_run(nights, window, first):
    found = window_keys(nights.entries, nights.history(), window, "window")
    assert [int(key[:2]) for key in found] == sorted([*range(first, 22)] * 2, reverse=True)


def test_a_window_before_another_one(nights):
    later = ["20a", "21a", "21b"]
    found = window_keys(nights.entries, nights.history(), 2, "reference", later)
    assert set(found) == {"19a", "19b", "18a", "18b"}
    found = window_keys(nights.entries, nights.history(), lambda key: key > "20", "x", later)
    assert found == ["20b"]


@pytest.mark.parametrize("window", [0, True, 1.5, "soon", "NaT", "-1 day"])
def test_bad_windows(nights, window):
    with pytest.raises(LedgerError, match=f"window={window!r}"):
        nights.drift(window)
    with pytest.raises(LedgerError, match=r"reference='1 day'.* 0 to choose"):
        nights.drift("90 days", reference="1 day")


def test_a_first_run_has_nothing_to_compare_with(tmp_path, feature_map):
    ledger = create_ledger(tmp_path / "ledger.zarr", feature_map)
    rows = np.random.default_rng(0).normal(size=(3, 60, 2))
    added = [
        (Partition(f"{i}", "v0", 60, 100), partial_sketch(rows[i], feature_map)) for i in (0, 1, 2)
    ]
    start = "2026-06-01T02:00:00+00:00"
    with ledger.lock():
        ledger.commit(added=added, run=RunRecord(1, start, start, "done"))
    with pytest.raises(LedgerError, match="all 3 partitions") as caught:
        ledger.drift()
    assert caught.value.parameter is None  # no option was given that could be named
    with pytest.raises(LedgerError, match="window=1 holds all 3 partitions") as caught:
        ledger.drift(1)
    assert caught.value.parameter == "window"
    assert ledger.drift(lambda key: key == "2", level=0.5).n_units == (1, 2)


def test_weekends_are_no_drift_and_a_change_is(nights):
    assert nights.drift("2 days", strata="weekday", level=0.1).is_different
    before = {key for key in nights.entries if int(key[:2]) <= N_NIGHTS - 2}
    weekend = {key for key in before if int(key[:2]) in (13, 14)}
    kept = {"window": weekend.__contains__, "reference": (before - weekend).__contains__}
    assert nights.drift(**kept).is_different
    found = nights.drift(**kept, strata="weekday", level=0.1)
    assert not found.is_different
    assert found.n_strata == 7
    assert found.dim == "partition"
    assert found.n_units == (4, 34)


def test_the_same_as_comparing_the_sketches(nights):
    found = nights.drift(3, reference=8, seed=2)
    keys = [
        sorted(key for key in nights.entries if int(key[:2]) in range(*ends))
        for ends in ((19, 22), (11, 19))
    ]
    sides = [
        SketchGroup.from_sketches({k: nights.sketch_of(k) for k in side}, "partition")
        for side in keys
    ]
    assert found == compare(*sides, seed=2)
    odd = [int(key[1:2]) % 2 for side in keys for key in side]
    by_key = nights.drift(3, reference=8, seed=2, strata=lambda key: int(key[1:2]) % 2)
    assert by_key == compare(*sides, seed=2, strata=odd)


def test_runs_as_units(nights):
    found = nights.drift(5, unit="run", max_units=10)
    assert found.n_units == (5, 10)
    sides = [
        {n: nights.sketch_of(f"{n:02d}a") + nights.sketch_of(f"{n:02d}b") for n in range(*ends)}
        for ends in ((17, 22), (7, 17))
    ]
    assert found == compare(*(SketchGroup.from_sketches(side, "run") for side in sides))
    assert nights.drift(5, unit="run", strata="weekday", level=0.2).n_strata == 7


def test_runs_that_depend_on_their_neighbours(nights):
    found = nights.drift(2, unit="run", serial=True, strata="weekday", level=0.1)
    assert (found.n_permutations, found.p_value) == (21, 1 / 21)
    assert nights.drift(unit="run", serial=True, level=0.1).n_units == (1, 20)
    with pytest.raises(InputError, match=r"level=0\.01"):
        nights.drift(unit="run", serial=True, level=0.01)
    with pytest.raises(LedgerError, match=r"unit='partition' with serial=True"):
        nights.drift(2, serial=True)
    assert nights.change_points(serial=True, level=0.2, n_permutations=99).n_units == 21


def test_the_default_window_is_long_enough_for_the_level(nights):
    assert nights.drift(level=0.05).n_units == (2, 40)
    assert nights.drift(level=0.001, n_permutations=2000).n_units == (4, 38)
    assert nights.drift(level=0.05, reference=3).n_units == (2, 6)
    with pytest.raises(InputError, match=r"level=1e-30"):
        nights.drift(level=1e-30)


def test_bad_arguments(nights):
    with pytest.raises(LedgerError, match="unit='night'"):
        nights.drift(unit="night")
    with pytest.raises(LedgerError, match="strata='month'"):
        nights.drift(strata="month")
    with pytest.raises(LedgerError, match="unit='run'"):
        nights.drift(unit="run", strata=len)
    with pytest.raises(LedgerError, match="max_units=1"):
        nights.drift(max_units=1)
    with pytest.raises(InputError, match=r"level=0\.001"):
        nights.drift(1, reference=2, level=0.001)


def test_the_weekday_of_a_run_without_record_is_unknown(ledger, world):
    with ledger.lock():
        ledger.commit(added=world.new("a", "b", "c"))
    with pytest.raises(LedgerError, match="run 1"):
        ledger.drift("ab".__contains__, strata="weekday", level=0.5)


def test_spans_of_time_need_a_record(ledger, world):
    with ledger.lock():
        ledger.commit(added=world.new("a", "b", "c"))
    with pytest.raises(LedgerError, match="window='3 days'.*no record"):
        ledger.window("3 days")
    assert ledger.window(1).identical(ledger.total())


def test_partitions_of_the_run_under_way_are_the_newest(tmp_path, feature_map):
    ledger, rng = create_ledger(tmp_path / "ledger.zarr", feature_map), np.random.default_rng(0)
    for run in (1, 2):
        rows = rng.normal(size=(6, 40, 2)) + 2.0 * (run == 2)
        added = [
            (Partition(f"{run}{part}", "v0", 40, 100), partial_sketch(x, feature_map))
            for part, x in zip("abcdef", rows, strict=True)
        ]
        start = f"2026-06-{run:02d}T02:00:00+00:00"
        with ledger.lock():
            ledger.commit(added=added, run=RunRecord(1, start, start, "done") if run == 1 else None)
    assert ledger.window("1 hour").count == 12 * 40  # the second run has no time yet
    assert ledger.window(1).count == 6 * 40
    ledger.run_started = start
    assert ledger.drift("1 hour", n_permutations=99).n_units == (6, 6)
    assert ledger.window("1 hour").identical(ledger.total([f"2{part}" for part in "abcdef"]))
    assert ledger.window("9 days").count == 12 * 40
    with pytest.raises(InputError, match=r"level=0\.05"):
        ledger.drift(strata="weekday")  # each run has another weekday
    with pytest.raises(LedgerError, match=r"window='9 days' .* 12 partitions"):
        ledger.drift("9 days")
    (change,) = ledger.change_points(unit="partition", n_permutations=99).points
    assert (change.label, change.position, change.date) == (2, 6, "2026-06-02")
    with pytest.raises(LedgerError, match="unit='night'"):
        ledger.change_points(unit="night")


@pytest.mark.parametrize("window", [None, 1, "7 days", lambda key: key.endswith("a")])
def test_the_sketch_of_a_window_is_the_sum_of_its_partitions(nights, window):
    keys = sorted(nights.entries)
    if window is not None:
        keys = window_keys(nights.entries, nights.history(), window, "window")
    assert nights.window(window).identical(nights.total(keys))


def test_a_window_that_moves_reads_what_is_new(tmp_path, feature_map, monkeypatch):
    ledger = create_ledger(tmp_path / "ledger.zarr", feature_map)
    rng = np.random.default_rng(0)
    read, total = [], ledger.total

    def recorded(keys=None, **options):
        read.append(keys and sorted(keys))
        return total(keys, **options)

    monkeypatch.setattr(ledger, "total", recorded)
    sketches = [partial_sketch(rng.normal(size=(20, 2)), feature_map) for _ in range(5)]

    def add(night, version="v0", key=None):
        start = f"2026-06-{night:02d}T02:00:00+00:00"
        added = [(Partition(key or f"{night}", version, 20, 100), sketches[night - 1])]
        with ledger.lock():
            ledger.commit(added=added, run=RunRecord(night, start, start, "done"))

    for night in (1, 2, 3):
        add(night)
    assert ledger.window(np.int64(2)).identical(sketches[1] + sketches[2])
    add(4)
    read.clear()
    assert ledger.window(2).identical(sketches[2] + sketches[3])
    assert read == [["4"]]
    add(5, "v1", "3")  # another version of a partition belongs to the run that read it
    assert ledger.window(2).identical(sketches[3] + sketches[4])
    with ledger.lock():
        ledger.forget(["4"])
    assert ledger.window("9 days").identical(sketches[0] + sketches[1] + sketches[4])


def test_a_clock_that_was_wrong_in_one_run(tmp_path, feature_map):
    ledger = create_ledger(tmp_path / "ledger.zarr", feature_map)
    parts = [partial_sketch(np.full((n, 2), 0.1 * n), feature_map) for n in (1, 2, 4)]
    days = ("2026-06-01", "2099-01-01", "2026-06-02")
    with ledger.lock():
        for n, (day, part) in enumerate(zip(days, parts, strict=True), 1):
            start = f"{day}T02:00:00+00:00"
            run = RunRecord(n, start, start, "done")
            ledger.commit(added=[(Partition(str(n), "v0", 1, 1), part)], run=run)
    with pytest.warns(UserWarning, match=r"window='7 days'.*run 3 .*run 2 at 2099"):
        assert ledger.window("7 days").identical(parts[0] + parts[2])
    with pytest.warns(UserWarning, match=r"half_life='1 day'.*run 3 .*run 2 at 2099"):
        assert ledger.window(half_life="1 day").identical(parts[0].scale(0.5) + parts[2])
    assert ledger.window(2).identical(parts[1] + parts[2])


def test_weights_decay_with_age(nights):
    found = nights.window("3 days", half_life="1 day")
    by_night = [nights.total([f"{night}a", f"{night}b"]) for night in (19, 20, 21)]
    expected = by_night[0].scale(0.25) + by_night[1].scale(0.5) + by_night[2]
    assert found.identical(expected)
    # beyond 32 halvings samples weigh less than any may, and are left out
    last_two = nights.window(half_life="40 minutes")
    assert last_two.count == by_night[2].count
    with pytest.raises(LedgerError, match="half_life='soon'"):
        nights.window(half_life="soon")


def test_the_run_since_which_data_has_changed(nights):
    found = nights.change_points(n_permutations=99, min_units=2)
    assert found.dim == "run"
    assert found.n_units == N_NIGHTS
    assert {one.label for one in found.points} <= {6, 8, 13, 15, 20}  # weekends, and the last two
    assert (found.points[-1].label, found.points[-1].date) == (20, "2026-06-20")
    weekdays = nights.change_points("14 days", strata="weekday", n_permutations=99)
    assert weekdays.n_strata == 7
    assert nights.change_points(10, n_permutations=99).n_units == 10
    with pytest.raises(LedgerError, match="strata='month'"):
        nights.change_points(strata="month")
    with pytest.raises(InputError, match=r"window=3 has 3 units: .*min_units"):
        nights.change_points(3)
    with pytest.raises(InputError, match="n_permutations=2"):
        nights.change_points(n_permutations=2)


def test_no_change_points_of_an_empty_ledger(tmp_path, feature_map):
    with pytest.raises(LedgerError, match="no partitions"):
        create_ledger(tmp_path / "empty.ledger", feature_map).change_points()
