"""Lock of a ledger, which one writer holds; the lock of a process that has ended is broken."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from dask_sketch.errors import LedgerError, LedgerLocked
from dask_sketch.jobs.ledger.backends import Backend, FolderLocked
from dask_sketch.jobs.ledger.objects import ROOT, group_attributes, group_metadata

logger = logging.getLogger(__name__)
FOLDER = "lock"
NAME = f"{FOLDER}/{ROOT}"
STALE_AFTER = 3600.0  # seconds without a heartbeat; limits.stale_lock of a job file by default
VISIBLE_AFTER = 1.0  # seconds after which two processes that both broke a lock see the last write
_LIMIT = 64 * 2**10
_MAX_TEXT = 512  # characters of a name
_LAST_TIME = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_HELD: set[str] = set()  # tokens of the locks that this process holds
_CLOCK = 2.0  # seconds by which the reported start of one process may vary
_START = 19  # index of the start among the numbers in /proc/PID/stat that follow the name


@dataclass(frozen=True)
class Holder:
    """Holder of a lock.

    Attributes
    ----------
    host
        Name of the host.
    machine
        Identifier of host, boot and namespace, which is equal where processes see each other.
    pid
        Number of the process.
    process_start
        Start of the process, see :func:`process_start`, because numbers are reused.
    since, heartbeat
        Times at which the lock was taken and last confirmed, in seconds since 1970.
    token
        Random text that identifies this lock.
    uptime
        Time of the last confirmation on the monotonic clock of the machine, in seconds; 0 if
        unknown. Processes of one machine compare these times, because other clocks may be set.
    """

    host: str
    machine: str
    pid: int
    process_start: float
    since: float
    heartbeat: float
    token: str
    uptime: float = 0.0

    @classmethod
    def here(cls) -> Holder:
        """Describe the calling process."""
        now, pid = _now(), os.getpid()
        token, host = secrets.token_hex(8), socket.gethostname()
        start, uptime = process_start(pid), time.monotonic()
        return cls(host, _machine(), pid, start, now, now, token, uptime)

    def confirmed(self) -> Holder:
        """The same holder at this time."""
        return replace(self, heartbeat=_now(), uptime=time.monotonic())

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC).isoformat(timespec="seconds")
        return f"process {self.pid} on host {self.host}, since {since}"

    def why_stale(self, stale_after: float) -> str | None:
        """Reason why the lock is no longer valid; ``None`` for a valid lock."""
        if self.machine == _machine():
            if not self._runs():
                return "that process has ended"
            if self.pid == os.getpid() and self.token not in _HELD:
                return "it could not be removed when it was released"
            if self.uptime:
                silent = time.monotonic() - self.uptime
                return f"no heartbeat for {silent:,.0f} s" if silent > stale_after else None
        silent = time.time() - self.heartbeat
        if -silent > stale_after:
            return f"its heartbeat is {-silent:,.0f} s in the future"
        return f"no heartbeat for {silent:,.0f} s" if silent > stale_after else None

    def _runs(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            started = process_start(self.pid)
            return process.status() != psutil.STATUS_ZOMBIE and (
                abs(started - self.process_start) < _CLOCK
            )
        except psutil.AccessDenied:
            return True
        except psutil.NoSuchProcess:
            return False


def _now() -> float:
    """Seconds since 1970, clipped to valid times of a lock, whatever the clock shows."""
    return min(max(time.time(), 0.0), _LAST_TIME - 1.0)


def process_start(pid: int) -> float:
    """Start of a process in seconds since the start of the machine, whatever the clock shows.

    On systems without ``/proc``, in seconds since 1970.

    Parameters
    ----------
    pid
        Number of the process.
    """
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(numbers[_START]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return psutil.Process(pid).create_time()


def _machine() -> str:
    """Identifier of host, boot and process namespace, within which process numbers are unique."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def read_holder(backend: Backend) -> Holder | None:
    """Read the holder of the lock of a ledger, ``None`` if there is no lock.

    Raises
    ------
    LedgerError
        If the lock exists but is damaged.
    """
    try:
        content = backend.read(NAME, _LIMIT)
    except FileNotFoundError:
        return None
    attributes = group_attributes(content, f"{backend.label}/{FOLDER}")
    values = {field.name: attributes.get(field.name, field.default) for field in fields(Holder)}
    for field in fields(Holder):
        value = values[field.name]
        if not _IS_VALID[str(field.type)](value):
            shown = "nothing" if value is MISSING else ascii(value)[:_MAX_TEXT]
            raise LedgerError(f"{backend.label}/{FOLDER} is not a lock: {field.name} = {shown}.")
    return Holder(**values)


