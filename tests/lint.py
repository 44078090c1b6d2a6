"""Check the house rules that no published linter knows: ``python -m tests.lint``.

Sizes are counted in lines of code: docstrings, comments and blank lines are free. Descriptions of
parameters, modules and constants are phrases of plain English, and tests rely on public names and
on the values in messages. Each finding is printed with its place; the exit status is 1 if there are
any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

TOP = Path(__file__).parents[1]
MAX_MODULE = 400  # lines of code
MAX_FUNCTION = 80
COMPILED = "dask_sketch/features/kernels/"  # inner loops of compiled kernels may be longer
INDIRECT = re.compile(r"(What|Where|Which|How)\b")
DANGLING = re.compile(r"(Of|That|What|Which|Where)\b")
# private terms of earlier versions; the glossary is in dask_sketch/README.md
PRIVATE = re.compile(
    r"\b(held against|holds against|way out|told by|are told|is told|lanes|waves|dear|"
    r"the door|worth keeping|whole numbers?|stands? at|came of|come what may)\b",
    re.IGNORECASE,
)
# a comment behind a constant that continues its name, as in "MAX_NAMES = 4096  # in a list"
CONTINUED = re.compile(
    r"\s*_*[A-Z][A-Z0-9_]*(, _*[A-Z][A-Z0-9_]*)*(: [^=]+)? = .*  # "
    r"(?P<word>of|in|at most|by|for|from|beyond|above|below|under|over|with|without|that|which|"
    r"until|between|around)\b"
)
# names that several folders share, with one meaning everywhere
SHARED_NAMES = {
    "__init__", "__main__", "arguments", "artifact", "cuda", "design", "open", "sketch", "plan",
    "report", "xarray", "models", "jobs", "partitions", "progress", "release", "demo", "speech",
}  # fmt: skip
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Finding = tuple[int, str]


def code_lines(tree: ast.Module, source: str) -> set[int]:
    """Numbers of the lines that hold code."""
    documented: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return {
        number
        for number, line in enumerate(source.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#")
    } - documented


def check_size(name: str, tree: ast.Module, source: str) -> Iterator[Finding]:
    """Find modules and functions that are too long."""
    code = code_lines(tree, source)
    if len(code) > MAX_MODULE:
        yield 1, f"{len(code)} lines of code; at most {MAX_MODULE}"
    if name.startswith(COMPILED):
        return
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            size = sum(node.lineno <= line <= (node.end_lineno or 0) for line in code)
            if size > MAX_FUNCTION:
                yield node.lineno, f"{node.name}: {size} lines of code; at most {MAX_FUNCTION}"


def check_descriptions(tree: ast.Module) -> Iterator[Finding]:
    """Find indirect questions and dangling descriptions in docstrings."""
    for node in ast.walk(tree):
        if not isinstance(node, DEFINITIONS) or (text := ast.get_docstring(node)) is None:
            continue
        line = node.body[0].lineno
        if INDIRECT.match(text):
            yield line, f"the docstring starts with {text.split()[0]!r}: name the thing"
        lines = text.splitlines()
        for number, (above, below) in enumerate(pairwise(lines)):
            is_name = re.fullmatch(r"\*{0,2}\w[\w, *]*( :.*)?", above)
            if is_name and re.match(r"    \S", below) and DANGLING.match(below.strip()):
                yield (
                    line + number + 1,
                    f"{above}: the description starts with {below.split()[0]!r}",
                )
        if found := PRIVATE.search(text):
            yield line, f"private term {found.group()!r}: see the glossary"


def check_comments(source: str) -> Iterator[Finding]:
    """Find private terms in comments and messages, and comments that continue a name."""
    for number, line in enumerate(source.splitlines(), 1):
        _, _, comment = line.partition("# ")
        if found := PRIVATE.search(comment):
            yield number, f"private term {found.group()!r}: see the glossary"
        if found := CONTINUED.match(line):
            yield number, f"the comment starts with {found['word']!r}: name the thing"


def check_lazy_imports(name: str, tree: ast.Module) -> Iterator[Finding]:
    """Find imports of the package inside functions, which hide circles."""
    if name.endswith("__init__.py") or name.startswith("dask_sketch/cli/"):
        return
    optional = {  # an import within try: needs a package that may be missing
        child for node in ast.walk(tree) if isinstance(node, ast.Try) for child in node.body
    }
    for function in ast.walk(tree):
        if isinstance(function, FUNCTIONS):
            for node in set(ast.walk(function)) - optional:
                module = getattr(node, "module", None) or ""
                if isinstance(node, ast.ImportFrom) and module.split(".")[0] == "dask_sketch":
                    yield node.lineno, f"lazy import of {module}: import it at the top"


def check_tests(tree: ast.Module) -> Iterator[Finding]:
    """Find patches of private names, and sentences where a message is matched."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called.endswith(("monkeypatch.setattr", "monkeypatch.delattr")):
            names = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
            private = [n for n in names if isinstance(n, str) and "._" in f".{n}"]
            if private and not private[0].rpartition(".")[2].startswith("__"):
                yield node.lineno, f"patches the private name {private[0]}"
        if called.endswith("pytest.raises"):
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg == "match" and isinstance(value, ast.Constant):
                    words = re.findall(r"(?<![\w=\[])[a-z]{2,}(?![\w=\[])", str(value.value))
                    if len(words) > 5:
                        yield node.lineno, "matches a sentence: match the argument and its value"


def check_names(paths: list[Path]) -> Iterator[tuple[Path, Finding]]:
    """Find module names that two folders use."""
    seen: dict[str, Path] = {}
    for path in paths:
        if path.stem in seen and path.stem not in SHARED_NAMES:
            yield path, (1, f"the module name is taken by {seen[path.stem].relative_to(TOP)}")
        seen.setdefault(path.stem, path)


def check_classes(trees: dict[Path, ast.Module]) -> Iterator[tuple[Path, Finding]]:
    """Find public classes of modules that have the name of another one."""
    seen: dict[str, Path] = {}
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if node.name in seen:
                    taken = seen[node.name].relative_to(TOP)
                    yield path, (node.lineno, f"the class name {node.name} is taken by {taken}")
                seen.setdefault(node.name, path)


def main() -> int:
    """Print every finding; return the exit status."""
    package, tests = sorted((TOP / "dask_sketch").rglob("*.py")), sorted(TOP.glob("tests/**/*.py"))
    found = [
        *check_names(package),
        *check_classes({path: ast.parse(path.read_text()) for path in package}),
    ]
    for path in (*package, *tests):
        source, name = path.read_text(), path.relative_to(TOP).as_posix()
        tree = ast.parse(source)
        findings = list(check_size(name, tree, source)) + list(check_descriptions(tree))
        if path in package:
            findings += [*check_comments(source), *check_lazy_imports(name, tree)]
        else:
            findings += check_tests(tree)
        found += [(path, finding) for finding in findings]
    for path, (line, message) in sorted(found):
        print(f"{path.relative_to(TOP)}:{line}: {message}")
    print(f"{len(found)} findings in {len(package) + len(tests)} files")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
