"""How well a mixture was found: numbers, pictures and a report."""

from dask_sketch.diagnostics.choice import Choice, choose
from dask_sketch.diagnostics.fit import FitDiagnostics, diagnose

__all__ = ["Choice", "FitDiagnostics", "choose", "diagnose"]
