"""Configuration of the documentation site, which `make docs` builds.

`make docs` copies the pages into one folder, which is the source folder of Sphinx: the README
files, the notebooks and the pages beside this file. Links between the pages are the same in that
folder as in the repository. The pages of the API and of the command line are generated there.
"""

from __future__ import annotations

import importlib
import inspect
import re
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import click

project = "dask-sketch"
author = project_copyright = "the authors of dask-sketch"
version = release = installed_version("dask-sketch")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_nb",
]
root_doc = "README"
exclude_patterns = ["templates"]
templates_path = ["templates"]

# Docstrings
autosummary_generate = True
autosummary_filename_map = {  # file systems may ignore case, and there are pages of Plan and Sketch
    "dask_sketch.plan": "dask_sketch.plan-function",
    "dask_sketch.sketch": "dask_sketch.sketch-function",
}
autodoc_type_aliases = {"ArrayLike": "ArrayLike", "Array": "NDArray[np.float64]"}
python_maximum_signature_line_length = 80
python_trailing_comma_in_multi_line_signatures = False
toc_object_entries_show_parents = "hide"
autodoc_member_order = "groupwise"
numpydoc_show_class_members = False

# Markdown and notebooks
nb_execution_mode = "off"  # tests/test_notebooks.py runs the notebooks, and `make docs OUTPUTS=1`
nb_execution_in_temp = True  # no notebook finds files of another one
nb_execution_timeout = 900
nb_execution_raise_on_error = True
myst_heading_anchors = 3

# References of docstrings to names of this package must resolve. Types in signatures need not: the
# pages leave internal classes out, and there is no inventory of other packages.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!dask_sketch).*"), ("py:class", r"dask_sketch(\.\w+){2,}")]

# Pages
highlight_language = "none"
html_theme = "pydata_sphinx_theme"
html_title = "dask-sketch"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
# pages without pages below them have no list of such pages
_ALONE = ("README", "CHANGELOG", "command_line", "*/README", "*/FORMAT", "tests/benchmarks/README")
html_sidebars = {name: [] for name in _ALONE}

# All pages. The README is also read outside of the site, so that it has no such list of its own.
CONTENTS = """
```{toctree}
:hidden:

guides
reference
command_line
Deployment <deploy/README>
Architecture <dask_sketch/README>
Format <dask_sketch/FORMAT>
Benchmarks <tests/benchmarks/README>
CHANGELOG
```
"""
# Packages of the reference. Names that `dask_sketch` has as well are listed there alone.
PACKAGES = {
    "dask_sketch": "Public names of the package, ``import dask_sketch as ds``.",
    "dask_sketch.graph": "Lazy results of ``sketch``.",
    "dask_sketch.features": "Feature maps: frequencies, their distributions and their scale.",
    "dask_sketch.models": "Decoded models and simulated mixtures.",
    "dask_sketch.diagnostics": "Quality of a fit and model selection.",
    "dask_sketch.distributions": "Tests and divergences of distributions; learning from groups.",
    "dask_sketch.speech": "Speaker verification. Needs the extra ``speech`` to read recordings.",
    "dask_sketch.jobs": "The nightly job.",
    "dask_sketch.jobs.ledger": "The ledger: one stored sketch for each partition of the data.",
    "dask_sketch.xarray": "Accessor of xarray objects, after ``import dask_sketch.xarray``.",
    "dask_sketch.cluster.dashboard": "The page on Dask's dashboard. Needs the extra ``dashboard``.",
    "dask_sketch.errors": "Exceptions. All of them are a ``SketchError``.",
}
SECTION = """
{title}
{line}

.. currentmodule:: {package}

{text}

.. autosummary::
   :toctree: api
   :nosignatures:

{names}
"""


def reference() -> str:
    """Page that lists all public classes and functions."""
    sections, listed = [], set()
    for package, text in PACKAGES.items():
        module = importlib.import_module(package)
        public = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == package and not name.startswith("_")
        ]
        found = {name: getattr(module, name) for name in public}
        names = [
            name
            for name, value in found.items()
            if (inspect.isclass(value) or inspect.isroutine(value)) and value not in listed
        ]
        listed |= {found[name] for name in names}
        names.sort(key=lambda name: (not inspect.isclass(found[name]), name.lower()))
        sections.append(
            SECTION.format(
                title=package,
                line="-" * len(package),
                package=package,
                text=text,
                names="\n".join(f"   {name}" for name in names),
            )
        )
    return "API reference\n=============\n" + "".join(sections)


def command_line() -> str:
    """Page with the help of all commands."""
    from dask_sketch.cli.main import cli

    top = click.Context(cli, info_name="dask-sketch", max_content_width=90)
    helps = {"dask-sketch": cli.get_help(top)}
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        context = click.Context(command, parent=top, info_name=name, max_content_width=90)
        helps[name] = command.get_help(context)
    sections = [f"## {name}\n\n```text\n{text}\n```\n" for name, text in helps.items()]
    return "# Command line\n\n" + "\n".join(sections)


def write_pages(app: Any, config: Any) -> None:
    """Write the pages that are generated."""
    folder = Path(app.srcdir)
    (folder / "reference.rst").write_text(reference())
    (folder / "command_line.md").write_text(command_line())


def add_contents(app: Any, docname: str, source: list[str]) -> None:
    """Add the list of all pages to the front page."""
    if docname == root_doc:
        source[0] += CONTENTS


def skip_foreign(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out methods that other packages add to classes of this one."""
    module = getattr(member, "__module__", None) or ""
    return True if module.startswith("sklearn") else None


def name_types(
    app: Any, what: str, name: str, value: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Show a type alias of a signature by its name alone."""
    if not signature:
        return None
    return re.sub(r"TypeAliasForwardRef\('([^']*)'\)", r"\1", signature), returns


def resolve_short_name(app: Any, env: Any, node: Any, text: Any) -> Any:
    """Find the target of a reference by the end of its name, such as ``Sketch.merge``."""
    if node.get("refdomain") != "py" or node.get("refspecific"):
        return None
    name = node["reftarget"].rpartition("dask_sketch.")[2]
    if node["reftype"] == "class" and name.rpartition(".")[2].islower():
        return None  # dtype and str are types of others, not attributes of that name
    domain = env.domains["py"]
    for target in (name, name.rpartition(".")[2]):
        node["refspecific"] = True
        found = domain.resolve_xref(
            env, node["refdoc"], app.builder, node["reftype"], target, node, text
        )
        if found is not None:
            return found
    return None


def setup(app: Any) -> dict[str, bool]:
    """Connect the functions above."""
    app.connect("config-inited", write_pages)
    app.connect("source-read", add_contents)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-signature", name_types)
    app.connect("missing-reference", resolve_short_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
