"""The mixture as a labelled dataset, and in a Zarr group."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.models.decoding import Decoding
from dask_sketch.models.mixture import GaussianMixture
from dask_sketch.storage import read_dataset, write_dataset

if TYPE_CHECKING:
    import xarray as xr

SCHEMA = "dask-sketch/gaussian-mixture"
VERSION = 1

_MEANING = {
    "weights": "probability of each component; they sum to one",
    "means": "mean of each component, in the units of the data",
    "covariances": "diagonal of each component's covariance matrix: variances, squared units",
}
_CONVENTION = (
    "density = sum_k weights[k] * prod_l Normal(x[l]; means[k, l], variance covariances[k, l]). "
    "`decoding` is JSON: how the mixture was fitted; cost is the squared distance between the "
    "sketch and that of the mixture, eq. (9) of Keriven et al. 2018."
)


def to_dataset(mixture: GaussianMixture) -> xr.Dataset:
    """The mixture as an xarray Dataset with dimensions ``component`` and ``feature``."""
    import xarray as xr

    dims = {"weights": ("component",)}
    variables = {
        name: (dims.get(name, ("component", "feature")), getattr(mixture, name), {"meaning": text})
        for name, text in _MEANING.items()
    }
    record = None if mixture.decoding is None else asdict(mixture.decoding)
    attrs = {"convention": _CONVENTION, "decoding": json.dumps(record, sort_keys=True)}
    return xr.Dataset(variables, attrs=attrs)


def from_dataset(dataset: xr.Dataset, name: str = "the dataset") -> GaussianMixture:
    """Rebuild a mixture.

    Raises
    ------
    ArtifactError
        If a variable or attribute is missing or is not that of a mixture.
    """
    try:
        record = json.loads(dataset.attrs["decoding"])
        if record is not None:
            record = Decoding(**(record | {"trace": tuple(record["trace"])}))
        return GaussianMixture(
            weights=dataset["weights"].values,
            means=dataset["means"].values,
            covariances=dataset["covariances"].values,
            decoding=record,
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ArtifactError(f"{name} is not a mixture: {error!r} is missing or unreadable.") from (
            error
        )
    except InputError as error:
        raise ArtifactError(f"{name} does not hold a mixture: {error}") from error


def save_mixture(
    mixture: GaussianMixture,
    store: Any,
    *,
    overwrite: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> None:
    """Store a mixture as a Zarr group: schema, conventions, decoding record and a checksum.

    Parameters
    ----------
    mixture
        What to store.
    store
        Path, URL or Zarr store.
    overwrite
        Replace what stands there.
    storage_options
        Options of the file system of a URL.

    Raises
    ------
    ArtifactError
        If the store exists and ``overwrite`` is not set.
    """
    write_dataset(
        to_dataset(mixture),
        store,
        SCHEMA,
        VERSION,
        overwrite=overwrite,
        storage_options=storage_options,
    )


def open_mixture(store: Any, *, storage_options: dict[str, Any] | None = None) -> GaussianMixture:
    """Read a mixture that :meth:`GaussianMixture.to_zarr` stored.

    Parameters
    ----------
    store
        Path, URL or Zarr store.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    mixture
        With the same bits as the one stored, and its decoding record.

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
    dataset = read_dataset(store, SCHEMA, VERSION, storage_options=storage_options)
    return from_dataset(dataset, str(store))
