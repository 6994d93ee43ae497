"""The review page in a real browser: label with mouse and keyboard, undo, reload, restart, two tabs, hostile text.

They are skipped, and say so, where there is no Chromium.
"""

import re

import pytest

from confide.review import open_store


@pytest.fixture
def enter(browser, server_of):
    """A function that serves a folder and opens it. Whatever goes wrong in the page, and every address asked for, is kept."""
    contexts = []

    def open_page(folder, **options):
        process, link = server_of(folder)
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        context.wrong, context.asked, context.process, context.link = [], [], process, link
        context.on("weberror", lambda error: context.wrong.append(str(error.error)))
        context.on("console", lambda said: context.wrong.append(said.text) if said.type == "error" else None)
        context.on("request", lambda request: context.asked.append(request.url))
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("dialog", lambda dialog: context.wrong.append("a dialog"))
        page.goto(link)
        page.wait_for_selector("#text")
        return page

    yield open_page
    for context in contexts:
        context.close()


def shown(page):
    return page.locator("#text").inner_text()


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def wait(page, version=None, place=None):
    page.wait_for_selector("article" + "".join(f'[data-{n}="{v}"]' for n, v in (("version", version), ("place", place)) if v is not None))  # fmt: skip


def missed(folder):
    """What is stored, as the words that were marked, by record."""
    store = open_store(folder)
    found = {}
    for record in store.order:
        text = store.records.read(record).text
        found[text] = [(text[one.start : one.end], one.type) for one in store.state(record).missed]
    store.close()
    return found


def test_label_with_the_keyboard_undo_and_answer(folder_of, enter):
    text = "Call K1 or Jack von Ferrell, please"
    folder = folder_of([text])
    page = enter(folder)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/record/1", page.url)  # the token is gone
    press(page, *["ArrowRight"] * 4, "Shift+ArrowRight", "Shift+ArrowRight", "1")
    wait(page, version=1)
    assert missed(folder)[text] == [("Jack von Ferrell", "KEY")]
    press(page, "u")
    wait(page, version=2)
    assert missed(folder)[text] == []
    press(page, *["ArrowRight"] * 4, ">", "<", "<", "0")
    wait(page, version=3)
    assert missed(folder)[text] == [("Jac", "OTHER")]
    press(page, "ArrowUp", "x")  # the last mark of the text
    wait(page, version=4)
    press(page, "ArrowDown", "f")
    wait(page, version=5)
    assert page.locator("mark.alarm").inner_text() == "K1"
    press(page, "Enter")
    wait(page, place=1)
    assert "All 1 records are answered" in page.locator("main").inner_text()
    press(page, "b")
    wait(page, place=0)
    assert page.locator("mark.alarm").count() == 1
    assert not page.context.wrong


def test_label_with_the_mouse(folder_of, enter):
    text = "Call K1 or Jack Ferrell, please"
    folder = folder_of([text])
    page = enter(folder)
    box = page.evaluate(
        """() => { const node = [...document.querySelectorAll('#text [data-at]')].pop().firstChild, range = document.createRange();
        const at = node.data.indexOf('Jack'); range.setStart(node, at); range.setEnd(node, at + 12);
        const { left, right, top, bottom } = range.getBoundingClientRect(); return { left, right, top, bottom }; }"""
    )
    middle = (box["top"] + box["bottom"]) / 2
    page.mouse.move(box["left"] + 1, middle)
    page.mouse.down()
    page.mouse.move(box["right"] - 1, middle, steps=5)
    page.mouse.up()
    assert "Jack Ferrell" in page.locator("#chosen").inner_text()
    page.get_by_role("button", name="OTHER").click()
    wait(page, version=1)
    assert missed(folder)[text] == [("Jack Ferrell", "OTHER")]
    page.get_by_role("button", name="False alarm").click()
    wait(page, version=2)
    page.get_by_role("button", name="Remove the mark").click()
    wait(page, version=3)
    page.get_by_role("button", name="Undo").click()
    wait(page, version=4)
    assert missed(folder)[text] == [("Jack Ferrell", "OTHER")]
    page.get_by_role("button", name="Nothing more was missed").click()
    wait(page, place=1)
    assert not page.context.wrong


