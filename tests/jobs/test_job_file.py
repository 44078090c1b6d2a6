"""Job files: what is taken, and that every error names its line, and no secret."""

from __future__ import annotations

import random
import re
import resource
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_sketch.decoders import METHODS, MODELS
from dask_sketch.errors import JobError
from dask_sketch.features.distributions import LAWS
from dask_sketch.jobs.checks import Refused, pattern
from dask_sketch.jobs.job_file import MOST_BYTES, Job, parse_job, read_job
from dask_sketch.jobs.settings import DecodeTable

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
threshold = 4

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
    return [line.removeprefix(f"{HERE}:") for line in lines]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JOB_TEST_KEY", "hunter2-from-the-environment")
    return "hunter2-from-the-environment"


def test_a_whole_file(key: str) -> None:
    job = job_of(WHOLE)
    assert [source.name for source in job.sources] == ["frames", "more"]
    assert job.sources[0].chunk_size == 2**20
    assert job.sources[1].columns == ["a", "b"]
    assert job.groups is not None
    assert job.groups.pattern is not None
    assert [table.name for table in job.decode] == ["model", "centroids"]
    assert job.drift.threshold == 4.0
    assert job.cluster.settings(Path()).n_workers == 2
    assert job.limits.attempts == 5
    assert job.limits.commit_seconds == 60.0
    filled = job.options(job.sources[1].storage_options, job.sources[1].path)
    assert filled == {"anon": False, "key": key, "client_kwargs": {"region_name": "x"}}
    assert job.options(job.sources[0].storage_options, "frames.zarr") is None
    assert Path(job.place("frames.zarr")) == Path("folder/frames.zarr").absolute()
    assert job.place("s3://bucket/more") == "s3://bucket/more"
    assert key not in repr(job)


def test_what_holds_by_default() -> None:
    job = job_of(SMALL)
    assert (job.decode, job.groups, job.score) == ((), None, None)
    assert job.limits.unreadable == "stop"
    assert job.cluster.kind == "threads"
    assert job.sources[0].chunk_size == 32 * 2**20  # whatever the store's size: keys must stay


def test_the_names_are_those_of_the_library() -> None:
    assert tuple(METHODS) == DecodeTable.METHODS
    assert tuple(MODELS) == DecodeTable.MODELS
    for law in LAWS:
        assert job_of(SMALL + f'law = "{law}"\n').feature_map.law == law


