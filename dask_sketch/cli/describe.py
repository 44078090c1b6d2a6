"""Open any artifact or data by its path, and describe it as fields."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

import zarr

from dask_sketch.display.text import describe
from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.artifact import GROUP
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.open import ALL_VERSIONS, is_feature_map, open_group, open_sketch
from dask_sketch.sketching.open import open as open_artifact
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.open import open_samples
from dask_sketch.sources.samples import Samples
from dask_sketch.storage.untrusted import guarded


def open_any(path: str, *, storage_options: dict[str, Any] | None = None, **opening: Any) -> Any:
    """Open a feature map, a sketch, a model or data.

    Parameters
    ----------
    path
        Path or URL.
    storage_options, opening
        Arguments of :func:`open_samples`.

    Returns
    -------
    found : FeatureMap, Sketch, SketchGroup, GaussianMixture, Centroids or Samples

    Raises
    ------
    ArtifactError
        If a feature map, a sketch or a model is damaged.
    InputError
        If the path does not exist or cannot be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "map.json"
    >>> _ = path.write_text(FeatureMap(2, 10, scale=1.0).to_json())
    >>> type(open_any(str(path))).__name__
    'FeatureMap'
    """
    options = storage_options if "://" in path or "::" in path else None
    if is_feature_map(path) or _schema(path, options) in ALL_VERSIONS:
        return open_artifact(path, storage_options=options)
    return open_samples(path, storage_options=storage_options, **opening)


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

    Raises
    ------
    ArtifactError
        If there is no sketch at the path, or it is damaged.
    InputError
        If the path holds groups, and ``group`` is not given or not one of them, or if it holds no
        groups, and ``group`` is given.
    """
    options = storage_options if "://" in path or "::" in path else None
    if _schema(path, options) != GROUP:
        if group is not None:
            raise InputError(f"group={group!r}: {path} holds no groups; leave it out.")
        return open_sketch(path, storage_options=options)
    found = open_group(path, storage_options=options)
    if group is None:
        raise InputError(
            f"{path} holds sketches of groups: name one of {found.brief_labels()}.",
            parameter="group",
        )
    texts = {str(label): label for label in found}
    if group not in texts:
        raise InputError(f"group={group!r}: choose one of {found.brief_labels()}.")
    return found[texts[group]]


def _schema(path: str, options: dict[str, Any] | None) -> str | None:
    try:
        root = zarr.open(guarded(path, options), mode="r")
    except (OSError, KeyError, ValueError, TypeError):
        return None  # no Zarr store: open_samples explains why it cannot be read
    return str(root.attrs.get("schema"))


@functools.singledispatch
def values(found: Any) -> dict[str, Any]:
    """Describe an artifact or data as plain values, for programs."""
    raise InputError(f"{type(found).__name__} has no description.")


@values.register(FeatureMap)
@values.register(Sketch)
@values.register(SketchGroup)
@values.register(Samples)
def _(found: FeatureMap | Sketch | SketchGroup | Samples) -> dict[str, Any]:
    return found.as_dict()


@values.register
def _(found: GaussianMixture) -> dict[str, Any]:
    return _values_of_model("mixture", found) | {
        "weights": found.weights,
        "means": found.means,
        "covariances": found.covariances,
        "stderr": None if found.stderr is None else asdict(found.stderr),
    }


@values.register
def _(found: Centroids) -> dict[str, Any]:
    return _values_of_model("centroids", found) | {
        "weights": found.weights,
        "centers": found.centers,
    }


def _values_of_model(kind: str, found: GaussianMixture | Centroids) -> dict[str, Any]:
    names = ("method", "model", "refine", "cost", "noise_level", "converged", "seconds")
    polishing = None if found.polishing is None else asdict(found.polishing)
    return {
        "kind": kind,
        "n_components": found.n_components,
        "n_features": found.n_features,
        **{name: getattr(found.decoding, name) if found.decoding else None for name in names},
        "polishing": polishing,
    }


@functools.singledispatch
def fields(found: Any) -> dict[str, str]:
    """Describe an artifact or data as texts, for people."""
    raise InputError(f"{type(found).__name__} has no description.")


@fields.register(FeatureMap)
@fields.register(Sketch)
@fields.register(SketchGroup)
@fields.register(Samples)
def _(found: FeatureMap | Sketch | SketchGroup | Samples) -> dict[str, str]:
    return describe(found.as_dict())


@fields.register
def _(found: GaussianMixture) -> dict[str, str]:
    out = _fields_of_model("mixture", found)
    if found.stderr is not None:
        largest = {name: error.max() for name, error in asdict(found.stderr).items()}
        out["standard errors"] = (
            f"up to {largest['weights']:.2g} of weights, {largest['means']:.2g} of means, "
            f"{largest['covariances']:.2g} of variances"
        )
    return out


@fields.register
def _(found: Centroids) -> dict[str, str]:
    return _fields_of_model("centroids", found)


def _fields_of_model(kind: str, found: GaussianMixture | Centroids) -> dict[str, str]:
    model = {"model": found.decoding.model} if found.decoding else {}
    return {"kind": kind} | model | found._fields()
