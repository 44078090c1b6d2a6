"""Mutants of the numerics: see ``python -m tests.mutants --help``."""
