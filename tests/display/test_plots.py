"""Pictures: what is drawn, where, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import EllipseCollection, PolyCollection
from matplotlib.figure import Figure

from dask_sketch import decode, design, sketch
from dask_sketch.display import plots
from dask_sketch.errors import InputError
from dask_sketch.models import GaussianMixture, random_mixture

TRUTH = random_mixture(3, 4, seed=1)
ROWS = TRUTH.sample(5000, seed=2)
MAP = design(ROWS, n_components=3)
SKETCH = sketch(ROWS, MAP)
MODEL = decode(SKETCH, 3, method="splitting")


def labels(ax: object) -> set[str]:
    return set(ax.get_legend_handles_labels()[1])  # type: ignore[attr-defined]


def test_scale_fit() -> None:
    ax = plots.plot_scale_fit(MAP.scale_fit)  # type: ignore[arg-type]
    assert {"pilot frequencies", "largest of a shell"} < labels(ax)
    assert len(ax.lines) == 3
    assert ax.lines[2].get_ydata()[0] == 1.0


def test_modulus() -> None:
    ax = plots.plot_modulus(SKETCH, MODEL)
    assert labels(ax) == {"sketch", "mixture", "envelope of one component", "noise level"}
    assert ax.get_yscale() == "log"
    np.testing.assert_allclose(ax.lines[0].get_ydata(), np.abs(SKETCH.characteristic))
    assert "mixture" not in labels(plots.plot_modulus(SKETCH))


def test_mixture_shows_the_two_widest_features() -> None:
    wide = GaussianMixture(TRUTH.weights, TRUTH.means, TRUTH.covariances * [1, 900, 1, 90])
    ax = wide.plot.ellipses(wide.sample(2000), names=list("abcd"))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("b", "d")
    kinds = [type(artist) for artist in ax.collections]
    assert PolyCollection in kinds  # the density
    (ellipses,) = [a for a in ax.collections if isinstance(a, EllipseCollection)]
    np.testing.assert_allclose(ellipses.get_offsets(), wide.means[:, [1, 3]])
    chosen = wide.plot.ellipses(features=(0, 2))
    assert (chosen.get_xlabel(), chosen.get_ylabel()) == ("feature 0", "feature 2")
    assert PolyCollection not in [type(artist) for artist in chosen.collections]


def test_ellipses_have_two_deviations_to_either_side() -> None:
    one = GaussianMixture([1.0], [[0.0, 0.0]], [[4.0, 1.0]])  # type: ignore[arg-type]
    ax = one.plot.ellipses()
    np.testing.assert_allclose(ax.get_xlim(), (-4.0, 4.0))
    np.testing.assert_allclose(ax.get_ylim(), (-2.0, 2.0))


def test_one_feature_and_one_component() -> None:
    one = GaussianMixture([1.0], [[3.0]], [[4.0]])  # type: ignore[arg-type]
    one.plot.ellipses(one.sample(100))


def test_trace() -> None:
    decoding = MODEL.decoding
    assert decoding is not None
    ax = plots.plot_trace(decoding)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), decoding.trace)
    assert ax.lines[1].get_ydata()[0] == decoding.noise_level
    assert ax.get_yscale() == "log"
    assert ax.get_xlabel() == "level of splitting"


def test_axes_given_are_used() -> None:
    ax = Figure().add_subplot()
    assert plots.plot_modulus(SKETCH, ax=ax) is ax
    assert plots.plot_trace(MODEL.decoding, ax=ax) is ax  # type: ignore[arg-type]


def test_bad_input() -> None:
    with pytest.raises(InputError, match="fit=None"):
        plots.plot_scale_fit(None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="decoding=None"):
        plots.plot_trace(replace(MODEL, decoding=None).decoding)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"sample has shape \(5, 3\)"):
        MODEL.plot.ellipses(np.zeros((5, 3)))
    with pytest.raises(InputError, match=r"features=\(0, 4\)"):
        MODEL.plot.ellipses(features=(0, 4))
    with pytest.raises(InputError, match="1 names for 4 features"):
        MODEL.plot.ellipses(names=["a"])


def test_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'matplotlib>="):
        plots.plot_modulus(SKETCH)
