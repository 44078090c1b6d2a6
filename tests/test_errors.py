"""Commands in messages install what is missing, from any kind of installation."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import dask_sketch
from dask_sketch.errors import install_command

TOP = Path(__file__).parents[1]
EXTRAS = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_of_an_extra_are_named(extra):
    command = install_command(extra)
    assert "dask-sketch" not in command
    for requirement in EXTRAS[extra]:
        if not requirement.startswith("dask-sketch"):
            assert requirement in command
    if extra == "slurm":
        assert EXTRAS["tls"][0] in command


def test_sources_that_are_not_installed(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert "pip install '.[plot]'" in install_command("plot")


def test_nothing_is_installed_from_an_index_that_does_not_have_it():
    texts = [*Path(dask_sketch.__file__).parent.rglob("*.py"), TOP / "README.md"]
    texts += [path for path in (TOP / "deploy").rglob("*") if path.is_file()]
    texts += (TOP / "notebooks").rglob("*.ipynb")
    found = [
        f"{path.name}: {line.strip()}"
        for path in texts
        for line in path.read_text().splitlines()
        if re.search(r"dask-sketch\[(?!.* @ file:)|install dask-sketch\b", line)
    ]
    assert found == []
