"""What the policy misses: a review in; what it shows, and what the certificate made of it, in sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..accounting.guarantees import many
from ..wording import share, share_up


def warnings_of(review: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Iterator[str]:
    """The warning that belongs on the first screen: secrets that were seen in records without any protection.

    Where every record is trained on with noise, there are none.
    """
    covered = options["method"] == "dpsgd" or (options["method"] == "jft" and options.get("phase1") == "noised")
    if review is None or covered:
        return
    inside = sum(int(one[2]) for one in review["records"] if not isinstance(one, str))
    outside = int((review.get("outside_class") or {}).get("public", 0))
    if inside + outside:
        yield (
            f"Reviewers found {many(inside + outside, 'missed secret')} in public records of their sample: nothing is promised for "
            "them, nor for others like them."
        )


def in_words(review: Mapping[str, Any]) -> list[str]:
    """The review's bounds, what they count, and who did it."""
    said = [*_bounds(review), *_sample(review)]
    who = [f"{name} ({_counts(one)})" for name, one in review.get("reviewers", {}).items()]
    if who:
        said.append(f"Reviewers: {', '.join(who)}.")
    for pair in review.get("agreement", []):
        kappa = "" if pair.get("kappa") is None else f", kappa {pair['kappa']:.2f}"
        one, other = pair["reviewers"]
        said.append(
            f"{one} and {other} agree whether something was missed on {share(pair['same'])} of the "
            f"{many(pair['records'], 'record')} that both answered{kappa}."
        )
    return said


def _bounds(review: Mapping[str, Any]) -> Iterator[str]:
    """`bound` is about the class that is flagged by construction, where there is one; `bound_all` about all secrets."""
    sure, cap = f"With confidence {100 * review['confidence']:g} %", f"counting at most {review['cap']:,} a record"
    outside, of_all = review.get("outside_class"), review.get("bound_all")
    whose = "" if outside is None else " of the class that the conservative policy flags by construction"
    most = f"the policy misses at most {share_up(review['bound'])} of the secrets{whose}"
    yield f"{sure}, {most}, {cap}{_public(review.get('bound_public'))}."
    if of_all is not None and outside is not None:
        more = _public(review.get("bound_public_all"))
        yield f"Of all secrets it misses at most {share_up(of_all)}, {cap}{more} (with the same confidence, taken by itself)."
    if outside:
        yield (
            f"Outside of the class {many(outside.get('secrets', 0), 'secret')} were seen, {outside.get('missed', 0):,} of them "
            f"missed, {outside.get('public', 0):,} of those in public records."
        )


def _public(bound: float | None) -> str:
    if bound == 0:
        return "; by construction none of these can be public"
    return "" if bound is None else f"; at most {share_up(bound)} are missed by both policies and public"


def _sample(review: Mapping[str, Any]) -> Iterator[str]:
    rows = review["records"]
    skipped = sum(isinstance(one, str) for one in rows)
    passed = f", {skipped:,} of them skipped, which counts as missed" if skipped else ""
    yield f"{many(len(rows), 'random draw')} of records counted{passed}; a record that is drawn twice counts twice."
    if review.get("left_out"):
        yield f"{many(review['left_out'], 'secret')} beyond that number in a record did not count, by a coin."
    if review.get("begun", 1) > 1:
        yield f"This is review number {review['begun']:,} of this screening; the bound allows for starting over."


def beside_certificate(review: Mapping[str, Any], certificate: Mapping[str, Any] | None) -> str:
    """Whether the certificate rests on this review as it stands now."""
    if certificate is None or certificate["method"] not in ("crt", "jft"):
        return ""
    evidence = certificate["evidence"]
    if evidence is None:
        if review.get("contradicted") and certificate["method"] == "crt":
            return "The certificate was issued without this review, which refutes it."
        if review.get("unfit"):
            return f"The certificate was issued without this review, which cannot go into one: {review['unfit']}."
        return "The certificate was issued without this review. Train again with it to make the bound count."
    if evidence["kind"] != "review":
        return "The certificate rests on other labels than this review."
    mine, theirs = review["records"], evidence["records"]
    same = all(evidence.get(name) == review.get(name) for name in ("cap", "confidence", "begun", "nonce"))
    if same and mine == theirs:
        return "The certificate rests on this review as it stands."
    if same and mine[: len(theirs)] == theirs:
        return f"The certificate rests on an earlier state of this review: its first {len(theirs):,} draws, of {len(mine):,} now."
    return "The certificate rests on other answers than those of this review: it was changed since, or is another one."


def _counts(one: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in one.items() if count) or "nothing answered"
