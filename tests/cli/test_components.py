"""The command that finds principal components."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr
from cli.commands import answer, refusal
from sklearn.decomposition import PCA

import dask_sketch as ds
from dask_sketch.models.principal_components import PrincipalComponents


def rows_of(data: str) -> np.ndarray:
    return np.asarray(zarr.open_array(data, mode="r")[:])


def test_components_and_coordinates(data: str, here: Path) -> None:
    x = rows_of(data)
    told = answer("pca", data, "-k", 1, "-o", "c.zarr", "--moments", "m.zarr")
    expected = PCA(1).fit(x)
    assert told["kind"] == "principal components"
    assert (told["n_samples"], told["moments"], told["omitted"]) == (6000, "m.zarr", 0)
    np.testing.assert_allclose(told["explained_variance"], expected.explained_variance_)
    model, moments = ds.open("c.zarr"), ds.open("m.zarr")
    np.testing.assert_allclose(model.components, expected.components_, atol=1e-8)
    assert moments == ds.second_moments(x, like=moments)
    assert answer("predict", "c.zarr", data, "-o", "s.csv")["n_predictions"] == 6000
    scores = pd.read_csv("s.csv")
    assert list(scores.columns) == ["component 0"]
    np.testing.assert_allclose(scores.to_numpy(), model.transform(x))
    assert answer("info", "c.zarr")["n_components"] == 1


@pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
def test_coordinates_of_several_components(here: Path, kind: str) -> None:
    x = np.random.default_rng(3).normal(size=(300, 4)) * [4.0, 3.0, 2.0, 1.0]
    frame = pd.DataFrame(x, columns=["a", "b", "c", "d"])
    path = f"x.{kind}"
    if kind == "npy":
        np.save(path, x)
    elif kind == "csv":
        frame.to_csv(path, index=False)
    else:
        Path(path).mkdir()
        frame[:100].to_parquet(f"{path}/part-0.parquet")
        frame[100:].to_parquet(f"{path}/part-1.parquet")
    answer("pca", path, "-k", 3, "-o", "c.zarr")
    assert answer("predict", "c.zarr", path, "-o", "s.csv")["n_predictions"] == 300
    found = pd.read_csv("s.csv")
    assert list(found.columns) == ["component 0", "component 1", "component 2"]
    expected = ds.open("c.zarr").transform(x)
    np.testing.assert_allclose(found.to_numpy(), expected, atol=1e-9)


def test_parts_are_added(data: str, here: Path) -> None:
    frame = pd.DataFrame(rows_of(data), columns=["a", "b"]).assign(text="x")
    frame[:2000].to_parquet("one.parquet")
    frame[2000:].to_parquet("two.parquet")
    columns = ["--columns", "a,b"]
    answer("pca", "one.parquet", *columns, "-o", "c1.zarr", "--moments", "m1.zarr")
    answer("pca", "two.parquet", "-o", "c2.zarr", "--moments", "m2.zarr", "--like", "m1.zarr")
    answer("merge", "m1.zarr", "m2.zarr", "-o", "m.zarr")
    answer("pca", "m.zarr", "-k", 2, "-o", "c.zarr")
    model = ds.open("c.zarr")
    assert isinstance(model, PrincipalComponents)
    assert (model.n_samples, model.feature_names) == (6000, ("a", "b"))
    np.testing.assert_allclose(model.components, PCA(2).fit(rows_of(data)).components_, atol=1e-8)


def test_design_plan_and_sketch(data: str, here: Path) -> None:
    told = answer("design", data, "--task", "pca", "-o", "grid.zarr")
    assert (told["kind"], told["n_columns"]) == ("grid of second moments", None)
    for chosen in (["--map", "grid.zarr"], ["--task", "pca"]):
        assert answer("plan", data, *chosen)["sketch_bytes"] == 16 * 6
    sketched = ["sketch", data, "--map", "grid.zarr"]
    assert answer(*sketched, "-o", "m.zarr")["count"] == 6000
    found = ds.open("m.zarr")
    assert isinstance(found, ds.SecondMoments)
    assert found == ds.second_moments(rows_of(data), like=found)
    answer("sketch", data, "--map", "m.zarr", "-o", "again.zarr")
    answer("merge", "grid.zarr", "m.zarr", "again.zarr", "-o", "both.zarr")
    assert ds.open("both.zarr") == found + found
    answer("sketch", data, "--task", "pca", "-k", 2, "-o", "n.zarr")
    told = answer("pca", "n.zarr", "-o", "c.zarr")
    np.testing.assert_allclose(
        told["explained_variance"], PCA().fit(rows_of(data)).explained_variance_
    )
    # a sketch tells its feature map, too
    answer("sketch", data, "-m", 20, "-o", "s.zarr")
    answer("sketch", data, "--map", "s.zarr", "-o", "t.zarr")
    assert ds.open("s.zarr").identical(ds.open("t.zarr"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["design", "DATA", "--task", "pca", "-m", 9], "n_frequencies=9"),
        (["sketch", "DATA", "--map", "m.zarr", "--by", "g"], "by='g'"),
        (["sketch", "DATA", "--map", "m.zarr", "--sample", 9], "sample=9"),
        (["sketch", "DATA", "--map", "c.zarr"], "map='c.zarr'"),
        (["sketch", "DATA", "--map", "m.zarr", "--nan-policy", "available"], "nan_policy"),
        (["decode", "m.zarr", "-k", 1], "dask-sketch pca"),
        (["privatise", "m.zarr", "--epsilon", 1], "dask-sketch pca"),
        (["polish", "c.zarr", "DATA"], "principal-components"),
    ],
)
@pytest.mark.few_cases(3)
def test_moments_take_no_other_command(
    arguments: list[object], message: str, data: str, here: Path
) -> None:
    answer("pca", data, "-o", "c.zarr", "--moments", "m.zarr")
    given = [data if one == "DATA" else one for one in arguments]
    assert message in refusal(1, *given, "-o", "other.zarr")
    assert not (here / "other.zarr").exists()
    for command in (["diagnose", "c.zarr", "m.zarr"], ["score", data, "c.zarr"]):
        assert "principal-components" in refusal(1, *command)


def test_missing_values(data: str, here: Path) -> None:
    x = rows_of(data)[:1000]
    x[::3, 0] = np.nan
    pd.DataFrame(x, columns=["a", "b"]).to_parquet("x.parquet")
    assert "row 0" in refusal(1, "pca", "x.parquet", "-o", "c.zarr")
    told = answer("pca", "x.parquet", "-o", "c.zarr", "--nan-policy", "available")
    values = np.linalg.eigvalsh(pd.DataFrame(x).cov())[::-1]
    np.testing.assert_allclose(told["explained_variance"], values, rtol=1e-7)
    told = answer("pca", "x.parquet", "-o", "d.zarr", "--nan-policy", "omit")
    assert told["omitted"] == 334


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.zarr", "--n-columns", 1], "n_columns=1"),
        (["m.zarr", "--moments", "n.zarr"], "moments='n.zarr'"),
        (["DATA", "--moments", "./other.zarr"], "moments='./other.zarr'"),
        (["DATA", "--like", "c.zarr"], "like='c.zarr'"),
        (["DATA", "-k", 3], "n_components=3"),
        (["DATA", "--n-columns", 3], "n_columns=3"),
        (["DATA", "--n-columns", 1], "n_components=None"),
        (["DATA", "--like", "m.zarr", "--n-columns", 1], "n_columns=1"),
    ],
)
@pytest.mark.few_cases(3)
def test_options_without_a_meaning(
    arguments: list[object], message: str, data: str, here: Path
) -> None:
    answer("pca", data, "-o", "c.zarr", "--moments", "m.zarr")
    first = data if arguments[0] == "DATA" else arguments[0]
    assert message in refusal(1, "pca", first, *arguments[1:], "-o", "other.zarr")
    assert not (here / "other.zarr").exists()
