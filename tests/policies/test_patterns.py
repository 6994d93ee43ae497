"""What `patterns` finds, that masking one finding changes no other, and that hostile text costs no more than any."""

from __future__ import annotations

import re
import time
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.experiments.customersim import dialogues, people
from confide.policies import patterns
from confide.policies.base import Policy, merged
from confide.policies.patterns import TYPES, Patterns
from confide.records import MARK

# All invented.
FOUND = {
    "EMAIL": ("ada.quist+shop@mail.example.org", "x_y@example.co.uk"),
    "PHONE": ("542-016-4074", "671.452.5731", "2414767171", "+44 20 7946 0958", "(791) 582-4288", "604.303.4030x52", "0475 82 58 33"),
    "CARD": ("4111 1111 1111 1111", "4111-1111-1111-1111", "378282246310005"),
    "IBAN": ("GB82 WEST 1234 5698 7654 32", "DE89370400440532013000"),
    "NATIONAL_ID": ("536-90-4399", "943 476 5919", "AB 12 34 56 C", "36574261809", "12345678Z", "X1234567L", "RCCMNL83S18D969H", "1112.22.333"),
    "IP": ("192.168.0.1", "2001:db8::1", "fe80:0:0:0:200:f8ff:fe21:67cf"),
    "API_KEY": ("AKIAIOSFODNN7EXAMPLE", "ghp_" + "a1B2" * 9, "sk-" + "a1B2" * 6, "xoxb-1234567890-abcdefghij", "AIza" + "a1-B2" * 7, "eyJhbGciOi1.eyJzdWIiOi2.c2ln"),
    "POSTCODE": ("TX 75001", "75001-1234", "SW1A 1AA", "K1A 0B1"),
    "DATE": ("2024-01-31", "2024-01-31 10:15", "31/1/2024", "1/2/24", "March 5, 2021", "5th of May 2020", "Sept. 2019"),
    "ADDRESS": (
        "238 Brenda Meadow Monicaton, KS 04617",
        "68699 Roth Camp Suite 727 North Tonya, NJ 24236",
        "Unit 3304 Box 9117 DPO AP 44852",
        "PSC 4462, Box 7174 APO AE 41081",
        "USNV Clark FPO AA 83725",
        "USS Clark\nFPO AA 83725",
        "238 Brenda Meadow\nMonicaton, KS 04617",
        "12 Old Mill Road, Apt. 4",
        "P.O. Box 123",
        "PO Box 9 Big Town, TX 75001",
    ),
    "REFERENCE": ("750-56357-2575", "PQEQHEQTY8", "AB-12345", "123456789"),
}  # fmt: skip
ANNOUNCED = {
    "Your tracking number is {}.": ("REFERENCE", "ABCDEFGHIJ"),
    "your tracking number, which is {}.": ("REFERENCE", "ABCDEFGHIJ"),
    "Use this tracking number to follow your order: {}.": ("REFERENCE", "ABCDEFGHIJ"),
    "Reference number is : {} .": ("REFERENCE", "BMUKPTGA"),
    "My ID is {}.": ("REFERENCE", "341752"),
    "Your username on file is {}": ("REFERENCE", "aquist1"),
    "my zip code is {}": ("POSTCODE", "14224"),
    "the postcode is {}.": ("POSTCODE", "cb21rt"),
    "Phone: {}": ("PHONE", "467 3395"),
    "my iban is {}": ("IBAN", "gb82west12345698765432"),
    "password: {}": ("API_KEY", "hunter2!x"),
    'the API key is "x", no, api key: "{}"': ("API_KEY", "Zx81kk29"),
    "https://{}@host.example/": ("URL_CREDENTIALS", "ada:pass"),
    "https://host.example/?api_key={}&x=y": ("URL_CREDENTIALS", "abc123def"),
}
PUBLIC = (
    "I bought 3 lamps for 49.99 in 2024, 12 of 1000 were broken.",
    "From 2010-2011 it cost 1234567.89, pi is 3.14159265, at 12:30:45.",
    "YOUR ORDER NUMBER IS CONFIRMED. Please RETURN the order.",
    "Section 4.2.1 of version 1.2.3, see page 12-14.",
)


def redacted(policy: Policy, text: str) -> str:
    for start, end in reversed(merged(policy.find(text))):
        text = text[:start] + MARK + text[end:]
    return re.sub(f"{MARK}(?:[ \t]*{MARK})+", MARK, text)


@pytest.mark.parametrize(("kind", "secret"), [(kind, secret) for kind, secrets in FOUND.items() for secret in secrets])
def test_a_secret_is_found_exactly_by_its_shape(kind: str, secret: str) -> None:
    for before, after in (
        ("", ""),
        ("It is ", "."),
        ("(see ", ")"),
        ("said:\n", "\nok"),
        ('"', '"'),
        ("Sure, ", " thanks"),
    ):
        text = before + secret + after
        assert [(text[f.start : f.end], f.type) for f in Patterns().find(text)] == [(secret, kind)]


