"""The benchmark on real data runs at toy size, and its losses, warnings and targets are right."""

from __future__ import annotations

import math
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.spatial.distance import pdist

from tests.benchmarks.real import cells, sets
from tests.benchmarks.real.__main__ import main
from tests.benchmarks.real.cells import Cell, perform, read
from tests.benchmarks.real.far import cases, methods_of, spread_clusters
from tests.benchmarks.real.methods import Fit, Method, fit
from tests.benchmarks.real.summary import by_method, by_set, losses, targets


def test_cleaning_drops_missing_rows_constant_columns_and_repeated_columns():
    x = np.random.default_rng(0).normal(size=(50, 2))
    x = np.column_stack([x, np.full(50, 3.0), x[:, 0]])
    x[7, 1] = np.nan
    found = sets.clean(x)
    assert found.shape == (49, 2)
    np.testing.assert_array_equal(np.sort(found[:, 0]), np.sort(np.delete(x[:, 0], 7)))
    assert sets.clean(x, max_rows=10).shape == (10, 2)


def test_split_has_no_row_twice_and_is_in_units_of_the_training_rows():
    x = np.arange(100.0)[:, None]
    train, test = sets.split(x, seed=0)
    assert (len(train), len(test)) == (80, 20)
    assert train.std() == pytest.approx(1.0)
    assert len(np.unique(np.concatenate([train, test]))) == 100
    np.testing.assert_array_equal(sets.split(x, seed=0)[0], train)
    assert not np.array_equal(sets.split(x, seed=1)[0], train)


def test_at_least_ten_sets_of_five_kinds_and_half_of_the_others_are_judged():
    others = [data for name, data in sets.SETS.items() if name not in ("speech", "mnist")]
    assert len(others) >= 10
    assert len({data.kind for data in others}) >= 5
    assert sum(data.judged for data in others) >= len(others) / 2


@pytest.fixture(autouse=True)
def unprepared(monkeypatch):
    """No compilation ahead of the fits, whose seconds mean nothing here."""
    monkeypatch.setattr(cells, "prepare", lambda: None)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of packages with one data set: three blobs in place of airports."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3)) + 5 * rng.integers(3, size=(600, 1))
    (tmp_path / "airportsdata").mkdir()
    frame = pd.DataFrame(x, columns=["elevation", "lat", "lon"]).assign(name="field")
    frame.to_csv(tmp_path / "airportsdata" / "airports.csv", index=False)
    monkeypatch.setattr(sets, "PACKAGES", tmp_path)
    return tmp_path


def test_run_prints_targets_and_does_not_repeat_fits(packages):
    out = packages / "found.jsonl"
    arguments = ["airports", "speech", "-k", "3", "--splits", "1", "--method", "default",
                 "--method", "centroids", "--out", str(out)]  # fmt: skip
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 0, first.output
    assert "speech: skipped" in first.stderr
    assert "default, K=10" in first.stdout
    assert {each["method"] for each in read(out)} == {"EM 5", "KMeans 5", "default", "centroids"}
    assert all(each["error"] is None and each["seconds"] > 0 for each in read(out))
    again = CliRunner().invoke(main, arguments)
    assert "airports" not in again.stderr
    assert again.stdout == first.stdout
    assert CliRunner().invoke(main, ["airport"]).exit_code == 2


def test_missing_package_names_its_installation(tmp_path, monkeypatch):
    monkeypatch.setattr(sets, "PACKAGES", tmp_path)
    with pytest.raises(sets.Missing, match="no_such_package"):
        sets.package_file("no_such_package", "data.csv")


def test_records_of_other_source_are_used_only_on_request(tmp_path):
    path = tmp_path / "found.jsonl"
    values = iter([1.0, 2.0])
    cell = Cell("real", "a", 3, 0, "default", lambda: Fit(next(values), 0.1, False, ()))
    assert [each["value"] for each in perform([cell], path, say=lambda text: None)] == [1.0]
    text = path.read_text()
    path.write_text(text.replace(cell.source, "earlier") + '{"cut off')
    run = partial(perform, [cell], path, say=lambda text: None)
    assert [each["value"] for each in run(stale=True)] == [1.0]
    assert [each["value"] for each in run()] == [2.0]


def test_errors_and_warnings_are_part_of_the_result():
    def fails(x, n_components, seed):
        raise ValueError("n_components=3: too many")

    class Model:
        def score(self, x):
            return -2.0

    def warns(x, n_components, seed):
        warnings.warn("0.42 nats a sample below EM on the pilot rows", UserWarning, stacklevel=1)
        return Model()

    x = np.zeros((4, 2))
    assert fit(Method(warns), x, x, 3, 0).warned
    failed = fit(Method(fails), x, x, 3, 0)
    assert failed.value is None
    assert "n_components=3" in failed.error


def record(method, value, seed=0, warned=False, case="airports", experiment="real", size=10):
    return {"experiment": experiment, "case": case, "n_components": size, "seed": seed,
            "method": method, "max_rows": None, "value": value, "seconds": 1.0, "warned": warned,
            "error": None}  # fmt: skip


def test_losses_are_relative_to_the_same_split():
    records = [
        record("EM 5", -1.0), record("default", -1.5), record("EM 5", -2.0, seed=1),
        record("default", -2.3, seed=1, warned=True), record("KMeans 5", 2.0),
        record("centroids", 2.2), record("estimator", None), record("default", -1.0, seed=2),
    ]  # fmt: skip
    found = {(e.method, round(e.value, 6)): e.silent for e in losses(records)}
    assert found == {
        ("EM 5", 0.0): False, ("default", 0.5): True, ("default", 0.3): False,
        ("KMeans 5", 1.0): False, ("centroids", 1.1): False, ("estimator", math.inf): True,
    }  # fmt: skip
    line = next(text for text in by_method(losses(records)).splitlines() if "default" in text)
    assert line.split() == ["10", "default", "nats", "2", "0.400", "0.500", "airports", "2", "1",
                            "1.000"]  # fmt: skip
    assert "0.400!" in by_set(losses(records))


def test_targets_say_whether_they_are_reached():
    good = [record("EM 5", -1.0), record("default", -1.005)]
    coverage = [
        record(name, 0.95, case="d=5", experiment="coverage") for name in ("weights", "means")
    ]
    text = targets([*good, *coverage])
    assert "yes" in next(line for line in text.splitlines() if line.startswith("default"))
    assert "95/95" in text
    poor = [record("EM 5", -1.0), record("default", -1.2)]
    line = next(line for line in targets(poor).splitlines() if line.startswith("default"))
    assert line.split().count("NO") == 2
    far = [
        record(name, value, case="two", experiment="far", size=2)
        for name, value in (("EM from the truth", -3.0), ("without pilot", -3.01))
    ]
    line = next(line for line in targets(far).splitlines() if "without pilot" in line)
    assert "1.000" in line


def test_clusters_have_the_separation_and_the_weights():
    truth = spread_clusters(8, 12, 30, equal=False)
    assert pdist(truth.means).min() == pytest.approx(30)
    assert truth.weights.max() / truth.weights.min() == pytest.approx(100)
    assert len(cases(quick=True)) == 18
    x = truth.sample(4000, seed=0)
    em = fit(methods_of(truth)["EM from the truth"], x, x, 8, 0)
    bound = -(truth.weights * np.log(truth.weights)).sum() + 6 * math.log(2 * math.pi * math.e)
    assert em.value == pytest.approx(-bound, abs=0.05)
