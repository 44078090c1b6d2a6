"""One writer at a time; a lock that outlives its process is recognised, broken and told."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import socket
import subprocess
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
from jobs.ledger.world import die_with_the_lock

from dask_sketch import open_ledger
from dask_sketch.errors import LedgerError, LedgerLocked
from dask_sketch.jobs.ledger import backends
from dask_sketch.jobs.ledger import lock as lock_module
from dask_sketch.jobs.ledger.lock import NAME, Holder, process_start, read_holder
from dask_sketch.jobs.ledger.objects import group_metadata


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(lock_module, "VISIBLE_AFTER", 0.01)


def hold(ledger, **changes):
    """A lock as another process would leave it."""
    ledger.backend.replace(NAME, group_metadata(asdict(replace(Holder.here(), **changes))))


ELSEWHERE = {"host": "node-7", "machine": "node-7 boot", "pid": 4711}


def test_a_process_that_is_suspended_while_it_takes_the_lock(ledger, url, monkeypatch):
    if "://" in str(url):
        pytest.skip("object stores have no locks of folders")
    monkeypatch.setattr(backends, "MOMENT", 0.2)
    handle = os.open(url, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(LedgerLocked, match="0 s"), open_ledger(url).lock():
            pass
    finally:
        os.close(handle)
    with ledger.lock() as held:
        assert held.broken is None


def test_the_second_is_refused(ledger, url, world):
    second = open_ledger(url)
    with ledger.lock() as held:
        assert held.broken is None
        for each in (second, ledger):
            with pytest.raises(LedgerLocked) as caught, each.lock():
                pass
        with pytest.raises(LedgerLocked) as caught, second.lock():
            pass
        message = str(caught.value)
        assert f"process {os.getpid()} on host {socket.gethostname()}, since 20" in message
        ledger.commit(added=world.new("a"))
        assert second.number == 0
        second.refresh()  # readers need no lock
        assert second.total().identical(world.total("a"))
    with second.lock() as held:
        assert held.broken is None
        second.commit(added=world.new("b"))
    with ledger.lock():  # sees what the other did
        ledger.commit(added=world.new("c"))
    assert open_ledger(url).total().identical(world.total("abc"))


def test_nothing_is_left_of_a_lock(local):
    with local.lock():
        assert json.loads((Path(local.label) / NAME).read_text())["node_type"] == "group"
    assert not (Path(local.label) / "lock").exists()
    with pytest.raises(RuntimeError, match="stop"), local.lock():
        raise RuntimeError("stop")
    assert not (Path(local.label) / "lock").exists()


def test_a_process_that_is_gone(local, world, caplog):
    child = multiprocessing.get_context("forkserver").Process(
        target=die_with_the_lock, args=(local.label,)
    )
    child.start()
    child.join(60)
    assert child.exitcode == 1
    assert read_holder(local.backend).pid == child.pid
    with local.lock() as held:
        assert f"broke the lock of process {child.pid} on host" in held.broken
        assert "process has ended" in held.broken
        local.commit(added=world.new("a"))
    assert any("broke the lock of process" in one.message for one in caplog.records)
    assert open_ledger(local.label).total().identical(world.total("a"))


def test_a_number_of_a_process_that_is_used_again(ledger):
    hold(ledger, process_start=process_start(os.getpid()) + 1000)
    with ledger.lock() as held:
        assert "has ended" in held.broken


def test_a_process_that_is_there(ledger):
    hold(ledger, pid=os.getppid(), process_start=process_start(os.getppid()))
    with pytest.raises(LedgerLocked, match=f"process {os.getppid()} "), ledger.lock():
        pass


def test_a_process_that_is_dead_and_not_yet_buried(local):
    child = subprocess.Popen(["true"])
    process = psutil.Process(child.pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    hold(local, pid=child.pid, process_start=process_start(child.pid))
    with local.lock() as held:
        assert "has ended" in held.broken
    assert child.wait() == 0


@pytest.mark.parametrize("jump", [-3e8, 3e8])
def test_a_clock_that_is_set_does_not_end_a_live_process(ledger, monkeypatch, jump):
    parent = {"pid": os.getppid(), "process_start": process_start(os.getppid())}
    now, boot = time.time(), psutil.boot_time()
    hold(ledger, **parent, since=now, heartbeat=now)
    monkeypatch.setattr(time, "time", lambda: now + jump)
    # the start of the machine by the new clock, from which psutil computes those of processes
    monkeypatch.setattr(psutil, "boot_time", lambda: boot + jump)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: boot + jump)
    with pytest.raises(LedgerLocked, match=f"process {os.getppid()} "), ledger.lock():
        pass
    hold(ledger, **parent, uptime=1e-9)
    with ledger.lock(stale_after=0.5 * time.monotonic()) as held:  # it may hang
        assert "no heartbeat for" in held.broken


def test_a_lock_without_the_uptime(ledger):
    found = asdict(replace(Holder.here(), **ELSEWHERE))
    found.pop("uptime")
    ledger.backend.replace(NAME, group_metadata(found))
    assert read_holder(ledger.backend).uptime == 0
    found.pop("token")
    ledger.backend.replace(NAME, group_metadata(found))
    with pytest.raises(LedgerError, match="token = nothing"):
        read_holder(ledger.backend)


def test_another_host(ledger):
    now = time.time()
    hold(ledger, **ELSEWHERE, since=now - 5000, heartbeat=now - 50)
    with pytest.raises(LedgerLocked, match="process 4711 on host node-7"), ledger.lock():
        pass
    with ledger.lock(stale_after=40) as held:
        assert "on host node-7" in held.broken
        assert "no heartbeat for 5" in held.broken


def test_signs_of_life(local):
    with local.lock(stale_after=0.5):
        first = read_holder(local.backend)
        deadline = time.monotonic() + 60
        while read_holder(local.backend).heartbeat <= first.heartbeat + 0.3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        latest = read_holder(local.backend)
        assert (latest.token, latest.since) == (first.token, first.since)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"attributes": {}}', "x" * 100_000])
def test_a_damaged_lock(text, ledger, world):
    ledger.backend.replace(NAME, text.encode())
    with ledger.lock() as held:
        assert "broke a lock that is damaged" in held.broken
        ledger.commit(added=world.new("a"))


ODD = {
    "pid": [0, -1, 2**70, True, "1", None],
    "since": [1e300, -1.0, float("nan"), float("inf"), "now"],
    "heartbeat": [1e300, float("nan"), [1]],
    "process_start": [float("-inf"), {}],
    "host": ["a\x1b[2J", "x" * 1000, 3, "\ud800"],
    "token": [None],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in ODD.items() for value in values]
)
def test_a_lock_with_an_odd_field_is_damaged(field, value, local):
    hold(local, **ELSEWHERE | {field: value})
    with pytest.raises(LedgerError, match=field):
        read_holder(local.backend)
    with local.lock() as held:
        assert f"broke a lock that is damaged: {local.label}/lock is not a lock" in held.broken
        assert held.broken.isprintable()


def test_a_heartbeat_in_the_future(local):
    now = time.time()
    hold(local, **ELSEWHERE, heartbeat=now + 50)  # the clocks of hosts differ
    with pytest.raises(LedgerLocked, match="node-7"), local.lock():
        pass
    hold(local, **ELSEWHERE, heartbeat=now + 5000)
    with local.lock(stale_after=600) as held:
        assert "in the future" in held.broken


def test_a_pipe_in_place_of_a_lock(local):
    path = Path(local.label) / NAME
    path.parent.mkdir()
    os.mkfifo(path)  # without a writer, so that a reader would wait for ever
    with local.lock() as held:
        assert "not a regular file" in held.broken


def test_a_file_in_place_of_the_folder_of_the_lock(local):
    (Path(local.label) / "lock").touch()
    with pytest.raises(LedgerError, match=r"lock/zarr\.json"), local.lock():
        pass


def test_who_lost_the_lock_writes_nothing_more(ledger, url, world):
    other = open_ledger(url)
    with ledger.lock():
        ledger.commit(added=world.new("a"))
        hold(ledger, **ELSEWHERE, heartbeat=time.time() - 1e6)  # as if we had slept for long
        with other.lock():
            with pytest.raises(LedgerLocked, match="taken over by process"):
                ledger.commit(added=world.new("b"))
            other.commit(added=world.new("c"))
        with pytest.raises(LedgerLocked, match="removed"):
            ledger.forget("a")
    assert open_ledger(url).total().identical(world.total("ac"))
    with ledger.lock():
        ledger.commit(added=world.new("b"))
    assert open_ledger(url).total().identical(world.total("abc"))


def test_who_wakes_up_between_the_check_and_the_commit(ledger, url, world, monkeypatch):
    """The number of the commit is taken by whoever broke the lock: nothing is overwritten."""
    other = open_ledger(url)
    with ledger.lock() as mine:
        ledger.commit(added=world.new("a"))
        monkeypatch.setattr(mine, "require_held", lambda: None)
        hold(ledger, **ELSEWHERE, heartbeat=time.time() - 1e6)
        with other.lock():
            with pytest.raises(LedgerLocked, match=r"commit \d+"):
                ledger.commit(added=world.new("b"))
            other.commit(added=world.new("c"))
        monkeypatch.undo()
    assert open_ledger(url).total().identical(world.total("ac"))


def test_of_many_that_come_at_once_one_gets_it(ledger, url, monkeypatch):
    # an object store has no exclusion: on a busy machine, a thread may be that late with its lock
    monkeypatch.setattr(lock_module, "VISIBLE_AFTER", 2.0)
    hold(ledger, **ELSEWHERE, heartbeat=0.0)
    ledgers = [open_ledger(url) for _ in range(8)]
    start, done = threading.Barrier(8), threading.Event()
    got, refused = [], []

    def take(each):
        start.wait()
        try:
            with each.lock() as held:
                got.append(held)
                done.wait(30)
        except LedgerLocked as error:
            refused.append(error)

    threads = [threading.Thread(target=take, args=(each,)) for each in ledgers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(got) + len(refused) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    done.set()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    assert len(refused) == 7
    # the stale lock, or that of another thread that had broken it and then lost
    assert "node-7" in got[0].broken or "could not be removed" in got[0].broken


def test_a_store_that_cannot_be_written(local, world):
    with local.lock():
        local.commit(added=world.new("a"))
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    Path(local.label).chmod(0o500)
    try:
        with (
            pytest.raises(LedgerError, match="PermissionError"),
            local.lock(),
        ):
            pass
        assert open_ledger(local.label).total().identical(world.total("a"))
    finally:
        Path(local.label).chmod(0o700)


def test_a_read_only_store(local, world, monkeypatch):
    with local.lock():
        local.commit(added=world.new("a"))
    honest = Path.open

    def read_only(self, mode="r", *args, **kwargs):
        if set(mode) & set("wxa"):
            raise OSError(30, "Read-only file system", str(self))
        return honest(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", read_only)
    message = r"lock/zarr\.json .*Read-only file system"
    with pytest.raises(LedgerError, match=message), local.lock():
        pass
    assert open_ledger(local.label).total().identical(world.total("a"))
