"""Diagnose fits, compare models and data sets, and write reports."""

from __future__ import annotations

from dask_sketch.diagnostics.bootstrap import Bootstrap, bootstrap
from dask_sketch.diagnostics.fit import FitDiagnostics, diagnose
from dask_sketch.diagnostics.guarantees import (
    Guarantees,
    component_risk_bound,
    excess_risk_bound,
    prune_close_centroids,
    sample_isometry,
    sketch_sizes,
)
from dask_sketch.diagnostics.model_selection import ModelSelection, select_model

__all__ = [
    "Bootstrap",
    "FitDiagnostics",
    "Guarantees",
    "ModelSelection",
    "bootstrap",
    "component_risk_bound",
    "diagnose",
    "excess_risk_bound",
    "prune_close_centroids",
    "sample_isometry",
    "select_model",
    "sketch_sizes",
]
