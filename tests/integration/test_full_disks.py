"""Files that cannot be written completely: a clear error, and the earlier file stays.

A limit of the size of files takes the place of a full disk.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from jobs.conftest import make_place
from jobs.places import Place

import dask_sketch as ds
from dask_sketch.cli.main import cli
from dask_sketch.cluster.certificates import make_certificates
from dask_sketch.errors import ArtifactError, SketchError
from dask_sketch.features.artifact import write_feature_map
from dask_sketch.jobs.run import run_job
from dask_sketch.speech.trials import Trial, write_trials

__all__ = ["make_place"]
MAP = ds.FeatureMap(2, 40, scale=1.0)
SKETCH = ds.partial_sketch(np.random.default_rng(0).normal(size=(50, 2)), MAP)


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def call(*arguments: object) -> str:
    result = CliRunner().invoke(cli, list(map(str, arguments)))
    assert result.exit_code == 1, result.output
    return result.stderr


WRITERS: dict[str, Callable[[Path], Any]] = {
    "x.zarr": lambda path: SKETCH.to_zarr(path, overwrite=True),
    "map.json": lambda path: write_feature_map(str(path), MAP),
    "scores.csv": lambda path: write_trials(path, [Trial("speaker", "recording")] * 500),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_earlier_file_stays(name: str, tmp_path: Path) -> None:
    path, write = tmp_path / name, WRITERS[name]
    write(path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with files_of_at_most(100), pytest.raises(ArtifactError, match=str(path)):
        write(path)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before


def test_certificates_leave_no_parts_of_keys(tmp_path: Path) -> None:
    with files_of_at_most(100), pytest.raises(ArtifactError, match=str(tmp_path / "certificates")):
        make_certificates(tmp_path / "certificates")
    assert list((tmp_path / "certificates").iterdir()) == []


def test_commands_name_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(50, 2)))
    SKETCH.to_zarr(tmp_path / "s.zarr")
    for command in (
        ["design", tmp_path / "x.npy", "--n-components", 1, "-o", tmp_path / "m.json"],
        ["report", tmp_path / "s.zarr", "-o", tmp_path / "r.html"],
    ):
        with files_of_at_most(100):
            assert str(tmp_path / str(command[-1])) in call(*command)


@pytest.mark.parametrize("size", [0, 300, 1200])
def test_a_ledger_is_whole_after_a_full_disk(
    make_place: Callable[..., Place],
    size: int,
) -> None:
    place = make_place(3, "[[decode]]\nn_components = 2\n[limits]\ncommit_partitions = 1\n")
    with files_of_at_most(size), pytest.raises(SketchError, match="ledger"):
        run_job(place.file)
    assert not [path.name for path in place.folder.rglob(".*")]
    assert place.run().partitions == 3
    place.require_whole()


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_named(
    make_place: Callable[..., Place],
) -> None:
    place = make_place(3, '[[decode]]\nn_components = 2\n[outputs]\nreport = "r.html"\n')
    with files_of_at_most(40_000), pytest.raises(ArtifactError, match=r"r\.html"):
        run_job(place.file)
    assert len(place.ledger().entries) == 3
    assert place.run().run == 1
