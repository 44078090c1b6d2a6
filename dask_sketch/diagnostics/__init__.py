"""How well a mixture was found: numbers, pictures and a report."""

from __future__ import annotations

from dask_sketch.diagnostics.fit import FitDiagnostics, diagnose
from dask_sketch.diagnostics.model_selection import Choice, choose

__all__ = ["Choice", "FitDiagnostics", "choose", "diagnose"]
