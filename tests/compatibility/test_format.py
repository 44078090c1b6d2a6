"""Artifacts agree with FORMAT.md: a reader that was written from that page alone reads them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dask_sketch as ds
from compatibility import cases, later
from compatibility import format_adding as adding
from compatibility import format_frequencies as frequencies
from compatibility import format_models as models
from compatibility import format_reader as reader
from compatibility import format_rows as rows
from compatibility.test_stored import GROUPS, SKETCHES
from dask_sketch.sketching.quantized_phases import quantize_phases
from dask_sketch.validation.choices import DISTRIBUTIONS

X = np.random.default_rng(0).normal(size=(300, 7)) + 3.0
STORED = {name: reader.read(value)[:2] for name, value in later.stored().items()}
SPECIFICATIONS = {
    f"{law}-{n_features}-{m}-{kind}": (law, n_features, m, kind)
    for law in DISTRIBUTIONS
    for n_features, m, kind in [(3, 64, "plain"), (7, 33, "white"), (6, 50, "several")]
}


def feature_map(law, n_features, m, kind, seed=3):
    several = np.exp(np.random.default_rng(1).normal(size=(3, n_features)))
    whitening = np.eye(n_features) + 0.1 * np.arange(n_features)
    return ds.FeatureMap(
        n_features,
        m,
        distribution=law,
        seed=seed,
        **({"covariances": several, "covariance_weights": [1, 2, 1]} if kind == "several" else {}),
        **({"scale": 1.5} if kind != "several" else {}),
        **({"whitening": whitening} if kind == "white" else {}),
    )


@pytest.mark.parametrize("name", SPECIFICATIONS)
def test_frequencies_follow_from_the_specification(name):
    found = feature_map(*SPECIFICATIONS[name])
    cycles = frequencies.sample_frequencies(found.spec)
    assert frequencies.digest(found.spec, cycles) == found.digest
    np.testing.assert_array_equal(cycles, found.cycles_per_unit)
    np.testing.assert_allclose(reader.radians(found.spec, cycles), found.frequencies, rtol=1e-12)


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
        cycles = frequencies.sample_frequencies(found.spec)
        np.testing.assert_array_equal(cycles, found.cycles_per_unit)
        assert frequencies.digest(found.spec, cycles) == found.digest


@pytest.mark.parametrize("name", SKETCHES)
def test_stored_sketches(name, stored):
    attrs, arrays, _ = reader.read(str(stored / name))
    sketch = ds.open(stored / name)
    cycles = frequencies.sample_frequencies(attrs["feature_map"])
    assert frequencies.digest(attrs["feature_map"], cycles) == attrs["digest"]
    np.testing.assert_array_equal(
        arrays["frequencies"], reader.radians(attrs["feature_map"], cycles)
    )
    np.testing.assert_allclose(reader.sketch_z(attrs, arrays), sketch.z, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", GROUPS)
def test_stored_groups(name, stored):
    attrs, arrays, _ = reader.read(str(stored / name))
    group = ds.open(stored / name)
    np.testing.assert_array_equal(reader.labels(attrs, arrays), group.labels)
    np.testing.assert_allclose(reader.group_z(attrs, arrays), group.z, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["durations", "missing-groups"])
def test_stored_values_of_groups(name):
    attrs, arrays = STORED[name]
    group = ds.open(later.stored()[name])
    np.testing.assert_array_equal(reader.labels(attrs, arrays), group.labels)
    np.testing.assert_allclose(reader.group_z(attrs, arrays), group.z, rtol=0, atol=1e-15)


def test_rounded_sums_in_a_zarr_group(tmp_path):
    sketch = ds.open(later.stored()["rounded-missing"])
    sketch.to_zarr(tmp_path / "s.zarr")
    attrs, arrays, _ = reader.read(str(tmp_path / "s.zarr"))
    assert "frequencies" not in arrays
    np.testing.assert_allclose(reader.sketch_z(attrs, arrays), sketch.z, rtol=0, atol=1e-15)


@pytest.mark.parametrize("missing", [False, True])
def test_values_of_today(missing):
    found = feature_map("sparse-sums", 7, 50, "plain")
    x = np.where(X > 4.5, np.nan, X) if missing else X
    policy = {"nan_policy": "available"} if missing else {}
    parts = [ds.partial_sketch(part, found, **policy) for part in (x[:100], x[100:])]
    first, second = (reader.read(part.to_bytes())[:2] for part in parts)
    whole = ds.merge(parts)
    attrs, arrays = adding.add(first, second)
    expected = reader.read(whole.to_bytes())
    assert attrs["count"] == whole.count
    for name in expected[1]:
        np.testing.assert_array_equal(arrays[name], expected[1][name])
    np.testing.assert_allclose(reader.sketch_z(attrs, arrays), whole.z, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_counters_follow_from_the_rows(dtype):
    found = ds.FeatureMap(7, 20, distribution="sparse-radius", scale=1.5, dtype=dtype)
    x, w = np.where(X > 4.0, np.nan, X), cases.weights(41, len(X)) * 2.0**10
    assert not np.isnan(x).all(axis=1).any()
    part = ds.partial_sketch(x, found, w, nan_policy="available")
    _, arrays, _ = reader.read(part.to_bytes())
    for name, counters in rows.row_counters(found.spec, x, w).items():
        np.testing.assert_array_equal(reader.whole(arrays, f"missing_{name}"), counters)


def test_groups_with_missing_values():
    found = feature_map("sparse-sums", 7, 50, "plain")
    x = np.where(X > 4.5, np.nan, X)
    group = ds.partial_sketch(x, found, groups=np.arange(300) % 3, nan_policy="available")
    attrs, arrays, _ = reader.read(group.to_bytes())
    assert attrs["schema_version"] == 2
    np.testing.assert_allclose(reader.group_z(attrs, arrays), group.z, rtol=0, atol=1e-15)


def added_moments(
    attrs: dict, arrays: dict, x: np.ndarray, w: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The matrix and the squares that rows add up to."""
    y = (x - arrays["center"]) / arrays["unit"]
    given = [~np.isnan(y)] if "pairwise" in attrs else []
    s = np.where(w > 1, 16.0 ** np.ceil(np.log2(np.maximum(w, 1)) / 4), 1.0)
    left = np.hstack([np.ones((len(y), 1)), *given, np.nan_to_num(y)])
    left = right = np.rint(left * np.sqrt(w / s)[:, None] * 2.0**30)
    if "n_columns" in attrs:
        right = np.hstack([left[:, :1], np.rint(left[:, 1:] @ reader.test_matrix(attrs, arrays))])
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
    attrs, arrays, _ = reader.read(value)
    found = ds.open(value)
    matrix, squares = reader.moment_matrix(attrs, arrays)
    again, squares_again = added_moments(attrs, arrays, x, w)
    np.testing.assert_array_equal(matrix, again)
    if squares is not None:
        np.testing.assert_array_equal(squares, squares_again)
    first = matrix[0, 1:] if squares is None else matrix[1:, 0]
    first = first[-len(arrays["center"]) :].astype(float)
    weight = np.array(matrix[0, 0], dtype=float)
    if "pairwise" in attrs:
        weight = np.diag(matrix)[1 : 1 + len(first)].astype(float)
    mean = arrays["center"] + arrays["unit"] * first / weight
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12, atol=1e-12)
    total = int(attrs["squared_weight_steps"]) * 2.0**-104
    np.testing.assert_allclose(total, (w**2).sum(), rtol=1e-9)


