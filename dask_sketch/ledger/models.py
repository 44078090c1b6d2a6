"""Models in a ledger: ordinary artifacts, which ``open_model`` reads where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_sketch.errors import LedgerError
from dask_sketch.ledger.group import fresh_name
from dask_sketch.ledger.place import Place

if TYPE_CHECKING:
    from dask_sketch.models import Centroids, GaussianMixture

FOLDER = "models"
_OBJECTS, _LIMIT = 64, 2**28  # of a model, and bytes of one of them


def write_model(place: Place, model: GaussianMixture | Centroids, run: int) -> str:
    """Store a model under a fresh name, which is returned."""
    import zarr

    store: dict[str, Any] = {}
    model.to_zarr(zarr.storage.MemoryStore(store))
    name = fresh_name(FOLDER, run)
    place.write({f"{name}/{key}": bytes(value.to_bytes()) for key, value in store.items()})
    return name


def read_model(place: Place, name: str) -> GaussianMixture | Centroids:
    """The model of that name.

    Raises
    ------
    LedgerError, ArtifactError
        If it is missing, edited or damaged.
    """
    import zarr
    from zarr.buffer import cpu

    from dask_sketch.models import open_model

    names = place.find(name)
    if not names or len(names) > _OBJECTS:
        raise LedgerError(f"no model at {place.label}/{name}: {len(names)} objects are there.")
    objects = place.read_many({f"{name}/{key}": _LIMIT for key in names})
    store = zarr.storage.MemoryStore(
        {
            key.removeprefix(f"{name}/"): cpu.Buffer.from_bytes(content)
            for key, content in objects.items()
        }
    )
    return open_model(store)
