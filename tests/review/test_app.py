"""The review's web application: who gets in, what a page and an answer hold, two tabs, hostile text, a killed server."""

import http.client
import json
import os
import re
import signal
import time
from html.parser import HTMLParser

import pytest

from confide.review import create_app, page, result, serve
from confide.review.app import HEADERS
from confide.review.records import Secret, Shown
from confide.review.store import State

pytest.importorskip("starlette")
from starlette.testclient import TestClient

TOKEN = "a-token-of-the-test"
ORIGIN = {"Origin": "http://127.0.0.1:8000"}
HOSTILE = [
    "<script>alert(1)</script> K1 </div><img src=x onerror=alert(2)>",
    "right \u202e to left \u2067 and \u200b nothing \x00\x07\x1b[31m K2",
    "x" * 1_000_000 + " K3 " + "y" * 500,
    "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16") + " emoji K4 \"quotes\" & 'more'",
    "a\nb\tc\r\nd K5 \u2028 e",
]


@pytest.fixture
def client_of():
    def make(store, enter=True):
        client = TestClient(create_app(store, TOKEN), base_url="http://127.0.0.1:8000", follow_redirects=False)
        if enter:
            assert client.get(f"/?token={TOKEN}").status_code == 200
        return client

    return make


def act(client, do, place, version, headers=ORIGIN, **more):
    return client.post("/act", json={"do": do, "place": place, "version": version, **more}, headers=headers)


def test_the_token_is_exchanged_for_a_strict_cookie_and_leaves_the_address(store_of, client_of):
    client = client_of(store_of(["K1"], sample=1), enter=False)
    assert client.get("/record/1").status_code == 403
    entered = client.get(f"/?token={TOKEN}")
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in cookie
    assert TOKEN not in entered.text
    assert 'url=/"' in entered.text
    assert client.get("/").headers["location"] == "/record/1"
    assert client.get("/record/1").status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], "ü"])
def test_a_wrong_token_is_refused(store_of, client_of, token):
    client = client_of(store_of(["K1"], sample=1), enter=False)
    refused = client.get("/", params={"token": token})
    assert refused.status_code == 403
    assert "set-cookie" not in refused.headers


@pytest.mark.parametrize("path", ["/", "/record/1", "/act", "/review.js", "/nothing"])
def test_nothing_is_shown_without_the_cookie(store_of, client_of, path):
    client = client_of(store_of(["secretive K1"], sample=1), enter=False)
    for cookie in ({}, {"confide-review-8000": "guess"}):
        client.cookies.update(cookie)
        found = client.post(path, json={}, headers=ORIGIN) if path == "/act" else client.get(path)
        assert found.status_code == 403
        assert "secretive" not in found.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:9", "127.0.0.1.evil.example:8000", "", "localhost"])
def test_another_host_is_refused(store_of, client_of, host):
    client = client_of(store_of(["secretive K1"], sample=1))
    found = client.get("/record/1", headers={"Host": host})
    assert found.status_code == 403
    assert "secretive" not in found.text


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9"},
        {"Origin": "http://localhost:8000"},
        {"Origin": "https://127.0.0.1:8000"},
        {**ORIGIN, "Sec-Fetch-Site": "cross-site"},
        {**ORIGIN, "Content-Type": "text/plain"},
    ],
)
def test_a_write_from_another_page_is_refused(store_of, client_of, headers):
    store = store_of(["K1"], sample=1)
    client = client_of(store)
    body = json.dumps({"do": "answer", "place": 0, "version": 0})
    found = client.post("/act", content=body, headers={"Content-Type": "application/json", **headers})
    assert found.status_code == 403
    assert client.get("/act?do=answer&place=0&version=0").status_code in (404, 405)
    assert store.frontier() == 0


REQUIRED = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FORBIDDING = {
    *(f"{what}-src 'self'" for what in ("script", "style", "img", "connect")),
    *(f"{what} 'none'" for what in ("default-src", "base-uri", "form-action", "frame-ancestors")),
}


def test_every_response_has_the_headers(store_of, client_of):
    client = client_of(store_of(["K1"], sample=1))
    answers = [client.get(path) for path in ("/", "/record/1", "/review.js", "/review.css", "/icon.svg", "/nothing")]
    answers += [act(client, "answer", 0, 0), client.get("/", headers={"Host": "evil"})]
    for found in answers:
        for name, value in REQUIRED.items():
            assert found.headers.get_list(name) == [value]
        (policy,) = found.headers.get_list("Content-Security-Policy")
        assert set(policy.split("; ")) == FORBIDDING


