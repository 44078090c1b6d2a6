from __future__ import annotations

import ast

import pytest
from lint import TOP, check_classes, check_comments


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("MAX_NAMES = 4096  # in a list", "in"),
        ("_ROUNDS = 2  # of weighting and descent", "of"),
        ("    _LEAST, _MOST = 1, 2  # at most, of a chunk", "at most"),
        ("LIMIT: Final[int] = 8  # beyond which rounding is felt", "beyond"),
    ],
)
def test_comments_that_continue_the_name_of_a_constant_are_found(line, word):
    ((number, message),) = check_comments(f"import re\n\n{line}\n")
    assert number == 3
    assert repr(word) in message


@pytest.mark.parametrize(
    "line",
    [
        "MAX_NAMES = 4096  # names in a list, at most",
        "# of a comment that goes on over several lines",
        "MAX_NAMES = 4096  # office hours, which start with no whole word of the list",
        "rows = MAX_NAMES == 4096  # of a branch",
        "size = shape(MAX_NAMES)  # in bytes",
    ],
)
def test_other_comments_are_not_found(line):
    assert not list(check_comments(line))


def test_a_class_name_is_taken_once():
    sources = {"a": "class Side: pass\nclass _Own: pass", "b": "class _Own: pass\nclass Side: pass"}
    trees = {TOP / name: ast.parse(source) for name, source in sources.items()}
    ((path, (line, message)),) = check_classes(trees)
    assert (path.name, line) == ("b", 2)
    assert "Side is taken by a" in message