def test_all_errors_come_at_once_in_order_of_lines() -> None:
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
law = "none"
[limits]
unreadable = "maybe"
retries.most = 3
[xyz]
"""
    assert complaints(text) == [
        "1: job.ledger is missing",
        '2: job.name = "": give text of 1 to 4,096 characters',
        "3: job.ledgr is unknown: did you mean ledger?",
        '6: sources[1].chunk_size = "big": give bytes, such as "32MiB"',
        "7: sources[2].path is missing",
        '8: sources[2].nan_policy = "skip": choose "raise" or "omit"',
        '10: feature_map.law = "none": choose "sparse-radius", "sparse-sums", "adapted-radius", '
        '"folded-gaussian", "gaussian" or "clustering"',
        '12: limits.unreadable = "maybe": choose "stop" or "quarantine"',
        "13: limits.retries is unknown: there are attempts, backoff, bytes, commit_partitions, "
        "commit_seconds, deleted, stale_lock, unreadable",
        "14: xyz is unknown: there are cluster, decode, drift, feature_map, groups, job, "
        "limits, outputs, score, sources",
    ]


ONE = {
    "limits.attempts = 0": "give a whole number from 1 to 100",
    "limits.attempts = true": "give a whole number from 1 to 100",
    "limits.attempts = 3.0": "give a whole number from 1 to 100",
    "limits.deleted = nan": "give a number from 0 to 1",
    "limits.deleted = 1e999": "give a number from 0 to 1",
    "limits.bytes = '-3'": "give bytes",
    "limits.bytes = '1e400GiB'": "give bytes",
    "limits.bytes = []": "give bytes",
    "drift.groups = 'yes'": "give true or false",
    "outputs.report = 'report.txt'": "ends in .html",
    "outputs.report = 's3://bucket/report.html'": "ends in .html",
    "outputs.sketch = 'sketch'": "ends in .zarr",
    "outputs.model = 'm.zarr'": "there is no [[decode]]",
    "groups = {}": 'give by = "source", or a pattern',
    "groups = { by = 'source', pattern = 'x' }": 'give by = "source", or a pattern',
    "groups.pattern = '('": "that is no regular expression",
    "groups.pattern = '(a)(b)'": "call the part that names the group",
    "groups.pattern = '(a+)+b'": "a group may not be repeated",
    "cluster.kind = 'slurm'": "n_workers: a cluster of kind",
    "cluster = { kind = 'address', address = 'host' }": "give an address",
    "cluster.address = 'tls://host:8786'": 'a cluster of kind "threads" takes no other setting',
    "cluster = { kind = 'slurm', n_workers = 2, memory_limit = '1GiB', "
    "options.job_script_prologue = ['rm -rf /'] }": "job_script_prologue may not stand in a job",
    "decode = [{ method = 'splitting' }]": "say how many with n_components",
    "decode = [{ n_components = 2, model = 'known' }]": "that needs it",
    "decode = [{ n_components = 2, covariance = [1.0] }]": 'it goes with model = "known"',
    "decode = [{ n_components = 2, method = 'density', merge = true }]": "has no use for it",
    "decode = [{ n_components = 2, method = 'density', model = 'isotropic' }]": (
        'density finds "gaussian" components or "dirac" centroids'
    ),
    "decode = [{ n_components = 2, method = 'sketch-shift', model = 'gaussian' }]": (
        "sketch-shift finds centroids"
    ),
    "decode = [{ n_components = 2, model = 'dirac', refine = 'efficient' }]": "no noise model",
    "decode = [{ n_components = 2, groups = true }]": "there is no [groups]",
    "decode = [{ n_components = 2 }, { n_components = 3 }]": "another one has it",
    "decode = { n_components = 2 }": "decode is no list of tables: write [[decode]]",
    "decode = []": "give 1 to 64 tables",
    "score = 3": "score is no table: write [score]",
    "score.path = 'reference://x'": "give a path, or a URL of",
    "score.path = 'filecache::s3://x'": "chained file systems are not taken",
    "score.path = \"a\\u0000b\"": "without control characters",
    "sources[0].path = 1": "not TOML",
    "limits = { attempts = 1": "not TOML",
}  # fmt: skip


@pytest.mark.parametrize("line", ONE)
def test_one_thing_is_wrong(line: str) -> None:
    (message,) = complaints(f"{line}\n{SMALL}")
    assert message.startswith("1: ")
    assert ONE[line] in message


def test_between_tables() -> None:
    assert complaints(SMALL + '[[sources]]\npath = "x.zarr"\n') == [
        '9: sources[2].name = "data": another one has it: give each a name of its own',
        '9: sources[2].path = "x.zarr": it is a source already, and would be counted twice',
    ] or complaints(SMALL + '[[sources]]\npath = "x.zarr"\n')[0].startswith("8: ")
    two = (
        SMALL + '[[decode]]\nn_components = 2\n[[decode]]\nname = "b"\n[outputs]\nmodel = "m.zarr"'
    )
    assert "write {name} where theirs goes" in complaints(two)[0]
    assert complaints(SMALL.replace("n_components = 2", 'file = "m.json"\nlaw = "gaussian"')) == [
        '7: feature_map.file = "m.json": it has its own settings: leave law out, or the file'
    ]
    assert complaints(SMALL.replace("n_components = 2", "")) == [
        "6: feature_map: give a file of `dask-sketch design`, or n_components"
    ]
    assert complaints("") == [
        "1: [[sources]] is missing", "1: [feature_map] is missing", "1: [job] is missing",
    ]  # fmt: skip


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
    messages = complaints(text)
    assert messages[0].startswith("6: ")
    assert "hunter2" not in "\n".join(messages)


@pytest.mark.parametrize(
    "url",
    ["ftp://me:hunter2@host/x.zarr", "https://host/x.zarr?sig=hunter2", "odd://me:hunter2@x"],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    (message,) = complaints(SMALL.replace("x.zarr", url))
    assert message.startswith("5: sources[1].path")
    assert "hunter2" not in message


def test_secrets_come_from_the_environment_or_files(tmp_path: Path) -> None:
    place = tmp_path / "job.toml"
    lines = 'path = "s3://x.zarr"\nstorage_options = { key = { env = "JOB_TEST_NONE" } }'
    place.write_text(SMALL.replace('path = "x.zarr"', lines))
    with pytest.raises(JobError, match=r":6: .*no variable JOB_TEST_NONE: set it"):
        read_job(place)
    place.write_text(place.read_text().replace('env = "JOB_TEST_NONE"', 'file = "key"'))
    with pytest.raises(JobError, match=r":6: .*key cannot be read"):
        read_job(place)
    (tmp_path / "key").write_text("hunter2-from-a-file\n")
    job = read_job(place)
    source = job.sources[0]
    assert job.options(source.storage_options, source.path) == {"key": "hunter2-from-a-file"}
    assert job.secrets.hide("error: 'hunter2-from-a-file'") == "error: '***'"
    assert "hunter2" not in repr(job)
    (tmp_path / "key").write_text("x" * 100_000)
    with pytest.raises(JobError, match="more than 65,536 bytes"):
        read_job(place)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"no job file can be read there \(FileNotFoundError"):
        read_job(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_bytes(b"\xff")
    with pytest.raises(JobError, match="UnicodeDecodeError"):
        read_job(tmp_path / "job.toml")
    with pytest.raises(JobError, match="IsADirectoryError"):
        read_job(tmp_path)
    (tmp_path / "job.toml").write_bytes(b"#" * (MOST_BYTES + 1))
    with pytest.raises(JobError, match="more than 65,536 bytes is refused"):
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
    tracemalloc.start()
    begun = time.process_time()
    try:
        messages = complaints(HUGE[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20
    assert time.process_time() - begun < 20  # not a benchmark: hours, were it not bounded
    assert len(messages) <= 51
    assert max(map(len, messages)) < 500


SLOW = [
    "(a+)+b", "(a|a)*b", "(?:a?){30}b", "a?" * 40 + "a" * 40, "(a|a)" * 30 + "b", ".*.*.*x",
    "(.*)(.*)(.*)x", r"(a)\1*", "(?=a+)b", "(?P<group>a+)(?P=group)*", "a{0,300}a{0,300}a{0,300}b",
    "[^]]*[^]]*[^]]*x", r"\)*\)*\)*", "a{1,}a{2,}a{3,}", "(?i)a", "a*?a*?a*?b", "(?>a*)b",
    "(?(1)a|b)",
]  # fmt: skip


@pytest.mark.parametrize("source", SLOW)
def test_patterns_that_could_take_long_are_refused(source: str) -> None:
    with pytest.raises(Refused):
        pattern(source)


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
    match = pattern(source).match(key)
    assert match is not None
    found = match[match.re.groupindex.get("group", 1 if match.re.groups else 0)]
    assert found == group


@settings(max_examples=300)
@given(st.text("ab.*+?|(){},[]^\\0123", max_size=24))
def test_any_pattern_that_is_taken_is_fast(source: str) -> None:
    try:
        found = pattern(source)
    except Refused:
        return
    begun = time.process_time()
    found.match("a" * 400)
    found.match("ab" * 200)
    assert time.process_time() - begun < 5


WORDS = [
    *re.findall(r"\S+", WHOLE), "\n", " ", "=", "[", "]", "{", "}", '"', "'", "#", ".", ",",
    "1e999", "nan", "-1", "true", '"""', "\x00", "é", "9" * 30,
]  # fmt: skip


