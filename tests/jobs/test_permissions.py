"""Permissions of the operator: secrets of a job file are neither read nor sent without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dask.config
import pytest

from dask_sketch.errors import JobError
from dask_sketch.jobs.job_file import Job, parse_job

STOLEN = """\
[job]
name = "j"
ledger = "{ledger}"
{ledger_options}
[[sources]]
path = "{path}"
{options}
[feature_map]
n_components = 2
"""

HERE = Path("folder/job.toml")


def job_of(text: str) -> Job:
    return parse_job(text, HERE)


def complaints(text: str) -> list[str]:
    """Messages of a job file that must be refused, without the path."""
    with pytest.raises(JobError) as caught:
        job_of(text)
    return [line.removeprefix(f"{HERE}: ") for line in str(caught.value).splitlines()]


@pytest.fixture(autouse=True)
def permitted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("JOB_TEST_KEY", "hunter2-from-the-environment")
    with dask.config.set({"sketch.job-secrets": {"env:JOB_TEST_KEY": ["s3://bucket"]}}):
        yield


def stolen(options: str, path: str = "s3://bucket/x.zarr") -> str:
    return STOLEN.format(ledger="l", ledger_options="", path=path, options=options)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("https://evil.example/x.zarr", 'headers = { X-A = { env = "JOB_TEST_KEY" } }'),
        ("s3://other/x.zarr", 'key = { env = "JOB_TEST_KEY" }'),
        ("s3://bucket.evil.example/x.zarr", 'key = { env = "JOB_TEST_KEY" }'),
        ("s3://bucket/x", 'key = { env = "JOB_TEST_KEY" }, endpoint_url = "https://evil.example"'),
        ("s3://bucket/x", 'key = { env = "JOB_TEST_KEY" }, client_kwargs.endpoint_url = "evil"'),
        ("s3://bucket/x", 'key = { env = "JOB_TEST_KEY" }, config.proxies = { https = "evil" }'),
        ("s3://bucket/x", 'list = [{ a = { env = "JOB_TEST_KEY" } }], other = "evil.example"'),
        ("s3://bucket/x", 'key = { env = "JOB_TEST_KEY" }, host = 2130706433'),
        ("s3://bucket/x", 'key = { env = "JOB_TEST_KEY" }, account_name = "evil"'),
    ],
)
def test_a_secret_goes_nowhere_without_permission(path: str, options: str) -> None:
    (message,) = complaints(stolen(f"storage_options = {{ {options} }}", path))
    assert message.startswith("sources[0].storage_options: ")
    assert "env:JOB_TEST_KEY to " in message
    assert "DASK_SKETCH__JOB_SECRETS" in message


@pytest.mark.parametrize("way", ["..", "%2e%2e", "%252E.", ".", "..?x=1"])
def test_paths_that_leave_the_permitted_place_are_refused(way: str) -> None:
    options = 'storage_options = { key = { env = "JOB_TEST_KEY" } }'
    (message,) = complaints(stolen(options, f"s3://bucket/{way}/other/x.zarr"))
    assert "env:JOB_TEST_KEY to " in message
    assert "without '..'" in message
    job_of(stolen(options, "s3://bucket/a..b/.x/x.zarr"))


@pytest.mark.parametrize("table", ["[score]\npath", "[outputs]\nsketch"])
def test_each_table_needs_permission(table: str) -> None:
    options = 'storage_options = { key = { env = "JOB_TEST_KEY" } }'
    more = f'\n{table} = "s3://evil/y.zarr"\n{options}\n'
    (message,) = complaints(stolen("") + more)
    assert "storage_options: may not send env:JOB_TEST_KEY to s3://evil/y.zarr" in message
    (message,) = complaints(
        STOLEN.format(ledger="s3://evil/l", ledger_options=options, path="x.zarr", options="")
    )
    assert message.startswith("job.storage_options: ")
    assert job_of(stolen("") + more.replace("evil", "bucket")).job.name == "j"


@pytest.mark.parametrize(
    "reference", ['env = "AWS_SECRET_ACCESS_KEY"', 'file = "/etc/passwd"', 'file = "../id_rsa"']
)
def test_secrets_without_permission_are_not_read(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-of-the-operator")
    (message,) = complaints(stolen(f"storage_options = {{ key = {{ {reference} }} }}"))
    assert message.startswith("sources[0].storage_options: may not use ")
    assert reference.rpartition("/")[2].strip('"').rpartition('"')[2] in message


def test_servers_get_credentials_of_the_machine_by_permission_only() -> None:
    text = stolen('storage_options = { endpoint_url = "https://minio.example", anon = false }')
    (message,) = complaints(text)
    assert "credentials of the machine to https://minio.example" in message
    with dask.config.set({"sketch.job-secrets": {"ambient": ["https://minio.example"]}}):
        assert job_of(text).sources[0].path == "s3://bucket/x.zarr"
    plain = stolen('storage_options = { anon = true, region_name = "eu-west-1", timeout = 3 }')
    assert job_of(plain).sources[0].storage_options["timeout"] == 3


@pytest.mark.parametrize("setting", ["s3://bucket", {"env:A": "s3://bucket"}, {"env:A": [3]}, None])
def test_permissions_of_another_form_are_refused(setting: object) -> None:
    with (
        dask.config.set({"sketch.job-secrets": setting}),
        pytest.raises(JobError, match="job-secrets"),
    ):
        job_of(stolen('storage_options = { key = { env = "JOB_TEST_KEY" } }'))


def test_a_scheduler_gets_secrets_by_permission_only() -> None:
    text = stolen('storage_options = { key = { env = "JOB_TEST_KEY" } }')
    text += '[cluster]\nkind = "address"\naddress = "tcp://evil:8786"\n'
    (message,) = complaints(text)
    assert message.startswith("sources[0].storage_options: ")
    assert "env:JOB_TEST_KEY to tcp://evil:8786" in message
    permitted = {"env:JOB_TEST_KEY": ["s3://bucket", "tcp://evil:8786"]}
    with dask.config.set({"sketch.job-secrets": permitted}):
        assert job_of(text).cluster.address == "tcp://evil:8786"
