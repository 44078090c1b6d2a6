"""Emulation of a GPU: functions of CuPy, and CUDA kernels as C++ on the processor."""
