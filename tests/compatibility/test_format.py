"""Artifacts agree with FORMAT.md: a reader that was written from that page alone reads them."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import dask_sketch as ds
from compatibility import cases, later
from compatibility import format_reader as reader
from compatibility import format_sums as sums
from compatibility import format_values as values
from compatibility.test_stored import GROUPS, SKETCHES
from dask_sketch.sketching.quantized_phases import quantize_phases
from dask_sketch.validation.choices import DISTRIBUTIONS

X = np.random.default_rng(0).normal(size=(300, 7)) + 3.0
STORED = {name: reader.read(value) for name, value in later.stored().items()}
SPECIFICATIONS = (
    {
        f"{law}-{n_features}-{m}-{kind}": (law, n_features, m, kind)
        for law in DISTRIBUTIONS
        for n_features, m, kind in [(3, 64, "plain"), (7, 33, "white"), (6, 50, "several")]
        if law != "gaussian-pairs"  # which has other numbers of frequencies
    }
    | {
        f"gaussian-pairs-{n_features}-{m}-{kind}": ("gaussian-pairs", n_features, m, kind)
        for n_features, m, kind in [(3, 672, "plain"), (7, 96, "white"), (6, 4352, "several")]
    }
    | {
        f"sparse-windows-{n_features}-{m}-{kind}": ("sparse-windows", n_features, m, kind)
        for n_features, m, kind in [(13, 200, "plain"), (30, 500, "white"), (50, 900, "several")]
    }
    | {"dense-sums-7-100-axes": ("dense-sums", 7, 100, "axes")}
)


def feature_map(law, n_features, m, kind, seed=3):
    several = np.exp(np.random.default_rng(1).normal(size=(3, n_features)))
    whitening = np.eye(n_features) + 0.1 * np.arange(n_features)
    axes = [whitening.T, 2.0 * np.eye(n_features), np.diag(several[0])]
    return ds.FeatureMap(
        n_features,
        m,
        distribution=law,
        seed=seed,
        **({"covariances": several, "covariance_weights": [1, 2, 1]} if kind == "several" else {}),
        **({"scale": 1.5} if kind != "several" else {}),
        **({"whitening": whitening} if kind == "white" else {}),
        **({"axes": axes} if kind == "axes" else {}),
    )


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_frequencies_follow_from_the_specification(name):
    found = feature_map(*SPECIFICATIONS[name])
    read = reader.read(ds.Sketch.empty(found).to_bytes())
    np.testing.assert_array_equal(read["cycles"].T, found.cycles_per_unit)
    np.testing.assert_allclose(values.radians(read), found.frequencies, rtol=1e-12)


@pytest.mark.parametrize("law", ["sparse-radius", "gaussian"])
@pytest.mark.parametrize(
    ("levels", "m"),
    [({1: "abc", 2: [False, True], 4: range(7)}, 90), ({0: "ab"}, 20), ({0: range(9)}, 3)],
)
def test_frequencies_of_categorical_features(law, levels, m):
    d = 5 if len(levels) > 1 else 1
    several = np.exp(np.random.default_rng(1).normal(size=(3, d)))
    for given in ({"scale": 1.5}, {"covariances": several, "covariance_weights": [1, 2, 1]}):
        categories = {column: list(one) for column, one in levels.items()}
        found = ds.FeatureMap(d, m, distribution=law, seed=3, categories=categories, **given)
        read = reader.read(ds.Sketch.empty(found).to_bytes())
        np.testing.assert_array_equal(read["cycles"].T, found.cycles_per_unit)


def test_the_reader_is_short_and_needs_little():
    text = Path(reader.__file__).read_text("utf-8")
    assert len(text.splitlines()) < 170
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)]
    modules = {name.name for node in nodes for name in node.names} - sys.stdlib_module_names
    assert modules == {"numpy"}
    assert re.findall(r"^from (\S+)", text, re.M) == ["hashlib", "numcodecs.zstd"]


def test_all_examples_are_read_as_is_expected_of_them(tmp_path):
    assert later.agreeing(tmp_path) == later.examples()


@pytest.mark.parametrize("name", [*SKETCHES, *GROUPS])
def test_stored_sketches_and_groups(name, stored):
    found, opened = reader.read(stored / name), ds.open(stored / name)
    np.testing.assert_array_equal(found["frequencies"], values.radians(found))
    np.testing.assert_allclose(values.sketch_z(found), opened.z, rtol=0, atol=1e-15)
    if name in GROUPS:
        np.testing.assert_array_equal(values.labels(found), opened.labels)


@pytest.mark.parametrize("name", ["durations", "missing-groups"])
def test_stored_values_of_groups(name):
    found, group = STORED[name], ds.open(later.stored()[name])
    np.testing.assert_array_equal(values.labels(found), group.labels)
    np.testing.assert_allclose(values.sketch_z(found), group.z, rtol=0, atol=1e-15)


def test_rounded_sums_in_a_zarr_group(tmp_path):
    sketch = ds.open(later.stored()["rounded-missing"])
    sketch.to_zarr(tmp_path / "s.zarr")
    found = reader.read(tmp_path / "s.zarr")
    assert "frequencies" not in found
    np.testing.assert_allclose(values.sketch_z(found), sketch.z, rtol=0, atol=1e-15)


@pytest.mark.parametrize("missing", [False, True])
def test_values_of_today(missing):
    found = feature_map("sparse-sums", 7, 50, "plain")
    x = np.where(X > 4.5, np.nan, X) if missing else X
    policy = {"nan_policy": "available"} if missing else {}
    parts = [ds.partial_sketch(part, found, **policy) for part in (x[:100], x[100:])]
    whole = ds.merge(parts)
    added = sums.add(*(reader.read(part.to_bytes()) for part in parts))
    assert added["count"] == whole.count
    for name, expected in sums.meanings(reader.read(whole.to_bytes())).items():
        np.testing.assert_array_equal(added[name], expected, err_msg=name)
    np.testing.assert_allclose(values.sketch_z(added), whole.z, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_counters_follow_from_the_rows(dtype):
    found = ds.FeatureMap(7, 20, distribution="sparse-radius", scale=1.5, dtype=dtype)
    x, w = np.where(X > 4.0, np.nan, X), cases.weights(41, len(X)) * 2.0**10
    assert not np.isnan(x).all(axis=1).any()
    part = ds.partial_sketch(x, found, w, nan_policy="available")
    read = reader.read(part.to_bytes())
    for name, counters in sums.row_counters(read, x, w).items():
        np.testing.assert_array_equal(read[name], counters)


def test_groups_with_missing_values():
    found = ds.FeatureMap(7, 50, scale=1.5, distribution="sparse-sums", dtype="float64")
    x = np.where(X > 4.5, np.nan, X)
    group = ds.partial_sketch(x, found, groups=np.arange(300) % 3, nan_policy="available")
    read = reader.read(group.to_bytes())
    assert read["schema_version"] == 2
    np.testing.assert_allclose(values.sketch_z(read), group.z, rtol=0, atol=1e-15)


def added_moments(found: dict, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The matrix and the squares that rows add up to."""
    y = (x - found["center"]) / found["unit"]
    given = [~np.isnan(y)] if "pairwise" in found else []
    s = np.where(w > 1, 16.0 ** np.ceil(np.log2(np.maximum(w, 1)) / 4), 1.0)
    left = np.hstack([np.ones((len(y), 1)), *given, np.nan_to_num(y)])
    left = right = np.rint(left * np.sqrt(w / s)[:, None] * 2.0**30)
    if "n_columns" in found:
        right = np.hstack([left[:, :1], np.rint(left[:, 1:] @ values.coins(found))])
    whole_left, whole_right = (part.astype(int).astype(object) for part in (left, right))
    scaled = whole_left * s.astype(int)[:, None]
    return scaled.T @ whole_right, (scaled * whole_left).sum(axis=0)[1:]


