"""Speech: audio files to stored MFCC frames, and speakers verified (extra ``speech``).

The names are loaded on first use, so that the audio libraries and Dask are imported only by
those who turn audio into features.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_sketch.speech.detection import ErrorRates, error_rates
    from dask_sketch.speech.enrolment import SpeakerModels, enrol
    from dask_sketch.speech.frames import Frames, open_frames
    from dask_sketch.speech.frontend import FrontEnd, mfcc_of_file
    from dask_sketch.speech.scoring import score_trials
    from dask_sketch.speech.splits import Split, split_recordings
    from dask_sketch.speech.trials import Trial, read_enrolment, read_trials, write_trials
    from dask_sketch.speech.universal import UniversalModel, universal_model
    from dask_sketch.speech.voices import generate_voices
    from dask_sketch.speech.write import SpeechSummary, write_features

_HOMES = {
    "ErrorRates": "detection",
    "Frames": "frames",
    "FrontEnd": "frontend",
    "SpeakerModels": "enrolment",
    "SpeechSummary": "write",
    "Split": "splits",
    "Trial": "trials",
    "UniversalModel": "universal",
    "enrol": "enrolment",
    "error_rates": "detection",
    "generate_voices": "voices",
    "mfcc_of_file": "frontend",
    "open_frames": "frames",
    "read_enrolment": "trials",
    "read_trials": "trials",
    "score_trials": "scoring",
    "split_recordings": "splits",
    "universal_model": "universal",
    "write_features": "write",
    "write_trials": "trials",
}

__all__ = [
    "ErrorRates",
    "Frames",
    "FrontEnd",
    "SpeakerModels",
    "SpeechSummary",
    "Split",
    "Trial",
    "UniversalModel",
    "enrol",
    "error_rates",
    "generate_voices",
    "mfcc_of_file",
    "open_frames",
    "read_enrolment",
    "read_trials",
    "score_trials",
    "split_recordings",
    "universal_model",
    "write_features",
    "write_trials",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
