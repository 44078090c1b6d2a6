from __future__ import annotations

import io

import numpy as np
import pytest
import xarray as xr

from dask_sketch import FeatureMap, mmd, partial_sketch
from dask_sketch.display.comparison_plots import plot_matrix, plot_predictions, plot_witness
from dask_sketch.errors import InputError

pytest.importorskip("matplotlib")
MAP = FeatureMap(2, 60, scale=1.0)
ROWS = np.random.default_rng(0).normal(size=(2000, 2))


def test_groups_are_compared():
    speaker = np.repeat(["ada", "ben", "cleo"], [1000, 999, 1])
    rows = ROWS + 2.0 * (speaker == "ben")[:, None]
    group = partial_sketch(rows, MAP, groups=speaker)
    ax = plot_matrix(mmd(group))
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("group", "other_group")
    (drawn,) = ax.images
    shown = drawn.get_array()
    assert shown[0, 1] > 0.1
    assert shown[0, 0] == 0
    assert shown.mask[2, 0]  # of one sample there is nothing to say


def test_a_matrix_names_its_rows_and_columns():
    labels = [f"speaker {k}" for k in range(90)]
    matrix = xr.DataArray(np.eye(90), {"speaker": labels, "other": labels}, name="mmd")
    ax = plot_matrix(matrix)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("speaker", "other")
    shown = [text.get_text() for text in ax.get_yticklabels()]
    assert shown == labels[::3]
    (drawn,) = ax.images
    np.testing.assert_array_equal(drawn.get_array(), matrix)
    with pytest.raises(InputError, match=r"dimensions \('speaker',\)"):
        plot_matrix(matrix[:, 0])


def test_close_rows_of_a_matrix_are_neighbours():
    place = np.random.default_rng(0).permutation(12)
    distances = np.abs(place[:, None] - place).astype(float)
    distances[3] = distances[:, 3] = np.nan  # nothing is known of it
    labels = place.astype(str)
    matrix = xr.DataArray(distances, {"day": labels, "other": labels})
    ax = plot_matrix(matrix, ordered=True)
    shown = [int(text.get_text()) for text in ax.get_yticklabels()]
    assert [text.get_text() for text in ax.get_xticklabels()] == list(map(str, shown))
    known = [one for one in shown if one != place[3]]
    assert known in (sorted(known), sorted(known)[::-1])
    assert shown[0] == place[3] or shown[-1] == place[3]
    with pytest.raises(InputError, match="ordered=True.* not symmetric"):
        plot_matrix(matrix[:, 2:], ordered=True)


def test_the_sides_of_a_matrix_have_colours():
    place = np.array([3.0, 0.0, 1.0, 2.0])
    sides = ["late", "early", "early", "late"]
    matrix = xr.DataArray(np.abs(place[:, None] - place), {"a": place, "b": place}, ("a", "b"))
    ax = plot_matrix(matrix, ordered=True, sides=sides, max_labels=2)
    shown = [float(text.get_text()) for text in ax.get_yticklabels()]
    assert len(shown) == 2
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["late", "early"]
    strips = [one.images[0].get_array() for one in ax.child_axes]
    assert [strip.shape for strip in strips] == [(4, 1), (1, 4)]
    np.testing.assert_array_equal(
        strips[0].ravel(), [1, 1, 0, 0] if shown[0] == 0 else [0, 0, 1, 1]
    )
    with pytest.raises(InputError, match=r"sides has 3 rows .* \(4, 4\)"):
        plot_matrix(matrix, sides=sides[1:])
    with pytest.raises(InputError, match="of 5 sides"):
        plot_matrix(xr.DataArray(np.eye(5)), sides=list("abcde"))


def test_a_witness_of_a_grid_is_an_image():
    across, up = np.linspace(0.0, 4.0, 5), np.linspace(-1.0, 1.0, 3)
    points = np.random.default_rng(0).permutation([(x, y) for x in across for y in up])
    ax = plot_witness(points, points @ [1.0, 10.0], sides=("may", "june"))
    (drawn,) = ax.images
    np.testing.assert_allclose(drawn.get_array(), up[:, None] * 10.0 + across)
    assert drawn.get_extent() == [-0.5, 4.5, -1.5, 1.5]
    assert "more of may" in drawn.colorbar.ax.get_ylabel()
    uneven = np.where(points == 4.0, 5.0, points)
    for others in (points[1:], uneven):
        assert not plot_witness(others, others[:, 0]).images


@pytest.mark.slow
def test_names_are_no_formulas():
    name = r"$\frac{$"
    x = np.linspace(-1.0, 1.0, 6)
    grid = np.array([(a, b) for a in x for b in x])
    matrix = xr.DataArray(np.eye(2), {"a": [name, "b"], "b": [name, "b"]}, ("a", "b"), name)
    for ax in (
        plot_witness(x[:, None], x, names=[name], sides=(name, name)),
        plot_witness(grid, grid[:, 0], names=[name, name], sides=(name, name)),
        plot_matrix(matrix, sides=[name, "b"]),
    ):
        ax.figure.savefig(io.BytesIO(), format="svg")
        assert name in (ax.get_xlabel(), ax.get_yticklabels()[0].get_text())


def test_the_noise_of_a_witness_is_a_band():
    x = np.linspace(1.0, -1.0, 11)
    ax = plot_witness(x[:, None], x, sides=("may", "june"), noise=np.abs(x))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["more of may", "more of june", "noise"]
    (band,) = [one for one in ax.collections if one.get_label() == "noise"]
    (path,) = band.get_paths()
    np.testing.assert_allclose(np.abs(path.vertices[:, 1]), np.abs(path.vertices[:, 0]), atol=1e-9)


def test_the_sign_of_a_witness_has_a_colour():
    x = np.linspace(-1.0, 1.0, 20)
    ax = plot_witness(np.column_stack([x, x**2]), x, names=["a", "b"])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "b")
    (drawn,) = ax.collections
    assert drawn.get_clim() == (-1.0, 1.0)
    colors = drawn.to_rgba(drawn.get_array())
    assert colors[0, 0] > colors[0, 2]
    assert colors[-1, 2] > colors[-1, 0]
    ax = plot_witness(x[::-1, None], x)
    assert (np.diff(ax.lines[0].get_xdata()) > 0).all()
    with pytest.raises(InputError, match=r"x has shape \(20, 3\)"):
        plot_witness(np.ones((20, 3)), x)
    with pytest.raises(InputError, match=r"values \(19,\)"):
        plot_witness(x[:, None], x[1:])


def test_predictions_and_intervals_that_miss():
    targets, predictions = np.array([1.0, 2.0, 3.0]), np.array([1.1, 1.2, 3.0])
    ax = plot_predictions(targets, predictions, [0.2, 0.5, 0.5], name="$age$")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$age$", "prediction of $age$")
    inside, missed, _ = ax.lines
    np.testing.assert_array_equal(inside.get_xydata(), [[1.0, 1.1], [3.0, 3.0]])
    np.testing.assert_array_equal(missed.get_xydata(), [[2.0, 1.2]])
    ends = [line[:, 1] for lines in ax.collections for line in lines.get_segments()]
    np.testing.assert_allclose(ends, [[0.9, 1.3], [2.5, 3.5], [0.7, 1.7]])
    ax.figure.savefig(io.BytesIO())
    assert not plot_predictions(targets, predictions).collections
