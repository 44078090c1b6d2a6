"""Frames with categorical columns, from every input to sketches and predictions."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch.errors import ChunkError, InputError

N = 600
RNG = np.random.default_rng(0)
LEVELS = {"color": ["red", "green", "blue"], "sold": [False, True]}
FRAME = pd.DataFrame(
    {
        "size": RNG.normal(size=N),
        "color": RNG.choice(LEVELS["color"], N),
        "sold": RNG.random(N) < 0.3,
        "weight": RNG.integers(1, 4, N).astype(float),
        "day": np.arange(N) // 100,
    }
)
CODES = np.column_stack(
    [FRAME["size"], FRAME["color"].map({"red": 0, "green": 1, "blue": 2}), FRAME["sold"]]
).astype(float)
COLUMNS = ["size", "color", "sold"]
MAP = ds.FeatureMap(
    3, 60, scale=1.0, distribution="sparse-radius", feature_names=COLUMNS, categories=LEVELS
)


def write_parquet(folder):
    folder.mkdir()
    for part in range(3):
        rows = FRAME[200 * part : 200 * (part + 1)]
        # the categories of each file are those that occur in it
        rows.astype({"color": "category"}).to_parquet(folder / f"{part}.parquet", index=False)
    return str(folder)


@pytest.mark.parametrize("kind", ["pandas", "dask", "parquet", "arrow", "dataset", "polars", "csv"])
def test_sketches_of_all_frames_have_the_bits_of_their_codes(kind, tmp_path):
    if kind == "pandas":
        x = FRAME.astype({"color": pd.CategoricalDtype(["blue", "red", "green", "unused"])})
    elif kind == "dask":
        x = dd.from_pandas(FRAME, npartitions=4)
    elif kind == "parquet":
        x = write_parquet(tmp_path / "files")
    elif kind == "csv":
        x = str(tmp_path / "rows.csv")
        FRAME.to_csv(x, index=False)
    elif kind == "dataset":
        from pyarrow import dataset

        x = dataset.dataset(write_parquet(tmp_path / "files"))
    else:
        import pyarrow as pa

        x = pa.Table.from_pandas(FRAME.astype({"color": "category"}), preserve_index=False)
        x = pytest.importorskip("polars").from_arrow(x) if kind == "polars" else x
    weights = ds.partial_sketch(CODES, MAP, FRAME["weight"].to_numpy())
    found = ds.sketch(x, MAP, weights="weight", columns=COLUMNS, sample=False)
    found = found if isinstance(found, ds.Sketch) else found.compute()
    if kind == "csv":  # whose numbers are text
        np.testing.assert_allclose(found.z, weights.z, atol=1e-5)
    else:
        assert found.same_sums(weights)
    if kind in ("pandas", "dask", "parquet"):
        group = ds.sketch(x, MAP, groups="day", columns=COLUMNS)
        group = group if isinstance(group, ds.SketchGroup) else group.compute()
        assert group[3].same_sums(ds.partial_sketch(CODES[300:400], MAP))


def test_arrays_hold_codes():
    expected = ds.partial_sketch(CODES, MAP)
    assert ds.sketch(da.from_array(CODES, chunks=(97, 3)), MAP).compute().same_sums(expected)
    with pytest.raises(ChunkError, match=r"row 5 .*feature 1"):
        ds.sketch(np.where(np.arange(N)[:, None] == 5, 7.0, CODES), MAP)
    # levels that are numbers, but not codes, would be taken for codes
    ages = ds.FeatureMap(1, 20, scale=1.0, distribution="sparse-radius", categories={0: [20, 40]})
    with pytest.raises(InputError, match="categories"):
        ds.sketch(np.array([[20.0], [40.0]]), ages)
    assert ds.sketch(pd.DataFrame({0: [20, 40]}), ages).mean.tolist() == [0.5]


def test_unknown_levels_and_other_columns_are_refused():
    with pytest.raises(ChunkError, match=r"'color'.*'pink'"):
        ds.sketch(FRAME[COLUMNS].replace("red", "pink"), MAP)
    lazy = ds.sketch(dd.from_pandas(FRAME[COLUMNS].replace("red", "pink"), npartitions=2), MAP)
    with pytest.raises(ChunkError, match=r"'color'.*'pink'"):
        lazy.compute()
    with pytest.raises(InputError, match="'color'"):
        ds.sketch(FRAME[["size", "sold"]], MAP)
    opened = ds.open_samples(
        FRAME[COLUMNS], categories=LEVELS | {"color": ["green", "red", "blue"]}
    )
    with pytest.raises(InputError, match="categories"):
        ds.sketch(opened, MAP)


def test_missing_levels_are_missing_values():
    frame = FRAME[COLUMNS].copy()
    frame.loc[::5, "color"] = None
    with pytest.raises(ChunkError, match="nan_policy"):
        ds.sketch(frame, MAP)
    assert ds.sketch(frame, MAP, nan_policy="omit").omitted == N // 5
    found = ds.sketch(frame, MAP, nan_policy="available")
    uses = MAP.cycles_per_unit[1] != 0
    assert found.observed.fractions[uses] == pytest.approx(0.8)
    assert found.observed.fractions[~uses] == pytest.approx(1.0)


def test_design_takes_levels_from_types_or_asks_for_them():
    with pytest.raises(InputError, match=r"(?s)color.*categories="):
        ds.design(FRAME[COLUMNS], n_components=2)
    typed = FRAME[COLUMNS].astype({"color": pd.CategoricalDtype(LEVELS["color"])})
    found = ds.design(typed, n_components=2, n_pilot=200)
    assert found.categories.as_dict() == {"color": LEVELS["color"]}  # booleans are numbers
    assert found.n_frequencies == 10 * 2 * (1 + 2 * 2 + 2)
    both = ds.design(typed, n_frequencies=50, categories=["color", "sold"])
    assert both.categories.as_dict() == LEVELS
    unknown = dd.from_pandas(FRAME[COLUMNS], npartitions=2)
    unknown["color"] = unknown["color"].astype("category")
    with pytest.raises(InputError, match=r"'color'.*levels"):
        ds.design(unknown, n_components=2)
    for name, value in (
        ("whitening", "full"), ("normalize", True), ("task", "clustering"), ("task", "comparison"),
        ("distribution", "sparse-sums"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=name):
            ds.design(typed, n_components=2, **{name: value})


def test_designs_do_not_depend_on_the_pilot_having_all_levels():
    few = FRAME[COLUMNS][FRAME["color"] != "blue"]
    found = ds.design(few, n_components=2, categories=LEVELS)
    assert ds.sketch(FRAME[COLUMNS], found).count == N


def test_predictions_of_lazy_frames():
    model = ds.decode(ds.sketch(FRAME[COLUMNS], MAP, sample=False), 1)
    lazy = dd.from_pandas(FRAME[COLUMNS], npartitions=3)
    np.testing.assert_array_equal(model.logpdf(lazy).compute(), model.logpdf(FRAME[COLUMNS]))
    assert float(model.score(lazy)) == pytest.approx(model.score(CODES))


def test_estimators_name_the_way_out():
    typed = FRAME[COLUMNS].astype({"color": "category"})
    for x in (typed, FRAME[COLUMNS].astype({"color": "string"}), dd.from_pandas(typed, 2)):
        for estimator in (ds.SketchGaussianMixture(2), ds.SketchPCA(1)):
            with pytest.raises(InputError, match="decode"):
                estimator.fit(x)


def test_private_sketches_are_decoded():
    rows = pd.concat([FRAME[COLUMNS]] * 20)
    bounds = [[-5, 0, 0], [5, 2, 1]]
    sketch = ds.privatise(ds.sketch(rows, MAP), 5.0, 1e-6, bounds=bounds, seed=0)
    model = ds.decode(sketch, 1)
    np.testing.assert_allclose(model.level_probabilities["sold"][0], [0.7, 0.3], atol=0.08)
