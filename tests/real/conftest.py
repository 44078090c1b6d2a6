"""Object stores that the tests start, each a process that answers HTTP requests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import fsspec
import pytest
from deployment.local_processes import free_port, wait_until
from real.faulty_proxy import FaultyProxy

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    # gcsfs would ask for the kind of each bucket over gRPC, which the emulator does not speak
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}
GCS_SERVER = """
import sys
from gcp_storage_emulator.server import create_server
create_server("127.0.0.1", int(sys.argv[1]), in_memory=True).run()
"""


@dataclass(frozen=True)
class Kind:
    """A kind of object store.

    Attributes
    ----------
    protocol
        Protocol of its URLs.
    packages
        Packages that are imported, by the names under which they are installed.
    command
        Arguments of the interpreter that start the server, with ``PORT`` for its port.
    options
        Options of the file system beside the URL of the server.
    """

    protocol: str
    packages: dict[str, str]
    command: tuple[str, ...]
    options: dict[str, Any]


KINDS = {
    "s3": Kind(
        "s3",
        {"s3fs": "s3fs", "moto": "moto[server]", "flask": "moto[server]"},
        ("-m", "moto.server", "-H", "127.0.0.1", "-p", "PORT"),
        {},
    ),
    "gcs": Kind(
        "gs",
        {"gcsfs": "gcsfs", "gcp_storage_emulator": "gcp-storage-emulator"},
        ("-c", GCS_SERVER, "PORT"),
        {"token": "anon", "project": "project"},
    ),
}


@dataclass(frozen=True)
class Bucket:
    """An empty bucket of an object store.

    Attributes
    ----------
    url
        URL without a slash at its end.
    options
        Options of the file system that reaches it.
    """

    url: str
    options: dict[str, Any]

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """File system without anything that was listed before."""
        found = fsspec.filesystem(self.url.split(":")[0], **self.options)
        found.invalidate_cache()
        return found

    def put(self, path: Path) -> str:
        """Copy a local file or folder, and return its URL."""
        url = f"{self.url}/{path.name}"
        if path.is_dir():
            for one in sorted(path.rglob("*")):
                if one.is_file():
                    self.fs.pipe_file(f"{url}/{one.relative_to(path)}", one.read_bytes())
        else:
            self.fs.pipe_file(url, path.read_bytes())
        return url

    def through(self, proxy: FaultyProxy, **options: Any) -> Bucket:
        """The same bucket behind a proxy."""
        return replace(self, options=self.options | {"endpoint_url": proxy.url} | options)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Start the server of a kind of store, once, and return its URL."""
    urls: dict[str, str] = {}
    kept = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    with contextlib.ExitStack() as stack:

        def start(name: str) -> str:
            missing = {
                package for module, package in KINDS[name].packages.items() if not find_spec(module)
            }
            if missing:
                listed = " ".join(f"'{package}'" for package in sorted(missing))
                pytest.skip(f"needs the packages of: {sys.executable} -m pip install {listed}")
            if name not in urls:
                folder = tmp_path_factory.mktemp(name)
                urls[name] = stack.enter_context(serving(KINDS[name].command, folder))
            return urls[name]

        yield start
    for variable, value in kept.items():
        if value is None:
            del os.environ[variable]
        else:
            os.environ[variable] = value


@contextlib.contextmanager
def serving(command: Sequence[str], folder: Path) -> Iterator[str]:
    """URL of a server that the interpreter runs; on another port if somebody else took the first.

    Parameters
    ----------
    command
        Arguments of the interpreter, with ``PORT`` for the port.
    folder
        Folder for its log.
    """
    with (folder / "log").open("a") as log:
        for _ in range(5):
            port = free_port()
            words = [str(port) if word == "PORT" else word for word in command]
            process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log)
            try:
                if _begins(process, f"http://127.0.0.1:{port}"):
                    yield f"http://127.0.0.1:{port}"
                    return
            finally:
                process.kill()
                process.wait()
    raise AssertionError((folder / "log").read_text()[-3000:])


def _begins(process: subprocess.Popen[bytes], url: str) -> bool:
    """Whether a server answers, rather than ends."""
    wait_until(lambda: process.poll() is not None or _answers(url), f"{url} answers", 120)
    return process.poll() is None


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except HTTPError:
        return True
    except (URLError, OSError):
        return False


@pytest.fixture(params=list(KINDS))
def bucket(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> Bucket:
    """Make an empty bucket, on each kind of store in turn."""
    kind = KINDS[request.param]
    options = {"endpoint_url": servers(request.param), **kind.options}
    bucket = Bucket(f"{kind.protocol}://bucket-{uuid.uuid4()}", options)
    bucket.fs.mkdir(bucket.url.partition("://")[2])
    return bucket


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[FaultyProxy]:
    """Proxy in front of the server of the bucket."""
    with FaultyProxy(bucket.options["endpoint_url"]) as found:
        yield found
