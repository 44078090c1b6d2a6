"""Models of the windows of a ledger: their components are matched, and drawn over time."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import FeatureMap, create_ledger, decode, open_ledger, partial_sketch
from dask_sketch.errors import InputError, LedgerError
from dask_sketch.jobs import model_history
from dask_sketch.jobs.ledger import Partition, RunRecord
from dask_sketch.jobs.past_models import ModelHistory
from dask_sketch.models import Centroids, GaussianMixture

N_RUNS = 6
MAP = FeatureMap(2, 60, scale=1.0, seed=1, feature_names=("a", "b"))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """A cluster at 0 gets lighter night by night, one at 8 moves."""
    made = create_ledger(tmp_path_factory.mktemp("history") / "ledger.zarr", MAP)
    rng = np.random.default_rng(0)
    for run in range(1, N_RUNS + 1):
        x = rng.normal(size=(3000, 2))
        x[: 400 * run] += [8.0 + 0.5 * run, 0.0]
        day = f"2026-06-{run:02d}T03:00:00+00:00"
        added = [(Partition(f"{run}", "", 3000, 100), partial_sketch(x, MAP))]
        with made.lock():
            made.commit(added=added, run=RunRecord(run, day, day, "done"))
    return made


@pytest.fixture(scope="module")
def history(ledger):
    return model_history(ledger, 2, window=2)


def test_components_are_followed(history):
    assert history.runs == tuple(range(1, N_RUNS + 1))
    assert history.dates[2] == "2026-06-03"
    fractions = 400 * np.arange(1, N_RUNS + 1) / 3000
    expected = np.r_[fractions[0], (fractions[1:] + fractions[:-1]) / 2]
    np.testing.assert_allclose(history.weights[:, 1], expected, atol=0.02)
    np.testing.assert_allclose(history.weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(history.means[:, 0], 0.0, atol=0.15)
    assert (np.diff(history.means[:, 1, 0]) > 0.2).all()


def test_windows_are_those_of_the_ledger(ledger, history):
    sketch = ledger.window(2, sample=False)
    expected = decode(sketch, 2, start=history.models[-2])
    np.testing.assert_array_equal(history.models[-1].means, expected.means)
    by_span = model_history(ledger.label, 2, window="2 days", max_windows=3)
    assert by_span.runs == (4, 5, 6)
    np.testing.assert_allclose(by_span.weights[-1], history.weights[-1], atol=1e-3)


def test_a_component_without_a_match_begins_a_new_track(history):
    small = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    found = ModelHistory((1, 2), ("", ""), (small, history.models[0]), ((0,), (1, 0)))
    assert np.isnan(found.weights[0, 1])
    assert found.means.shape == (2, 2, 2)
    assert "tracks" in repr(found)
    assert "ModelHistory" in found._repr_html_()


def test_centroids(ledger):
    found = model_history(ledger, 2, window=1, max_windows=2, model="dirac")
    assert isinstance(found.models[0], Centroids)
    assert found.means.shape == (2, 2, 2)


def test_pictures(history):
    ax = history.plot.weights()
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), history.weights[:, 1])
    for feature in (0, "a"):
        ax = history.plot.means(feature)
        assert ax.get_ylabel() == "mean of a"
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), history.means[:, 0, 0])
    for feature in (2, "c", True, None):
        with pytest.raises(InputError, match=f"feature={feature!r}"):
            history.plot.means(feature)


def test_what_is_refused(tmp_path, ledger):
    create_ledger(tmp_path / "empty.zarr", MAP)
    with pytest.raises(LedgerError, match="no partitions"):
        model_history(open_ledger(tmp_path / "empty.zarr"), 2)
    with pytest.raises(LedgerError, match="window='soon'"):
        model_history(ledger, 2, window="soon")
    with pytest.raises(LedgerError, match="model='alpha-stable'"):
        model_history(ledger, 1, max_windows=1, model="alpha-stable")
    with pytest.raises(LedgerError, match="max_windows=0"):
        model_history(ledger, 2, max_windows=0)


def test_warnings_name_the_window(ledger):
    with pytest.warns(UserWarning, match=r"^window that ends with run 6: .*"):
        model_history(ledger, 1, window=1, max_windows=1)
