"""Regression and classification of groups of samples, from their sketches."""
