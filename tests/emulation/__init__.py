"""A GPU in slow motion: CuPy's few functions in use, and CUDA kernels as C++ on the processor."""
