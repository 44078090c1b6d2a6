from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

RATE = 8000


@pytest.fixture
def utterance():
    """Build audio: a burst of coloured noise over a tone, silence on both sides of it."""

    def build(seed, *, silence=0.1, seconds=0.3, rate=RATE):
        rng = np.random.default_rng(seed)
        n = int(seconds * rate)
        t = np.arange(n) / rate
        tone = np.sin(2 * np.pi * (200 + 40 * seed) * t)
        voice = 0.2 * tone + 0.05 * rng.standard_normal(n)
        quiet = np.zeros(int(silence * rate))
        return np.concatenate([quiet, voice, quiet]).astype(np.float32)

    return build


@pytest.fixture
def corpus(tmp_path: Path, utterance) -> Path:
    """Write seven files of three speakers, of differing length."""
    soundfile = pytest.importorskip("soundfile")
    folder = tmp_path / "audio"
    folder.mkdir()
    for seed in range(7):
        speaker = ("zoe", "adam", "mia")[seed % 3]
        audio = utterance(seed, seconds=0.2 + 0.07 * seed)
        soundfile.write(folder / f"{seed}_{speaker}_0.wav", audio, RATE)
    return folder
