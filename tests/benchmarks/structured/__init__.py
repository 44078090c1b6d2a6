"""Sketches that could cost less: frequencies that share work, at equal size and equal CPU time."""
