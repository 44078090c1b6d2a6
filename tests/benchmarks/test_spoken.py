import numpy as np

from tests.benchmarks import spoken


def test_shapes_that_moments_do_not_see_are_learnt():
    rng, y = np.random.default_rng(0), np.array(["a", "b"] * 18)
    frames = [rng.normal(size=(60, 1)) for _ in y]
    for k in range(0, len(y), 2):
        frames[k] = np.sign(frames[k]) * (0.95 + 0.3 * rng.normal(size=(60, 1)))
    moments, thirds, sketches, joined = spoken.errors(frames, y, np.arange(len(y)) // 18, 20)
    assert max(sketches, joined) < 0.1 < 0.25 < min(moments, thirds)


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
