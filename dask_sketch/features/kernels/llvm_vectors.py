"""Emit vector operations of LLVM, cosine and sine among them, for the compiled inner loops.

Phases are counted in *cycles*. Half the angle is the argument of two polynomials, from which cosine
and sine follow with one product each, without a sign to restore::

    r = t - round(t)                                        # exact
    S = sqrt(2) sin(pi r),    C = sqrt(2) cos(pi r)         # |r| <= 1/2, five terms each
    1 - cos(2 pi t) = S S,    sin(2 pi t) = S C

**The grid.** A sum over samples adds products as integers that count quanta of ``2**-22`` (float32)
or ``2**-50`` (float64). ``p = a b + start`` is a fused multiply-add, rounded once, to nearest. Its
result lies in one binade, [2, 4) or [4, 8), where adjacent floats are one quantum apart and their
bits, read as an integer, count the quanta. So ``bits(p) - bits(start)`` is ``a b``, rounded to the
grid by that one rounding: it depends on ``a`` and ``b`` alone, and not on the sum so far, as
``a b + sum`` would. Integers have the same sum in any order, and are subtracted exactly.

Error: at most half a quantum, or ``2**-23``, unbiased except for ties. ``S S`` is in [0, 2] and has
``start`` at the lower end of the binade; the other products are in [-1, 1] and have theirs in the
middle. In float32, rounding takes ``S S`` to 2 plus 1.2 quanta, ``S C`` to 1 plus 0.3 and a cosine
to -1 minus one: beyond an end of the binade floats are twice as dense, or half as dense, so that
an integer may be one quantum off there. It is at most ``2**23 + 1`` for ``S S`` and ``2**22 + 2``
for the others. A weight in [0, 1] multiplies one factor before; if a factor is zero, so is the
integer.

Capacity: the bits of ``start`` are added as well and subtracted at the end, modulo a power of two,
which loses nothing as long as the true sum fits: ``n (2**23 + 1) < 2**31`` for ``n`` up to 255
rows in 32 bits. Before there are more rows, the sums are added to sums of 64 bits.

Operations are spelled out rather than left to the loop vectoriser of LLVM, for two reasons. The
vectoriser gives up on these loops (it cannot prove that sums and frequencies do not overlap), which
costs a factor of ten. And because every operation is explicit, with explicit fused multiply-adds
and **no fast-math flag**, LLVM may not reorder, contract or replace any: the contribution of a
sample has the same bits for every position in a chunk, chunk, block, width of the vectors and
machine. Each flag would change bits: ``contract`` fuses products with sums and ``reassoc`` reorders
sums, depending on the width; ``arcp`` and ``afn`` approximate divisions and functions, of which
there are none; ``nsz`` loses the sign of zeros; ``nnan`` and ``ninf`` make the result of a phase
that overflows undefined. None would save an operation. On a processor without fused multiply-adds
the C library computes the same bits, far more slowly.
"""

from __future__ import annotations

import math
from importlib import resources
from typing import Any
from zlib import crc32

import numpy as np
from llvmlite import ir
from numba.core import cgutils

