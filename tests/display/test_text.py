"""Texts for terminals."""

from __future__ import annotations

from dask_sketch.display.text import fields_text, first_line, printable, text_table
from dask_sketch.errors import InputError

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def test_control_characters_do_not_reach_a_terminal():
    assert printable(ESCAPE) == "\\x1b]0;owned\\x07\\x1b[2J"
    assert printable("a\nb", keep="\n") == "a\nb"
    assert printable("right \u202e left") == "right \\u202e left"
    assert printable("é ± ²") == "é ± ²"
    for text in (
        fields_text({ESCAPE: ESCAPE + "\n"}),
        text_table([(ESCAPE, "a\nb")], header=("x", "y")),
        first_line(ValueError(ESCAPE)),
        first_line(InputError(ESCAPE * 10_000)),
    ):
        assert not set(text) & set("\x1b\x07\r\b")
    assert len(first_line(InputError(ESCAPE * 10_000))) < 30_000
    assert fields_text({"a": "b\nfake  line"}).count("\n") == 0
