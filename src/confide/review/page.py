"""A place of the review comes in; the HTML of its page goes out. Every text of the corpus passes through `escape`.

Each piece of text stands in an element that says at which code point it begins, so that a selection in the browser can be
told to the server by places alone. Signs that steer the direction of text, or cannot be seen, are shown by their number.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from ..accounting.guarantees import many
from ..records import MARK
from .counting import Draws, bound, counted, result, sentences, share
from .file import OTHER
from .records import Secret, Shown
from .store import State, Store

PIECE = 20_000  # characters of a record that are shown at once
_JOINERS = "\u200c\u200d"  # part of ordinary words and emoji


def shell(inner: str) -> str:
    """A whole page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>confide review</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="/icon.svg">'
        '<link rel="stylesheet" href="/review.css"><script src="/review.js" defer></script></head>'
        f"<body>{inner}</body></html>"
    )


def entrance() -> str:
    """Goes on to the review by itself, from a page of our own: a strict cookie does not travel with a link from elsewhere."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>confide review</title>'
        '<link rel="icon" href="/icon.svg"><meta http-equiv="refresh" content="0;url=/"></head><body><p><a href="/">Go on to the review</a></p></body></html>'
    )


def refused(why: str) -> str:
    """A page for a person who may not see the review, or for whom something failed. It needs nothing else from here."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>confide review</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"</head><body><main><h1>confide review</h1><p>{escape(why[:1].upper() + why[1:].rstrip('.'))}.</p>"
        "<p>All answers so far are kept. The link stands in the terminal where <code>confide review</code> "
        "runs; a new start prints a new one.</p></main></body></html>"
    )


def page(store: Store, place: int, piece: int) -> str:
    """The page of the record at a place, or of the end of the sample."""
    noscript = "<noscript><p>This page needs JavaScript; it is all on your own machine.</p></noscript>"
    return shell(
        '<a class="jump" href="#text">To the record</a>'
        f'<header><h1>confide review</h1><p class="who">Reviewer: <bdi>{escape(store.reviewer)}</bdi></p>'
        '<button type="button" class="quiet" data-do="help" aria-haspopup="dialog">Help <kbd>?</kbd></button></header>'
        f'{noscript}<section id="bound" aria-live="polite" aria-label="What the review shows so far">{panel(store)}</section>'
        f'<p id="said" role="status"></p><p id="heard" class="heard" role="status"></p>'
        f'<main id="main">{body(store, place, piece)}</main>{_help(store)}'
    )


def panel(store: Store, draws: Draws | None = None, saved: dict[str, Any] | None = None) -> str:
    """Progress and the bound in words. `draws` and `saved`: what `counted` and `result` say, if it is known already."""
    draws = counted(store) if draws is None else draws
    found, saved = bound(store, draws), saved or result(store, draws)
    first, *more = sentences(store, found)
    done, total = store.frontier(), len(store.order)
    missed = sum(row[1] for row in found.records if not isinstance(row, str))
    secrets = sum(row[0] for row in found.records if not isinstance(row, str))
    skipped = sum(isinstance(row, str) for row in found.records)
    counts = f"{done:,} of {many(total, 'record')} answered · {many(secrets, 'secret')} counted, {missed:,} missed"
    outside = saved.get("outside_class")  # the sentences say which class
    if outside and outside["secrets"]:
        counts += f" · outside the class {many(outside['secrets'], 'secret')}, {outside['missed']:,} missed"
    counts += f" · {skipped:,} skipped" if skipped else ""
    return (
        f'<p class="bound">{escape(first)}</p><p>{escape(" ".join(more))}</p>'
        f'<progress max="{total}" value="{done}" aria-label="records answered"></progress>'
        f'<p class="small">{escape(counts)}</p>{_agreed(saved["agreement"])}'
    )


def _agreed(pairs: Sequence[dict[str, Any]]) -> str:
    rows = []
    for pair in pairs:
        (one, other), records = pair["reviewers"], pair["records"]
        both = f"{one} and {other} both answered {many(records, 'record')}; whether something was missed, "
        kappa = "" if pair["kappa"] is None else f" (Cohen's kappa {pair['kappa']:.2f})"
        rows.append(f"{both}they say the same of {round(pair['same'] * records):,}{kappa}.")
    if any(pair["kappa"] is not None for pair in pairs):
        rows.append("Kappa is 1 where reviewers always agree and 0 where they agree no more than by chance.")
    return "".join(f'<p class="small">{escape(row)}</p>' for row in rows)


