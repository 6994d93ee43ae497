"""How well the policies detect: recall, partial recall and precision on five public corpora, as Markdown tables.

A true span is *found* if the merged findings of a policy, whatever their types, cover it wholly, and *touched* if they
cover a part of it. Precision is the share of findings that overlap a true span; it is given only where the labelling is
complete, and even there a finding may be a secret for which the corpus has no label.

`--data` is a folder that holds pii/, abcd/, multiwoz/, customersim/ and wikitext2/. Samples are drawn with a fixed seed;
`--quick` takes a tenth of them, `--json` prints one object.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ahocorasick_rs
import spacy

from confide.policies import Policy, load, merged

POLICIES = ["patterns", "pii", "low-entity", "high-entity", "low-contextual", "high-contextual"]
LEVELS = {
    "low-entity": 11.3,
    "high-entity": 16.4,
    "low-contextual": 34.8,
    "high-contextual": 45.0,
}  # JFT, % of WikiText-2


class Span(NamedTuple):
    start: int
    end: int
    type: str


class Labelled(NamedTuple):
    text: str
    spans: list[Span]


class Corpus(NamedTuple):
    title: str
    truth: str  # where the labels come from
    complete: bool  # every secret is labelled, so that precision means something
    sample: int
    read: Callable[[Path], Iterator[Labelled]]


# ---------------------------------------------------------------- the corpora and their labels

# What presidio-research calls a type, and what we call it in the table.
PRESIDIO = {
    "CREDIT_CARD": "CARD",
    "DATE_TIME": "DATE",
    "DOMAIN_NAME": "DOMAIN",
    "EMAIL_ADDRESS": "EMAIL",
    "GPE": "PLACE",
    "IBAN_CODE": "IBAN",
    "IP_ADDRESS": "IP",
    "NRP": "NATIONALITY",
    "PHONE_NUMBER": "PHONE",
    "STREET_ADDRESS": "ADDRESS",
    "US_DRIVER_LICENSE": "NATIONAL_ID",
    "US_SSN": "NATIONAL_ID",
    "ZIP_CODE": "POSTCODE",
}


def lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from file


def everywhere(text: str, value: str, kind: str) -> Iterator[Span]:
    """All places of a value in a text, in any case, that are not part of a longer word or e-mail address."""
    for match in re.finditer(rf"(?<![\w@.]){re.escape(value)}(?![\w@])", text, re.IGNORECASE):
        yield Span(*match.span(), kind)


def presidio(data: Path) -> Iterator[Labelled]:
    for row in json.loads("".join(lines(data / "pii/presidio_synth_dataset_v2.json.gz"))):
        spans = [
            Span(s["start_position"], s["end_position"], PRESIDIO.get(s["entity_type"], s["entity_type"]))
            for s in row["spans"]
        ]
        yield Labelled(row["full_text"], spans)


ABCD = {
    "PERSON": r"ACT:Account has been pulled up for ([A-Za-z]+ [A-Za-z]+)\.",
    "EMAIL": r"(?<!\S)([\w.+-]+@[\w-]+\.\w+)",
    "PHONE": r"(\(\d{3}\) ?\d{3}-\d{4})",
    "ACCOUNT": r"(?i:account id)(?: is)?:? +([A-Z0-9]{10})\b",
    "ORDER": r"(?i:order id)(?: is)?:? +(\d{10})\b",
    "USERNAME": r"(?i:username)(?: is)?: +(\w*\d)\b",
}


def abcd(data: Path) -> Iterator[Labelled]:
    """Values where the conversation names their slot; then each value wherever it stands in that conversation."""
    for text in "".join(lines(data / "abcd/abcd_original_valid.txt.gz")).split("<|endoftext|>"):
        values = {(kind, value) for kind, slot in ABCD.items() for value in re.findall(slot, text)}
        spans = {span for kind, value in values for span in everywhere(text, value, kind)}
        if spans:
            yield Labelled(text, sorted(spans))


MULTIWOZ = {"Ref": "REFERENCE", "Phone": "PHONE", "Post": "POSTCODE", "Addr": "ADDRESS"}


def multiwoz(data: Path) -> Iterator[Labelled]:
    for line in lines(data / "multiwoz/multiwoz21_valtest_convlab2.jsonl.gz"):
        for turn in json.loads(line)["turns"]:
            values = {
                (slot, value) for slots in turn["dialog_act"].values() for slot, value in slots if slot in MULTIWOZ
            }
            spans = {
                s for slot, value in values for s in everywhere(turn["text"], value, MULTIWOZ[slot]) if value != "?"
            }
            if spans:
                yield Labelled(turn["text"], sorted(spans))


def customersim(data: Path) -> Iterator[Labelled]:
    columns = {
        "name": "PERSON",
        "address": "ADDRESS",
        "phone_number": "PHONE",
        "card_number": "CARD",
        "order_number": "ORDER",
    }
    people = csv.DictReader(lines(data / "customersim/database_20000.csv.gz"))
    kinds = {person[column]: kind for person in people for column, kind in columns.items()}
    values = list(kinds)
    finder = ahocorasick_rs.AhoCorasick(values, matchkind=ahocorasick_rs.MatchKind.LeftmostLongest)
    for line in lines(data / "customersim/simdial_valid.jsonl.gz"):
        text = json.loads(line)["text"]
        spans = [Span(start, end, kinds[values[i]]) for i, start, end in finder.find_matches_as_indexes(text)]
        spans += [Span(*m.span(), "TRACKING") for m in re.finditer(r"\b[A-Z0-9]{10}\b", text) if not m[0].isdigit()]
        yield Labelled(text, sorted(spans))


CORPORA = {
    "presidio": Corpus(
        "presidio-research synth v2 (record: a sentence)",
        "its own labelled spans; some kinds have none",
        True,
        1_000,
        presidio,
    ),
    "abcd": Corpus(
        "ABCD valid (record: a conversation)",
        "names where ACT says whose account was pulled up, ids and user names where their slot is named, e-mails and "
        "phones by their shape; each value wherever it stands in its conversation",
        False,
        150,
        abcd,
    ),
    "multiwoz": Corpus(
        "MultiWOZ 2.1 val+test (record: a turn with a label)",
        "dialog_act: Ref, Phone, Post, Addr",
        False,
        1_000,
        multiwoz,
    ),
    "customersim": Corpus(
        "CustomerSim original valid (record: a dialogue)",
        "the table of 20,000 people for names, addresses, phones and orders; tracking numbers by their shape",
        True,
        300,
        customersim,
    ),
}


# ---------------------------------------------------------------- measuring


def sampled(everything: list[Any], size: int) -> list[Any]:
    return random.Random(7).sample(everything, min(size, len(everything)))


def measure(policy: Policy, records: list[Labelled]) -> dict[str, Any]:
    """Recall by true type; precision of the merged findings and by the type of the finding."""
    true, whole, part = Counter[str](), Counter[str](), Counter[str]()
    right, merged_right, merged_all = defaultdict[str, list[bool]](list), 0, 0
    for text, spans in records:
        findings = policy.find(text)
        cover = merged(findings)
        for start, end, kind in spans:
            true[kind] += 1
            whole[kind] += any(a <= start and end <= b for a, b in cover)
            part[kind] += any(a < end and start < b for a, b in cover)
        for finding in findings:
            right[finding.type].append(any(s.start < finding.end and finding.start < s.end for s in spans))
        merged_all += len(cover)
        merged_right += sum(any(s.start < b and a < s.end for s in spans) for a, b in cover)
    return {
        "recall": {
            kind: {"true": n, "found": whole[kind] / n, "touched": part[kind] / n} for kind, n in sorted(true.items())
        },
        "precision": merged_right / merged_all if merged_all else None,
        "precision_by_type": {k: {"findings": len(v), "precision": sum(v) / len(v)} for k, v in sorted(right.items())},
    }


def redacted_share(policy: Policy, texts: list[str]) -> float:
    """The share of spaCy's tokens, white space left out, that the findings touch."""
    tokens = hidden = 0
    split = spacy.blank("en").tokenizer
    for text in texts:
        cover = merged(policy.find(text))
        for token in split(text):
            if not token.is_space:
                tokens += 1
                hidden += any(a < token.idx + len(token) and token.idx < b for a, b in cover)
    return hidden / tokens


