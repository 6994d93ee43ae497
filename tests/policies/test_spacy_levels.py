"""The four levels of JFT on a spaCy pipeline: what each finds, that they nest, and that a record stands alone."""

from __future__ import annotations

import sys

import pytest
import spacy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.policies import spacy_levels
from confide.policies.base import Finding, Policy, merged
from confide.policies.spacy_levels import HighContextual, HighEntity, LowContextual, LowEntity, clean, parts
from confide.records import MARK

LEVELS = [LowEntity, HighEntity, LowContextual, HighContextual]
TEXTS = [
    "Did you hear that Alice Moreau is getting divorced?",
    "Norman Bouchard paid 40 dollars to Acme Corporation in Chicago on 3 May 2021.",
    f"{MARK} lives in Paris with {MARK}.",
    "ok",
    "She gave Mary two of the tickets. They were for Tuesday.",
]


def found(policy: Policy, text: str) -> set[tuple[str, str]]:
    return {(text[f.start : f.end], f.type) for f in policy.find(text)}


def test_low_entity_finds_people_organisations_dates_and_places_and_no_amounts() -> None:
    spans = found(LowEntity(), TEXTS[1])
    assert ("Norman Bouchard", "PERSON") in spans
    assert ("Chicago", "GPE") in spans
    assert ("3 May 2021", "DATE") in spans
    assert not [kind for _, kind in spans if kind in ("MONEY", "CARDINAL")]
    assert ("40 dollars", "MONEY") in found(HighEntity(), TEXTS[1])


def test_the_contextual_levels_redact_the_papers_sentence() -> None:
    text = "What are you going to do about the custody of the kids?"
    low = {("What", "PRON"), ("you", "PRON"), ("custody", "OBJECT"), ("kids", "OBJECT")}
    assert found(LowEntity(), text) == found(HighEntity(), text) == set()
    assert found(LowContextual(), text) == low
    assert found(HighContextual(), text) == low | {("going", "VERB"), ("do", "VERB")}


def test_subjects_and_indirect_objects_count() -> None:
    assert {("lawyer", "SUBJECT"), ("court", "OBJECT"), ("letter", "OBJECT")} <= found(
        LowContextual(), "The lawyer sent the court a letter."
    )


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60) | st.sampled_from(TEXTS))
@example("\ud800 Alice")
@example("\x00\u202e\ufdd0")
def test_each_level_covers_the_one_before_and_stays_inside_the_text(text: str) -> None:
    covered: set[int] = set()
    for level in LEVELS:
        spans = merged(level().find(text))
        now = {i for start, end in spans for i in range(start, end)}
        assert covered <= now <= set(range(len(text)))
        covered = now


def _findings(texts: list[str]) -> list[list[Finding]]:
    return [level().find(text) for text in texts for level in LEVELS]


def test_findings_do_not_depend_on_other_texts_or_their_order() -> None:
    together = _findings(TEXTS)
    assert together == [findings for text in TEXTS for findings in _findings([text])]
    backwards = _findings(TEXTS[::-1])
    assert together == [backwards[i + j] for i in reversed(range(0, len(backwards), 4)) for j in range(4)]


@given(st.text(alphabet="ab \n", max_size=300), st.integers(1, 30), st.integers(1, 10))
def test_parts_give_back_the_text_and_break_only_endless_words(text: str, part: int, run: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spacy_levels, "PART", part + run)
        patch.setattr(spacy_levels, "RUN", run)
        patch.setattr(spacy_levels, "_RUN", spacy_levels.re.compile(rf"\S{{{run}}}"))
        pieces = list(parts(text))
    assert "".join(piece for _, piece in pieces) == text
    for offset, piece in pieces:
        assert text[offset : offset + len(piece)] == piece
        assert 0 < len(piece) <= part + run
        end = offset + len(piece)
        assert end == len(text) or piece[-1].isspace() or len(piece.split()[-1]) == run


def test_a_text_longer_than_a_pipeline_reads_at_once_is_found_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spacy_levels, "PART", 2_000)
    text = "The weather was fine. " * 100 + "Alice Moreau lives in Chicago."
    assert {("Alice Moreau", "PERSON"), ("Chicago", "GPE")} <= found(LowEntity(), text)


def test_endless_words_are_read_in_bounded_time() -> None:
    assert LowEntity().find("(" * 2_000) is not None


def test_cleaning_keeps_every_offset() -> None:
    assert clean("a\ud83d\ude00b\udc00") == "a\ufffd\ufffdb\ufffd"


def test_the_pipeline_is_named_and_loaded_once() -> None:
    assert LowEntity().pipeline.startswith("en_core_web_sm")
    assert LowEntity()._nlp is HighContextual()._nlp


def test_large_pipelines_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["en_core_web_trf", "en_core_web_sm", "de_core_news_lg", "en_core_web_md"]
    monkeypatch.setattr(spacy.util, "get_installed_models", lambda: names)
    assert spacy_levels.best_pipeline() == "en_core_web_md"


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    with pytest.raises(BadInput, match="cannot load the spaCy pipeline 'en_nowhere'"):
        LowEntity("en_nowhere")
    spacy.blank("en").to_disk(f"{tmp_path}/blank")
    with pytest.raises(BadInput, match="does not annotate ENT_IOB, POS, DEP"):
        LowContextual(f"{tmp_path}/blank")
    with monkeypatch.context() as patch:
        patch.setattr(spacy.util, "get_installed_models", list)
        with pytest.raises(BadInput, match="none is installed: python -m spacy download"):
            LowEntity()
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(BadInput, match=r"pip install 'confide\[presidio\]'"):
        LowEntity()
