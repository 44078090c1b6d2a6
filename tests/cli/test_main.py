"""The command line: answers, exit codes and messages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from cli.commands import answer, call, refusal

import dask_sketch as ds

COMMANDS = (
    "certificates", "demo", "plan", "design", "sketch", "merge", "decode", "score", "diagnose",
    "info", "privatise", "learn", "predict",
)  # fmt: skip


def test_from_store_to_score(data: str, here: Path, short_calibration: None) -> None:
    designed = answer("design", data, "-k", 2, "-o", "map.json")
    assert designed["n_frequencies"] == 50
    planned = answer("plan", data, "--map", "map.json")
    assert (planned["passes"], planned["n_samples"]) == (1, 6000)
    measured = answer("plan", data, "--map", "map.json", "--calibrate")
    assert measured["calibration"]["pairs_per_second"] > 1e3
    assert measured["estimate"]["bottleneck"] in ("kernel", "read", "scheduler", "chunks")
    assert planned["estimate"] is None
    sketched = answer("sketch", data, "--map", "map.json", "-o", "sketch.zarr")
    assert (sketched["count"], sketched["omitted"]) == (6000, 0)
    decoded = answer("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr")
    assert np.sort(np.array(decoded["means"])[:, 0]) == pytest.approx([-5, 5], abs=0.3)
    scored = answer("score", data, "model.zarr")
    model = ds.open(here / "model.zarr")
    assert scored["score"] == pytest.approx(model.score(np.asarray(zarr.open(data)[:])))


@pytest.mark.slow
def test_tables_for_people(data: str, here: Path) -> None:
    assert "scale" in call("design", data, "-k", 2, "-o", "map.json").stdout
    assert "tasks" in call("plan", data, "--map", "map.json").stdout
    assert "6,000" in call("sketch", data, "--map", "map.json", "-o", "sketch.zarr").stdout
    assert "cost" in call("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr").stdout
    assert "nats" in call("score", data, "model.zarr").stdout


@pytest.mark.slow
def test_sketch_designs_on_the_fly_as_design_does(data: str, here: Path) -> None:
    answer("design", data, "-k", 2, "-o", "map.json")
    one = answer("sketch", data, "-k", 2, "-o", "one.zarr")
    other = answer("sketch", data, "--map", "map.json", "-o", "other.zarr")
    assert one["feature_map"] == other["feature_map"]


def test_the_task_sets_size_and_distribution(data: str, here: Path) -> None:
    clustering = ("-k", 2, "--task", "clustering")
    made = answer("sketch", data, *clustering, "-o", "sketch.zarr")["feature_map"]
    assert (made["distribution"], made["n_frequencies"]) == ("gaussian", 30)
    planned = [answer("plan", data, *size)["sketch_bytes"] for size in (("-k", 2), clustering)]
    assert planned[0] - planned[1] == 32 * (50 - 30)  # two numbers of two words each


def test_the_covariance_type_sets_the_size(data: str, here: Path) -> None:
    full = ("-k", 2, "--covariance-type", "full")
    assert answer("design", data, *full, "-o", "map.json")["n_frequencies"] == 60
    made = answer("sketch", data, *full, "-o", "sketch.zarr")["feature_map"]
    assert made["n_frequencies"] == 60
    planned = [answer("plan", data, *size)["sketch_bytes"] for size in (("-k", 2), full)]
    assert planned[1] - planned[0] == 32 * (60 - 50)


@pytest.mark.slow
def test_merge_adds(data: str, here: Path) -> None:
    answer("sketch", data, "-k", 2, "-o", "one.zarr")
    shutil.copytree("one.zarr", "two.zarr")
    merged = answer("merge", "one.zarr", "two.zarr", "-o", "both.zarr")
    assert (merged["sketches"], merged["count"]) == (2, 12_000)
    assert ds.open("both.zarr").count == 12_000


@pytest.mark.slow
def test_info_knows_everything(data: str, here: Path) -> None:
    answer("design", data, "-k", 2, "-o", "map.json")
    answer("sketch", data, "--map", "map.json", "-o", "sketch.zarr")
    made = answer("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr")
    answer("decode", "sketch.zarr", "-k", 2, "--model", "dirac", "-o", "points.zarr")
    kinds = {
        "map.json": "feature map",
        "sketch.zarr": "sketch",
        "model.zarr": "mixture",
        "points.zarr": "centroids",
        data: "data",
    }
    found = {path: answer("info", path) for path in kinds}
    assert {path: fields["kind"] for path, fields in found.items()} == kinds
    assert found["model.zarr"] | {"output": "model.zarr"} == made
    assert found[data]["n_samples"] == 6000
    assert found["sketch.zarr"]["feature_map"]["digest"] == found["map.json"]["digest"]
    for path, fields in found.items():
        assert str(fields["kind"]) in call("info", path).stdout


def test_parquet_columns_and_weights(here: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(300, 3)), columns=["a", "b", "c"])
    frame["w"] = 2.0
    frame.to_parquet("rows.parquet")
    weighted = answer(
        "sketch", "rows.parquet", "-m", 20, "-o", "one.zarr", "--columns", "a,b", "--weights", "w"
    )
    assert (weighted["count"], weighted["total_weight"]) == (300, 600.0)
    repeated = answer(
        "sketch", "rows.parquet", "-m", 20, "-o", "two.zarr", "--columns", "a", "--columns", "b"
    )
    assert repeated["feature_map"]["n_features"] == 2


def test_columns_are_those_of_the_feature_map_and_of_the_model(here: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 2)), columns=["b", "a"])
    frame.assign(text="x").to_parquet("rows.parquet")
    answer("design", "rows.parquet", "-k", 1, "--columns", "a,b", "-o", "map.json")
    made = answer("sketch", "rows.parquet", "--map", "map.json", "-o", "sketch.zarr")
    assert made["count"] == 300
    assert answer("plan", "rows.parquet", "--map", "map.json")["n_chunks"] == 1
    answer("decode", "sketch.zarr", "-k", 1, "-o", "model.zarr")
    model = ds.open("model.zarr")
    scored = answer("score", "rows.parquet", "model.zarr")["score"]
    assert scored == pytest.approx(model.score(frame[["a", "b"]]))
    answer("polish", "model.zarr", "rows.parquet", "--passes", 1, "-o", "better.zarr")
    error = refusal(1, "score", "rows.parquet", "model.zarr", "--columns", "b,a")
    assert "'b'" in error


def test_sketches_of_groups(here: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(300, 2)), columns=["a", "b"])
    frame["speaker"] = np.repeat(["ann", "bob", "eve"], 100)
    frame.to_parquet("rows.parquet")
    made = answer("sketch", "rows.parquet", "-k", 1, "--by", "speaker", "-o", "groups.zarr")
    assert (made["kind"], made["dim"], made["n_groups"]) == ("sketches of groups", "speaker", 3)
    assert made["feature_map"]["n_features"] == 2
    found = ds.open("groups.zarr")
    assert list(found) == ["ann", "bob", "eve"]
    frame[["a", "b"]][:100].to_parquet("ann.parquet")
    answer("design", "rows.parquet", "-k", 1, "--by", "speaker", "-o", "map.json")
    alone = answer("sketch", "ann.parquet", "--map", "map.json", "-o", "ann.zarr", "--sample", 0)
    assert alone["count"] == 100
    assert ds.open("ann.zarr").identical(found["ann"])
    assert answer("info", "groups.zarr")["count"] == 300
    assert "n_groups       3" in call("info", "groups.zarr").stdout
    shutil.copytree("groups.zarr", "copy.zarr")
    twice = answer("merge", "groups.zarr", "copy.zarr", "-o", "twice.zarr")
    assert (twice["n_groups"], twice["count"]) == (3, 600)
    assert "SketchGroup" in refusal(1, "merge", "groups.zarr", "ann.zarr", "-o", "none.zarr")
    for path, *named in (("groups.zarr", "--group", "ann"), ("ann.zarr",)):
        answer("decode", path, *named, "-k", 1, "-o", f"model-of-{path}")
        answer("diagnose", f"model-of-{path}", path, *named)
        answer("privatise", path, *named, "-o", f"release-of-{path}", "--epsilon", 1, "--seed", 1)
    both = (ds.open(f"model-of-{path}") for path in ("groups.zarr", "ann.zarr"))
    np.testing.assert_array_equal(*(model.means for model in both))
    none = ("decode", "groups.zarr", "-k", 1, "-o", "none.zarr")
    assert "ann, bob, eve" in refusal(1, *none)
    assert "group='kim'" in refusal(1, *none, "--group", "kim")
    alone = ("decode", "ann.zarr", "-k", 1, "-o", "none.zarr", "--group", "ann")
    assert "group='ann'" in refusal(1, *alone)
    planned = answer("plan", "rows.parquet", "-k", 1, "--by", "speaker")
    assert (planned["groups"], planned["n_groups"]) == ("speaker", None)


def test_nan_policy(here: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2))
    rows[7, 1] = np.nan
    zarr.save("holes.zarr", rows)
    answer("design", "holes.zarr", "-k", 1, "-o", "map.json")
    common = ("sketch", "holes.zarr", "--map", "map.json", "-o", "sketch.zarr")
    message = refusal(1, *common)
    assert "row 7" in message
    assert message.endswith("(option --nan-policy)")
    assert answer(*common, "--nan-policy", "omit")["omitted"] == 1
    planned = [
        answer("plan", "holes.zarr", "-k", 1, "--nan-policy", policy)["sketch_bytes"]
        for policy in ("omit", "available")
    ]
    assert planned[0] < planned[1]


def test_parts_at_other_positions_choose_other_rows(here: Path) -> None:
    zarr.save("rows.zarr", np.arange(2000.0)[:, None])
    answer("design", "rows.zarr", "-k", 1, "-o", "map.json")
    common = ("sketch", "rows.zarr", "--map", "map.json", "--sample", 100)
    chosen = []
    for position in (0, 2000):
        answer(*common, "-o", f"{position}.zarr", "--position", position)
        chosen.append(set(ds.open(f"{position}.zarr").sample.rows.ravel()))
    assert len(chosen[0] & chosen[1]) < 20


@pytest.mark.slow
def test_nothing_is_replaced_unasked(data: str, here: Path) -> None:
    common = ("design", data, "-k", 2, "-o", "map.json")
    answer(*common)
    assert "map.json exists" in refusal(1, *common)
    answer(*common, "--overwrite")
    common = ("sketch", data, "--map", "map.json", "-o", "sketch.zarr")
    answer(*common)
    message = refusal(1, *common)
    assert "sketch.zarr exists" in message
    assert message.endswith("(option --overwrite)")
    answer(*common, "--overwrite")


def test_inputs_are_never_replaced(here: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2))
    pd.DataFrame(rows, columns=["a", "b"]).to_csv(here / "x.csv", index=False)
    before = (here / "x.csv").read_bytes()
    for output in ("x.csv", f"{here}/./x.csv"):
        message = refusal(1, "design", "x.csv", "-k", 1, "-o", output, "--overwrite")
        assert f"{output} is an input" in message
    assert (here / "x.csv").read_bytes() == before


def test_files_of_other_kinds_are_never_replaced(data: str, here: Path) -> None:
    answer("design", data, "-k", 2, "-o", "map.json")
    answer("sketch", data, "--map", "map.json", "-o", "s.zarr")
    answer("decode", "s.zarr", "-k", 2, "-o", "m.zarr")
    np.save("y.npy", np.ones(3))
    (here / "key.pem").write_text("-----BEGIN PRIVATE KEY-----")
    for path in ("y.npy", "key.pem"):
        before = Path(path).read_bytes()
        for command in (["design", data, "-k", 2], ["predict", "m.zarr", data]):
            assert f"{path}' exists" in refusal(1, *command, "-o", path, "--overwrite")
        assert Path(path).read_bytes() == before
    answer("predict", "m.zarr", data, "-o", "p.csv")
    answer("predict", "m.zarr", data, "-o", "p.csv", "--overwrite")


def test_sketches_are_added_once(data: str, here: Path) -> None:
    answer("sketch", data, "-k", 2, "-o", "s.zarr")
    for again in ("s.zarr", "./s.zarr/", f"{here}/s.zarr"):
        message = refusal(1, "merge", "s.zarr", again, "-o", "t.zarr")
        assert "given more than once" in message
    assert not Path("t.zarr").exists()


@pytest.mark.parametrize("path", ["x.csv", "x-*.csv", "x.parquet"])
def test_columns_are_those_of_the_map(here: Path, path: str) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2))
    frame = pd.DataFrame(rows, columns=["a", "b"])
    frame.to_csv("small.csv", index=False)
    answer("design", "small.csv", "-k", 1, "-o", "map.json")
    answer("sketch", "small.csv", "--map", "map.json", "-o", "s.zarr")
    wide = frame.assign(text="u", other=1.0)[["text", "b", "other", "a"]]
    if path.endswith(".parquet"):
        wide.to_parquet(path)
    else:
        wide.to_csv(path.replace("*", "0"), index=False)
    answer("sketch", path, "--map", "map.json", "-o", "t.zarr")
    np.testing.assert_array_equal(ds.open("s.zarr").z, ds.open("t.zarr").z)


def test_refused_by_the_plan(data: str, here: Path) -> None:
    message = refusal(3, "plan", data, "-k", 2, "--memory-per-thread", "1kB")
    assert "0.98 kiB" in message
    assert "kiB of memory" in message
    with dask.config.set({"sketch.memory-share": 1e-9}):
        refusal(3, "sketch", data, "-k", 2, "-o", "sketch.zarr")
    assert not (here / "sketch.zarr").exists()


@pytest.mark.parametrize("task", ["mixture", "clustering", "comparison"])
def test_the_planned_map_has_the_size_of_the_designed_one(data: str, here: Path, task: str) -> None:
    planned = answer("plan", data, "-k", 2, "--task", task)
    answer("design", data, "-k", 2, "--task", task, "-o", f"{task}.json")
    assert planned["n_frequencies"] == ds.open(f"{task}.json").n_frequencies


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sketch", "nowhere.zarr", "-k", "2", "-o", "out.zarr"), "nowhere.zarr"),
        (("plan", "nowhere", "-k", "2"), "nowhere"),
        (("decode", "nowhere.zarr", "-k", "2", "-o", "out.zarr"), "nowhere.zarr"),
        (("merge", "nowhere.zarr", "-o", "out.zarr"), "nowhere.zarr"),
        (("score", "nowhere.zarr", "model.zarr"), "model.zarr"),
        (("info", "nowhere"), "nowhere"),
        (("info", "nowhere.json"), "nowhere.json"),
        (("plan", "nowhere.zarr", "--map", "absent.json"), "absent.json"),
    ],
)
def test_missing_input_is_one_clear_line(arguments: tuple[str, ...], said: str, here: Path) -> None:
    assert said in refusal(1, *arguments)


def test_other_bad_input(data: str, here: Path) -> None:
    (here / "bad.json").write_text("{}")
    assert "bad.json" in refusal(1, "plan", data, "--map", "bad.json")
    assert "absent.json" in refusal(1, "plan", data, "--map", "absent.json")
    answer("sketch", data, "-k", 2, "-o", "a.zarr")
    answer("sketch", data, "-k", 2, "-o", "b.zarr", "--seed", 1)
    assert "differ in seed: 0 and 1" in refusal(1, "merge", "a.zarr", "b.zarr", "-o", "c.zarr")
    assert "n_components=900" in refusal(1, "decode", "a.zarr", "-k", 900, "-o", "m.zarr")
    assert "is not a gaussian mixture" in refusal(1, "score", data, "a.zarr")
    message = refusal(1, "plan", data, "-k", 2, "--chunk-size", "much")
    assert message.startswith("error: chunk_size='much': ")
    assert message.endswith("(option --chunk-size)")


@pytest.mark.parametrize(
    "arguments",
    [
        ("sketch", "data.zarr", "-o", "out.zarr"),
        ("sketch", "data.zarr", "-k", "2"),
        ("sketch", "data.zarr", "-k", "2", "--map", "map.json", "-o", "out.zarr"),
        ("plan", "data.zarr"),
        ("design", "data.zarr", "-o", "map.json"),
        ("decode", "sketch.zarr", "-k", "0", "-o", "out.zarr"),
        ("decode", "sketch.zarr", "-k", "2", "-o", "out.zarr", "--method", "magic"),
        ("decode", "sketch.zarr", "-k", "2", "-o", "out.zarr", "--model", "magic"),
        ("decode", "sketch.zarr", "-k", "2", "-o", "out.zarr", "--refine", "magic"),
        ("decode", "sketch.zarr", "-k", "2", "-o", "out.zarr", "--bounds", "1,2"),
        ("decode", "sketch.zarr", "-k", "2", "-o", "out.zarr", "--covariance", "1,a"),
        ("decode", "sketch.zarr", "-k", "2", "-o", "out.zarr", "--covariance", ""),
        ("diagnose", "model.zarr"),
        ("design", "data.zarr", "-k", "2", "-o", "map.json", "--task", "magic"),
        ("sketch", "data.zarr", "--map", "map.json", "--task", "mixture", "-o", "out.zarr"),
        ("plan", "data.zarr", "--map", "map.json", "--covariance-type", "full"),
        ("merge", "-o", "out.zarr"),
        ("plan", "data.zarr", "-k", "2", "--storage-options", "nonsense"),
        ("plan", "data.zarr", "-k", "2", "--storage-options", "[1]"),
        ("plan", "data.zarr", "-k", "2", "--workers", "2", "--scheduler", "tcp://127.0.0.1:1"),
        ("unknown",),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], here: Path) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr
    assert result.stdout == ""


def test_debug_shows_the_traceback(here: Path) -> None:
    result = call("info", "nowhere", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "Traceback" not in call("info", "nowhere").stderr


@pytest.mark.filterwarnings("default:n_frequencies")
def test_warnings_are_lines_on_standard_error(data: str, here: Path) -> None:
    result = call("sketch", data, "-k", 2, "-m", 30, "-o", "sketch.zarr", "--json")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: n_frequencies=30 is under")
    json.loads(result.stdout)


@pytest.mark.slow
def test_progress_goes_to_standard_error(data: str, here: Path) -> None:
    result = call("sketch", data, "-k", 2, "-o", "sketch.zarr", "--json", "--progress")
    assert "100%" in result.stderr
    json.loads(result.stdout)
    result = call("decode", "sketch.zarr", "-k", 2, "-o", "model.zarr", "--json", "--progress")
    assert "decoded" in result.stderr
    json.loads(result.stdout)
    # a decoder that stops by itself leaves a whole line too
    result = call("decode", "sketch.zarr", "-o", "found.zarr", "--json", "--progress")
    assert "decoded" in result.stderr
    assert result.stderr.endswith("\n")
    result = call("score", data, "model.zarr", "--json", "--progress")
    assert "100%" in result.stderr
    json.loads(result.stdout)


def test_on_a_cluster(data: str, here: Path) -> None:
    from distributed import LocalCluster

    answer("design", data, "-k", 2, "-o", "map.json")
    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
    ) as cluster:
        there = ("--scheduler", cluster.scheduler_address)
        sketched = answer("sketch", data, "--map", "map.json", "-o", "s.zarr", *there, "--progress")
        assert sketched["count"] == 6000
        answer("decode", "s.zarr", "-k", 2, "-o", "m.zarr")
        far = answer("score", data, "m.zarr", *there)
        # workers may run in another folder, so they are told where this one is
        near = os.path.relpath(data)
        assert answer("info", near)["source"] == near
        told = answer("plan", near, "-k", 2, *there)["source"]
        assert Path(str(told)).is_absolute()
        assert answer("plan", data, "--map", "map.json", *there)["n_threads"] == 2
    assert answer("score", data, "m.zarr")["score"] == pytest.approx(far["score"], rel=1e-12)


def test_on_a_cluster_with_certificates(data: str, here: Path) -> None:
    from distributed import LocalCluster

    from dask_sketch.cluster.certificates import security_of

    assert call("certificates", "folder").exit_code == 0
    answer("design", data, "-k", 2, "-o", "map.json")
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        security=security_of("folder"),
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        there = ("--scheduler", cluster.scheduler_address)
        told = answer("plan", data, "--map", "map.json", *there, "--tls", "folder")
        assert told["n_threads"] == 1
        message = refusal(1, "plan", data, "--map", "map.json", *there)
        assert message.endswith("(option --tls)")
    wrong = call("plan", data, "--map", "map.json", "--tls", "folder")
    assert wrong.exit_code == 2
    assert "--scheduler" in wrong.stderr


def test_unreachable_scheduler(data: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dask_sketch.cluster.connect as clusters

    monkeypatch.setattr(clusters, "CONNECT_SECONDS", 1)
    message = refusal(1, "plan", data, "-k", 2, "--scheduler", "tcp://127.0.0.1:1")
    assert "no scheduler answers" in message


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert f"dask-sketch {command}" in result.stdout


def test_entry_points() -> None:
    programs = Path(sys.executable).parent
    version = subprocess.run(
        [programs / "dask-sketch", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.strip() == f"dask-sketch, version {ds.__version__}"
    found = subprocess.run(
        [programs / "dask", "sketch", "info", "--help"], capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("Usage: dask sketch info")


@pytest.mark.slow
def test_worker_processes_of_a_program(data: str, here: Path) -> None:
    """They need a guarded main module."""
    command = "sketch sketch -k 2 -o s.zarr --workers 1 --json"
    made = subprocess.run(
        [Path(sys.executable).parent / "dask", *command.split(), data],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["count"] == 6000


def test_importing_the_command_line_loads_no_numerics() -> None:
    # Dask imports it whenever `dask` is run
    code = "import sys, dask_sketch.cli.main; print('numba' in sys.modules, 'zarr' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "dask_sketch", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout.split()[-1] == ds.__version__
    assert out.stdout.startswith("dask-sketch")
