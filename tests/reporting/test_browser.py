"""The report in a real browser: offline, light and dark, on a phone, on paper; they are skipped, and say so, without Chromium."""

import pytest

from confide.reporting import report

SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def pages(whole, tmp_path_factory):
    """The files of the report, of what may be shared of it, and of a comparison."""
    out = tmp_path_factory.mktemp("pages")
    return {
        "report": report(whole, out=out / "report.html"),
        "shareable": report(whole, out=out / "shareable.html", shareable=True),
        "comparison": report([whole, whole.parent / "plain"], out=out / "comparison.html"),
    }


@pytest.fixture
def opened(browser, pages):
    """A function that opens one of the files without a network; what the page asks for, and what goes wrong in it, is kept."""
    contexts = []

    def open_page(name, size="desktop", **options):
        context = browser.new_context(viewport=SIZES[size], offline=True, **options)
        contexts.append(context)
        context.asked, context.wrong = [], []
        context.on("request", lambda request: context.asked.append(request.url))
        context.on("weberror", lambda error: context.wrong.append(str(error.error)))
        context.on("console", lambda said: context.wrong.append(said.text) if said.type == "error" else None)
        page = context.new_page()
        page.on("dialog", lambda dialog: context.wrong.append("a dialog"))
        page.goto(pages[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", ["report", "shareable", "comparison"])
def test_the_page_opens_offline_asks_for_nothing_and_runs_nothing(opened, pages, name):
    page = opened(name)
    asked = [url for url in page.context.asked if not url.startswith("data:")]
    assert asked == [pages[name].as_uri()]
    assert not page.context.wrong
    assert page.locator("h1").count() == 1
    pictures = page.locator("svg, img")
    assert pictures.count()
    assert all(one.bounding_box()["width"] > 100 for one in pictures.all() if one.is_visible())


@pytest.mark.parametrize(
    ("name", "scheme"), [("report", "light"), ("report", "dark"), ("shareable", "dark"), ("comparison", "light")]
)
def test_axe_finds_no_serious_fault(opened, faults, name, scheme):
    page = opened(name, color_scheme=scheme)
    page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert faults(page) == []


@pytest.mark.parametrize("name", ["report", "shareable", "comparison"])
def test_a_phone_shows_everything_without_scrolling_sideways(opened, name):
    page = opened(name, "phone")
    page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= SIZES["phone"]["width"]


def test_the_verdict_stands_on_the_first_screen(opened):
    page = opened("report")
    for part in ("h1", ".verdict", ".tiles", ".basis"):
        box = page.locator(part).first.bounding_box()
        assert box["y"] + box["height"] <= SIZES["desktop"]["height"]


def test_a_certificate_with_a_class_and_its_assumptions_fits_on_the_first_screen(browser, make, tmp_path, undrawn):
    which = (
        "secrets that hold a word outside the built-in English word list (in any case), a digit, or a sign other than "
        * 2
    )
    run = make(tmp_path / "run", conservative="allowlist", recall_class=which)
    page = browser.new_page(viewport=SIZES["desktop"])
    page.goto(report(run).as_uri())
    box = page.locator(".basis a[href='#sure']").bounding_box()
    page.close()
    assert box["y"] + box["height"] <= SIZES["desktop"]["height"]


def test_what_is_folded_up_is_printed(opened):
    page = opened("report")
    heights = "() => [...document.querySelectorAll('details')].map((one) => one.getBoundingClientRect().height)"
    closed = page.evaluate(heights)
    page.emulate_media(media="print")
    assert all(paper > screen + 20 for screen, paper in zip(closed, page.evaluate(heights), strict=True))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= SIZES["desktop"]["width"]


@pytest.mark.parametrize("name", ["report", "comparison"])
def test_charts_keep_their_size_on_a_phone_and_scroll_by_themselves(opened, name):
    page = opened(name, "phone")
    for chart in page.locator("figure svg").all():
        assert chart.bounding_box()["width"] >= 30 * 16
