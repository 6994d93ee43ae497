"""The review page in a real browser: label with mouse and keyboard, undo, reload, restart, two tabs, hostile text.

They are skipped, and say so, where there is no Chromium.
"""

import re

import pytest

from confide.review import open_store

# The page waits for 10 seconds; a machine that tests many things at once gets a minute.
PATIENT = "const real = AbortSignal.timeout; AbortSignal.timeout = (time) => real.call(AbortSignal, 6 * time);"


@pytest.fixture
def enter(browser, forked_server_of):
    """A function that serves a folder and opens it. Whatever goes wrong in the page, and every address asked for, is kept."""
    contexts = []

    def open_page(folder, **options):
        process, link = forked_server_of(folder)
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        context.wrong, context.asked, context.process, context.link = [], [], process, link
        context.on("weberror", lambda error: context.wrong.append(str(error.error)))
        context.on("console", lambda said: context.wrong.append(said.text) if said.type == "error" else None)
        context.on("request", lambda request: context.asked.append(request.url))
        page = context.new_page()
        page.set_default_timeout(60_000)  # a disk that stalls is no failure of the page
        page.add_init_script(PATIENT)
        page.on("dialog", lambda dialog: context.wrong.append("a dialog"))
        page.goto(link)
        # The link leads on to the record. That its text is there does not mean that its script hears keys: it runs before "load"
        page.wait_for_url("**/record/*", wait_until="load")
        painted(page)
        return page

    yield open_page
    for context in contexts:
        context.close()


