"""Self-contained pages without scripts: tables and charts below a title."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from regard.report.charts import PAGE_STYLE


def html_page(title: str, body: str) -> str:
    """A page with a heading and a body that is markup already."""
    heading = html.escape(title)
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{heading}</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{PAGE_STYLE}</style></head><body><main><h1>{heading}</h1>{body}</main></body></html>\n"
    )


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Titles and rows as a table; the first cell of each row is its name.

    >>> html_table([["layer", "R²"], ["0", "<1"]]).count("&lt;1")
    1
    """
    header, *body = ([html.escape(cell) for cell in row] for row in rows)
    head = "".join(f"<th scope=col>{cell}</th>" for cell in header)
    lines = "".join(
        f"<tr><th scope=row>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for name, *cells in body
    )
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"


def html_figures(charts: Mapping[str, str]) -> str:
    """Drawings below their titles."""
    return "".join(
        f"<figure><figcaption><b>{html.escape(title)}</b></figcaption>{chart}</figure>"
        for title, chart in charts.items()
    )


def html_paragraphs(lines: Iterable[str]) -> str:
    """Lines as paragraphs."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)
