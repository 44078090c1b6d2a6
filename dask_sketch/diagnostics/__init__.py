"""Diagnose fits, compare models and data sets, and write reports."""

from __future__ import annotations

from dask_sketch.diagnostics.fit import FitDiagnostics, diagnose
from dask_sketch.diagnostics.model_selection import ModelSelection, select_model

__all__ = ["FitDiagnostics", "ModelSelection", "diagnose", "select_model"]
