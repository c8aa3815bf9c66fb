from __future__ import annotations

import re

from tests.lab.report.traces import HOSTILE, Page, changed
from tests.lab.synthetic import run_info, write_trace

from adaverify.lab.report import Report
from adaverify.lab.report.canvas import INK, LINE, MUTED
from adaverify.lab.report.figures import FAMILIES, reliability_diagram
from adaverify.lab.report.svg import inline_svg
from adaverify.lab.trace import read_trace


def test_every_family_has_a_figure_for_every_drafter(text):
    page = Page(text)
    assert page.count("svg") == len(FAMILIES) * 2
    for name in ("tiny-draft (eagle3) for tiny", f"{HOSTILE} (mtp) for t{HOSTILE}"):
        assert sum(label.endswith(name) for label in page.values("aria-label")) == len(FAMILIES)


def test_names_stay_text(text):
    page = Page(text)
    assert page.count("script") == 0
    # the title, the heading, and a cell each for the drafter and the dataset
    assert page.texts.count(HOSTILE) >= 4
    # in figures it is no formula, which would lose the dollar signs
    figures = Page("".join(re.findall(r"<text.*?</text>", text, flags=re.DOTALL)))
    assert sum("$a_b$" in found for found in figures.texts) >= len(FAMILIES)


def test_nothing_comes_from_outside(text):
    assert re.findall(r"(?:https?:)?//\w", text) == []
    page = Page(text)
    assert all(target.startswith("#") or target == "data:," for target in page.values("href"))
    assert page.count("img") == page.count("iframe") == 0


def test_ids_are_unique_and_references_find_them(text):
    page = Page(text)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    clips = [re.fullmatch(r"url\(#(.+)\)", value).group(1) for value in page.values("clip-path")]
    targets = {target[1:] for target in page.values("href") if target.startswith("#")} | set(clips)
    assert clips
    assert targets <= set(ids)
    assert set(page.values("aria-labelledby")) <= set(ids)


def test_the_contents_lead_to_every_section(text):
    page = Page(text)
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    sections = [f"#{attributes['id']}" for tag, attributes in page.elements if tag == "section"]
    assert links == sections
    assert len(sections) == len(FAMILIES) + 1
    assert page.count("h1") == 1
    assert page.count("h2") == len(sections)


def test_the_greys_of_the_figures_follow_the_page(text):
    figures = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert {colour for colour in (INK, MUTED, LINE) if colour in figures} == set()
    assert "fill: var(--ink)" in figures
    assert "stroke: var(--line)" in figures
    assert "font-family" not in figures


def test_a_figure_without_data_says_so_in_its_place(trace):
    report = Report.of(changed(trace, {"label": [-1]}, {"num_refits": [0]}))
    page = Page(report.html("x"))
    assert report.num_figures == page.count("svg") == 2
    assert page.texts.count("No draft of this drafter has a label.") == 2
    assert page.count("figure") == len(FAMILIES)


def test_the_same_figure_gives_the_same_text(trace):
    first, second = (inline_svg(reliability_diagram(trace).figure, "key", "words") for _ in range(2))
    assert first == second


def test_a_page_of_a_long_trace_is_small(tmp_path):
    info = run_info(num_speculative_tokens=8)
    law = {"num_steps": 3200, "intercepts": (0.3, 0.2, 0.1, 0.0, -0.1, -0.2, -0.3, -0.4)}
    trace = read_trace([write_trace(tmp_path, info, **law)])
    assert len(trace.drafts) > 200_000
    assert len(Report.of(trace).html("x")) < 500_000


def test_png_files_are_the_figures_of_the_page(report, tmp_path):
    files = report.write_png(tmp_path / "new" / "folder")
    assert len(files) == len(set(files)) == report.num_figures
    assert files[:2] == [
        tmp_path / "new" / "folder" / "reliability-1-tiny-draft-eagle3-for-tiny.png",
        tmp_path / "new" / "folder" / "reliability-2-script-alert-a-b-script-mtp-for-t-script-alert-a-b-script.png",
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
