"""Write feature maps to JSON files, and open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.storage.local_files import read_regular_file, replacing, write_errors

MAX_TEXT = 2**26  # bytes: a whitening matrix of 1800 features


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

    Raises
    ------
    ArtifactError
        If a file of this machine cannot be written.
    """
    fs, location = fsspec.core.url_to_fs(path, **(storage_options or {}))
    text = feature_map.to_json() + "\n"
    if isinstance(fs, LocalFileSystem):
        with write_errors(path), replacing(Path(location)) as new:
            new.write_text(text, encoding="utf-8")
        return
    folder, _, _ = location.rpartition("/")
    if folder:
        fs.makedirs(folder, exist_ok=True)
    with fs.open(location, "wt", encoding="utf-8") as file:
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
        fs, location = fsspec.core.url_to_fs(path, **(storage_options or {}))
        if isinstance(fs, LocalFileSystem):
            content = read_regular_file(Path(location), MAX_TEXT + 1)
        else:
            with fs.open(location, "rb") as file:
                content = file.read(MAX_TEXT + 1)
        text = "" if len(content) > MAX_TEXT else content.decode("utf-8")
    except Exception as error:  # file systems fail in many ways
        raise InputError(
            f"feature map {path!r} cannot be read ({type(error).__name__}: {error}); make one with "
            "`dask-sketch design`."
        ) from error
    if len(content) > MAX_TEXT:
        raise ArtifactError(
            f"{path} has over {MAX_TEXT:,} bytes, more than any feature map: give the path of a "
            "file that `dask-sketch design` wrote."
        )
    try:
        return FeatureMap.from_json(text)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error
