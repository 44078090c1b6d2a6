"""Certificates: what they say, who can read them, who gets in with them."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import ssl
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

import dask_sketch as ds
from dask_sketch.cli.main import cli
from dask_sketch.cluster import certificates
from dask_sketch.cluster.certificates import PARTS, make_certificates, security_of
from dask_sketch.cluster.connect import connect
from dask_sketch.cluster.settings import ClusterSettings

x509 = pytest.importorskip("cryptography.x509", reason="needs the extra tls")

FILES = {"ca.pem", "tls.env"} | {f"{part}.{end}" for part in PARTS for end in ("pem", "key")}


def read(path: Path):
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates as the command makes them."""
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates").folder


def test_files_and_who_can_read_them(tmp_path):
    before = os.umask(0)  # the loosest
    try:
        folder = make_certificates(tmp_path / "new").folder
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(modes) == FILES
    for name, mode in modes.items():
        assert mode == (0o600 if name.endswith(".key") else 0o644), name
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_each_is_signed_by_the_authority_and_no_other(folder, tmp_path):
    from cryptography.exceptions import InvalidSignature

    authority = read(folder / "ca.pem")
    stranger = read(make_certificates(tmp_path).folder / "ca.pem")
    keys = set()
    for part in PARTS:
        certificate = read(folder / f"{part}.pem")
        certificate.verify_directly_issued_by(authority)
        with pytest.raises(InvalidSignature):
            certificate.verify_directly_issued_by(stranger)
        assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        keys.add(certificate.public_key().public_numbers())
    assert len(keys) == len(PARTS)


def test_a_client_cannot_pose_as_a_server(folder):
    def uses(part):
        found = read(folder / f"{part}.pem").extensions
        return set(found.get_extension_for_class(x509.ExtendedKeyUsage).value)

    called = x509.oid.ExtendedKeyUsageOID.SERVER_AUTH
    assert called in uses("scheduler")
    assert called in uses("worker")
    assert called not in uses("client")


