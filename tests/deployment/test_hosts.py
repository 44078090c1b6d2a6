"""Scheduler, two workers and client on hosts of their own, with TLS; faults of network and process.

The hosts are network namespaces of this machine, so root is needed; each has an address, and all
that passes between them passes a bridge.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import zarr
from deployment import network

import dask_sketch as ds
from dask_sketch.cluster.certificates import make_certificates
from dask_sketch.cluster.connect import WORKER_SETTINGS

REASON = network.missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]

BIN = Path(sys.executable).parent
CHUNK_ROWS = 1000
CHUNK_SIZE = "48kB"  # of CHUNK_ROWS rows of 12 float32: a task for each
# the scheduler's own account, which only its host can ask for; by a process that is started in no
# time, since it is asked again and again
ASK = """
import socket
with socket.create_connection(("127.0.0.1", 8787), timeout=30) as page:
    page.sendall(b"GET /json/counts.json HTTP/1.0\\r\\n\\r\\n")
    head, _, body = page.makefile("rb").read().partition(b"\\r\\n\\r\\n")
assert b" 200 " in head.splitlines()[0], head
print(body.decode())
"""
# every task takes SECONDS: a pass lasts as long as the test needs it, and takes no processor
SECONDS = 0.25
SLOW = f"""
import time
from dask_sketch.sketching import partial
# a preload may be run twice in one process: the second time there is nothing to replace
if partial.partial_sketch.__name__ != "slow_sketch":
    honest = partial.partial_sketch
    def slow_sketch(*arguments, **options):
        time.sleep({SECONDS})
        return honest(*arguments, **options)
    partial.partial_sketch = slow_sketch
"""
# a worker whose link was cut for too long ends: systemd and the like start it again
AGAIN = ("bash", "-c", 'while :; do "$@"; sleep 1; done', "worker")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("DASK_")}


def until(condition, seconds=120):
    """Wait for something to be true, and give it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.5)
    return found


@pytest.fixture
def hosts(tmp_path, request):
    """A cluster on four hosts; ``request.param`` is the time after which Dask gives a link up."""
    certificates = make_certificates(tmp_path / "certificates")
    environment = CLEAN | dict(certificates.environment) | {"DASK_CONFIG": str(WORKER_SETTINGS)}
    if request.param is not None:
        timeouts = "DASK_DISTRIBUTED__COMM__TIMEOUTS__"
        environment |= {f"{timeouts}TCP": request.param, f"{timeouts}CONNECT": request.param}
    (tmp_path / "slow.py").write_text(SLOW)
    net = network.Network("scheduler", "one", "two", "client", "intruder")
    started = []

    def start(host, *command, env=CLEAN):
        with (tmp_path / f"{host}.log").open("a") as log:
            started.append(
                subprocess.Popen(
                    net.inside(host, *command), stdout=log, stderr=log, env=env, cwd=tmp_path
                )
            )
        return started[-1]

    def start_worker(host):
        at = ("--host", net.addresses[host], "--dashboard-address", "127.0.0.1:0")
        size = ("--nthreads", "1", "--memory-limit", "1GiB", "--name", host)
        worker = (BIN / "dask", "worker", address, *at, *size, "--preload", "slow.py")
        return start(host, *AGAIN, *worker, env=environment)

    def state():
        """Answer of the scheduler about itself."""
        ask = net.inside("scheduler", sys.executable, "-I", "-S", "-c", ASK)
        done = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=60)
        return json.loads(done.stdout) if done.returncode == 0 else {"workers": 0}

    address = f"tls://{net.addresses['scheduler']}:8786"
    try:
        ports = ("--port", "8786", "--dashboard-address", "127.0.0.1:8787")
        command = ("scheduler", "--host", net.addresses["scheduler"], *ports)
        start("scheduler", BIN / "dask", *command, env=environment)
        workers = {host: start_worker(host) for host in ("one", "two")}
        until(lambda: state()["workers"] == 2)
        yield SimpleNamespace(
            net=net,
            address=address,
            certificates=certificates.folder,
            start=start,
            start_worker=start_worker,
            state=state,
            workers=workers,
        )
    finally:
        net.close()
        for process in started:
            process.kill()
            process.wait(30)


def write_store(folder, n_chunks):
    """A store that takes one worker SECONDS for each chunk, and the feature map for it."""
    feature_map = ds.FeatureMap(12, 100, scale=1.0)
    rng = np.random.default_rng(0)
    shape = (n_chunks * CHUNK_ROWS, 12)
    store = zarr.create_array(
        folder / "x.zarr", shape=shape, chunks=(CHUNK_ROWS, 12), dtype="f4", compressors=None
    )
    for row in range(0, shape[0], CHUNK_ROWS):
        store[row : row + CHUNK_ROWS] = rng.normal(size=(CHUNK_ROWS, 12)).astype(np.float32)
    (folder / "map.json").write_text(feature_map.to_json())
    return feature_map, shape[0]


def sketch_command(hosts, *more):
    options = ("--map", "map.json", "-o", "s.zarr", "--chunk-size", CHUNK_SIZE)
    return (BIN / "dask-sketch", "sketch", "x.zarr", *options, "--scheduler", hosts.address, *more)


