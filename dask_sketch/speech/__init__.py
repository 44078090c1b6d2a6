"""Speech: audio files to stored MFCC frames, and speakers verified (extra ``speech``).

The names are loaded on first use, so that the audio libraries and Dask are imported only by
those who turn audio into features.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_sketch.diagnostics.detection import ErrorRates, error_rates
    from dask_sketch.speech.enrolment import SpeakerModels, enrol
    from dask_sketch.speech.frames import Frames, open_frames
    from dask_sketch.speech.mfcc import FrontEnd, mfcc_of_file
    from dask_sketch.speech.scoring import score_trials
    from dask_sketch.speech.trials import (
        Split,
        Trial,
        read_enrolment,
        read_trials,
        split_recordings,
        write_trials,
    )
    from dask_sketch.speech.ubm import UniversalModel, universal_model
    from dask_sketch.speech.write import SpeechSummary, write_features

_HOMES = {
    "ErrorRates": "dask_sketch.diagnostics.detection",
    "Frames": "dask_sketch.speech.frames",
    "FrontEnd": "dask_sketch.speech.mfcc",
    "SpeakerModels": "dask_sketch.speech.enrolment",
    "SpeechSummary": "dask_sketch.speech.write",
    "Split": "dask_sketch.speech.trials",
    "Trial": "dask_sketch.speech.trials",
    "UniversalModel": "dask_sketch.speech.ubm",
    "enrol": "dask_sketch.speech.enrolment",
    "error_rates": "dask_sketch.diagnostics.detection",
    "mfcc_of_file": "dask_sketch.speech.mfcc",
    "open_frames": "dask_sketch.speech.frames",
    "read_enrolment": "dask_sketch.speech.trials",
    "read_trials": "dask_sketch.speech.trials",
    "score_trials": "dask_sketch.speech.scoring",
    "split_recordings": "dask_sketch.speech.trials",
    "universal_model": "dask_sketch.speech.ubm",
    "write_features": "dask_sketch.speech.write",
    "write_trials": "dask_sketch.speech.trials",
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
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
