"""Job files: valid ones, errors with the path of the key, and no secret in any of them."""

from __future__ import annotations

import os
import re
import traceback
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import dask.config
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_sketch.errors import JobError
from dask_sketch.jobs.job_file import MAX_BYTES, MAX_ERRORS, Job, parse_job, read_job
from dask_sketch.jobs.job_keys import GroupsTable

WHOLE = """\
[job]
name = "nightly frames"
ledger = "nightly.ledger"
seed = 3

[[sources]]
name = "frames"
path = "frames.zarr"
chunk_size = "1MiB"

[[sources]]
name = "more"
path = "s3://bucket/more"
columns = ["a", "b"]
weights = "w"
nan_policy = "omit"
fingerprint = "checksum"
storage_options = { anon = false, key = { env = "JOB_TEST_KEY" }, client_kwargs.region_name = "x" }

[feature_map]
n_components = 8

[groups]
pattern = 'frames/(\\d{4}-\\d{2})'

[[decode]]
n_components = 8
method = "splitting"
groups = true

[[decode]]
name = "centroids"
n_components = 8
model = "dirac"

[score]
path = "heldout.zarr"

[drift]
false_alarms_per_year = 4
window = "7 days"

[outputs]
report = "report.html"
model = "{name}.zarr"

[cluster]
kind = "local"
n_workers = 2
memory_limit = "1GiB"

[limits]
unreadable = "quarantine"
attempts = 5
"""
SMALL = """\
[job]
name = "j"
ledger = "l"
[[sources]]
path = "x.zarr"
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
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{HERE}:") for line in lines)
    return [line.removeprefix(f"{HERE}: ") for line in lines]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("JOB_TEST_KEY", "hunter2-from-the-environment")
    permitted = {"env:JOB_TEST_KEY": ["s3://bucket"], "env:JOB_TEST_NONE": ["s3://x.zarr"]}
    with dask.config.set({"sketch.job-secrets": permitted}):
        yield "hunter2-from-the-environment"


def test_a_whole_file(key: str) -> None:
    job = job_of(WHOLE)
    assert [source.name for source in job.sources] == ["frames", "more"]
    assert (job.sources[0].chunk_size, job.sources[1].columns) == (2**20, ["a", "b"])
    assert job.groups is not None
    assert job.groups.pattern is not None
    assert [table.name for table in job.decode] == ["model", "centroids"]
    assert job.drift.level == 4.0 / 365
    limits = job.limits
    assert (job.cluster.n_workers, limits.attempts, limits.commit_seconds) == (2, 5, 60.0)
    filled = job.options(job.sources[1].storage_options, job.sources[1].path)
    assert filled == {"anon": False, "key": key, "client_kwargs": {"region_name": "x"}}
    assert job.options(job.sources[0].storage_options, "frames.zarr") is None
    for place in ("frames.zarr", "missing/../frames.zarr"):
        assert Path(job.resolve(place)) == Path("folder/frames.zarr").absolute()
    assert job.resolve("s3://bucket/more") == "s3://bucket/more"
    assert key not in repr(job)


def test_what_holds_by_default() -> None:
    job = job_of(SMALL)
    assert (job.decode, job.groups, job.score) == ((), None, None)
    assert job.limits.unreadable == "stop"
    assert job.cluster.kind == "threads"
    assert job.sources[0].chunk_size == 32 * 2**20  # whatever the store's size: keys must stay


def test_all_errors_come_at_once() -> None:
    text = """\
