"""Artifacts that an earlier version stored."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

collect_ignore = ["write_stored.py"]  # it has the names of commit 659e761


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    root = tmp_path_factory.mktemp("stored")
    with zipfile.ZipFile(Path(__file__).parent / "stored.zip") as file:
        file.extractall(root)
    return root
