"""Presidio and confide's own patterns together: one record's text in; people, places, numbers and addresses out.

Presidio reads one record at a time with a spaCy pipeline that is already installed. Nothing is downloaded: neither a
pipeline nor the list of internet suffixes by which Presidio checks e-mail addresses.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from ..errors import BadInput
from .base import Finding, Policy, register
from .spacy_levels import INSTALL, best_pipeline, clean, described, load_pipeline, memory_zone, parts

# Presidio gives names 0.85, checked numbers 1, phone numbers 0.4 and codes that look like a licence 0.3. Below lie plain
# runs of digits (0.01 to 0.1), which count only where a word beside them ("passport", "account") lifts them.
THRESHOLD = 0.3

# Tags of speakers that spaCy takes for organisations; as words of a whole line's beginning they are no secret.
LABELS = frozenset({"SYS", "USR", "ACT", "SYSTEM", "USER", "ASSISTANT", "AGENT", "BOT", "CUSTOMER"})

WEB_ADDRESS = (
    r"""(?i)(?<![a-z0-9.@-])(?:https?://)?(?:[a-z0-9-]+\.)+[a-z]{2,24}(?![a-z0-9-])(?::\d+)?(?:/[^\s()<>"']*)?"""
)

NO_NAMES = (
    "no spaCy pipeline is installed, so names of people, places and organisations are NOT detected; "
    f"to detect them, install one: {INSTALL}"
)


@register(
    "pii",
    "personal data: Presidio with a spaCy pipeline, and patterns",
    argument="[:PIPELINE]",
    needs="confide[presidio]; a spaCy pipeline to detect names",
)
class Pii(Policy):
    """All that Presidio finds with a score of at least 0.3, with Presidio's types, and all that `patterns` finds."""

    name = "pii"

    def __init__(self, pipeline: str | None = None) -> None:
        try:
            import presidio_analyzer  # noqa: F401
            import spacy  # noqa: F401
        except ImportError as error:
            raise BadInput(
                "the policy pii needs Presidio and spaCy: pip install 'confide[presidio]' "
                "(the policy patterns needs neither, and detects no names)"
            ) from error
        from .patterns import Patterns

        name = pipeline or best_pipeline()
        self._nlp, self._analyzer = _engine(name)
        self._patterns = Patterns()
        self.pipeline = described(self._nlp) if name else ""
        self.warnings = () if name else (NO_NAMES,)

    def find(self, text: str) -> list[Finding]:
        """Presidio's findings in one part of the text after the other, and those of `patterns` in the whole."""
        found = self._patterns.find(text)
        for offset, part in parts(clean(text)):
            with memory_zone(self._nlp):
                results = self._analyzer.analyze(part, language="en", score_threshold=THRESHOLD)
            found += [
                Finding(offset + r.start, offset + r.end, r.entity_type, self.name, r.score)
                for r in results
                if not _is_label(part, r.start, r.end)
            ]
        return sorted(found)


def _is_label(text: str, start: int, end: int) -> bool:
    """Whether a finding is the tag of a speaker at the beginning of a line."""
    return text[start:end].strip(" :") in LABELS and text[:start].rpartition("\n")[2].strip() == ""


@lru_cache(maxsize=4)
def _engine(name: str | None) -> tuple[Any, Any]:
    """A pipeline and Presidio's analyser on it, once per process; without a name, a pipeline that only splits words."""
    import spacy
    from presidio_analyzer import AnalyzerEngine, pattern_recognizer
    from presidio_analyzer.nlp_engine import NerModelConfiguration, SpacyNlpEngine

    vars(pattern_recognizer)["REGEX_TIMEOUT_SECONDS"] = None  # a time limit would drop findings on a busy machine
    logging.getLogger("presidio-analyzer").setLevel(logging.CRITICAL)  # a log line could quote the text
    nlp: Any = load_pipeline(name) if name else spacy.blank("en")
    types = {**(NerModelConfiguration().model_to_presidio_entity_mapping or {}), "FAC": "LOCATION"}
    others = [label for label in nlp.pipe_labels.get("ner", ()) if label not in types]  # amounts, works of art, …
    entities = NerModelConfiguration(model_to_presidio_entity_mapping=types, labels_to_ignore=others)
    engine: Any = SpacyNlpEngine(ner_model_configuration=entities)
    engine.nlp = {"en": nlp}  # as loaded; its own load() would download what is missing
    analyzer = AnalyzerEngine(nlp_engine=engine, supported_languages=["en"])
    _check_domains_offline(analyzer.registry)
    return nlp, analyzer


def _check_domains_offline(registry: Any) -> None:
    """Check the domains of e-mail and web addresses by the list of suffixes that tldextract carries.

    Presidio's own check of an e-mail address fetches the list; its own expression for web addresses spells the list out
    and takes seconds for a line of dots.
    """
    from presidio_analyzer import Pattern, PatternRecognizer
    from tldextract import TLDExtract

    split = TLDExtract(cache_dir=None, suffix_list_urls=())
    web = PatternRecognizer("URL", name="WebAddress", patterns=[Pattern("web address", WEB_ADDRESS, 0.5)])
    registry.remove_recognizer("UrlRecognizer")
    registry.add_recognizer(web)
    for recognizer in registry.recognizers:
        if recognizer is web or recognizer.name == "EmailRecognizer":
            vars(recognizer)["validate_result"] = lambda address: split(address).fqdn != ""
