"""Checks of arrays, and pickles of frozen values."""

import pickle

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch.errors import ArtifactError


def test_pickles_of_other_fields_are_refused():
    model = ds.Centroids([0.5, 0.5], [[0.0, 1.0], [2.0, 3.0]])
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.centers, model.centers)
    restore, (kind, names, values) = model.__reduce__()
    for others in (names[:-1], (*names[:-1], "later"), names[::-1]):
        with pytest.raises(ArtifactError, match=r"Centroids .*version.* to_zarr"):
            restore(kind, others, values[: len(others)])
