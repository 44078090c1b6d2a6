"""Invalid arguments of decode are refused by name and value; methods and models have defaults."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import numpy as np
import pytest

from dask_sketch import Sketch, decode, partial_sketch, second_moments
from dask_sketch import sketch as ds_sketch
from dask_sketch.decoders.methods import TABLE, rows_of
from dask_sketch.decoders.names import METHODS, MODELS
from dask_sketch.errors import DecodeError
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture

OFF_DIAGONAL = [[1.0, 0.5], [0.5, 1.0]]


def test_the_table_has_the_methods_and_models_of_the_names():
    assert {row.name for row in TABLE} == set(METHODS)
    assert {model for row in TABLE for model in row.models} == set(MODELS)
    assert len(rows_of("density")) == 3


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True])
def test_refuses_a_bad_number_of_components(sketch, value):
    with pytest.raises(DecodeError, match=f"n_components={value!r}"):
        decode(sketch, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "em"}, "method='em'.* cl-ompr, cl-omp, splitting"),
        ({"method": "start"}, "method='start'"),
        ({"model": "cauchy"}, "model='cauchy'.* gaussian, isotropic"),
        ({"refine": "fast"}, "refine='fast'.*'efficient'"),
        ({"refine": "efficient", "model": "dirac", "method": "cl-omp"}, "model='dirac'"),
        ({"refine": "efficient", "method": "density"}, "refine='efficient' with method='density'"),
        ({"merge": True, "model": "dirac"}, "merge=True with method='density'"),
        ({"covariance": [1.0], "method": "sketch-shift"}, "covariance=.* method='sketch-shift'"),
        ({"method": "density", "model": "isotropic"}, "model='isotropic' .* dirac, gaussian"),
        ({"method": "density", "maxima": "newton"}, "maxima='newton'"),
        ({"maxima": None}, "maxima=None"),
        ({"model": "known"}, "covariance=None with model='known'"),
        ({"covariance": [1.0, 1.0]}, "covariance .* model='gaussian'"),
        ({"model": "known", "covariance": OFF_DIAGONAL, "refine": "efficient"}, "refine=.* matrix"),
        ({"start": 3}, "start of type int"),
        ({"start": random_mixture(2, 3)}, "start has 3 features, .* 2"),
        ({"start": random_mixture(2, 2), "method": "cl-omp"}, "method='cl-omp' and start"),
        ({"replicates": 0}, "replicates=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 0.5}, r"seed=0\.5"),
        ({"variance_floor": 0.0}, r"variance_floor=0\.0"),
        ({"variance_floor": 2.0}, r"variance_floor=2\.0"),
        ({"variance_floor": "0.1"}, "variance_floor='0.1'"),
        ({"bounds": "box"}, "bounds='box'"),
        ({"bounds": [[0.0, 0.0]]}, r"bounds has shape \(1, 2\).* \(2, 2\)"),
        ({"bounds": [["a", "b"], ["c", "d"]]}, "bounds=.*'a'"),
        ({"bounds": [[0.0, 1.0], [1.0, 1.0]]}, "bounds of feature 1 are 1 and 1"),
        ({"bounds": [[0.0, np.nan], [1.0, 1.0]]}, "bounds of feature 1 are nan and 1"),
        ({"threads": 0}, "threads=0"),
        ({"threads": 1.5}, r"threads=1\.5"),
        ({"threads": True}, "threads=True"),
        ({"executor": 3}, "executor=3"),
        ({"progress": 1}, "progress=1"),
    ],
)
def test_refuses_bad_arguments(sketch, arguments, message):
    with pytest.raises(DecodeError, match=message):
        decode(sketch, 2, **arguments)


def test_refuses_anything_but_a_sketch_of_samples():
    with pytest.raises(DecodeError, match=r"sketch of type dict.* \.compute\(\)"):
        decode({}, 2)
    with pytest.raises(DecodeError, match=r"SecondMoments.* SketchPCA"):
        decode(second_moments(np.eye(3)), 2)
    with pytest.raises(DecodeError, match="total weight 0, 0 samples"):
        decode(Sketch.empty(FeatureMap(2, 50, scale=1.0)), 2)


@pytest.mark.filterwarnings("ignore:.* components are thinner")
def test_refuses_more_parameters_than_numbers():
    sketch = partial_sketch(np.tile(np.eye(3), (7, 1)), FeatureMap(3, 10, scale=1.0))
    with pytest.warns(UserWarning, match=r"14 parameters.* 10 frequencies .* 70 freq") as caught:
        assert decode(sketch, 2).n_components == 2
    assert caught[0].filename == __file__
    with pytest.raises(DecodeError, match=r"21 parameters, .* 20 .* at most 2 components"):
        decode(sketch, 3)


@pytest.mark.parametrize("model", ["gaussian", "dirac"])
def test_refuses_more_components_than_samples(model):
    sketch = partial_sketch(np.eye(3), FeatureMap(3, 150, scale=1.0))
    with pytest.raises(DecodeError, match=r"n_components=4 .* 3 samples"):
        decode(sketch, 4, model=model)


def test_refinement_that_does_not_fit_into_memory_is_refused(sketch, monkeypatch):
    class Memory:
        available = 10**6

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    with pytest.raises(DecodeError, match=r"refine='efficient' with n_components=60 .* 0\.0 GiB"):
        decode(sketch, 60, refine="efficient")


def test_only_growth_finds_the_number_of_components(sketch):
    with pytest.raises(DecodeError, match="n_components=None with method='splitting'"):
        decode(sketch, method="splitting")


@pytest.mark.parametrize(
    ("options", "method", "model"),
    [
        ({"n_components": 1}, "cl-ompr", "gaussian"),
        ({"n_components": 1, "model": "dirac"}, "density", "dirac"),
        ({"n_components": 1, "method": "sketch-shift"}, "sketch-shift", "dirac"),
        ({"n_components": 1, "method": "density"}, "density", "dirac"),
        ({"method": "cl-omp", "model": "isotropic"}, "cl-omp", "isotropic"),
        ({}, "cl-omp", "gaussian"),
    ],
)
def test_defaults_of_methods_and_models(options, method, model):
    x = np.random.default_rng(0).normal(size=(2000, 1))
    record = decode(partial_sketch(x, FeatureMap(1, 40, scale=1.0)), **options).decoding
    assert (record.method, record.model) == (method, model)


@pytest.mark.parametrize("options", [{"covariance_type": "spherical"}, {"model": "isotropic"}])
@pytest.mark.parametrize("sample", [True, False])
def test_one_variance_for_features_of_other_scales_is_refused(sample, options):
    x = np.random.default_rng(0).normal(size=(500, 3)) * [1e-10, 0.0, 1e10]
    feature_map = FeatureMap(3, 50, covariances=[1e-20, 1.0, 1e20])
    found = ds_sketch(x, feature_map, sample=sample)
    with pytest.raises(DecodeError, match=r"spherical.*feature 0.*feature 2"):
        decode(found, 2, **options)
    scaled = ds_sketch(x / [1e-10, 1.0, 1e10], FeatureMap(3, 50, scale=1.0), sample=sample)
    poor: AbstractContextManager = contextlib.nullcontext()
    if not sample and "model" not in options:  # the constant feature has no such variance
        poor = pytest.warns(UserWarning, match="noise levels")
    with poor:
        assert decode(scaled, 1, **options).means.shape == (1, 3)
