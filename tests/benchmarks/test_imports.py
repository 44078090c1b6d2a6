"""Each benchmark is a module whose names exist; most of them run for too long to be tested."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
    for path in Path(__file__).parent.rglob("*.py")
    if not path.name.startswith("test_")
)


@pytest.mark.parametrize("name", MODULES)
def test_benchmarks_import(name: str) -> None:
    assert importlib.import_module(name).__name__ == name