[job]
name = ""
ledgr = "x"
[[sources]]
path = "a.zarr"
chunk_size = "big"
[[sources]]
nan_policy = "skip"
[feature_map]
distribution = "none"
[limits]
unreadable = "maybe"
retries.most = 3
[xyz]
"""
    keys = [re.split(": | = ", message)[0] for message in complaints(text)]
    assert keys == [
        "job.name", "job.ledger", "job.ledgr", "sources[0].chunk_size", "sources[1].path",
        "sources[1].nan_policy", "feature_map.distribution", "limits.unreadable",
        "limits.retries", "xyz",
    ]  # fmt: skip


# each with the key, the value and what the remedy names
ONE = {
    "limits.attempts = 0": ("limits.attempts = 0:", "1"),
    "limits.attempts = true": ("limits.attempts = true:", "integer"),
    "limits.attempts = 3.0": ("limits.attempts = 3.0:", "integer"),
    "limits.deleted = nan": ("limits.deleted = NaN:", "finite"),
    "limits.deleted = 1.5": ("limits.deleted = 1.5:", "1"),
    "limits.bytes = '-3'": ('limits.bytes = "-3":', "32MiB"),
    "limits.bytes = '1e400GiB'": ('limits.bytes = "1e400GiB":', "32MiB"),
    "limits.bytes = []": ("limits.bytes = [...]:", "32MiB"),
    "limits.rows = 3": ("limits.rows = 3:", "[0, 100]"),
    "limits.rows = [3]": ("limits.rows", "required"),
    "limits.rows = [3, 2]": ("limits.rows = [...]:", "lowest"),
    "limits.rows = [-3, 2]": ("limits.rows[0] = -3:", "0"),
    "limits.rows = [0.5, 2]": ("limits.rows[0] = 0.5:", "integer"),
    "limits.range = 0": ("limits.range = 0:", "above 0"),
    "limits.attempt = 3": ("limits.attempt:", "attempts"),
    "limit.attempts = 3": ("limit:", "limits"),
    "drift.groups = 'yes'": ('drift.groups = "yes":', "boolean"),
    "drift.threshold = 5.0": ("drift.threshold:", "false_alarms_per_year"),
    "drift.false_alarms_per_year = 200": ("drift.false_alarms_per_year = 200", "runs_per_year"),
    "drift.window = 0": ("drift.window = 0:", "7 days"),
    "drift.serial = true": ("drift.unit", "serial"),
    "outputs.report = 'report.txt'": ('outputs.report = "report.txt":', ".html"),
    "outputs.report = 's3://b/r.html'": ('outputs.report = "s3://b/r.html":', ".html"),
    "outputs.sketch = 'sketch'": ('outputs.sketch = "sketch":', ".zarr"),
    "outputs.model = 'm.zarr'": ('outputs.model = "m.zarr":', "[[decode]]"),
    "groups = {}": ("groups.pattern:", "by"),
    "groups = { by = 'source', pattern = 'x' }": ('groups.pattern = "x":', "by"),
    "groups.pattern = '('": ('groups.pattern = "(":', "regular expression"),
    "groups.pattern = '(a)(b)'": ('groups.pattern = "(a)(b)":', "(?P<group>...)"),
    "cluster = 3": ("cluster = 3:", "[cluster]"),
    "cluster.worker = 3": ("cluster.worker:", "n_workers"),
    "cluster.kind = 'slurm'": ("cluster.n_workers:", '"slurm"'),
    "cluster = { kind = 'address', address = 'host' }": ('cluster.address = "host":', "tls://"),
    "cluster.tls = true": ("cluster.tls = true:", "folder"),
    "cluster.address = 'tls://host:8786'": ('cluster.address = "tls://host:8786":', '"threads"'),
    "cluster = { kind = 'slurm', n_workers = 2, memory_limit = '1GiB', "
    "options.job_script_prologue = ['rm -rf /'] }": ("cluster.options:", "job_script_prologue"),
    "decode = [{ method = 'splitting' }]": ('decode[0].method = "splitting":', "n_components"),
    "decode = [{ n_components = 2, model = 'known' }]": ("decode[0].covariance:", '"known"'),
    "decode = [{ n_components = 2, covariance = [1.0] }]": (
        "decode[0].covariance = [...]:", '"known"',
    ),
    "decode = [{ n_components = 2, method = 'density', merge = true }]": (
        "decode[0].merge = true:", "density",
    ),
    "decode = [{ n_components = 2, method = 'density', model = 'isotropic' }]": (
        'decode[0].model = "isotropic":', "density",
    ),
    "decode = [{ n_components = 2, method = 'sketch-shift', model = 'gaussian' }]": (
        'decode[0].model = "gaussian":', "sketch-shift",
    ),
    "decode = [{ n_components = 2, model = 'dirac', refine = 'efficient' }]": (
        'decode[0].refine = "efficient":', "leave it out",
    ),
    "decode = [{ n_components = 2, groups = true }]": ("decode[0].groups = true:", "[groups]"),
    "decode = [{ n_components = 2 }, { n_components = 3 }]": ('decode[1].name = "model":', "name"),
    "decode = [{ n_components = 0 }]": ("decode[0].n_components = 0:", "1, or 'auto'"),
    "decode = [{ n_components = 'Auto' }]": ('decode[0].n_components = "Auto":', "or 'auto'"),
    "decode = { n_components = 2 }": ("decode = {...}:", "[[decode]]"),
    "decode = []": ("decode = [...]:", "at least 1"),
    "score = 3": ("score = 3:", "table"),
    "score.path = 'x.zarr'": ('score.path = "x.zarr":', "is a source"),
    "score.path = 'reference://x'": ('score.path = "reference://x":', "s3"),
    "score.path = 'filecache::s3://x'": ('score.path = "filecache::s3://x":', "chained"),
    'score.path = "a\\u0000b"': ('score.path = "a\\u0000b":', "control characters"),
    f"limits.attempts = 0x{'f' * 6000}": ("limits.attempts:", "64 bits"),
    f"limits.rows = [0, 0b{'1' * 64}]": ("limits.rows[1]:", "64 bits"),
    'outputs.storage_options = { anon = "a\\u0000b" }': ("outputs.storage_options:", "control"),
    'outputs.storage_options = { key = { env = "a\\u0000b" } }': (
        "outputs.storage_options:", "control characters",
    ),
    "sources[0].path = 1": ("not TOML:", "line 1"),
    "limits = { attempts = 1": ("not TOML:", "line 1"),
}  # fmt: skip


@pytest.mark.parametrize("line", ONE)
def test_one_thing_is_wrong(line: str) -> None:
    (message,) = complaints(f"{line}\n{SMALL}")
    start, remedy = ONE[line]
    assert message.startswith(start)
    assert remedy in message.removeprefix(start)


def test_between_tables() -> None:
    name, path = complaints(SMALL + '[[sources]]\npath = "x.zarr"\n')
    assert name.startswith('sources[1].name = "data":')
    assert path.startswith('sources[1].path = "x.zarr":')
    two = (
        SMALL + '[[decode]]\nn_components = 2\n[[decode]]\nname = "b"\n[outputs]\nmodel = "m.zarr"'
    )
    (message,) = complaints(two)
    assert message.startswith('outputs.model = "m.zarr":')
    assert "{name}" in message
    (message,) = complaints(
        SMALL.replace("n_components = 2", 'file = "m.json"\ndistribution = "gaussian"')
    )
    assert message.startswith('feature_map.file = "m.json":')
    (message,) = complaints(SMALL.replace("n_components = 2", ""))
    assert message.startswith("feature_map.n_components:")
    missing = [message.partition(":")[0] for message in complaints("")]
    assert missing == ["job", "sources", "feature_map"]


SECRETS = [
    'storage_options = { secret = "hunter2" }',
    'storage_options = { key = "hunter2", secret = { env = "X" } }',
    'storage_options = { client_kwargs.aws_session_token = "hunter2" }',
    'storage_options = { client_kwargs = { headers = { Authorization = "Bearer hunter2" } } }',
    'storage_options = { list = [{ password = "hunter2" }] }',
    'storage_options = { endpoint_url = "https://me:hunter2@host/" }',
    'storage_options = { account_key = { value = "hunter2" } }',
    'storage_options = { connection_string = "AccountKey=hunter2" }',
    'storage_options = "hunter2"',
    'storage_option = { secret = "hunter2" }',
    'secret = "hunter2"',
    'name = { secret = "hunter2" }',
    'columns = [{ secret = "hunter2" }]',
    'array = "https://me:hunter2@host/\\u0001"',
]


@pytest.mark.parametrize("line", SECRETS)
def test_a_secret_in_clear_text_is_refused_and_not_repeated(line: str) -> None:
    text = SMALL.replace('path = "x.zarr"', f'path = "x.zarr"\n{line}')
    with pytest.raises(JobError) as caught:
        job_of(text)
    # the traceback too, which `--debug` prints
    printed = "".join(traceback.format_exception(caught.value))
    assert "sources[0]." in str(caught.value)
    assert "hunter2" not in printed


@pytest.mark.parametrize(
    "url",
    ["ftp://me:hunter2@host/x.zarr", "https://host/x.zarr?sig=hunter2", "odd://me:hunter2@x"],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    (message,) = complaints(SMALL.replace("x.zarr", url))
    assert message.startswith("sources[0].path")
    assert "hunter2" not in message


def test_secrets_come_from_the_environment_or_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "job.toml"
    lines = 'path = "s3://x.zarr"\nstorage_options = { key = { env = "JOB_TEST_NONE" } }'
    place.write_text(SMALL.replace('path = "x.zarr"', lines))
    with pytest.raises(JobError, match=r"sources\[0\].storage_options: .*JOB_TEST_NONE"):
        read_job(place)
    place.write_text(place.read_text().replace('env = "JOB_TEST_NONE"', 'file = "key"'))
    with pytest.raises(JobError, match=r"sources\[0\].storage_options: .*key"):
        read_job(place)
    (tmp_path / "key").write_text("hunter2-from-a-file\n")
    monkeypatch.setitem(
        dask.config.get("sketch.job-secrets"), f"file:{tmp_path}/key", ["s3://x.zarr"]
    )
    job = read_job(place)
    source = job.sources[0]
    assert job.options(source.storage_options, source.path) == {"key": "hunter2-from-a-file"}
    assert job.secrets.hide("error: 'hunter2-from-a-file'") == "error: '***'"
    assert "hunter2" not in repr(job)
    (tmp_path / "key").write_text("x" * 100_000)
    with pytest.raises(JobError, match="65,536"):
        read_job(place)
    (tmp_path / "key").unlink()
    os.mkfifo(tmp_path / "key")  # without a writer, so that a reader would wait for ever
    with pytest.raises(JobError, match="not a regular file"):
        read_job(place)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="FileNotFoundError"):
        read_job(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_bytes(b"\xff")
    with pytest.raises(JobError, match="UnicodeDecodeError"):
        read_job(tmp_path / "job.toml")
    with pytest.raises(JobError, match="IsADirectoryError"):
        read_job(tmp_path)
    for name in ("a\0b.toml", "\ud800.toml"):
        with pytest.raises(JobError, match=r"\.toml: .*Error"):
            read_job(name)
    (tmp_path / "job.toml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(JobError, match="65,536"):
        read_job(tmp_path / "job.toml")


HUGE = {
    "dotted keys": "a." * 30_000 + "a = 1",
    "dotted heads": "[" + "a." * 30_000 + "a]",
    "nested arrays": "a = " + "[" * 30_000 + "]" * 30_000,
    "nested tables": "a = " + "{b=" * 15_000 + "1" + "}" * 15_000,
    "digits": "a = " + "9" * 60_000,
    "tables": "[[sources]]\n" * 5000,
    "unknown keys": "".join(f"k{i} = 1\n" for i in range(6000)),
    "no end": 'a = "' + "x" * 60_000,
    "a long key": "a" * 60_000 + " = 1",
    "a long pattern": "[groups]\npattern = '" + "(a|b)" * 12_000 + "'",
    "quotes": 'a = """' + '\\"' * 30_000 + '"""',
    "commas": "a = [" + "1," * 30_000 + "]",
    "a long line of dots over many": ("a." * 90 + "a = 1\n") * 300,
}


