"""Partitions that are sketched again, and compared."""

from __future__ import annotations

import pytest

from dask_sketch import open_ledger
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger import reader as verification

KEYS = [f"p{i}" for i in range(20)]


@pytest.fixture
def filled(ledger, world):
    with ledger.lock():
        ledger.commit(added=world.new(*KEYS[:12]))
        ledger.commit(added=world.new(*KEYS[12:]))
    return ledger


def honest(world, asked=None):
    def resketch(keys):
        if asked is not None:
            asked.extend(keys)
        return {key: world.sketch(key) for key in keys}

    return resketch


def test_a_share(filled, world):
    asked = []
    found = filled.verify(0.3, 1, honest(world, asked))
    assert len(found.checked) == 6
    assert sorted(found.checked) == sorted(asked)
    assert found.is_sound
    assert found.total_differs is None
    assert filled.verify(0.3, 1, honest(world)).checked == found.checked
    assert filled.verify(0.3, 2, honest(world)).checked != found.checked
    assert len(filled.verify(1e-9, 1, honest(world)).checked) == 1


def test_all(filled, world, url, monkeypatch):
    monkeypatch.setattr(verification, "VERIFIED_AT_ONCE", 7)
    found = open_ledger(url).verify(1, 0, honest(world))
    assert sorted(found.checked) == sorted(KEYS)
    assert found.total_differs is False
    assert found.is_sound


def test_what_differs_and_what_is_missing(filled, world):
    def resketch(keys):
        found = {key: world.sketch(key) for key in keys if key != "p4"}
        return found | {"p7": world.sketch("p7", version=1)}

    found = filled.verify(1, 0, resketch)
    assert found.differing == ("p7",)
    assert found.missing == ("p4",)
    assert "p4" not in found.checked
    assert not found.is_sound


def test_a_total_that_is_not_the_sum(filled, world):
    filled._sum = world.total(KEYS[:5])
    found = filled.verify(1, 0, honest(world))
    assert found.total_differs is True
    assert not found.is_sound


@pytest.mark.parametrize("share", [0, -1, 1.1, float("nan")])
@pytest.mark.few_cases(4)
def test_shares_out_of_range(share, filled, world):
    with pytest.raises(LedgerError, match="fraction="):
        filled.verify(share, 0, honest(world))


def test_an_empty_ledger_is_sound(ledger, world):
    found = ledger.verify(0.5, 0, honest(world))
    assert found.checked == ()
    assert found.is_sound
