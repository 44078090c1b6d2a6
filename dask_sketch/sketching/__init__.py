"""Sketches of samples and of groups of samples, their algebra, storage and privacy."""
