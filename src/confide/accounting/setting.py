"""The setting: every public fact about screening and training on which a certificate rests, and when to refuse one.

It is written into the ledger's first line before training starts, so that the certificate cannot be issued for
another setting afterwards. In: a run's choices. Out: the adjacency, the stability constant k, or a refusal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BadInput, Refused
from .events import check_count, check_number
from .pairs import ADJACENCIES

MOST_RECORDS = 50  # that one secret may change
CHOICES = {
    "method": ("crt", "dpsgd", "sdp", "jft", "redacted", "anonymized", "plain"),
    "unit": ("document", "turn", "sentence"),
    "sampler": ("poisson", "fixed-size", "shuffled", "public"),
    "mask_records": ("train", "drop"),
    "order": ("redact-dedup", "dedup-redact"),
    "dedup": ("off", "exact", "bloom", "near"),
    "units_per_record": ("one", "several"),
    "weights": ("outside", "unflagged-lines"),
    "vocabulary": ("pretrained", "public", "external", "private"),
    "normaliser": ("constant", "realised"),
    "coins": ("os-entropy", "seeded"),
    "accountant": ("pld", "rdp"),
    "sdp_variant": ("sound", "paper"),
    "jft_phase1": ("direct", "hand-screened", "noised"),
}


@dataclass(frozen=True)
class Setting:
    """What a certificate assumes about a run; each field is public."""

    method: str
    unit: str
    policy: str
    conservative: str  # "everything": every record is private
    private_records: int
    clipping_norm: float
    sampler: str = "poisson"
    mask_records: str = "train"
    order: str = "redact-dedup"
    dedup: str = "off"
    max_copies: int = 1
    units_per_record: str = "one"
    changed_units: int = 1
    group_records: int = 1  # records of the largest document, where a policy reads whole documents
    bloom_delta: float = 0.0
    bloom_keyed: bool = True
    record_local: bool = True
    mask_consistent: bool = False
    masks_escaped: bool = True
    recall_class: str | None = None  # secrets that the conservative policy flags by construction
    vocabulary: str = "pretrained"
    normaliser: str = "constant"
    coins: str = "os-entropy"
    accountant: str = "pld"
    subject: str = ""  # what the run is about, in words
    sdp_variant: str = "sound"
    jft_phase1: str = "direct"
    weights: str = "outside"  # what the initial ones were made from
    evidence: str = ""  # hash of the labelled evidence, fixed before training; empty: none was named

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise BadInput(f"setting: {name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name in ("policy", "conservative"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise BadInput(f"setting: {name} must name a policy")
        for name in ("bloom_keyed", "record_local", "mask_consistent", "masks_escaped"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"setting: {name} must be true or false")
        for name in ("subject", "evidence"):
            if not isinstance(getattr(self, name), str):
                raise BadInput(f"setting: {name} must be text")
        if self.recall_class is not None and (not isinstance(self.recall_class, str) or not self.recall_class.strip()):
            raise BadInput("setting: recall_class must describe a class of secrets in words")
        check_count("setting: private_records", self.private_records, high=10**15)
        check_count("setting: max_copies", self.max_copies)
        check_count("setting: changed_units", self.changed_units)
        check_count("setting: group_records", self.group_records)
        check_number("setting: clipping_norm", self.clipping_norm, 0, 1e9)
        check_number("setting: bloom_delta", self.bloom_delta, 0, 1, low_open=False)

    @property
    def adjacency(self) -> str:
        """Substitution; zero-out only where records that hold a mask contribute nothing (guarantees §1c)."""
        return "zero-out" if self.mask_records == "drop" else "substitution"

    @property
    def relation(self) -> str:
        """The adjacency's name for people: S-DP substitutes private tokens only, which does not compare with the others."""
        return "selective" if self.method == "sdp" else self.adjacency

    @property
    def neighbours(self) -> str:
        """What the adjacency means for this method."""
        if self.method == "sdp":
            return "the private tokens of one record become others; lengths and mask patterns stay equal"
        return ADJACENCIES[self.adjacency]

    @property
    def all_flagged(self) -> bool:
        """Whether δ₂ = 0 by construction, for all secrets or for the class that `recall_class` names.

        *Formal guarantees.* If every record is private no missed secret becomes public; if the conservative policy flags
        every secret of a class, none of that class does. Statements that use it must name the class.
        """
        return flags_all({"conservative": self.conservative, "recall_class": self.recall_class})

    @property
    def k_missed(self) -> int:
        """How many training records change when one occurrence of a missed secret is masked (guarantees §2).

        *Formal guarantees.* An upper bound of the multiset distance between the screened corpora. Without dedup, or
        with one unit per record, one record changes. With several units per record, redact→dedup changes at most
        1+2u records for u changed units; the paper's order changes 2 for u = 1. A policy that reads whole documents may
        change each of a document's records, one after the other.
        """
        if self.dedup == "off" or self.units_per_record == "one":
            return self.group_records
        if self.order == "dedup-redact" and self.changed_units == 1:
            return 2 * self.group_records
        return (1 + 2 * self.changed_units) * self.group_records

    @property
    def k_detected(self) -> int:
        """The same for a secret that the policy detects: 0 only with redaction, mask-consistency and redact→dedup.

        *Formal guarantees.* 0 means that the screened corpora are equal, hence (0, 0). The paper's order lets a
        detected secret decide whether another copy is a duplicate: one record changes (guarantees §2). Methods other
        than crt train on the original text, where detection helps nothing; and so did initial weights from single lines of it, in
        which the policy may miss what it finds beside the line before.
        """
        if self.method != "crt" or not self.mask_consistent or self.weights != "outside":
            return self.k_missed
        return 0 if self.dedup == "off" or self.order == "redact-dedup" else 1

    @property
    def repeats(self) -> str:
        """How copies of one value count (guarantees §2)."""
        if self.group_records > 1 or self.changed_units > 1:
            return (
                f"a value that occurs in r places counts as k={self.k_missed}r: every copy counts, since the policy may look "
                "beyond the unit in which it stands"
            )
        if self.dedup == "off":
            return "a value that occurs in r private records counts as k=r: every copy counts, since dedup is off"
        times = self._survivors
        each = "k=r" if times == 1 else f"k={times}r"
        return f"a value that survives dedup in r distinct units counts as {each}, however often they were repeated"

    @property
    def _survivors(self) -> int:
        """Records that change for one unit that dedup has thinned out."""
        return self.max_copies * (2 if self.units_per_record == "several" and self.order == "redact-dedup" else 1)

    def k_repeated(self, copies: int) -> int:
        """How many training records change when a missed value is masked in all its copies, which are the same unit.

        *Formal guarantees.* An upper bound, as `repeats` says it: each copy counts where dedup is off or the policy looks
        beyond a unit; else those that dedup leaves, and never fewer than one occurrence changes.
        """
        check_count("copies", copies)
        if self.group_records > 1 or self.changed_units > 1 or self.dedup == "off":
            return self.k_missed * copies
        return max(self.k_missed, self._survivors)

    def bloom_cost(self, k: int) -> float:
        """What a Bloom filter may take of δ where k records change.

        *Formal guarantees.* For a key without false positives among the n+k units of both corpora the runs agree with exact
        dedup; other keys have probability at most (n+k)/(n+1) times `bloom_delta`.
        """
        n = self.private_records
        return self.bloom_delta * (n + k) / (n + 1) if self.dedup == "bloom" else 0.0

    def to_plain(self) -> dict[str, Any]:
        """For the ledger; a setting looks as it did before there were the fields that came later, where they say nothing new."""
        later = {"evidence": "", "weights": "outside"}
        return {name: value for name, value in dataclasses.asdict(self).items() if (name, value) not in later.items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Setting:
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(plain.keys() - known)
        if unknown:
            raise BadInput(f"setting: unknown field {unknown[0]!r}; was it written by a newer confide?")
        try:
            return cls(**plain)
        except TypeError as error:
            raise BadInput(f"setting: {str(error).split(') ')[-1]}") from None


def flags_all(facts: Mapping[str, Any]) -> bool:
    """Whether no missed secret that counts can be public, by the construction of the policies (a manifest's facts, or a setting's)."""
    return facts["conservative"] == "everything" or facts["recall_class"] is not None


def refuse_unsound(setting: Setting, delta: float) -> None:
    """Raise `Refused` with the reason if no certificate can hold in this setting (guarantees §9)."""
    for applies, reason in _REFUSALS:
        if applies(setting):
            raise Refused(f"no certificate: {reason}")
    if setting.dedup == "bloom" and setting.bloom_delta == 0:
        raise Refused(
            "no certificate: a Bloom filter has false positives; state bloom_delta, (units+1) times their probability, or "
            "use exact dedup"
        )
    if setting.dedup == "bloom" and setting.bloom_delta >= delta / 2:
        raise Refused(
            f"no certificate: the Bloom filter's false positives alone may cost delta {setting.bloom_delta:g}, of "
            f"{delta:g} in all; give it more bits, or use exact dedup"
        )


_REFUSALS: tuple[tuple[Callable[[Setting], bool], str], ...] = (
    (
        lambda s: s.method in ("plain", "redacted", "anonymized"),
        "this method trains without noise on records that may hold secrets; train with crt, dpsgd, sdp or jft",
    ),
    (
        lambda s: s.dedup == "near",
        "near-duplicate removal in the private part has no stability bound: masking one secret can free any number of "
        "other records; use exact dedup there (near-duplicates may be removed in the public part)",
    ),
    (
        lambda s: s.method == "jft" and s.jft_phase1 != "noised" and s.dedup != "off" and s.order == "dedup-redact",
        "in the order dedup before redact a caught secret still decides what counts as a duplicate, and phase 1 trains on "
        "that without noise; redact first, or leave dedup off",
    ),
    (
        lambda s: (
            s.dedup != "off"
            and s.order == "dedup-redact"
            and s.conservative != "everything"
            and (s.units_per_record == "several" or s.group_records > 1)
        ),
        "in the order dedup before redact a duplicate unit makes its record private, so that masking one secret moves other "
        "records between the parts; make every record private, or redact first",
    ),
    (
        lambda s: s.dedup != "off" and s.order == "dedup-redact" and s.group_records > 1,
        "for dedup before redact nothing is proven of policies that look at whole documents; leave dedup off, or redact first",
    ),
    (
        lambda s: s.mask_records == "drop" and s.k_missed > 1,
        "where masking one secret changes several records, one may lose its gradient and another gain one, which the curve of dropped "
        "records does not cover; train on masked records too, or let one record change (dedup of whole records, policies that look at one)",
    ),
    (
        lambda s: s.k_missed > MOST_RECORDS,
        f"masking one secret may change more than {MOST_RECORDS} records, for which no useful bound exists; use a policy that "
        "looks at one record at a time, or whole documents as records",
    ),
    (
        lambda s: s.dedup == "bloom" and not s.bloom_keyed,
        "a Bloom filter with fixed hash seeds has no worst-case bound; use a random key, or exact dedup",
    ),
    (
        lambda s: not s.record_local,
        "a policy looks beyond the record it labels, or was fitted to this corpus: masking one secret can move other "
        "records between the parts; use a record-local policy fixed beforehand, or route whole documents",
    ),
    (
        lambda s: not s.masks_escaped,
        "literal <MASK> in the raw text was not escaped at intake, so that a raw record can look like a masked one; "
        "screen again",
    ),
    (
        lambda s: s.vocabulary == "private",
        "the vocabulary was made from private text, which releases its words without noise; use a pretrained "
        "tokenizer, or one trained on the public part or on outside text",
    ),
    (
        lambda s: s.coins == "seeded",
        "sampling or noise coins came from a stored seed: whoever has the seed can undo the noise and the "
        "amplification; draw them from the operating system",
    ),
    (
        lambda s: s.normaliser == "realised",
        "gradients were divided by the realised batch size, which depends on the private sample; divide by a public "
        "constant such as rate times records",
    ),
    (
        lambda s: s.weights != "outside" and s.method not in ("crt", "dpsgd"),
        "initial weights from unflagged lines of the same documents are proven for crt and dpsgd only; start from outside weights",
    ),
    (
        lambda s: s.weights != "outside" and s.conservative == "everything",
        "a conservative policy that flags everything leaves no line unflagged, so that the initial weights cannot be from such lines; "
        "screen the lines and the documents with the same policies, and name the conservative one with --conservative",
    ),
    (
        lambda s: s.method == "sdp" and s.mask_records == "drop",
        "selective privacy compares records of equal mask pattern, so that dropping masked records has no meaning",
    ),
    (
        lambda s: s.accountant == "rdp",
        "Rényi accounting under substitution is not sound in dp_accounting (it keeps the sensitivity at 1); use pld",
    ),
)
