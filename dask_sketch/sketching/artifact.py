"""Write sketches, groups of sketches and second moments as labelled datasets.

The reader is :func:`dask_sketch.open`. The functions take any object with the attributes of a
sketch, of a group or of second moments.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError
from dask_sketch.features.feature_map import moment_units
from dask_sketch.features.kernels.fixed_point import (
    FEATURE_FRACTION,
    FRACTION,
    SQUARED_FRACTION,
    WEIGHT_FRACTION,
)
from dask_sketch.sketching.rounding import pack

if TYPE_CHECKING:
    import xarray as xr

SKETCH = "dask-sketch/sketch"
GROUP = "dask-sketch/sketch-group"
MOMENTS = "dask-sketch/second-moments"
PHASES = "dask-sketch/quantized-phases"
VERSIONS = {SKETCH: 2, GROUP: 1, MOMENTS: 1}
# versions of sketches and groups with missing values, and of rounded sketches: earlier software
# would not see it
_WITH_MISSING, _ROUNDED, _GROUP_WITH_MISSING = 3, 4, 2
READABLE: dict[str, int | tuple[int, ...]] = VERSIONS | {
    SKETCH: (VERSIONS[SKETCH], _WITH_MISSING, _ROUNDED),
    GROUP: (VERSIONS[GROUP], _GROUP_WITH_MISSING),
}
# stored name, dimensions and attribute of the sums of a sketch
SUMS = {
    "moment": (("part", "frequency"), "moment_quanta"),
    "first": (("feature",), "first_quanta"),
    "second": (("feature",), "second_quanta"),
}
# stored name and dimension of the counters of missing values, by attribute
MISSING = {
    "frequencies": ("missing_frequency", "frequency"),
    "pairs": ("missing_pair", "pair"),
    "first": ("missing_first", "feature"),
    "second": ("missing_second", "feature"),
}
SAMPLE = ("row_weights", "importance", "keys")
WEIGHTS = {"weight_steps": "weight_quanta", "squared_weight_steps": "squared_weight_quanta"}
# stored name and attribute of the stacks of a group, and the arrays stored under their own names
STACKS = {
    "moment_steps": "moment_quanta",
    "first_steps": "first_quanta",
    "second_steps": "second_quanta",
    **WEIGHTS,
}
# stored name and attribute of the stacks of its counters of missing values
MISSING_STACKS = {
    **{f"{name}_steps": attribute for attribute, (name, _) in MISSING.items()},
    "missing_weight_steps": "weight_quanta",
}
_WORDS = ("high", "low")
ROWS = ("count", "omitted", "minimum", "maximum", "tight_bounds")
_LARGEST = 2**31 - 1  # bytes of one array: the limit of a codec
_VIEWS = {"moment_sum": "frequency", "first_moment": "feature", "second_moment": "feature"}
# The texts below are stored and covered by checksums: a change of them changes stored files.
_MEANING = {
    "moment_sum": "sum_i weight_i * exp(-1j * frequencies.T @ (x_i - center)); not normalised",
    "first_moment": "sum_i weight_i * (x_i - center)",
    "second_moment": "sum_i weight_i * (x_i - center)**2",
    "frequencies": "omega, radians per unit of the data",
    "center": "removed from every sample in moment_sum, first_moment and second_moment",
    "unit": "the power of two in which the moments of each feature are counted",
    "minimum": "smallest value of each feature; an under-estimate if tight_bounds is 0",
    "maximum": "largest value of each feature; an over-estimate if tight_bounds is 0",
    "moment_packed": "binary digits of the rounded parts of moment",
    "sample_rows": "random rows of the data: all whose key is under sample_threshold",
    "sample_row_weights": "weight of each of these rows in the data",
    "sample_importance": "q: a row was chosen with probability min(1, q * sample_threshold)",
    "sample_keys": "u / q, where u in (0, 1) is a hash of the position of the row in its source",
} | {
    f"{name}_{word}": f"of whole numbers {name}_high * 2**56 + {name}_low, the {word} words"
    for name in (*SUMS, *(name for name, _ in MISSING.values()))
    for word in ("high", "low")
}
_SKETCH_CONVENTION = (
    f"Sums are whole numbers (high * 2**56 + low, 0 <= low < 2**56). moment * 2.0**-{FRACTION} has "
    "the real and the imaginary part of moment_sum = sum_i weight_i * exp(-1j * frequencies.T @ "
    f"(x_i - center)); first * 2.0**-{FEATURE_FRACTION} * unit = sum_i weight_i * (x_i - center); "
    f"second * 2.0**-{FEATURE_FRACTION} * unit**2 = sum_i weight_i * (x_i - center)**2; "
    f"total_weight = weight_steps * 2.0**-{WEIGHT_FRACTION} and squared_weight = "
    f"squared_weight_steps * 2.0**-{SQUARED_FRACTION}. z = exp(-1j * frequencies.T @ center) * "
    "moment_sum / total_weight / sqrt(n_frequencies) is eq. (13) of Keriven et al. 2018. To merge "
    "two sketches of one digest, add all whole numbers, count and omitted."
)
_MISSING_CONVENTION = (
    " A frequency is summed over the rows that observe all features it uses: missing_frequency * "
    f"2.0**-{FRACTION} is the weight of the other rows, so that total_weight - missing_frequency * "
    f"2.0**-{FRACTION} takes the place of total_weight in z. missing_pair is that of the rows "
    "without both features of each pair, in the order of numpy.triu_indices (for over 1024 "
    "features, of each feature with itself only), and first and second moments of a feature are "
    "sums over the rows that observe it. missing_first and missing_second are those of the rows "
    "with some missing values alone, whose total weight is missing_weight_steps * "
    f"2.0**-{WEIGHT_FRACTION}. All of these are added like the sums."
)
_ROUNDED_CONVENTION = (
    " The parts of moment were rounded at random, up or down to multiples of powers of two, with "
    "errors of standard deviation rounding_error and expectation zero. moment_packed has them as "
    "integers of moment_bits binary digits, the highest digit first, plus 2**(moment_bits - 1); "
    "moment is such an integer times 2**moment_shift."
)
_GROUP_CONVENTION = (
    "Along group, in the order of labels, stands what dask-sketch/sketch version 2 has of one "
    "sketch. Sums are whole numbers, sum over words k of words[k] * 2**(56 k + shift), with the "
    "shifts in the attribute shifts. labels are numbers; text as its code points, times as whole "
    "numbers of the unit in label_type."
)
_GROUP_MISSING_CONVENTION = (
    " The stacks missing_frequency_steps, missing_pair_steps, missing_first_steps, "
    "missing_second_steps and missing_weight_steps have what dask-sketch/sketch version 3 has of "
    "one sketch with missing values; all are zero for a group without."
)
_MOMENTS_CONVENTION = (
    "y = (x - center) / unit. Sums are integers (high * 2**56 + low, 0 <= low < 2**56) in "
    "multiples of 2**-60. Without n_columns they are those of weight * outer([1, y], [1, y]): the "
    "upper triangle, row after row. With n_columns they are those of weight * outer([1, y], "
    "[1, t]), row after row, then those of weight * y**2, where t = y @ (coins - 32) * test_scale, "
    "and coins are the numbers of bits that are one in n_features * n_columns words of 64 bits of "
    "the generator Philox with the key seed. squared_weight = squared_weight_steps * 2.0**-104. To "
    "merge two of one center, unit, n_columns and seed, add all integers, count and omitted. "
    "With pairwise, [1, y] is [1, e, y] where e is 1 for values that there are, and others are 0."
)


def sketch_dataset(sketch: Any) -> xr.Dataset:
    """Return a sketch as an xarray Dataset with dimensions ``feature`` and ``frequency``.

    The sums are included twice: in float64 for reading, and as the exact integers that are stored.
    """
    views = {
        name: (dimension, getattr(sketch, name), {"meaning": _MEANING[name]})
        for name, dimension in _VIEWS.items()
    }
    weights = {name: getattr(sketch, name) for name in ("total_weight", "squared_weight")}
    return stored_sketch(sketch, packed=False).assign(views).assign_attrs(weights)


def stored_sketch(sketch: Any, *, packed: bool = True) -> xr.Dataset:
    """Return the stored content of a sketch, without values that follow from the rest.

    Parameters
    ----------
    sketch
        Sketch to store.
    packed
        Whether to pack rounded sums, and to leave out the frequencies.
    """
    import xarray as xr

    variables: dict[str, Any] = {
        "frequencies": (("feature", "frequency"), sketch.feature_map.frequencies),
        "center": ("feature", sketch.feature_map.center),
        "unit": ("feature", moment_units(sketch.feature_map)),
        "minimum": ("feature", sketch.minimum),
        "maximum": ("feature", sketch.maximum),
    }
    for name, (dimensions, attribute) in SUMS.items():
        quanta = getattr(sketch, attribute)
        variables[f"{name}_high"] = (dimensions, quanta.high)
        variables[f"{name}_low"] = (dimensions, quanta.low)
    convention, missing = _SKETCH_CONVENTION, sketch.missing
    attrs: dict[str, Any] = {}
    if sketch.rounding_error:
        convention += _ROUNDED_CONVENTION
        attrs["rounding_error"] = sketch.rounding_error
        small = pack(sketch.moment_quanta) if packed else None
        if small is not None:
            variables["moment_packed"] = ("byte", small[0])
            attrs |= {"moment_shift": small[1], "moment_bits": small[2]}
            for name in ("frequencies", "moment_high", "moment_low"):
                del variables[name]
    if missing is not None:
        convention += _MISSING_CONVENTION
        for attribute, (name, dimension) in MISSING.items():
            quanta = getattr(missing, attribute)
            variables[f"{name}_high"] = (dimension, quanta.high)
            variables[f"{name}_low"] = (dimension, quanta.low)
    sample = sketch.sample
    if sample is not None:
        variables["sample_rows"] = (("row", "feature"), sample.rows)
        for name in SAMPLE:
            variables[f"sample_{name}"] = ("row", getattr(sample, name))
    return xr.Dataset(
        {
            name: (dims, values, {"meaning": _MEANING[name]})
            for name, (dims, values) in variables.items()
        },
        attrs={
            "convention": convention,
            "feature_map": sketch.feature_map.spec,
            "digest": sketch.feature_map.digest,
            # as text: JSON numbers have too few digits for other readers
            **{name: str(getattr(sketch, attribute)) for name, attribute in WEIGHTS.items()},
            "count": sketch.count,
            "omitted": sketch.omitted,
            "tight_bounds": int(sketch.tight_bounds),
        }
        | attrs
        | ({} if missing is None else {"missing_weight_steps": str(missing.weight_quanta)})
        | ({} if sketch.privacy is None else {"privacy": json.dumps(asdict(sketch.privacy))})
        | _pilot_of(sketch.feature_map)
        | (
            {}
            if sample is None
            else {"sample_threshold": sample.threshold.hex(), "sample_size": sample.size}
        ),
    )


def sketch_version(sketch: Any) -> int:
    """Version of the stored layout of a sketch."""
    if sketch.rounding_error:
        return _ROUNDED
    return VERSIONS[SKETCH] if sketch.missing is None else _WITH_MISSING


def group_version(group: Any) -> int:
    """Version of the stored layout of a group."""
    return VERSIONS[GROUP] if group.missing is None else _GROUP_WITH_MISSING


def group_dataset(group: Any) -> xr.Dataset:
    """Return the averages of a group of sketches in float64, for reading."""
    import xarray as xr

    dim, feature_map = group.dim, group.feature_map
    return xr.Dataset(
        {
            "z": ((dim, "frequency"), group.z),
            "count": (dim, group.count),
            "omitted": (dim, group.omitted),
            "total_weight": (dim, group.total_weight),
            "squared_weight": (dim, group.squared_weight),
            "mean": ((dim, "feature"), group.mean),
            "variance": ((dim, "feature"), group.variance),
            "minimum": ((dim, "feature"), group.minimum),
            "maximum": ((dim, "feature"), group.maximum),
            "frequencies": (("feature", "frequency"), feature_map.frequencies),
            "center": ("feature", feature_map.center),
        },
        coords={dim: group.labels},
        attrs={
            "convention": "z is eq. (13) of Keriven et al. 2018: the mean of exp(-1j * "
            "frequencies.T @ x) over the samples of a group, over sqrt(n_frequencies)",
            "feature_map": feature_map.spec,
            "digest": feature_map.digest,
            "unlabelled": group.unlabelled,
        },
    )


def stored_group(group: Any) -> xr.Dataset:
    """Return the stored content of a group: frequencies, and all sums as integers.

    Raises
    ------
    ArtifactError
        If an array is too large for a codec.
    """
    import xarray as xr

    stacks = {name: getattr(group, attribute) for name, attribute in STACKS.items()}
    convention = _GROUP_CONVENTION
    if group.missing is not None:
        convention += _GROUP_MISSING_CONVENTION
        stacks |= {
            name: getattr(group.missing, attribute) for name, attribute in MISSING_STACKS.items()
        }
    numbers, label_type = encode_labels(group.labels)
    variables: dict[str, NDArray[Any]] = {
        "frequencies": group.feature_map.frequencies,
        "unit": moment_units(group.feature_map),
        "labels": numbers,
        **{name: getattr(group, name) for name in ROWS},
        **{name: stack.words for name, stack in stacks.items()},
    }
    for name, values in variables.items():
        if values.nbytes > _LARGEST:
            raise ArtifactError(
                f"{name} of {len(group.labels):,} groups takes {values.nbytes:,} bytes, over the "
                f"limit of {_LARGEST:,} for an array: select() parts of the groups, and store each."
            )
    return xr.Dataset(
        {
            name: ([f"{name}_{axis}" for axis in range(values.ndim)], values)
            for name, values in variables.items()
        },
        attrs={
            "convention": convention,
            "feature_map": group.feature_map.spec,
            "digest": group.feature_map.digest,
            "shifts": json.dumps({name: stack.shift for name, stack in stacks.items()}),
            "label_type": label_type,
            "dim": group.dim,
            "unlabelled": group.unlabelled,
        }
        | _pilot_of(group.feature_map),
    )


def stored_moments(moments: Any) -> xr.Dataset:
    """Return the stored content of second moments: conventions, and all sums as integers.

    Raises
    ------
    ArtifactError
        If an array is too large for a codec.
    """
    import xarray as xr

    grid, sums = moments.grid, moments.sums
    if sums.high.nbytes > _LARGEST:
        raise ArtifactError(
            f"the second moments of {grid.n_features:,} features take {sums.nbytes:,} bytes, over "
            f"the limit of {2 * _LARGEST:,} for a file: compute them with fewer n_columns."
        )
    attrs = {
        "convention": _MOMENTS_CONVENTION,
        "seed": str(grid.seed),
        "squared_weight_steps": str(moments.squared_weight_quanta),
        "count": moments.count,
        "omitted": moments.omitted,
    }
    if grid.n_columns is not None:
        attrs |= {"n_columns": grid.n_columns, "test_scale": grid.test_scale}
    if grid.pairwise:
        attrs["pairwise"] = 1
    if grid.feature_names is not None:
        attrs["feature_names"] = json.dumps(grid.feature_names)
    return xr.Dataset(
        {
            "center": ("feature", grid.center, {"meaning": "subtracted from every sample"}),
            "unit": ("feature", grid.unit, {"meaning": "power of two near the deviation"}),
            "sums_high": ("sum", sums.high, {"meaning": "high words of the sums"}),
            "sums_low": ("sum", sums.low, {"meaning": "low words of the sums"}),
        },
        attrs=attrs,
    )


def stored_phases(message: Any) -> xr.Dataset:
    """Return the stored content of quantised phases, without the frequencies."""
    import xarray as xr

    variables: dict[str, Any] = {
        "packed": (("row", "byte"), message.packed),
        "unit": ("feature", moment_units(message.feature_map)),
        "minimum": ("feature", message.minimum),
        "maximum": ("feature", message.maximum),
    }
    for name in ("first", "second"):
        quanta = getattr(message, f"{name}_quanta")
        variables |= {f"{name}_{word}": ("feature", getattr(quanta, word)) for word in _WORDS}
    if message.weights is not None:
        variables["weights"] = ("row", message.weights)
    return xr.Dataset(
        variables,
        attrs={
            "feature_map": message.feature_map.spec,
            "digest": message.feature_map.digest,
            "bits": message.bits,
            "seed": str(message.seed),
            "position": str(message.position),
            "omitted": message.omitted,
            **{name: str(getattr(message, attribute)) for name, attribute in WEIGHTS.items()},
        },
    )


def _pilot_of(feature_map: Any) -> dict[str, str]:
    """Stored record of the pilot, if there is one."""
    return {} if feature_map.pilot is None else {"pilot": json.dumps(feature_map.pilot.as_dict())}


def encode_labels(labels: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Encode labels as an array of numbers, and return it with their type.

    Parameters
    ----------
    labels
        Numbers, text, bytes or times, shape (n_groups,).
    """
    kind = labels.dtype.kind
    if kind in "US":
        code = np.uint32 if kind == "U" else np.uint8
        flat = np.ascontiguousarray(labels)
        if not flat.itemsize:
            return np.zeros((len(labels), 1), code), kind
        return flat.view(code).reshape(len(labels), flat.itemsize // np.dtype(code).itemsize), kind
    if kind in "Mm":
        return labels.view(np.int64), labels.dtype.str[1:]
    return labels, kind
