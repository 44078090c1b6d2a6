"""Clusters: their settings, who can connect, and the configuration of workers."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
import yaml

import dask_sketch as ds
from dask_sketch.cluster import connect as clusters
from dask_sketch.cluster.certificates import make_certificates
from dask_sketch.cluster.connect import WORKER_SETTINGS, connect, worker_settings
from dask_sketch.cluster.settings import ClusterSettings

WAIT = 300  # seconds, also for a busy machine


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "pbs"}, "kind='pbs'"),
        ({"kind": "threads", "n_workers": 2}, "n_workers=2"),
        ({"kind": "local", "address": "tls://a:1"}, "address='tls://a:1'"),
        ({"kind": "local", "n_workers": 0}, "n_workers=0"),
        ({"kind": "local", "n_workers": True}, "n_workers=True"),
        ({"kind": "local", "n_workers": 2.0}, r"n_workers=2\.0"),
        ({"kind": "local", "threads_per_worker": 0}, "threads_per_worker=0"),
        ({"kind": "local", "memory_limit": "much"}, "memory_limit='much'"),
        ({"kind": "local", "memory_limit": 0}, "memory_limit=0"),
        ({"kind": "local", "memory_limit": True}, "memory_limit=True"),
        ({"kind": "local", "memory_limit": [1]}, r"memory_limit=\[1\]"),
        ({"kind": "local", "dashboard": 8787}, "dashboard=8787"),
        ({"kind": "local", "tls": "folder"}, "tls='folder'"),
        ({"kind": "local", "tls": True}, "tls=True"),
        ({"kind": "address", "address": " "}, "address=' '"),
        ({"kind": "address", "address": "tcp://a:1", "tls": "folder"}, "address='tcp://a:1'"),
        ({"kind": "address", "address": "tcp://a:1", "tls": False}, "tls=False"),
        ({"kind": "address", "address": "tls://a:1", "timeout": 0}, "timeout=0"),
        ({"kind": "address", "address": "tls://a:1", "timeout": "1s"}, "timeout='1s'"),
        ({"kind": "address", "address": "tls://a:1", "timeout": float("nan")}, "timeout=nan"),
        ({"kind": "slurm", "n_workers": 1}, "memory_limit=None"),
        ({"kind": "slurm", "memory_limit": "1GiB"}, "n_workers=None"),
        ({"kind": "kubernetes", "n_workers": 1, "tls": "folder"}, "tls='folder'"),
        ({"kind": "kubernetes", "n_workers": 1, "options": 3}, "options=3"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ds.SketchError, match=message):
        ClusterSettings(**settings)


def test_threads_of_this_process():
    with connect(ClusterSettings()) as client:
        assert client is None


def test_worker_settings_replace_defaults_alone():
    import distributed  # noqa: F401

    spill = "distributed.worker.memory.spill"
    pause = "distributed.worker.memory.pause"
    told = yaml.safe_load(WORKER_SETTINGS.read_text())["distributed"]["worker"]["memory"]
    before = dask.config.get(spill), dask.config.get(pause)
    with dask.config.set({pause: 0.123}):
        with worker_settings():
            assert dask.config.get(spill) is told["spill"] is False
            assert dask.config.get(pause) == 0.123  # the user's own
        assert dask.config.get(spill) == before[0]
    assert (dask.config.get(spill), dask.config.get(pause)) == before


def listening():
    """Addresses by port, of this process and those it has started."""
    here = psutil.Process()
    return {
        one.laddr.port: one.laddr.ip
        for process in [here, *here.children(recursive=True)]
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    }


@pytest.fixture(scope="module")
def others():
    """Ports of the clusters of other tests."""
    return set(listening())


@pytest.fixture(scope="module")
def local(others):
    """A client of a local cluster of one worker process."""
    with connect(ClusterSettings("local", n_workers=1, memory_limit="1GiB")) as client:
        yield client


def on_a_worker():
    return {
        "concurrency": os.environ["ZARR_ASYNC__CONCURRENCY"],
        "blas": os.environ["OPENBLAS_NUM_THREADS"],
        "spill": dask.config.get("distributed.worker.memory.spill"),
        "profile": dask.config.get("distributed.worker.profile.interval"),
    }


@pytest.mark.slow
def test_a_local_cluster_computes_what_threads_do(local):
    x = np.random.default_rng(0).normal(size=(3000, 3)).astype(np.float32)
    feature_map = ds.FeatureMap(3, 50, scale=1.0)
    lazy = da.from_array(x, chunks=(500, 3))
    there = ds.sketch(lazy, feature_map).compute()
    with dask.config.set(scheduler="threads"):
        here = ds.sketch(lazy, feature_map).compute()
    np.testing.assert_array_equal(there.z, here.z)


@pytest.mark.parametrize("restarted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_workers_have_the_settings_and_keep_them_after_a_restart(restarted, local):
    told = {"concurrency": "4", "blas": "1", "spill": False, "profile": "100ms"}
    if restarted:
        local.restart()
    assert list(local.run(on_a_worker).values()) == [told]
    (worker,) = local.scheduler_info()["workers"].values()
    assert worker["memory_limit"] == 2**30


def test_a_local_cluster_is_reached_from_this_machine_alone(local, others):
    found = {port: address for port, address in listening().items() if port not in others}
    ports = {int(local.scheduler.address.rsplit(":", 1)[1])}
    ports |= {int(name.rsplit(":", 1)[1]) for name in local.scheduler_info()["workers"]}
    ports.add(int(local.dashboard_link.split(":")[2].split("/")[0]))
    assert ports <= set(found)
    assert set(found.values()) == {"127.0.0.1"}


def test_another_user_of_the_machine_is_refused(local, tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra tls")
    scheduler = local.scheduler.address
    (worker,) = local.scheduler_info()["workers"]
    assert scheduler.startswith("tls://")
    stranger = make_certificates(tmp_path).folder
    for address in (scheduler, worker):
        for tls in ({"tls": stranger}, {}):
            with (
                pytest.raises(ds.SketchError, match="certificate"),
                connect(ClusterSettings("address", address=address, timeout=2, **tls)),
            ):
                pass
        # and one who speaks plainly is hung up on
        host, port = address.removeprefix("tls://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as plain:
            plain.sendall(b"\0" * 64)
            with contextlib.suppress(ConnectionResetError):
                # nothing, or the alert of TLS; never Dask's greeting
                assert plain.recv(100)[:1] in (b"", b"\x15")


def test_the_address_may_stand_in_the_environment(local):
    settings = ClusterSettings("address")
    with pytest.raises(ds.SketchError, match="DASK_SCHEDULER_ADDRESS"), connect(settings):
        pass
    # as the variables DASK_SCHEDULER_ADDRESS and DASK_DISTRIBUTED__COMM__TLS__... do
    client = local.security.get_tls_config_for_role("client")
    found = {
        "scheduler-address": local.scheduler.address,
        "distributed.comm.tls.ca-file": client["ca_file"],
        "distributed.comm.tls.client": {"cert": client["cert"], "key": client["key"]},
    }
    with dask.config.set(found), connect(settings) as other:
        assert other.scheduler.address == local.scheduler.address


@pytest.mark.slow
def test_without_the_package_for_tls_a_cluster_warns(monkeypatch, forked_workers):
    monkeypatch.setattr(clusters.importlib.util, "find_spec", lambda name: None)
    with (
        pytest.warns(UserWarning, match="neither encrypted nor authenticated.*cryptography"),
        connect(ClusterSettings("local", n_workers=1)) as client,
    ):
        assert client.scheduler.address.startswith("tcp://127.0.0.1")


def test_tls_can_be_declined(forked_workers):
    with connect(ClusterSettings("local", n_workers=1, tls=False)) as client:
        assert client.scheduler.address.startswith("tcp://127.0.0.1")


@pytest.mark.parametrize(
    ("address", "safe"),
    [
        ("tls://192.0.2.1:8786", True),
        ("tcp://127.0.0.1:1", True),
        ("tcp://[::1]:1", True),
        ("localhost:1", True),
        ("tcp://192.0.2.1:8786", False),
        ("192.0.2.1:8786", False),
        ("tcp://[2001:db8::1]:8786", False),
        ("ws://192.0.2.1:8786", False),
        ("tcp://no-such-host.invalid:8786", False),
    ],
)
def test_plain_connections_to_other_machines_warn(address, safe, tmp_path):
    tls = {"tls": make_certificates(tmp_path).folder} if address.startswith("tls") else {}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with (
            pytest.raises(ds.SketchError, match="address="),
            connect(ClusterSettings("address", address=address, timeout=0.2, **tls)),
        ):
            pass
    found = [str(one.message) for one in seen if "neither encrypted" in str(one.message)]
    assert bool(found) is not safe


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Stand-ins for SLURM's commands that run a job on this machine; gives their folder."""
    pytest.importorskip("dask_jobqueue", reason="needs the extra slurm")
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "sbatch").write_text(
        f'#!/bin/bash\ncp "$1" {tmp_path}/job.sh\n'
        f"setsid bash {tmp_path}/job.sh > {tmp_path}/job.log 2>&1 & "
        f'echo -n $! > {tmp_path}/job.id; echo "Submitted batch job $!"\n'
    )
    (commands / "scancel").write_text('#!/bin/bash\nkill -- -"$1" || kill "$1"\n')
    for one in commands.iterdir():
        one.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.delenv("DASK_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_slurm_jobs_as_workers(slurm):
    settings = ClusterSettings(
        "slurm",
        n_workers=1,
        memory_limit="1GiB",
        timeout=WAIT,
        options={"queue": "short", "walltime": "00:10:00", "interface": "lo"},
    )
    importlib.import_module("dask_jobqueue")  # its defaults first
    site = {"job-script-prologue": ["export SITE=ours"], "job-extra-directives": ["--exclusive"]}
    site = {f"jobqueue.slurm.{name}": one for name, one in site.items()}
    with dask.config.set(site), connect(settings) as client:
        assert client.scheduler.address.startswith("tls://")
        assert client.submit(abs, -3).result(timeout=WAIT) == 3
        assert list(client.run(os.getenv, "SITE").values()) == ["ours"]
        told = client.run(on_a_worker)
        assert [(one["concurrency"], one["spill"]) for one in told.values()] == [("4", False)]
        script = (slurm / "job.sh").read_text()
        assert "#SBATCH -p short" in script
        assert "#SBATCH --exclusive" in script
        (folder,) = slurm.glob(".certificates-*")
        assert str(folder / "worker.key") in script
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


@pytest.mark.slow
def test_a_slurm_job_that_ends_is_replaced(slurm):
    folder = make_certificates(slurm / "certificates").folder
    settings = ClusterSettings(
        "slurm",
        n_workers=1,
        memory_limit="1GiB",
        tls=folder,
        timeout=WAIT,
        options={"interface": "lo"},
    )
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "500ms"}),
        connect(settings) as client,
    ):
        assert str(folder / "worker.key") in (slurm / "job.sh").read_text()
        (first,) = client.scheduler_info()["workers"]
        subprocess.run([slurm / "bin/scancel", (slurm / "job.id").read_text()], check=True)
        while set(client.scheduler_info()["workers"]) <= {first}:
            time.sleep(0.05)


