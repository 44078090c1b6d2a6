"""Start a Dask cluster, or connect to a running one.

Every cluster that is started here has the worker settings of ``cluster.yaml``, and its processes
communicate over TLS. Dask's workers run any code that a client sends. Whoever can connect without a
certificate therefore has the rights of the account of the workers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import logging
import shlex
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import yaml
from dask.utils import parse_bytes

from dask_sketch import config
from dask_sketch.cluster.certificates import make_certificates, security_of
from dask_sketch.cluster.settings import ClusterSettings
from dask_sketch.errors import InputError, install_command
from dask_sketch.validation.warn import warn_user

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["ClusterSettings", "connect", "worker_settings"]
WORKER_SETTINGS = Path(__file__).parent / "cluster.yaml"
CONNECT_SECONDS = 10.0
QUEUE_SECONDS = 600.0
_PLAIN = (
    "is neither encrypted nor authenticated: {who} can read the traffic and run code as the "
    "account of the workers. {remedy}"
)


@contextlib.contextmanager
def connect(settings: ClusterSettings) -> Iterator[Any]:
    """Start or connect to a cluster for a ``with`` block.

    Computations inside the block use the cluster. At its end the client is closed, and a cluster
    that was started here is stopped.

    Parameters
    ----------
    settings
        Settings of the cluster.

    Yields
    ------
    Client or None
        Client of the cluster, ``None`` for the threads of this process.

    Raises
    ------
    InputError
        If no scheduler answers, no worker starts in time, or a certificate or a package is
        missing.

    Warns
    -----
    UserWarning
        If others could read the traffic and run code on the workers.

    Examples
    --------
    >>> with connect(ClusterSettings("threads")) as client:
    ...     print(client)
    None
    """
    if settings.kind == "threads":
        yield None
    elif settings.kind == "address":
        with _limited_waiting(), _reach(settings) as client:
            yield client
    else:
        from distributed import Client

        make = {"local": _local, "slurm": _slurm, "kubernetes": _kubernetes}[settings.kind]
        with worker_settings(), make(settings) as cluster, Client(cluster) as client:
            if settings.kind != "local":
                _wait_for_a_worker(client, settings)
            with _limited_waiting():
                yield client


@contextlib.contextmanager
def _limited_waiting() -> Iterator[None]:
    """Give up computations without a worker as passes over partitions are, unless this is set."""
    limit = config.get("compute-timeout") or config.get("worker-timeout")
    with dask.config.set({"sketch.compute-timeout": limit}):
        yield


@contextlib.contextmanager
def worker_settings() -> Iterator[None]:
    """Use the settings of ``cluster.yaml`` for clusters that are started in a ``with`` block.

    They replace Dask's defaults, and not the settings of the user (files in ``~/.config/dask``,
    environment variables, ``dask.config.set``).

    Examples
    --------
    >>> import dask, distributed
    >>> with worker_settings():
    ...     dask.config.get("distributed.worker.memory.spill")
    False
    """
    import distributed  # noqa: F401  (registers its defaults)

    config = dask.config.merge(dask.config.config)
    dask.config.update(
        config,
        yaml.safe_load(WORKER_SETTINGS.read_text()),
        priority="new-defaults",
        defaults=dask.config.merge(*dask.config.defaults),
    )
    with dask.config.set(config):
        yield


@contextlib.contextmanager
def _reach(settings: ClusterSettings) -> Iterator[Client]:
    from distributed import Client
    from distributed.comm.addressing import parse_address
    from distributed.security import Security

    address = settings.address or dask.config.get("scheduler-address", None)
    if not address:
        raise InputError(
            "address=None: give the address of the scheduler, such as tls://host:8786, or set "
            "DASK_SCHEDULER_ADDRESS."
        )
    timeout = settings.timeout or CONNECT_SECONDS
    try:
        security = Security() if settings.tls is None else security_of(str(settings.tls))
        scheme, location = parse_address(address)
        if scheme == "tls" and security.get_connection_args("client")["ssl_context"] is None:
            raise InputError(
                f"{address}: the scheduler requires a certificate. Give the folder of "
                "certificates, or set distributed.comm.tls in Dask's configuration.",
                parameter="tls",
            )
        if scheme != "tls" and not _is_local(location):
            remedy = "Use tls://, with certificates from `dask-sketch certificates DIR`."
            who = "everyone on the network in between"
            warn_user(f"{address} {_PLAIN.format(who=who, remedy=remedy)}")
        client = Client(address, timeout=timeout, security=security)
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"address={address!r}: {_remedy(error, timeout)}") from error
    with client:
        yield client


def _local(settings: ClusterSettings) -> Any:
    from dask.system import CPU_COUNT
    from distributed import LocalCluster
    from distributed.security import Security

    limit = {} if settings.memory_limit is None else {"memory_limit": settings.memory_limit}
    return LocalCluster(
        n_workers=settings.n_workers or CPU_COUNT,
        threads_per_worker=settings.threads_per_worker,
        host="127.0.0.1",
        security=Security.temporary() if settings.tls is None and _can_encrypt() else None,
        dashboard_address=settings.dashboard,
        silence_logs=logging.CRITICAL,  # the client reports a failed task
        **limit,
    )


@contextlib.contextmanager
def _slurm(settings: ClusterSettings) -> Iterator[Any]:
    jobqueue = _package("dask_jobqueue", "slurm", "SLURM jobs as workers")
    # these may be in Dask's configuration too; SLURMCluster reads all others by itself
    configured = dask.config.get("jobqueue.slurm")
    options = {
        name.replace("-", "_"): configured[name]
        for name in ("scheduler-options", "job-script-prologue", "shared-temp-directory")
        if configured.get(name)
    } | dict(settings.options)
    scheduler = {"dashboard_address": settings.dashboard, **options.pop("scheduler_options", {})}
    prologue = [
        f"export DASK_CONFIG={shlex.quote(str(WORKER_SETTINGS))}",
        *options.pop("job_script_prologue", []),
    ]
    shared = Path(options.pop("shared_temp_directory", "")).expanduser().absolute()
    with contextlib.ExitStack() as stack:
        folder = str(settings.tls) if settings.tls else None
        if settings.tls is None and _can_encrypt():
            # the folder exists as long as the cluster; the jobs read it under the same path
            certificates = tempfile.TemporaryDirectory(prefix=".certificates-", dir=shared)
            folder = stack.enter_context(certificates)
            make_certificates(folder)
        cluster = stack.enter_context(
            jobqueue.SLURMCluster(
                n_workers=settings.n_workers,
                cores=settings.threads_per_worker,
                processes=1,
                memory=f"{parse_bytes(settings.memory_limit or 0)}B",  # required by the settings
                security=security_of(folder) if folder else None,
                scheduler_options=scheduler,
                job_script_prologue=prologue,
                **options,
            )
        )
        # a constant number: a job that reaches its time limit is replaced
        cluster.adapt(minimum=settings.n_workers, maximum=settings.n_workers)
        yield cluster


def _kubernetes(settings: ClusterSettings) -> Any:
    operator = _package("dask_kubernetes.operator", "kubernetes", "clusters on Kubernetes")
    remedy = (
        "Apply the DaskCluster of the folder `deploy`, which uses TLS, and connect to its address."
    )
    text = _PLAIN.format(who="all that the network policy admits to the pods", remedy=remedy)
    warn_user(f"a cluster that KubeCluster makes {text}")
    options = {"quiet": True, **settings.options}
    return operator.KubeCluster(n_workers=settings.n_workers, **options)


def _can_encrypt() -> bool:
    """Whether credentials can be made; warns where not."""
    if importlib.util.find_spec("cryptography") is not None:
        return True
    remedy = f"For TLS: {install_command('tls')}."
    who = "everyone who can reach its ports, including all users of this machine,"
    text = _PLAIN.format(who=who, remedy=remedy)
    warn_user(f"this cluster {text}")
    return False


def _wait_for_a_worker(client: Client, settings: ClusterSettings) -> None:
    timeout = settings.timeout or QUEUE_SECONDS
    try:
        client.wait_for_workers(1, timeout=timeout)
    except TimeoutError as error:
        raise InputError(
            f"timeout={timeout:g}: no worker has started within this many seconds. Check whether "
            f"the jobs or pods wait or fail (kind {settings.kind!r}), or allow more time."
        ) from error


def _package(name: str, extra: str, purpose: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0].replace("_", "-")
        raise InputError(
            f"kind={extra!r}: {purpose} need the package {package} "
            f"({error}): {install_command(extra)}."
        ) from error


def _remedy(error: Exception, timeout: float) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"the certificates were refused ({cause.verify_message}). Client and scheduler need "
            "valid certificates of one run of `dask-sketch certificates`."
        )
    message = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"no scheduler answers within {timeout:g} s ({message}). Check the address, such as "
        "tls://host:8786: a scheduler with TLS only answers to tls://."
    )


def _is_local(location: str) -> bool:
    """Whether an address without its scheme is on the loopback of this machine."""
    host = location.rsplit(":", 1)[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost") or "/" in location  # inproc://host/process/number