PARTLY = later.MISSING[~np.isnan(later.MISSING).all(axis=1)]
MOMENTS = {
    "all": lambda: (later.stored()["second-moments"], later.WIDE, cases.weights(26, 200)),
    "columns": lambda: (later.stored()["second-moments-columns"], later.WIDE, np.ones(200)),
    "pairwise": lambda: (
        later.stored()["second-moments-pairwise"],
        PARTLY.astype(float),
        np.ones(len(PARTLY)),
    ),
}


@pytest.mark.parametrize("kind", MOMENTS)
def test_second_moments(kind):
    value, x, w = MOMENTS[kind]()
    read, found = reader.read(value), ds.open(value)
    matrix, squares = values.moment_matrix(read)
    again, squares_again = added_moments(read, x, w)
    np.testing.assert_array_equal(matrix, again)
    if squares is not None:
        np.testing.assert_array_equal(squares, squares_again)
    first = matrix[0, 1:] if squares is None else matrix[1:, 0]
    first = first[-len(read["center"]) :].astype(float)
    weight = np.array(matrix[0, 0], dtype=float)
    if "pairwise" in read:
        weight = np.diag(matrix)[1 : 1 + len(first)].astype(float)
    mean = read["center"] + read["unit"] * first / weight
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12, atol=1e-12)
    total = read["squared_weight"] * 2.0**-104
    np.testing.assert_allclose(total, (w**2).sum(), rtol=1e-9)


