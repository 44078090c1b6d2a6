"""Affine maps of rows, and principal components as data."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch.decoders.leading_components import principal_components
from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.models.principal_components import AffineMap, PrincipalComponents

MATRIX = np.array([[1.0, 2.0, 0.0], [0.0, -1.0, 4.0]])
MAP = AffineMap(np.array([1.0, 2.0]), MATRIX, np.array([0.0, 0.0, 5.0]))
X = np.random.default_rng(0).normal(size=(20, 2))


def test_rows_are_mapped():
    expected = (X - [1.0, 2.0]) @ MATRIX + [0.0, 0.0, 5.0]
    np.testing.assert_allclose(MAP.transform(X), expected)
    lazy = MAP.transform(da.from_array(X, chunks=(7, 2)))
    assert lazy.chunks == ((7, 7, 6), (3,))
    np.testing.assert_allclose(lazy.compute(), expected)
    assert (MAP.n_features, MAP.n_components) == (2, 3)


def test_bad_rows():
    with pytest.raises(InputError, match=r"\(n, 2\)"):
        MAP.transform(X[:, :1])
    with pytest.raises(InputError, match="masked values"):
        MAP.transform(np.ma.masked_array(X, mask=X > 0))


def test_components_of_no_variance():
    found = PrincipalComponents(np.zeros(2), np.eye(2), np.zeros(2), 0.0, 0.0)
    assert np.isnan(found.explained_variance_ratio).all()
    with pytest.raises(InputError, match="mean"):
        PrincipalComponents(np.array([np.nan]), np.eye(1), np.ones(1), 1.0, 0.0)


AXES = np.array([[0.0, 0.6, 0.8], [1.0, 0.0, 0.0]])
FOUND = PrincipalComponents([1.0, 2.0, 3.0], AXES, [4.0, 1.0], 6.0, 1.0, np.nan, 9, ("a", "b", "c"))


@pytest.mark.parametrize("found", [FOUND, PrincipalComponents([0.0], [[1.0]], [2.0], 2.0, 0.0)])
def test_stored_components(found, tmp_path):
    found.to_zarr(tmp_path / "model.zarr")
    for again in (ds.open(tmp_path / "model.zarr"), ds.open(found.to_bytes())):
        assert isinstance(again, PrincipalComponents)
        for name in ("mean", "components", "explained_variance"):
            np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
        for name in ("total_variance", "noise_variance", "excess_risk", "n_samples"):
            assert getattr(again, name) == pytest.approx(getattr(found, name), nan_ok=True)
        assert again.feature_names == found.feature_names


def test_rows_and_coordinates():
    x = np.random.default_rng(1).normal(size=(20, 3))
    scores = FOUND.transform(x)
    np.testing.assert_allclose(scores, (x - FOUND.mean) @ AXES.T)
    lazy = da.from_array(x, chunks=(7, 3))
    np.testing.assert_allclose(FOUND.transform(lazy).compute(), scores)
    np.testing.assert_allclose(ds.apply(FOUND, "transform", lazy).compute(), scores)
    rows = FOUND.inverse_transform(scores)
    np.testing.assert_allclose(rows, FOUND.mean + scores @ AXES)
    np.testing.assert_allclose(FOUND.transform(rows), scores, atol=1e-12)
    with pytest.raises(InputError, match=r"\(n, 3\)"):
        FOUND.transform(x[:, :2])


def test_description_of_components():
    values = FOUND.as_dict()
    assert (values["kind"], values["n_components"], values["n_samples"]) == (
        "principal components", 2, 9,
    )  # fmt: skip
    assert "n_features=3" in repr(FOUND)
    assert "83.3%" in FOUND._repr_html_()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"mean": [0.0]}, "mean"),
        ({"components": [1.0]}, "components"),
        ({"components": np.zeros((0, 3))}, "components"),
        ({"explained_variance": [1.0]}, "explained_variance"),
        ({"feature_names": ("a",)}, "feature_names"),
    ],
)
def test_shapes_that_do_not_fit(change, name):
    values = {"mean": [0.0] * 3, "components": AXES, "explained_variance": [1.0, 1.0]} | change
    with pytest.raises(InputError, match=name):
        PrincipalComponents(**values, total_variance=1.0, noise_variance=0.0)


def test_a_file_that_holds_no_components():
    dataset, schema, version = FOUND._stored()
    edited = type("Edited", (PrincipalComponents,), {
        "_stored": lambda self: (dataset.drop_vars("mean"), schema, version)
    })(FOUND.mean, AXES, [4.0, 1.0], 6.0, 1.0)  # fmt: skip
    with pytest.raises(ArtifactError, match="mean"):
        ds.open(edited.to_bytes())


def test_angle_between_subspaces():
    turned = PrincipalComponents([0.0] * 3, [[np.sin(0.3), 0.0, np.cos(0.3)]], [1.0], 2.0, 0.0)
    axis = PrincipalComponents([0.0] * 3, [[0.0, 0.0, 1.0]], [1.0], 2.0, 0.0)
    assert turned.angle_to(axis) == pytest.approx(np.degrees(0.3))
    assert axis.angle_to(axis) == pytest.approx(0.0, abs=1e-6)
    plane = PrincipalComponents([0.0] * 3, np.eye(3)[[2, 1]], [1.0, 1.0], 2.0, 0.0)
    assert plane.angle_to(axis) == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(InputError, match="other"):
        axis.angle_to(FOUND)


def test_frames_with_other_names_are_refused():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 3)), columns=list("cab"))
    found = principal_components(ds.second_moments(frame), 2)
    np.testing.assert_array_equal(found.transform(frame), found.transform(frame.to_numpy()))
    with pytest.raises(InputError, match="feature 0 of x is 'a'; .* 'c'"):
        found.transform(frame[["a", "b", "c"]])