def arrays(path):
    """Every array of a store, by name."""
    group = zarr.open_group(path, mode="r")
    return {name: np.asarray(one[...]) for name, one in group.arrays()}


@pytest.mark.parametrize(
    ("hosts", "cut"),
    [
        pytest.param("11s", 12, id="shorter timeouts"),  # Dask allows none below 11 s
        pytest.param(None, 30, id="timeouts of Dask"),
    ],
    indirect=["hosts"],
)
def test_a_link_cut_and_a_process_killed_leave_the_bits(hosts, cut, tmp_path):
    feature_map, n_samples = write_store(tmp_path, int(2 * cut / SECONDS))
    log = tmp_path / "client.log"
    client = hosts.start("client", *sketch_command(hosts, "--tls", hosts.certificates))
    until(lambda: hosts.state().get("memory", 0) > 4 or client.poll() is not None)
    assert client.poll() is None, log.read_text()
    with hosts.net.cut("one"):
        restored = time.monotonic() + cut
        time.sleep(cut / 4)
        # the process that computes on the other host, not the one that watches it
        below = psutil.Process(hosts.workers["two"].pid).children(recursive=True)
        (computing,) = [p for p in below if "spawn_main" in " ".join(p.cmdline())]
        computing.send_signal(signal.SIGKILL)
        time.sleep(max(restored - time.monotonic(), 0))
        assert client.poll() is None, f"over before the link was back: {log.read_text()}"
    until(lambda: client.poll() is not None, 400)
    assert client.returncode == 0, log.read_text()
    until(lambda: hosts.state()["workers"] == 2)

    alone = ds.sketch(str(tmp_path / "x.zarr"), feature_map, chunk_size=CHUNK_SIZE)
    alone.compute(scheduler="threads").to_zarr(tmp_path / "alone.zarr")
    found, expected = arrays(tmp_path / "s.zarr"), arrays(tmp_path / "alone.zarr")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert ds.open(tmp_path / "s.zarr").count == n_samples


@pytest.mark.parametrize("hosts", ["30s"], indirect=True)
def test_an_intruder_gets_nowhere(hosts, tmp_path):
    """From a host of its own: every port that other hosts reach asks for a certificate of ours."""
    write_store(tmp_path, 4)
    ports = []
    for host in ("scheduler", "one", "two"):
        listening = hosts.net.listening(host)
        outward = [port for address, port in listening if not address.startswith("127.")]
        assert outward
        assert {address for address, _ in listening} <= {"127.0.0.1", hosts.net.addresses[host]}
        ports += [(hosts.net.addresses[host], port) for port in outward]
    assert len(ports) == 5  # the scheduler; worker and nanny of each host
    stranger = make_certificates(tmp_path / "stranger").folder
    for certificate, answer in (
        (hosts.certificates, "let in"),  # the same attempt with the right one
        (stranger, "refused"),
        (None, "refused"),
        ("plain", "refused"),
    ):
        arguments = json.dumps([ports, str(hosts.certificates / "ca.pem"), str(certificate)])
        done = subprocess.run(
            hosts.net.inside("intruder", sys.executable, "-c", KNOCK, arguments),
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert json.loads(done.stdout) == [answer] * len(ports), certificate
    log = tmp_path / "intruder.log"
    for options in ((), ("--tls", stranger)):
        attempt = hosts.start("intruder", *sketch_command(hosts, *options))
        assert attempt.wait(60) == 1
        assert "certificate" in log.read_text().splitlines()[-1]
    assert not (tmp_path / "s.zarr").exists()
    assert hosts.start("client", *sketch_command(hosts, "--tls", hosts.certificates)).wait(120) == 0
    assert (tmp_path / "s.zarr").exists()


KNOCK = """
import json, socket, ssl, sys
ports, authority, certificate = json.loads(sys.argv[1])
def knock(host, port):
    with socket.create_connection((host, port), timeout=20) as plain:
        if certificate == "plain":
            plain.sendall(bytes(64))
            # nothing, or an alert of TLS
            return "refused" if plain.recv(1) in (b"", b"\\x15") else "let in"
        context = ssl.create_default_context(cafile=authority)
        context.check_hostname = False
        if certificate != "None":
            context.load_cert_chain(certificate + "/client.pem", certificate + "/client.key")
        with context.wrap_socket(plain) as door:
            return "let in" if door.recv(1) else "refused"
answers = []
for host, port in ports:
    try:
        answers.append(knock(host, port))
    except (ssl.SSLError, ConnectionResetError):
        answers.append("refused")
print(json.dumps(answers))
"""


def test_what_a_killed_run_left_is_removed():
    """Hosts are named after the process that made them."""
    process = subprocess.Popen(["true"])
    process.wait()
    left = f"{network.PREFIX}{process.pid}hub"
    subprocess.run(["ip", "netns", "add", left], check=True)
    net = network.Network("only")
    try:
        spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
        assert left not in spaces
        assert f"{network.PREFIX}{os.getpid()}only" in spaces
    finally:
        net.close()
    spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert f"{network.PREFIX}{os.getpid()}" not in spaces
