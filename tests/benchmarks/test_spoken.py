import numpy as np
import pytest

from tests.benchmarks import spoken


def test_shapes_that_moments_do_not_see_are_learnt():
    rng, y = np.random.default_rng(0), np.array(["a", "b"] * 18)
    frames = [rng.normal(size=(60, 1)) for _ in y]
    for k in range(0, len(y), 2):
        frames[k] = np.sign(frames[k]) * (0.95 + 0.3 * rng.normal(size=(60, 1)))
    moments, thirds, sketches = spoken.errors(frames, y, np.arange(len(y)) // 18, 20)
    assert sketches < 0.1 < 0.25 < min(moments, thirds)


@pytest.mark.slow
def test_order_that_moments_do_not_see_is_learnt_for_new_speakers():
    rng, words = np.random.default_rng(0), np.array(["a", "b"] * 36)
    speakers = np.array(["ann", "bob", "eve", "joe"])[np.arange(72) // 18]
    place = {name: 5.0 * rng.normal(size=2) for name in speakers}
    frames = []
    for word, speaker in zip(words, speakers, strict=True):
        wave = np.sin(np.linspace(0.0, 2.0 * np.pi, 40))[:, None]
        noise = rng.normal(size=(40, 2))
        frames.append(place[speaker] + (1.5 if word == "a" else -1.5) * wave + noise)
    data = spoken.Recordings(frames, words, speakers, np.arange(72))
    moments, thirds, sketches = spoken.errors_of_new_speakers(data, 40)
    assert max(thirds, sketches) < 0.05 < moments
    centered = spoken.by_speaker(spoken.placed_sketches(data), speakers, False)
    for speaker in place:
        np.testing.assert_allclose(centered[speakers == speaker].mean(axis=0), 0.0, atol=1e-12)


def test_frames_are_normalised_by_speaker():
    rng, speakers = np.random.default_rng(0), np.array(["a", "b"] * 3)
    frames = [rng.normal(5.0 * (s == "b"), 1.0 + (s == "b"), (20, 2)) for s in speakers]
    frames[0] = np.arange(20.0)[:, None] * [1.0, -2.0]
    found = spoken.Recordings(frames, speakers, speakers, np.arange(6)).normalised()
    for speaker in ("a", "b"):
        rows = np.concatenate([found[k][:, :2] for k in np.flatnonzero(speakers == speaker)])
        np.testing.assert_allclose(
            [rows.mean(axis=0), rows.std(axis=0)], [[0, 0], [1, 1]], atol=1e-9
        )
    steps = np.diff(found[0][:, :2], axis=0)[5:14]
    np.testing.assert_allclose(found[0][5:14, 2:4], steps)
    np.testing.assert_allclose(found[0][[0, -1], 4:], [[1, 1, 1, 1], [-1, 1, -1, 1]])


def test_voices_that_moments_do_not_see_are_learnt_from_other_words():
    rng, words = np.random.default_rng(0), np.array(["a", "b", "c", "d"] * 24)
    speakers = np.array(["ann", "bob"])[np.arange(96) // 4 % 2]
    centers = 0.5 * rng.normal(size=(4, 2))[np.arange(96) % 4]
    frames = [center + 3.0 * rng.normal(size=(80, 2)) for center in centers]
    for k in np.flatnonzero(speakers == "bob"):  # on a circle around the mean of the word
        x = frames[k] - centers[k]
        frames[k] = centers[k] + 3.0 * np.sqrt(2.0) * x / np.linalg.norm(x, axis=1, keepdims=True)
    data = spoken.Recordings(frames, words, speakers, np.arange(96))
    moments, _, sketches = spoken.errors_of_new_voices(data, 96)
    assert sketches < 0.1 < 0.3 < moments
