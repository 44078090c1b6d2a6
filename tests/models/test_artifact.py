from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch.errors import ArtifactError
from dask_sketch.models import (
    AlphaStableMixture,
    Centroids,
    Decoding,
    GaussianMixture,
    Polishing,
    VonMisesFisherMixture,
    random_mixture,
)
from dask_sketch.models.artifact import CENTROIDS, MIXTURE, to_dataset
from dask_sketch.models.open import model_from_dataset, open_model
from dask_sketch.storage.artifact import write_dataset


@pytest.fixture
def mixture() -> GaussianMixture:
    drawn = random_mixture(3, 2, seed=0, weights="dirichlet")
    record = Decoding(
        "cl-ompr", "gaussian", 1.5e-6, 3e-6, (2e-5, 1.5e-6), 0.25, 7, 2, 123, True, "CONVERGENCE",
        feature_names=("pitch", "energy"),
    )  # fmt: skip
    return GaussianMixture(drawn.weights, drawn.means, drawn.covariances, record)


def test_comes_back_bit_for_bit(mixture, tmp_path):
    mixture.to_zarr(tmp_path / "a.zarr")
    back = ds.open(tmp_path / "a.zarr")
    for name in ("weights", "means", "covariances"):
        np.testing.assert_array_equal(getattr(back, name), getattr(mixture, name))
    assert back.decoding == mixture.decoding
    plain = random_mixture(1, 1)
    plain.to_zarr(tmp_path / "b.zarr")
    assert ds.open(tmp_path / "b.zarr").decoding is None


def test_replaces_only_when_told(mixture, tmp_path):
    place = tmp_path / "a.zarr"
    mixture.to_zarr(place)
    with pytest.raises(ArtifactError, match=r"exists.*overwrite=True"):
        mixture.to_zarr(place)
    other = random_mixture(2, 4)
    other.to_zarr(place, overwrite=True)
    assert ds.open(place).n_features == 4


def test_states_its_conventions(mixture, tmp_path):
    mixture.to_zarr(tmp_path / "a.zarr")
    metadata = json.loads((tmp_path / "a.zarr" / "zarr.json").read_text())
    assert metadata["zarr_format"] == 3
    attributes = metadata["attributes"]
    assert attributes["schema"] == "dask-sketch/gaussian-mixture"
    assert attributes["schema_version"] == 1
    assert "density =" in attributes["convention"]
    assert json.loads(attributes["decoding"])["method"] == "cl-ompr"


def test_refuses_what_is_not_there(tmp_path):
    with pytest.raises(ArtifactError, match="does not exist"):
        ds.open(tmp_path / "nothing.zarr")


def test_refuses_another_schema(mixture, tmp_path):
    dataset = to_dataset(mixture, MIXTURE)
    write_dataset(dataset, tmp_path / "a.zarr", "dask-sketch/sketch", 1)
    with pytest.raises(ArtifactError, match="schema='dask-sketch/sketch'"):
        open_model(tmp_path / "a.zarr")
    with pytest.raises(ArtifactError, match="schema_version=1"):
        ds.open(tmp_path / "a.zarr")


def edit(place, change):
    path = place / "zarr.json"
    metadata = json.loads(path.read_text())
    change(metadata["attributes"])
    path.write_text(json.dumps(metadata))


def test_refuses_an_edited_record(mixture, tmp_path):
    mixture.to_zarr(tmp_path / "a.zarr")
    edit(tmp_path / "a.zarr", lambda attributes: attributes.update(decoding="null"))
    with pytest.raises(ArtifactError, match="checksum"):
        ds.open(tmp_path / "a.zarr")


def test_refuses_a_truncated_array(mixture, tmp_path):
    mixture.to_zarr(tmp_path / "a.zarr")
    chunk = next(p for p in (tmp_path / "a.zarr" / "means" / "c").rglob("*") if p.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-5])
    with pytest.raises(ArtifactError, match=r"truncated|checksum"):
        ds.open(tmp_path / "a.zarr")


