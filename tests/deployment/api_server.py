"""As much of a Kubernetes API as kubectl and deploy/kubernetes/nightly.py ask for."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

RESOURCES = {
    "v1": [("namespaces", "Namespace"), ("serviceaccounts", "ServiceAccount"), ("pods", "Pod")],
    "batch/v1": [("cronjobs", "CronJob")],
    "networking.k8s.io/v1": [("networkpolicies", "NetworkPolicy")],
    "rbac.authorization.k8s.io/v1": [("roles", "Role"), ("rolebindings", "RoleBinding")],
    "kubernetes.dask.org/v1": [("daskclusters", "DaskCluster"), ("daskjobs", "DaskJob")],
}


class Cluster:
    """Objects of the server, and the phases of the pod of a job.

    ``states`` are the answers to one question after the other for the pod: a status of HTTP that
    is not 200, or the pod's ``status``. The last one is repeated.
    """

    def __init__(self, states: list[Any], log: str = ""):
        self.states = states
        self.log = log
        self.jobs: dict[str, Any] = {}
        self.created: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str]] = []  # verbs of RBAC and what for

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        parts = [part for part in path.partition("?")[0].split("/") if part]
        if parts == ["api"]:
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if parts == ["apis"]:
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": self._groups()}
        if parts == ["version"]:
            return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        version = "/".join(parts[1 : 2 if parts[0] == "api" else 3])
        rest = parts[2 if parts[0] == "api" else 3 :]
        if not rest:
            return 200, self._resources(version)
        if rest[0] == "namespaces" and len(rest) > 2:
            return self._object(method, rest[2:], body)
        return 404, self._missing(path)

    def _groups(self) -> list[dict[str, Any]]:
        found = []
        for version in RESOURCES:
            if "/" in version:
                one = {"groupVersion": version, "version": version.split("/")[1]}
                group = version.split("/")[0]
                found.append({"name": group, "versions": [one], "preferredVersion": one})
        return found

    def _resources(self, version: str) -> dict[str, Any]:
        verbs = ["create", "delete", "get", "list"]
        return {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": [
                {
                    "name": name,
                    "singularName": kind.lower(),
                    "namespaced": kind != "Namespace",
                    "kind": kind,
                    "verbs": verbs,
                }
                for name, kind in RESOURCES[version]
            ],
        }

    def _object(self, method: str, rest: list[str], body: bytes) -> tuple[int, Any]:
        kind, *names = rest
        verb = {"POST": "create", "GET": "get", "DELETE": "delete"}[method]
        self.asked.append((verb, "/".join([kind, *names[1:]])))
        if kind == "daskjobs" and method == "POST":
            job = json.loads(body)
            self.jobs[job["metadata"]["name"]] = job
            self.created.append(job)
            return 201, job
        if kind == "daskjobs" and names and method == "DELETE":
            found = self.jobs.pop(names[0], None)
            return (200, found) if found else (404, self._missing(names[0]))
        if kind == "pods" and names[1:] == ["log"]:
            return 200, self.log
        if kind == "pods" and method == "GET":
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            if isinstance(state, int):
                return state, self._missing(names[0])
            meta = {"name": names[0], "namespace": "dask-sketch"}
            return 200, {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "status": state}
        return 405, self._missing("/".join(rest))

    def _missing(self, what: str) -> dict[str, Any]:
        return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": what}


@contextmanager
def serving(cluster: Cluster, folder: Path):
    """Serve on a port of the loopback; gives a kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, found = cluster.answer(self.command, self.path, body)
            text = found if isinstance(found, str) else json.dumps(found)
            content = text.encode()
            kind = "text/plain" if isinstance(found, str) else "application/json"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {
                "name": "here",
                "context": {"cluster": "here", "user": "us", "namespace": "dask-sketch"},
            }
        ],
        "clusters": [
            {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "us", "user": {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    try:
        yield path
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
