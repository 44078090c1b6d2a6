"""CSV files: every value lands in the column that it belongs to."""

import gzip

import numpy as np
import pandas as pd
import pytest

import dask_sketch as ds
from dask_sketch import FeatureMap, open_samples
from dask_sketch.errors import ChunkError, InputError

MAP = FeatureMap(2, 20, scale=100.0)
BLOCK = 4000  # bytes


def sketch(path, text, **options):
    path.write_text(text, newline="")
    return ds.sketch(str(path), MAP, sample=False, **options).compute()


def lines(*more, n=3000):
    return "a,b\n" + "1,2\n" * n + "".join(f"{line}\n" for line in more)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\n1,2,\n3,4,\n", [[1, 2], [3, 4]]),
        ("a,b\r\n1,2\r\n3,4\r\n", [[1, 2], [3, 4]]),
        ("\ufeffa,b\n1,2\n", [[1, 2]]),
        ('a,b\n"1","2"\n', [[1, 2]]),
        ("a,b\n1,2\n\n3,4", [[1, 2], [3, 4]]),
        (lines("1.5,2"), [[1, 2]] * 3000 + [[1.5, 2]]),
        (lines("9e3,-2"), [[1, 2]] * 3000 + [[9000, -2]]),
    ],
)
def test_rows(tmp_path, text, rows):
    found = sketch(tmp_path / "x.csv", text, chunk_size=BLOCK)
    assert found.same_sums(ds.sketch(np.array(rows, dtype=float), MAP, sample=False))


def test_values_are_missing_after_whole_numbers(tmp_path):
    found = sketch(tmp_path / "x.csv", lines(",3"), chunk_size=BLOCK, nan_policy="omit")
    assert (found.count, found.omitted) == (3000, 1)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a,b\n1,2,3\n4,5,6\n", "1, 2, 3"),
        ("a,b\n1,2,\n4,5,6\n", "4, 5, 6"),
        (lines("4,5,6"), "4, 5, 6"),
        (lines("x,3"), "'x'"),
        (lines("True,3"), "'True'"),
        ("\na,b\n1,2\n", "first line"),
    ],
)
@pytest.mark.parametrize("size", [None, BLOCK])
def test_refusals(tmp_path, text, word, size):
    with pytest.raises((ChunkError, InputError)) as caught:
        sketch(tmp_path / "x.csv", text, chunk_size=size)
    assert "x.csv" in str(caught.value)
    assert word in str(caught.value)


def test_a_row_with_more_values_begins_a_block(tmp_path):
    rows = ["1,2"] * 2000
    rows[999] = "1,2,7"  # 4,000 bytes end before it
    with pytest.raises(ChunkError, match="7"):
        sketch(tmp_path / "x.csv", "\n".join(["a,b", *rows]), chunk_size=BLOCK)


def test_numbers_are_no_names(tmp_path):
    with pytest.raises(InputError, match=r"1, 2"):
        sketch(tmp_path / "x.csv", "1,2\n3,4\n")


def test_labels_stay_whole_numbers(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6], "g": [7, 8, 7]})
    frame.to_csv(tmp_path / "x.csv", index=False)
    groups = ds.sketch(str(tmp_path / "x.csv"), MAP, groups="g").compute()
    assert list(groups) == [7, 8]
    assert groups.labels.dtype == np.int64


def test_unused_columns_may_be_anything(tmp_path):
    text = "a,b,note\n" + "1,2,3\n" * 3000 + "1,2,x\n"
    found = sketch(tmp_path / "x.csv", text, columns=["a", "b"], chunk_size=BLOCK)
    assert found.count == 3001


