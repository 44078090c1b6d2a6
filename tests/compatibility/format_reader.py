"""Reader of stored sketches, written from dask_sketch/FORMAT.md alone."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import numpy as np
import zarr
from scipy import special


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


def choose(uniform: np.ndarray, weights: list[float]) -> np.ndarray:
    """Index drawn by each uniform number."""
    return np.searchsorted(np.cumsum(np.asarray(weights) / np.sum(weights))[:-1], uniform, "right")


def scaled(rng: np.random.Generator, law: str, normal: np.ndarray) -> np.ndarray:
    """Rows with the radii of a distribution."""
    (m, d), sums = normal.shape, law == "sparse-sums"
    uniform = (rng.permutation(m) + rng.random(m)) / m if sums else rng.random(m)
    if law == "folded-gaussian":
        radius = special.ndtri(0.5 + uniform / 2)
    elif law == "clustering":
        order = d / 2 + choose(rng.random(m), [1, 2, 1 + 2 / d])
        radius = np.sqrt(2 * special.gammaincinv(order, uniform))
    else:
        half = special.gammainccinv(1.5, special.gammaincc(1.5, 2) * (1 - uniform)) / 2
        radius = 2 * np.sqrt(np.maximum(half - 1, 0)) * np.sqrt(0.5 if sums else 1)
    if law == "sparse-radius":
        normal[rng.random((m, d)).argsort(axis=1) >= 4] = 0
    return normal * (radius / np.linalg.norm(normal, axis=1))[:, None]


def whitenings(parts: dict) -> tuple[np.ndarray, np.ndarray]:
    """Matrices of the whitening of the frequencies, and of the rows of the data."""
    matrix = np.asarray(parts["whitening"] or np.eye(parts["n_features"]))
    mixed = parts["law"] == "sparse-sums" and np.any(matrix - np.diag(np.diag(matrix)))
    return (np.eye(len(matrix)), matrix) if mixed else (matrix, np.eye(len(matrix)))


def pairs(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Sums and differences of the base frequencies of each group."""
    sums = [u[:, :, None] + v[:, None], u[:, :, None] - v[:, None]]
    return np.stack(sums, axis=3).reshape(-1, u.shape[-1])


