"""Files of feature maps by untrusted authors."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import fsspec
import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.features.artifact import open_feature_map, write_feature_map

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def small_memory(code, megabytes=1500):
    """Run code in a process of little memory beyond what the libraries take; its output."""
    before = "import resource, dask_sketch as ds\n" + (
        "ds.FeatureMap\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (used + {megabytes} * 2**20,) * 2)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", before + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def spec(**changes):
    return json.loads(ds.FeatureMap(2, 10, scale=1.0).spec) | changes


def map_text(**changes):
    found = {"schema": "dask-sketch/feature-map", "version": 1, "digest": "0" * 64}
    return json.dumps(found | {"spec": spec(**changes)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_frequencies": 10**12}, "over 268,435,456 numbers"),
        ({"n_features": 10**12}, "over 268,435,456 numbers"),
        ({"n_features": 10**9, "n_frequencies": 10**9}, "over 268,435,456 numbers"),
        ({"dtype": "f4,(((((((("}, "precision"),
        ({"dtype": ["f4"] * 10}, "precision"),
        ({"scale_fit": "anything"}, "fields that no feature map has"),
        ({"__class__": "x"}, "fields that no feature map has"),
        ({"scale": 10**400}, "specification"),
        ({"scale": float("nan")}, "scale=nan"),
        ({"scale": 1e-300}, "scale=1e-300"),
        ({"law": {"a": 1}}, "distribution="),
        ({"law": ESCAPE}, "distribution="),
        ({"center": [[0.0], [0.0]]}, "center="),
        ({"center": "0.0"}, "center="),
        ({"scale": None, "covariances": 3.0}, "covariances has shape"),
        ({"scale": None, "covariances": [[]]}, "covariances has shape"),
        ({"scale": None, "covariances": [[1.0], [1.0, 2.0]]}, "covariances="),
        ({"whitening": [[1.0, 0.0], [1.0, 0.0]]}, "whitening is singular"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.5}, "seed=1.5"),
        ({}, "digest"),
    ],
)
def test_feature_maps_of_others(changes, message):
    with pytest.raises(ArtifactError, match=message):
        ds.FeatureMap.from_json(map_text(**changes))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"schema":' * 200_000,
        '{"schema": ' + "9" * 5000 + "}",
        "",
        "3",
        "null",
        "[]",
        '"text"',
        '{"schema": []}',
        '{"schema": "dask-sketch/feature-map", "version": 1}',
        '{"schema": "dask-sketch/feature-map", "version": 1, "digest": "", "spec": []}',
        '{"schema": "dask-sketch/feature-map", "version": 1, "digest": "\\ud800", "spec": {}}',
        map_text().replace('"seed": 0', f'"seed": {"7" * 4200}'),
    ],
    ids=lambda text: text[:20],
)
def test_text_that_is_no_feature_map(text):
    with pytest.raises(ArtifactError, match=r"feature map|schema|digest"):
        ds.FeatureMap.from_json(text)


def test_an_edited_record_of_pilot_rows():
    rows = np.random.default_rng(0).normal(size=(100, 2))
    feature_map = ds.design(rows, n_components=2)
    text = feature_map.to_json()
    assert ds.FeatureMap.from_json(text).pilot.as_dict() == feature_map.pilot.as_dict()
    found = json.loads(text)
    for name, value in (("gaussian_score", 0.5), ("n_rows", 99)):
        edited = found | {"pilot": found["pilot"] | {name: value}}
        with pytest.raises(ArtifactError, match="pilot_checksum"):
            ds.FeatureMap.from_json(json.dumps(edited))
    del found["pilot_checksum"]
    with pytest.raises(ArtifactError, match="pilot_checksum"):
        ds.FeatureMap.from_json(json.dumps(found))


def test_a_long_file_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("dask_sketch.features.artifact.MAX_TEXT", 1000)
    (tmp_path / "map.json").write_text(" " * 1001)
    with pytest.raises(ArtifactError, match="1,000"):
        ds.open(tmp_path / "map.json")


@pytest.mark.parametrize("name", ["pipe.json", "/dev/zero", "gopher://host/map.json", "a\0.json"])
def test_what_is_no_file(name, tmp_path):
    os.mkfifo(tmp_path / "pipe.json")  # reading it would wait for a writer
    with pytest.raises(InputError, match="feature map .* cannot be read"):
        open_feature_map(str(tmp_path / name) if name == "pipe.json" else name)


@pytest.mark.slow
def test_a_huge_feature_map_takes_no_memory():
    text = map_text(n_frequencies=10**12)
    done = small_memory(f"ds.FeatureMap.from_json({text!r})", megabytes=200)
    assert "ArtifactError" in done.stderr, done.stderr
    assert "MemoryError" not in done.stderr


def test_folders_of_urls_are_made():
    folder = "memory://dask-sketch-map/new/folders"
    plain = ds.FeatureMap(2, 10, scale=1.0)
    try:
        write_feature_map(f"{folder}/map.json", plain)
        assert open_feature_map(f"{folder}/map.json") == plain
    finally:
        fsspec.filesystem("memory").rm("/dask-sketch-map", recursive=True)
