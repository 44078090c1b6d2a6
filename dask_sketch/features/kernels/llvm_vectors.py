"""The vocabulary of the inner loops: operations on vectors of LLVM, cosine and sine among them.

Phases are counted in *cycles*. Half the angle goes into two polynomials, from which the whole
follows with one product for each of cosine and sine, and without a sign to restore::

    r = t - round(t)                                        # exact
    S = sqrt(2) sin(pi r),    C = sqrt(2) cos(pi r)         # |r| <= 1/2, five terms each
    1 - cos(2 pi t) = S S,    sin(2 pi t) = S C

**The grid.** A sum over samples takes products not as floats but as whole numbers of steps, of
``2**-22`` (float32) or ``2**-50`` (float64). ``p = a b + start`` is a fused multiply-add, rounded
once, to nearest. Its result lies in one binade, [2, 4) or [4, 8), where floats are one step apart
and their bits, read as an integer, count the steps. So ``bits(p) - bits(start)`` is ``a b``,
rounded to the grid by that one rounding: it depends on ``a`` and ``b`` alone, never on a sum so
far, as ``a b + sum`` would. Integers add to the same bits in any order, and subtract exactly.

Error: at most half a step, or ``2**-23``, unbiased but for ties. ``S S`` is in [0, 2] and has
``start`` at the lower end of the binade, the other products are in [-1, 1] and have theirs in the
middle. In float32 rounding takes ``S S`` to 2 plus 1.2 steps, ``S C`` to 1 plus 0.3 and a cosine
to -1 less one: over an end of the binade floats are twice as near, or half, so that there an
integer may be one step off. It is at most ``2**23 + 1`` for ``S S`` and ``2**22 + 2`` for others. A
weight in [0, 1] is multiplied onto one factor before; where a factor is zero, so is the integer.

Capacity: the bits of ``start`` are added along and taken out at the end, modulo a power of two, in
which nothing is lost as long as the true sum fits: ``n (2**23 + 1) < 2**31`` for ``n`` up to 255
rows in 32 bits. Before that many, they move to sums of 64 bits.

Operations are written out, rather than left to LLVM's loop vectoriser, for two reasons. The
vectoriser gives up on these loops (it cannot prove that sums and frequencies do not overlap),
which costs a factor of ten. And since every operation is spelled out, with explicit fused
multiply-adds and **no fast-math flag**, LLVM may not reorder, contract or replace any: a sample's
contribution has the same bits wherever it stands in a chunk, whatever the chunk, the block, the
width of the vectors or the machine. What each flag would change: ``contract`` fuses products with
sums and ``reassoc`` reorders sums, as each width likes it; ``arcp`` and ``afn`` approximate
divisions and functions, of which there are none; ``nsz`` loses the sign of zeros; ``nnan`` and
``ninf`` make undefined what a phase that overflows gives. None would save an operation. On a
processor without fused multiply-adds the same bits come from the C library, far more slowly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

FRACTION = {"float32": 22, "float64": 50}  # steps of 2**-FRACTION
# what products are added to, where bits count steps: squares in [0, 2], products in [-1, 1]
SQUARE = {"float32": 2.0, "float64": 4.0}
PRODUCT = {"float32": 3.0, "float64": 6.0}
VECTOR_BITS = 512  # LLVM splits the vectors into what the processor has (AVX-512, AVX2, NEON)
# sqrt(2) sin(pi r) / r and sqrt(2) cos(pi r) as polynomials in r**2 on |r| <= 1/2: least squares
# over Chebyshev nodes, each coefficient rounded to float32 before the next is fitted. Exact to
# 2e-8 in S S and 1e-7 in S C. Literals, so that every machine has the same bits.
_SINE32 = (
    4.442883014678955,
    -7.308248043060303,
    3.6063714027404785,
    -0.8461539149284363,
    0.10984394699335098,
)
_COSINE32 = (
    1.4142135381698608,
    -6.978853225708008,
    5.739493370056152,
    -1.8837343454360962,
    0.31100213527679443,
)


def _taylor(first: int, terms: int) -> tuple[float, ...]:
    """Taylor coefficients of sqrt(2) sin(pi r) / r (first=1) or sqrt(2) cos(pi r) (first=0)."""
    value = math.sqrt(2.0) * (math.pi if first else 1.0)
    out = []
    for k in range(terms):
        out.append(value)
        n = 2 * k + first
        value *= -math.pi * math.pi / ((n + 1) * (n + 2))
    return tuple(out)


# (pi / 2)**23 / 23! is 1e-18: Taylor is as good as any other choice at this length.
_POLYNOMIALS = {
    "float32": (_SINE32, _COSINE32),
    "float64": (_taylor(1, 12), _taylor(0, 12)),
}


class Vectors:
    """Emits operations on vectors of one real type.

    Parameters
    ----------
    builder
        Of llvmlite, at the place where the code shall stand.
    kind
        ``"float32"`` or ``"float64"``.
    vector_bits
        Of one vector.
    """

    def __init__(self, builder: Any, kind: str, vector_bits: int = VECTOR_BITS):
        self.builder = builder
        self.kind = kind
        self.bits = 64 if kind == "float64" else 32
        self.lanes = vector_bits // self.bits
        self.type = ir.VectorType(real(kind), self.lanes)
        self.integers = ir.VectorType(ir.IntType(self.bits), self.lanes)

    def constant(self, value: float) -> Any:
        """The same number in every lane."""
        return ir.Constant(self.type, [value] * self.lanes)

    def _call(self, name: str, *operands: Any) -> Any:
        signature = ir.FunctionType(self.type, [self.type] * len(operands))
        symbol = f"llvm.{name}.v{self.lanes}f{self.bits}"
        function = cgutils.get_or_insert_function(self.builder.module, signature, symbol)
        return self.builder.call(function, operands)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """``a b + c``, rounded once."""
        return self._call("fma", a, b, c)

    def steps(self, a: Any, b: Any, start: dict[str, float]) -> Any:
        """``a b`` in steps of the grid, plus ``bits_of(start)``, as integers."""
        total = self.multiply_add(a, b, self.constant(start[self.kind]))
        return self.builder.bitcast(total, self.integers)

    def add_in_order(self, total: Any, steps: Any) -> Any:
        """``total + steps`` before the next addition.

        Left to reorder them, LLVM keeps so many waiting that they spill to the stack.
        """
        b = self.builder
        fenced = self._call("arithmetic.fence", b.bitcast(b.add(total, steps), self.type))
        return b.bitcast(fenced, self.integers)

    def _polynomial(self, coefficients: tuple[float, ...], y: Any) -> Any:
        total = self.constant(coefficients[-1])
        for value in coefficients[-2::-1]:
            total = self.multiply_add(total, y, self.constant(value))
        return total

    def load(self, pointer: Any, kind: Any, align: int) -> Any:
        """A vector of type ``kind`` from a pointer to scalars."""
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()), align=align)

    def part(self, pointer: Any, n: int) -> Any:
        """The nth vector of reals from a pointer."""
        place = self.builder.gep(pointer, [ir.IntType(64)(n * self.lanes)])
        return self.load(place, self.type, self.bits // 8)

    def put(self, value: Any, pointer: Any) -> None:
        """Write a vector of reals to a pointer."""
        place = self.builder.bitcast(pointer, self.type.as_pointer())
        self.builder.store(value, place, align=self.bits // 8)

    def spread(self, value: Any, kind: Any = None) -> Any:
        """One scalar in every lane, of a vector of these reals or of type ``kind``."""
        kind = self.type if kind is None else kind
        blank = ir.Constant(kind, ir.Undefined)
        index = ir.IntType(32)
        first = self.builder.insert_element(blank, value, ir.Constant(index, 0))
        mask = ir.Constant(ir.VectorType(index, kind.count), None)
        return self.builder.shuffle_vector(first, blank, mask)

    def half_angle(self, cycles: Any) -> tuple[Any, Any]:
        """``S`` and ``C`` of the module's text."""
        b = self.builder
        r = b.fsub(cycles, self._call("rint", cycles))
        y = b.fmul(r, r)
        sine, cosine = _POLYNOMIALS[self.kind]
        return b.fmul(self._polynomial(sine, y), r), self._polynomial(cosine, y)

    def cosine_sine(self, cycles: Any, weight: Any = None) -> tuple[Any, Any]:
        """Cosine and sine of 2 pi cycles, times a weight."""
        s, c = self.half_angle(cycles)
        b = self.builder
        share = s if weight is None else b.fmul(s, weight)
        one = self.constant(1.0) if weight is None else weight
        return self.multiply_add(b.fneg(share), s, one), b.fmul(share, c)


def bits_of(start: dict[str, float], kind: str) -> int:
    """What one row adds to a sum of :meth:`Vectors.steps` besides its steps."""
    return int(np.array(start[kind], kind).view(kind.replace("float", "int")))


def whole(kind: str) -> Any:
    """The integer type of LLVM that is as wide."""
    return ir.IntType(64 if kind == "float64" else 32)


def real(kind: str) -> Any:
    """The scalar type of LLVM."""
    return ir.DoubleType() if kind == "float64" else ir.FloatType()
