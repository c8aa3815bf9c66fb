"""Traces for the report: recorded ones read from disk, and changed copies of them."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np

from adaverify.lab.trace import Trace

HOSTILE = '<script>alert("$a_b$")</script>'


def changed(trace: Trace, drafts: dict[str, Any] | None = None, steps: dict[str, Any] | None = None) -> Trace:
    """The trace with some columns replaced, each cast to the type it had."""

    def columns(part: Any, values: dict[str, Any]) -> Any:
        size = len(part)
        cast = {
            name: np.broadcast_to(np.asarray(new, getattr(part, name).dtype), (size, *np.shape(new)[1:]))
            for name, new in values.items()
        }
        return replace(part, **cast)

    return Trace(trace.runs, trace.datasets, columns(trace.drafts, drafts or {}), columns(trace.steps, steps or {}))


def with_runs(trace: Trace, *changes: dict[str, Any]) -> Trace:
    """The trace with fields of its runs replaced, run by run."""
    runs = tuple(run.model_copy(update=new) for run, new in zip(trace.runs, changes, strict=True))
    return Trace(runs, trace.datasets, trace.drafts, trace.steps)


class Page(HTMLParser):
    """Elements of a page: tag and attributes of each, and the text outside style sheets."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self._tag != "style":
            self.texts.append(data)

    def values(self, attribute: str) -> list[str]:
        """All values of an attribute."""
        return [value for _, attributes in self.elements if (value := attributes.get(attribute)) is not None]

    def count(self, tag: str) -> int:
        """Elements of a tag."""
        return sum(name == tag for name, _ in self.elements)