def body(store: Store, place: int, piece: int) -> str:
    """The record at a place with all that can be done to it."""
    if place >= len(store.order):
        return _end(store)
    record = store.order[place]
    shown, state = store.records.read(record), store.state(record)
    borders = pieces(shown.text)
    piece = max(0, min(piece, len(borders) - 1))
    low, high = borders[piece]
    times = store.times[record]
    last = store.last()
    more = piece + 1 < len(borders)
    notes = [f"Drawn {times} times: the answer counts {times} times."] if times > 1 else []
    if state.status != "open":
        notes.append(
            f"You {'answered' if state.status == 'answered' else 'skipped'} this record; changes count at once."
        )
    if len(borders) > 1:
        notes.append(f"A long record: part {piece + 1:,} of {len(borders):,}. All parts belong to one answer.")
    part = (
        '<span class="part private">private</span> Found secrets are masked; what was missed stays in the private part.'
        if shown.private
        else '<span class="part public">public</span> Stays as it is: a secret here was missed by both policies.'
    )
    attributes = (
        f'data-place="{place}" data-version="{state.version}" data-last="{last[0] if last else 0}" '
        f'data-piece="{piece}" data-pieces="{len(borders)}"'
    )
    skipped = f"Skip <span>counts as {store.cap} missed</span>"
    forward = place < min(store.frontier(), len(store.order))
    return (
        f'<article {attributes}><h2>Record {place + 1:,} of {len(store.order):,}</h2><p class="small">{part}</p>'
        f"{''.join(f'<p class=note>{escape(note)}</p>' for note in notes)}"
        f'<div id="text" tabindex="0" role="group" dir="auto" aria-label="Text of the record">{text_html(shown, state, low, high)}</div>'
        f'<div class="tools">{_types(store)}<div class="bar">'
        + _button("answer", "Next part" if more else "Nothing more was missed", "Enter", "strong")
        + _button("skip", skipped, "S")
        + _button("undo", "Undo", "U", off=last is None)
        + _button("back", "Back", "B", off=not place and not piece)
        + _button("forward", "Forward", "N", off=not forward)
        + f"</div></div>{_lists(shown, state, low, high, _showing(store, place, shown))}</article>"
    )


def _showing(store: Store, place: int, shown: Shown) -> Collection[Secret]:
    """Found secrets that count as missed, where the policies can tell which."""
    showing = store.policies.showing(store.order[place], shown)
    return () if store.policies.unfit else showing


def _button(do: str, label: str, key: str, kind: str = "", off: bool = False) -> str:
    """`label` is our own HTML, never text of the corpus."""
    return f'<button type="button" class="{kind}" data-do="{do}"{" disabled" if off else ""}>{label} <kbd>{key}</kbd></button>'


def _types(store: Store) -> str:
    rows = []
    for number, name in enumerate(store.types, start=1):
        key = "0" if name == OTHER else str(number) if number < 10 else ""
        hint = f" <kbd>{key}</kbd>" if key else ""
        rows.append(
            f'<button type="button" data-do="mark" data-type="{escape(name)}" data-key="{key}">{escape(name)}{hint}</button>'
        )
    return (
        '<div class="types" role="group" aria-label="Mark the selected text as missed, of type">'
        f'<p id="chosen">Select what the policy missed, then its type:</p>{"".join(rows)}</div>'
    )


def _lists(shown: Shown, state: State, low: int, high: int, showing: Collection[Secret]) -> str:
    """What was found and what was marked, each with a button. `showing`: found secrets that count as missed all the same."""
    rows = []
    for one in shown.found:
        if one.start < high and one.end > low:
            alarm = (one.start, one.end) in state.alarms
            do, label = ("unflag", "It is a secret after all") if alarm else ("flag", "False alarm")
            what = (
                "false alarm"
                if alarm
                else "found, but masking it would change the record: counts as missed:"
                if one in showing
                else "found"
            )
            rows.append(_item(one, what, do, label, shown.text, "alarm" if alarm else "found"))
    rows += [
        _item(one, "missed", "unmark", "Remove the mark", shown.text, "missed")
        for one in state.missed
        if one.start < high and one.end > low
    ]
    if not rows:
        return '<p class="small">The policy found nothing here, and nothing is marked.</p>'
    return f'<ul class="secrets">{"".join(rows)}</ul>'


def _item(one: Secret, what: str, do: str, label: str, text: str, kind: str) -> str:
    words = text[one.start : one.end]
    words = words if len(words) <= 60 else words[:60] + "…"
    return (
        f'<li><span class="kind {kind}">{what} {escape(one.type)}</span> <q><bdi>{_plain(words)}</bdi></q> '
        f'<button type="button" class="quiet" data-do="{do}" data-start="{one.start}" data-end="{one.end}">{label}</button></li>'
    )


def pieces(text: str) -> list[tuple[int, int]]:
    """Where a long text is cut into parts: behind a blank where there is one near."""
    borders = []
    low = 0
    while len(text) - low > PIECE:
        blank = max(text.rfind(sign, low + PIECE - 500, low + PIECE) for sign in " \n\t")
        high = blank + 1 if blank > 0 else low + PIECE
        borders.append((low, high))
        low = high
    return [*borders, (low, len(text))]


def text_html(shown: Shown, state: State, low: int, high: int) -> str:
    """The text from `low` to `high` with its marks."""
    spans = [*shown.found, *state.missed]
    cuts = {low, high} | {at for one in spans for at in (one.start, one.end) if low < at < high}
    places = sorted(cuts)
    out = []
    for start, end in pairwise(places):
        missed = _covering(state.missed, start, end)
        found = _covering(shown.found, start, end)
        inner = _signs(shown.text[start:end], start)
        if found:
            alarm = (found.start, found.end) in state.alarms
            inner = _mark("alarm" if alarm else "found", "false alarm" if alarm else "found", found, start, low, inner)
        if missed:
            inner = _mark("missed", "missed", missed, start, low, inner)
        out.append(inner)
    return "".join(out)


