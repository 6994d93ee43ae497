"""The manifest: a screening's counts, choices and policies come in; out comes all that a certificate must know of it, never any text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..policies import Policy, policy_name
from .options import Options


class Filter(NamedTuple):
    """What a Bloom filter cost of δ, and whether its key was drawn for it (a given key may be known to others)."""

    delta: float
    keyed: bool


_PLANTED = ("canaries", "copies", "policy", "coins", "space")
MANY_MASKS = 0.2  # share of mask-only private records from which dedup earns a warning


def manifest(
    options: Options,
    policy: Policy,
    conservative: Policy,
    counts: Counter[str],
    bloom: Filter,
    public: int,
    private: int,
    digest: str,
    planted: dict[str, Any] | None,
) -> dict[str, Any]:
    """What is written beside the two parts. Counts by type are private statistics: the folder is SENSITIVE."""
    from ..accounting import Setting  # here, since workers never need it and it takes a second to load

    facts = certificate_facts(options, policy, conservative, counts, bloom, private)
    setting = Setting(method="crt", clipping_norm=1.0, **facts)
    kinds = sorted((name.removeprefix("type "), n) for name, n in counts.items() if name.startswith("type "))
    return {
        "confide": __version__,
        "records": public + private,
        "public": public,
        "private": private,
        "documents": counts["documents"],
        "characters": counts["characters"],
        "bad_rows": counts["bad rows"],
        "mask_only": counts["mask-only"],
        "private_duplicates": counts["private duplicates"],
        "public_duplicates": counts["public duplicates"],
        "findings": dict(kinds),
        "unit": options.unit,
        "max_words": options.max_words,
        "context": options.context,
        "policy": {"spec": options.policy, "consistency": policy.consistency, "pipeline": policy.pipeline},
        "conservative": {"spec": options.conservative, "recall_class": conservative.recall_class},
        "order": options.order,
        "dedup": options.dedup,
        "dedup_unit": options.dedup_unit or "record",
        "max_copies": options.max_copies,
        "public_dedup": options.public_dedup,
        "k": {"missed": setting.k_missed, "detected": setting.k_detected, "repeats": setting.repeats},
        "certificate": facts,
        "canaries": planted
        and {name: len(planted[name]) if name == "canaries" else planted[name] for name in _PLANTED},
        "digest": digest,
        "warnings": _warnings(options, policy, conservative, counts, private),
    }


def checksum(manifest: Mapping[str, Any]) -> str:
    """Of everything else in a manifest: a certificate rests on it, and disks forget bits."""
    rest = {name: value for name, value in manifest.items() if name != "checksum"}
    return blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=16).hexdigest()


def policy_files(policy: Policy, key: bytes) -> list[dict[str, str]]:
    """The files that a policy was made from, with keyed digests: without the key they confirm no guess of a list's entries."""
    return [{"path": str(Path(path).resolve()), "digest": _file_digest(Path(path), key)} for path in policy.files]


def _file_digest(path: Path, key: bytes) -> str:
    """Empty for what cannot be read, which is then equal to nothing."""
    try:
        return blake2b(path.read_bytes(), key=key, digest_size=32).hexdigest()
    except OSError:
        return ""


def certificate_facts(
    options: Options, policy: Policy, conservative: Policy, counts: Counter[str], bloom: Filter, private: int
) -> dict[str, Any]:
    """The fields of `Setting` that screening decides.

    *Formal guarantees.* Nothing here is better than what was done: mask-consistency is claimed only for policies that
    declare it and saw each piece of text alone; several units a record count as one changed unit only if a finding
    cannot depend on another unit; with whole-dialogue policies all records of the largest document count as changed.
    """
    consistent = policy.consistency != "none" and not options.reads_groups
    return {
        "unit": options.unit,
        "policy": policy_name(options.policy),
        "conservative": policy_name(options.conservative),
        "private_records": max(1, private),
        "order": options.order,
        "dedup": "exact" if options.dedup == "bloom-verified" else options.dedup,
        "max_copies": options.max_copies,
        "units_per_record": "several" if options.dedup_unit else "one",
        "changed_units": 1 if consistent or not options.dedup_unit else max(1, counts["most units"]),
        "group_records": max(1, counts["largest group"]) if options.reads_groups else 1,
        "bloom_delta": bloom.delta,
        "bloom_keyed": bloom.keyed,
        "record_local": True,
        "mask_consistent": consistent,
        "masks_escaped": True,
        "recall_class": conservative.recall_class if options.conservative != "everything" else None,
    }


def _warnings(options: Options, policy: Policy, conservative: Policy, counts: Counter[str], private: int) -> list[str]:
    found = [f"policy: {text}" for text in policy.warnings] + [
        f"conservative policy: {text}" for text in conservative.warnings
    ]
    if options.dedup != "off" and counts["mask-only"] > MANY_MASKS * private:
        found.append(
            f"{counts['mask-only']:,} of {private:,} private records are nothing but a mask: redaction makes short records alike, "
            "and dedup blanks them; consider --dedup off, or --max-copies"
        )
    if options.dedup_unit:
        found.append(
            "dedup compares units inside records: k holds for a secret that lies inside one unit, with the units' borders as they "
            "were before masking"
        )
    if options.order == "dedup-redact":
        found.append(
            "in the order dedup-redact a secret that the policy detects still decides what counts as a duplicate: no (0, 0) and "
            "no amplified guarantee"
        )
    if options.conservative != "everything" and conservative.recall_class is None:
        found.append(
            "the conservative policy flags no class of secrets by construction: what both policies miss is public, and only a "
            "review can bound how much that is"
        )
    return found
