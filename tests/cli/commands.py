"""Calls of the command line in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from dask_sketch.cli.main import cli


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def answer(*arguments: object) -> dict[str, object]:
    """JSON on standard output of a command that must succeed."""
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    parsed = json.loads(result.stdout)
    assert isinstance(parsed, dict)
    return parsed


def run_in_a_process(job: Path, errors: Path) -> None:
    """Run a job as the program does, with standard error in a file."""
    with errors.open("w") as sys.stderr:
        cli(["run", str(job)], prog_name="dask-sketch")


def refusal(code: int, *arguments: object) -> str:
    """The one line on standard error of a command that must fail."""
    result = call(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]
