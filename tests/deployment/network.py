"""Hosts for a test: network namespaces with addresses of their own, joined by a bridge.

The bridge stands in a namespace too, so that nothing of the machine's own network changes. All
that is made bears the number of this process, and what a killed run left is removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "dsketch"
SUBNET = "10.77.0"


def missing() -> str | None:
    """Why no namespaces can be made here, ``None`` if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (iproute2)"
    name = f"{PREFIX}{os.getpid()}probe"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"no network namespace can be made: {done.stderr.strip()}"
    link = ["ip", "-n", name, "link", "add", "name", "bridge", "type", "bridge"]
    done = subprocess.run(link, capture_output=True, text=True, check=False)
    _ip("netns", "del", name)
    return None if done.returncode == 0 else f"no bridge can be made: {done.stderr.strip()}"


class Network:
    """Named hosts, each a network namespace with one address.

    Parameters
    ----------
    hosts
        Their names; the first gets ``10.77.0.1``, and so on.
    """

    def __init__(self, *hosts: str):
        self.addresses = {host: f"{SUBNET}.{i}" for i, host in enumerate(hosts, 1)}
        self._mark = f"{PREFIX}{os.getpid()}"
        _remove_abandoned()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        hub = self._space("hub")
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "name", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for host, address in self.addresses.items():
            space = self._space(host)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
            pair = ("type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", hub, "link", "add", "name", host, *pair)
            _ip("-n", hub, "link", "set", host, "master", "bridge", "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")

    def _space(self, host: str) -> str:
        return f"{self._mark}{host}"

    def inside(self, host: str, *command: str | Path) -> list[str]:
        """The command line that runs a command on a host."""
        return ["ip", "netns", "exec", self._space(host), *map(str, command)]

    def processes(self, host: str) -> list[int]:
        """Those that run on a host, by number."""
        return [int(word) for word in _ip("netns", "pids", self._space(host)).split()]

    def listening(self, host: str) -> set[tuple[str, int]]:
        """Addresses and ports (IPv4) that some process on a host takes connections at."""
        found = set()
        for process in self.processes(host)[:1]:
            for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
                local, state = line.split()[1], line.split()[3]
                if state == "0A":
                    place, port = local.split(":")
                    octets = bytes.fromhex(place)[::-1]
                    found.add((".".join(map(str, octets)), int(port, 16)))
        return found

    @contextlib.contextmanager
    def cut(self, host: str) -> Iterator[None]:
        """Cut the link of the host for a block: packets vanish without an error."""
        _ip("-n", self._space("hub"), "link", "set", host, "nomaster")
        try:
            yield
        finally:
            _ip("-n", self._space("hub"), "link", "set", host, "master", "bridge")

    def close(self) -> None:
        """End the processes and remove the hosts."""
        _remove(self._mark)


def _ip(*arguments: str) -> str:
    return subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, check=True, timeout=30
    ).stdout


def _spaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def _remove(mark: str) -> None:
    spaces = [space for space in _spaces() if space.startswith(mark)]
    for space in spaces:
        for process in _ip("netns", "pids", space).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(_ip("netns", "pids", space) for space in spaces) and time.monotonic() < deadline:
        time.sleep(0.05)
    for space in spaces:
        _ip("netns", "del", space)


def _remove_abandoned() -> None:
    """Hosts of a run whose process is no more."""
    for space in _spaces():
        digits = "".join(c for c in space.removeprefix(PREFIX) if c.isdigit())
        if space.startswith(PREFIX) and digits and not Path(f"/proc/{digits}").exists():
            _remove(f"{PREFIX}{digits}")
