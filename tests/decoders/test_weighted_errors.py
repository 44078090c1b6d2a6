import numpy as np
import pytest

from dask_sketch import GaussianMixture, decode, design, sketch

TRUTH = GaussianMixture([0.6, 0.4], [[0.0, 0.0], [4.0, 2.0]], [[1.0, 0.5], [0.7, 1.5]])


def survey(seed):
    """Rows of the truth that are chosen by their first feature, and their inverse probabilities."""
    rng = np.random.default_rng((seed, 1))
    x = TRUTH.sample(3000, seed=seed)
    chance = 0.1 + 0.9 / (1.0 + np.exp(-0.8 * (x[:, 0] - 2.0)))
    kept = rng.random(len(x)) < chance
    return x[kept], 1.0 / chance[kept]


@pytest.mark.slow
def test_intervals_hold_for_survey_weights():
    feature_map = design(TRUTH.sample(5000, seed=1), n_components=2)
    inside, squares = np.zeros((2, 2)), np.zeros(2)
    for seed in range(40):
        x, weights = survey(seed)
        model = decode(sketch(x, feature_map, weights=weights), 2, refine="efficient")
        order = np.argsort(model.means[:, 0])  # that of the truth
        error = (model.means[order] - TRUTH.means) / model.stderr.means[order]
        inside += (np.abs(error) < 1.96) / 40
        squares += np.mean(error**2, axis=1) / 40
    # 95 %, and a mean square of one; the errors of equal weights have 1.6 and .5
    assert inside.min() > 0.85
    assert squares == pytest.approx([1.0, 1.0], abs=0.45)


def test_rows_of_large_weights_have_the_larger_errors():
    # rows of the first component are chosen less often, so that their weights are larger
    x, weights = survey(0)
    feature_map = design(TRUTH.sample(5000, seed=1), n_components=2)
    with_rows, without = (
        decode(sketch(x, feature_map, weights=weights, sample=sample), start=TRUTH,
               refine="efficient").stderr.means
        for sample in (5000, False)
    )  # fmt: skip
    ratio = (with_rows / without).mean(axis=1)
    assert ratio[0] > 1.1
    assert ratio[1] < 0.9


def test_equal_weights_change_nothing():
    x, _ = survey(0)
    feature_map = design(x, n_components=2)
    plain, equal, without = (
        decode(sketch(x, feature_map, **options), 2, refine="efficient", method="splitting")
        for options in ({}, {"weights": np.full(len(x), 3.0)}, {"sample": False})
    )
    assert np.array_equal(plain.stderr.means, without.stderr.means)
    assert np.allclose(plain.stderr.means, equal.stderr.means)


@pytest.mark.parametrize("seed", [0, 3])
def test_the_weight_of_the_only_component_is_known(seed):
    rng = np.random.default_rng(77 * seed + 5)
    x, weights = rng.normal(size=(300, 2)), rng.exponential(size=300) ** 2
    feature_map = design(x, n_components=1, seed=seed)
    model = decode(sketch(x, feature_map, weights=weights), 1, refine="efficient")
    assert model.stderr.weights == pytest.approx([0.0], abs=1e-6)
    assert np.isfinite(model.stderr.means).all()


@pytest.mark.slow
def test_intervals_hold_for_weights_that_depend_on_a_feature():
    # rows of weights exp(a x0) are rows of such a mixture again
    a = 0.6
    tilted = TRUTH.means + np.array([a, 0.0]) * TRUTH.variances
    feature_map = design(TRUTH.sample(5000, seed=1), n_components=2)
    inside = np.zeros((2, 2, 2))
    for seed in range(60):
        x = TRUTH.sample(5000, seed=100 + seed)
        model = decode(sketch(x, feature_map, weights=np.exp(a * x[:, 0])), 2, refine="efficient")
        order = np.argsort(model.means[:, 0])
        for place, (values, errors, truth) in enumerate(
            (
                (model.means, model.stderr.means, tilted),
                (model.covariances, model.stderr.covariances, TRUTH.variances),
            )
        ):
            inside[place] += np.abs(values[order] - truth) < 1.96 * errors[order]
    # 50 and 52 of 60 for the first feature, if weights depended on components alone
    assert inside.min() > 52