@pytest.mark.parametrize("weights", [None, np.arange(300) / 7])
def test_quantized_phases(weights):
    found = feature_map("sparse-sums", 7, 50, "white")
    message = quantize_phases(X, found, weights, bits=3, seed=8, position=11)
    attrs, arrays, _ = reader.read(message.to_bytes())
    expected = message.sketch()
    np.testing.assert_allclose(
        rows.phases_moment(attrs, arrays), expected.moment_sum, rtol=1e-7, atol=1e-5
    )
    sums = reader.whole(arrays, "first").astype(float) * 2.0**-62 * arrays["unit"]
    np.testing.assert_allclose(sums, expected.first_moment)


def test_random_rows_and_models():
    found = feature_map("adapted-radius", 7, 64, "plain")
    attrs, arrays, dims = reader.read(ds.sketch(X, found, sample=20).to_bytes())
    assert attrs["sample_size"] == 20
    assert dims["sample_rows"] == ["row", "feature"]
    assert (arrays["sample_keys"] < float.fromhex(attrs["sample_threshold"])).all()
    chosen = {row.tobytes() for row in X}
    assert all(row.tobytes() in chosen for row in arrays["sample_rows"].astype(float))
    model = ds.GaussianMixture([1.0], [[0.0, 1.0]], [np.eye(2)], covariance_type="full")
    attrs, arrays, _ = reader.read(model.to_bytes())
    assert attrs["covariance_type"] == "full"
    np.testing.assert_array_equal(arrays["covariances"], [np.eye(2)])


