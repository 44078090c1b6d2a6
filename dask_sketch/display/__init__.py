"""Presentation: text, HTML, progress bars and pictures of plain values and arrays."""