def test_validity_and_hosts(tmp_path):
    now = datetime.datetime.now(datetime.UTC)
    made = make_certificates(tmp_path, days=7, hosts=["scheduler.example.org", "10.1.2.3", "::1"])
    assert abs(made.not_after - now - datetime.timedelta(days=7)) < datetime.timedelta(minutes=1)
    for part in PARTS:
        certificate = read(tmp_path / f"{part}.pem")
        assert certificate.not_valid_after_utc == made.not_after
        assert certificate.not_valid_before_utc == made.not_before < now
    names = read(tmp_path / "scheduler.pem").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == ["scheduler.example.org"]
    assert [str(ip) for ip in names.value.get_values_for_type(x509.IPAddress)] == [
        "10.1.2.3",
        "::1",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"days": 0}, "days=0"),
        ({"days": 4000}, "days=4000"),
        ({"hosts": ["two words"]}, "two words"),
        ({"hosts": ["tls://host:8786"]}, "hosts='tls://host:8786'"),
        ({"hosts": ["bücher.example"]}, "ASCII"),
    ],
)
def test_refused(tmp_path, arguments, message):
    with pytest.raises(ds.SketchError, match=message):
        make_certificates(tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


def test_one_that_exists_is_kept_unless_asked(tmp_path):
    make_certificates(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ds.SketchError, match="overwrite=True"):
        make_certificates(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "worker.key").chmod(0o644)
    make_certificates(tmp_path, overwrite=True)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(after) == FILES
    assert all(after[name] != before[name] for name in FILES - {"tls.env"})
    assert stat.S_IMODE((tmp_path / "worker.key").stat().st_mode) == 0o600


def test_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = CliRunner().invoke
    shown = call(cli, ["certificates", "one", "--days", "30"])
    assert shown.exit_code == 0, shown.output
    assert "valid until" in shown.stdout
    told = json.loads(call(cli, ["certificates", "two", "--json", "--mounted-at", "/c d"]).stdout)
    assert told["environment"]["DASK_DISTRIBUTED__COMM__TLS__CA_FILE"] == "/c d/ca.pem"
    assert "PRIVATE KEY" not in shown.output + json.dumps(told)
    again = call(cli, ["certificates", "one"])
    assert again.exit_code == 1
    assert "--overwrite" in again.stderr


@pytest.mark.slow
def test_the_environment_is_what_dask_understands(tmp_path):
    make_certificates(tmp_path / "a b")
    code = (
        "from distributed.security import Security; s = Security()\n"
        "assert s.require_encryption is True\n"
        "for role in ('scheduler', 'worker', 'client'):\n"
        "    assert s.get_connection_args(role)['ssl_context'] is not None\n"
        "    assert s.get_listen_args(role)['ssl_context'] is not None\n"
    )
    script = f"set -e; set -a; . '{tmp_path}/a b/tls.env'; set +a; exec {sys.executable} -c \"$0\""
    done = subprocess.run(
        ["bash", "-c", script, code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_machine_needs_its_own_pair_only(folder, tmp_path):
    for name in ("ca.pem", "worker.pem", "worker.key"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    security = security_of(tmp_path)
    assert security.get_connection_args("worker")["ssl_context"] is not None
    assert security.get_connection_args("client")["ssl_context"] is None
    with pytest.raises(ds.SketchError, match="tls="):
        security_of(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def scheduler(folder):
    """Address of a scheduler and a worker that use the certificates, in this process."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        security=security_of(folder),
        dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as cluster:
        assert cluster.scheduler_address.startswith("tls://")
        yield cluster.scheduler_address


def test_a_client_with_the_certificate_gets_in(scheduler, folder):
    with connect(ClusterSettings("address", address=scheduler, tls=folder)) as client:
        assert client.submit(abs, -3).result(timeout=60) == 3


def test_a_client_without_is_refused(scheduler, tmp_path):
    with (
        pytest.raises(ds.SketchError, match="certificate"),
        connect(ClusterSettings("address", address=scheduler)),
    ):
        pass
    plain = scheduler.replace("tls://", "tcp://")
    with (
        pytest.raises(ds.SketchError, match="address="),
        connect(ClusterSettings("address", address=plain, timeout=2)),
    ):
        pass


def test_a_client_of_another_authority_is_refused(scheduler, tmp_path):
    stranger = make_certificates(tmp_path).folder
    with (
        pytest.raises(ds.SketchError, match="certificates"),
        connect(ClusterSettings("address", address=scheduler, tls=stranger, timeout=2)),
    ):
        pass


def test_the_scheduler_looks_at_the_certificate_itself(scheduler, folder, tmp_path):
    """Of one who trusts our authority and shows no certificate, or that of another authority."""
    stranger = make_certificates(tmp_path).folder
    host, port = scheduler.removeprefix("tls://").split(":")

    def said(certificate: Path | None) -> bytes:
        context = ssl.create_default_context(cafile=folder / "ca.pem")
        context.check_hostname = False
        if certificate is not None:
            context.load_cert_chain(certificate / "client.pem", certificate / "client.key")
        with (
            socket.create_connection((host, int(port)), timeout=10) as plain,
            context.wrap_socket(plain) as ours,
        ):
            return ours.recv(1)

    # a scheduler speaks first to whom it lets in
    assert len(said(folder)) == 1
    for certificate in (None, stranger):
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate|unknown ca"):
            said(certificate)


def test_an_expired_certificate_is_refused(tmp_path):
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    year = datetime.timedelta(days=365)

    def security(name, valid):
        (tmp_path / name).mkdir()
        for file, content in certificates._signed(valid, []).items():
            (tmp_path / name / file).write_bytes(content)
        return security_of(tmp_path / name)

    def meet(found):
        inside = found.get_listen_args("scheduler")["ssl_context"]
        outside = found.get_connection_args("client")["ssl_context"]
        here, there = socket.socketpair()

        def serve():
            with contextlib.suppress(ssl.SSLError), inside.wrap_socket(there, True) as door:
                door.sendall(b"!")

        with ThreadPoolExecutor(1) as pool, here, there:
            served = pool.submit(serve)
            try:
                with outside.wrap_socket(here) as ours:
                    return ours.recv(1)
            finally:
                served.result()

    assert meet(security("now", (now - year, now + year))) == b"!"
    with pytest.raises(ssl.SSLError, match="expired"):
        meet(security("late", (now - 2 * year, now - year)))
