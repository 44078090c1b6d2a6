"""Small artifacts of every kind that the package stores, and damaged and edited copies."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import dask_sketch as ds
from dask_sketch import models
from dask_sketch.distributions import DistributionClassifier, DistributionRegressor
from dask_sketch.models.principal_components import PrincipalComponents
from dask_sketch.sketching.open import readable_versions
from dask_sketch.sketching.quantized_phases import quantize_phases
from dask_sketch.storage.artifact import checksum, packed_dataset
from dask_sketch.storage.artifact_reader import unpacked_dataset

ROWS = np.random.default_rng(0).normal(size=(60, 2)).astype("f4")
MAP = ds.FeatureMap(2, 12, scale=1.0)
LABELS = np.arange(60) % 6


def _missing() -> Any:
    rows = np.random.default_rng(1).normal(size=(60, 4))
    rows[::7, 1] = np.nan
    sparse = ds.FeatureMap(4, 12, scale=1.0, distribution="sparse-sums")
    return ds.partial_sketch(rows, sparse, nan_policy="available")


def _mixture() -> Any:
    return ds.GaussianMixture([0.5, 0.5], [[0.0, 1.0], [2.0, 3.0]], np.ones((2, 2)))


def _decoded() -> Any:
    designed = ds.design(ROWS, n_components=2, n_frequencies=50)
    return ds.decode(ds.partial_sketch(ROWS, designed), 2)


MAKERS: dict[str, Callable[[], Any]] = {
    "sketch": lambda: ds.partial_sketch(ROWS, MAP),
    "sketch with rows": lambda: ds.partial_sketch(ROWS, MAP, sample=20),
    "weighted sketch": lambda: ds.partial_sketch(ROWS, MAP, np.full(60, 0.25), sample=20),
    "sketch of missing values": _missing,
    "rounded sketch": lambda: ds.partial_sketch(ROWS, MAP).rounded(7),
    "released sketch": lambda: ds.privatise(ds.partial_sketch(ROWS, MAP), 1.0),
    "group": lambda: ds.partial_sketch(ROWS, MAP, groups=LABELS, dim="day"),
    "group of names": lambda: ds.partial_sketch(
        ROWS, MAP, groups=np.array(list("abcdef"))[LABELS], dim="name"
    ),
    "second moments": lambda: ds.second_moments(ROWS),
    "phases": lambda: quantize_phases(ROWS, MAP, bits=2, seed=3),
    "weighted phases": lambda: quantize_phases(ROWS, MAP, np.full(60, 0.5), seed=3),
    "mixture": _mixture,
    "decoded mixture": _decoded,
    "full mixture": lambda: ds.GaussianMixture(
        [1.0], [[0.0, 1.0]], [[[2.0, 0.5], [0.5, 1.0]]], covariance_type="full"
    ),
    "centroids": lambda: ds.Centroids([0.5, 0.5], [[0.0, 1.0], [2.0, 3.0]]),
    "directions": lambda: models.VonMisesFisherMixture([1.0], [[0.0, 1.0]], [5.0]),
    "heavy tails": lambda: models.AlphaStableMixture([1.0], [[0.0, 5.0]], [[1.0, 2.0]], [1.5]),
    "latent classes": lambda: models.LatentClassMixture([1.0], [[0.5, 0.5]], [("a", "b")]),
    "components": lambda: PrincipalComponents(
        [0.5, -2.0], [[0.6, 0.8]], [1 / 3], 0.75, 1 / 6, 0.0625, 1000, ("a", "b")
    ),
    "regressor": lambda: DistributionRegressor(8, layer="random").fit(
        ds.partial_sketch(ROWS, MAP, groups=LABELS, dim="day"), np.arange(6.0)
    ),
    "classifier": lambda: DistributionClassifier(3).fit(
        ds.partial_sketch(ROWS, MAP, groups=LABELS, dim="day"), list("ababab")
    ),
    "feature map": lambda: ds.design(ROWS, n_components=2, n_frequencies=50),
}


@functools.cache
def made(name: str) -> Any:
    """Artifact of a kind, computed once in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of so few rows
        return MAKERS[name]()


def content(artifact: Any) -> bytes:
    """Bytes that are equal for equal artifacts."""
    if isinstance(artifact, ds.FeatureMap):
        return artifact.to_json().encode()
    return bytes(artifact.to_bytes())


