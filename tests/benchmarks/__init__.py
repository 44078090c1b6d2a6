"""Benchmarks: `make bench` prints the figures; the tests run a tiny form of each."""