FRACTION = {"float32": 22, "float64": 50}  # quanta of 2**-FRACTION
# start of the sums, where bits count quanta: squares in [0, 2], products in [-1, 1]
SQUARE = {"float32": 2.0, "float64": 4.0}
PRODUCT = {"float32": 3.0, "float64": 6.0}
VECTOR_BITS = 512  # LLVM splits the vectors into registers of the processor (AVX-512, AVX2, NEON)
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
    """Vector operations of one real type.

    Parameters
    ----------
    builder
        Builder of llvmlite, positioned where the code is emitted.
    kind
        Type of the elements, ``"float32"`` or ``"float64"``.
    vector_bits
        Size of one vector in bits.

    Attributes
    ----------
    elements
        Number of elements of one vector.
    type, integers
        Types of LLVM: vectors of these reals, and of integers of the same size.
    """

    def __init__(self, builder: Any, kind: str, vector_bits: int = VECTOR_BITS):
        self.builder = builder
        self.kind = kind
        self.bits = 64 if kind == "float64" else 32
        self.elements = vector_bits // self.bits
        self.type = ir.VectorType(real_type(kind), self.elements)
        self.integers = ir.VectorType(ir.IntType(self.bits), self.elements)

    def constant(self, value: float) -> Any:
        """Return a vector with the same number in every element."""
        return ir.Constant(self.type, [value] * self.elements)

    def _call(self, name: str, *operands: Any) -> Any:
        signature = ir.FunctionType(self.type, [self.type] * len(operands))
        symbol = f"llvm.{name}.v{self.elements}f{self.bits}"
        function = cgutils.get_or_insert_function(self.builder.module, signature, symbol)
        return self.builder.call(function, operands)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """Emit ``a b + c``, rounded once."""
        return self._call("fma", a, b, c)

    def quanta(self, a: Any, b: Any, start: dict[str, float]) -> Any:
        """Emit ``a b`` in quanta of the grid, plus ``bits_of(start)``, as integers."""
        total = self.multiply_add(a, b, self.constant(start[self.kind]))
        return self.builder.bitcast(total, self.integers)

    def add_in_order(self, total: Any, quanta: Any) -> Any:
        """Emit ``total + quanta`` before the next addition.

        Without this fence LLVM reorders additions, and so many values are live that they spill to
        the stack.
        """
        b = self.builder
        fenced = self._call("arithmetic.fence", b.bitcast(b.add(total, quanta), self.type))
        return b.bitcast(fenced, self.integers)

    def _polynomial(self, coefficients: tuple[float, ...], y: Any) -> Any:
        total = self.constant(coefficients[-1])
        for value in coefficients[-2::-1]:
            total = self.multiply_add(total, y, self.constant(value))
        return total

    def load(self, pointer: Any, kind: Any, align: int) -> Any:
        """Load a vector of type ``kind`` from a pointer to scalars."""
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()), align=align)

    def part(self, pointer: Any, n: int) -> Any:
        """Load the nth vector of reals from a pointer."""
        place = self.builder.gep(pointer, [ir.IntType(64)(n * self.elements)])
        return self.load(place, self.type, self.bits // 8)

    def put(self, value: Any, pointer: Any) -> None:
        """Store a vector of reals at a pointer."""
        place = self.builder.bitcast(pointer, self.type.as_pointer())
        self.builder.store(value, place, align=self.bits // 8)

    def spread(self, value: Any, kind: Any = None) -> Any:
        """Broadcast a scalar to a vector of these reals, or of type ``kind``."""
        kind = self.type if kind is None else kind
        blank = ir.Constant(kind, ir.Undefined)
        index = ir.IntType(32)
        first = self.builder.insert_element(blank, value, ir.Constant(index, 0))
        mask = ir.Constant(ir.VectorType(index, kind.count), None)
        return self.builder.shuffle_vector(first, blank, mask)

    def half_angle(self, cycles: Any) -> tuple[Any, Any]:
        """Emit ``S`` and ``C`` of the docstring of this module."""
        b = self.builder
        r = b.fsub(cycles, self._call("rint", cycles))
        y = b.fmul(r, r)
        sine, cosine = _POLYNOMIALS[self.kind]
        return b.fmul(self._polynomial(sine, y), r), self._polynomial(cosine, y)

    def cosine_sine(self, cycles: Any, weight: Any = None) -> tuple[Any, Any]:
        """Emit cosine and sine of ``2 pi cycles``, times a weight."""
        s, c = self.half_angle(cycles)
        b = self.builder
        scaled = s if weight is None else b.fmul(s, weight)
        one = self.constant(1.0) if weight is None else weight
        return self.multiply_add(b.fneg(scaled), s, one), b.fmul(scaled, c)


def bits_of(start: dict[str, float], kind: str) -> int:
    """Integer that one row adds to a sum of :meth:`Vectors.quanta` besides its quanta."""
    return int(np.array(start[kind], kind).view(kind.replace("float", "int")))


def integer_type(kind: str) -> Any:
    """Integer type of LLVM of the same size as a real type."""
    return ir.IntType(64 if kind == "float64" else 32)


def real_type(kind: str) -> Any:
    """Scalar type of LLVM."""
    return ir.DoubleType() if kind == "float64" else ir.FloatType()


def _checksum() -> int:
    """Checksum of the source of all kernels.

    numba loads a compiled function from its cache if its bytecode, the values that it encloses and
    its file are unchanged. Emitted arithmetic, sizes of buffers and functions of other modules are
    not compared. A compiled function of more than one module therefore encloses this checksum.
    """
    files = (file for file in resources.files(__package__).iterdir() if file.name.endswith(".py"))
    texts = (file.read_bytes() for file in sorted(files, key=lambda file: file.name))
    return crc32(b"".join(texts))


SOURCE_MARK = _checksum()
