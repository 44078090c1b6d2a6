"""`run`, `verify`, `history` and `forget`: answers, messages and exit codes."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
import zarr
from cli.commands import run_in_a_process
from click.testing import CliRunner, Result
from jobs.conftest import make_place
from jobs.places import ROWS, Place, rows_of

import dask_sketch as ds
from dask_sketch.cli.jobs import ALARM, DAMAGED, INCOMPLETE, LOCKED, USAGE
from dask_sketch.cli.main import cli
from dask_sketch.cli.options import FAILED, REFUSED
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.ledger import open_ledger
from dask_sketch.jobs.ledger.lock import NAME, Holder
from dask_sketch.jobs.ledger.objects import group_metadata

__all__ = ["make_place"]
Make = Callable[..., Place]
DECODE = "[[decode]]\nn_components = 2\n"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def answer(*arguments: object, code: int = 0) -> dict[str, object]:
    result = call(*arguments, "--json")
    assert result.exit_code == code, result.output
    parsed = json.loads(result.stdout)
    assert isinstance(parsed, dict)
    return parsed


def errors(code: int, *arguments: object) -> list[str]:
    result = call(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    return [line for line in result.stderr.splitlines() if line.startswith("error: ")]


def test_rows_can_be_refused(make_place: Make) -> None:
    place = make_place(3, DECODE)
    assert answer("run", place.file, "--dry-run", "--sample", 0)["rows_per_partition"] == 0
    told = answer("run", place.file, "--sample", 0)
    assert told["rows"] == {"per_partition": 0, "n_rows": 0, "n_bytes": 0}
    assert "no rows" in call("run", place.file).stdout  # the ledger goes on as it began
    assert "from sums alone" in call("run", place.file, "--dry-run").stdout
    (error,) = errors(USAGE, "run", place.file, "--sample", 7)
    assert "sample = 7: the ledger keeps no random rows" in error


@pytest.mark.slow
def test_a_run_is_told(make_place: Make) -> None:
    place = make_place(10, DECODE)
    told = answer("run", place.file, "--dry-run")
    assert (told["first"], told["new"], told["rows_per_partition"]) == (True, 10, 3000)
    assert "new partitions" in call("run", place.file, "--dry-run").stdout
    told = answer("run", place.file)
    assert (told["run"], told["status"], told["new"], told["samples"]) == (1, "done", 10, 200)
    assert told["models"]["model"]["start"] == "cold"
    place.append(rows_of(ROWS, seed=1))
    result = call("run", place.file)
    assert result.exit_code == 0
    for expected in (
        "1 new, 0 changed",
        "20 read; 220 in all",
        "cold start, with 220 random rows",
        "distance, new samples",
    ):
        assert expected in result.stdout
    assert "reading 1 partitions" in result.stderr


def test_history_by_job_file_and_by_ledger(make_place: Make) -> None:
    place = make_place(10, DECODE)
    call("run", place.file)
    call("run", place.file)
    told = answer("history", place.file)
    assert [record["number"] for record in told["runs"]] == [1, 2]
    assert told == answer("history", place.folder / "ledger.zarr")
    assert len(answer("history", place.file, "-n", 1)["runs"]) == 1
    text = call("history", place.file).stdout
    assert "done" in text
    assert "cost in noise levels" in text
    with pytest.raises(LedgerError, match=r"x\.zarr/zarr\.json: create"):
        open_ledger(place.store / "zarr.json")


@pytest.mark.slow
def test_history_names_the_failure_of_the_last_run(make_place: Make) -> None:
    place = make_place(10, DECODE + "[limits]\nattempts = 1\n")
    call("run", place.file)
    assert answer("history", place.file)["failure"] is None
    good = (place.store / "c/3/0").read_bytes()
    (place.store / "c/3/0").write_bytes(b"nonsense")
    (message,) = errors(FAILED, "run", place.file)
    failure = answer("history", place.file)["failure"]
    assert isinstance(failure, dict)
    assert (failure["run"], f"error: {failure['error']}") == (2, message)
    assert call("history", place.file).stdout.endswith(f"failed: {failure['error']}\n")
    (place.store / "c/3/0").write_bytes(good)
    call("run", place.file)
    with place.ledger().lock():
        errors(LOCKED, "run", place.file)  # no failure: the other run may end well
    assert answer("history", place.file)["failure"] is None
    zarr.open_array(str(place.store), mode="r+").resize((ROWS, 2))
    (message,) = errors(REFUSED, "run", place.file)  # before the ledger is locked
    assert message.endswith(answer("history", place.file)["failure"]["error"])  # type: ignore[index]


def test_verify(make_place: Make) -> None:
    place = make_place(10)
    call("run", place.file)
    told = answer("verify", place.file, "--fraction", 1)
    assert (told["checked"], told["differing"], told["total_differs"]) == (10, [], False)
    told = answer("verify", place.file, "--fraction", 0.3, "--seed", 1)
    assert (told["checked"], told["total_differs"], told["seed"]) == (3, None, 1)
    # a change that size and time do not tell
    before = (place.store / "c/4/0").stat()
    store = zarr.open_array(str(place.store), mode="r+")
    store[4 * ROWS : 5 * ROWS] = store[4 * ROWS : 5 * ROWS][::-1] + 1.0
    assert (place.store / "c/4/0").stat().st_size == before.st_size
    os.utime(place.store / "c/4/0", ns=(before.st_atime_ns, before.st_mtime_ns))
    told = answer("verify", place.file, "--fraction", 1, code=FAILED)
    assert (told["checked"], told["differing"], told["is_sound"]) == (10, ["data/[80:100]"], False)
    assert "1: data/[80:100]" in call("verify", place.file, "--fraction", 1).stdout
    # one that they do tell is for the next run to see
    store[4 * ROWS : 5 * ROWS] = 1.0
    told = answer("verify", place.file, "--fraction", 1)
    assert (told["checked"], told["left_out"], told["is_sound"]) == (9, 1, True)


def test_forget_and_undo(make_place: Make) -> None:
    place = make_place(10, DECODE)
    call("run", place.file)
    told = answer("forget", place.file, "data/[0:20]", "data/[20:40]")
    assert (told["erased"], told["partitions"], told["samples"]) == (2, 8, 160)
    assert answer("run", place.file)["forgotten"] == 2
    assert place.ledger().total().identical(place.scratch(0, 1))
    told = answer("forget", place.file, "data/[0:20]", "--undo")
    assert (told["forgotten"], told["erased"], told["allowed"]) == (["data/[20:40]"], 0, 1)
    assert answer("run", place.file)["new"] == 1
    assert "forgotten: data/[20:40]" in call("history", place.file).stdout
    (message,) = errors(FAILED, "forget", place.file, "data/[7:8]")
    assert "'data/[7:8]'" in message


def test_forget_honours_the_lock_of_a_run(make_place: Make) -> None:
    place = make_place(3)
    call("run", place.file)
    ledger = place.ledger()
    holder = Holder.here()
    late = replace(holder, host="node-7", machine="node-7 boot", heartbeat=time.time() - 900)
    ledger.backend.replace(NAME, group_metadata(asdict(late)))
    assert call("forget", place.file, "data/[0:20]").exit_code == LOCKED
    place.write("[limits]\nstale_lock = 60\n")
    assert answer("forget", place.file, "data/[0:20]")["erased"] == 1


def test_a_wrong_job_file_is_wrong_usage(make_place: Make) -> None:
    place = make_place(3)
    place.write('[limits]\nunreadable = "maybe"\nattempt = 3\n')
    for command in (["run"], ["run", "--dry-run"], ["verify"], ["history"], ["forget", "x"]):
        arguments = (command[0], place.file, *command[1:])
        value, key = errors(USAGE, *arguments)
        assert value.startswith(f'error: {place.file}: limits.unreadable = "maybe":')
        assert key.startswith(f"error: {place.file}: limits.attempt:")
        assert "attempts" in key
    assert errors(USAGE, "run", place.folder / "none.toml")


def test_other_exit_codes(make_place: Make) -> None:
    place = make_place(40, DECODE)
    (message,) = errors(FAILED, "history", place.file)
    assert "ledger" in message
    assert errors(FAILED, "verify", place.file)
    assert call("run", place.file).exit_code == 0
    with place.ledger().lock():
        (message,) = errors(LOCKED, "run", place.file)
    assert "locked by process" in message
    place.append(rows_of(10 * ROWS, seed=1, shift=1.0))
    result = call("run", place.file)
    assert result.exit_code == ALARM
    assert "alarm" in result.stdout
    (place.store / "c/3/0").write_bytes(b"nonsense")
    place.write(DECODE + "[limits]\nattempts = 1\n")
    (message,) = errors(FAILED, "run", place.file)
    assert 'limits.unreadable = "quarantine"' in message
    place.write(DECODE + '[limits]\nattempts = 1\nunreadable = "quarantine"\n')
    result = call("run", place.file)
    assert result.exit_code == INCOMPLETE
    assert "incomplete" in result.stdout
    assert "in quarantine: data/[60:80]" in call("history", place.file).stdout
    zarr.open_array(str(place.store), mode="r+").resize((ROWS, 2))
    (message,) = errors(REFUSED, "run", place.file)
    assert "limits.deleted" in message
    (message,) = errors(REFUSED, "run", "--dry-run", place.file)
    assert "limits.deleted" in message


@pytest.mark.parametrize("command", ["run", "verify", "history", "forget"])
def test_help(command: str) -> None:
    text = call(command, "--help").stdout
    assert "Example" in text
    if command in ("run", "verify"):
        assert "5 the newest data differs" in " ".join(text.split())


def test_asked_to_stop_it_gives_the_lock_back(make_place: Make, preloaded: None) -> None:
    place = make_place(100)
    feature_map = ds.FeatureMap(2, 50, scale=1.0)  # to design one takes longer than the run
    (place.folder / "map.json").write_text(feature_map.to_json())
    place.write("[limits]\ncommit_partitions = 1\n", map_='file = "map.json"')
    errors = place.folder / "errors"
    context = multiprocessing.get_context("forkserver")
    running = context.Process(target=run_in_a_process, args=(place.file, errors))
    running.start()
    commits = place.folder / "ledger.zarr/commits"
    while not (commits.exists() and len(list(commits.iterdir())) > 2):
        assert running.is_alive()
        time.sleep(0.01)
    running.terminate()
    running.join(timeout=60)
    said = errors.read_text()
    assert running.exitcode == 1, said
    assert "Aborted" in said
    assert not (place.folder / "ledger.zarr/lock").exists()
    assert 0 < len(place.ledger().entries) < 100
    place.require_whole()
    place.write(map_='file = "map.json"')  # commits of many partitions: each waits for the disk
    assert call("run", place.file).exit_code == 0
    assert place.ledger().total().identical(place.scratch())


@pytest.mark.filterwarnings("default")
def test_a_damaged_newest_commit_has_an_exit_code(make_place: Make) -> None:
    place = make_place(5)
    answer("run", place.file)
    newest = max((place.folder / "ledger.zarr/commits").iterdir()) / "zarr.json"
    newest.write_bytes(newest.read_bytes()[:-9])
    for command in ("history", "verify", "run"):
        result = call(command, place.file)
        assert result.exit_code == DAMAGED, result.output
        assert result.stderr.count("warning: ") == 1
    for command in ("history", "verify", "run"):
        answer(command, place.file)