def mutated(rng: np.random.Generator, content: bytes) -> bytes:
    """Change, cut, repeat or exchange a few parts of a file."""
    out = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        if not out:
            break
        at = int(rng.integers(len(out)))
        to = min(at + int(rng.integers(1, 40)), len(out))
        kind = rng.integers(6)
        if kind == 0:
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            out[at:to] = rng.bytes(to - at)
        elif kind == 2:
            del out[at:to]
        elif kind == 3:
            out[at:at] = out[at:to] * int(rng.integers(1, 4))
        elif kind == 4:
            del out[at:]
        else:  # another number in a text
            number = rng.choice([b"0", b"-1", b"1e999", b"99999999999999999999", b"NaN", b"null"])
            out[at:to] = number
    return bytes(out)


_VALUES: list[Any] = [
    0, -1, 2, 2**31, -(2**63), 2**100, 1e308, -1e308, 1e-320, float("nan"), float("inf"), 0.5, None,
    True, "", "9" * 30, "-5", [], {}, [1, 1],
]  # fmt: skip
_INTEGERS = [0, 1, 127, 2**31 - 1, 2**63 - 1]
_REALS = [0.0, -1.0, 1e308, np.nan, -np.inf, 1e-320, 1e9]
_TYPES = ["f4", "i1", "u1", "i8", "?", "c16", "f8"]


def _edited_json(rng: np.random.Generator, value: Any) -> Any:
    """Replace or remove one part of a document, which may be text within a document."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = list(value)[int(rng.integers(len(value)))]
        rest = {name: part for name, part in value.items() if name != key}
        return rest if rng.random() < 0.1 else value | {key: _edited_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = int(rng.integers(len(value)))
        return [_edited_json(rng, part) if i == at else part for i, part in enumerate(value)]
    if isinstance(value, str) and value[:1] in ("{", "[") and rng.random() < 0.9:
        return json.dumps(_edited_json(rng, json.loads(value)))
    if isinstance(value, str) and value and rng.random() < 0.5:
        return mutated(rng, value.encode()).decode(errors="replace")
    return _VALUES[int(rng.integers(len(_VALUES)))]


def edited(rng: np.random.Generator, content: bytes) -> bytes:
    """Change one attribute or array of an artifact, with a checksum that agrees.

    Parameters
    ----------
    rng
        Random number generator.
    content
        Result of ``to_bytes``.
    """
    dataset = unpacked_dataset(content, readable_versions())
    if rng.random() < 0.5:
        fixed = ("schema", "schema_version", "convention", "written_by")
        names = [name for name in dataset.attrs if name not in fixed]
        name = names[int(rng.integers(len(names)))]
        dataset.attrs[name] = _edited_json(rng, dataset.attrs[name])
    else:
        name = list(map(str, dataset.variables))[int(rng.integers(len(dataset.variables)))]
        dims, values = dataset[name].dims, dataset[name].values.copy()
        kind = int(rng.integers(5))
        if kind < 2 and values.size:
            choice = _REALS if values.dtype.kind in "fc" else _INTEGERS
            new = np.array(choice)[int(rng.integers(len(choice)))]
            at = int(rng.integers(values.size)) if kind else slice(None)
            with np.errstate(all="ignore"):
                values.reshape(-1)[at] = new.astype(values.dtype)
        elif kind == 2:
            with np.errstate(all="ignore"):
                values = values.astype(_TYPES[int(rng.integers(len(_TYPES)))])
        elif kind == 3:
            dims, values = ("other", *dims), values[None]
        else:
            dims = tuple(f"short_{dim}" for dim in dims)
            values = values[: int(rng.integers(3))] if dims else values
        dataset = dataset.drop_vars(name).assign({name: (dims, values)})
    return packed_dataset(dataset.assign_attrs(checksum=checksum(dataset)))


def use(artifact: Any) -> None:
    """Describe an artifact, store it, and compute what each kind is for."""
    repr(artifact)
    content(artifact)
    if isinstance(artifact, (DistributionRegressor, DistributionClassifier)):
        artifact.predict(made("group"))
    elif isinstance(artifact, ds.SketchGroup):
        artifact.select(np.arange(len(artifact)) % 2 == 0)
    elif isinstance(artifact, ds.SecondMoments):
        artifact.variance  # noqa: B018
    elif isinstance(artifact, PrincipalComponents):
        artifact.transform(np.zeros((3, artifact.n_features)))
    elif hasattr(artifact, "predict"):
        artifact.predict(np.ones((3, artifact.n_features)))
    elif hasattr(artifact, "sketch"):
        artifact.sketch()
