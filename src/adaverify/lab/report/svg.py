"""A figure as SVG that lives inside a page: small, in the page's colours and type, with ids of its own."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from adaverify.lab.report.canvas import INK, LINE, MUTED, STYLE

COLOUR_VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line"}
_PIXELS_PER_INCH = 160
_REFERENCE = re.compile(r"^(url\()?#")
_FONT_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
_COLOUR = re.compile("|".join(COLOUR_VARIABLES))


def inline_svg(figure: Figure, key: str, description: str) -> str:
    """The figure as an ``<svg>`` element for HTML.

    Parameters
    ----------
    figure : Figure
    key : str
        Prefix of all ids, so that several figures on one page do not take each other's clip paths and markers.
    description : str
        Read out in place of the figure.
    """
    text = io.StringIO()
    with _drawing():
        figure.savefig(text, format="svg")
    root = ElementTree.fromstring(text.getvalue())
    _drop_namespaces(root)
    # The page has a style sheet of its own, and nothing reads the metadata.
    for child in [child for child in root if child.tag == "metadata" or child.find("style") is not None]:
        root.remove(child)
    for element in root.iter():
        _restyle(element)
        _rename(element, key)
    for name in ("width", "height", "version"):
        del root.attrib[name]
    root.attrib |= {"role": "img", "aria-label": description}
    return ElementTree.tostring(root, encoding="unicode")


def write_png(figure: Figure, path: Path) -> None:
    """The figure on white, 160 pixels an inch."""
    with _drawing():
        figure.savefig(path, format="png", dpi=_PIXELS_PER_INCH, facecolor="white")


@contextmanager
def _drawing() -> Iterator[None]:
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # A name in a script that the measuring font lacks is drawn by the browser's own fonts.
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def _drop_namespaces(root: ElementTree.Element) -> None:
    """HTML knows SVG's elements and ``href`` without them."""
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}


def _restyle(element: ElementTree.Element) -> None:
    """Greys by the page's names, so that they follow its light and dark; the type is the page's."""
    style = element.get("style")
    if style is not None:
        style = _FONT_FAMILY.sub("", style)
        element.set("style", _COLOUR.sub(lambda found: f"var({COLOUR_VARIABLES[found.group()]})", style))


def _rename(element: ElementTree.Element, key: str) -> None:
    """Ids and references to them with the figure's prefix; what nothing can refer to loses its id."""
    if element.tag == "g":
        element.attrib.pop("id", None)
    elif "id" in element.attrib:
        element.set("id", f"{key}-{element.attrib['id']}")
    for name in ("href", "clip-path"):
        if name in element.attrib:
            element.set(name, _REFERENCE.sub(lambda found: f"{found.group()}{key}-", element.attrib[name]))
