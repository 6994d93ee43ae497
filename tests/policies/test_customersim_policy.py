"""What `customersim` finds in the wordings of CustomerSim, and that masking one finding changes no other."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.experiments.customersim import dialogues, people
from confide.policies.base import Policy, merged
from confide.policies.customersim import CustomerSim, read_names
from confide.records import MARK

# All invented.
SECRETS = {
    "NAME": ("Ada Quist", "Mary-Jane O'Hara", "Zoë Étienne"),
    "PHONE": ("542-016-4074", "671.452.5731", "2414767171"),
    "ORDER": ("750-56357-2575",),
    "TRACKING": ("PQEQHEQTY8", "ABCDEFGHIJ"),
    "ADDRESS": ("238 Brenda Meadow Monicaton, KS 04617", "68699 Roth Camp Apt. 727 North Tonya, NJ 24236", "USNV Clark FPO AA 83725",
                "PSC 4462, Box 7174 APO AE 41081", "Unit 3304 Box 9117 DPO AP 44852"),
}  # fmt: skip
WORDINGS = ("{}", "USR: {}", "USR: {}.", "I am {}.", "My name's {}.", "USR: Yes, {}.", "USR: Sure, {}.", "Yep - I'm {}.", "Phone number is {}\n",
            "USR: You can reach me at {}.", "Track your order using your tracking number, {}. Anything else?", "Yea sure, {}.", "{} is my number.")  # fmt: skip
PUBLIC = """SYS: Hello, I am the customer support bot. What do you need?
USR: What's up? I ordered a floor lamp several days ago but I can't track it.
SYS: May I have your full name? Could you please also provide your order number?
USR: That's it. Thanks! That's all. See you. All good. Thank You.
SYS: Have a nice day! Bye.
"""


@pytest.mark.parametrize("wording", WORDINGS)
@pytest.mark.parametrize(
    ("kind", "secret"), [(kind, secret) for kind, secrets in SECRETS.items() for secret in secrets]
)
def test_a_secret_is_found_exactly(wording: str, kind: str, secret: str) -> None:
    text = wording.format(secret)
    assert [(text[f.start : f.end], f.type) for f in CustomerSim().find(text)] == [(secret, kind)]


def test_the_wording_around_the_secrets_is_left_alone() -> None:
    assert CustomerSim().find(PUBLIC) == []


@pytest.mark.parametrize("whole", [True, False], ids=["dialogues", "turns"])
def test_simulated_secrets_are_found_and_nothing_else(whole: bool) -> None:
    total: dict[str, int] = {}
    found: dict[str, int] = {}
    right = findings = 0
    for dialogue in dialogues(500, crowd=people(0, 600)):
        for low, high in [(0, len(dialogue.text))] if whole else [m.span() for m in re.finditer(".+", dialogue.text)]:
            spans = {(low + f.start, low + f.end, f.type.lower()) for f in CustomerSim().find(dialogue.text[low:high])}
            secrets = {secret for secret in dialogue.secrets if low <= secret[0] < high}
            findings += len(spans)
            right += len(spans & secrets)
            for secret in secrets:
                total[secret[2]] = total.get(secret[2], 0) + 1
                found[secret[2]] = found.get(secret[2], 0) + (secret in spans)
    assert len(total) == 5
    assert all(found[kind] >= 0.99 * total[kind] > 99 for kind in total)
    assert right >= 0.99 * findings


def test_names_come_from_a_file(tmp_path: Path) -> None:
    table, plain = tmp_path / "people.csv.gz", tmp_path / "people.txt"
    table.write_bytes(gzip.compress(b"name,phone\nAda Quist,1\nMary Ann Smith,2\n"))
    plain.write_text("Ada Quist\n\nMary Ann  Smith\n")
    text = "USR: Sure Mary Ann Smith, not Bob Miller; Ada Quist: 542-016-4074."
    for path in (table, plain):
        assert read_names(path) == {"Ada Quist", "Mary Ann Smith"}
        assert {text[f.start : f.end] for f in CustomerSim(str(path)).find(text)} == {
            "Mary Ann Smith",
            "Ada Quist",
            "542-016-4074",
        }


def test_a_file_without_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("who\nAda Quist\n")
    with pytest.raises(BadInput, match="no column called name"):
        CustomerSim(str(tmp_path / "people.csv"))
    with pytest.raises(BadInput, match="cannot read names"):
        CustomerSim(str(tmp_path / "missing.txt"))


PIECES = [secret for secrets in SECRETS.values() for secret in secrets]
PIECES += [part for wording in WORDINGS for part in wording.split("{}")]
PIECES += [
    *" \n\t.,:;-'_xA7é",
    MARK,
    "Ada",
    "Quist",
    "Quist Ada",
    "Roth Camp",
    "O'",
    "TX 75001",
    "12",
    "Suite 3",
    "Box",
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text("aZ09 -.'" + MARK, max_size=4), max_size=12).map("".join)


def _known() -> CustomerSim:
    policy = CustomerSim()
    policy.names, policy.longest = frozenset({"Ada Quist", "Quist Ada", "Roth Camp", "Quist"}), 2
    return policy


POLICIES: dict[str, Policy] = {"by wording": CustomerSim(), "from a file": _known()}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(max_examples=1000, deadline=None)
@given(text=TEXTS)
def test_masking_a_detected_secret_changes_nothing(policy: Policy, text: str) -> None:
    findings = sorted(policy.find(text))
    for start, end in merged(findings):
        masked = text[:start] + MARK + text[end:]
        shift = len(MARK) - (end - start)
        others = [f if f.end <= start else f._replace(start=f.start + shift, end=f.end + shift) for f in findings if f.end <= start or f.start >= end]  # fmt: skip
        assert sorted(policy.find(masked)) == others