def painted(page):
    """Wait for a frame: Chromium throws away the keys that reach a page before its first."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shown(page):
    return page.locator("#text").inner_text()


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def wait(page, version=None, place=None):
    """Wait for a version of a record, or for the record at a place; if it does not come, say what the page says."""
    from playwright.sync_api import TimeoutError as TooLate

    wanted = "article" + "".join(f'[data-{n}="{v}"]' for n, v in (("version", version), ("place", place)) if v is not None)  # fmt: skip
    try:
        page.wait_for_selector(wanted)
    except TooLate:
        raise AssertionError(f"no {wanted}: {page.locator('#said').inner_text()!r}, {page.context.wrong}") from None


def says(page, where, words):
    """Wait until a line of the page says this."""
    page.locator(where).filter(has_text=words).wait_for(state="attached")


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
    press(page, "ArrowLeft", "ArrowRight", ">", "<", "<", "0")  # from Ferrell back to von, and on to Ferrell
    wait(page, version=3)
    assert missed(folder)[text] == [("Ferrel", "OTHER")]
    press(page, "ArrowUp", "ArrowDown", "x")  # from the mark to K1 and back
    wait(page, version=4)
    press(page, "ArrowDown", "f")
    wait(page, version=5)
    assert page.locator("mark.alarm").inner_text() == "K1"
    press(page, "Enter")
    wait(page, place=1)
    assert "All records of the sample are answered" in page.locator("main").inner_text()
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
    page.context.process.join()
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
    painted(two)
    press(one, "ArrowRight", "ArrowRight", "1")
    wait(one, version=1)
    press(two, "ArrowRight", "0")
    two.wait_for_selector("#said.wrong")
    assert "another tab" in two.locator("#said").inner_text()
    assert two.locator("mark.missed").inner_text() == "Jack"
    press(two, "0")  # what was selected still is
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
    press(page, *["ArrowLeft"] * 3, "1")  # over a sign that cannot be seen, and K1
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


def slow(page, milliseconds=700):
    """Every action takes so long from now on."""
    page.evaluate(
        """time => { const real = window.fetch;
        window.fetch = (...given) => new Promise((go) => setTimeout(() => go(real(...given)), time)); }""",
        milliseconds,
    )


def quick(page, *keys):
    """Keys that come faster than any answer."""
    page.evaluate(
        """keys => keys.forEach(key => document.getElementById("text").dispatchEvent(
        new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })))""",
        keys,
    )


def test_keys_that_are_pressed_during_a_request_wait_for_their_turn(folder_of, enter):
    text = "Anna Berta Carla Dora K1 P1"
    folder = folder_of([text])
    page = enter(folder)
    slow(page)
    quick(page, "ArrowRight", "1", "ArrowRight", "ArrowRight", "2")
    assert page.locator("#main").get_attribute("aria-busy") == "true"
    says(page, "#said", "Saving…")
    wait(page, version=1)
    assert page.evaluate("getSelection().toString()") == "Carla"  # what was chosen meanwhile stays so
    press(page, "ArrowRight", "0", "u", "Enter")
    wait(page, place=1)
    assert missed(folder)[text] == [("Anna", "KEY"), ("Carla", "PIN")]
    page.wait_for_selector("#main:not([aria-busy])")
    assert "Answered" in page.locator("#said").inner_text()
    assert not page.context.wrong


def test_a_key_pressed_before_the_next_record_is_shown_does_not_answer_it(folder_of, enter):
    folder = folder_of(["Call K1", "Call K2", "Call K3"])
    page = enter(folder)
    quick(page, "Enter", "Enter", "Enter")
    wait(page, place=1)
    page.wait_for_selector("#said.wrong")
    assert "could not see this record" in page.locator("#said").inner_text()
    quick(page, "s", "u")  # but an undo takes back what was done last, whatever is shown
    wait(page, place=1, version=2)
    store = open_store(folder)
    assert store.frontier() == 1
    store.close()


def test_after_a_failure_nothing_that_waits_is_saved_and_the_page_says_what(folder_of, enter):
    text = "Anna Berta K1"
    folder = folder_of([text])
    page = enter(folder)
    page.route("**/act", lambda route: route.abort())
    quick(page, "ArrowRight", "1", "ArrowRight", "0", "Enter")
    page.wait_for_selector("#said.wrong")
    said = page.locator("#said").inner_text()
    assert "Not saved: “Anna” as KEY. The server does not answer" in said
    assert "not saved either: “Berta” as OTHER, “nothing more was missed”" in said
    page.unroute("**/act")
    quick(page, "ArrowRight", "ArrowRight", "0", "ArrowLeft", "0", "Enter")  # the policy has found K1 already
    says(page, "#said", "found that already")
    assert missed(folder)[text] == []
    assert "not saved either: “Berta” as OTHER" in page.locator("#said").inner_text()


def test_a_server_that_hangs_is_not_waited_for_forever(folder_of, enter):
    page = enter(folder_of(["Call Jack K1"]))
    page.evaluate(
        "() => { const real = AbortSignal.timeout; AbortSignal.timeout = (time) => real.call(AbortSignal, time / 50); }"
    )
    page.route("**/act", lambda route: None)
    quick(page, "ArrowRight", "1")
    page.wait_for_selector("#said.wrong")
    assert "No answer for 10 seconds. Perhaps not saved: “Call” as KEY" in page.locator("#said").inner_text()
    assert page.locator("#main[aria-busy]").count() == 0


def test_a_tab_is_not_closed_unasked_while_something_is_saved(folder_of, enter):
    page = enter(folder_of(["Call Jack K1"]))
    asked = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    slow(page, 1500)
    press(page, "ArrowRight", "1")
    page.evaluate("() => { setTimeout(() => location.reload(), 0); }")
    wait(page, version=1)
    assert asked == ["beforeunload"]


def test_a_key_marks_only_what_is_selected_and_a_tap_what_was(folder_of, enter):
    text = "Call Jack K1"
    folder = folder_of([text])
    page = enter(folder)
    press(page, "ArrowRight")
    page.evaluate("getSelection().removeAllRanges()")
    press(page, "1")
    page.wait_for_selector("#said.wrong")
    assert "Select some text" in page.locator("#said").inner_text()
    press(page, "x", "f")
    assert missed(folder)[text] == []
    press(page, "ArrowRight")
    page.evaluate(
        """() => { const type = document.querySelector('.types [data-type="OTHER"]');
        type.dispatchEvent(new PointerEvent('pointerdown', { bubbles: true, cancelable: true }));
        getSelection().removeAllRanges(); type.click(); }"""  # as a finger does
    )
    wait(page, version=1)
    assert missed(folder)[text] == [("Jack", "OTHER")]
    page.evaluate("getSelection().removeAllRanges()")
    page.locator('.types [data-type="KEY"]').click()
    page.wait_for_selector("#said.wrong")
    press(page, "ArrowLeft")
    page.locator('.types [data-type="KEY"]').press("Enter")
    wait(page, version=2)
    assert missed(folder)[text] == [("Call", "KEY"), ("Jack", "OTHER")]
    assert page.evaluate("document.activeElement.dataset.type") == "KEY"


@pytest.mark.parametrize(
    ("text", "keys", "secret"),
    [
        ("see #42 K1", ["ArrowRight", "ArrowRight", "Shift+ArrowRight"], "#42"),
        ("K1 is 😀👩\u200d👧", ["ArrowLeft"], "😀👩\u200d👧"),
        ("K1 is 😀🎈🎁", ["ArrowLeft", "<", "<", ">", ".", ".", ",", ","], "😀🎈"),
        ("aK1b (K2) c", ["ArrowLeft", "ArrowLeft", "ArrowLeft", ",", ">"], "(K2)"),  # over the borders of a finding
        ("one K1\u200b\u200btwo", ["ArrowDown", ">"], "K1\u200b\u200b"),
    ],
)
def test_every_sign_that_is_no_blank_can_be_selected_with_keys(folder_of, enter, text, keys, secret):
    folder = folder_of([text])
    page = enter(folder)
    press(page, *keys, "0")
    wait(page, version=1)
    assert missed(folder)[text] == [(secret, "OTHER")]
    assert not page.context.wrong


def test_what_the_keys_choose_is_heard_and_seen(folder_of, enter):
    page = enter(folder_of(["K1 " + "word " * 3000 + "Jack"]))
    heard = page.locator("#heard")
    assert heard.get_attribute("role") == "status"
    press(page, "ArrowRight")
    says(page, "#heard", "“K1”: found KEY")
    press(page, "ArrowRight")
    says(page, "#heard", "Selected: “word”")
    page.reload()
    painted(page)
    press(page, "ArrowLeft", "1")
    wait(page, version=1)
    says(page, "#heard", "“Jack”: missed KEY")
    seen = page.evaluate(
        """() => { const word = getSelection().getRangeAt(0).getBoundingClientRect(), box = document.getElementById('text').getBoundingClientRect();
        return box.top <= word.top && word.bottom <= box.bottom && word.bottom <= innerHeight; }"""
    )
    assert seen


def test_single_keys_can_be_switched_off(folder_of, enter):
    folder = folder_of(["Call Jack K1"])
    page = enter(folder)
    press(page, "?")
    page.locator("#keys").uncheck()
    page.get_by_role("button", name="Close").click()
    assert not page.locator("#help").is_visible()
    for again in (False, True):
        press(page, "ArrowRight", "1", "s", "u", "?")
        page.wait_for_timeout(200)
        assert page.locator('article[data-place="0"][data-version="0"]').count() == 1
        assert not page.locator("#help").is_visible()
        assert not page.locator(".types kbd").first.is_visible()
        if not again:
            page.reload()
            painted(page)
    page.get_by_role("button", name="Help").click()
    page.locator("#keys").check()
    press(page, "Escape", "ArrowRight", "1")
    wait(page, version=1)


def test_the_tools_lie_on_no_text_and_a_phone_shows_all_of_it(folder_of, enter):
    page = enter(folder_of(["K1 " + "many words " * 600]))
    box, tools = page.locator("#text").bounding_box(), page.locator(".tools").bounding_box()
    assert box["y"] + box["height"] <= tools["y"]
    assert tools["y"] + tools["height"] <= 900
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("() => { const { scrollHeight, clientHeight } = document.getElementById('text'); return scrollHeight - clientHeight; }") == 0  # fmt: skip


def test_help_begins_at_its_beginning_on_a_phone(folder_of, enter):
    page = enter(folder_of(["Call K1"]))
    page.set_viewport_size({"width": 390, "height": 500})
    page.get_by_role("button", name="Help").click()
    assert page.evaluate("document.activeElement.id") == "help-title"
    assert page.evaluate("document.getElementById('help').scrollTop") == 0
    assert page.evaluate("document.getElementById('help').scrollHeight > document.getElementById('help').clientHeight")


def test_a_tab_of_an_older_start_is_told_in_words(folder_of, enter, forked_server_of):
    folder = folder_of(["Call K1"])
    page = enter(folder)
    port = int(re.search(r":(\d+)/", page.url)[1])
    page.context.process.terminate()
    page.context.process.join()
    forked_server_of(folder, port)
    page.reload()
    assert page.locator("h1").inner_text() == "confide review"
    assert "link that the command printed" in page.locator("main").inner_text()


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
