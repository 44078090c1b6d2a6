"""Record of a run that failed: it is read while it is the last, and never breaks a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dask_sketch import FeatureMap
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger import Ledger, RunRecord, create_ledger, open_ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return create_ledger(tmp_path / "ledger.zarr", FeatureMap(2, 20, scale=1.0))


def test_a_failure_is_that_of_the_last_run(ledger: Ledger) -> None:
    assert ledger.failure is None
    ledger.record_failure("2026-01-01", "2026-01-02", "first")
    ledger.record_failure("2026-01-03", "2026-01-04", "x" * 10**6)
    found = open_ledger(ledger.label).failure
    assert found is not None
    assert (found.run, found.started, found.ended) == (1, "2026-01-03", "2026-01-04")
    assert set(found.error) == {"x"}
    assert len(found.error) <= 2000
    with ledger.lock():
        ledger.commit(run=RunRecord(1, "2026-01-05", "2026-01-05", "done"))
    assert ledger.failure is None
    ledger.record_failure("2026-01-06", "2026-01-06", "second")
    assert "second" in str(ledger.failure)


def test_a_ledger_that_cannot_be_written_hides_no_error(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "ledger.zarr/failure").write_text("no folder")
    ledger.record_failure("2026-01-01", "2026-01-01", "lost")
    assert ledger.entries == {}


@pytest.mark.parametrize("change", ["cut", "edited", "number"])
def test_an_edited_record_is_refused(change: str, ledger: Ledger, tmp_path: Path) -> None:
    ledger.record_failure("2026-01-01", "2026-01-01", "lost")
    path = tmp_path / "ledger.zarr/failure/zarr.json"
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        document = json.loads(path.read_text())
        document["attributes"]["content"]["run" if change == "number" else "error"] = "?"
        path.write_text(json.dumps(document))
    with pytest.raises(LedgerError, match="failure"):
        _ = ledger.failure
