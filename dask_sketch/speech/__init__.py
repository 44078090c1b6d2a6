"""Speech front end: audio files to a labelled Zarr store of MFCC frames (extra ``speech``).

The names are loaded on first use, so that the audio libraries and Dask are imported only by
those who turn audio into features.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_sketch.speech.frontend import FrontEnd, mfcc_of_file
    from dask_sketch.speech.write import SpeechSummary, write_features

__all__ = ["FrontEnd", "SpeechSummary", "mfcc_of_file", "write_features"]

_HOMES = {
    "FrontEnd": "frontend",
    "SpeechSummary": "write",
    "mfcc_of_file": "frontend",
    "write_features": "write",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
