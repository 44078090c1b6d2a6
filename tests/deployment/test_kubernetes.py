"""Objects for Kubernetes: their permissions, their connections and their commands."""

from __future__ import annotations

import re
import subprocess
import sys

import kubernetes_validate
import pytest
from deployment.kubernetes_objects import KUBERNETES, all_pods, cluster_of, one, policies
from deployment.local_processes import BIN, DEPLOY, environment, free_port, wait_until
from distributed.cli.dask_scheduler import main as dask_scheduler
from distributed.cli.dask_worker import main as dask_worker

from dask_sketch.cluster.certificates import PARTS


@pytest.mark.parametrize("spec", all_pods())
def test_a_pod_can_do_no_more_than_it_must(spec):
    """Also what the standard `restricted`, which the namespace enforces, asks for."""
    account = spec["securityContext"]
    assert account["runAsNonRoot"] is True
    assert account["runAsUser"] == account["runAsGroup"] == account["fsGroup"] == 10001
    assert account["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is ("serviceAccountName" in spec)
    assert spec["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert all(
        set(volume) <= {"name", "configMap", "secret", "emptyDir"} for volume in volumes.values()
    )
    assert "sizeLimit" in volumes["scratch"]["emptyDir"]
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        for amount in ("requests", "limits"):
            assert set(container["resources"][amount]) == {"cpu", "memory", "ephemeral-storage"}
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert [name for name, mount in mounts.items() if not mount.get("readOnly")] == ["scratch"]
        assert mounts["scratch"]["mountPath"] == "/tmp"
        assert set(mounts) == set(volumes)


def test_the_cluster_of_a_job_is_the_cluster_that_stays():
    stays, job = one("daskcluster.yaml", "DaskCluster"), one("daskjob.yaml", "DaskJob")
    ours = cluster_of(job)
    selector = ours["scheduler"]["service"]["selector"]
    assert selector["dask.org/cluster-name"] == job["metadata"]["name"]
    selector["dask.org/cluster-name"] = stays["metadata"]["name"]
    assert ours == cluster_of(stays)


def test_each_part_has_its_own_certificate_alone():
    job = one("daskjob.yaml", "DaskJob")
    specs = {
        "client": job["spec"]["job"]["spec"],
        **{part: cluster_of(job)[part]["spec"] for part in ("scheduler", "worker")},
    }
    assert set(specs) == set(PARTS)
    for part, spec in specs.items():
        (secret,) = (volume["secret"] for volume in spec["volumes"] if "secret" in volume)
        assert secret == {"secretName": f"sketch-tls-{part}", "defaultMode": 0o440}
        (container,) = spec["containers"]
        assert container["envFrom"] == [{"configMapRef": {"name": "sketch-tls"}}]


def test_dask_takes_the_command_lines():
    spec = cluster_of(one("daskcluster.yaml", "DaskCluster"))
    for part, command in (("scheduler", dask_scheduler), ("worker", dask_worker)):
        (container,) = spec[part]["spec"]["containers"]
        dask, name, *arguments = container["args"]
        assert (dask, name) == ("dask", part)
        parsed = command.make_context(name, list(arguments)).params
        assert parsed["protocol"] == "tls"
        assert parsed["dashboard_address"].startswith("127.0.0.1:")
        port = parsed["dashboard_address"].rpartition(":")[2]
        asked = container["livenessProbe"]["exec"]["command"]
        assert asked[:2] == ["python", "-c"]
        assert f"'http://127.0.0.1:{port}/health'" in asked[2]


@pytest.mark.slow
def test_a_run_of_its_command_lines(certificates, start, tmp_path):
    """Scheduler and worker as processes here, until their own probes find them well."""
    spec = cluster_of(one("daskcluster.yaml", "DaskCluster"))
    ports = {port: str(free_port()) for port in ("8786", "8787", "8788", "8789", "8790")}
    ports["$(DASK_WORKER_NAME)"] = "sketch-default-worker-1"

    def here(text: str) -> str:
        for old, new in ports.items():
            text = text.replace(old, new)
        return text

    given = environment(
        DASK_CONFIG=str(DEPLOY / "dask.yaml"),
        DASK_SCHEDULER_ADDRESS=f"tls://127.0.0.1:{ports['8786']}",
        **certificates.environment,
    )
    log = tmp_path / "log"
    for part in ("scheduler", "worker"):
        (container,) = spec[part]["spec"]["containers"]
        program, *arguments = map(here, container["args"])
        with log.open("a") as file:
            start([BIN / program, *arguments], env=given, stderr=file, cwd=tmp_path)
        probe = [sys.executable, *map(here, container["livenessProbe"]["exec"]["command"][1:])]
        wait_until(
            lambda probe=probe: (
                not subprocess.run(probe, capture_output=True, check=False).returncode
            ),
            part,
        )
    wait_until(lambda: "name: sketch-default-worker-1" in log.read_text(), "worker")
    assert f"tls://127.0.0.1:{ports['8786']}" in log.read_text()


@pytest.mark.slow
def test_the_operator_makes_what_we_mean():
    """Its own functions, on our objects: names, labels and the address of the scheduler."""
    from dask_kubernetes.operator.controller import controller

    job = one("daskjob.yaml", "DaskJob")
    name = "sketch-20260228-0230"
    labels, cluster = job["metadata"]["labels"], cluster_of(job)
    runner = controller.build_job_pod_spec(
        name, name, "dask-sketch", job["spec"]["job"]["spec"], {}, labels
    )
    worker = controller.build_worker_deployment_spec(
        f"{name}-default", "dask-sketch", name, "0123456789", cluster["worker"]["spec"], {}, labels
    )
    scheduler = controller.build_scheduler_deployment_spec(
        name, cluster["scheduler"]["spec"], {}, labels
    )
    service = controller.build_scheduler_service_spec(
        name, cluster["scheduler"]["service"], {}, labels
    )
    for item in (runner, worker, scheduler, service):
        kubernetes_validate.validate(item, KUBERNETES[-1], strict=True)
    assert service["metadata"]["name"] == f"{name}-scheduler"
    for pod in (runner, worker["spec"]["template"]):
        assert pod["metadata"]["labels"]["dask.org/cluster-name"] == name
        (container,) = pod["spec"]["containers"]
        variables = {item["name"]: item for item in container["env"]}
        assert list(variables)[:2] == ["CLUSTER", "DASK_SCHEDULER_ADDRESS"]
        field = variables["CLUSTER"]["valueFrom"]["fieldRef"]["fieldPath"]
        assert field == "metadata.labels['dask.org/cluster-name']"
        assert variables["DASK_SCHEDULER_ADDRESS"]["value"] == "tls://$(CLUSTER)-scheduler:8786"
    # the network policies know the pods by these labels
    allowed = policies()
    for part, pod in (
        ("scheduler", scheduler["spec"]["template"]),
        ("worker", worker["spec"]["template"]),
        ("client", runner),
    ):
        wanted = allowed[part]["podSelector"]["matchLabels"].items()
        assert wanted <= pod["metadata"]["labels"].items()
        others = set(PARTS) - {part}
        for other in others:
            labels = allowed[other]["podSelector"]["matchLabels"].items()
            assert not labels <= pod["metadata"]["labels"].items()


def test_network_policies_open_the_ports_that_are_used():
    allowed, cluster = policies(), cluster_of(one("daskcluster.yaml", "DaskCluster"))
    assert allowed["nothing-else"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for part in ("scheduler", "worker"):
        (container,) = cluster[part]["spec"]["containers"]
        listening = {port["containerPort"] for port in container["ports"]}
        stated = {int(p) for p in re.findall(r"-port=(\d+)", " ".join(container["args"]))}
        (rule,) = allowed[part]["ingress"]
        assert listening == stated == {port["port"] for port in rule["ports"]}
        for name, other in allowed.items():  # who may be called by it may call it
            for way in other.get("egress", []):
                called = [to.get("podSelector") for to in way.get("to", [])]
                if allowed[part]["podSelector"] in called:
                    assert {"podSelector": other["podSelector"]} in rule["from"], name
                    assert {port["port"] for port in way["ports"]} <= listening
    for part in ("client", "nightly"):
        assert "ingress" not in allowed[part]
        assert "Ingress" in allowed[part]["policyTypes"]


@pytest.mark.parametrize("name", ["cronjob.yaml", "cronjob-one-pod.yaml"])
def test_one_run_at_a_time(name):
    spec = one(name, "CronJob")["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["schedule"] == "30 2 * * *"
    job = spec["jobTemplate"]["spec"]
    assert job["activeDeadlineSeconds"] < 24 * 3600
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    labels = job["template"]["metadata"]["labels"]
    assert labels == policies()["nightly"]["podSelector"]["matchLabels"]
    (container,) = job["template"]["spec"]["containers"]
    codes, _ = job["podFailurePolicy"]["rules"]
    assert codes["onExitCodes"]["containerName"] == container["name"]


def test_the_account_may_do_what_the_script_does_and_no_more():
    role, binding = one("cronjob.yaml", "Role"), one("cronjob.yaml", "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    spec = one("cronjob.yaml", "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (subject,) = binding["subjects"]
    assert subject["name"] == spec["serviceAccountName"]
    allowed = {
        (verb, kind)
        for rule in role["rules"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {
        ("create", "daskjobs"),
        ("delete", "daskjobs"),
        ("get", "pods"),
        ("get", "pods/log"),
    }
