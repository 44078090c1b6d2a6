"""Nightly jobs: job files, runs, and their results in a ledger."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_sketch.jobs.past_drift import drift_history
    from dask_sketch.jobs.past_models import model_history
    from dask_sketch.jobs.run import plan_job, run_job
    from dask_sketch.jobs.verify import verify_job

__all__ = ["drift_history", "model_history", "plan_job", "run_job", "verify_job"]
# loaded when first used, so that the command line prints its help without the numerics
_HOME = {
    "drift_history": "past_drift",
    "model_history": "past_models",
    "plan_job": "run",
    "run_job": "run",
    "verify_job": "verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dask_sketch.jobs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dask_sketch.jobs.{_HOME[name]}"), name)
