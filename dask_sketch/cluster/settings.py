"""What a cluster is to be: settings that are checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import dask.config

from dask_sketch.errors import InputError
from dask_sketch.sources.samples import n_bytes

Kind = Literal["threads", "local", "address", "slurm", "kubernetes"]
LOOPBACK = "127.0.0.1:0"  # any free port
_DEFAULTS: dict[str, Any] = {"threads_per_worker": 1, "dashboard": LOOPBACK, "options": {}}
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
    """What :func:`dask_sketch.cluster.connect.connect` makes or reaches.

    A setting that the kind has no use for is refused, so that none is overlooked.

    Attributes
    ----------
    kind
        ``"threads"``: threads of this process, one for each core. ``"local"``: worker processes on
        this machine. ``"address"``: a scheduler that runs already. ``"slurm"``: a scheduler
        here and SLURM jobs as workers, with ``dask_jobqueue``. ``"kubernetes"``: a cluster made
        by Dask's Kubernetes operator, with ``dask_kubernetes``.
    n_workers
        Workers to start: at least 1. For ``"local"`` one for each core by default.
    threads_per_worker
        Chunks that one worker sketches at once: at least 1.
    memory_limit
        Memory of each worker, such as ``"2GiB"`` or a number of bytes. For ``"local"`` an equal
        share of this machine's by default.
    address
        Of the scheduler, such as ``"tls://scheduler:8786"``; by default what Dask's configuration
        holds (``scheduler-address``, environment variable ``DASK_SCHEDULER_ADDRESS``).
    tls
        A folder that ``dask-sketch certificates`` wrote: for ``"address"`` and ``"slurm"``.
        By default ``"address"`` takes what Dask's configuration
        (``distributed.comm.tls``) holds, and ``"local"`` and ``"slurm"`` make credentials for
        the time that the cluster lives. ``False``: their processes talk without encryption.
    dashboard
        Address and port of the dashboard of a scheduler that is started here; by
        default a free port that only this machine reaches. The dashboard asks for no password.
    timeout
        Seconds to wait for the scheduler (``"address"``: 10 by default) or for a first worker
        (``"slurm"`` and ``"kubernetes"``: 600, which includes the time in the queue).
    options
        Further arguments of ``SLURMCluster`` (such as ``queue``, ``account``, ``walltime``,
        ``interface``) or ``KubeCluster`` (such as ``image``, ``namespace``, ``resources``).

    Raises
    ------
    InputError
        If a setting is missing, out of its range, of another type, or not one of this kind.

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
            raise InputError(f"kind={self.kind!r}: a cluster is of kind {_listed(kinds, 'or')}.")
        taken = _TAKES[self.kind]
        if self.kind == "address" and self.address is None:
            object.__setattr__(self, "address", dask.config.get("scheduler-address", None))
        for name in [one.name for one in fields(self)][1:]:
            value = getattr(self, name)
            if value != _DEFAULTS.get(name) and name not in taken:
                only = f"takes {_listed(taken)} only" if taken else "takes no other setting"
                raise InputError(f'{name}={value!r}: a cluster of kind "{self.kind}" {only}.')
        for name in _NEEDS.get(self.kind, ()):
            if getattr(self, name) is None:
                way = ", or DASK_SCHEDULER_ADDRESS in the environment" if name == "address" else ""
                raise InputError(
                    f'{name}: a cluster of kind "{self.kind}" needs this setting{way}.'
                )
        self._check_numbers()
        self._check_texts()

    def _check_numbers(self) -> None:
        for name in ("n_workers", "threads_per_worker"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InputError(f"{name}={value!r}: give a whole number from 1 up.")
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
            raise InputError(f"options={self.options!r}: give names and values.")
        if self.tls is None:
            return
        if isinstance(self.tls, bool):
            if self.tls or self.kind == "address":
                raise InputError(
                    f"tls={self.tls!r}: give the folder of certificates, or leave the setting out."
                )
        elif self.kind == "local":
            raise InputError(
                f"tls={str(self.tls)!r}: a local cluster makes its own credentials; leave it out."
            )
        elif self.address is not None and not self.address.startswith("tls://"):
            raise InputError(
                f"address={self.address!r}: with certificates it starts with tls://, "
                "such as tls://host:8786."
            )


def _listed(names: tuple[str, ...], last: str = "and") -> str:
    return f"{', '.join(names[:-1])} {last} {names[-1]}"
