"""The objects of deploy/kubernetes, and the schemas of Dask's operator."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import dask_kubernetes
import pytest
import yaml
from deployment.local_processes import DEPLOY
from jsonschema import Draft202012Validator

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


def validate_as_dask(item: dict[str, Any]) -> None:
    """Check an object by the schema of the operator's resource definition."""
    validator_of(item["kind"]).validate(item)


@cache
def validator_of(kind: str) -> Draft202012Validator:
    schema = definition_of(kind)
    Draft202012Validator.check_schema(schema)  # once: it takes longer than to check an object
    return Draft202012Validator(schema)


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


def cluster_of(item: dict[str, Any]) -> dict[str, Any]:
    return item["spec"]["cluster"]["spec"] if item["kind"] == "DaskJob" else item["spec"]


def policies() -> dict[str, dict[str, Any]]:
    found = documents(FOLDER / "networkpolicy.yaml")
    return {item["metadata"]["name"]: item["spec"] for item in found}
