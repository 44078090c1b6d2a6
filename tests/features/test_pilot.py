from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.features.pilot import Pilot, rounded_characteristic
from dask_sketch.features.pilot_fit import (
    record_pilot,
    rough_mixture,
)
from dask_sketch.models import random_mixture


def test_the_record_of_a_pilot_is_read_back_and_checked():
    rows = random_mixture(2, 3, seed=0).sample(1000, seed=1)
    rows[:, 1] = 4.0  # a feature that does not vary
    pilot = record_pilot(rows, rough_mixture(rows, 2))
    assert pilot.mixture.score > pilot.gaussian_score
    assert pilot.mixture.variances[0, 1] > 0
    found = Pilot.from_dict(pilot.as_dict(), 3)
    assert found.as_dict() == pilot.as_dict()
    assert rough_mixture(rows, None) is None
    assert record_pilot(rows, None).mixture is None
    for change in (
        {"variance": [1.0]},
        {"variance": [1.0, -1.0, 1.0]},
        {"n_rows": "many"},
        {"sampling_loss": -1.0},
        {"sampling_loss": float("nan")},
        {"floor_loss": -1.0},
        {"mixture": {}},
        {"mixture": pilot.as_dict()["mixture"] | {"weights": [2.0, -1.0]}},
        {"mixture": pilot.as_dict()["mixture"] | {"variances": [[0.0] * 3] * 2}},
    ):
        with pytest.raises(InputError, match="pilot"):
            Pilot.from_dict(pilot.as_dict() | change, 3)


def test_the_characteristic_function_is_stored_in_two_bytes_a_frequency():
    rows = random_mixture(2, 3, seed=0).sample(1000, seed=1)
    values = rounded_characteristic(np.exp(1j * np.arange(5.0)))
    pilot = replace(record_pilot(rows, rough_mixture(rows, 2)), characteristic=values)
    found = Pilot.from_dict(pilot.as_dict(), 3, n_frequencies=5)
    np.testing.assert_array_equal(found.characteristic, values)
    assert abs(values - np.exp(1j * np.arange(5.0))).max() < 0.7 / 127
    assert found.checksum == pilot.checksum
    assert len(pilot.as_dict()["characteristic"]) <= 2 * 5 * 4 / 3 + 4
    for text in ("*", "AAA=", 7, "AAAA" * 2):
        with pytest.raises(InputError, match="pilot"):
            Pilot.from_dict(pilot.as_dict() | {"characteristic": text}, 3, n_frequencies=5)
