"""HTML for notebooks: a card with a table, warnings, and tables that fold out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

# inline, since notebooks strip style sheets from outputs that they do not trust; rows without the
# stripes of notebooks, which some themes draw in the other theme's colours
_ROW = "background:none"
_CELL = "padding:.1em 1em .1em 0;vertical-align:top;text-align:left;border:none;"
_NAME = _CELL + "font-weight:normal;opacity:.8;white-space:nowrap"
_VALUE = _CELL + "max-width:38em;overflow-wrap:anywhere"
_TEXT = _CELL + "white-space:nowrap"
_NUMBER = _TEXT + ";text-align:right;font-variant-numeric:tabular-nums"
_NUMERIC = ("", *"+-0123456789")  # first characters of a cell that holds a number
_TABLE = (
    "border-collapse:collapse;border:none;margin:0;width:auto;table-layout:auto;font-size:inherit"
)


def card(
    title: str,
    fields: Mapping[str, object],
    *,
    summary: str = "",
    notes: Iterable[str] = (),
    below: str = "",
    more: Mapping[str, str] | None = None,
) -> str:
    """Describe an object in HTML, in the colours of the page around it, light or dark.

    Parameters
    ----------
    title
        Name of the class.
    fields
        Names and values of the main attributes; text, which is escaped.
    summary
        Size and quality, in a few words beside the title.
    notes
        Warnings, one sentence each.
    below
        HTML under the table.
    more
        HTML that folds out, by its heading.

    Examples
    --------
    >>> "10 &lt; 20" in card("Sketch", {"samples": "10 < 20"})
    True
    """
    parts = [f"<div><strong>{escape(title)}</strong>"]
    if summary:
        parts.append(f' <span style="margin-left:.6em">{escape(summary)}</span>')
    parts.append("</div>")
    parts += [f'<div style="max-width:60em">⚠ {escape(note)}</div>' for note in notes]
    parts.append(f'<div style="margin:.3em 0">{fields_table(fields)}</div>')
    parts.append(below)
    parts += [_folded(heading, content) for heading, content in (more or {}).items()]
    return f'<div style="max-width:100%;line-height:1.35">{"".join(parts)}</div>'


def fields_table(fields: Mapping[str, object]) -> str:
    """Table of names and values.

    Examples
    --------
    >>> fields_table({"samples": 10}).count("<tr")
    1
    """
    rows = "".join(
        f'<tr style="{_ROW}"><th style="{_NAME}">{escape(str(name))}</th>'
        f'<td style="{_VALUE}">{escape(str(value))}</td></tr>'
        for name, value in fields.items()
    )
    return f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>' if rows else ""


def html_table(
    header: Sequence[object], rows: Iterable[Sequence[object]], max_rows: int = 20
) -> str:
    """Table of columns, which scrolls where it is too wide; numbers are to the right.

    Parameters
    ----------
    header
        Names of the columns.
    rows
        Cells of each row.
    max_rows
        Number of rows after which the rest is only counted.

    Examples
    --------
    >>> html_table(["model", "cost"], [["a & b", 0.5]]).count("<tr")
    2
    >>> "and 5 more" in html_table(["label"], [[n] for n in range(25)])
    True
    """
    cells_of = [[str(cell) for cell in row] for row in rows]
    left = len(cells_of) - max_rows
    styles = [
        _NUMBER if all(row[column][:1] in _NUMERIC for row in cells_of) else _TEXT
        for column in range(len(header))
    ]

    def cells(values: Sequence[object], tag: str) -> str:
        return "".join(
            f'<{tag} style="{style}{";opacity:.8;font-weight:normal" * (tag == "th")}">'
            f"{escape(str(value))}</{tag}>"
            for value, style in zip(values, styles, strict=True)
        )

    body = "".join(f'<tr style="{_ROW}">{cells(row, "td")}</tr>' for row in cells_of[:max_rows])
    if left > 0:
        body += f'<tr style="{_ROW}"><td style="{_TEXT}">and {left:,} more</td></tr>'
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}"><thead><tr style="{_ROW}">'
        f"{cells(header, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _folded(heading: str, content: str) -> str:
    return (
        f'<details><summary style="cursor:pointer">{escape(heading)}</summary>'
        f'<div style="margin:.2em 0 .4em 1em">{content}</div></details>'
    )