def test_no_worker_in_time(slurm):
    """Of jobs that are submitted as they should be, and never start."""
    (slurm / "bin" / "sbatch").write_text(
        f'#!/bin/bash\ncp "$1" {slurm}/job.sh\necho "Submitted batch job 99999999"\n'
    )
    (slurm / "bin" / "scancel").write_text("#!/bin/bash\n")
    settings = ClusterSettings(
        "slurm",
        n_workers=1,
        memory_limit="1GiB",
        timeout=1,
        options={"queue": "short", "interface": "lo"},
    )
    with pytest.raises(ds.SketchError, match="timeout=1"), connect(settings):
        pass
    script = (slurm / "job.sh").read_text()
    assert "#SBATCH -p short" in script
    assert "worker.key" in script
    assert not list(slurm.glob(".certificates-*"))


def test_kubernetes_asks_the_operator_and_says_that_it_is_plain(monkeypatch, local):
    """With a stand-in for the operator: no cluster of Kubernetes is at hand."""
    asked = {}

    class KubeCluster:
        def __init__(self, **options):
            asked.update(options)
            self.scheduler_address = local.scheduler.address

        def __enter__(self):
            return local.cluster

        def __exit__(self, *error):
            asked["closed"] = True

    stand_in = SimpleNamespace(KubeCluster=KubeCluster)
    real = importlib.import_module
    monkeypatch.setattr(
        clusters.importlib,
        "import_module",
        lambda name: stand_in if name == "dask_kubernetes.operator" else real(name),
    )
    settings = ClusterSettings("kubernetes", n_workers=3, options={"namespace": "lab"})
    with (
        pytest.warns(UserWarning, match="KubeCluster"),
        connect(settings) as client,
    ):
        assert client.submit(abs, -3).result(timeout=WAIT) == 3
    assert asked == {"n_workers": 3, "namespace": "lab", "quiet": True, "closed": True}


@pytest.mark.parametrize(
    ("kind", "package", "more"),
    [
        ("slurm", "dask_jobqueue", {"memory_limit": "1GiB"}),
        ("kubernetes", "dask_kubernetes", {}),
    ],
)
@pytest.mark.few_cases(1)
def test_a_missing_package_is_named(monkeypatch, kind, package, more):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.operator", None)
    wanted = f"package {package.replace('_', '-')} .*pip install .*{package.replace('_', '-')}>="
    with (
        pytest.raises(ds.SketchError, match=wanted),
        connect(ClusterSettings(kind, n_workers=1, **more)),
    ):
        pass


@pytest.mark.slow
def test_worker_settings_go_with_the_package():
    assert WORKER_SETTINGS.is_file()
    deployed = Path(__file__).parents[2] / "deploy" / "dask.yaml"
    assert deployed.resolve() == WORKER_SETTINGS.resolve()
