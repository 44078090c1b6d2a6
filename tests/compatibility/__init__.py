"""Artifacts of an earlier version, and what is expected of them."""
