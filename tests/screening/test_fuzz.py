"""Ten thousand hostile rows through intake, splitting and treatment: never a crash, never a public record with a hit."""

import json
import random

from confide.policies import load
from confide.records import MARK, MASK, Chunk, Columns, parse
from confide.screening.treatment import treat
from confide.splitting import UNITS, split

PIECES = [
    "<MASK>", "<mask>", "<<MASK>>", "<MA<MASK>SK>", MARK, "\0", "\u202e", "\u200f", "אבג", "🏳️‍🌈", "é", "\u2028", "\x85", "\ufeff",
    "555-010-1234", "a@b.co", "4111 1111 1111 1111", "192.168.0.1", "::1", "-----BEGIN PRIVATE KEY", "http://u:p@h/", "Hello.",
    "my order number is ABCDEFGH", "12 Main St", "\n", "\r\n", " ", "\t", "USR: ", "'", '"', "(" * 50, "." * 50, "a" * 3000, "1" * 300,
    "\\ud800", "\x1b[31m", "<script>", "{{", "%s", "日本語", "Ⅷ", "ß", "İ",
]  # fmt: skip


def rows(coins, count):
    for _ in range(count):
        kind = coins.random()
        if kind < 0.25:
            yield coins.randbytes(coins.randrange(60))
        elif kind < 0.3:
            yield b""
        else:
            text = "".join(coins.choices(PIECES, k=coins.randrange(12)))
            yield json.dumps({"text": text}, ensure_ascii=coins.random() < 0.5).encode("utf-8", "surrogatepass")


def test_ten_thousand_hostile_rows():
    coins = random.Random(7)
    policies = [load("patterns"), load("digits"), load("union(patterns, allowlist)"), load("customersim")]
    conservative = load("allowlist")
    screened = 0
    for start in range(0, 10_000, 100):
        lines = [line.replace(b"\n", b" ") for line in rows(coins, 100)]
        chunk = Chunk(0, 0, "c.jsonl", "c", start + 1, "jsonl", Columns("text", None, None), b"\n".join(lines))
        good, bad = parse(chunk)
        assert len(good) + len(bad) <= 100
        assert not any(piece in str(one) for one in bad for piece in ("555-010", "script", "order"))
        for row in good:
            assert MARK not in row.record.text
            assert MASK not in row.record.text
            for record in split(row.record, coins.choice(UNITS), coins.choice([None, 3])):
                done = treat(record, coins.choice(policies), conservative)
                assert done.private or not (MASK in done.text or conservative.find(record.text))
                assert MARK not in done.text
                screened += 1
    assert screened > 5000
