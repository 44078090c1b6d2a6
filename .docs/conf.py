"""Configuration of the documentation site, built by `make docs`.

`make docs` copies the pages into one folder, which is the source folder of Sphinx: the README files,
the notebooks, and the pages of this folder. Links between the pages are the same there as in the
repository.
"""

from __future__ import annotations

from importlib.metadata import version as installed_version

project = "dask-sketch"
author = "the authors of dask-sketch"
project_copyright = author
version = release = installed_version("dask-sketch")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_nb",
]
root_doc = "README"
exclude_patterns = ["templates"]
templates_path = ["templates"]

# The README is read on its own as well, so that the list of all pages is added to it here.
CONTENTS = """
```{toctree}
:hidden:
:caption: Pages

guides
reference
command_line
deploy/README
dask_sketch/README
tests/benchmarks/README
CHANGELOG
```
"""

# Docstrings
autosummary_generate = True
autodoc_typehints = "none"  # the docstrings state the types
autodoc_member_order = "groupwise"
autodoc_default_options = {"members": True, "inherited-members": False}
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# Markdown and notebooks
nb_execution_mode = "off"  # tests/test_notebooks.py runs them
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

# Pages
html_theme = "pydata_sphinx_theme"
html_title = "dask-sketch"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_persistent": [],
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"README": [], "guides": [], "CHANGELOG": [], "command_line": []}


def add_contents(app, docname, source):
    """Add the list of pages to the front page."""
    if docname == root_doc:
        source[0] += CONTENTS


def setup(app):
    app.connect("source-read", add_contents)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
