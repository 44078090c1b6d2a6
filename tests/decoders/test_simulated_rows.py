"""Without rows, simulated rows whose weights agree with the sketch take their place."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

from dask_sketch import GaussianMixture, decode, design, diagnose, sketch
from dask_sketch.decoders import matrix_search
from dask_sketch.decoders.simulated_rows import OF_PILOT, SIMULATED
from dask_sketch.errors import DecodeError
from dask_sketch.models import random_mixture


def _em(rows, n_components, covariance_type):
    from sklearn.mixture import GaussianMixture as Reference

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Reference(n_components, covariance_type=covariance_type, random_state=0).fit(rows)


def _correlated(n, seed):
    """Log-normal rows, which are not a mixture of a few Gaussians."""
    rng = np.random.default_rng(seed)
    return np.exp(0.8 * rng.normal(size=(n, 4)) + 0.4 * rng.normal(size=(n, 1)))


@pytest.mark.parametrize("covariance_type", ["full"])
def test_matrices_are_nearly_as_likely_as_by_em_on_rows(covariance_type):
    """The mixture nearest to the sketch lost .5 to 4 nats a sample."""
    rows, others = _correlated(20_000, 0), _correlated(5000, 1)
    found = sketch(rows, design(rows, n_components=3), sample=False)
    with pytest.warns(UserWarning, match=r"n_components=3 such .* nat a sample .*sample=True"):
        model = decode(found, 3, covariance_type=covariance_type)
    rival = _em(rows, 3, covariance_type)
    assert model.decoding.message == SIMULATED
    assert model.decoding.gain > 0.5
    assert model.logpdf(others).mean() > rival.score(others) - 0.15


def test_with_matrices_of_pilot_rows_the_fit_is_as_likely_as_by_em():
    rows, others = _correlated(20_000, 0), _correlated(5000, 1)
    feature_map = design(rows, n_components=3, covariance_type="full")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = decode(sketch(rows, feature_map, sample=False), 3, covariance_type="full")
    assert model.decoding.message == OF_PILOT
    assert model.decoding.gain > 0.1
    rival = _em(rows, 3, "full")
    assert model.logpdf(others).mean() > rival.score(others) - 0.03


def test_matrices_of_few_pilot_rows_are_warned_of():
    rows = _correlated(20_000, 0)
    feature_map = design(rows, n_components=3, covariance_type="full", n_pilot=300)
    with pytest.warns(
        UserWarning, match=r"EM on the 300 pilot rows, which loses about 0\.\d+ nats"
    ):
        model = decode(sketch(rows, feature_map, sample=False), 3, covariance_type="full")
    assert model.decoding.message == OF_PILOT


def test_columns_of_few_values_are_decoded_and_warned_of():
    """No diagonal mixture had anything of one such sketch, whose descent began at no weights."""
    rng = np.random.default_rng(0)
    levels = np.eye(4)[rng.integers(0, 4, 8000)]
    rows = np.column_stack([rng.normal(size=8000) + 5.0 * levels[:, 0], levels[:, :2]])
    feature_map = design(rows, n_components=3, covariance_type="full")
    assert np.abs(feature_map.frequencies).max() < 2000.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = decode(sketch(rows, feature_map, sample=False), 3, covariance_type="full")
    diagonal = feature_map.pilot.mixture.score
    assert model.score(rows) > diagonal - 0.1 or any(
        "'diag'" in str(each.message) for each in caught
    )


def test_a_search_without_any_weights_is_not_continued(monkeypatch):
    rows = _correlated(5000, 0)
    found = sketch(rows, design(rows, n_components=2), sample=False)
    searched = matrix_search.search_atoms

    def empty(*args, **options):
        fit = searched(*args, **options)
        return replace(fit, weights=np.zeros_like(fit.weights))

    monkeypatch.setattr(matrix_search, "search_atoms", empty)
    with pytest.raises(DecodeError, match="weight"):
        decode(found, 2, covariance_type="full")
    feature_map = design(rows, n_components=2, covariance_type="full")
    model = decode(sketch(rows, feature_map, sample=False), 2, covariance_type="full")
    assert model.decoding.message == OF_PILOT


def test_variances_of_pilot_rows_keep_the_warnings_of_the_fit():
    """Matrices of pilot rows take the place of a fit, variances are the fit."""
    rows = _correlated(20_000, 0)
    feature_map = design(rows, n_components=4, task="clustering")
    with pytest.warns(UserWarning, match="designed with task='clustering'"):
        model = decode(sketch(rows, feature_map, sample=False), 4, model="gaussian")
    assert model.decoding.message == OF_PILOT


def test_matrices_of_pilot_rows_do_not_stand_for_other_data():
    rows = _correlated(20_000, 0)
    feature_map = design(rows, n_components=3, covariance_type="full")
    other = np.sqrt(_correlated(20_000, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = decode(sketch(other, feature_map, sample=False), 3, covariance_type="full")
    assert model.decoding.message != OF_PILOT


def test_groups_unlike_all_rows_are_nearly_as_likely_as_one_gaussian_and_more():
    """Fits to the sketches of classes lost to one Gaussian of their exact moments."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 60_000)
    scales = np.exp(rng.normal(size=(6, 4)))
    rows = 4.0 * rng.normal(size=(6, 4))[labels] + scales[labels] * rng.gamma(1.0, 1.0, (60_000, 4))
    feature_map = design(rows, n_components=3)
    part = rows[labels == 2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = decode(sketch(part[:8000], feature_map, sample=False), 3)
        again = decode(sketch(part[:8000], feature_map, sample=False), 3)
    assert again.means.tobytes() == model.means.tobytes()
    one = GaussianMixture(np.ones(1), part.mean(axis=0)[None], part.var(axis=0)[None])
    assert model.decoding.message == SIMULATED
    assert model.logpdf(part[8000:]).mean() > one.logpdf(part[8000:]).mean()
    text = diagnose(model, sketch(part[:8000], feature_map, sample=False)).findings["misfit"]
    assert re.search("design a feature map for this data", text)


@pytest.mark.parametrize("covariance_type", ["diag", "full"])
def test_mixtures_that_noise_explains_are_left_alone(covariance_type):
    truth = random_mixture(3, 3, seed=0)
    rows = truth.sample(20_000, seed=1)
    found = sketch(rows, design(rows, n_components=3), sample=False)
    model = decode(found, 3, covariance_type=covariance_type)
    assert model.decoding.message != SIMULATED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data that is no such mixture
        asked = decode(
            sketch(_correlated(5000, 0)[:, :3], found.feature_map, sample=False),
            3,
            method="cl-ompr",
        )
    assert asked.decoding.message != SIMULATED  # the method was asked for
