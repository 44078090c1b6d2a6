"""The compose file: its form, and its command lines as processes of this machine, with TLS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from http.client import HTTPException
from urllib.request import urlopen

import psutil
import pytest
import yaml
from deployment.local_processes import (
    BIN,
    DEPLOY,
    N_SAMPLES,
    environment,
    free_port,
    substituted,
    total_of,
    wait_until,
)

from dask_sketch.cluster.certificates import PARTS

FILE = DEPLOY / "docker" / "compose.yaml"
COMPOSE = yaml.safe_load(FILE.read_text())
SERVICES = COMPOSE["services"]
ROLES = dict(zip(("scheduler", "worker", "client"), PARTS, strict=True))


def compose(*arguments: str, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["docker", "compose", *arguments],
        env=os.environ | more,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(
    shutil.which("docker") is None or compose("version").returncode != 0,
    reason="needs docker with its compose plugin",
)
def test_compose_takes_it(job, certificates):
    places = {
        "SKETCH_CERTIFICATES": str(certificates.folder),
        "SKETCH_DATA": str(job.parent),
        "SKETCH_JOB": str(job),
        "SKETCH_RESULTS": str(job.parent),
    }
    arguments = ("--file", str(FILE), "--profile", "job", "config", "--format", "json")
    done = compose(*arguments, **places)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == set(ROLES)
    del places["SKETCH_RESULTS"]
    assert "SKETCH_RESULTS" in compose(*arguments, **places).stderr


@pytest.mark.parametrize("name", ROLES)
def test_a_service_can_do_no_more_than_it_must(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert substituted(service["user"]) == "10001:10001"
    assert service["init"] is True
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory"}
    assert service["pids_limit"] > 0
    writable = [one["target"] for one in service.get("volumes", []) if not one.get("read_only")]
    assert writable == (["/var/lib/dask-sketch"] if name == "client" else [])


@pytest.mark.parametrize(("name", "part"), ROLES.items())
def test_a_service_has_its_own_certificate_alone(name, part, certificates):
    """At the places that ``tls.env`` of the README's command names."""
    targets = {secret["target"] for secret in SERVICES[name]["secrets"]}
    assert targets == {f"/certificates/{file}" for file in ("ca.pem", f"{part}.pem", f"{part}.key")}
    for secret in SERVICES[name]["secrets"]:
        file = COMPOSE["secrets"][secret["source"]]["file"]
        assert file == "${SKETCH_CERTIFICATES}/" + secret["target"].split("/")[-1]
        assert (certificates.folder / file.split("/")[-1]).exists()


def test_the_dashboard_is_closed_unless_asked_for():
    (port,) = SERVICES["scheduler"]["ports"]
    assert port == "127.0.0.1:8787:8787"
    published = [name for name, service in SERVICES.items() if "ports" in service]
    assert published == ["scheduler"]
    for name in ("scheduler", "worker"):
        places = [part for part in SERVICES[name]["command"] if "--dashboard-address" in part]
        assert [substituted(place)[:29] for place in places] == ["--dashboard-address=127.0.0.1"]


def command(name: str, changed: dict[str, str]) -> list[str]:
    """A service's command line, as compose would put it, with other places."""
    parts = [substituted(part) for part in SERVICES[name]["command"]]
    for old, new in changed.items():
        parts = [part.replace(old, new) for part in parts]
    return [str(BIN / parts[0]), *parts[1:]]


def healthy(name: str, changed: dict[str, str]) -> bool:
    kind, program, *arguments = SERVICES[name]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    for old, new in changed.items():
        arguments = [argument.replace(old, new) for argument in arguments]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    return done.returncode == 0


def listening(process: subprocess.Popen) -> set[tuple[str, int]]:
    """Ports on which a process and its children listen."""
    whole = [psutil.Process(process.pid)]
    whole += whole[0].children(recursive=True)
    return {
        tuple(one.laddr)
        for part in whole
        for one in part.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    }


@pytest.mark.slow
def test_a_run_of_its_command_lines(job, certificates, start, tmp_path):
    """Scheduler, worker and client with the environment that ``tls.env`` gives them."""
    port, dashboard, other = free_port(), free_port(), free_port()
    changed = {
        "tls://scheduler:8786": f"tls://127.0.0.1:{port}",
        "8786": str(port),
        "127.0.0.1:8787": f"127.0.0.1:{dashboard}",
        "127.0.0.1:8788": f"127.0.0.1:{other}",
        "/job/": f"{tmp_path}/",
    }
    given = environment(DASK_CONFIG=str(DEPLOY / "dask.yaml"), **certificates.environment)
    quiet = {"env": given, "cwd": tmp_path, "stdout": subprocess.DEVNULL}
    assert not healthy("scheduler", changed)
    with (tmp_path / "scheduler.log").open("w") as log:
        scheduler = start(command("scheduler", changed), stderr=log, **quiet)
    wait_until(lambda: healthy("scheduler", changed), "scheduler")
    with (tmp_path / "worker.log").open("w") as log:
        worker = start(command("worker", changed), stderr=log, **quiet)
    wait_until(lambda: healthy("worker", changed), "worker")

    client = SERVICES["client"]["environment"]
    assert client == {"DASK_SCHEDULER_ADDRESS": "tls://scheduler:8786"}
    done = subprocess.run(
        command("client", changed),
        env=given | {"DASK_SCHEDULER_ADDRESS": f"tls://127.0.0.1:{port}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert total_of(tmp_path) == N_SAMPLES
    assert "Receive client connection" in (tmp_path / "scheduler.log").read_text()

    # what speaks without TLS is for this machine alone
    for process, page in ((scheduler, dashboard), (worker, other)):
        places = listening(process)
        assert ("127.0.0.1", page) in places
        open_ports = {place[1] for place in places if place[0] != "127.0.0.1"}
        assert open_ports
        for one in open_ports:
            with pytest.raises((OSError, HTTPException)):
                urlopen(f"http://127.0.0.1:{one}/health", timeout=5)
    logs = (tmp_path / "scheduler.log").read_text() + (tmp_path / "worker.log").read_text()
    assert "tcp://" not in logs
