"""Tests of two or many distributions and of independence, and points of change."""
