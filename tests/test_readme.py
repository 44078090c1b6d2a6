"""Run the code and the commands of the README files.

Blocks of `python` are run in order, in one namespace for each file. In blocks of `bash`, commands
of `dask-sketch` are run, and targets of `make` are only expanded, since they take minutes. Blocks
of `toml` are job files, or one section of a job file. A block that cannot run has a line above it:

    <!-- not run: needs a Kubernetes cluster -->
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from inputs import BUILDERS, DOORS, STREAMS

from dask_sketch.cli.main import cli
from dask_sketch.jobs.job_file import read_job
from dask_sketch.models import random_mixture

TOP = Path(__file__).parents[1]
FILES = (
    "README.md",
    "CHANGELOG.md",
    "deploy/README.md",
    "dask_sketch/README.md",
    "dask_sketch/FORMAT.md",
    "tests/benchmarks/README.md",
)
MAX_WORDS = 2000  # of the first page
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n\n?)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
N_FRAMES = 8_000


@dataclass
class Block:
    """A block of code and its position."""

    file: str
    line: int
    kind: str
    text: str
    reason: str | None  # reason not to run it

    def __str__(self):
        return f"{self.file}:{self.line}"


def blocks(file):
    text = (TOP / file).read_text()
    for found in BLOCK.finditer(text):
        mark = found["mark"] or ""
        reason = mark.removeprefix("not run: ") if mark.startswith("not run: ") else None
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(file, line, found["kind"], found["text"], reason)


ALL = [block for file in FILES for block in blocks(file)]


def of_kind(kind):
    return pytest.mark.parametrize("block", [b for b in ALL if b.kind == kind], ids=str)


def commands(text):
    """Command lines without comments. A backslash at the end joins two lines."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Folder for the commands, with the store and the job file that they name."""
    x = random_mixture(8, 2, seed=0).sample(N_FRAMES, seed=1).astype(np.float32)
    store = zarr.create_array(tmp_path / "frames.zarr", shape=x.shape, chunks=(5000, 2), dtype="f4")
    store[:] = x
    jobs = (one.text for one in ALL if one.kind == "toml" and "job" in tomllib.loads(one.text))
    (tmp_path / "job.toml").write_text(next(jobs))  # that of README.md
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_kinds_and_reasons_are_known():
    assert {block.kind for block in ALL} <= {"python", "bash", "toml"}
    for block in ALL:
        assert block.reason is None or len(block.reason.split()) >= 3, block
    assert sum(block.reason is None for block in ALL) >= 6


@pytest.mark.parametrize("file", FILES)
def test_python_runs_in_order(file, here, capsys):
    names = {"__name__": "readme"}
    for block in blocks(file):
        if block.kind == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(TOP / file), "exec")
            if block.reason is None:
                exec(code, names)
    if file == "README.md":
        assert capsys.readouterr().out


def run(words, block):
    """Run a command in this process."""
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, f"{block}: {shlex.join(words)}\n{done.output}"


def expanded(target, *variables):
    """Commands that make would run."""
    done = subprocess.run(
        ["make", "-n", "-C", str(TOP), target, *variables],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def look_at(target, *variables):
    """Check that a target exists, and that each variable changes its commands."""
    whole = expanded(target, *variables)
    for one in variables:
        assert expanded(target, *(v for v in variables if v != one)) != whole, (target, one)


@of_kind("bash")
def test_commands_run(block, here, forked_workers):
    if block.reason is not None:
        done = subprocess.run(
            ["bash", "-n"], input=block.text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        pytest.skip(block.reason)
    for words in commands(block.text):
        match words:
            case ["make", target, *variables]:
                look_at(target, *variables)
            case ["dask-sketch", *rest] | ["dask", "sketch", *rest]:
                run(rest, block)
            case _:
                pytest.fail(f"{block}: {words[0]} is not run, and the block has no reason")


@of_kind("toml")
def test_settings_are_those_of_a_job(block, tmp_path):
    """A single section replaces the one of the job file in deploy/."""
    text = block.text
    sections = tomllib.loads(text)
    if "job" not in sections:
        (section,) = sections
        whole = (TOP / "deploy/job.toml").read_text()
        start = whole.index(f"\n[{section}]")
        stop = whole.index("\n[", start + 1)
        text = f"{whole[:start]}\n{text}{whole[stop:]}"
    (tmp_path / "job.toml").write_text(text)
    read_job(tmp_path / "job.toml")


@pytest.mark.parametrize("file", FILES)
def test_commands_in_the_text_exist(file):
    text = (TOP / file).read_text()
    for target, variables in re.findall(r"`make ([\w-]+)((?: [A-Z]+=[^ `]+)*)`", text):
        look_at(target, *variables.split())
    for name in re.findall(r"`dask-sketch ([a-z][\w-]*)", text):
        assert name in cli.commands, name
    for name in re.findall(r"`(\w+\.md|(?:deploy|notebooks|tests)/[\w/.-]+)`", text):
        assert (TOP / name).exists(), name
    for name, heading in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", text):
        path = (TOP / file).parent.joinpath(name) if name else TOP / file
        assert path.exists(), name
        assert not heading or heading in anchors(path), (name, heading)


def anchors(path):
    """Anchors of the headings of a page, as GitHub and the documentation site make them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}


def test_the_architecture_is_that_of_the_package():
    """Layers are those that import-linter checks, and all named files exist."""
    text = (TOP / "dask_sketch/README.md").read_text()
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert "\n".join(contracts["contracts"][0]["layers"]) in text
    table = text.partition("## Extensions")[2].partition("\n## ")[0]
    names = re.findall(r"`([a-z_]+/[\w/.]+)`", table)
    assert len(names) >= 8
    for name in names:
        assert (TOP / "dask_sketch" / name).exists() or (TOP / name).exists(), name


def test_each_row_of_the_table_of_inputs_is_run_by_tests():
    """Builders of inputs are run by tests/sources/test_open.py and tests/graph/test_stream.py."""
    table = (TOP / "README.md").read_text().partition("\n## Inputs\n")[2].partition("\n- ")[0]
    rows = re.findall(r"^\| (.*?) \| .* \| .* \|$", table, re.M)
    assert rows[0] == "input"
    assert rows[1:] == list(DOORS)
    kinds = [*BUILDERS, *STREAMS]
    for kind in kinds:
        assert sum(kind.startswith(words) for words in DOORS.values()) == 1, kind
    for word in sum(DOORS.values(), ()):
        assert any(kind.startswith(word) for kind in kinds), word


def test_the_first_page_is_short():
    assert len((TOP / "README.md").read_text().split()) <= MAX_WORDS


def test_the_checks_find_errors():
    assert shutil.which("make")
    with pytest.raises(AssertionError, match="No rule to make target"):
        look_at("no-such-target")
    with pytest.raises(AssertionError, match="NOTHING"):
        look_at("demo", "NOTHING=1")
    with pytest.raises(AssertionError, match="No such command"):
        run(["nonsense"], ALL[0])
