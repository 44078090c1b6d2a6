"""The objects for Kubernetes against the schemas of Kubernetes and of Dask's operator."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import dask_kubernetes
import jsonschema
import kubernetes_validate
import pytest
import yaml
from deployment.api_server import Cluster, serving
from deployment.local_processes import DEPLOY
from distributed.cli.dask_scheduler import main as dask_scheduler
from distributed.cli.dask_worker import main as dask_worker

from dask_sketch.certificates import PARTS

FOLDER = DEPLOY / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
KUBERNETES = ("1.33", "1.37")  # first and last version checked
CRDS = Path(dask_kubernetes.__file__).parent.joinpath(
    "operator", "deployment", "helm", "dask-kubernetes-operator", "crds"
)


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def one(name: str, kind: str) -> dict[str, Any]:
    (found,) = (item for item in documents(FOLDER / name) if item["kind"] == kind)
    return found


def objects() -> list[Any]:
    return [
        pytest.param(item, id=f"{path.name}-{item['kind']}-{item['metadata']['name']}")
        for path in FILES
        for item in documents(path)
    ]


def closed(schema: Any) -> Any:
    """The schema, with no room for keys that it does not name: the server drops them silently."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        schema["additionalProperties"] = False
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("type", None)
    return schema


def of_dask(item: dict[str, Any]) -> dict[str, Any]:
    """The schema by which the operator's resource definition judges an object."""
    return definition_of(item["kind"])


@cache
def definition_of(kind: str) -> dict[str, Any]:
    text = (CRDS / f"{kind.lower()}.yaml").read_text()
    definition = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = (one for one in definition["spec"]["versions"] if one["name"] == "v1")
    schema = closed(version["schema"]["openAPIV3Schema"])
    # the part that every object has, which a definition leaves out
    schema["properties"] |= {name: {} for name in ("apiVersion", "kind", "metadata")}
    return schema


def pods(item: Any, where: str = "") -> list[tuple[str, dict[str, Any]]]:
    """All pod specifications within an object."""
    found = []
    if isinstance(item, dict):
        if "containers" in item:
            found.append((where, item))
        for key, part in item.items():
            found += pods(part, f"{where}.{key}")
    elif isinstance(item, list):
        for number, part in enumerate(item):
            found += pods(part, f"{where}[{number}]")
    return found


def all_pods() -> list[Any]:
    return [
        pytest.param(spec, id=f"{path.name}{where}")
        for path in FILES
        for item in documents(path)
        for where, spec in pods(item)
    ]


@pytest.mark.parametrize("item", objects())
def test_an_object_has_the_form_that_its_kind_asks_for(item):
    assert item["metadata"].get("namespace") == (
        None if item["kind"] == "Namespace" else "dask-sketch"
    )
    if item["apiVersion"] == "kubernetes.dask.org/v1":
        jsonschema.validate(item, of_dask(item))
        for name, spec in pods(item):  # by rules of today; the definition's are of 1.21
            meta = {"name": re.sub(r"\W+", "-", name).strip("-").lower()}
            spec = {"restartPolicy": "Always"} | spec
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            for version in KUBERNETES:
                kubernetes_validate.validate(pod, version, strict=True)
    else:
        for version in KUBERNETES:
            kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("cluster spec worker", {"replica": 3}),
        ("cluster spec worker", {"replicas": "three"}),
        ("cluster spec worker spec", {"container": []}),
        ("cluster spec scheduler service", {"port": 8786}),
        ("job spec", {"restartpolicy": "Never"}),
        ("job spec", {"containers": None}),
    ],
)
def test_the_schema_of_a_job_refuses_what_is_wrong(path, change):
    """Or the test above would say nothing."""
    item = one("daskjob.yaml", "DaskJob")
    place = item["spec"]
    for part in path.split():
        place = place[part]
    place.update(change)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(item, of_dask(item))


def test_the_schemas_of_kubernetes_refuse_what_is_wrong():
    cron = one("cronjob.yaml", "CronJob")
    cron["spec"]["concurrency"] = "Forbid"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(cron, KUBERNETES[-1], strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_kubectl_reads_it_as_we_do(path, tmp_path):
    """Its YAML is not that of Python: octal numbers, anchors and merged keys."""
    with serving(Cluster([404]), tmp_path) as config:
        done = subprocess.run(
            ["kubectl", "create", "--dry-run=client", "--validate=false", "-f", path, "-o", "json"],
            env=os.environ | {"KUBECONFIG": str(config), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    text, decoder, found = done.stdout.strip(), json.JSONDecoder(), []
    while text:
        item, end = decoder.raw_decode(text)
        found += item["items"] if item["kind"] == "List" else [item]
        text = text[end:].lstrip()
    assert found == documents(path)


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


def cluster_of(item: dict[str, Any]) -> dict[str, Any]:
    return item["spec"]["cluster"]["spec"] if item["kind"] == "DaskJob" else item["spec"]


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


def policies() -> dict[str, dict[str, Any]]:
    found = documents(FOLDER / "networkpolicy.yaml")
    return {item["metadata"]["name"]: item["spec"] for item in found}


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