@pytest.mark.parametrize("name", HUGE)
def test_sizes_are_bounded(name: str) -> None:
    # the time limit of the tests is a bound too: some of these would take hours
    tracemalloc.start()
    try:
        messages = complaints(HUGE[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20
    assert len(messages) <= MAX_ERRORS + 1
    assert max(map(len, messages)) < 500


SLOW = [
    "(a+)+b", "(?:a?){30}b", "a?" * 40 + "a" * 40, "(a|a)" * 30 + "b", ".*.*.*x",
    "(.*)(.*)(.*)x", r"(a)\1*", "(?=a+)b", "(?P<group>a+)(?P=group)*", "a{0,300}a{0,300}a{0,300}b",
    "[^]]*[^]]*[^]]*x", r"\)*\)*\)*", "a{1,}a{2,}a{3,}", "(?i)a", "a*?a*?a*?b", "(?>a*)b",
    "(?(1)a|b)",
]  # fmt: skip


@pytest.mark.parametrize("source", SLOW)
def test_patterns_that_could_take_long_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"input_value={source!r}"[:20])):
        GroupsTable(pattern=source)


@pytest.mark.parametrize(
    ("source", "key", "group"),
    [
        (r"frames/(\d{4}-\d{2}-\d{2})/[^/]*", "frames/2026-11-21/x.parquet", "2026-11-21"),
        (r"(?P<group>[^/]+)/(?:a|b)", "speaker/a", "speaker"),
        (r"[\])(*+?|]?part-\d+", "part-7", "part-7"),
        (r"(a|b)c?\*\+", "ac*+", "a"),
    ],
)
def test_patterns_of_groups(source: str, key: str, group: str) -> None:
    pattern = GroupsTable(pattern=source).pattern
    assert pattern is not None
    match = pattern.match(key)
    assert match is not None
    found = match[match.re.groupindex.get("group", 1 if match.re.groups else 0)]
    assert found == group


