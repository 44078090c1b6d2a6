from __future__ import annotations

import numpy as np

from dask_sketch.decoders.objectives.atom_kernels import evaluate_atoms


def test_exponentials_cosines_and_sines_over_their_range():
    rng = np.random.default_rng(0)
    exponents = np.concatenate([rng.uniform(-60, 60, 4000), [0.0, -1020.0, 0.5, -0.5, 1000.0]])
    turns = np.concatenate([rng.uniform(-20, 20, 4000), [0.0, 0.25, -0.5, 0.75, 1e6 + 0.25]])
    real, imag = exponents[None].copy(), turns[None].copy()
    evaluate_atoms(real, imag, np.zeros(exponents.size), np.zeros(1))
    amplitude = np.exp2(exponents)
    angle = 2 * np.pi * (turns - np.rint(turns))
    np.testing.assert_allclose(real[0] / amplitude, np.cos(angle), atol=1e-15)
    np.testing.assert_allclose(imag[0] / amplitude, np.sin(angle), atol=1e-15)


def test_underflow_gives_the_smallest_number():
    real, imag = np.full((1, 9), -1e9), np.zeros((1, 9))
    evaluate_atoms(real, imag, np.zeros(9), np.zeros(1))
    assert (real > 0).all()
    assert (real < 1e-300).all()
