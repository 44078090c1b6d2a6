"""Commands of the CronJob, against a server that answers like Kubernetes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from deployment.api_server import Cluster, serving
from deployment.local_processes import DEPLOY, wait_until

SCRIPT = DEPLOY / "kubernetes" / "nightly.py"
JOB = DEPLOY / "kubernetes" / "daskjob.yaml"
PENDING, RUNNING = {"phase": "Pending"}, {"phase": "Running"}


def ended(code: int) -> dict:
    return {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{"name": "client", "state": {"terminated": {"exitCode": code}}}],
    }


def start(config, tmp_path, changed: dict[str, str] | None = None) -> subprocess.Popen:
    """The script, in a hurry."""
    text = SCRIPT.read_text().replace("PAUSE = 5.0", "PAUSE = 0.1")
    for old, new in (changed or {}).items():
        assert old in text
        text = text.replace(old, new)
    script = tmp_path / "nightly.py"
    script.write_text(text)
    return subprocess.Popen(
        [sys.executable, script, JOB],
        env=os.environ | {"KUBECONFIG": str(config), "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("code", [5, pytest.param(0, marks=pytest.mark.slow)])
def test_it_ends_as_the_job_ends(code, tmp_path):
    """The pod is made after a while, one question is not answered, the job runs and ends."""
    cluster = Cluster([404, PENDING, RUNNING, 503, RUNNING, ended(code)], log="sketched\ndrift\n")
    with serving(cluster, tmp_path) as config:
        script = start(config, tmp_path)
        told, errors = script.communicate(timeout=120)
    assert script.returncode == code, errors
    (job,) = cluster.created
    name = job["metadata"]["name"]
    assert re.fullmatch(r"sketch-\d{8}-\d{4}", name)
    selector = job["spec"]["cluster"]["spec"]["scheduler"]["service"]["selector"]
    assert selector["dask.org/cluster-name"] == name
    assert "sketch-once" not in str(job)
    assert told.splitlines() == [
        f"{name}: created",
        f"{name}: Pending",
        f"{name}: Running",
        f"{name}: {'Failed' if code else 'Succeeded'}",
        "sketched",
        "drift",
        f"{name}: exit code {code}",
    ]
    assert cluster.jobs == {}  # deleted
    assert set(cluster.asked) == {  # what the Role of cronjob.yaml allows
        ("create", "daskjobs"),
        ("get", "pods"),
        ("get", "pods/log"),
        ("delete", "daskjobs"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("states", "changed", "told"),
    [
        (
            [404],
            {"OPERATOR_SECONDS = 600.0": "OPERATOR_SECONDS = 0.5"},
            "Dask operator",
        ),
        pytest.param([RUNNING, 404], {}, "its pod was deleted", marks=pytest.mark.slow),
        ([RUNNING, 500], {"SILENCE_SECONDS = 600.0": "SILENCE_SECONDS = 0.5"}, "does not answer"),
        pytest.param(
            [{"phase": "Failed", "reason": "Evicted"}],
            {},
            "did not terminate (Evicted)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_job_without_an_end_is_a_failure(states, changed, told, tmp_path):
    cluster = Cluster(states)
    with serving(cluster, tmp_path) as config:
        script = start(config, tmp_path, changed)
        output, errors = script.communicate(timeout=120)
    assert script.returncode == 1
    assert told in output + errors
    assert cluster.jobs == {}


@pytest.mark.slow
def test_a_job_that_somebody_deletes_is_told_by_its_code(tmp_path):
    cluster = Cluster([RUNNING, ended(4)])
    cluster.jobs = Forgetful()
    with serving(cluster, tmp_path) as config:
        script = start(config, tmp_path)
        _, errors = script.communicate(timeout=120)
    assert script.returncode == 4, errors
    assert ("delete", "daskjobs") in cluster.asked


class Forgetful(dict):
    def __setitem__(self, name, job):
        pass


@pytest.mark.slow
def test_the_job_goes_when_the_night_is_over(tmp_path):
    """At activeDeadlineSeconds Kubernetes sends SIGTERM."""
    cluster = Cluster([RUNNING])
    with serving(cluster, tmp_path) as config:
        script = start(config, tmp_path)
        wait_until(lambda: ("get", "pods") in cluster.asked, "script")
        script.send_signal(signal.SIGTERM)
        script.communicate(timeout=60)
    assert script.returncode == 128 + signal.SIGTERM
    assert cluster.jobs == {}