@settings(max_examples=100)
@given(st.text("ab.*+?|(){},[]^\\0123", max_size=24))
def test_any_pattern_that_is_taken_is_fast(source: str) -> None:
    try:
        pattern = GroupsTable(pattern=source).pattern
    except ValueError:
        return
    assert pattern is not None
    # a pattern that tries exponentially many ways runs into the time limit of the tests
    pattern.match("a" * 400)
    pattern.match("ab" * 200)


WORDS = [
    *re.findall(r"\S+", WHOLE), "\n", " ", "=", "[", "]", "{", "}", '"', "'", "#", ".", ",",
    "1e999", "nan", "-1", "true", '"""', "\x00", "é", "9" * 30,
]  # fmt: skip


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 12), st.lists(st.sampled_from(WORDS))),
        max_size=4,
    )
)
def test_any_damage_is_an_error_of_ours(cuts: list[tuple[int, int, list[str]]]) -> None:
    text = WHOLE
    for start, length, words in cuts:
        start %= len(text) + 1
        text = text[:start] + " ".join(words) + text[start + length :]
    message = f"{HERE}:"
    try:
        job_of(text)
    except JobError as error:  # and no other
        message = str(error)
    assert message.startswith(f"{HERE}:")
    assert "hunter2" not in message


def test_the_job_file_in_deploy(tmp_path: Path) -> None:
    place = Path(__file__).parents[2] / "deploy/job.toml"
    assert read_job(place).job.name == "nightly frames"
    # with all that is commented out, but for the two ways to group, and components
    lines = [
        re.sub(r"^# (?=[\[a-z]+\]? ?(=|\]|$))", "", line) for line in place.read_text().splitlines()
    ]
    text = "\n".join(line for line in lines if not line.startswith(("by =", "task =")))
    text = text.replace('"S3_KEY"', '"JOB_TEST_KEY"').replace('"/run/secrets/s3"', '"secret"')
    (tmp_path / "secret").write_text("hunter2")
    (tmp_path / "job.toml").write_text(text)
    job = read_job(tmp_path / "job.toml")
    assert job.score is not None
    assert job.groups is not None
    assert job.limits.bytes == 2**40
