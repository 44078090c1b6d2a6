"""Cards: a heading, words in a table, pictures beside it, and what folds out beneath."""

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
_NUMERIC = ("", *"+-0123456789")  # what a cell with a number begins with
_TABLE = (
    "border-collapse:collapse;border:none;margin:0;width:auto;table-layout:auto;font-size:inherit"
)


def card(
    title: str,
    fields: Mapping[str, object],
    *,
    summary: str = "",
    pictures: Iterable[str] = (),
    notes: Iterable[str] = (),
    below: str = "",
    more: Mapping[str, str] | None = None,
) -> str:
    """A card in HTML; its colours are those of the page, light or dark.

    Parameters
    ----------
    title
        What it is.
    fields
        Name and value of what a glance should show; text, which is escaped.
    summary
        How big and how good, in a few words beside the title.
    pictures
        From :mod:`dask_sketch.display.drawing`, as they are.
    notes
        Sentences that must be seen, such as warnings.
    below
        HTML under the table and the pictures.
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
    beside = "".join(f'<div style="max-width:100%">{picture}</div>' for picture in pictures)
    parts.append(
        '<div style="display:flex;flex-wrap:wrap;gap:.4em 2em;align-items:flex-start;'
        f'margin:.3em 0">{words(fields)}{beside}</div>'
    )
    parts.append(below)
    parts += [_folded(heading, content) for heading, content in (more or {}).items()]
    return f'<div style="max-width:100%;line-height:1.35">{"".join(parts)}</div>'


def words(fields: Mapping[str, object]) -> str:
    """A table of names and values."""
    rows = "".join(
        f'<tr style="{_ROW}"><th style="{_NAME}">{escape(str(name))}</th>'
        f'<td style="{_VALUE}">{escape(str(value))}</td></tr>'
        for name, value in fields.items()
    )
    return f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>' if rows else ""


def grid(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table of columns, which scrolls where it is too wide; numbers are to the right.

    Examples
    --------
    >>> grid(["model", "cost"], [["a & b", 0.5]]).count("<tr")
    2
    """
    table = [[str(cell) for cell in row] for row in rows]
    styles = [
        _NUMBER if all(row[column][:1] in _NUMERIC for row in table) else _TEXT
        for column in range(len(header))
    ]

    def cells(values: Sequence[object], tag: str) -> str:
        return "".join(
            f'<{tag} style="{style}{";opacity:.8;font-weight:normal" * (tag == "th")}">'
            f"{escape(str(value))}</{tag}>"
            for value, style in zip(values, styles, strict=True)
        )

    body = "".join(f'<tr style="{_ROW}">{cells(row, "td")}</tr>' for row in table)
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}"><thead><tr style="{_ROW}">'
        f"{cells(header, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _folded(heading: str, content: str) -> str:
    return (
        f'<details><summary style="cursor:pointer">{escape(heading)}</summary>'
        f'<div style="margin:.2em 0 .4em 1em">{content}</div></details>'
    )
