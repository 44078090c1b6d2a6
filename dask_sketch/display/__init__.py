"""How objects look in a notebook: cards of words and small pictures, on light and dark themes."""

from __future__ import annotations

from dask_sketch.display.drawing import BLUE, GREEN, GREY, ORANGE
from dask_sketch.display.html import card, grid

__all__ = ["BLUE", "GREEN", "GREY", "ORANGE", "card", "grid"]