def test_refuses_a_missing_array(mixture):
    dataset = to_dataset(mixture, MIXTURE).drop_vars("weights")
    with pytest.raises(ArtifactError, match="weights"):
        model_from_dataset(dataset)


@pytest.mark.parametrize("decoding", ["{", "{}", '{"trace": [], "method": "cl-omp"}', "[1]"])
def test_refuses_an_unreadable_record(mixture, decoding):
    dataset = to_dataset(mixture, MIXTURE).assign_attrs(decoding=decoding)
    with pytest.raises(ArtifactError, match="not a gaussian mixture"):
        model_from_dataset(dataset)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trace": None}, "not a gaussian mixture"),
        ({"nonsense": 1}, "not a gaussian mixture"),
        ({"trace": ["x"]}, "polishing"),
        ({"bound": "<b>"}, "polishing"),
        ({"n_samples": 1.5}, "polishing"),
        ({"objective": "x" * 2000}, "polishing"),
        ({"converged": 1}, "polishing"),
    ],
)
def test_refuses_an_edited_record_of_passes(mixture, change, message):
    record = Polishing("log-likelihood", (-2.0, -1.5), -1.25, 100, 0, 0.5, 1e-6, True)
    dataset = to_dataset(replace(mixture, polishing=record), MIXTURE)
    assert model_from_dataset(dataset).polishing == record
    edited = json.dumps(json.loads(dataset.attrs["polishing"]) | change)
    with pytest.raises(ArtifactError, match=message):
        model_from_dataset(dataset.assign_attrs(polishing=edited))


def test_refuses_values_that_are_no_mixture(mixture):
    dataset = to_dataset(mixture, MIXTURE)
    dataset["covariances"] = -dataset["covariances"]
    with pytest.raises(ArtifactError, match="covariances: .*positive"):
        model_from_dataset(dataset)


def test_centroids_and_mixtures_open(mixture, tmp_path):
    centroids = Centroids(mixture.weights, mixture.means, mixture.decoding)
    centroids.to_zarr(tmp_path / "c.zarr")
    mixture.to_zarr(tmp_path / "m.zarr")
    back = ds.open(tmp_path / "c.zarr")
    assert isinstance(back, Centroids)
    np.testing.assert_array_equal(back.centers, centroids.centers)
    np.testing.assert_array_equal(back.weights, centroids.weights)
    assert back.decoding == mixture.decoding
    assert isinstance(ds.open(tmp_path / "m.zarr"), GaussianMixture)


def test_refuses_centroids_without_centers(mixture):
    dataset = to_dataset(Centroids(mixture.weights, mixture.means), CENTROIDS).drop_vars("centers")
    with pytest.raises(ArtifactError, match="centers"):
        model_from_dataset(dataset, CENTROIDS)


@pytest.mark.parametrize(
    "model",
    [
        GaussianMixture([1.0], [[0.0, 1.0]], [[1.0, 1.0]], feature_names=("b", "a")),
        Centroids([1.0], [[0.0, 1.0]], feature_names=("b", "a")),
        VonMisesFisherMixture([1.0], [[0.0, 1.0]], [2.0], feature_names=("b", "a")),
        AlphaStableMixture([1.0], [[0.0, 1.0]], [[1.0, 1.0]], [1.5], feature_names=("b", "a")),
    ],
    ids=lambda model: type(model).__name__,
)
def test_names_without_a_record_come_back(model, mixture, tmp_path):
    model.to_zarr(tmp_path / "a.zarr")
    assert ds.open(tmp_path / "a.zarr").feature_names == ("b", "a")
    assert "feature_names" not in to_dataset(mixture, MIXTURE).attrs  # they are in its record
    assert replace(mixture, decoding=None).feature_names == ("pitch", "energy")


@pytest.mark.parametrize("names", ['["a"]', '["a", "a"]', "[1, 2]", '"ab"', "{}", "7", "["])
def test_damaged_names_are_refused(names):
    dataset = to_dataset(random_mixture(2, 2), MIXTURE)
    with pytest.raises(ArtifactError):
        model_from_dataset(dataset.assign_attrs(feature_names=names))
