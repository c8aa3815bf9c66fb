"""The page in a browser."""

from __future__ import annotations

import shutil

import pytest
from tests.lab.report.traces import HOSTILE

playwright = pytest.importorskip("playwright.sync_api", reason="opening the page needs the playwright package")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="opening the page needs chromium")


@pytest.fixture(scope="module")
def address(text, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(text, encoding="utf-8")
    return file.as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(params=[(390, "light"), (1280, "light"), (1280, "dark")], ids=str)
def page(request, browser, address):
    """The page at one width; its console, errors and requests in ``page.complaints``."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (page.complaints.append(dialog.message), dialog.dismiss()))
    page.on("requestfailed", lambda failed: page.complaints.append(failed.url))
    page.on("request", lambda made: made.url.startswith(("file:", "data:")) or page.complaints.append(made.url))
    page.goto(address)
    yield page
    page.close()


def test_opens_quietly_with_every_figure_and_without_scrolling_sideways(page, report):
    page.wait_for_timeout(200)
    assert page.complaints == []
    boxes = [figure.bounding_box() for figure in page.locator("figure svg").all()]
    assert len(boxes) == report.num_figures == 14
    assert all(box["width"] > 300 and box["height"] > 200 for box in boxes)
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert page.locator("script").count() == 0
    assert page.locator("h1").inner_text() == HOSTILE


def test_no_text_of_a_figure_is_cut_off(page):
    # a text may stick out of its figure by rounding and by another font's wider letters, not by a word
    outside = page.evaluate(
        """() => [...document.querySelectorAll("figure svg")].flatMap(svg => {
            const frame = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("text")].filter(text => {
                const box = text.getBoundingClientRect();
                return box.left < frame.left - 4 || box.right > frame.right + 4
                    || box.top < frame.top - 4 || box.bottom > frame.bottom + 4;
            }).map(text => text.textContent);
        })"""
    )
    assert outside == []


def test_texts_are_readable_on_their_ground(page):
    lightness = """element => {
        const [r, g, b] = getComputedStyle(element)[PROPERTY].match(/\\d+/g).map(Number);
        return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
    }"""
    ground = page.locator("body").evaluate(lightness.replace("PROPERTY", '"backgroundColor"'))
    for text in page.locator("#reliability figure svg text").all():
        assert abs(text.evaluate(lightness.replace("PROPERTY", '"fill"')) - ground) > 0.4