def test_a_skip_says_what_it_costs(folder_of, enter):
    page = enter(folder_of(["Call K1"]))
    assert "counts as 1 missed" in page.get_by_role("button", name="Skip").inner_text()
    press(page, "s")
    wait(page, place=1)
    assert "counts as 1 missed" in page.locator("#said").inner_text()
    assert "skipped" in page.locator("#bound").inner_text()


def test_reload_and_restart_lose_nothing(folder_of, enter):
    folder = folder_of(["Call Jack now or K1"])
    page = enter(folder)
    press(page, "ArrowRight", "ArrowRight", "1")
    wait(page, version=1)
    page.reload()
    assert page.locator("mark.missed").inner_text() == "Jack"
    page.context.process.kill()
    page.context.process.wait()
    press(page, "u")
    page.wait_for_selector("#said.wrong")
    assert "Not saved" in page.locator("#said").inner_text()
    again = enter(folder)
    assert again.locator("mark.missed").inner_text() == "Jack"
    press(again, "u")
    wait(again, version=2)
    assert again.locator("mark.missed").count() == 0


def test_the_second_of_two_tabs_is_told(folder_of, enter):
    folder = folder_of(["Call Jack now or K1"])
    one = enter(folder)
    two = one.context.new_page()
    two.goto(one.url)
    press(one, "ArrowRight", "ArrowRight", "1")
    wait(one, version=1)
    press(two, "ArrowRight", "0")
    two.wait_for_selector("#said.wrong")
    assert "another tab" in two.locator("#said").inner_text()
    assert two.locator("mark.missed").inner_text() == "Jack"
    press(two, "ArrowRight", "0")
    wait(two, version=2)
    assert missed(folder)["Call Jack now or K1"] == [("Call", "OTHER"), ("Jack", "KEY")]


def test_a_hostile_corpus_is_text_and_places_are_right(folder_of, enter):
    hostile = "<script>alert(1)</script> 😀😀 \u202e\x00 <img src=x onerror=alert(2)> Zoë K1 \u200b Jack"
    folder = folder_of([hostile])
    page = enter(folder)
    assert "<script>alert(1)</script> 😀😀" in shown(page)
    press(page, "ArrowLeft", "0")
    wait(page, version=1)
    assert missed(folder)[hostile] == [("Jack", "OTHER")]
    press(page, *["ArrowLeft"] * 3, "1")
    wait(page, version=2)
    assert missed(folder)[hostile] == [("Zoë", "KEY"), ("Jack", "OTHER")]
    assert page.locator(".sign").count() >= 3
    assert page.locator("script").count() == 1
    assert not page.context.wrong


def test_a_record_of_a_megabyte_is_read_in_parts(folder_of, enter):
    text = "Call " + "x" * 30_000 + " K1 now Jack"
    folder = folder_of([text])
    page = enter(folder)
    assert "part 1 of 2" in page.locator("main").inner_text()
    press(page, "Enter")
    page.wait_for_selector('article[data-piece="1"]')
    press(page, "ArrowLeft", "1")
    wait(page, version=1)
    assert missed(folder)[text] == [("Jack", "KEY")]
    press(page, "Enter")
    wait(page, place=1)


def test_nothing_is_asked_of_anyone_else_and_no_address_holds_text(folder_of, enter):
    page = enter(folder_of(["Call Jack K1"]))
    press(page, "ArrowRight", "ArrowRight", "1")
    wait(page, version=1)
    press(page, "?", "Escape", "Enter")
    wait(page, place=1)
    home = page.context.link.partition("?")[0]
    assert page.context.asked
    assert all(url.startswith(home) and "Jack" not in url for url in page.context.asked)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(folder_of, enter, scheme):
    page = enter(folder_of(["Call K1 and " + "w" * 200]), color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    colours = page.evaluate(
        "() => [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    light, dark = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    assert (light > dark) == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(folder_of, enter, scheme, faults):
    page = enter(folder_of(["Call K1 or \x00 Jack", "Call P2 or Jack"]), color_scheme=scheme, bypass_csp=True)
    press(page, "ArrowLeft", "1")
    wait(page, version=1)
    for keys in ((), ("f",), ("?",), ("Escape", "Enter"), ("Enter",)):
        press(page, *keys)
        page.wait_for_timeout(200)
        assert faults(page) == []
