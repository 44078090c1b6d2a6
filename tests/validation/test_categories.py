import numpy as np
import pandas as pd
import pytest

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.validation.categories import (
    MAX_LEVELS,
    Categories,
    levels_of_columns,
    stated_categories,
    with_codes,
)


def test_columns_of_any_type_become_codes_with_nan():
    frame = pd.DataFrame(
        {
            "category": pd.Categorical(["x", None, "y"], categories=["y", "x", "unused"]),
            "boolean": [True, False, True],
            "float": [1.0, np.nan, 3.0],
            "integer": pd.array([1, None, 2], dtype="Int64"),
            "missing boolean": pd.array([True, None, False], dtype="boolean"),
            "text": ["u", "v", None],
            "number": [0.5, 1.5, 2.5],
        }
    )
    levels = {
        "category": ("x", "y"), "boolean": (False, True), "float": (1, 3), "integer": (1, 2),
        "missing boolean": (False, True), "text": ("u", "v"),
    }  # fmt: skip
    found = with_codes(frame, levels)
    expected = [
        [0, np.nan, 1], [1, 0, 1], [0, np.nan, 1], [0, np.nan, 1], [1, np.nan, 0], [0, 1, np.nan],
        [0.5, 1.5, 2.5],
    ]  # fmt: skip
    np.testing.assert_array_equal(found.to_numpy(), np.transpose(expected))


@pytest.mark.parametrize("dtype", [object, "category"])
def test_unknown_levels_are_refused_with_column_and_value(dtype):
    frame = pd.DataFrame({"color": pd.Series(["red", None, "pink"], dtype=dtype)})
    with pytest.raises(ChunkError, match=r"(?s)'color'.*'pink'"):
        with_codes(frame, {"color": ("red", "blue")})


@pytest.mark.parametrize(
    "levels",
    [
        "red",
        ["red"],
        ["red", "red"],
        [0, False],
        [0.0, np.nan],
        [None, "red"],
        range(MAX_LEVELS + 1),
    ],
)
def test_levels_are_validated(levels):
    with pytest.raises(InputError, match="categories"):
        stated_categories({"color": levels}, 2, ("size", "color"))


@pytest.mark.parametrize(
    ("given", "names"),
    [({"hue": "ab"}, ("color",)), ({1: "ab"}, None), ("color", None), ({}, None)],
)
def test_unknown_columns_are_refused(given, names):
    with pytest.raises(InputError, match="categories"):
        stated_categories(given, 1, names)


def test_levels_are_taken_from_types_where_these_state_them():
    frame = pd.DataFrame(
        {"c": pd.Categorical(["b"], categories=["a", "b"]), "b": [True], "t": ["x"], "n": [1.0]}
    )
    names = list(frame)
    assert levels_of_columns("dtype", names, frame.dtypes, "x") == {"c": ("a", "b")}
    assert levels_of_columns(["c", "b"], names, frame.dtypes, "x") == {
        "c": ("a", "b"),
        "b": (False, True),
    }
    for name in ("t", "n"):
        with pytest.raises(InputError, match=rf"categories.*'{name}'"):
            levels_of_columns({name: None}, names, frame.dtypes, "x")
    with pytest.raises(InputError, match="categories=True: give 'dtype'"):
        levels_of_columns(True, names, frame.dtypes, "x")


@pytest.mark.parametrize("value", [-1.0, 3.0, 0.5])
def test_codes_are_checked(value):
    categories = Categories((None, ("a", "b", "c")), ("x", "color"))
    rows = np.array([[9.5, 2.0], [9.5, np.nan], [9.5, np.inf], [9.5, value]])
    categories.require_codes(rows[:3], "rows")
    with pytest.raises(ChunkError, match=rf"row 3.*{value:g}.*color"):
        categories.require_codes(rows, "rows")


def test_frames_of_codes_have_the_types_of_the_levels():
    categories = Categories((None, ("a", "b"), (False, True), (10, 20)), ("x", "c", "b", "n"))
    rows = np.array([[0.5, 1, 1, 0], [1.5, 0, 0, 1]])
    frame = categories.frame(rows)
    assert [str(dtype) for dtype in frame.dtypes] == ["float64", "category", "bool", "category"]
    levels = categories.of_columns(list(frame.columns))
    np.testing.assert_array_equal(with_codes(frame, levels).to_numpy(), rows)
