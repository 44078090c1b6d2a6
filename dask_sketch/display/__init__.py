"""How objects look in a notebook: cards of words and small pictures, on light and dark themes."""

from dask_sketch.display.card import card, grid
from dask_sketch.display.drawing import BLUE, GREEN, GREY, ORANGE

__all__ = ["BLUE", "GREEN", "GREY", "ORANGE", "card", "grid"]
