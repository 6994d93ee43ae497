"""The report says what is promised, what is not and how sure we are; and nothing else gets into it."""

import json
import re
import shutil
import stat
from html import unescape
from html.parser import HTMLParser

import pytest

from confide.accounting import verify
from confide.accounting.guarantees import up
from confide.errors import BadInput, ConfideError
from confide.reporting import report
from confide.reporting.sharing import without_paths


class Reader(HTMLParser):
    """The visible text of a page, its tags and the values of its attributes."""

    VOID = ("meta", "br", "img", "link", "hr", "input")

    def __init__(self, page):
        super().__init__()
        self.texts, self.tags, self.attributes, self.open = [], [], [], []
        self.feed(page)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} closes something else"

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)


@pytest.fixture(scope="module")
def page(whole):
    return report(whole)


@pytest.fixture(scope="module")
def read(page):
    return Reader(page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shared(whole):
    return report([whole], shareable=True)


def test_every_guarantee_assumption_and_gap_is_on_the_page(read, whole):
    certificate = json.loads((whole / "certificate.json").read_text())
    assert len(certificate["guarantees"]) == 14
    for one in certificate["guarantees"]:
        assert one["sentence"] in read.text
    for one in certificate["assumptions"]:
        assert one["text"] in read.text
    for gap in certificate["not_promised"]:
        assert gap in read.text


def test_the_certificates_sentences_are_these(make, tmp_path):
    """A snapshot: whoever changes a sentence changes what is promised, and must say so here."""
    make(tmp_path / "run", parts=("certificate", "review"))
    certificate = verify(tmp_path / "run").certificate
    sentences = {one["name"]: one["sentence"] for one in certificate["guarantees"]}
    assert sentences["per-secret"] == (
        "For all secrets (every record is private): for each one, whoever sees the model and all its intermediate states and knows "
        "everything else in the corpus, any conclusion is at most e^1.22 ≤ 3.39 times as likely as if <MASK> had stood there, plus "
        "1e-05, and the other way round."
    )
    assert sentences["detected-secret"] == (
        "A secret that is all that one mask of the policy hides (one whole finding, or several) leaves no trace: the screened corpus "
        "is the same whether the record held the secret or <MASK>."
    )
    assert sentences["bayesian"].startswith(
        "With confidence 95% over the labelled sample, for a secret occurrence drawn uniformly"
    )
    assert certificate["not_promised"][-1] == (
        "A guarantee bounds what the model adds to an attacker's knowledge, not what the attacker knew already."
    )


def test_the_first_screen_answers_what_is_promised_and_how_sure_we_are(read):
    first = read.text[: read.text.index("What is promised")]
    for said in (
        "SENSITIVE", "The certificate holds", "ε ≤ 1.22", "3.32", "perplexity", "plain (no promise): perplexity 3.32",
        "55.3 %", "Ceiling: 61.0 %", "0.23 ≤ ε ≤ 1.22", "A perfect guesser would show 3.26",
    ):  # fmt: skip
        assert said in first


def test_bounds_are_rounded_away_from_what_would_flatter(read):
    assert "0.23 ≤ ε" in read.text  # 0.237 is a lower bound
    assert (
        "misses at most 15.0 % of the secrets, counting at most 10 a record" in read.text
    )  # 0.14947 is an upper bound
    assert "14.9 %" not in read.text


def test_every_section_has_its_chart_with_a_table_and_a_text(read):
    charts = [value for tag, name, value in read.attributes if tag == "svg" and name == "aria-label"]
    assert len(charts) == 11
    assert read.tags.count("svg") == sum(
        1 for tag, name, value in read.attributes if (tag, name, value) == ("svg", "role", "img")
    )
    assert read.text.count("The data") == len(charts)
    assert all(len(text) > 20 for text in charts)


def test_figures_are_files_too(page):
    found = {path.name for path in (page.parent / "figures").iterdir()}
    assert {"flow.svg", "flow.png", "coins.svg", "membership.png"} <= found
    assert len(found) == 22
    assert (page.parent / "figures" / "flow.svg").read_text().startswith("<?xml")


def test_a_run_folder_from_a_stranger_reaches_nothing_outside_of_itself(tmp_path, make, undrawn):
    """Links in it that stand where the report writes: none is followed."""
    run, mine = make(tmp_path / "run"), tmp_path / "mine"
    mine.mkdir()
    for name in ("holiday.png", "bashrc"):
        (mine / name).write_text("mine")
    (run / "model" / "README.md.new").symlink_to(mine / "bashrc")
    report(run)
    assert "mine" not in (run / "model" / "README.md").read_text()
    shutil.rmtree(run / "figures")
    (run / "figures").symlink_to(mine)
    with pytest.raises(ConfideError, match="figures is a link, which is never followed"):
        report(run)
    (run / "figures").unlink()
    (run / ".lock").unlink(missing_ok=True)
    (run / ".lock").symlink_to(tmp_path / "made-elsewhere")
    with pytest.raises(ConfideError):
        report(run)
    assert not (tmp_path / "made-elsewhere").exists()
    assert {path.name: path.read_text() for path in mine.iterdir()} == {"holiday.png": "mine", "bashrc": "mine"}


def test_names_cannot_paint_whoever_prints_the_page(tmp_path, make):
    page = report(make(tmp_path / "run\x1b[31m", model="m\x1b]0;x\x07"))
    assert not set(page.read_text(encoding="utf-8")) & {"\x1b", "\x07"}


def test_a_hostile_corpus_changes_nothing(page, read, nasty):
    source = page.read_text(encoding="utf-8")
    assert nasty in read.text  # it is shown, as text
    assert "script" not in read.tags
    assert "<script" not in source
    assert not [name for _, name, _ in read.attributes if name.startswith("on")]
    assert read.open == []  # every tag is closed
    assert "$x_1$ 5 % & more" in read.text
    for path in (page.parent / "figures").glob("*.svg"):
        assert "<script" not in path.read_text()


def test_the_page_asks_for_nothing_from_anywhere(page, shared):
    for path in (page, shared):
        source = path.read_text(encoding="utf-8")
        assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in source
        assert not re.search(r"""(?:src|href|action|data)\s*=\s*["']?\s*(?:https?:)?//""", source, re.I)
        assert not re.search(r"url\(\s*['\"]?(?!#)", source, re.I)
        assert "@import" not in source
        assert len(source) < 600_000


def test_ids_are_unique_and_links_inside_the_page_lead_somewhere(read):
    ids = [value for _, name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for _, name, value in read.attributes if name.endswith("href")} <= set(ids)


def test_reports_and_figures_are_for_their_owner_only(page, shared):
    for path in (page, shared, *(page.parent / "figures").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((page.parent / "figures").stat().st_mode) == 0o700


def numbers_of(value):
    """The numbers below a value, as a page would write them."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from numbers_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers_of(inner)
    elif isinstance(value, int) and not isinstance(value, bool) and value > 99_999:
        yield from (str(value), f"{value:,}")


def test_what_may_be_shared_holds_no_private_statistic(whole, shared):
    source = shared.read_text(encoding="utf-8")
    card = (whole / "model" / "README.md").read_text(encoding="utf-8")
    screened = whole.parent / "screened"
    private = [json.loads((screened / name).read_text()) for name in ("manifest.json", "review.json")]
    attacks = json.loads((whole / "attacks.json").read_text())
    private += [attacks[name] for name in ("membership", "extraction", "inference", "reconstruction")]
    markers = {text for part in private for text in numbers_of(part)} | {
        "181,920",
        "181920",
        "53.5 %",
        "14.9 %",
        "15.0 %",
        "97.6 %",
        "818181",
        "SHY",
    }
    assert len(markers) > 30
    certificate = json.loads((whole / "certificate.json").read_text())
    bayesian = next(one for one in certificate["guarantees"] if one["name"] == "bayesian")
    markers |= {
        f"{verify(whole).numbers} numbers",  # it counts the reviewed records
        bayesian["sentence"],
        bayesian["sentence"][:60],
        f"{certificate['bounds']['gamma']:.3g}",
        up(certificate["bounds"]["gamma"]),
        "/home/alice",
        str(whole.parent),
        "/models/",
    }
    source = re.sub(r' d="[^"]*"', "", source)  # places of a chart's lines, in which any six digits may stand
    for text in (source, unescape(source), card):
        assert [one for one in markers if one in text] == []
        assert "SENSITIVE" not in text
    figures = {path.stem for path in (whole / "figures-shareable").iterdir()}
    assert not figures & {"findings", "flow", "misses", "membership"}


def test_what_may_be_shared_holds_the_certificate_and_the_canaries(whole, shared):
    read = Reader(shared.read_text(encoding="utf-8"))
    certificate = json.loads((whole / "certificate.json").read_text())
    for one in certificate["guarantees"]:
        assert (one["sentence"] in read.text) == (one["name"] != "bayesian")
    assert "rests on a labelled sample" in read.text
    assert "exposure of planted secrets, mean (3 planted secrets)" in read.text
    assert "0.23 ≤ ε ≤ 1.22" in read.text
    assert certificate["ledger"]["head"] in read.text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("crt of /home/alice/m on x", "crt of m on x"),
        ("known(/data/a b.txt, 3)", "known(a b.txt, 3)"),
        ("known(~/lists/vip.txt)", "known(vip.txt)"),
        ("known(../lists/vip.txt)", "known(vip.txt)"),
        (r"C:\Users\alice\m", "m"),
        ("org/name and 1 / 2", "org/name and 1 / 2"),
        ("</b>", "</b>"),
    ],
)
def test_files_keep_their_names_but_not_their_folders(text, left):
    assert without_paths(text) == left


def test_a_plain_run_promises_nothing_and_says_how_to_get_the_rest(make, tmp_path, undrawn):
    run = make(tmp_path / "run", "plain", parts=("model",))
    text = Reader(report(run).read_text(encoding="utf-8")).text
    for said in (
        "Nothing is promised", "--method crt", f"confide attack {run}", f"confide review {tmp_path}/screened",
        "The screened corpus is not where it was",
    ):  # fmt: skip
        assert said in text
    assert "The certificate holds" not in text


def test_an_interrupted_run_is_reported_as_such(make, tmp_path, undrawn):
    run = make(tmp_path / "run", parts=())
    text = Reader(report(run).read_text(encoding="utf-8")).text
    assert "Nothing is promised yet" in text
    assert f"confide train -o {run} --resume" in text
    assert "confide verify" not in text
    assert not (run / "model").exists()


def test_selective_and_conditional_guarantees_say_what_they_are(make, tmp_path, undrawn):
    selective = Reader(
        report(make(tmp_path / "s", "sdp", parts=("certificate", "model"))).read_text(encoding="utf-8")
    ).text
    assert "does not compare with the epsilon of a confidentiality guarantee" in selective
    assert "Not comparable with a confidentiality ε" in selective
    caught = Reader(
        report(make(tmp_path / "j", "jft", parts=("certificate", "model"))).read_text(encoding="utf-8")
    ).text
    assert "Only for secrets that the redaction caught; without that condition there is no bound." in caught


def test_several_runs_are_compared_on_one_page(whole, make, tmp_path):
    other = make(tmp_path / "sdp", "sdp", parts=("certificate", "model"))
    page = report([whole, whole.parent / "plain", other], tmp_path / "compared.html")
    read = Reader(page.read_text(encoding="utf-8"))
    for said in (
        "3 runs compared",
        "Privacy and utility",
        "no promise",
        "plain was not attacked",
        "does not compare with the epsilon",
    ):
        assert said in read.text
    assert read.open == []
    assert "script" not in read.tags
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_a_comparison_takes_the_place_of_a_comparison_alone(whole, tmp_path):
    runs = [whole, whole.parent / "plain"]
    assert report(runs, report(runs, tmp_path / "compared.html")).exists()
    (tmp_path / "chats.jsonl").write_text("{}")
    with pytest.raises(BadInput, match="is no page of confide's"):
        report(runs, tmp_path / "chats.jsonl")


def test_attacks_of_another_confide_are_said_to_be_unreadable(make, tmp_path):
    run = make(tmp_path / "run", "plain", parts=("model",))
    odd = {
        name: {"odd": 1, "canaries": [1], "attacks": [2]}
        for name in ("exposure", "membership", "reconstruction", "inference")
    }
    (run / "attacks.json").write_text(json.dumps({"confide_attacks": 1, "shareable": [], "contradictions": [], **odd}))
    assert Reader(report(run).read_text(encoding="utf-8")).text.count("another confide wrote it") == 4


def test_what_is_no_run_is_refused(tmp_path, whole):
    with pytest.raises(BadInput, match="is not a run"):
        report(tmp_path)
    with pytest.raises(BadInput, match="twice"):
        report([whole, whole])
    with pytest.raises(BadInput, match="at least one"):
        report([])
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "attacks.json").write_text("{")
    with pytest.raises(BadInput, match=r"attacks.json is damaged; remove it and run confide attack"):
        report(run)
