"""Colours of pictures and pages, on light and on dark paper."""

from __future__ import annotations

# colours of pictures: the contrast to white and to near-black is at least 3
BLUE, ORANGE, GREEN, GREY = "#3b82d6", "#d97706", "#3a9150", "#85878c"

# text has a contrast of at least 4.5 on paper, page and strong alike; a test computes it
SCHEMES = {
    "light": {
        "ink": "#1d2026",
        "soft": "#565c66",
        "paper": "#ffffff",
        "page": "#f3f4f6",
        "line": "#d5d8de",
        "strong": "#e8f0fb",
    },
    "dark": {
        "ink": "#e4e6ea",
        "soft": "#a6adb8",
        "paper": "#1b1e24",
        "page": "#121418",
        "line": "#363b45",
        "strong": "#22304a",
    },
}
