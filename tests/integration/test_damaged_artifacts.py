"""Artifacts of every kind that were damaged or edited; `make soak` tries many more."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest
from every_artifact import MAKERS, content, edited, made, mutated, use

import dask_sketch as ds
from dask_sketch.errors import ArtifactError, SketchError
from dask_sketch.sketching.open import readable_versions
from dask_sketch.storage.artifact import checksum, packed_dataset
from dask_sketch.storage.artifact_reader import unpacked_dataset

STORED = [kind for kind in MAKERS if kind != "feature map"]


@pytest.mark.parametrize("kind", STORED)
def test_damaged_bytes_are_refused_or_open_to_equal_contents(kind):
    expected = content(made(kind))
    assert content(ds.open(expected)) == expected
    refused = 0
    for seed in range(20):
        try:
            assert content(ds.open(mutated(np.random.default_rng(seed), expected))) == expected
        except ArtifactError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.few_cases(5)
def test_edited_contents_are_refused_or_can_be_used(kind):
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are no results
        for seed in range(20):
            try:
                use(ds.open(edited(np.random.default_rng(seed), content(made(kind)))))
            except SketchError:
                refused += 1
    assert refused > 5


def test_damaged_feature_maps_are_refused_or_equal(tmp_path):
    expected = content(made("feature map"))
    for seed in range(20):
        (tmp_path / "map.json").write_bytes(mutated(np.random.default_rng(seed), expected))
        with contextlib.suppress(SketchError):
            assert content(ds.open(tmp_path / "map.json")) == expected


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("sketch", "digest", 3),
        ("group", "digest", [1, 1]),
        ("phases", "digest", "x"),
        ("rounded sketch", "rounding_error", 1e308),
        ("components", "n_samples", float("inf")),
        ("classifier", "kernel_bandwidth", 1e-320),
        ("classifier", "kernel_bandwidth", 1e308),
    ],
)
def test_attributes_that_no_artifact_has(kind, name, value):
    dataset = unpacked_dataset(content(made(kind)), readable_versions())
    dataset.attrs[name] = value
    with pytest.raises(ArtifactError):
        ds.open(packed_dataset(dataset.assign_attrs(checksum=checksum(dataset))))
