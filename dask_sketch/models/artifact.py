"""Models as labelled datasets, and in Zarr groups."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import Decoding, Model, StandardErrors
from dask_sketch.storage.artifact import read_dataset

if TYPE_CHECKING:
    import xarray as xr

VERSION = 1
_STDERR = "_stderr"  # ending of the names of standard errors
_DECODING = (
    "`decoding` is JSON: how the model was fitted; cost is the squared distance between the "
    "sketch and that of the model, eq. (9) of Keriven et al. 2018."
)


@dataclass(frozen=True)
class _Kind:
    """How a kind of model is stored: its arrays and what they mean."""

    model: type[GaussianMixture] | type[Centroids]
    meaning: dict[str, str]
    convention: str


_KINDS = {
    "dask-sketch/gaussian-mixture": _Kind(
        GaussianMixture,
        {
            "weights": "probability of each component; they sum to one",
            "means": "mean of each component, in the units of the data",
            "covariances": "diagonal of each component's covariance matrix: variances, squared "
            "units",
        },
        "density = sum_k weights[k] * prod_l Normal(x[l]; means[k, l], variance "
        "covariances[k, l]). ",
    ),
    "dask-sketch/centroids": _Kind(
        Centroids,
        {
            "weights": "share of the samples that each centroid stands for; they sum to one",
            "centers": "position of each centroid, in the units of the data",
        },
        "a sample belongs to the nearest centroid, by Euclidean distance. ",
    ),
}
SCHEMAS: tuple[str, ...] = tuple(_KINDS)
_MIXTURE = SCHEMAS[0]


def schema_of(model: Model) -> str:
    """The schema that a model is stored by."""
    return next(schema for schema, kind in _KINDS.items() if isinstance(model, kind.model))


def to_dataset(model: Model) -> xr.Dataset:
    """The model as an xarray Dataset with dimensions ``component`` and ``feature``."""
    import xarray as xr

    kind = _KINDS[schema_of(model)]
    variables = {}
    for name, text in kind.meaning.items():
        values = getattr(model, name)
        variables[name] = (("component", "feature")[: values.ndim], values, {"meaning": text})
    if isinstance(model, GaussianMixture) and model.stderr is not None:
        for name, text in kind.meaning.items():
            values = getattr(model.stderr, name)
            meaning = f"standard error of: {text}"
            dimensions = ("component", "feature")[: values.ndim]
            variables[name + _STDERR] = (dimensions, values, {"meaning": meaning})
    record = None if model.decoding is None else asdict(model.decoding)
    attrs = {
        "convention": kind.convention + _DECODING,
        "decoding": json.dumps(record, sort_keys=True),
    }
    return xr.Dataset(variables, attrs=attrs)


def from_dataset(
    dataset: xr.Dataset, schema: str = _MIXTURE, name: str = "the dataset"
) -> GaussianMixture | Centroids:
    """Rebuild a model.

    Raises
    ------
    ArtifactError
        If a variable or attribute is missing or is not that of such a model.
    """
    kind = _KINDS[schema]
    noun = schema.rsplit("/", 1)[-1].replace("-", " ")
    try:
        record = _record(dataset.attrs["decoding"])
        arrays: dict[str, Any] = {variable: dataset[variable].values for variable in kind.meaning}
        if kind.model is GaussianMixture and "means" + _STDERR in dataset:
            arrays["stderr"] = StandardErrors(
                **{variable: dataset[variable + _STDERR].values for variable in kind.meaning}
            )
        return kind.model(**arrays, decoding=record)
    except InputError as error:
        raise ArtifactError(f"{name} does not hold a {noun}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{name} is no {noun}: {error!r} is missing or unreadable.") from error


_NUMBERS = ("cost", "noise_level", "seconds")
_COUNTS = ("seed", "replicates", "n_evaluations")
_LONGEST = 1000  # characters of a text in the record, all of which are shown


def _record(text: str) -> Decoding | None:
    """The decoding record, once its values are of the kinds that are shown and computed with."""
    found = json.loads(text)
    if found is None:
        return None
    names = found.get("feature_names")
    tuples = {"trace": tuple(found["trace"]), "feature_names": names and tuple(names)}
    record = Decoding(**(found | tuples))
    texts = [record.method, record.model, record.message, record.refine or "", *(names or ())]
    numbers = [getattr(record, name) for name in _NUMBERS] + [*record.trace]
    numbers += [x for x in (record.variance_floor, record.searched) if x is not None]
    if (
        not all(isinstance(value, str) and len(value) <= _LONGEST for value in texts)
        or not all(type(value) in (int, float) for value in numbers)
        or not all(type(getattr(record, name)) is int for name in _COUNTS)
        or type(record.converged) is not bool
    ):
        raise InputError("its record of decoding has values of another kind than it should.")
    return record


def open_model(
    store: Any, *, storage_options: dict[str, Any] | None = None
) -> GaussianMixture | Centroids:
    """Read a model that ``to_zarr`` stored, of whichever kind it is.

    Parameters
    ----------
    store
        Path, URL or Zarr store.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    model
        GaussianMixture or Centroids, with the same bits as the one stored, and its decoding
        record.

    Raises
    ------
    ArtifactError
        If there is none, or it is truncated, edited or of another schema; the message says which.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "model.zarr"
    >>> Centroids([1.0], [[0.0, 1.0]]).to_zarr(place)
    >>> open_model(place).centers
    array([[0., 1.]])
    """
    dataset = read_dataset(store, SCHEMAS, VERSION, storage_options=storage_options)
    return from_dataset(dataset, dataset.attrs["schema"], str(store))


def open_mixture(store: Any, *, storage_options: dict[str, Any] | None = None) -> GaussianMixture:
    """Read a mixture that ``to_zarr`` stored; refuse any other model.

    Parameters
    ----------
    store
        Path, URL or Zarr store.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    mixture
        As from :func:`open_model`.

    Raises
    ------
    ArtifactError
        If there is none, or it is truncated, edited or of another schema; the message says which.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> mixture = GaussianMixture([1.0], [[0.0, 1.0]], [[1.0, 2.0]])
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "mixture.zarr"
    >>> mixture.to_zarr(place)
    >>> open_mixture(place).means
    array([[0., 1.]])
    """
    dataset = read_dataset(store, (_MIXTURE,), VERSION, storage_options=storage_options)
    mixture = from_dataset(dataset, _MIXTURE, str(store))
    assert isinstance(mixture, GaussianMixture)
    return mixture
