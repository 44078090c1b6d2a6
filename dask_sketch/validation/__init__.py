"""Validate arguments."""
