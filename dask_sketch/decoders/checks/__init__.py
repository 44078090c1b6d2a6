"""Checks of decoded models: comparisons with simple rivals, and warnings with their losses."""