def mixed_cycles(
    rng: np.random.Generator,
    law: str,
    levels: np.ndarray,
    m: int,
    variances: np.ndarray,
    weights: list[float],
) -> np.ndarray:
    """Cycles of numeric and categorical features; the latter have levels."""
    n, d, of = 4 * m, len(levels), np.flatnonzero(levels)
    variances = np.where(levels > 0, (levels**2 - 1) / 12, variances)
    row = choose(rng.random(n), weights) if len(variances) > 1 else np.zeros(n, dtype=int)
    normal = rng.standard_normal((n, d))
    if law == "gaussian":
        used = (rng.random((n, d)) < 0.5) | (levels == 0)
    else:
        uniform = rng.random(n)
        size = np.minimum(2 + (uniform >= 0.45) + (uniform >= 0.9), d)
        used = rng.random((n, d)).argsort(axis=1) < size[:, None]
        alone = used[:, levels == 0].any(axis=1) & (rng.random(n) < 0.5)
        used &= ~(alone[:, None] & (levels > 0))
        half = special.gammainccinv(1.5, special.gammaincc(1.5, 2) * (1 - rng.random(n))) / 2
        normal[~used] = 0
        norm = np.linalg.norm(normal[:, levels == 0], axis=1)
        normal *= (2 * np.sqrt(np.maximum(half - 1, 0)) / np.where(norm > 0, norm, 1))[:, None]
    cycles = normal / np.sqrt(variances[row]) / (2 * np.pi)
    u, size = rng.random((n, len(of))), levels[of]
    h = np.floor(u * size) if law == "gaussian" else np.floor(u * (size - 1)) + 1
    cycles[:, of] = np.where(used[:, of], np.where(2 * h > size, h - size, h) / size, 0)
    if law == "gaussian":
        return cycles[:m].T
    single = [(h, k) for h in range(1, levels.max() // 2 + 1) for k in of if 2 * h <= levels[k]]
    first = np.zeros((len(single[: max(m // 2, 1)]), d))
    for place, (h, k) in enumerate(single[: len(first)]):
        first[place, k] = h / levels[k]
    seen: set[tuple[float, ...]] = set()
    new, again = [], []
    for each in np.concatenate([first, cycles]):
        key = max(tuple(each + 0.0), tuple(0.0 - each))
        (again if key in seen else new).append(each)
        seen.add(key)
    return np.array([*new, *again])[:m].T


def sample_frequencies(spec: str) -> np.ndarray:
    """Matrix of cycles, float32, of a specification."""
    parts = json.loads(spec)
    d, m, law, scale = (parts[key] for key in ("n_features", "n_frequencies", "law", "scale"))
    variances = np.atleast_2d(parts["covariances"] or [scale**2] * d)
    weights = parts["law_weights"] or [1.0] * len(variances)
    rng, whitening = np.random.default_rng(parts["seed"]), whitenings(parts)[0]
    if "categories" in parts:
        levels = np.array([len(one or ()) for one in parts["categories"]])
        return mixed_cycles(rng, law, levels, m, variances, weights).astype("f4")
    if law != "sparse-sums":
        row = choose(rng.random(m), weights) if len(variances) > 1 else np.zeros(m, dtype=int)
        normal = rng.standard_normal((m, d))
        normal = normal if law == "gaussian" else scaled(rng, law, normal)
        return (whitening.T @ (normal / np.sqrt(variances[row])).T / (2 * np.pi)).astype("f4")
    n, sides = 4 * -(-m // 32), []
    for _ in "uv":
        deck, side = np.hstack([rng.permutation(d) for _ in range(0, 2 * n, d)]), np.zeros((n, d))
        for first in (0, 1):
            side[np.arange(n), deck[first : 2 * n : 2]] = rng.standard_normal(n)
        sides.append(scaled(rng, law, side).reshape(-1, 4, d))
    row = choose((rng.permutation(n // 4) + rng.random(n // 4)) / (n // 4), weights)
    x = pairs(*(sides / np.sqrt(variances[row])[:, None])) @ whitening / (2 * np.pi)
    x[m:] = np.nan
    x = x.reshape(-1, 32, d)
    u = x[:, ::8] - np.nan_to_num(x[:, :1] - x[:, 1:2]) / 2
    base = np.stack([u, x[:, :8:2] - u[:, :1]])
    step = np.ldexp(1.0, np.frexp(np.nanmax(np.abs(base), axis=(0, 1, 2)))[1] - 23)
    return pairs(*(np.trunc(base / step) * step))[:m].T.astype("f4")


def digest(spec: str, cycles: np.ndarray) -> str:
    """SHA-256 of a specification and its frequencies."""
    return hashlib.sha256(spec.encode() + b"\0" + cycles.astype("<f4").tobytes()).hexdigest()


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


def add(a: tuple[dict, ...], b: tuple[dict, ...]) -> tuple[dict, dict]:
    """Attributes and arrays of the sum of two sketches of one version, without random rows."""
    (attrs, arrays), (other, others) = map(dict, a[:2]), b[:2]
    if any(attrs[key] != other[key] for key in ("digest", "schema_version")):
        raise ValueError("the sketches cannot be added")
    attrs |= {key: attrs[key] + other[key] for key in ("count", "omitted")}
    attrs |= {k: str(int(attrs[k]) + int(other[k])) for k in attrs if k.endswith("weight_steps")}
    for name in [key[:-5] for key in arrays if key.endswith("_high")]:
        sums = whole(arrays, name) + whole(others, name)
        arrays[f"{name}_high"], arrays[f"{name}_low"] = np.array([sums >> 56, sums % 2**56], int)
    arrays["minimum"] = np.minimum(arrays["minimum"], others["minimum"])
    arrays["maximum"] = np.maximum(arrays["maximum"], others["maximum"])
    return attrs, arrays


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
