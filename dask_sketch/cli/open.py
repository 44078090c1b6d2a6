"""Open any artifact or data by its path."""

from __future__ import annotations

from typing import Any

import zarr

from dask_sketch.cli.options import for_url
from dask_sketch.errors import InputError
from dask_sketch.features.artifact import open_feature_map
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.sketching.artifact import GROUP
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.open import is_feature_map, open_group, open_sketch, readable_versions
from dask_sketch.sketching.open import open as open_artifact
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.open import open_samples
from dask_sketch.storage.untrusted import guarded


def open_any(
    path: str, *, storage_options: dict[str, Any] | None = None, **input_arguments: Any
) -> Any:
    """Open a feature map, a sketch, a model or data.

    Parameters
    ----------
    path
        Path or URL.
    storage_options, input_arguments
        Arguments of :func:`open_samples`.

    Returns
    -------
    found : FeatureMap, Sketch, SketchGroup, SecondMoments, GaussianMixture, Centroids or Samples

    Raises
    ------
    ArtifactError
        If a feature map, a sketch or a model is damaged.
    InputError
        If the path does not exist or cannot be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from dask_sketch import FeatureMap
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "map.json"
    >>> _ = path.write_text(FeatureMap(2, 10, scale=1.0).to_json())
    >>> type(open_any(str(path))).__name__
    'FeatureMap'
    """
    options = for_url(path, storage_options)
    if is_feature_map(path) or _schema(path, options) in readable_versions():
        return open_artifact(path, storage_options=options)
    return open_samples(path, storage_options=storage_options, **input_arguments)


def open_one(
    path: str, group: str | None = None, *, storage_options: dict[str, Any] | None = None
) -> Sketch:
    """Open a sketch, or the sketch of one group.

    Parameters
    ----------
    path
        Path or URL of a sketch, or of sketches of groups.
    group
        Label of the group as text, if the path holds sketches of groups.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    sketch
        Sketch of all rows, or of the group.

    Raises
    ------
    ArtifactError
        If there is no sketch at the path, or it is damaged.
    InputError
        If the path holds groups, and ``group`` is not given or not one of them, or if it holds no
        groups, and ``group`` is given.
    """
    options = for_url(path, storage_options)
    if _schema(path, options) != GROUP:
        if group is not None:
            raise InputError(f"group={group!r}: {path} holds no groups; leave it out.")
        return open_sketch(path, storage_options=options)
    sketches = open_group(path, storage_options=options)
    if group is None:
        raise InputError(
            f"{path} holds sketches of groups: name one of {sketches.brief_labels()}.",
            parameter="group",
        )
    texts = {str(label): label for label in sketches}
    if group not in texts:
        raise InputError(f"group={group!r}: choose one of {sketches.brief_labels()}.")
    return sketches[texts[group]]


def open_map(path: str, storage_options: dict[str, Any] | None) -> FeatureMap | MomentGrid:
    """Open a feature map, the feature map of a sketch, or the grid of second moments.

    Parameters
    ----------
    path
        Path or URL that ``design``, ``sketch`` or ``pca --moments`` wrote.
    storage_options
        Options of the file system of URLs.

    Raises
    ------
    ArtifactError
        If the artifact is damaged.
    InputError
        If the path does not exist or cannot be read, or the artifact has no feature map.
    """
    options = for_url(path, storage_options)
    if is_feature_map(path) or _schema(path, options) is None:
        return open_feature_map(path, storage_options)
    artifact = open_artifact(path, storage_options=options)
    owned = getattr(artifact, "feature_map", None)
    if not isinstance(owned, (FeatureMap, MomentGrid)):
        raise InputError(
            f"map={path!r} is of type {type(artifact).__name__}: give a feature map, a sketch or "
            "second moments.",
            parameter="map_path",
        )
    return owned


def _schema(path: str, options: dict[str, Any] | None) -> str | None:
    try:
        root = zarr.open(guarded(path, options), mode="r")
    except (OSError, KeyError, ValueError, TypeError):
        return None  # no Zarr store: open_samples explains why it cannot be read
    return str(root.attrs.get("schema"))
