"""The objects for Kubernetes against the schemas of Kubernetes and of Dask's operator."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest
from deployment.api_server import Cluster, serving
from deployment.kubernetes_objects import (
    FILES,
    KUBERNETES,
    documents,
    objects,
    one,
    pods,
    validate_as_dask,
)


@pytest.mark.parametrize("item", objects())
@pytest.mark.few_cases(3)
def test_an_object_has_the_form_that_its_kind_asks_for(item):
    assert item["metadata"].get("namespace") == (
        None if item["kind"] == "Namespace" else "dask-sketch"
    )
    if item["apiVersion"] == "kubernetes.dask.org/v1":
        validate_as_dask(item)
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
        validate_as_dask(item)


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
