"""Loads ``sketch.yaml`` into ``dask.config`` under the key ``sketch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.config
import yaml

_DEFAULTS = yaml.safe_load((Path(__file__).parent / "sketch.yaml").read_text())
dask.config.update_defaults(_DEFAULTS)


def get(key: str) -> Any:
    """A setting of dask-sketch.

    Examples
    --------
    >>> get("split-every")
    16
    """
    # with its default: when this module is first loaded inside `with dask.config.set(...)`, the end
    # of that block takes the whole of `sketch` out of the configuration again
    return dask.config.get(f"sketch.{key}", _DEFAULTS["sketch"][key])
