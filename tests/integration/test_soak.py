"""A few tries of each attack of `make soak`."""

from __future__ import annotations

import pytest
from soak import ATTACKS, SLOW, attempt


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in SLOW])
@pytest.mark.parametrize("seed", [1000, 1001])
@pytest.mark.few_cases(6)
def test_attacks_end_in_errors_of_the_package(seed, name):
    assert attempt(name, seed) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_slow_attacks(name):
    assert attempt(name, 1000) is None
