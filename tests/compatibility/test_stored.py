"""Artifacts that an earlier version stored still open, and the same data have the same sums."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import dask_sketch as ds
from compatibility import again_from, cases, format_reader, format_values, later
from dask_sketch.jobs.ledger import Partition

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
LATER = json.loads((HERE / "later.json").read_text(encoding="utf-8"))
SKETCHES = {f"{name}.sketch.zarr": case for name, case in cases.SKETCHES.items()}
GROUPS = {f"{name}.group.zarr": case for name, case in cases.GROUPS.items()}
LEDGERS = {f"{name}.ledger.zarr": case for name, case in cases.LEDGERS.items()}

open_sketch = open_group = open_model = open_map = ds.open


def fingerprint(sketch, folder):
    sketch.to_zarr(folder / "again.zarr", overwrite=True)
    return cases.fingerprint(folder / "again.zarr")


def test_nothing_is_missing(stored):
    assert {path.name for path in stored.iterdir()} == set(EXPECTED)
    assert set(SKETCHES) | set(GROUPS) | set(LEDGERS) < set(EXPECTED)


@pytest.mark.parametrize("name", SKETCHES)
def test_sketches(name, stored, tmp_path):
    case = SKETCHES[name]
    old = open_sketch(stored / name)
    assert fingerprint(old, tmp_path) == cases.fingerprint(stored / name) == EXPECTED[name]

    again = again_from.sketch(case)
    assert fingerprint(again, tmp_path) == EXPECTED[name]
    assert again.identical(old)


@pytest.mark.parametrize("name", GROUPS)
def test_groups(name, stored, tmp_path):
    case = GROUPS[name]
    old = open_group(stored / name)
    assert fingerprint(old, tmp_path) == cases.fingerprint(stored / name) == EXPECTED[name]

    again = again_from.group(case)
    assert fingerprint(again, tmp_path) == EXPECTED[name]
    assert again.identical(old)
    for label, sketch in old.items():  # each group has the bits of its samples alone
        alone = again_from.sketch_of(case, case["labels"] == label)
        assert alone.identical(sketch)


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith(".model.zarr")])
def test_models(name, stored, tmp_path):
    model, expected = open_model(stored / name), dict(EXPECTED[name])
    record, errors = expected.pop("decoding"), expected.pop("stderr", {})
    for field, values in expected.items():
        np.testing.assert_array_equal(getattr(model, field), values, err_msg=field)
    for field, values in errors.items():
        np.testing.assert_array_equal(getattr(model.stderr, field), values, err_msg=field)
    assert {field: getattr(model.decoding, field) for field in record} == record
    model.to_zarr(tmp_path / "again.zarr")
    assert open_model(tmp_path / "again.zarr").decoding == model.decoding


def test_feature_map(stored):
    found, expected = open_map(stored / "map.json"), EXPECTED["map.json"]
    assert found.digest == expected["digest"]
    assert json.loads(found.spec) == expected["spec"]
    assert json.loads(found.to_json()) == json.loads((stored / "map.json").read_text("utf-8"))


@pytest.mark.parametrize("name", LEDGERS)
def test_ledgers(name, stored, tmp_path):
    case, expected = LEDGERS[name], EXPECTED[name]
    ledger = ds.open_ledger(str(stored / name))
    assert fingerprint(ledger.total(), tmp_path) == expected["total"]
    assert {key: e.fingerprint for key, e in ledger.entries.items()} == expected["fingerprints"]
    assert {key: e.count for key, e in ledger.entries.items()} == expected["counts"]
    assert sorted(ledger.forgotten) == expected["forgotten"]
    assert dict(ledger.quarantined) == expected["quarantined"]
    assert ledger.next_run == expected["next_run"]
    assert [run for run, _ in ledger.states(9)] == expected["states"]
    models = [name for record in ledger.history() for name in record.models]
    assert sorted(models) == expected["models"]
    for model, centers in case.get("models", {}).items():
        assert ledger.model(name=model).centers[:, 0].tolist() == list(centers)

    feature_map, found = again_from.map_of(case), cases.partitions(case)
    parts = {key: ds.partial_sketch(x, feature_map) for key, (_, x) in found.items()}
    assert fingerprint(ds.merge(list(parts.values())), tmp_path) == expected["total"]
    assert ledger.verify(1.0, 0, lambda keys: {key: parts[key] for key in keys}).is_sound
    for key in expected["forgotten"]:  # its samples are in no object that is left
        assert not ledger.compare([Partition(key, "2")]).new

    new = ds.partial_sketch(cases.samples(99, 30, 3), feature_map)
    before = ledger.total()
    with ledger.lock():
        ledger.commit([(Partition("new", "1"), new)])
    assert ds.open_ledger(str(stored / name)).total().identical(before + new)


@pytest.mark.parametrize("name", later.VALUES)
def test_values_of_later_kinds(name):
    value = later.stored()[name]
    old = ds.open(value)
    assert later.fingerprint(value) == LATER[name]
    if name in later.FITTED:  # parameters may be added to their settings
        assert later.fingerprint(old.to_bytes())["sha256"] == LATER[name]["sha256"]
        return
    assert later.fingerprint(old.to_bytes()) == LATER[name]
    assert later.fingerprint(later.VALUES[name]().to_bytes()) == LATER[name]
    if isinstance(old, ds.Sketch):
        found = format_reader.read(value)
        np.testing.assert_allclose(format_values.sketch_z(found), old.z, atol=1e-15)


def test_there_are_twenty_vectors():
    assert set(LATER) == set(later.VALUES) == set(later.stored())
    assert len(SKETCHES) + len(GROUPS) + len(LATER) >= 20