def test_edited_content_is_noticed(tmp_path):
    import zarr

    ds.partial_sketch(X, feature_map("gaussian", 7, 20, "plain")).to_zarr(tmp_path / "s.zarr")
    zarr.open_group(tmp_path / "s.zarr").attrs["count"] = 301
    with pytest.raises(ValueError, match="checksum"):
        reader.read(str(tmp_path / "s.zarr"))


OF_MAPS = [name for name, (attrs, _) in STORED.items() if "feature_map" in attrs]


@pytest.mark.parametrize("name", OF_MAPS)
def test_digests_and_units_of_stored_values(name):
    attrs, arrays = STORED[name]
    cycles = frequencies.sample_frequencies(attrs["feature_map"])
    assert frequencies.digest(attrs["feature_map"], cycles) == attrs["digest"]
    if "unit" in arrays:
        np.testing.assert_array_equal(rows.units(attrs["feature_map"]), arrays["unit"])


@pytest.mark.parametrize(
    "name", [name for name, (attrs, _) in STORED.items() if attrs.get("sample_threshold") == "inf"]
)
def test_sums_follow_from_all_rows(name):
    attrs, arrays = STORED[name]
    spec, x = attrs["feature_map"], arrays["sample_rows"]
    found = rows.row_sums(spec, x, arrays["sample_row_weights"])
    for sum_name in ("weight", "squared_weight"):
        assert int(attrs[f"{sum_name}_steps"]) == found[sum_name]
    for sum_name in ("first", "second"):
        np.testing.assert_array_equal(reader.whole(arrays, sum_name), found[sum_name])
    moment, bound, step = rows.row_moment(spec, x, arrays["sample_row_weights"])
    whole = reader.whole(arrays, "moment")
    assert not (whole % step).any()
    real, imaginary = whole.astype(float) * 2.0**-71
    assert max(abs(real - moment.real).max(), abs(imaginary - moment.imag).max()) <= bound
    np.testing.assert_array_equal(arrays["sample_importance"], arrays["sample_row_weights"])


@pytest.mark.parametrize(
    ("name", "x", "w", "start"),
    [
        ("rows", cases.samples(21, 500, 3), np.ones(500), 0),
        ("weighted-rows", cases.samples(22, 400, 3), cases.weights(22, 400), 1000),
        ("pilot", cases.mixture(34, 200, 3, -2.0, 2.0), cases.weights(34, 200), 0),
    ],
)
def test_keys_follow_from_the_positions(name, x, w, start):
    attrs, arrays = STORED[name]
    x, positions, w = x[w > 0], start + np.flatnonzero(w > 0), w[w > 0]
    importance = rows.row_importance(attrs, x, w)
    keys = rows.row_keys(attrs["feature_map"], positions, importance)
    chosen = np.argsort(keys)[: attrs["sample_size"] + 1]
    chosen, least = chosen[:-1], keys[chosen[-1]]
    for values, stored in (
        (least, float.fromhex(attrs["sample_threshold"])),
        (keys[chosen], arrays["sample_keys"]),
        (importance[chosen], arrays["sample_importance"]),
    ):
        np.testing.assert_allclose(values, stored, rtol=1e-14 if "pilot" in attrs else 0)
    np.testing.assert_array_equal(arrays["sample_rows"], x[chosen])
    np.testing.assert_array_equal(arrays["sample_row_weights"], w[chosen])


