"""Atoms of all families, the objectives that decoders minimise, and their compiled loops."""