def test_bad_requests_are_answered_in_words_and_change_nothing(store_of, client_of):
    store = store_of(["words K1"], sample=1)
    client = client_of(store)
    bodies = [
        b"",
        b"[]",
        b"{",
        b"[" * 60_000,
        b'{"do": 3}',
        b'{"do": "undo"}',
        b'{"do": "answer", "place": 1e999}',
        b"x" * 99_999,
    ]
    bodies += [json.dumps({"do": "mark", "place": 0, "version": 0, "start": s, "end": e, "type": "OTHER"}).encode()
               for s, e in ((-1, 3), (0, 10**9), ("0", None), (True, 3), (6, 8))]  # fmt: skip
    for body in bodies:
        found = client.post("/act", content=body, headers={**ORIGIN, "Content-Type": "application/json"})
        assert found.status_code == 400
        assert found.json()["error"]
        assert "words" not in found.text
    assert store.last() is None


def test_label_undo_and_answer_over_http(store_of, client_of):
    store = store_of(["my code Q1"], sample=1)
    client = client_of(store)
    marked = act(client, "mark", 0, 0, start=8, end=10, type="OTHER").json()
    assert 'class="missed"' in marked["main"]
    assert store.state(store.order[0]).missed == (Secret(8, 10, "OTHER"),)
    last = int(re.search(r'data-last="(\d+)"', marked["main"])[1])
    undone = act(client, "undo", 0, 1, last=last).json()
    assert 'class="missed"' not in undone["main"]
    done = act(client, "answer", 0, 2).json()
    assert done["path"] == "/record/2"
    assert "All records of the sample are answered" in done["main"]
    assert json.loads((store.screened.folder / "review.json").read_text()) == result(store)
    drawn = len(store.draws)
    assert act(client, "more", 1, 0).status_code == 200
    assert len(store.draws) == drawn + 100


def test_the_second_of_two_tabs_is_told_and_shown_how_it_stands(store_of, client_of):
    store = store_of(["my codes Q1 Q2"], sample=1)
    client = client_of(store)
    act(client, "mark", 0, 0, start=9, end=11, type="OTHER")
    late = act(client, "mark", 0, 0, start=12, end=14, type="OTHER")
    assert late.status_code == 409
    assert "another tab" in late.json()["said"]
    assert 'data-version="1"' in late.json()["main"]
    assert len(store.state(store.order[0]).missed) == 1


def test_a_long_record_is_answered_only_after_its_last_part(store_of, client_of):
    store = store_of(["word " * 9000 + "K1"], sample=1)
    client = client_of(store)
    parts = len(page.pieces(store.show(0).text))
    assert parts == 3
    assert act(client, "answer", 0, 0, piece=0).status_code == 400
    assert act(client, "answer", 0, 0, piece=parts - 1).status_code == 200


class Shape(HTMLParser):
    """The elements of a page, and the text of the record with where each piece of it begins."""

    def __init__(self):
        super().__init__()
        self.tags, self.pieces, self.at = [], [], None

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        assert not any(name.startswith("on") or name == "style" for name in values)
        if "data-at" in values:
            self.at = int(values["data-at"])
            self.pieces.append([self.at, int(values["data-len"]), ""])

    def handle_endtag(self, tag):
        self.at = None if tag == "span" else self.at

    def handle_data(self, data):
        if self.at is not None:
            self.pieces[-1][2] += data


def test_a_hostile_corpus_changes_nothing(store_of, client_of):
    store = store_of(HOSTILE, sample=60)
    client = client_of(store)
    assert len(store.order) == len(HOSTILE)
    for place in range(len(HOSTILE)):
        text = store.show(place).text
        for piece, (low, high) in enumerate(page.pieces(text)):
            if 2 < piece < len(page.pieces(text)) - 2:
                continue
            found = client.get(f"/record/{place + 1}?piece={piece}")
            assert found.status_code == 200
            assert len(found.content) < 200_000
            shape = Shape()
            shape.feed(found.text)
            assert shape.tags.count("script") == 1
            assert "img" not in shape.tags
            assert not set(found.text) & set("\u202e\u2067\u200b\x00\x07\x1b\u2028")
            assert [at for at, _, _ in shape.pieces] == sorted(at for at, _, _ in shape.pieces)
            assert sum(length for _, length, _ in shape.pieces) == high - low
            for at, length, shown in shape.pieces:
                assert shown in ("", text[at : at + length])
        version = store.state(store.order[place]).version
        assert act(client, "answer", place, version, piece=len(page.pieces(text)) - 1).status_code == 200


def test_marks_are_drawn_where_they_are():
    shown = Shown("ab K1 cd", True, (Secret(3, 5, "KEY"),), None)
    html = page.text_html(shown, State(missed=(Secret(3, 8, "<b>"),)), 0, 8)
    assert re.sub(r' data-(start|end|len)="\d+"', "", html) == (
        '<span data-at="0">ab </span><mark class="missed" data-label="missed &lt;b&gt;">'
        '<mark class="found" data-label="found KEY"><span data-at="3">K1</span></mark></mark>'
        '<mark class="missed"><span data-at="5"> cd</span></mark>'
    )


def test_an_error_inside_says_nothing_of_the_text(store_of, client_of, capfd):
    store = store_of(["secretive K1"], sample=1)
    client = client_of(store)

    def fail(record):
        raise RuntimeError("secretive")

    store.records.read = fail
    found = client.get("/record/1")
    assert found.status_code == 500
    assert "secretive" not in found.text + "".join(capfd.readouterr())


