"""Compiled kernels that sum random Fourier features."""
