"""What a ledger is founded on: its schema and its feature map."""

from __future__ import annotations

from typing import Any

from dask_sketch.errors import ArtifactError, LedgerError
from dask_sketch.features import FeatureMap
from dask_sketch.ledger.group import (
    ROOT,
    Reference,
    fresh_name,
    read_arrays,
    read_attributes,
    sealed,
    unsealed,
    write_group,
)
from dask_sketch.ledger.place import Place
from dask_sketch.storage import MAX_BYTES

SCHEMA = "dask-sketch/ledger"
VERSION = 1
FOLDER = "feature_map"
_LIMIT = 2**20


def write_root(place: Place, feature_map: FeatureMap) -> None:
    """Found a ledger; of two that try at once, one succeeds.

    Raises
    ------
    LedgerError
        If something stands there.
    """
    exists = LedgerError(
        f"{place.label} exists. Open it with open_ledger, or choose another place."
    )
    # an interrupted foundation left only that, or what it was to be before it had its name
    if {name for name in place.names("") if not name.startswith(".")} - {FOLDER}:
        raise exists
    reference = write_group(
        place,
        fresh_name(FOLDER, 0),
        {"frequencies": feature_map.frequencies},
        {"spec": feature_map.spec, "digest": feature_map.digest},
    )
    content: dict[str, Any] = {"feature_map": reference.to_json()}
    try:
        place.write_new(ROOT, sealed(SCHEMA, VERSION, content))
    except FileExistsError as error:
        raise exists from error


def read_root(place: Place) -> FeatureMap:
    """The feature map of a ledger.

    Raises
    ------
    LedgerError
        If there is no ledger, or it was edited or damaged.
    """
    try:
        found = place.read(ROOT, _LIMIT)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LedgerError(f"no ledger at {place.label}: there is none. Create it first.") from error
    content = unsealed(found, SCHEMA, VERSION, place.label)
    try:
        reference = Reference.from_json(content["feature_map"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LedgerError(f"{place.label} names no feature map: {error!r}.") from error
    (attributes,) = read_attributes(place, [reference])
    spec, digest = attributes.get("spec"), attributes.get("digest")
    if not isinstance(spec, str) or not isinstance(digest, str):
        raise LedgerError(f"{place.label}/{reference.name} does not hold a feature map.")
    try:
        plain = FeatureMap.from_spec(spec)
        shape = (plain.n_features, plain.n_frequencies)
        if 8 * plain.n_features * plain.n_frequencies > MAX_BYTES:
            raise LedgerError(f"{place.label} states a feature map of shape {shape}: too large.")
        expected = {"frequencies": (shape, "float64")}
        frequencies = read_arrays(place, reference, attributes, expected)["frequencies"]
        return FeatureMap.from_spec(spec, digest, frequencies)
    except ArtifactError as error:
        raise LedgerError(f"{place.label}/{reference.name}: {error}") from error
