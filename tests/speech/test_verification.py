"""Universal model, enrolment and scores: speakers that are clouds of points, and one of noise."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.models import GaussianMixture
from dask_sketch.speech import (
    Trial,
    enrol,
    error_rates,
    open_frames,
    score_trials,
    split_recordings,
    universal_model,
)
from dask_sketch.speech.enrolment import adapt_means, adaptation_statistics
from dask_sketch.speech.scoring import LikelihoodRatios

SPEAKERS = ("anna", "bert", "cleo", "dora")


@pytest.fixture(scope="module")
def spoken():
    """Frames of four speakers, each with six recordings of unlike length, and their names."""
    rng = np.random.default_rng(1)
    centres = rng.normal(scale=2.0, size=(4, 3, 2))
    rows, names = [], []
    for speaker, own in zip(SPEAKERS, centres, strict=True):
        for index in range(6):
            n = 20 + 3 * index
            rows.append(own[rng.integers(3, size=n)] + rng.normal(size=(n, 2)))
            names += [f"{index}_{speaker}"] * n
    return np.concatenate(rows).astype(np.float32), np.array(names)


@pytest.fixture(scope="module")
def universal(spoken):
    return universal_model(open_frames(*spoken), n_components=4, n_frequencies=200).mixture


@pytest.fixture(scope="module")
def split(spoken):
    names = np.unique(spoken[1])
    return split_recordings(names, [name.split("_")[1] for name in names], seed=3)


def by_hand(x, names, split, universal):
    """Scores from the definition, everything in memory."""
    models = {
        speaker: adapt_means(
            universal, adaptation_statistics(x[np.isin(names, recordings)], universal)
        )
        for speaker, recordings in split.enrolment.items()
    }
    return [
        models[trial.model].score(x[names == trial.test]) - universal.score(x[names == trial.test])
        for trial in split.trials
    ]


@pytest.mark.parametrize("chunk", [15, 10_000])
def test_lazy_scores_are_those_of_the_definition(spoken, universal, split, chunk):
    x, names = spoken
    frames = open_frames(da.from_array(x, chunks=(chunk, 2)), names)
    models = enrol(frames, split.enrolment, universal).compute()
    scores = score_trials(frames, models, split.trials).compute()
    np.testing.assert_allclose(scores, by_hand(x, names, split, universal), atol=1e-9)
    again = score_trials(frames, models, split.trials).compute(scheduler="sync")
    np.testing.assert_array_equal(scores, again)


def test_speakers_are_told_apart(spoken, universal, split):
    frames = open_frames(*spoken)
    models = enrol(frames, split.enrolment, universal).compute()
    scores = score_trials(frames, models, split.trials).compute()
    kinds = [trial.target for trial in split.trials]
    assert error_rates(scores, kinds).equal_error_rate < 0.1
    n_frames = [np.isin(spoken[1], split.enrolment[name]).sum() for name in SPEAKERS]
    assert models.counts.sum(axis=1) == pytest.approx(n_frames)
    assert len(models) == 4
    np.testing.assert_array_equal(models["bert"].means, models.means[1])


def test_nothing_is_read_before_compute(spoken, universal, split, counting):
    frames = open_frames(da.from_array(spoken[0], chunks=(50, 2)), spoken[1])
    lazy = enrol(frames, split.enrolment, universal)
    rows = frames.of(split.enrolled)
    assert counting.computes == 0
    models, chosen = dask.compute(lazy, rows)
    assert counting.computes == 1
    lazy = score_trials(frames, models, split.trials)
    assert counting.computes == 1
    assert lazy.compute().shape == (len(split.trials),)
    np.testing.assert_array_equal(chosen, spoken[0][np.isin(spoken[1], split.enrolled)])


def test_recordings_may_enrol_several_and_trials_may_be_few(spoken, universal):
    frames = open_frames(*spoken)
    both = {"anna": ["0_anna"], "women": ["0_anna", "1_cleo"]}
    models = enrol(frames, both, universal).compute()
    alone = enrol(frames, {"anna": ["0_anna"]}, universal).compute()
    np.testing.assert_array_equal(models["anna"].means, alone["anna"].means)
    trials = [Trial("women", "2_cleo"), Trial("anna", "2_anna"), Trial("women", "2_anna")]
    scores = score_trials(frames, models, trials).compute()
    one = score_trials(frames, models, trials[1:2]).compute()
    assert scores[1] == pytest.approx(one[0])


def test_memory_follows_the_speakers_of_a_chunk(spoken, universal, split):
    from dask_sketch.speech.enrolment import _statistics_of_chunk

    frames = open_frames(*spoken)
    claims = {frames.numbers(["0_anna"])[0]: [0], frames.numbers(["1_cleo"])[0]: [7]}
    x, names = spoken
    rows = names == "0_anna"
    number = np.full(rows.sum(), frames.numbers(["0_anna"])[0])
    found = _statistics_of_chunk(x[rows], None, "x", universal, claims, number)
    assert list(found) == [0]


def test_relevance_decides_how_far_means_move(spoken, universal, split):
    frames = open_frames(*spoken)
    near, far = (
        enrol(frames, split.enrolment, universal, relevance).compute().means
        for relevance in (1e9, 1e-9)
    )
    np.testing.assert_allclose(near, np.broadcast_to(universal.means, near.shape), atol=1e-5)
    assert np.abs(far - universal.means).max() > 0.5


@pytest.mark.slow
def test_the_number_of_components_is_chosen(spoken):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(centre, 1.0, (500, 2)) for centre in (-6.0, 6.0)])
    names = np.array([f"r{i % 20:02}" for i in range(len(x))])
    order = np.argsort(names, kind="stable")
    frames = open_frames(x[order], names[order])
    found = universal_model(frames, n_components=[1, 2, 3], n_frequencies=100)
    assert found.mixture.n_components == 2
    assert found.sketch.count == len(x)
    with pytest.raises(InputError, match="too few"):
        universal_model(frames, frames.recordings[:3], n_components=[1, 2], n_frequencies=50)


@pytest.mark.slow
def test_a_step_of_expectation_maximisation(spoken):
    x, names = spoken
    frames = open_frames(da.from_array(x, chunks=(40, 2)), names)
    universal = universal_model(frames, n_components=2, n_frequencies=100).mixture
    found = universal_model(frames, n_components=2, n_frequencies=100, steps=1).mixture
    # by the textbook, in memory
    share = universal.predict_proba(x)
    means = share.T @ x / share.sum(axis=0)[:, None]
    spread = [(share[:, k] @ (x - means[k]) ** 2) / share[:, k].sum() for k in range(2)]
    np.testing.assert_allclose(found.weights, share.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found.means, means, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.covariances, spread, rtol=1e-5)
    assert found.score(x) >= universal.score(x)
    with pytest.raises(InputError, match="steps=-1"):
        universal_model(frames, n_components=4, steps=-1)


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_ratios_of_mixtures_with_covariance_matrices(kind):
    matrices = np.array([[[1.0, 0.6], [0.6, 2.0]], [[0.5, -0.1], [-0.1, 0.3]]])
    matrices = matrices if kind == "full" else matrices[0]
    means = np.array([[0.0, 0.0], [60.0, 0.0]])  # so far that each row has one component
    universal = GaussianMixture([0.4, 0.6], means, matrices, covariance_type=kind)
    adapted = means + np.array([[0.3, -0.2], [0.1, 0.4]])
    other = GaussianMixture([0.4, 0.6], adapted, matrices, covariance_type=kind)
    x = universal.sample(20, seed=0)
    expected = (other.logpdf(x) - universal.logpdf(x)).sum()
    np.testing.assert_allclose(LikelihoodRatios(universal, [adapted]).total(x), [expected])


def test_far_components_and_frames():
    universal = GaussianMixture([0.5, 0.5], [[0.0], [1e4]], [[1.0], [1e-2]])
    ratios = LikelihoodRatios(universal, [[[1.0], [1e4 + 1.0]]])
    adapted = GaussianMixture([0.5, 0.5], [[1.0], [1e4 + 1.0]], [[1.0], [1e-2]])
    x = np.array([[0.3], [1e4 + 0.2], [5e3], [-1e3]])
    np.testing.assert_allclose(
        ratios.total(x), np.sum(adapted.logpdf(x) - universal.logpdf(x)), rtol=1e-9
    )


@pytest.mark.parametrize(
    ("enrolment", "message"),
    [
        ({}, "enrolment="),
        ({"anna": []}, "0 recordings"),
        ({"anna": ["0_anna", "0_anna"]}, "1 of them different"),
        ({"anna": ["9_anna"]}, "'9_anna', are not among the 24"),
    ],
)
def test_bad_enrolment(spoken, universal, enrolment, message):
    with pytest.raises(InputError, match=message):
        enrol(open_frames(*spoken), enrolment, universal)


def test_bad_arguments(spoken, universal, split):
    frames = open_frames(*spoken)
    with pytest.raises(InputError, match="relevance=0"):
        enrol(frames, split.enrolment, universal, relevance=0)
    other = GaussianMixture([1.0], [[0.0]], [[1.0]])
    with pytest.raises(InputError, match="has 2 features"):
        enrol(frames, split.enrolment, other)
    models = enrol(frames, split.enrolment, universal).compute()
    with pytest.raises(InputError, match="trials="):
        score_trials(frames, models, [])
    with pytest.raises(InputError, match="not enrolled, first 'eve'"):
        score_trials(frames, models, [Trial("eve", "0_anna")])
    with pytest.raises(InputError, match="'x', are not among"):
        score_trials(frames, models, [Trial("anna", "x")])
    with pytest.raises(InputError, match="name='eve'"):
        models["eve"]
    with pytest.raises(InputError, match="means has shape"):
        LikelihoodRatios(universal, np.zeros((1, 2, 2)))
    with pytest.raises(InputError, match="does not state the names"):
        open_frames(np.zeros((3, 2)), np.arange(3))


def test_splits():
    names = [f"{i}_{speaker}" for speaker in "ab" for i in range(5)]
    speakers = [name[-1] for name in names]
    split = split_recordings(names, speakers, fraction=0.4, seed=1)
    assert {speaker: len(part) for speaker, part in split.enrolment.items()} == {"a": 2, "b": 2}
    tested = {trial.test for trial in split.trials}
    assert not tested & set(split.enrolled)
    assert tested | set(split.enrolled) == set(names)
    assert len(split.trials) == 2 * len(tested)
    assert all(trial.target == (trial.model == trial.test[-1]) for trial in split.trials)
    again = split_recordings(names[::-1], speakers[::-1], fraction=0.4, seed=1)
    assert again == split
    assert split_recordings(names, speakers, fraction=0.4, seed=2) != split
    for bad, message in (
        ((names, speakers[:-1]), "one each"),
        ((names[:5], speakers[:5]), "at least two"),
        ((names[:6], speakers[:6]), "1 recording"),
        ((names, speakers, 1.0), "fraction=1.0"),
    ):
        with pytest.raises(InputError, match=message):
            split_recordings(*bad)