def _covering(spans: Sequence[Secret], start: int, end: int) -> Secret | None:
    return next((one for one in spans if one.start <= start and end <= one.end), None)


def _mark(kind: str, word: str, one: Secret, start: int, low: int, inner: str) -> str:
    label = f' data-label="{word} {escape(one.type)}"' if start == max(one.start, low) else ""
    return f'<mark class="{kind}" data-start="{one.start}" data-end="{one.end}"{label}>{inner}</mark>'


def _odd(sign: str) -> bool:
    return sign not in "\n\t" + _JOINERS and unicodedata.category(sign) in ("Cc", "Cf", "Cn", "Cs", "Co", "Zl", "Zp")


def _name(sign: str) -> str:
    return "masked" if sign == MARK else f"U+{ord(sign):04X}"


def _runs(text: str) -> list[str]:
    """Ordinary text, and runs of one odd sign, by turns."""
    odd = "".join(re.escape(sign) for sign in sorted(set(text)) if _odd(sign))
    return [text] if not odd else [match[0] for match in re.finditer(rf"([{odd}])\1*|[^{odd}]+", text)]


def _signs(text: str, at: int) -> str:
    out = []
    for run in _runs(text):
        if _odd(run[0]):
            times = f" ×{len(run)}" if len(run) > 1 else ""
            out.append(
                f'<span class="sign" data-at="{at}" data-len="{len(run)}" data-sign="{_name(run[0])}{times}"></span>'
            )
        else:
            out.append(f'<span data-at="{at}" data-len="{len(run)}">{escape(run)}</span>')
        at += len(run)
    return "".join(out)


def _plain(text: str) -> str:
    return "".join(
        f'<span class="sign" data-sign="{_name(run[0])}"></span>' if _odd(run[0]) else escape(run)
        for run in _runs(text)
    )


def _end(store: Store) -> str:
    """After the last record: what was found by type, and how to go on."""
    last = store.last()
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{one["secrets"]:,}</td><td>{one["missed"]:,}</td>'
        f"<td>{share(one['bound'])}</td></tr>"
        for name, one in result(store)["types"].items()
    )
    return (
        f'<article data-place="{len(store.order)}" data-version="0" data-last="{last[0] if last else 0}" data-piece="0" '
        f'data-pieces="1"><h2>All records of the sample are answered</h2>'
        "<p>The result is in <code>review.json</code>. Stop here, or draw more records: the bound stays valid either way.</p>"
        '<div class="bar">'
        + _button("more", "Draw 100 more records", "M", "strong")
        + _button("undo", "Undo", "U", off=last is None)
        + _button("back", "Back", "B")
        + "</div>"
        f"<table><caption>By type; these bounds hold together with {100 * store.confidence:.10g} % confidence</caption><thead>"
        '<tr><th scope="col">Type</th><th scope="col">Secrets</th><th scope="col">Missed</th><th scope="col">Misses at most</th>'
        f"</tr></thead><tbody>{rows}</tbody></table></article>"
    )


def _help(store: Store) -> str:
    keys = (
        ("← →", "choose a word of the record; with Shift: more words"),
        ("< >", "one character less or more at the end of the selection"),
        (", .", "one character more or less at its start"),
        ("↑ ↓", "go from one marked secret to the next"),
        ("1 … 9, 0", "the selection is a missed secret of that type"),
        ("F", "the chosen finding is a false alarm, or is one no longer"),
        ("X", "remove the chosen mark of a missed secret"),
        ("Enter", "everything else is right: next record"),
        ("S", f"skip: counts as {many(store.cap, 'missed secret')}"),
        ("U", "undo the last action, wherever it was"),
        ("B, N", "back to the record before, forward again"),
        ("?", "this help; Esc closes it"),
    )
    rows = "".join(f"<dt><kbd>{escape(key)}</kbd></dt><dd>{escape(what)}</dd>" for key, what in keys)
    return (
        '<dialog id="help" aria-labelledby="help-title"><h2 id="help-title" tabindex="-1" autofocus>Help</h2>'
        "<p>You see records drawn at random, as they were before redaction. What the policy found is marked. "
        "Mark every secret that it missed; flag findings that are no secrets. A secret found only in part was missed: "
        "select all of it. Where the secret is only a part of a finding, select that part: it counts as missed unless redaction "
        "hides it all the same.</p>"
        f"<p>At most {many(store.cap, 'secret')} of a record count, chosen at random if there are more. You may stop whenever you like: "
        "the bound holds at every moment. Do not answer with the bound in mind; a wrong answer is the one thing it cannot see.</p>"
        f"<dl>{rows}</dl>"
        '<p><label><input type="checkbox" id="keys" checked> Letters, digits and signs are shortcuts. Switched off, the buttons, '
        "the arrow keys and Enter still work; this browser remembers it.</label></p>"
        '<form method="dialog"><button class="strong">Close</button></form></dialog>'
    )
