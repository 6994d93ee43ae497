"""The choices of a screening: names and values come in, a checked set of them goes out, or the reason why they do not go together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..errors import BadInput
from ..readers import TEXT_AS
from ..records import Fields
from ..splitting import UNITS
from .canaries import parse_canaries

CHUNK = 1 << 20  # bytes of a chunk
DEDUPS = ("off", "exact", "bloom", "bloom-verified")


@dataclass(frozen=True)
class Options:
    """Everything a user may choose about a screening, besides the corpus and the place of the output."""

    policy: str
    conservative: str = "everything"
    unit: str = "document"
    max_words: int | None = None
    context: str = "record"
    dedup: str | None = None  # None: exact for documents, off for turns and sentences
    max_copies: int = 1
    order: str = "redact-dedup"
    dedup_unit: str | None = None
    public_dedup: str = "off"
    bloom_delta: float = 1e-9
    canaries: str | None = None
    fields: Fields = field(default_factory=Fields)
    text_as: str = "file"
    skip_bad: bool = False
    chunk: int = CHUNK

    def checked(self) -> Options:
        """The options with defaults filled in, or a refusal."""
        choices = {
            "unit": UNITS,
            "context": ("record", "group"),
            "order": ("redact-dedup", "dedup-redact"),
            "dedup": (None, *DEDUPS),
            "dedup_unit": (None, "turn", "sentence"),
            "public_dedup": ("off", "exact", "near"),
            "text_as": TEXT_AS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise BadInput(f"--{name.replace('_', '-')} must be one of {', '.join(str(c) for c in allowed if c)}")
        for name, kind, said in (
            ("max_words", int, "a whole number"), ("max_copies", int, "a whole number"), ("chunk", int, "a whole number"),
            ("bloom_delta", (int, float), "a number"), ("policy", str, "text"), ("conservative", str, "text"), ("canaries", str, "text"),
        ):  # fmt: skip
            value = getattr(self, name)
            absent = value is None and name in ("max_words", "canaries")
            if not absent and (isinstance(value, bool) or not isinstance(value, kind)):
                raise BadInput(f"--{name.replace('_', '-')} must be {said}")
        chosen = replace(self, dedup=self.dedup or ("exact" if self.unit == "document" else "off"))
        if chosen.max_words is not None and chosen.max_words < 1:
            raise BadInput("--max-words must be at least 1")
        if not 1 <= chosen.max_copies <= 10**6:
            raise BadInput("--max-copies must lie between 1 and 1,000,000")
        if chosen.max_copies > 1 and chosen.dedup != "exact":
            raise BadInput("--max-copies needs --dedup exact")
        if chosen.dedup_unit and (
            chosen.dedup == "off" or chosen.dedup_unit == chosen.unit or chosen.unit == "sentence"
        ):
            raise BadInput("--dedup-unit names a unit smaller than the record's --unit, and needs dedup")
        if chosen.order == "dedup-redact" and chosen.dedup == "off":
            raise BadInput("--order dedup-redact needs dedup: add --dedup exact")
        if chosen.order == "dedup-redact" and chosen.public_dedup != "off":
            raise BadInput(
                "--public-dedup goes with the default order only: in the paper's order dedup covers both parts"
            )
        if chosen.order == "dedup-redact" and chosen.dedup_unit and chosen.conservative != "everything":
            raise BadInput(
                "--order dedup-redact with --dedup-unit needs --conservative everything: a duplicate unit makes a record private, "
                "so that masking one secret would move other records between the parts"
            )
        if chosen.order == "dedup-redact" and chosen.reads_groups:
            raise BadInput("--context group goes with the default order only; leave --order dedup-redact out")
        if chosen.order == "dedup-redact" and chosen.canaries and parse_canaries(chosen.canaries).coins:
            raise BadInput(
                "canaries with coins go with the default order only: masks that are in the corpus already break the bounds of "
                "--order dedup-redact"
            )
        if chosen.context == "group" and chosen.fields.group is not None:
            raise BadInput("--context group reads whole documents; give one dialogue a row, without --group-field")
        if not 0 < chosen.bloom_delta < 1:
            raise BadInput("--bloom-delta must lie between 0 and 1")
        return chosen

    @property
    def reads_groups(self) -> bool:
        """Whether policies see whole documents that are split into several records."""
        return self.context == "group" and (self.unit != "document" or self.max_words is not None)