@pytest.mark.parametrize("weights", [None, np.arange(300) / 7])
def test_quantized_phases(weights):
    found = feature_map("sparse-sums", 7, 50, "white")
    message = quantize_phases(X, found, weights, bits=3, seed=8, position=11)
    read, expected = reader.read(message.to_bytes()), message.sketch()
    np.testing.assert_allclose(sums.phases_moment(read), expected.moment_sum, rtol=1e-7, atol=1e-5)
    first = read["first"].astype(float) * 2.0**-62 * read["unit"]
    np.testing.assert_allclose(first, expected.first_moment)


def test_random_rows_and_models():
    found = feature_map("adapted-radius", 7, 64, "plain")
    value = ds.sketch(X, found, sample=20).to_bytes()
    with zipfile.ZipFile(io.BytesIO(value)) as file:
        assert json.loads(file.read("dataset.json"))["dims"]["sample_rows"] == ["row", "feature"]
    read = reader.read(value)
    assert read["sample_size"] == 20
    assert (read["sample_keys"] < float.fromhex(read["sample_threshold"])).all()
    chosen = {row.tobytes() for row in X}
    assert all(row.tobytes() in chosen for row in read["sample_rows"].astype(float))
    model = ds.GaussianMixture([1.0], [[0.0, 1.0]], [np.eye(2)], covariance_type="full")
    read = reader.read(model.to_bytes())
    assert read["covariance_type"] == "full"
    np.testing.assert_array_equal(read["covariances"], [np.eye(2)])


def test_edited_content_is_noticed(tmp_path):
    import zarr

    ds.partial_sketch(X, feature_map("gaussian", 7, 20, "plain")).to_zarr(tmp_path / "s.zarr")
    zarr.open_group(tmp_path / "s.zarr").attrs["count"] = 301
    with pytest.raises(ValueError, match="checksum"):
        reader.read(tmp_path / "s.zarr")


@pytest.mark.parametrize("name", [name for name, found in STORED.items() if "spec" in found])
def test_digests_and_units_of_stored_values(name):
    found = STORED[name]
    assert found["cycles"].shape == (found["spec"]["n_frequencies"], found["spec"]["n_features"])
    if "unit" in found:
        np.testing.assert_array_equal(sums.units(found["spec"]), found["unit"])


@pytest.mark.parametrize(
    "name", [name for name, found in STORED.items() if found.get("sample_threshold") == "inf"]
)
def test_sums_follow_from_all_rows(name):
    found = STORED[name]
    x, w = found["sample_rows"], found["sample_row_weights"]
    for sum_name, total in sums.row_sums(found["spec"], x, w).items():
        np.testing.assert_array_equal(found[sum_name], total)
    moment, bound, step = sums.row_moment(found, x, w)
    assert not (found["moment"] % step).any()
    real, imaginary = found["moment"].astype(float) * 2.0**-71
    assert max(abs(real - moment.real).max(), abs(imaginary - moment.imag).max()) <= bound
    np.testing.assert_array_equal(found["sample_importance"], w)


@pytest.mark.parametrize(
    ("name", "x", "w", "start"),
    [
        ("rows", cases.samples(21, 500, 3), np.ones(500), 0),
        ("weighted-rows", cases.samples(22, 400, 3), cases.weights(22, 400), 1000),
        ("pilot", cases.mixture(34, 200, 3, -2.0, 2.0), cases.weights(34, 200), 0),
    ],
)
def test_keys_follow_from_the_positions(name, x, w, start):
    found = STORED[name]
    x, positions, w = x[w > 0], start + np.flatnonzero(w > 0), w[w > 0]
    importance = sums.row_importance(found, x, w)
    keys = sums.row_keys(found["spec"], positions, importance)
    chosen = np.argsort(keys)[: found["sample_size"] + 1]
    chosen, least = chosen[:-1], keys[chosen[-1]]
    for again, stored in (
        (least, float.fromhex(found["sample_threshold"])),
        (keys[chosen], found["sample_keys"]),
        (importance[chosen], found["sample_importance"]),
    ):
        np.testing.assert_allclose(again, stored, rtol=1e-14 if "pilot" in found else 0)
    np.testing.assert_array_equal(found["sample_rows"], x[chosen])
    np.testing.assert_array_equal(found["sample_row_weights"], w[chosen])


