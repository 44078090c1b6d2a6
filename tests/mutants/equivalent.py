"""Changes that make no difference to any result, found among survivors, with the reason."""

from __future__ import annotations

# By the path below dask_sketch and the changed line.
EQUIVALENT = {
    (
        "features/kernels/grouped.py",
        "first[self._begun] = -2",
    ): "another negative number that stands for no segment",
    (
        "features/kernels/grouped_loops.py",
        "for block in range(((vectors + STEPS + 1)) // STEPS):",
    ): "a further block, which has no vectors",
    (
        "decoders/objectives/normal_equations.py",
        "_POWERS = 21 # products that estimate the largest eigenvalue",
    ): "a closer estimate",
    (
        "features/kernels/whitened_rows.py",
        "columns = np.zeros(((d + elements - 1) * elements) * elements * pitch, rows.dtype)",
    ): "a longer buffer, whose end is never read",
    (
        "features/kernels/grouped.py",
        "pass",
        "segments.starts[filled + 1 :] = segments.starts[filled]",
    ): "starts of empty segments, where lanes without a row may read any row",
    (
        "features/kernels/fixed_point.py",
        "if number % _CARRY_INTERVAL == 1:",
    ): "carries are as frequent, from another block on",
    (
        "sketching/partial.py",
        "step = min(step if w is None else GATHERED * step, len(x) or 2)",
    ): "size of the blocks of a chunk without rows",
    (
        "decoders/objectives/atom_kernels.py",
        "for p in range(column.shape[1]):",
    ): "the array is square",
    (
        "decoders/descent.py",
        "damping, growth = max(damping, 1e-6) * growth, 4.0 * growth",
    ): "schedule of the damping after a failed step, which changes the number of steps only",
    (
        "decoders/efficient.py",
        "self._unit = 2.0 / np.sqrt(np.maximum(self.information.diagonal(), 1e-300))",
    ): "a factor of the preconditioner, which cancels",
    (
        "decoders/descent.py",
        "elif 0.0 <= predicted < (0.01 / enough) and damping <= 1.0:",
    ): "the descent ends after another failed step, where none is left that decreases the cost",
    (
        "decoders/descent.py",
        "damping, growth = (max(damping, 1e-06) / growth), 2.0 * growth",
    ): "schedule of the damping after a failed step, which changes the number of steps only",
    (
        "decoders/descent.py",
        "many = objective.n_frequencies > (2 / enough)",
    ): "frequencies of the approximate Gram matrix, which change the number of steps only",
    (
        "decoders/noise_covariance.py",
        "x = (theta[labels, :d] - away)",
    ): "the distribution of the random points is symmetric",
    (
        "features/kernels/row_loop.py",
        "fine &= (w == 0.0) | (((w > 2.0 ** MIN_EXPONENT)) & (w <= 2.0**MAX_EXPONENT))",
    ): "the search for the row that is out of range finds none",
    (
        "features/kernels/grouped_loops.py",
        "prefetch_element(values, at + b, 1)",
    ): "a hint to the processor, which changes no value",
    (
        "features/kernels/row_reader.py",
        "groups: list[tuple[int, slice]] = field(init=True, default_factory=list)",
    ): "nobody gives the argument",
    (
        "features/kernels/grouped.py",
        "narrow, words = most < 2**31 and split is None, 1 + (most >= 2**63)",
    ): "one word holds all sums below 2**63; the bound leaves one bit",
    (
        "sketching/accumulator.py",
        "direct = 0 if (not (buffer.count)) else len(x) // self._size * self._size",
    ): "rows are held before they are added, or added directly",
    (
        "decoders/efficient.py",
        "last = (moved <= _STOP) or left == 0",
    ): "the moves of two rounds are never equal to the bound",
}
