"""Stored sketches and groups come back bit by bit, or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import draw_rows, feature_map, weighted_rows

import dask_sketch as ds
from dask_sketch import (
    FeatureMap,
    Sketch,
    partial_sketch,
)
from dask_sketch.errors import (
    ArtifactError,
)
from dask_sketch.storage.artifact import write_dataset
from dask_sketch.storage.artifact_reader import read_dataset


@pytest.fixture
def sample(rng):
    x = rng.normal(size=(100, 3))
    x[3, 1] = np.nan
    fm = feature_map(center=[1.0, 2.0, 3.0])
    return partial_sketch(x, fm, rng.random(100), nan_policy="omit")


@pytest.fixture
def stored(sample, tmp_path):
    sample.to_zarr(tmp_path / "s.zarr")
    return tmp_path / "s.zarr"


@settings(max_examples=7)
@given(data=st.data())
def test_round_trip(data, tmp_path):
    x, w = data.draw(weighted_rows(max_rows=30))
    fm = feature_map(data.draw(st.sampled_from(["float32", "float64"])))
    sketch = partial_sketch(x, fm, w)
    if data.draw(st.booleans()):
        sketch = (sketch + sketch) - sketch
    sketch.to_zarr(tmp_path / "s.zarr", overwrite=True)
    again = ds.open(tmp_path / "s.zarr")
    assert again.identical(sketch)
    assert again.tight_bounds is sketch.tight_bounds
    assert (again + sketch).count == 2 * sketch.count


@pytest.mark.parametrize(
    "options",
    [
        {"covariances": [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]},
        {"scale": 1.0, "whitening": np.diag([1.0, 2.0, 3.0])},
    ],
)
def test_every_kind_of_map(options, tmp_path):
    fm = feature_map(**({"scale": None} | options))
    Sketch.empty(fm).to_zarr(tmp_path / "s.zarr")
    assert ds.open(tmp_path / "s.zarr").feature_map == fm


@pytest.mark.slow
def test_places(sample, tmp_path):
    sample.to_zarr(str(tmp_path / "a.zarr"))
    assert ds.open(str(tmp_path / "a.zarr")).identical(sample)
    sample.to_zarr(tmp_path / "new" / "folders" / "b.zarr")
    assert ds.open(tmp_path / "new" / "folders" / "b.zarr").identical(sample)
    sample.to_zarr(f"file://{tmp_path}/c.zarr")
    assert ds.open(f"file://{tmp_path}/c.zarr").identical(sample)
    memory = zarr.storage.MemoryStore()
    sample.to_zarr(memory)
    assert ds.open(memory).identical(sample)
    import fsspec

    try:
        sample.to_zarr("memory://dask-sketch-artifact/d.zarr")
        assert ds.open("memory://dask-sketch-artifact/d.zarr").identical(sample)
    finally:
        fsspec.filesystem("memory").rm("/dask-sketch-artifact", recursive=True)


@pytest.mark.parametrize("kind", ["path", "url", "memory"])
def test_nothing_is_overwritten_unasked(kind, sample, tmp_path):
    places = {
        "path": tmp_path / "s.zarr",
        "url": f"file://{tmp_path}/s.zarr",
        "memory": zarr.storage.MemoryStore(),
    }
    sample.to_zarr(places[kind])
    other = sample + sample
    with pytest.raises(ArtifactError, match="overwrite=True"):
        other.to_zarr(places[kind])
    assert ds.open(places[kind]).identical(sample)
    other.to_zarr(places[kind], overwrite=True)
    assert ds.open(places[kind]).identical(other)


def test_nothing_is_left_beside_it(sample, stored):
    sample.to_zarr(stored, overwrite=True)
    assert [p.name for p in stored.parent.iterdir()] == ["s.zarr"]


def test_no_pickle_and_no_surprise_in_the_files(stored):
    names = {p.name for p in stored.rglob("*") if p.is_file()}
    assert names <= {"zarr.json", "0", "c"}
    metadata = json.loads((stored / "zarr.json").read_text())
    attributes = metadata["attributes"]
    assert attributes["schema"] == "dask-sketch/sketch"
    assert attributes["schema_version"] == 2
    assert "eq. (13)" in attributes["convention"]
    for path in stored.glob("*/zarr.json"):
        assert json.loads(path.read_text())["data_type"] in ("float64", "int64")


def test_other_software_can_read_it(sample, stored):
    with xr.open_zarr(stored, consolidated=False) as dataset:
        total = int(dataset.attrs["weight_steps"]) * 2.0**-80
        steps = dataset["moment_high"] * 2.0**56 + dataset["moment_low"]
        real, imaginary = steps.values * 2.0**-71
        phase = np.exp(-1j * dataset["frequencies"].values.T @ dataset["center"].values)
        z = phase * (real + 1j * imaginary) / total / np.sqrt(dataset.sizes["frequency"])
        first = dataset["first_high"] * 2.0**56 + dataset["first_low"]
        mean = first * 2.0**-62 * dataset["unit"] / total + dataset["center"]
    np.testing.assert_allclose(z, sample.z, atol=1e-16)
    np.testing.assert_allclose(mean.values, sample.mean, rtol=1e-14)


def test_a_stored_sketch_outlives_a_change_of_generator(tmp_path):
    plain = feature_map(seed=4711)
    # as another random generator would have them
    cycles = (1.01 * plain.frequencies / (2 * np.pi)).astype("<f4")
    digest = hashlib.sha256(plain.spec.encode() + b"\0" + cycles.tobytes()).hexdigest()
    other = FeatureMap.from_spec(plain.spec, digest, cycles.astype(float) * (2 * np.pi))
    sketch = partial_sketch(np.ones((5, plain.n_features)), other)
    sketch.to_zarr(tmp_path / "other.zarr")
    again = ds.open(tmp_path / "other.zarr")
    assert again.identical(sketch)
    assert again.feature_map.digest == digest != plain.digest
    np.testing.assert_array_equal(again.z, sketch.z)


def test_missing(tmp_path):
    with pytest.raises(ArtifactError, match=r"nowhere\.zarr' does not exist"):
        ds.open(tmp_path / "nowhere.zarr")
    with pytest.raises(ArtifactError, match=r"store=.* cannot be read"):
        ds.open("memory://nowhere-at-all/s.zarr")
    with pytest.raises(ArtifactError, match=r"store=.* cannot be read"):
        ds.open(zarr.storage.MemoryStore())


def test_other_stores(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArtifactError, match=r"store=.* cannot be read"):
        ds.open(tmp_path / "empty")
    (tmp_path / "file").write_text("text")
    with pytest.raises(ArtifactError, match=r"store=.* cannot be read"):
        ds.open(tmp_path / "file")
    zarr.create_array(str(tmp_path / "array.zarr"), data=np.zeros(3))
    with pytest.raises(ArtifactError, match=r"array\.zarr"):
        ds.open(tmp_path / "array.zarr")
    zarr.open_group(tmp_path / "group.zarr", mode="w")
    with pytest.raises(ArtifactError, match="schema=None"):
        ds.open(tmp_path / "group.zarr")


def edit(store: Path, **changes):
    metadata = json.loads((store / "zarr.json").read_text())
    metadata["attributes"] |= changes
    (store / "zarr.json").write_text(json.dumps(metadata))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "dask-sketch/mixture"}, "schema='dask-sketch/mixture'"),
        ({"schema_version": 1}, "schema_version=1"),
        ({"weight_steps": "12"}, "checksum"),
        ({"count": 12}, "checksum"),
        ({"digest": "0" * 64}, "checksum"),
        ({"feature_map": "{}"}, "checksum"),
        ({"checksum": "0" * 64}, "checksum"),
        ({"checksum": None}, "checksum"),
        ({"surprise": 1}, "checksum"),
    ],
)
def test_edited_attributes(changes, message, stored):
    edit(stored, **changes)
    with pytest.raises(ArtifactError, match=message):
        ds.open(stored)


ARRAYS = ["moment_high", "moment_low", "frequencies", "center", "minimum", "first_low"]


def chunk_of(store, name):
    (file,) = (p for p in (store / name).rglob("*") if p.is_file() and p.name != "zarr.json")
    return file


DAMAGES = ["deleted", "truncated", "emptied", "flipped", "metadata", "gone"]


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "flipped") for name in ARRAYS[1:]), *(("moment_high", how) for how in DAMAGES)],
)
@pytest.mark.few_cases(5)
def test_damaged_arrays(name, how, stored):
    file = chunk_of(stored, name)
    raw = bytearray(file.read_bytes())
    if how == "deleted":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(raw[: len(raw) // 2])
    elif how == "emptied":
        file.write_bytes(b"")
    elif how == "flipped":
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)
    elif how == "metadata":
        (stored / name / "zarr.json").write_text("{")
    else:
        shutil.rmtree(stored / name)
    with pytest.raises(ArtifactError, match=r"s\.zarr"):
        ds.open(stored)


@pytest.mark.filterwarnings("ignore:Object at .* is not recognized")
@pytest.mark.parametrize("where", ["zarr.json", "moment_high/zarr.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
@pytest.mark.few_cases(4)
def test_damaged_metadata(where, text, stored):
    (stored / where).write_text(text)
    with pytest.raises(ArtifactError, match=r"s\.zarr"):
        ds.open(stored)


def test_a_file_that_claims_to_be_huge_is_not_read(stored):
    path = stored / "moment_high" / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["shape"] = [10**12]
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [10**12]
    path.write_text(json.dumps(metadata))
    with pytest.raises(ArtifactError, match="over the limit"):
        ds.open(stored)


def rewritten(sample, tmp_path, change):
    """A store whose checksum is right, but not what it holds."""
    write_dataset(change(sample.to_xarray()), tmp_path / "s.zarr", "dask-sketch/sketch", 2)
    return tmp_path / "s.zarr"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.assign(frequencies=d["frequencies"] * 1.01),
        lambda d: d.drop_vars("maximum"),
        lambda d: d.assign_attrs(digest="0" * 64),
        lambda d: d.assign_attrs(feature_map="[]"),
        lambda d: d.assign_attrs(weight_steps="heavy"),
        lambda d: d.assign_attrs(weight_steps="9" * 5000),
        lambda d: d.assign_attrs(squared_weight_steps="0"),
        lambda d: d.assign_attrs(squared_weight_steps=str(2**200)),
        lambda d: d.assign_attrs(squared_weight_steps="1"),
        lambda d: d.assign_attrs(weight_steps=str(2**128)),
        lambda d: d.assign_attrs(squared_weight_steps=str(10**400)),
        lambda d: d.assign_attrs(count=str(10**400)),
        lambda d: d.assign_attrs(omitted=str(2**63)),
        lambda d: d.assign(minimum=d["maximum"] + 1.0),
        lambda d: d.assign(maximum=d["maximum"] * np.nan),
        lambda d: d.assign(maximum=d["maximum"] * 0 + 1e300),
        lambda d: d.drop_attrs(),
        lambda d: d.assign(moment_high=("other", np.zeros(7, dtype=int))),
        lambda d: d.assign(moment_low=d["moment_low"] + 2**56),
        lambda d: d.assign(moment_low=-d["moment_low"]),
        lambda d: d.assign(moment_high=d["moment_high"] + 2**62),
        lambda d: d.assign(moment_high=d["moment_high"] + 2**45),
        lambda d: d.assign(second_high=-1 - d["second_high"]),
        lambda d: d.assign(unit=2 * d["unit"]),
        lambda d: d.assign(minimum=("other", np.zeros(7))),
        lambda d: d.assign(second_low=("other", np.zeros(1, dtype=int))),
        lambda d: d.assign(moment_high=d["moment_high"][0]),
        lambda d: d.assign(first_high=d["first_high"].astype("i4")),
        lambda d: d.assign_attrs(weight_steps="-1"),
        lambda d: d.assign_attrs(count=-1),
        lambda d: d.assign(moment_high=d["moment_high"] * np.nan),
    ],
)
@pytest.mark.few_cases(8)
def test_content_that_is_no_sketch(change, sample, tmp_path):
    with pytest.raises(ArtifactError, match=r"s\.zarr"):
        ds.open(rewritten(sample, tmp_path, change))


@pytest.fixture
def speakers(rng):
    x = draw_rows(0, 600, 3)
    names = np.array(["ann", "bob", "eve", "kim"])[rng.integers(0, 4, 600)]
    fm = feature_map("float32")
    return x, names, fm, partial_sketch(x, fm, groups=names, dim="speaker")


def test_stored_groups_prove_themselves(speakers, tmp_path):
    group = speakers[3]
    place = tmp_path / "groups.zarr"
    group.to_zarr(place)
    again = ds.open(place)
    assert again.identical(group)
    assert (again.dim, again["bob"].z.tolist()) == ("speaker", group["bob"].z.tolist())
    with pytest.raises(ArtifactError, match="exists"):
        group.to_zarr(place)
    group.to_zarr(place, overwrite=True)
    zarr.open_group(place, mode="r+")["count"][0] = 5
    with pytest.raises(ArtifactError, match="checksum"):
        ds.open(place)
    with pytest.raises(ArtifactError, match="does not exist"):
        ds.open(tmp_path / "nothing.zarr")


GROUPS = ("dask-sketch/sketch-group", 1)


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """Stored content of sketches of groups."""
    place = tmp_path_factory.mktemp("groups") / "fine.zarr"
    labels = np.array(["ann", "bob", "eve", "kim"])[np.arange(600) % 4]
    partial_sketch(draw_rows(0, 600, 3), feature_map("float32"), groups=labels).to_zarr(place)
    return read_dataset(place, dict([GROUPS]))


@pytest.mark.parametrize(
    "change",
    [
        {"labels": lambda v: v[::-1]},
        {"labels": lambda v: v + np.uint32(0x110000)},
        {"count": lambda v: -v},
        {"count": lambda v: v.astype(np.int32)},
        {"weight_steps": lambda v: -v},
        {"moment_steps": lambda v: np.concatenate([v.astype(np.int64) - 1] * 2)},
        {"moment_steps": lambda v: np.full(v.shape, 2**62)},
        {"minimum": lambda v: v[:, :2]},
        {"minimum": lambda v: v + 1e6},
        {"unit": lambda v: 2 * v},
        {"shifts": lambda v: "{}"},
        {"shifts": lambda v: v.replace("49", "-1")},
        {"label_type": lambda v: "O"},
        {"unlabelled": lambda v: -1},
        {"weight_steps": lambda v: v[:0]},
        {"squared_weight_steps": np.zeros_like},
    ],
)
@pytest.mark.few_cases(4)
def test_what_no_groups_have_is_refused(change, content, tmp_path):
    dataset = content.copy()
    for name, changed in change.items():
        if name in dataset.attrs:
            dataset.attrs[name] = changed(dataset.attrs[name])
        else:
            values = changed(dataset[name].values)
            dims = [f"{name}_new_{axis}" for axis in range(values.ndim)]
            dataset = dataset.drop_vars(name).assign({name: (dims, values)})
    write_dataset(dataset, tmp_path / "edited.zarr", *GROUPS)
    with pytest.raises(ArtifactError, match=r"edited|damaged|unreadable"):
        ds.open(tmp_path / "edited.zarr")


def test_a_sketch_is_read_from_its_bytes(sample: Sketch) -> None:
    value = sample.to_bytes()
    for each in (value, bytearray(value), memoryview(value)):
        assert Sketch.from_bytes(each).identical(sample)
    exact, small = sample.rounded(), sample.to_bytes(rounded=True)
    assert Sketch.from_bytes(small).rounding_error == exact.rounding_error


def test_a_sketch_is_read_from_no_other_bytes(sample: Sketch) -> None:
    model = ds.GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    for value in (model.to_bytes(), sample.to_bytes()[:-20], b"abc", b""):
        with pytest.raises(ArtifactError, match=f"{len(value):,} bytes"):
            Sketch.from_bytes(value)
    with pytest.raises(ds.SketchError, match=r"value.*PosixPath|value.*str"):
        Sketch.from_bytes("sketch.zarr")  # type: ignore[arg-type]