def test_rows_of_length_one_are_those_that_are_summed():
    found = STORED["normalize"]
    order = np.argsort(sums.row_keys(found["spec"], np.arange(59), np.ones(59)))
    unit_rows = sums.unit_rows(cases.samples(32, 59, 4))
    np.testing.assert_array_equal(found["sample_rows"], unit_rows[order])


def parts_of(kind):
    """Two sketches of a kind and of one feature map."""
    found = feature_map("sparse-radius", 7, 20, "plain")
    plain = [ds.partial_sketch(x, found) for x in (X[:100], X[100:])]
    if kind == "rows":
        return [ds.sketch(x, found, sample=n, position=p)
                for x, n, p in ((X[:100], 30, 0), (X[100:], 40, 100))]  # fmt: skip
    if kind == "rows of one":
        return [ds.sketch(X[:100], found, sample=30), ds.Sketch.empty(found)]
    if kind == "private":
        return [ds.privatise(plain[0], 1.0, seed=1), ds.privatise(plain[1], 0.5, 1e-4, seed=2)]
    if kind == "private sums":
        noisy = [ds.privatise(part, 1.0, seed=1) for part in plain]
        return [noisy[0] + ds.privatise(plain[1], 0.5, 1e-4, seed=2), noisy[1]]
    if kind == "private and empty":
        return [ds.privatise(plain[0], 1.0, seed=1), ds.Sketch.empty(found)]
    if kind == "missing":
        x = np.where(X > 4.5, np.nan, X)
        return [plain[0], ds.partial_sketch(x, found, nan_policy="available")]
    return [plain[0], plain[1].rounded(5)]


@pytest.mark.parametrize(
    "kind",
    ["rows", "rows of one", "private", "private sums", "private and empty", "missing", "rounded"],
)
def test_sums_of_two(kind):
    parts = parts_of(kind)
    added = sums.add(*(reader.read(part.to_bytes()) for part in parts))
    expected = sums.meanings(reader.read(ds.merge(parts).to_bytes()))
    if "privacy" in expected:
        record = json.loads(expected.pop("privacy"))
        assert json.loads(added.pop("privacy")) == pytest.approx(record)
    assert set(added) == set(expected)
    for name, value in added.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_stored_phases():
    found = STORED["quantized-phases"]
    x = cases.with_missing(cases.samples(27, 60, 3)).astype(float)
    x = x[np.isfinite(x).all(axis=1)]
    np.testing.assert_array_equal(sums.arcs(found, x), sums.stored_arcs(found))
    np.testing.assert_allclose(
        sums.phases_moment(found),
        ds.open(later.stored()["quantized-phases"]).sketch().moment_sum,
        atol=1e-7 * float(found["weights"].sum()),
    )


@pytest.mark.parametrize("name", ["full", "tied", "spherical", "low-rank"])
def test_covariances_of_stored_mixtures(name):
    model = ds.open(later.stored()[name])
    np.testing.assert_array_equal(
        values.covariance_matrices(STORED[name]), model.covariance_matrices
    )


@pytest.mark.parametrize("name", ["von-mises-fisher", "alpha-stable", "latent-classes"])
def test_arrays_of_stored_models(name):
    found, model = STORED[name], ds.open(later.stored()[name])
    for field, value in found.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, getattr(model, field))
    if "categories" in found:
        levels = [None if one is None else list(one) for one in model.categories.levels]
        assert json.loads(found["categories"]) == levels


@pytest.mark.parametrize("name", later.FITTED)
def test_predictions_of_stored_estimators(name):
    found, estimator = STORED[name], ds.open(later.stored()[name])
    group = later.groups(found["spec"]["law"])
    z = values.sketch_z(reader.read(group.to_bytes()))
    n = group.total_weight**2 / group.squared_weight
    predicted = values.predict(found, z, n)
    if name != "regressor":
        np.testing.assert_array_equal(predicted, estimator.predict(group))
        return
    np.testing.assert_allclose(predicted, estimator.predict(group), rtol=1e-9)
    width = values.half_widths(found, n, 0.25)
    low, high = estimator.predict_interval(group, level=0.25).T
    np.testing.assert_allclose(predicted - width, low, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(predicted + width, high, rtol=1e-9, atol=1e-12)
