"""Single changes of Python source that a test of behaviour should notice."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.MatMult: ast.Mult,
}  # fmt: skip

# Names in capitals that set speed or memory and leave results as they are.
PERFORMANCE = {
    *("BLOCK", "BLOCK_BYTES", "GROUP_BYTES", "BATCH_BYTES", "GATHERED", "RUN", "ROWS", "AHEAD"),
    *("TOGETHER", "_TOGETHER", "UNROLLED", "OPERATIONS", "AT_ONCE", "_AT_ONCE", "_ROOM", "_BLOCK"),
    *("_NUMBERS", "_GRAM_BLOCK", "_PAIRS", "_FREQUENCIES", "_TILE", "_COLUMNS", "_POINTS", "FAN"),
    *("N_ROUNDS", "_STEPS", "_SHOWN", "KEEP_STATES", "KEEP_COMMITS"),
}
# Options of compilers and copies, which leave results as they are.
KEYWORDS = {
    *("cache", "nogil", "strict", "copy", "stacklevel", "order", "check_finite", "overwrite_a"),
    *("fastmath", "inline", "prefer_literal", "optimize", "repr", "frozen", "eq", "kind", "slots"),
}
# Functions that describe, measure or choose sizes of work.
FUNCTIONS = {
    *("__repr__", "_repr_html_", "__sizeof__", "nbytes", "memory_needed", "as_dict", "_brief"),
    *("block_rows", "buffered_rows", "batch_rows", "row_bytes", "_artifact", "__dask_tokenize__"),
}
MESSAGES = ("Error", "debug", "info", "warning", "warn", "report", "TypeVar", "cast", "getLogger")


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes from ``start`` to ``stop`` of a file are replaced."""

    path: Path
    line: int
    start: int
    stop: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The changed source."""
        return source[: self.start] + self.text.encode() + source[self.stop :]

    def key(self, root: Path) -> tuple[str, ...]:
        """Path below the package, the new line, and the old one where a statement is dropped."""
        source = (root / self.path).read_bytes()
        begin, end = source.rfind(b"\n", 0, self.start) + 1, source.find(b"\n", self.stop)
        old, new = source[begin:end], source[begin : self.start] + self.text.encode()
        new += source[self.stop : end]
        lines = [" ".join(line.decode().split()) for line in (new, old)]
        return (self.path.relative_to("dask_sketch").as_posix(), *lines[: 1 + (lines[0] == "pass")])

    def diff(self, root: Path) -> str:
        """The lines that change, with their place."""
        source = (root / self.path).read_bytes()
        old, new = (text.decode().splitlines() for text in (source, self.apply(source)))
        lines = list(difflib.unified_diff(old, new, lineterm="", n=0))[3:]
        return "\n".join([f"{self.path}:{self.line}", *(f"    {line}" for line in lines)])


def mutants(root: Path, path: Path) -> list[Mutant]:
    """All changes of a file, in the order of its lines."""
    source = (root / path).read_bytes()
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    found = []
    for node, replacement in _changes(ast.parse(source)):
        start = offsets[node.lineno - 1] + node.col_offset
        stop = offsets[node.end_lineno - 1] + node.end_col_offset
        found.append(Mutant(path, node.lineno, start, stop, replacement))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.stop, mutant.text))


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Nodes of a tree to be replaced, and by what."""
    if _is_left_out(node):
        return
    if isinstance(node, ast.stmt):
        if _may_be_dropped(node):
            yield node, "pass"
    elif isinstance(node, ast.expr):
        for new in _other_expressions(node):
            text = ast.unparse(new)
            yield node, text if isinstance(new, ast.Constant) else f"({text})"
    if isinstance(node, (ast.If, ast.While, ast.IfExp)) and not isinstance(node.test, ast.Compare):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    for child in _children(node):
        yield from _changes(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield from node.body
        if isinstance(node, ast.FunctionDef):
            yield from node.args.defaults
            yield from (default for default in node.args.kw_defaults if default is not None)
    elif isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield node.value
    elif isinstance(node, (ast.Assign, ast.AugAssign)):
        yield node.value
    elif isinstance(node, ast.Call):
        # of reshape, any negative number means the same
        unknown = isinstance(node.func, ast.Attribute) and node.func.attr == "reshape"
        yield from (a for a in node.args if not (unknown and isinstance(a, ast.UnaryOp)))
        yield from (k.value for k in node.keywords if k.arg not in KEYWORDS)
    else:
        yield from ast.iter_child_nodes(node)


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assert, ast.JoinedStr)):
        return True
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name in FUNCTIONS
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id in PERFORMANCE for t in node.targets)
    if isinstance(node, ast.Call):
        name = _name(node.func)
        return name.endswith(MESSAGES) or name in FUNCTIONS
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _may_be_dropped(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and not _is_left_out(node.value)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
    return isinstance(node, (ast.AugAssign, ast.Raise))


def _other_expressions(node: ast.expr) -> Iterator[ast.expr]:
    new = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and len(new.ops) == 1:
        new.ops = [COMPARISONS[type(new.ops[0])]()]
        yield new
    elif isinstance(new, ast.BoolOp):
        new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        yield new
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, (ast.Not, ast.USub)):
        if not isinstance(new.operand, ast.Constant):
            yield new.operand
    elif isinstance(new, ast.BinOp) and type(new.op) in ARITHMETIC:
        if not isinstance(new.left, (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict)):
            new.op = ARITHMETIC[type(new.op)]()
            yield new
    elif isinstance(new, ast.Constant):
        yield from _other_constants(new.value)
    elif isinstance(new, ast.Call) and _name(new.func) == "range" and len(new.args) == 1:
        if _name(new.args[0]) in PERFORMANCE:
            return
        new.args = [ast.BinOp(new.args[0], ast.Sub(), ast.Constant(1))]
        yield new


def _other_constants(value: object) -> Iterator[ast.Constant]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float) and (value == 0.0 or 0.1 <= abs(value) <= 100.0):
        yield ast.Constant(2.0 * value or 1.0)  # smaller and larger ones are tolerances
