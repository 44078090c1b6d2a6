from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("librosa")
soundfile = pytest.importorskip("soundfile")


from scipy.fft import dct

from dask_sketch.errors import (
    ChunkError,
    InputError,
)
from dask_sketch.speech.mfcc import (
    FrontEnd,
    active_frames,
    mfcc,
    mfcc_of_file,
    n_frames_of,
    read_audio,
)

DEFAULT = FrontEnd()


def noise(n, seed=0, scale=0.1):
    return (scale * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def all_frames(signal, front_end=DEFAULT):
    return np.arange(n_frames_of(signal, front_end))


@pytest.mark.parametrize(("rate", "length"), [(8000, 184), (16000, 368), (11025, 254)])
def test_frames_last_23_ms_and_overlap_by_half(rate, length):
    front_end = FrontEnd(sample_rate=rate)
    assert (front_end.frame_length, front_end.hop_length) == (length, length // 2)


@pytest.mark.parametrize("n", [0, 183, 184, 275, 276, 8000])
@pytest.mark.few_cases(2)
def test_frames_lie_wholly_inside_the_signal(n):
    signal = noise(n)
    count = len([s for s in range(0, n, 92) if s + 184 <= n])
    assert n_frames_of(signal, DEFAULT) == count
    assert mfcc(signal, all_frames(signal), DEFAULT).shape == (count, 12)


def test_one_sample_touches_the_two_frames_over_it():
    signal = noise(4000)
    changed = signal.copy()
    changed[92 * 10 + 5] += 0.5
    difference = mfcc(changed, all_frames(signal), DEFAULT) - mfcc(
        signal, all_frames(signal), DEFAULT
    )
    np.testing.assert_array_equal(np.flatnonzero(np.abs(difference).max(axis=1)), [9, 10])


def test_loudness_is_dropped_with_the_zeroth_coefficient():
    signal = noise(4000)
    quiet = mfcc(signal, all_frames(signal), DEFAULT)
    loud = mfcc(4 * signal, all_frames(signal), DEFAULT)
    np.testing.assert_allclose(loud, quiet, atol=1e-3)


def test_coefficients_are_the_cosine_transform_of_the_mel_spectrum():
    import librosa

    signal = noise(184, seed=3)
    spectrum = np.abs(np.fft.rfft(signal * np.hamming(185)[:-1])) ** 2
    mel = librosa.filters.mel(sr=8000, n_fft=184, n_mels=26) @ spectrum
    expected = dct(10 * np.log10(mel), norm="ortho")[1:13]
    np.testing.assert_allclose(mfcc(signal, np.array([0]), DEFAULT)[0], expected, atol=1e-3)


def test_number_of_coefficients():
    front_end = FrontEnd(n_coefficients=5)
    signal = noise(4000)
    np.testing.assert_allclose(
        mfcc(signal, all_frames(signal), front_end),
        mfcc(signal, all_frames(signal), DEFAULT)[:, :5],
        atol=1e-4,
    )


def test_silence_is_dropped(utterance):
    signal = utterance(0, silence=0.2, seconds=0.4)
    frames = active_frames(signal, DEFAULT)
    starts = frames * 92
    assert starts.min() > 0.2 * 8000 - 184
    assert starts.max() < 0.6 * 8000
    inside = np.arange(n_frames_of(signal, DEFAULT))
    inside = inside[(inside * 92 >= 1600) & (inside * 92 + 184 <= 4800)]
    assert set(inside) <= set(frames)


def test_noise_below_the_threshold_is_dropped_and_above_it_kept():
    quiet, loud = noise(4000, scale=1e-3), noise(4000, seed=1, scale=0.1)  # 40 dB apart
    signal = np.concatenate([quiet, loud])
    assert active_frames(signal, DEFAULT).min() * 92 + 184 > 4000
    assert active_frames(signal, FrontEnd(top_db=60)).size == n_frames_of(signal, DEFAULT)


def test_bits_of_a_frame_do_not_depend_on_the_frames_asked_for():
    signal = noise(92 * 20_000)  # several blocks of frames
    frames = all_frames(signal)[::3]
    part = slice(2000, 5000)
    whole = mfcc(signal, frames, DEFAULT)
    np.testing.assert_array_equal(mfcc(signal, frames[part], DEFAULT), whole[part])


def test_file_gives_finite_float32_rows(tmp_path, utterance):
    soundfile.write(tmp_path / "a.wav", utterance(1), 8000)
    features = mfcc_of_file(tmp_path / "a.wav")
    signal = read_audio(tmp_path / "a.wav", 8000)
    assert features.dtype == np.float32
    assert features.shape == (active_frames(signal, DEFAULT).size, 12)
    assert np.isfinite(features).all()


def test_channels_are_averaged_and_an_offset_removed(tmp_path, utterance):
    audio = utterance(1)
    soundfile.write(tmp_path / "mono.wav", audio, 8000, subtype="FLOAT")
    both = np.stack([1.5 * audio + 0.25, 0.5 * audio + 0.25], axis=1)
    soundfile.write(tmp_path / "stereo.wav", both, 8000, subtype="FLOAT")
    mono, stereo = mfcc_of_file(tmp_path / "mono.wav"), mfcc_of_file(tmp_path / "stereo.wav")
    np.testing.assert_allclose(stereo, mono, atol=0.05)


def test_higher_rates_are_resampled(tmp_path):
    from scipy.signal import resample_poly

    wide = noise(16000)
    soundfile.write(tmp_path / "wide.wav", wide, 16000, subtype="FLOAT")
    expected = resample_poly(wide, 1, 2).astype(np.float32)
    assert read_audio(tmp_path / "wide.wav", 8000).size == 8000
    features = mfcc_of_file(tmp_path / "wide.wav")
    reference = mfcc(expected, all_frames(expected), DEFAULT)
    assert features.shape == reference.shape
    # the two low-pass filters differ near 4 kHz only
    assert np.abs(features - reference).mean() < 1.5


def test_lower_rates_are_refused(tmp_path, utterance):
    soundfile.write(tmp_path / "low.wav", utterance(0, rate=4000), 4000)
    with pytest.raises(ChunkError, match=r"low\.wav.*4000 Hz.*sample_rate=8000"):
        mfcc_of_file(tmp_path / "low.wav")


def bad_files(folder):
    (folder / "bytes.wav").write_bytes(b"")
    (folder / "text.wav").write_text("no audio")
    (folder / "headless.raw").write_bytes(bytes(4000))
    soundfile.write(folder / "empty.wav", np.zeros(0), 8000)
    soundfile.write(folder / "short.wav", noise(100), 8000)
    soundfile.write(folder / "silent.wav", np.zeros(8000), 8000)
    soundfile.write(folder / "constant.wav", np.full(8000, 0.3), 8000)
    soundfile.write(folder / "nan.wav", np.full(8000, np.nan), 8000, subtype="FLOAT")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent.wav", "cannot be read"),
        ("bytes.wav", "cannot be read"),
        ("text.wav", "cannot be read"),
        ("headless.raw", "cannot be read"),
        ("empty.wav", "empty"),
        ("short.wav", "less than one frame"),
        ("silent.wav", "silent"),
        ("constant.wav", "silent"),
        ("nan.wav", "NaN"),
    ],
)
def test_bad_file_is_named(tmp_path, name, reason):
    bad_files(tmp_path)
    with pytest.raises(ChunkError, match=f"{name}.*{reason}"):
        mfcc_of_file(tmp_path / name)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"sample_rate": 0}, "sample_rate"),
        ({"top_db": 0}, "top_db"),
        ({"top_db": np.inf}, "top_db"),
        ({"frame_seconds": -1}, "frame_seconds"),
        ({"frame_seconds": np.nan}, "frame_seconds"),
        ({"frame_seconds": 0.005}, "frame_seconds"),
        ({"frame_seconds": 0.00001}, "frame_seconds"),
        ({"n_coefficients": 0}, "n_coefficients"),
        ({"n_coefficients": 26}, "n_coefficients"),
    ],
)
def test_bad_settings_are_named(setting, named):
    with pytest.raises(InputError, match=named):
        FrontEnd(**setting)


def test_shortest_frame_allowed_leaves_no_filter_empty():
    # librosa warns of empty filters, and warnings are errors here
    lengths = np.arange(0.005, 0.03, 0.0005)
    allowed = []
    for seconds in lengths:
        try:
            front_end = FrontEnd(frame_seconds=seconds)
        except InputError:
            continue
        allowed.append(seconds)
        signal = noise(2000)
        mfcc(signal, all_frames(signal, front_end), front_end)
    assert 0.005 < min(allowed) < 0.023


def test_audio_that_states_too_many_samples(tmp_path, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", np.zeros(1000), 8000)
    monkeypatch.setattr("dask_sketch.speech.mfcc.MAX_SAMPLES", 999)
    with pytest.raises(ChunkError, match=r"1,000 samples .* 999"):
        read_audio(tmp_path / "a.wav", 8000)
