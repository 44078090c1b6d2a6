"""Where arrays lie, and whether there is a GPU: the one place that imports CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import DeviceError

CAPABILITY = 80  # of the GPU: bfloat16 tensor operations


def on_device(x: Any) -> bool:
    """Whether an array lies in the memory of a GPU.

    Examples
    --------
    >>> on_device(np.zeros(3))
    False
    """
    return hasattr(x, "__cuda_array_interface__")


def device_array(x: Any) -> Any:
    """What lies in the memory of a GPU as a CuPy array, without copying it."""
    return cupy().asarray(x)


def on_host(x: Any) -> NDArray[Any]:
    """An array as one of NumPy; copied from the memory of a GPU if it lies there."""
    return np.asarray(device_array(x).get() if on_device(x) else x)


def cupy() -> Any:
    """CuPy, once there is a GPU that it can use.

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
            f"({error}). Install dask-sketch[gpu] on every worker, or leave device out to use the "
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
    if capability < CAPABILITY:
        raise DeviceError(
            f"there are {count} GPUs here, of compute capability {capability / 10:g}; the kernel "
            f"needs one of at least {CAPABILITY / 10:g}. Leave device out to use the processor."
        )
    return found
