"""Settings of a cluster, which are checked before anything is started."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import dask.config

from dask_sketch.errors import InputError
from dask_sketch.sources.samples import n_bytes

Kind = Literal["threads", "local", "address", "slurm", "kubernetes"]
LOOPBACK = "127.0.0.1:0"  # any free port
MAX_WORKERS, MAX_THREADS = 10_000, 1024
_TAKES: dict[str, tuple[str, ...]] = {
    "threads": (),
    "local": ("n_workers", "threads_per_worker", "memory_limit", "tls", "dashboard"),
    "address": ("address", "tls", "timeout"),
    "slurm": (
        "n_workers",
        "threads_per_worker",
        "memory_limit",
        "tls",
        "dashboard",
        "timeout",
        "options",
    ),
    "kubernetes": ("n_workers", "timeout", "options"),
}
_NEEDS = {
    "slurm": ("n_workers", "memory_limit"),
    "kubernetes": ("n_workers",),
}


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a cluster, see :func:`dask_sketch.cluster.connect.connect`.

    A setting that has no effect on the kind of cluster is refused.

    Attributes
    ----------
    kind
        ``"threads"``: threads of this process, one for each core. ``"local"``: worker processes on
        this machine. ``"address"``: a running scheduler. ``"slurm"``: a scheduler here and SLURM
        jobs as workers, with ``dask_jobqueue``. ``"kubernetes"``: a cluster of Dask's Kubernetes
        operator, with ``dask_kubernetes``.
    n_workers
        Number of workers to start, at least 1. For ``"local"``, one for each core by default.
    threads_per_worker
        Number of chunks that one worker sketches at once, at least 1.
    memory_limit
        Memory of each worker, such as ``"2GiB"`` or a number of bytes. For ``"local"``, the memory
        of this machine is divided equally by default.
    address
        Address of the scheduler, such as ``"tls://scheduler:8786"``; by default the address in
        Dask's configuration (``scheduler-address``, environment variable
        ``DASK_SCHEDULER_ADDRESS``).
    tls
        Folder that ``dask-sketch certificates`` wrote, for ``"address"`` and ``"slurm"``. By
        default, ``"address"`` uses Dask's configuration (``distributed.comm.tls``), and
        ``"local"`` and ``"slurm"`` make temporary certificates. ``False``: their processes
        communicate without encryption.
    dashboard
        Address and port of the dashboard of a scheduler that is started here; by default a free
        port that only this machine can reach. The dashboard has no password.
    timeout
        Number of seconds to wait for the scheduler (``"address"``: 10 by default) or for the first
        worker (``"slurm"`` and ``"kubernetes"``: 600, including the time in the queue).
    options
        Further arguments of ``SLURMCluster`` (such as ``queue``, ``account``, ``walltime``,
        ``interface``) or ``KubeCluster`` (such as ``image``, ``namespace``, ``resources``).

    Raises
    ------
    InputError
        If a setting is missing, out of range, of another type, or has no effect on this kind.

    Examples
    --------
    >>> ClusterSettings("local", n_workers=2, memory_limit="2GiB").n_workers
    2
    >>> ClusterSettings("local", address="tls://scheduler:8786")
    Traceback (most recent call last):
    dask_sketch.errors.InputError: address='tls://scheduler:8786': a cluster of kind "local" takes
    n_workers, threads_per_worker, memory_limit, tls and dashboard only.
    """

    kind: Kind = "threads"
    n_workers: int | None = None
    threads_per_worker: int = 1
    memory_limit: str | int | None = None
    address: str | None = None
    tls: str | Path | bool | None = None
    dashboard: str = LOOPBACK
    timeout: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = get_args(Kind)
        if self.kind not in kinds:
            raise InputError(f"kind={self.kind!r}: choose {_listed(kinds, 'or')}.")
        taken = _TAKES[self.kind]
        if self.kind == "address" and self.address is None:
            object.__setattr__(self, "address", dask.config.get("scheduler-address", None))
        for one in fields(self)[1:]:
            name, value = one.name, getattr(self, one.name)
            default = {} if one.default is MISSING else one.default
            if value != default and name not in taken:
                only = f"takes {_listed(taken)} only" if taken else "takes no other setting"
                raise InputError(f'{name}={value!r}: a cluster of kind "{self.kind}" {only}.')
        for name in _NEEDS.get(self.kind, ()):
            if getattr(self, name) is None:
                raise InputError(
                    f'{name}=None: a cluster of kind "{self.kind}" needs this setting.'
                )
        self._check_numbers()
        self._check_texts()

    def _check_numbers(self) -> None:
        for name, limit in (("n_workers", MAX_WORKERS), ("threads_per_worker", MAX_THREADS)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= limit):
                raise InputError(f"{name}={value!r}: give an integer from 1 to {limit:,}.")
        value = self.timeout
        if value is not None and not (
            isinstance(value, (int, float)) and 0 < value < math.inf and value is not True
        ):
            raise InputError(f"timeout={value!r}: give a number of seconds above 0.")
        if self.memory_limit is not None:
            n_bytes("memory_limit", self.memory_limit)

    def _check_texts(self) -> None:
        for name in ("address", "dashboard"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise InputError(f"{name}={value!r}: give an address, such as '127.0.0.1:8787'.")
        if not isinstance(self.options, Mapping):
            raise InputError(f"options={self.options!r}: give a dictionary of names and values.")
        if self.tls is None:
            return
        if isinstance(self.tls, bool):
            if self.tls or self.kind == "address":
                raise InputError(
                    f"tls={self.tls!r}: give a folder of certificates, or leave the setting out."
                )
        elif self.kind == "local":
            raise InputError(
                f"tls={str(self.tls)!r}: a local cluster makes its own certificates; leave it out."
            )
        elif self.address is not None and not self.address.startswith("tls://"):
            raise InputError(
                f"address={self.address!r}: with certificates, give an address that starts with "
                "tls://, such as tls://host:8786."
            )


def _listed(names: tuple[str, ...], last: str = "and") -> str:
    return f"{', '.join(names[:-1])} {last} {names[-1]}"
