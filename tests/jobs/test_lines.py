"""Lines of keys: those that a person would point at, for all of TOML."""

from __future__ import annotations

import string
import tomllib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dask_sketch.jobs.lines import lines_of


def places(value: object, at: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """Every place in a parsed document."""
    found = {at} if at else set()
    if isinstance(value, dict):
        for key, item in value.items():
            found |= places(item, (*at, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            found |= places(item, (*at, number))
    return found


CASES = {
    "plain": ("a = 1\n\n# [not.a.table]\n[b]\nc = 2 # d = 3\n", {("a",): 1, ("b", "c"): 5}),
    "dotted keys": (
        'a . b.c = 1\na."b b".\'c.c\' = 2\n',
        {("a",): 1, ("a", "b"): 1, ("a", "b", "c"): 1, ("a", "b b", "c.c"): 2},
    ),
    "quoted keys with escapes": ('"a\\u0041\\"]" = 1\n', {('aA"]',): 1}),
    "arrays of tables": (
        "[[s]]\na = 1\n[[s]]\n[s.t]\na = 2\n[[s.u]]\nb = 1\n[[s.u]]\nb = 2\n",
        {
            ("s",): 1, ("s", 0): 1, ("s", 0, "a"): 2, ("s", 1): 3, ("s", 1, "t", "a"): 5,
            ("s", 1, "u", 0, "b"): 7, ("s", 1, "u", 1, "b"): 9,
        },
    ),
    "inline tables": (
        "a = { b = 1, c.d = [ { e = 1 },\n { e = 2 } ] }\nf = {}\n",
        {("a", "b"): 1, ("a", "c", "d", 0, "e"): 1, ("a", "c", "d", 1, "e"): 2, ("f",): 3},
    ),
    "arrays over lines": (
        'a = [\n  "x,]",  # one ]\n  \'y\',\n\n  [1,\n 2],\n]\nb = 1\n',
        {("a", 0): 2, ("a", 1): 3, ("a", 2): 5, ("a", 2, 1): 6, ("b",): 8},
    ),
    "texts over lines": (
        'a = """\n[b]\nc = 1\n\\"""\n"" """""\nd = 2\ne = \'\'\'\n\\\'\'\n[f]\'\'\'\'\'\ng = 3\n',
        {("a",): 1, ("d",): 6, ("e",): 7, ("g",): 10},
    ),
    "a quote after the opening": ('a = """"x"""\nb = """"""\nc = 1\n', {("a",): 1, ("c",): 3}),
    "other line ends": ('a = """x\r\ny"""\r\nb = 1\r\n', {("a",): 1, ("b",): 3}),
    "dates and numbers": ("a = 1979-05-27 07:32:00\nb = [1e3, +inf,\n-nan]\n", {("b", 2): 3}),
    "a table after its own subtable": ("[a.b]\nc = 1\n[a]\nd = 1\n", {("a",): 1, ("a", "d"): 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_lines(name: str) -> None:
    text, expected = CASES[name]
    found = lines_of(text)
    assert set(found) == places(tomllib.loads(text))
    assert {place: found[place] for place in expected} == expected


bare = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=3)
anything = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=6)
quoted = anything.map(lambda key: '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"')
literal = st.text("ab .,[]{}=#\"'", max_size=6).filter(lambda key: "'" not in key)
keys = st.one_of(bare, quoted, literal.map(lambda key: f"'{key}'"))
dotted = st.lists(keys, min_size=1, max_size=3).map(" . ".join)
multiline = st.text('ab\n"]}#=,', max_size=8).filter(lambda text: '"""' not in text)
scalars = st.one_of(
    st.integers(-99, 99).map(str), st.sampled_from(["true", "inf", "07:32:00"]), quoted,
    multiline.map(lambda text: f'"""{text}"""'), literal.map(lambda text: f"'''\n{text}'''"),
)  # fmt: skip
gap = st.sampled_from(["", " ", "\n", " # ]} = \n"])


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    items = draw(st.lists(inner, max_size=3))
    return "[" + ",".join(f"{draw(gap)}{item}{draw(gap)}" for item in items) + "]"


values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        arrays(inner),
        st.lists(st.tuples(dotted, inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{key} = {value}" for key, value in pairs) + "}"
        ),
    ),
    max_leaves=6,
)
statements = st.one_of(
    st.tuples(dotted, values).map(" = ".join),
    dotted.map("[{}]".format),
    dotted.map("[[ {} ]]".format),
    gap,
)


@settings(max_examples=400)
@given(st.lists(st.tuples(statements, gap.filter(lambda text: "=" not in text)), max_size=8))
def test_every_place_of_any_document_has_its_line(parts: list[tuple[str, str]]) -> None:
    lines = [statement + after.replace("#", "") for statement, after in parts]
    text = "\n".join(lines) + "\n"
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
    found = lines_of(text)
    assert set(found) == places(parsed)
    # taken alone, a statement that is a pair begins where its first key is said to stand
    start = 1
    for line in lines:
        if line.strip().startswith(("[", "#")):
            break
        for key in tomllib.loads(line):
            # or above: a dotted key may go on with the table of an earlier one
            assert found[(key,)] <= start
        start += line.count("\n") + 1


def test_a_line_is_of_the_key_and_not_of_the_statement_before() -> None:
    text = "".join(f'k{i} = """{chr(10) * i}"""\n' for i in range(6))
    expected, line = {}, 1
    for i in range(6):
        expected[f"k{i}",] = line
        line += i + 1
    assert lines_of(text) == expected