@pytest.mark.parametrize("template", ANNOUNCED)
def test_a_secret_is_found_by_the_words_before_it(template: str) -> None:
    kind, secret = ANNOUNCED[template]
    text = template.format(secret)
    assert [(text[f.start : f.end], f.type) for f in Patterns().find(text)] == [(secret, kind)]
    if secret.isalnum():
        assert kind == "POSTCODE" or Patterns().find(f"Well, {secret} then.") == []


def test_a_private_key_is_one_finding() -> None:
    text = "-----BEGIN RSA PRIVATE KEY-----\nMIIB0123\nabc=\n-----END RSA PRIVATE KEY-----\n"
    assert redacted(Patterns(), text) == f"{MARK}-----\n"


@pytest.mark.parametrize("text", PUBLIC)
def test_plain_numbers_and_words_are_left_alone(text: str) -> None:
    assert Patterns().find(text) == []


def test_types_can_be_chosen() -> None:
    text = "ada@example.org, 542-016-4074"
    assert [f.type for f in Patterns("phone, card").find(text)] == ["PHONE"]
    with pytest.raises(BadInput, match="no type NAME; it knows ADDRESS"):
        Patterns("PHONE,NAME")


PIECES = [secret for secrets in FOUND.values() for secret in secrets]
PIECES += [part for template, (_, secret) in ANNOUNCED.items() for part in (*template.split("{}"), secret)]
PIECES += ["-----BEGIN PRIVATE KEY", "-----END PRIVATE KEY", "-----", "abc::def", "password: abc123", "?key=abc123", "eyJ", "ghp_" + "a" * 32, "é@x.org", "sk-", "xoxb-1234"]  # fmt: skip
PIECES += [*" \n\t.,:;-+()@=#'\"?&/_xA7é", "--", "-----", "://", "::", MARK, "IL", "Box", "St", "May", "12", "7 ", "0475", "x", "ID", "is", "Apt."]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text("aZ09 -.@" + MARK, max_size=4), max_size=12).map("".join)


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
@example("order number is ABCDEFGHIJ ABCDEFGHIJ")
@example("12 order number ABCDEFG number is ABCDEFG")
def test_masking_a_detected_secret_changes_nothing(text: str) -> None:
    policy = Patterns()
    findings = policy.find(text)
    for start, end in merged(findings):
        masked = text[:start] + MARK + text[end:]
        shift = len(MARK) - (end - start)
        others = [f if f.end <= start else f._replace(start=f.start + shift, end=f.end + shift) for f in findings if f.end <= start or f.start >= end]  # fmt: skip
        assert policy.find(masked) == others
        assert redacted(policy, masked) == redacted(policy, text)


@settings(max_examples=1000, deadline=None)
@given(TEXTS)
def test_skipping_idle_lines_and_signs_changes_nothing(text: str) -> None:
    everywhere = re.compile("")
    with patch.object(patterns, "ANCHOR", everywhere), patch.object(patterns, "_PLAIN", patterns.SCANNER):
        expected = list(patterns.scan(text))
    assert list(patterns.scan(text)) == expected


@pytest.mark.parametrize("whole", [True, False], ids=["dialogues", "turns"])
def test_simulated_secrets_are_found_and_nothing_else(whole: bool) -> None:
    policy, claimed = Patterns(), {"phone", "order", "tracking", "address"}
    total = dict.fromkeys(claimed, 0)
    found, right, findings = dict(total), 0, 0
    for dialogue in dialogues(500, crowd=people(0, 600)):
        for low, high in [(0, len(dialogue.text))] if whole else [m.span() for m in re.finditer(".+", dialogue.text)]:
            spans = [(low + start, low + end) for start, end in merged(policy.find(dialogue.text[low:high]))]
            secrets = [secret for secret in dialogue.secrets if low <= secret[0] < high and secret[2] in claimed]
            findings += len(spans)
            right += sum(any(start < b and a < end for a, b, _ in secrets) for start, end in spans)
            for a, b, kind in secrets:
                total[kind] += 1
                found[kind] += any(start <= a and b <= end for start, end in spans)
    assert all(found[kind] >= 0.99 * total[kind] > 99 for kind in claimed)
    assert right >= 0.99 * findings


HOSTILE = ["a", "1", " ", "@", ".", "a.", "1.", "1-", "1 ", "A1-", "A ", "1 A ", "a@", "a@a.", "://", "://a:", "+1 ", "(12) ", "A", "é",
           "-----BEGIN PRIVATE KEY-----", "order is ", "number number ", "password ", "?key=", "?key=a", "1 St ", "a:", "::1", "PO Box 1 A ", "eyJ-", "eyJ-a.eyJ", "eyJ1-", "eyJ12345.", "eyJ123456.", "ghp_", "password: ", "password: 1", "sk-a", "12 34 ", "0123 45 ", MARK]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("tail", ["", "!"])
def test_hostile_text_takes_linear_time(piece: str, tail: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece)) + tail
        start = time.process_time()
        Patterns().find(text)
        return time.process_time() - start

    small = min(seconds(12_500) for _ in range(3))
    assert min(seconds(100_000) for _ in range(2)) < 40 * small + 0.05  # 8 times as much if linear, 64 if quadratic


def test_every_type_is_tested() -> None:
    assert set(FOUND) | {kind for kind, _ in ANNOUNCED.values()} == set(TYPES)
