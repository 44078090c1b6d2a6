"""Text tables in HTML for notebooks: one template for every object."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_STYLE = "text-align:left;padding:.1em .8em .1em 0;vertical-align:top"


def table(title: str, fields: Mapping[str, object]) -> str:
    """A two-column HTML table; colours are those of the page, light or dark.

    Examples
    --------
    >>> "<th" in table("Sketch", {"samples": "10 < 20"})
    True
    """
    rows = "".join(
        f'<tr><th style="{_STYLE};font-weight:normal;opacity:.75">{escape(str(name))}</th>'
        f'<td style="{_STYLE}">{escape(str(value))}</td></tr>'
        for name, value in fields.items()
    )
    return f"<div><strong>{escape(title)}</strong><table><tbody>{rows}</tbody></table></div>"