def test_rows_of_length_one_are_those_that_are_summed():
    attrs, arrays = STORED["normalize"]
    found = rows.unit_rows(cases.samples(32, 59, 4))
    order = np.argsort(rows.row_keys(attrs["feature_map"], np.arange(59), np.ones(59)))
    np.testing.assert_array_equal(arrays["sample_rows"], found[order])


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
    attrs, arrays = adding.add(*(reader.read(part.to_bytes()) for part in parts))
    expected, expected_arrays, _ = reader.read(ds.merge(parts).to_bytes())
    if "privacy" in expected:
        record = json.loads(expected.pop("privacy"))
        assert json.loads(attrs.pop("privacy")) == pytest.approx(record)
    packed = ("moment_packed", "moment_shift", "moment_bits")
    left_out = ("checksum", "convention", *packed)
    assert {name: value for name, value in attrs.items() if name not in left_out} == {
        name: value for name, value in expected.items() if name not in left_out
    }
    assert set(arrays) == set(expected_arrays) - {*packed}
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, expected_arrays[name], err_msg=name)


def test_stored_phases():
    attrs, arrays = STORED["quantized-phases"]
    x = cases.with_missing(cases.samples(27, 60, 3)).astype(float)
    x = x[np.isfinite(x).all(axis=1)]
    np.testing.assert_array_equal(rows.arcs(attrs, x), rows.stored_arcs(attrs, arrays))
    np.testing.assert_allclose(
        rows.phases_moment(attrs, arrays),
        ds.open(later.stored()["quantized-phases"]).sketch().moment_sum,
        atol=1e-7 * float(arrays["weights"].sum()),
    )


@pytest.mark.parametrize("name", ["full", "tied", "spherical", "low-rank"])
def test_covariances_of_stored_mixtures(name):
    model = ds.open(later.stored()[name])
    np.testing.assert_array_equal(
        models.covariance_matrices(*STORED[name]), model.covariance_matrices
    )


@pytest.mark.parametrize("name", ["von-mises-fisher", "alpha-stable", "latent-classes"])
def test_arrays_of_stored_models(name):
    attrs, arrays = STORED[name]
    model = ds.open(later.stored()[name])
    for field, values in arrays.items():
        np.testing.assert_array_equal(values, getattr(model, field))
    if "categories" in attrs:
        levels = [None if one is None else list(one) for one in model.categories.levels]
        assert json.loads(attrs["categories"]) == levels


@pytest.mark.parametrize("name", later.FITTED)
def test_predictions_of_stored_estimators(name):
    attrs, arrays = STORED[name]
    law = json.loads(attrs["feature_map"])["law"]
    group, estimator = later.groups(law), ds.open(later.stored()[name])
    found = reader.read(group.to_bytes())[:2]
    z, n = reader.group_z(*found), group.total_weight**2 / group.squared_weight
    predicted = models.predict(attrs, arrays, z, n)
    if name != "regressor":
        np.testing.assert_array_equal(predicted, estimator.predict(group))
        return
    np.testing.assert_allclose(predicted, estimator.predict(group), rtol=1e-9)
    width = models.half_widths(attrs, arrays, n, 0.25)
    low, high = estimator.predict_interval(group, level=0.25).T
    np.testing.assert_allclose(predicted - width, low, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(predicted + width, high, rtol=1e-9, atol=1e-12)