@settings(max_examples=300)
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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = f"{HERE}:"
    try:
        job_of(text)
    except JobError as error:  # and no other
        message = str(error)
    assert message.startswith(f"{HERE}:")
    assert "hunter2" not in message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


def test_the_job_file_in_deploy(tmp_path: Path) -> None:
    place = Path(__file__).parents[2] / "deploy/job.toml"
    assert read_job(place).job.name == "nightly frames"
    # with all that is commented out, but for the two ways to group
    lines = [
        re.sub(r"^# (?=[\[a-z]+\]? ?(=|\]|$))", "", line) for line in place.read_text().splitlines()
    ]
    text = "\n".join(line for line in lines if not line.startswith("by ="))
    text = text.replace('"S3_KEY"', '"JOB_TEST_KEY"').replace('"/run/secrets/s3"', '"secret"')
    (tmp_path / "secret").write_text("hunter2")
    (tmp_path / "job.toml").write_text(text)
    job = read_job(tmp_path / "job.toml")
    assert job.score is not None
    assert job.groups is not None
    assert job.limits.bytes == 2**40


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_damaged_files() -> None:
    draw = random.Random(20180701)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused, slowest = 0, 0.0
    for _ in range(100_000):
        text = WHOLE
        for _ in range(draw.randint(1, 3)):
            start = draw.randrange(len(text) + 1)
            words = draw.choices(WORDS, k=draw.randint(0, 3))
            if draw.random() < 0.2:  # now and then a great many
                words *= draw.randint(1, 300)
            end = start + draw.randint(0, 40)
            text = text[:start] + draw.choice(["", " "]).join(words) + text[end:]
        begun = time.process_time()
        try:
            job_of(text)
        except JobError:  # and no other
            refused += 1
        slowest = max(slowest, time.process_time() - begun)
    assert 50_000 < refused < 100_000
    assert slowest < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024
