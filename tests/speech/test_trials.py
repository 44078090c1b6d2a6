"""Lists of trials, in and out."""

from __future__ import annotations

import pytest

from dask_sketch.errors import InputError
from dask_sketch.speech.trials import Trial, read_enrolment, read_trials, write_trials

SAME = [Trial("anna", "7_anna_3.wav", True), Trial("anna", "7 bert.wav", False)]


@pytest.mark.parametrize(
    "text",
    [
        "model,test,target\nanna,7_anna_3.wav,1\nanna,7 bert.wav,0\n",
        "\ufeffModel, Test, Target\n\nanna, 7_anna_3.wav, target\nanna,7 bert.wav,nontarget",
    ],
)
def test_csv(tmp_path, text):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert read_trials(tmp_path / "t.csv") == SAME


@pytest.mark.parametrize("text", ["1 a x.wav\n0 a y.wav\n", "a x.wav target\na y.wav nontarget\n"])
def test_plain_lines(tmp_path, text):
    (tmp_path / "t").write_text(text)
    assert read_trials(tmp_path / "t") == [Trial("a", "x.wav", True), Trial("a", "y.wav", False)]


def test_a_list_without_answers(tmp_path):
    (tmp_path / "t").write_text("model,test\na,x.wav\n")
    assert read_trials(tmp_path / "t") == [Trial("a", "x.wav")]


def test_scores_come_back_as_they_were(tmp_path):
    write_trials(tmp_path / "s.csv", SAME, [0.1 + 0.2, -1e-17])
    lines = (tmp_path / "s.csv").read_text().splitlines()
    assert lines[0] == "model,test,target,score"
    assert [float(line.rsplit(",", 1)[1]) for line in lines[1:]] == [0.1 + 0.2, -1e-17]
    write_trials(tmp_path / "t.csv", SAME)
    assert read_trials(tmp_path / "t.csv") == SAME


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a b\n", "t:1: 'a b'"),
        ("a b maybe\n", "t:1: 'a b maybe'"),
        ("1 a b\n1 a b\n", "t:2: a, b is listed twice"),
        ("who,what\na,b\n", "header 'who,what'"),
    ],
)
def test_bad_lists(tmp_path, text, message):
    (tmp_path / "t").write_text(text)
    with pytest.raises(InputError, match=message):
        read_trials(tmp_path / "t")


def test_a_missing_list(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_trials(tmp_path / "none")
    with pytest.raises(InputError, match="scores has length 1"):
        write_trials(tmp_path / "s", SAME, [1.0])


def test_enrolment(tmp_path):
    (tmp_path / "e.csv").write_text("model,recording\na,1.wav\nb,2.wav\na,3.wav\n")
    (tmp_path / "e.txt").write_text("a 1.wav\nb 2.wav\na 3.wav\n")
    expected = {"a": ["1.wav", "3.wav"], "b": ["2.wav"]}
    assert read_enrolment(tmp_path / "e.csv") == read_enrolment(tmp_path / "e.txt") == expected
    (tmp_path / "bad").write_text("a\n")
    with pytest.raises(InputError, match="bad:1"):
        read_enrolment(tmp_path / "bad")
