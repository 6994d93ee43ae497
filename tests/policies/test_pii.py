"""`pii`: Presidio, a spaCy pipeline and the patterns together; offline, quiet, and one record at a time."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable

import pytest
import spacy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.policies import load, pii
from confide.policies.base import Finding, merged
from confide.policies.patterns import Patterns
from confide.policies.pii import Pii
from confide.policies.spacy_levels import PART
from confide.records import MARK

TEXT = (
    "My name is Alice Moreau of Chicago, mail alice.moreau@example.co.uk, call 212-555-0187, "
    "card 4111 1111 1111 1111, host 10.1.2.3."
)
TEXTS = [TEXT, "ok", f"{MARK} moved to Boston on 3 May 2021.", "My passport number is 912803456.", "Norman Bouchard"]


@pytest.fixture
def no_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spacy.util, "get_installed_models", list)


def found(policy: Pii, text: str) -> set[tuple[str, str]]:
    return {(text[f.start : f.end], f.type) for f in policy.find(text)}


def test_presidios_types_and_the_patterns_are_found_together() -> None:
    policy = Pii()
    spans = found(policy, TEXT)
    assert {
        ("Alice Moreau", "PERSON"),
        ("Chicago", "LOCATION"),
        ("alice.moreau@example.co.uk", "EMAIL_ADDRESS"),
        ("212-555-0187", "PHONE_NUMBER"),
        ("4111 1111 1111 1111", "CREDIT_CARD"),
        ("10.1.2.3", "IP_ADDRESS"),
    } <= spans
    assert set(Patterns().find(TEXT)) <= set(policy.find(TEXT))
    assert policy.warnings == ()
    assert policy.pipeline.startswith("en_core_web_sm")
    assert policy.consistency == "none"


def test_weak_patterns_count_only_beside_a_word_that_explains_them() -> None:
    assert ("912803456", "US_PASSPORT") in found(Pii(), "My passport number is 912803456.")
    assert ("912803456", "US_PASSPORT") not in found(Pii(), "We sold 912803456 of them.")
    assert all(f.score >= pii.THRESHOLD for f in Pii().find(TEXT))


def test_web_addresses_count_if_their_suffix_exists_and_lines_of_dots_are_read_in_no_time(no_pipeline: None) -> None:
    policy = Pii()
    assert ("https://shop.example.co.uk:80/x?a=b", "URL") in found(
        policy, "see https://shop.example.co.uk:80/x?a=b now"
    )
    assert found(policy, "open notes.txt") == set()
    before = time.process_time()
    assert found(policy, "a." * 500) == found(policy, "." * 1_000) == set()
    assert time.process_time() - before < 5


def test_without_a_pipeline_it_finds_numbers_and_says_that_it_finds_no_names(no_pipeline: None) -> None:
    policy = Pii()
    assert "names of people, places and organisations are NOT detected" in policy.warnings[0]
    assert "install" in policy.warnings[0]
    assert policy.pipeline == ""
    kinds = {kind for _, kind in found(policy, TEXT)}
    assert {"EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IP_ADDRESS"} <= kinds
    assert not kinds & {"PERSON", "LOCATION", "ORGANIZATION"}


@pytest.mark.parametrize("module", ["presidio_analyzer", "spacy"])
def test_without_presidio_or_spacy_it_says_what_to_install(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadInput, match=r"pip install 'confide\[presidio\]' \(the policy patterns"):
        Pii()


def test_a_pipeline_that_is_not_there_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spacy.cli, "download", lambda *_: pytest.fail("a download"))
    with pytest.raises(BadInput, match="cannot load the spaCy pipeline 'en_core_web_xl'"):
        Pii("en_core_web_xl")


def test_no_connection_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a connection")

    pii._engine.cache_clear()
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert ("alice.moreau@example.co.uk", "EMAIL_ADDRESS") in found(Pii(), TEXT)


def test_nothing_is_logged_or_printed(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    policy = Pii()
    with caplog.at_level(logging.DEBUG):
        policy.find(TEXT)
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")


Elsewhere = Callable[[list[str], list[str]], list[list[Finding]]]


def _findings(names: list[str], texts: list[str]) -> list[list[Finding]]:
    return [load(name).find(text) for text in texts for name in names]


def test_findings_do_not_depend_on_other_texts_or_their_order() -> None:
    together = _findings(["pii"], TEXTS)
    assert together == [findings for text in TEXTS for findings in _findings(["pii"], [text])]
    assert together == _findings(["pii"], TEXTS[::-1])[::-1]


def test_every_policy_on_spacy_finds_the_same_in_another_process(elsewhere: Elsewhere) -> None:
    names = ["pii", "low-entity", "high-entity", "low-contextual", "high-contextual"]
    assert _findings(names, TEXTS) == elsewhere(names, TEXTS)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
@example("")
@example(" \n\t")
@example("\ud800 Alice \udfff a@b.co")
@example("passport\x00 912803456\u202e")
@example("'http://'" * 40)
def test_any_text_is_read_without_a_crash_and_spans_stay_inside(text: str) -> None:
    for policy in (Pii(), _without_pipeline()):
        for finding in policy.find(text):
            assert 0 <= finding.start < finding.end <= len(text)


def _without_pipeline() -> Pii:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spacy.util, "get_installed_models", list)
        return Pii()


def test_a_secret_beyond_one_part_is_found_where_it_stands(no_pipeline: None) -> None:
    filler = "The weather was fine. " * 2_400
    assert len(filler) > PART
    (span,) = merged(Pii().find(filler + "mail alice.moreau@example.co.uk"))
    assert span == (len(filler) + 5, len(filler) + 31)


def test_tags_of_speakers_are_no_findings() -> None:
    text = "SYS: What is your name?\nUSR: I am Alice Moreau of ACT Limited.\n"
    covered = [text[f.start : f.end] for f in Pii().find(text)]
    assert "Alice Moreau" in covered
    assert not {"SYS", "USR", "SYS:", "USR:"} & set(covered)
