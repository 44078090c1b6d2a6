"""Who may write: one process at a time, and a lock that outlives its process is recognised."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from dask_sketch.errors import LedgerError, LedgerLocked
from dask_sketch.jobs.ledger.backends import Place
from dask_sketch.jobs.ledger.objects import ROOT, group_attributes, group_metadata

logger = logging.getLogger(__name__)
FOLDER = "lock"
NAME = f"{FOLDER}/{ROOT}"
STALE_AFTER = 600.0  # seconds without a sign of life
_LIMIT = 64 * 2**10
_HELD: set[str] = set()  # tokens of the locks that this process holds
_CLOCK = 2.0  # seconds by which the start of one process may seem to vary
_SETTLE = 1.0  # seconds until two who take over at once see who came last


@dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    Attributes
    ----------
    host, machine
        Name of the host; and what tells whether its processes can be seen from here.
    pid, process_start
        The process, and when it started, in seconds since 1970: numbers are used again.
    since, heartbeat
        When the lock was taken, and when its holder last gave a sign of life; seconds since 1970.
    token
        Random, of this lock.
    """

    host: str
    machine: str
    pid: int
    process_start: float
    since: float
    heartbeat: float
    token: str

    @classmethod
    def here(cls) -> Holder:
        """The process that asks, now."""
        now = time.time()
        pid = os.getpid()
        start = psutil.Process(pid).create_time()
        return cls(socket.gethostname(), _machine(), pid, start, now, now, secrets.token_hex(8))

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).isoformat(timespec="seconds")
        return f"process {self.pid} on host {self.host}, since {since}"

    def why_stale(self, stale_after: float) -> str | None:
        """Why this lock no longer holds, ``None`` if it does."""
        if self.machine == _machine():
            if not self._runs():
                return "that process is gone"
            if self.pid == os.getpid() and self.token not in _HELD:
                return "it could not be removed when it was released"
        silent = time.time() - self.heartbeat
        return f"no sign of life for {silent:,.0f} s" if silent > stale_after else None

    def _runs(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            started = process.create_time()
            return process.status() != psutil.STATUS_ZOMBIE and (
                abs(started - self.process_start) < _CLOCK
            )
        except psutil.AccessDenied:
            return True
        except psutil.NoSuchProcess:
            return False


def _machine() -> str:
    """Host, boot and namespace of processes: two with one name share their process numbers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def read_holder(place: Place) -> Holder | None:
    """Who holds the lock of a ledger, ``None`` if nobody does.

    Raises
    ------
    LedgerError
        If the lock is there and cannot be understood.
    """
    try:
        content = place.read(NAME, _LIMIT)
    except FileNotFoundError:
        return None
    found = group_attributes(content, f"{place.label}/{FOLDER}")
    try:
        return Holder(**{f.name: _KINDS[str(f.type)](found[f.name]) for f in fields(Holder)})
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"{place.label}/{FOLDER} is no lock: {error!r}.") from error


_KINDS: dict[str, Any] = {"str": str, "int": int, "float": float}


class Lock:
    """The lock of a ledger, held.

    Attributes
    ----------
    broken
        What was wrong with the lock that was found and broken; ``None`` if there was none.
    """

    def __init__(self, place: Place, stale_after: float):
        self._place = place
        self._stop = threading.Event()
        self._holder = Holder.here()
        self.broken: str | None = None
        _HELD.add(self._holder.token)
        try:
            # of two that come at once, one takes the lock and the other sees that it did
            with place.guard():
                self._take(stale_after)
        except BaseException:
            self._remove()  # it may have been written all the same
            raise
        self._thread = threading.Thread(
            target=self._beat, args=(stale_after / 5,), name="ledger-lock", daemon=True
        )
        self._thread.start()

    def _take(self, stale_after: float) -> None:
        content = group_metadata(asdict(self._holder))
        try:
            self._place.write_new(NAME, content)
        except FileExistsError:
            self.broken = self._why_break(stale_after)
            logger.warning("%s: %s", self._place.label, self.broken)
            self._place.replace(NAME, content)
            self._place.settle(_SETTLE)
        self.require_held()

    def _why_break(self, stale_after: float) -> str:
        try:
            other = read_holder(self._place)
        except LedgerError as error:
            return f"broke a lock that is damaged: {error}"
        if other is None:
            return "broke a lock that was being released"
        why = other.why_stale(stale_after)
        if why is None:
            raise LedgerLocked(
                f"{self._place.label} is being written to by {other}. Wait until it is done; a "
                f"lock whose process is gone, or silent for {stale_after:,.0f} s, is broken by "
                "itself."
            )
        return f"broke the lock of {other}: {why}"

    def require_held(self) -> None:
        """Raise unless the lock is still ours.

        Raises
        ------
        LedgerLocked
            If somebody has broken it.
        """
        try:
            other = read_holder(self._place)
        except LedgerError:
            other = None
        if other is None or other.token != self._holder.token:
            by = "removed" if other is None else f"taken over by {other}"
            raise LedgerLocked(
                f"the lock of {self._place.label} was {by}, so nothing more is written. What was "
                "committed stands; run again."
            )

    def _beat(self, pause: float) -> None:
        while not self._stop.wait(pause):
            try:
                with self._place.guard():
                    self.require_held()
                    holder = replace(self._holder, heartbeat=time.time())
                    self._place.replace(NAME, group_metadata(asdict(holder)))
            except LedgerLocked as error:
                logger.warning("%s", error)
                return
            except (LedgerError, OSError) as error:  # a full disk may have room again
                logger.warning("no sign of life could be given: %s", error)

    def release(self) -> None:
        """Give the lock up; nothing if it is no longer ours."""
        self._stop.set()
        self._thread.join()
        self._remove()

    def _remove(self) -> None:
        _HELD.discard(self._holder.token)
        try:
            with contextlib.suppress(LedgerLocked), self._place.guard():
                self.require_held()
                self._place.remove(FOLDER)
        except (LedgerError, OSError) as error:  # it will be found stale
            logger.warning("the lock of %s was left: %s", self._place.label, error)