@pytest.mark.parametrize("size", [None, BLOCK])
@pytest.mark.parametrize("first", ["b,a", "a,c", "a,b,c", "1,2", "b"])
@pytest.mark.parametrize("columns", [None, ["a", "b"]])
@pytest.mark.few_cases(6)
def test_all_files_have_the_names_of_the_first(tmp_path, first, size, columns):
    (tmp_path / "p0.csv").write_text(lines())
    row = ",".join("3" * (first.count(",") + 1))
    (tmp_path / "p1.csv").write_text(f"{first}\n" + f"{row}\n" * 3000)
    with pytest.raises(ChunkError, match="first file has a, b|more values"):
        ds.sketch(str(tmp_path / "p*.csv"), MAP, columns=columns, chunk_size=size).compute()
    (tmp_path / "p1.csv").write_text(lines("4,5"))
    found = ds.sketch(str(tmp_path / "p*.csv"), MAP, columns=columns, chunk_size=size).compute()
    assert found.count == 6001


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["01", "1", "001"], ["001", "01", "1"]),
        (["1e3", "1000", "1000.0"], ["1000", "1000.0", "1e3"]),
        (["+1", "1"], ["+1", "1"]),
        (["1.10", "1.1"], ["1.1", "1.10"]),
        (["-3", "10", "2"], [-3, 2, 10]),
        (["10.5", "2.0", "3"], [2.0, 3.0, 10.5]),
        (["True", "False"], [False, True]),
        (["18446744073709551615", "1"], ["1", "18446744073709551615"]),
    ],
)
def test_different_text_is_never_one_label(tmp_path, cells, labels):
    text = "a,b,g\n" + "".join(f"1,2,{cell}\n" for cell in [*cells, *cells])
    groups = sketch(tmp_path / "x.csv", text, groups="g")
    assert groups.labels.tolist() == labels
    assert groups.count.tolist() == [2] * len(labels)


@pytest.mark.parametrize("cell", ["01", "x", "1.0"])
def test_later_labels_are_written_as_the_first(tmp_path, cell):
    text = "a,b,g\n" + "1,2,1\n" * 50_000 + f"1,2,{cell}\n"
    with pytest.raises(ChunkError, match=f"'g'.*'{cell}'.*str"):
        sketch(tmp_path / "x.csv", text, groups="g")


@pytest.mark.parametrize(
    ("levels", "cells"),
    [
        (["01", "1"], ["01", "1"]),
        ([0, 10], ["0", "10.0"]),
        ([0.5, 1.0], ["0.50", "1"]),
        ([False, True], ["False", "true"]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_cells_are_levels(tmp_path, levels, cells):
    (tmp_path / "x.csv").write_text("a,b\n" + f"1,{cells[0]}\n2,{cells[1]}\n3,\n" * 2)
    samples = ds.open_samples(str(tmp_path / "x.csv"), categories={"b": levels})
    codes = np.asarray(samples.blocks.compute())[:, 1]
    np.testing.assert_array_equal(codes, [0, 1, np.nan] * 2)


def test_other_cells_than_levels_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,0\n2,7\n")
    with pytest.raises(ChunkError, match="'b'.*'7'"):
        ds.open_samples(str(tmp_path / "x.csv"), categories={"b": [0, 1]})


def test_a_folder_of_files(tmp_path):
    for k in (1, 2):
        (tmp_path / f"p{k}.csv").write_text(f"a,b\n{k},2\n")
    (tmp_path / "notes.txt").write_text("")
    for path in (tmp_path, f"{tmp_path}/"):
        found = ds.sketch(path, MAP, sample=False).compute()
        assert found.same_sums(ds.sketch(np.array([[1.0, 2], [2, 2]]), MAP, sample=False))


def test_no_rows(tmp_path):
    (tmp_path / "empty.csv").write_text("a,b\n")
    with pytest.raises(InputError, match=r"empty\.csv' has no rows"):
        open_samples(str(tmp_path / "empty.csv"))


def test_file_of_no_known_format(tmp_path):
    with gzip.open(tmp_path / "x.csv.gz", "wt") as file:
        file.write("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"x\.csv\.gz"):
        open_samples(str(tmp_path / "x.csv.gz"))
