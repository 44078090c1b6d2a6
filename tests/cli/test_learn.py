"""Commands that learn from groups and predict."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr
from cli.commands import answer, call, refusal

from dask_sketch import FeatureMap, GaussianMixture, partial_sketch
from dask_sketch import open as open_artifact
from dask_sketch.distributions import DistributionClassifier, DistributionRegressor

RNG = np.random.default_rng(0)
DAYS = np.datetime64("2024-01-01") + np.arange(80)
NAMES = {"u": np.array([f"day {i:03d}" for i in range(80)]), "M": DAYS}
WIDTH = RNG.uniform(0.5, 2.0, 80)
ROWS = RNG.normal(size=(3200, 2)) * np.repeat(WIDTH, 40)[:, None]
MAP = FeatureMap(2, 40, scale=1.0)
SIZE = ("--size", 40)


def write(labels, kind="u"):
    """Store the groups, and the targets by label in reverse order."""
    partial_sketch(ROWS, MAP, groups=np.repeat(labels, 40), dim="day").to_zarr("groups.zarr")
    table = pd.DataFrame({"day": labels, "width": WIDTH, "kind": np.where(WIDTH > 1, "w", "n")})
    table[::-1].to_csv("y.csv", index=False)


@pytest.mark.parametrize("kind", NAMES)
def test_learn_and_predict(kind: str, here: Path) -> None:
    write(NAMES[kind])
    told = answer("learn", "groups.zarr", "--labels", "y.csv", "--target", "width", *SIZE,
                  "-o", "model.zarr")  # fmt: skip
    assert told["n_groups"] == 80
    call("predict", "model.zarr", "groups.zarr", "-o", "p.csv", "--level", 0.2)
    found = pd.read_csv("p.csv")
    assert list(found.columns) == ["day", "prediction", "lower", "upper"]
    assert list(found["day"].astype(str)) == [str(label) for label in NAMES[kind]]
    assert np.mean((found["prediction"] - WIDTH) ** 2) < 0.05
    assert (found["lower"] < found["upper"]).all()


@pytest.mark.slow
def test_classes_and_samples(here: Path) -> None:
    write(NAMES["u"])
    answer("learn", "groups.zarr", "--labels", "y.csv", "--target", "kind", *SIZE, "-o", "m.zarr")
    model = open_artifact("m.zarr")
    frame = pd.DataFrame(ROWS, columns=["a", "b"]).assign(day=np.repeat(NAMES["u"], 40))
    frame.to_parquet("rows.parquet")
    arguments = ["--probabilities", "--columns", "a,b", "--by", "day"]
    answer("predict", "m.zarr", "rows.parquet", *arguments, "-o", "p.csv")
    found, expected = pd.read_csv("p.csv"), open_artifact("groups.zarr")
    np.testing.assert_allclose(found["probability of w"], model.predict_proba(expected)[:, 1])
    assert list(found["prediction"]) == list(model.predict(expected))
    assert answer("info", "m.zarr")["kind"] == "distribution classifier"


def test_learn_chooses_among_given_bandwidths_and_ridges(here: Path) -> None:
    write(NAMES["u"])
    pd.read_csv("y.csv").iloc[:, :2].to_csv("two.csv", index=False)
    given = ("learn", "groups.zarr", "--labels", "two.csv", *SIZE, "--alphas", "0.02,3")
    told = answer(*given, "--bandwidths", "4", "-o", "m.zarr", "--report", "page.html")
    assert told["bandwidth"] == 4
    assert told["alpha"] in (0.02, 3)
    text = Path("page.html").read_text()
    assert "--bandwidths 4.0 " in text
    assert "--alphas 0.02,3.0 " in text
    assert f"Can {pd.read_csv('two.csv').columns[1]} be predicted for each day?" in text
    end = "smaller" if told["alpha"] == 0.02 else "larger"
    assert f"try {end} alphas, too." in text
    for wrong in ("0,1", "a", "1,", "inf"):
        refused = call(*given, "--bandwidths", wrong, "-o", "other.zarr")
        assert refused.exit_code == 2
        assert f"{wrong!r} is not a list of positive numbers" in refused.stderr


def test_learn_writes_a_page(here: Path) -> None:
    pytest.importorskip("matplotlib")
    write(NAMES["u"])
    given = ("learn", "groups.zarr", "--labels", "y.csv", "--target", "width", *SIZE)
    told = answer(*given, "-o", "m.zarr", "--report", "page.html")
    assert told["report"] == "page.html"
    text = Path("page.html").read_text()
    assert "Can width be predicted for each day?" in text
    command = re.search(r"dask-sketch (learn groups.zarr [^<]*)", text)
    assert command is not None
    words = command[1].split()
    assert words[words.index("--size") + 1] == "40"
    assert "page.html" in refusal(1, *given, "-o", "other.zarr", "--report", "page.html")
    assert not Path("other.zarr").exists()
    answer(*words, "--overwrite")
    assert re.sub("id=.*", "", Path("page.html").read_text()) == re.sub("id=.*", "", text)


def test_predict_with_a_mixture(data: str, here: Path) -> None:
    mixture = GaussianMixture([0.5, 0.5], [[-5.0, -5.0], [5.0, 5.0]], [[1.0, 1.0]] * 2)
    mixture.to_zarr("mixture.zarr")
    told = answer("predict", "mixture.zarr", data, "--probabilities", "-o", "p.csv")
    assert told["n_predictions"] == 6000
    found = pd.read_csv("p.csv")
    x = np.asarray(zarr.open_array(data, mode="r")[:])
    np.testing.assert_array_equal(found["prediction"], mixture.predict(x))
    np.testing.assert_allclose(found["probability of 1"], mixture.predict_proba(x)[:, 1])
    assert "p.csv exists" in refusal(1, "predict", "mixture.zarr", data, "-o", "p.csv")
    assert "level=0.1" in refusal(1, "predict", "mixture.zarr", data, "-o", "q.csv", "--level", 0.1)
    Path("file").touch()
    assert "output='file/q.csv'" in refusal(1, "predict", "mixture.zarr", data, "-o", "file/q.csv")


MISTAKES = {
    "target=None": ((), lambda y: y),
    "target='age'": (("--target", "age"), lambda y: y),
    "key='name'": (("--target", "kind", "--key", "name"), lambda y: y),
    "task='regression'": (("--target", "kind", "--task", "regression"), lambda y: y),
    "y .*day 079": (("--target", "width"), lambda y: y[1:]),
    "key='day'.*day 079": (("--target", "width"), lambda y: pd.concat([y, y[:1]])),
    "target='kind'.*day 079": (("--target", "kind"), lambda y: y.assign(kind=y["kind"].mask(
        y["day"] == "day 079", ""))),
    "y has 1 class": (("--target", "kind"), lambda y: y.assign(kind="w")),
    "target='day'": (("--target", "day"), lambda y: y),
    "labels='other.csv'.*'tall' for the group day 000": (("--target", "width"), lambda y: y.assign(
        width=[*map(str, y["width"][:-1]), "tall"])),
    "key='zz'": (("--key", "zz"), lambda y: y),
    "labels='other.csv'.*decimal commas": (("--target", "width"), lambda y: y.assign(
        width=y["width"].map(lambda value: f"{value:.3f}".replace(".", ",")))),
    "target='width' is inf": (("--target", "width"), lambda y: y.assign(width=np.inf)),
}  # fmt: skip


@pytest.mark.slow
def test_mistakes_in_labels(here: Path) -> None:
    write(NAMES["u"])
    for message, (arguments, change) in MISTAKES.items():
        change(pd.read_csv("y.csv")).to_csv("other.csv", index=False)
        given = ("groups.zarr", "--labels", "other.csv", *arguments)
        shown = refusal(1, "learn", *given, "-o", "m.zarr")
        assert re.search(message, shown), shown
        assert not Path("m.zarr").exists()


def test_a_model_replaces_neither_its_groups_nor_its_labels(here: Path) -> None:
    write(NAMES["u"])
    for output in ("groups.zarr", "y.csv"):
        given = ("groups.zarr", "--labels", "y.csv", "-o", output, "--overwrite")
        assert "an input" in refusal(1, "learn", *given)
    same = call("learn", "groups.zarr", "--labels", "y.csv", "-o", "m", "--report", "m")
    assert same.exit_code == 2
    assert "--report" in same.stderr


@pytest.mark.parametrize("target", ["width", "kind"])
@pytest.mark.slow
def test_groups_of_one_unit_are_left_out_together(target: str, here: Path) -> None:
    write(NAMES["u"])
    table = pd.read_csv("y.csv").assign(unit=[f"unit {k // 4}" for k in range(80)])
    table.to_csv("y.csv", index=False)
    given = ("groups.zarr", "--labels", "y.csv", "--target", target, *SIZE)
    answer("learn", *given, "--leave-out", "unit", "-o", "m.zarr")
    kind = DistributionRegressor if target == "width" else DistributionClassifier
    indexed = table.set_index("day")
    groups, found = open_artifact("groups.zarr"), open_artifact("m.zarr")
    expected = kind(40).fit(groups, indexed[target], groups=indexed["unit"])
    one_by_one = kind(40).fit(groups, indexed[target])
    outputs = [
        one.predict_interval(groups) if target == "width" else one.predict_proba(groups)
        for one in (found, expected, one_by_one)
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])
    assert "leave_out='age'" in refusal(1, "learn", *given, "--leave-out", "age", "-o", "n.zarr")
