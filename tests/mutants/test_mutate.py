from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import PARTS, sampled
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutate import mutants

SOURCE = '''
"""A docstring with 1 number."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import numpy as np
BLOCK = 256
def double(x: "int | None" = 0, *, wait: bool = False) -> "list[int]":
    """Twice, + or -."""
    if x < 0 and not wait:
        raise ValueError(f"é: x={x + 1}")
    x += len(range(x))
    return x * 2
'''


def changed(tmp_path):
    path = Path("module.py")
    (tmp_path / path).write_text(SOURCE, encoding="utf-8")
    found = mutants(tmp_path, path)
    return [mutant.apply(SOURCE.encode()).decode() for mutant in found], found


def test_every_change_is_python_and_no_two_are_the_same(tmp_path):
    texts, _ = changed(tmp_path)
    assert len({ast.dump(ast.parse(text)) for text in [*texts, SOURCE]}) == len(texts) + 1


def test_which_changes_there_are(tmp_path):
    texts, found = changed(tmp_path)
    lines = [mutant.line - 1 for mutant in found]
    new = [text.splitlines()[line].strip() for text, line in zip(texts, lines, strict=True)]
    assert sorted(new) == sorted([
        'def double(x: "int | None" = 1, *, wait: bool = False) -> "list[int]":',
        'def double(x: "int | None" = 0, *, wait: bool = True) -> "list[int]":',
        "if (x < 0 or not wait):", "if (not (x < 0 and (not wait))):",
        "if (x <= 0) and not wait:", "if x < 1 and not wait:", "if x < 0 and (wait):",
        "pass", "pass", "x += len((range(x - 1)))", "return (x / 2)", "return x * 3",
    ])  # fmt: skip


def test_the_diff_shows_the_lines_that_change(tmp_path):
    _, found = changed(tmp_path)
    assert found[-1].diff(tmp_path) == (
        "module.py:12\n    -    return x * 2\n    +    return x * 3"
    )


def test_modules_and_tests_are_where_they_should_be():
    root = Path(__file__).parents[2]
    for modules, tests in PARTS.values():
        names = [f"dask_sketch/{name}" for name in modules.split()]
        names += [f"tests/{name}" for name in tests.split()]
        assert [name for name in names if not (root / name).exists()] == []


@pytest.mark.slow
def test_equivalent_changes_exist_and_are_left_out():
    root = Path(__file__).parents[2]
    paths = {Path("dask_sketch") / key[0] for key in EQUIVALENT}
    found = {mutant.key(root) for path in paths for mutant in mutants(root, path)}
    assert set(EQUIVALENT) <= found
    sample = list(sampled(root, ["merge"], 60, 0))
    assert len(sample) == 10
    assert set(sample) < set(sampled(root, ["merge"], 600, 0))
