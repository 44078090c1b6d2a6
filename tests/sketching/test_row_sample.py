"""The random rows beside the sums: the same for any division, unbiased, and exactly mergeable."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_sketch import FeatureMap, merge, partial_sketch, privatise
from dask_sketch import open as open_artifact
from dask_sketch import sketch as sketch_of
from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.features.design import design_from_pilot
from dask_sketch.sketching.open import sketch_from_dataset
from dask_sketch.sketching.row_sample import RowSample, RowSampler, RowSampling, default_size

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.normal(0, 1, (2900, 2)), RNG.normal(12, 1, (100, 2))]).astype(np.float32)
MAP = design_from_pilot(X.astype(float), n_components=2)


def chunk(start, stop, size=200, weights=None):
    given = None if weights is None else weights[start:stop]
    return partial_sketch(X[start:stop], MAP, given, sample=size, position=start)


@given(st.lists(st.integers(0, 3000), max_size=6), st.randoms(use_true_random=False))
def test_any_division_in_any_order_keeps_the_same_rows(cuts, random):
    edges = [0, *sorted(cuts), 3000]
    parts = [chunk(a, b) for a, b in itertools.pairwise(edges)]
    random.shuffle(parts)
    assert merge(parts).sample.identical(chunk(0, 3000).sample)


@given(st.lists(st.integers(0, 3000), max_size=6), st.integers(1, 300))
def test_parts_of_fewer_rows_give_the_rows_of_one_pass_under_a_threshold(cuts, max_rows):
    pairs = list(itertools.pairwise([0, *sorted(cuts), 3000]))
    parts = [chunk(a, b, size=max_rows).sample.resized(200) for a, b in pairs]
    found, whole = RowSample.merge(parts), chunk(0, 3000).sample
    assert found.threshold == min([whole.threshold, *(part.threshold for part in parts)])
    np.testing.assert_array_equal(found.rows, whole.rows[whole.keys < found.threshold])
    given = [np.isin(whole.keys, chunk(a, b, size=3000).sample.keys).sum() for a, b in pairs]
    assert found.identical(whole) == (max(given) <= max_rows)


def test_parts_of_fewer_rows_are_unbiased():
    truth, means = X.mean(axis=0), []
    for seed in range(150):
        feature_map = FeatureMap(2, 20, scale=1.0, seed=seed, center=MAP.center, pilot=MAP.pilot)
        parts = [
            partial_sketch(X[a:b], feature_map, sample=size, position=a).sample.resized(100)
            for a, b, size in ((0, 500, 60), (500, 2600, 40), (2600, 3000, 20))
        ]
        found = RowSample.merge(parts)
        means.append(found.weights @ found.rows)
    error = np.std(means, axis=0) / np.sqrt(150)
    assert (np.abs(np.mean(means, axis=0) - truth) < 4 * error).all()


def test_it_holds_all_rows_with_keys_under_the_threshold():
    every, found = chunk(0, 3000, size=3000).sample, chunk(0, 3000).sample
    assert every.is_complete
    assert len(every) == 3000
    under = every.keys < found.threshold
    assert len(found) == under.sum() == 200
    np.testing.assert_array_equal(found.rows, every.rows[under])


def test_a_part_is_taken_out_and_none_is_guessed():
    whole, part, rest = chunk(0, 3000), chunk(0, 1000), chunk(1000, 3000)
    left = (whole - part).sample
    assert left.threshold == whole.sample.threshold
    kept = rest.sample.keys < left.threshold
    np.testing.assert_array_equal(left.rows, rest.sample.rows[kept])
    moved = partial_sketch(X[:1000], MAP, sample=200, position=5000)  # of other positions
    assert (whole - moved).sample is None
    assert (whole - part.without_sample()).sample is None


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_make_sums_unbiased(weighted):
    weights = np.where(np.arange(3000) % 3, 1.0, 5.0) if weighted else None
    truth = np.average(X, axis=0, weights=weights)
    far = np.average(X[:, 0] > 6, weights=weights)
    means, shares = [], []
    for seed in range(150):
        feature_map = FeatureMap(2, 20, scale=1.0, seed=seed, center=MAP.center, pilot=MAP.pilot)
        found = partial_sketch(X, feature_map, weights, sample=100).sample
        assert found.weights.sum() == pytest.approx(1.0)
        means.append(found.weights @ found.rows)
        shares.append(found.weights @ (found.rows[:, 0] > 6))
    error = np.std(means, axis=0) / np.sqrt(150)
    assert (np.abs(np.mean(means, axis=0) - truth) < 4 * error).all()
    assert abs(np.mean(shares) - far) < 4 * np.std(shares) / np.sqrt(150)


def test_far_rows_are_favoured_where_a_pilot_knows_the_spread():
    favoured = chunk(0, 3000).sample
    plain = partial_sketch(X, MAP.with_pilot(None), sample=200).sample
    assert (favoured.rows[:, 0] > 6).sum() > 2 * (plain.rows[:, 0] > 6).sum()
    np.testing.assert_array_equal(plain.importance, 1.0)


def test_rows_of_no_weight_and_omitted_rows_are_never_chosen():
    x, weights = X[:300].copy(), np.ones(300)
    weights[::2], x[1::4, 0] = 0.0, np.nan
    found = partial_sketch(x, MAP, weights, nan_policy="omit", sample=300).sample
    assert len(found) == np.sum((weights > 0) & np.isfinite(x[:, 0]))


def test_a_chunk_of_no_weight_has_no_rows():
    found = partial_sketch(X[:5], MAP, np.zeros(5), sample=10).sample
    assert len(found) == 0
    assert found.is_complete


def test_a_limit_of_the_keys_changes_no_row_and_shortens_parts():
    sampling = RowSampling.of(200, MAP, 10**6, weighted=False)
    assert 200 / 10**6 < sampling.limit < 2 * (200 + 10 * 200**0.5 + 51) / 10**6
    assert RowSampling.of(200, MAP, None, weighted=False).limit == np.inf
    assert RowSampling.of(200, MAP, 10**6, weighted=True).limit == np.inf


def test_a_sum_with_a_sketch_without_rows_has_none():
    assert (chunk(0, 1000) + partial_sketch(X[1000:], MAP)).sample is None
    empty = partial_sketch(X[:0], MAP)
    assert (chunk(0, 1000) + empty).sample.identical(chunk(0, 1000).sample)


def test_of_two_sizes_the_smaller_holds():
    found = merge([chunk(0, 1000, size=50), chunk(1000, 3000, size=300)]).sample
    assert found.identical(chunk(0, 3000, size=50).sample)


def test_it_is_stored_and_opened_with_the_pilot(tmp_path):
    sketch = chunk(0, 3000)
    sketch.to_zarr(tmp_path / "s.zarr")
    found = open_artifact(tmp_path / "s.zarr")
    assert found.identical(sketch)
    assert found.sample.identical(sketch.sample)
    assert found.feature_map.pilot.as_dict() == MAP.pilot.as_dict()


@pytest.mark.parametrize(
    ("name", "value"),
    [("sample_keys", 2.0), ("sample_importance", -1.0), ("sample_row_weights", np.nan)],
)
def test_edited_rows_are_refused(name, value):
    dataset = chunk(0, 3000).to_xarray()
    values = dataset[name].values.copy()
    values[0] = value
    dataset[name] = dataset[name].dims, values
    with pytest.raises(ArtifactError, match="sample_rows"):
        sketch_from_dataset(dataset)


def test_a_private_sketch_has_neither_rows_nor_pilot():
    private = privatise(chunk(0, 3000), 1.0, 1e-6, bounds=[[-9, -9], [30, 30]], seed=0)
    assert private.sample is None
    assert private.feature_map.pilot is None


def test_scaled_weights_keep_the_rows():
    sketch = chunk(0, 3000)
    np.testing.assert_array_equal(sketch.scale(4.0).sample.weights, sketch.sample.weights)
    assert sketch.scale(4.0).sample.row_weights[0] == 4.0


@pytest.mark.parametrize(
    ("argument", "value"), [("sample", -1), ("sample", 1.5), ("position", -1), ("position", 2**63)]
)
def test_wrong_sizes_are_refused(argument, value):
    for function in (partial_sketch, sketch_of):
        with pytest.raises(InputError, match=f"{argument}={value}"):
            function(X, MAP, **({"sample": 10} | {argument: value}))


def test_groups_carry_no_rows():
    with pytest.raises(InputError, match="sample=10"):
        partial_sketch(X, MAP, groups=np.zeros(3000, int), sample=10)


@pytest.mark.slow
def test_mixtures_of_many_parameters_have_more_rows():
    x = RNG.normal(size=(400, 8))
    maps = {k: design_from_pilot(x, n_components=k) for k in (4, 16)}
    sizes = {k: sketch_of(x[:100], feature_map).sample.size for k, feature_map in maps.items()}
    assert sizes == {4: 20_000, 16: 27_200}  # 100 for each of 16 * 17 parameters
    clusters = design_from_pilot(x, n_components=20, n_frequencies=2000, task="clustering")
    assert sketch_of(x[:100], clusters).sample.size == 20_000
    assert sketch_of(x[:100], maps[16], sample=30).sample.size == 30


def test_sizes():
    assert default_size(12) == 20_000
    assert default_size(10_000) == 2_000
    assert default_size(12, 50_000) == 50_000
    assert default_size(50, 650_000) == 2**24 // 200
    found = chunk(0, 3000).sample
    assert found.as_dict()["n_rows"] == 200
    assert "200" in repr(found)
    assert len(RowSample.empty(2, 10)) == 0


@pytest.mark.parametrize("size", [1, 50, 400])
@pytest.mark.parametrize("kind", ["plain", "far", "near", "not finite"])
def test_bounds_that_save_time_change_no_row(size, kind):
    """Whether more rows than wanted are under them or not, and in whatever parts."""
    x = X.copy()
    if kind == "far":
        x[:, 1] += 50.0
    elif kind == "near":
        x[:] = MAP.center
    elif kind == "not finite":
        x[np.arange(3000) % 10 > 0] = np.nan
    feature_map = MAP.with_pilot(None) if kind == "plain" else MAP
    sampling = RowSampling.of(size, feature_map, None, weighted=False)
    whole, divided, every = (RowSampler(sampling, feature_map) for _ in range(3))
    whole.add(x, None)
    for start in (0, 10, 1000, 1020):
        stop = {0: 10, 10: 1000, 1000: 1020, 1020: 3000}[start]
        divided.add(x[start:stop], None, start)
    every.add(x, np.ones(3000, np.float32))  # weights have no bounds
    found = whole.result(np.dtype("f4"))
    assert found.identical(every.result(np.dtype("f4")))
    assert found.identical(divided.result(np.dtype("f4")))
    assert len(found) == min(size, np.isfinite(x[:, 0]).sum())


def test_more_rows_than_there_are_numbers_for():
    x = X[:50]
    feature_map = FeatureMap(x.shape[1], 20, scale=1.0)
    assert sketch_of(x, feature_map, sample=10**30).holds_all_rows
