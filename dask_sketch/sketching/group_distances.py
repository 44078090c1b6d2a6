"""How far the laws of groups are apart: all pairs at once, from their sketches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import psutil
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dask_sketch.errors import InputError

if TYPE_CHECKING:
    import xarray as xr

    from dask_sketch.sketching.group_averages import GroupAverages

_NUMBERS = 2**22  # of a block of sketch vectors in float64

Array = NDArray[np.float64]


def discrepancies(group: GroupAverages, squared: bool) -> xr.DataArray:
    """See :meth:`~dask_sketch.SketchGroup.mmd`.

    ``||z_a - z_b||**2`` less the expected noise of both, ``(mean(w**2) - |w z|**2) / (n - 1)``
    with the effective count ``n`` and weights ``w`` of the features.
    """
    import xarray as xr

    n, m = len(group.labels), group.feature_map.n_frequencies
    if 8 * n * n > psutil.virtual_memory().available // 2:
        raise InputError(
            f"a matrix of {n:,} by {n:,} groups takes {8e-9 * n * n:.3g} GB, more than half of the "
            "memory that there is: select() some of the groups."
        )
    weights = group.feature_map.feature_weights
    unit = (np.ones(m) if weights is None else weights) / np.sqrt(m)
    step = max(_NUMBERS // (2 * m), 1)
    blocks = [slice(start, min(start + step, n)) for start in range(0, n, step)]
    out = np.empty((n, n))
    count = group.effective_count
    energy, noise = np.empty(n), np.full(n, np.nan)
    # one thread: rounding does not depend on how many there are
    with threadpool_limits(1, user_api="blas"):
        for k, block in enumerate(blocks):
            mine = _vectors(group, unit, block)
            energy[block] = np.einsum("ij,ij->i", mine, mine)
            for other in blocks[: k + 1]:
                theirs = mine if other == block else _vectors(group, unit, other)
                out[block, other] = mine @ theirs.T
                out[other, block] = out[block, other].T
    enough = count > 1.0 + 1e-9
    spread = float(unit @ unit) - energy[enough]
    noise[enough] = np.maximum(spread, 0.0) / (count[enough] - 1.0)
    for block in blocks:
        cost = (energy[block, None] + energy) - 2.0 * out[block]
        out[block] = cost - (noise[block, None] + noise)
    np.fill_diagonal(out, np.where(enough, 0.0, np.nan))
    if not squared:
        np.sqrt(np.maximum(out, 0.0, out=out), out=out)
    dims = (group.dim, f"other_{group.dim}")
    return xr.DataArray(
        out,
        dict.fromkeys(dims, group.labels),
        dims,
        name="squared_mmd" if squared else "mmd",
    )


def _vectors(group: GroupAverages, unit: Array, block: slice) -> Array:
    """Real and imaginary parts of the sketch vectors of some groups, side by side."""
    vectors = unit * group.characteristic(block)
    return np.concatenate([vectors.real, vectors.imag], axis=1)
