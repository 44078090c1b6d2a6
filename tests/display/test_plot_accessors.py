"""`plot` of each object: the same pictures, and where they show."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import norm

from dask_sketch import FeatureMap, decode, design, partial_sketch
from dask_sketch.diagnostics.detection import error_rates
from dask_sketch.display import plots as pictures
from dask_sketch.errors import InputError
from dask_sketch.models import Centroids, random_mixture

ROWS = random_mixture(3, 4, seed=1).sample(2000, seed=2)
MAP = design(ROWS, n_components=3)
SKETCH = partial_sketch(ROWS, MAP)
MODEL = decode(SKETCH, 3)


def test_every_object_has_its_pictures():
    assert len(MAP.plot.scale_fit().lines) == 3
    assert SKETCH.plot.moduli().get_yscale() == "log"
    assert len(SKETCH.plot.moduli(MODEL).lines) == 4
    assert len(MODEL.plot.ellipses(ROWS, features=(0, 1)).collections) == 3
    assert MODEL.plot.trace().get_xlabel() == "iteration of likelihood"
    with pytest.raises(InputError, match="fit=None"):
        FeatureMap(2, 10, scale=1.0).plot.scale_fit()


def test_centroids_are_dots():
    centroids = Centroids(MODEL.weights, MODEL.means)
    (dots,) = centroids.plot.ellipses().collections
    spread = np.argsort(-(MODEL.weights @ (MODEL.means - MODEL.weights @ MODEL.means) ** 2))[:2]
    np.testing.assert_array_equal(dots.get_offsets(), MODEL.means[:, spread])
    assert len(centroids.plot.ellipses(ROWS).collections) == 2
    with pytest.raises(InputError, match="decoding=None"):
        centroids.plot.trace()


def test_axes_that_are_given_are_used():
    ax = Figure().add_subplot()
    assert SKETCH.plot.moduli(ax=ax) is ax


def test_a_notebook_shows_them(monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    monkeypatch.setattr(pictures, "in_notebook", lambda: True)
    ax = SKETCH.plot.moduli()
    assert plt.gcf() is ax.figure
    plt.close(ax.figure)


def test_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setattr(pictures, "in_notebook", lambda: True)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'matplotlib>="):
        MODEL.plot.trace()


def test_det_curves_share_axes():
    good = error_rates([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1])
    poor = error_rates([0.9, 0.1, 0.8, 0.2], [0, 0, 1, 1])
    bad = error_rates([0.9, 0.8, 0.7, 0.2, 0.1], [0, 0, 0, 1, 1])
    ax = good.plot.det(label="good")
    assert norm.cdf(ax.get_xlim()) == pytest.approx([5e-4, 0.6])
    bad.plot.det(ax, label="bad")
    wide = ax.get_xlim()
    assert norm.cdf(wide[1]) > 0.9
    poor.plot.det(ax)
    assert ax.get_xlim() == wide
    assert len(ax.lines) == 6
    assert ax.lines[2].get_label() == "bad"
