"""Write feature maps to JSON files, and open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.storage.replace import replacing

MAX_TEXT = 2**26  # characters: a whitening matrix of 1800 features


def write_feature_map(
    path: str, feature_map: FeatureMap, storage_options: dict[str, Any] | None = None
) -> None:
    """Write a feature map to a JSON file, and make its folder.

    Parameters
    ----------
    path
        Path or URL of the file, which is replaced if it exists.
    feature_map
        Feature map to write.
    storage_options
        Options of the file system of a URL.
    """
    fs, place = fsspec.core.url_to_fs(path, **(storage_options or {}))
    text = feature_map.to_json() + "\n"
    if isinstance(fs, LocalFileSystem):
        with replacing(Path(place)) as new:
            new.write_text(text, encoding="utf-8")
        return
    folder, _, _ = place.rpartition("/")
    if folder:
        fs.makedirs(folder, exist_ok=True)
    with fs.open(place, "wt", encoding="utf-8") as file:
        file.write(text)


def open_feature_map(path: str, storage_options: dict[str, Any] | None = None) -> FeatureMap:
    """Open a feature map that :func:`write_feature_map` or ``dask-sketch design`` wrote.

    Parameters
    ----------
    path
        Path or URL of the file.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    feature_map

    Raises
    ------
    InputError
        If the file does not exist or cannot be read.
    ArtifactError
        If the file holds no feature map, or was edited.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = str(pathlib.Path(tempfile.mkdtemp()) / "map.json")
    >>> feature_map = FeatureMap(2, 10, scale=1.0)
    >>> write_feature_map(path, feature_map)
    >>> open_feature_map(path) == feature_map
    True
    """
    try:
        with fsspec.open(path, "rt", encoding="utf-8", **(storage_options or {})) as file:
            text = file.read(MAX_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"feature map {path!r} cannot be read ({type(error).__name__}); make one with "
            "`dask-sketch design`."
        ) from error
    if len(text) > MAX_TEXT:
        raise ArtifactError(
            f"{path} has over {MAX_TEXT:,} characters, more than any feature map: give the path of "
            "a file that `dask-sketch design` wrote."
        )
    try:
        return FeatureMap.from_json(text)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error
