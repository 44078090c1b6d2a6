"""Entry point of ``python -m dask_sketch``, the command line."""

from __future__ import annotations

from dask_sketch.cli.main import main

if __name__ == "__main__":
    main()
