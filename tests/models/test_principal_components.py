"""Affine maps of rows, and principal components as data."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from dask_sketch.errors import InputError
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
