"""Find the device of arrays, and import CuPy if there is a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import DeviceError, install_command

MIN_CAPABILITY = 80  # compute capability with tensor operations of bfloat16


def on_device(x: Any) -> bool:
    """Whether an array is in the memory of a GPU.

    Examples
    --------
    >>> on_device(np.zeros(3))
    False
    """
    return hasattr(x, "__cuda_array_interface__")


def device_array(x: Any) -> Any:
    """Convert an array in the memory of a GPU to CuPy, without a copy."""
    return cupy().asarray(x)


def on_host(x: Any) -> NDArray[Any]:
    """Convert an array to NumPy; copy it from the memory of a GPU if necessary."""
    return np.asarray(from_device(x))


def from_device(x: Any) -> Any:
    """Copy an array from the memory of a GPU to NumPy; return anything else as it is."""
    return device_array(x).get() if on_device(x) else x


def cupy() -> Any:
    """Import CuPy, if there is a suitable GPU.

    Raises
    ------
    DeviceError
        If CuPy is not installed, there is no GPU, or the GPU is too old.
    """
    try:
        import cupy as found
    except ImportError as error:
        raise DeviceError(
            "device='cuda' needs CuPy, which cannot be imported here "
            f"({error}): {install_command('gpu')} on every worker, or leave device out to use the "
            "processor."
        ) from error
    try:
        count = int(found.cuda.runtime.getDeviceCount())
    except Exception as error:  # the type belongs to CuPy: no driver, or an older one
        raise DeviceError(
            f"CuPy finds no GPU here ({error}). Check the driver with nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or leave device out to use the processor."
        ) from error
    capability = int(found.cuda.Device().compute_capability) if count else 0
    if capability < MIN_CAPABILITY:
        raise DeviceError(
            f"there are {count} GPUs here, of compute capability {capability / 10:g}; the kernel "
            f"needs one of at least {MIN_CAPABILITY / 10:g}. Leave device out to use the processor."
        )
    return found