def test_a_person_is_refused_by_a_page_and_a_program_by_json(store_of, client_of):
    client = client_of(store_of(["secretive K1"], sample=1), enter=False)
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path, more in (("/record/1", {}), ("/?token=wrong", {}), ("/record/1", {"Host": "evil.example"})):
        refused = client.get(path, headers={**browser, **more})
        assert refused.status_code == 403
        assert refused.headers["content-type"].startswith("text/html")
        assert "confide review" in refused.text
        assert "secretive" not in refused.text
        assert refused.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]
    assert client.get("/record/1").json()["error"]


def test_a_review_that_was_only_opened_does_not_count(store_of, client_of):
    store = store_of(["my code Q1"], sample=1)
    saved = store.screened.folder / "review.json"
    client = client_of(store)
    client.get("/record/1")
    act(client, "show", 0, 0)
    act(client, "mark", 0, 0, start=8, end=10, type="OTHER")
    assert not saved.exists()
    act(client, "answer", 0, 1)
    assert len(json.loads(saved.read_text())["records"]) == 1
    act(client, "undo", 0, 2, last=store.last()[0])
    assert json.loads(saved.read_text())["records"] == []  # what is no longer said does not stay


def test_showing_a_record_changes_nothing_and_goes_no_further_than_the_first_open_one(store_of, client_of):
    store = store_of([f"word {i} K{i}" for i in range(9)], sample=5)
    client = client_of(store)
    act(client, "answer", 0, 0)
    for place, path in ((0, "/record/1"), (1, "/record/2"), (4, "/record/2"), (-3, "/record/1")):
        assert act(client, "show", place, 0).json()["path"] == path
    assert store.last()[0] == 1


def test_agreement_is_told_in_words(store_of, client_of):
    anna = store_of(["my code Q1"], sample=1, reviewer="Anna")
    ben = store_of(folder=anna.screened.folder, reviewer="Ben")
    anna.act(0, "mark", 0, 8, 10)
    anna.act(0, "answer", 1)
    ben.act(0, "answer", 0)
    anna.refresh()
    said = page.panel(anna)
    assert "both answered 1 record; whether something was missed, they say the same of 0" in said
    assert "1 records" not in said
    assert "no more than by chance" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_server_that_is_told_to_end_leaves_no_link_and_no_loose_ends(folder_of, server_of, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("whoever started the tests, such as nohup, lets them ignore this signal, and so does the server")
    folder = folder_of(["my code Q1"])
    process, link = server_of(folder, browser=True)
    doorway = folder / "review.html"
    for _ in range(100):
        if doorway.exists():
            break
        time.sleep(0.05)
    assert link in doorway.read_text()
    assert not (folder / "review.json").exists()
    ask = asker(link)
    assert ask("/act", {"do": "answer", "place": 0, "version": 0})[0] == 200
    process.send_signal(number)
    assert process.wait(20) == 0
    assert not doorway.exists()
    wal = folder / "review.sqlite-wal"
    assert not wal.exists() or not wal.stat().st_size
    assert len(json.loads((folder / "review.json").read_text())["records"]) >= 1


def asker(link):
    """A function from a path, and perhaps a body, to the status and text of the answer, for one who has come by the link."""
    host, path = re.fullmatch(r"http://(127\.0\.0\.1:\d+)(/\?token=\S+)", link).groups()

    def ask(path, body=None, **more):
        connection = http.client.HTTPConnection(host, timeout=10)
        headers = {"Cookie": cookie, "Origin": f"http://{host}", "Content-Type": "application/json", **more}
        connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode(), response.getheader("Set-Cookie", "").split(";")[0]

    cookie = ""
    cookie = ask(path)[2]
    return ask


def test_a_killed_server_loses_nothing_and_logs_nothing(store_of, server_of):
    store = store_of([f"secretive {i} Q{i}" for i in range(50)], sample=30)
    process, link = server_of(store.screened.folder)
    ask = asker(link)
    assert ask("/record/1", Host="evil.example")[0] == 403
    for place in range(5):
        for version, do in enumerate(("mark", "answer")):
            body = {"do": do, "place": place, "version": version, "start": 0, "end": 4, "type": "OTHER"}
            assert ask("/act", body)[0] == 200
    os.kill(process.pid, signal.SIGKILL)
    said = "".join(process.communicate())
    assert "secretive" not in said
    assert "record" not in said.replace("records", "")  # no log of requests
    store.refresh()
    assert store.frontier() == 5
    assert len(result(store)["records"]) >= 5


def test_serving_needs_a_free_port_and_a_screened_folder(folder_of, tmp_path):
    from confide.errors import BadInput

    with pytest.raises(BadInput, match="no screened corpus"):
        serve(tmp_path, open_browser=False)
    with pytest.raises(BadInput, match="--port"):
        serve(folder_of(["K1"]), port=70_000, open_browser=False)
