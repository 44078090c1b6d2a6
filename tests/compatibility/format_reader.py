"""Reader of stored sketches, written from dask_sketch/FORMAT.md alone."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import numpy as np
import zarr

from compatibility.format_frequencies import sample_frequencies, whitenings


def read(store: str | bytes) -> tuple[dict, dict, dict]:
    """Attributes, arrays and names of dimensions of a Zarr group, or of the bytes of one value."""
    if isinstance(store, bytes):
        with zipfile.ZipFile(io.BytesIO(store)) as file:
            attrs, dims = map(json.loads(file.read("dataset.json")).get, ("attrs", "dims"))
            arrays = {n[:-4]: np.load(file.open(n)) for n in file.namelist() if n.endswith(".npy")}
    else:
        group = zarr.open_group(store, mode="r")
        attrs, stored = dict(group.attrs), dict(group.arrays())
        arrays = {name: np.asarray(array[...]) for name, array in stored.items()}
        dims = {name: list(array.metadata.dimension_names) for name, array in stored.items()}
    signed = {key: value for key, value in attrs.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(signed, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        checksum.update(json.dumps([name, dims[name], array.shape, array.dtype.kind]).encode())
        checksum.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    if checksum.hexdigest() != attrs["checksum"]:
        raise ValueError("the checksum differs")
    if "moment_packed" in arrays:
        unpack(attrs, arrays)
    return attrs, arrays, dims


def unpack(attrs: dict, arrays: dict) -> None:
    """Put the words of rounded sums in the place of their packed digits."""
    bits, m = attrs["moment_bits"], json.loads(attrs["feature_map"])["n_frequencies"]
    digits = np.unpackbits(arrays["moment_packed"], count=2 * m * bits).reshape(2, m, bits)
    moment = (digits @ 2 ** np.arange(bits)[::-1] - 2 ** (bits - 1)).astype(object)
    moment <<= attrs["moment_shift"]
    arrays["moment_high"], arrays["moment_low"] = moment >> 56, moment % 2**56


def radians(spec: str, cycles: np.ndarray) -> np.ndarray:
    """Matrix of frequencies, in radians per unit of the data."""
    return whitenings(json.loads(spec))[1].T @ (cycles.astype(float) * (2 * np.pi))


def whole(arrays: dict, name: str) -> np.ndarray:
    """Sums of two arrays, as Python integers."""
    return arrays[f"{name}_high"].astype(object) * 2**56 + arrays[f"{name}_low"].astype(object)


def shifted(moment: np.ndarray, weight: np.ndarray, spec: str) -> np.ndarray:
    """Sketch of a sum in steps of 2**-71 and a weight in steps of 2**-80."""
    omega, center = radians(spec, sample_frequencies(spec)), json.loads(spec)["center"]
    real, imaginary = np.moveaxis(moment.astype(float) * 512 / weight.astype(float), -2, 0)
    return np.exp(-1j * (center @ omega)) * (real + 1j * imaginary) / np.sqrt(omega.shape[1])


def sketch_z(attrs: dict, arrays: dict) -> np.ndarray:
    """Complex sketch of eq. 13."""
    missing = 512 * whole(arrays, "missing_frequency") if "missing_frequency_low" in arrays else 0
    weight = np.asarray(int(attrs["weight_steps"]) - missing, dtype=object)
    return shifted(whole(arrays, "moment"), weight, attrs["feature_map"])


def group_z(attrs: dict, arrays: dict) -> np.ndarray:
    """Complex sketch of every group, one in a row."""
    sums, shifts = {}, json.loads(attrs["shifts"])
    for name in ("moment_steps", "weight_steps", "missing_frequency_steps"):
        words = arrays[name].astype(object) if name in arrays else []
        sums[name] = sum(word * 2 ** (56 * k + shifts[name]) for k, word in enumerate(words))
    weight = sums["weight_steps"][:, None, None]
    if "missing_frequency_steps" in arrays:
        weight = weight - 512 * sums["missing_frequency_steps"][:, None]
    return shifted(sums["moment_steps"], weight, attrs["feature_map"])


def labels(attrs: dict, arrays: dict) -> np.ndarray:
    """Labels of the groups."""
    stored, kind = np.ascontiguousarray(arrays["labels"]), attrs["label_type"]
    if kind in "US":
        return stored.view(f"{kind}{stored.shape[1]}")[:, 0]
    return stored.view(kind) if kind[0] in "mM" else stored


def moment_matrix(attrs: dict, arrays: dict) -> tuple[np.ndarray, np.ndarray | None]:
    """Second moments as integers in steps of 2**-60, and with a test matrix the squares."""
    sums, d = whole(arrays, "sums"), len(arrays["center"])
    if "n_columns" in attrs:
        return sums[:-d].reshape(d + 1, attrs["n_columns"] + 1), sums[-d:]
    side = 1 + d * (1 + attrs.get("pairwise", 0))
    matrix = np.empty((side, side), dtype=object)
    matrix[np.triu_indices(side)] = sums
    matrix.T[np.triu_indices(side)] = sums
    return matrix, None


def test_matrix(attrs: dict, arrays: dict) -> np.ndarray:
    """Random matrix with which values are multiplied, shape (feature, column)."""
    shape = len(arrays["center"]), attrs["n_columns"]
    words = np.random.Philox(key=int(attrs["seed"])).random_raw(shape[0] * shape[1])
    return attrs["test_scale"] * (np.bitwise_count(words) - 32.0).reshape(shape)
