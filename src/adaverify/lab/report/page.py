"""Assembles the page; every name in it comes from users and is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from adaverify import __version__
from adaverify.lab.report.canvas import Picture
from adaverify.lab.report.figures import Family
from adaverify.lab.report.names import plain
from adaverify.lab.report.stylesheet import STYLESHEET
from adaverify.lab.report.svg import inline_svg
from adaverify.lab.report.tables import Table


def render_page(
    title: str, drafters: Sequence[str], tables: Sequence[Table], sections: Mapping[Family, Sequence[Picture]]
) -> str:
    """The report as one HTML document.

    Parameters
    ----------
    title : str
        Plain text, like all names in the rest.
    drafters : sequence of str
    tables : sequence of Table
    sections : mapping of Family to sequence of Picture
    """
    heading = escape(plain(title))
    contents = [("recorded", "What was recorded"), *((family.key, family.heading) for family in sections)]
    links = "".join(f'<li><a href="#{key}">{escape(text)}</a></li>' for key, text in contents)
    body = "\n".join(_section(family, pictures) for family, pictures in sections.items())
    # The policy lets nothing load and nothing run, whatever a name might hold; the empty icon spares a request.
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="adaverify {__version__}">
<link rel="icon" href="data:,">
<title>{heading}</title>
<style>{STYLESHEET}</style>
</head>
<body>
<header>
<h1>{heading}</h1>
<p>{_counted(len(drafters), "drafter")}: {escape("; ".join(drafters))}</p>
<nav aria-label="Contents"><ol>{links}</ol></nav>
</header>
<main>
<section id="recorded" aria-labelledby="recorded-heading">
<h2 id="recorded-heading">What was recorded</h2>
{"".join(map(_table, tables))}
</section>
{body}
</main>
<footer><p>Written by adaverify {__version__}.</p></footer>
</body>
</html>
"""


def _section(family: Family, pictures: Sequence[Picture]) -> str:
    figures = "\n".join(_figure(picture, f"{family.key}-{number}") for number, picture in enumerate(pictures, start=1))
    return f"""<section id="{family.key}" aria-labelledby="{family.key}-heading">
<h2 id="{family.key}-heading">{escape(family.heading)}</h2>
<p class="reading">{escape(family.reading)}</p>
<div class="figures">
{figures}
</div>
</section>"""


def _figure(picture: Picture, key: str) -> str:
    summary = escape(picture.summary)
    if picture.figure is None:
        return f'<figure class="absent"><p>{escape(picture.title)}</p><figcaption>{summary}</figcaption></figure>'
    return f"<figure>{inline_svg(picture.figure, key, picture.title)}<figcaption>{summary}</figcaption></figure>"


def _table(table: Table) -> str:
    """Wide tables scroll by themselves, also by keyboard, rather than widen the page."""
    kinds = [' class="number"' if all(map(_is_number, column)) else "" for column in zip(*table.rows, strict=True)]
    head = "".join(
        f'<th scope="col"{kind}>{escape(text)}</th>' for kind, text in zip(kinds, table.headings, strict=True)
    )
    rows = "".join(
        f"<tr>{''.join(f'<td{kind}>{escape(text)}</td>' for kind, text in zip(kinds, row, strict=True))}</tr>"
        for row in table.rows
    )
    caption = escape(table.caption)
    return f"""<div class="table" role="region" aria-label="{caption}" tabindex="0"><table>
<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>
"""


def _is_number(text: str) -> bool:
    return text in ("", "no labels") or text.replace(",", "").replace(".", "", 1).isdigit()


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