# ---------------------------------------------------------------- printing


def show(corpus: Corpus, results: dict[str, Any], records: int) -> None:
    print(f"\n**{corpus.title}**, {records:,} records. Truth: {corpus.truth}.\n")
    print(f"| | spans | {' | '.join(results)} |")
    print(f"|---|---|{'---|' * len(results)}")
    for kind, first in next(iter(results.values()))["recall"].items():
        cells = [result["recall"][kind] for result in results.values()]
        row = " | ".join(f"{cell['found']:.2f} ({cell['touched']:.2f})" for cell in cells)
        print(f"| {kind} | {first['true']} | {row} |")
    if corpus.complete:
        row = " | ".join(f"{result['precision'] or 0:.2f}" for result in results.values())
        print(f"| *precision* | | {row} |")
        print(
            "\nPrecision by the type of the finding (number of findings; the highest level shows all types of the levels):\n"
        )
        for name, result in results.items():
            if name in LEVELS and name != "high-contextual":
                continue
            types = sorted(result["precision_by_type"].items(), key=lambda item: -item[1]["findings"])
            row = ", ".join(f"{kind} {of['precision']:.2f} ({of['findings']})" for kind, of in types)
            print(f"* {name}: {row}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the corpora")
    parser.add_argument("--quick", action="store_true", help="a tenth of each sample")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--only", choices=[*CORPORA, "wikitext2"], help="one corpus alone")
    parser.add_argument("--policies", default=",".join(POLICIES), help="which policies, with commas between")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    policies = {name: load(name) for name in options.policies.split(",")}
    output: dict[str, Any] = {}
    for name, corpus in CORPORA.items():
        if options.only in (None, name):
            records = sampled(list(corpus.read(options.data)), corpus.sample // scale)
            output[name] = {policy: measure(made, records) for policy, made in policies.items()}
            if not options.json:
                show(corpus, output[name], len(records))
    if options.only in (None, "wikitext2"):
        texts = sampled([t for t in lines(options.data / "wikitext2/train.txt.gz") if t.strip()], 300 // scale)
        shares = {name: redacted_share(policies[name], texts) for name in LEVELS if name in policies}
        output["wikitext2"] = shares
        if not options.json:
            print(f"\n**WikiText-2 train**, {len(texts):,} lines: share of spaCy tokens that a level redacts.\n")
            print("| level | here | JFT |\n|---|---|---|")
            for name, share in shares.items():
                print(f"| {name} | {100 * share:.1f} % | {LEVELS[name]} % |")
    if options.json:
        print(json.dumps(output, indent=1))


if __name__ == "__main__":
    main()