_IS_VALID: dict[str, Callable[[Any], bool]] = {
    "str": lambda x: isinstance(x, str) and len(x) <= _MAX_TEXT and x.isprintable(),
    "int": lambda x: type(x) is int and 0 < x < 2**31,
    "float": lambda x: type(x) in (int, float) and 0 <= x < _LAST_TIME,
}


class Lock:
    """Lock of a ledger that this process holds.

    Parameters
    ----------
    backend
        Backend of the ledger.
    stale_after
        Number of seconds without a heartbeat after which the lock of another process is broken.

    Attributes
    ----------
    broken
        Description of an earlier lock that was broken; ``None`` if there was none.
    """

    def __init__(self, backend: Backend, stale_after: float):
        self._backend = backend
        self._stop = threading.Event()
        self._holder = Holder.here()
        self.broken: str | None = None
        _HELD.add(self._holder.token)
        try:
            # of two concurrent processes, one takes the lock and the other one finds it
            with backend.exclusive():
                self._take(stale_after)
        except LedgerLocked:  # another process has the lock, so that this one has written nothing
            _HELD.discard(self._holder.token)
            raise
        except BaseException:
            self._remove()  # the lock may have been written nevertheless
            raise
        self._thread = threading.Thread(
            target=self._beat, args=(stale_after / 5,), name="ledger-lock", daemon=True
        )
        self._thread.start()

    def _take(self, stale_after: float) -> None:
        content = group_metadata(asdict(self._holder))
        try:
            self._backend.write_new(NAME, content)
        except FileExistsError:
            self.broken = self._why_break(stale_after)
            logger.warning("%s: %s", self._backend.label, self.broken)
            self._backend.replace(NAME, content)
            self._backend.wait_until_visible(VISIBLE_AFTER)
        self.require_held()

    def _why_break(self, stale_after: float) -> str:
        try:
            holder = read_holder(self._backend)
        except LedgerError as error:
            return f"broke a lock that is damaged: {error}"
        if holder is None:
            return "broke a lock that was being released"
        why = holder.why_stale(stale_after)
        if why is None:
            raise LedgerLocked(
                f"{self._backend.label} is locked by {holder}: wait until it has finished. The "
                "lock of a process that has ended, or that has no heartbeat for "
                f"{stale_after:,.0f} s, is broken automatically."
            )
        return f"broke the lock of {holder}: {why}"

    def require_held(self) -> None:
        """Check that this process still holds the lock.

        Raises
        ------
        LedgerLocked
            If another process has broken the lock.
        """
        try:
            holder = read_holder(self._backend)
        except LedgerError:
            holder = None
        if holder is None or holder.token != self._holder.token:
            by = "removed" if holder is None else f"taken over by {holder}"
            raise LedgerLocked(
                f"the lock of {self._backend.label} was {by}, so nothing more is written. Commits "
                "are not affected; run again."
            )

    def _beat(self, pause: float) -> None:
        while not self._stop.wait(pause):
            try:
                with self._backend.exclusive():
                    self.require_held()
                    content = group_metadata(asdict(self._holder.confirmed()))
                    self._backend.replace(NAME, content)
            except FolderLocked as error:  # the folder may be released again
                logger.warning("the heartbeat of the lock could not be written: %s", error)
            except LedgerLocked as error:
                logger.warning("%s", error)
                return
            except (LedgerError, OSError) as error:  # a full disk may have room again
                logger.warning("the heartbeat of the lock could not be written: %s", error)

    def release(self) -> None:
        """Release the lock, if this process still holds it."""
        self._stop.set()
        self._thread.join()
        self._remove()

    def _remove(self) -> None:
        _HELD.discard(self._holder.token)
        try:
            with contextlib.suppress(LedgerLocked), self._backend.exclusive():
                self.require_held()
                self._backend.remove(FOLDER)
        except (LedgerError, OSError) as error:  # the next writer will break it
            logger.warning("the lock of %s could not be removed: %s", self._backend.label, error)
