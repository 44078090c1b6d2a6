from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import estimate_scale
from dask_sketch.errors import InputError


def mixture(rng, n_rows, n_features, n_components, spread):
    means = rng.normal(scale=spread, size=(n_components, n_features))
    return means[rng.integers(n_components, size=n_rows)] + rng.normal(size=(n_rows, n_features))


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_the_scale_follows_the_unit_of_the_data(unit, offset, rng):
    x = unit * (mixture(rng, 5000, 2, 3, 10.0) + offset)
    fit = estimate_scale(x)
    assert fit.scale == pytest.approx(unit, rel=0.2)


def test_one_gaussian_is_found_exactly(rng):
    for n_features in (1, 5, 20):
        fit = estimate_scale(3.0 * rng.normal(size=(5000, n_features)))
        assert fit.scale == pytest.approx(3.0, rel=0.1)


def test_separated_components_are_told_from_the_spread_of_their_means(rng):
    x = mixture(rng, 5000, 10, 5, 8.0)
    assert x.std() > 5
    assert 0.9 < estimate_scale(x).scale < 1.4  # from above: the moduli stand over the envelope


def test_the_fit_shows_what_it_saw(rng):
    x = mixture(rng, 2000, 3, 3, 5.0)
    fit = estimate_scale(x)
    assert fit.path.shape == (5,)
    assert fit.path[-1] == fit.scale
    assert fit.radii.shape == fit.moduli.shape == (500,)
    assert (np.diff(fit.radii) >= 0).all()
    assert fit.peak_radii.shape == fit.peak_moduli.shape == (30,)
    assert set(fit.peak_radii) <= set(fit.radii)
    assert ((fit.moduli >= 0) & (fit.moduli <= 1 + 1e-12)).all()
    assert fit.n_samples == 2000
    np.testing.assert_allclose(fit.curve([0.0, 1 / fit.scale]), [1.0, np.exp(-0.5)])


def test_the_same_seed_gives_the_same_bits(rng):
    x = rng.normal(size=(1000, 2))
    assert estimate_scale(x, seed=3).scale == estimate_scale(x, seed=3).scale
    assert estimate_scale(x, seed=3).scale != estimate_scale(x, seed=4).scale


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros(5), "shape"),
        (np.zeros((1, 3)), "at least two rows"),
        (np.zeros((0, 3)), "at least two rows"),
        ([[np.nan, 1.0], [0.0, 1.0]], "NaN or infinite"),
        ([[np.inf, 1.0], [0.0, 1.0]], "NaN or infinite"),
        (np.ones((5, 3)), "does not vary"),
        (np.zeros((5, 0)), "shape"),
        ([["a", "b"], ["c", "d"]], "not an array of numbers"),
    ],
)
def test_bad_samples_are_refused(samples, message):
    with pytest.raises(InputError, match=message):
        estimate_scale(samples)


@pytest.mark.parametrize("name", ["n_frequencies", "n_blocks", "n_iterations"])
@pytest.mark.parametrize("value", [0, -1, 2.5, None])
def test_bad_sizes_are_refused(name, value, rng):
    with pytest.raises(InputError, match=f"{name}={value}: give a whole number"):
        estimate_scale(rng.normal(size=(10, 2)), **{name: value})
