"""Sentence splitters side by side in one run: right answers on cases that are easy to get wrong, and speed.

A case is written with `|` where a sentence ends. A splitter passes if it cuts exactly there. Ratios of speed mean
something, absolute speeds do not. `--quick` times less text, `--cases` shows which cases fail, `--json` prints one
object. Splitters that are not installed are named as missing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
from collections.abc import Callable

from confide.records import MARK, Record
from confide.splitting import sentence_ends, split

CASES = [line for line in """
Dr. Smith called me back.| He was kind.
I spoke to Mrs. Jones and Mr. Brown.| They agreed.
We need fruit, e.g. apples and pears.| Buy some.
The plan, i.e. the second one, failed.| Start again.
He moved to the U.S. in 1999.| He stayed.
She lives in the U.S.| Her brother does not.
Acme Inc. sent the bill.| I paid it.
I work for Acme Inc.| It is large.
We met on St. James Street.| It rained.
Take bus No. 5 to the end.| Then walk.
See Fig. 3 for details.| It is clear.
Write to anna.b.smith@mail.example.com today.| Thanks.
My address is joe@example.com.| Please confirm.
Visit https://www.example.com/a.b?c=1.2 now.| It works.
Go to www.example.com.| Then log in.
It costs $3.50 each.| I want two.
Pi is about 3.14159.| It never ends.
The total is 1,234.56 euros.| That is wrong.
Call me at 5 p.m. tomorrow.| I am free.
We close at 5 p.m.| Come earlier.
It opens at 9 a.m. on Mondays.| Not on Sundays.
"I am late."| She ran.
"Are you sure?" he asked.| She nodded.
He said, "It is broken."| Then he left.
She said "no."| I said "yes."
Well... I am not sure.| Maybe later.
I waited...| Nobody came.
J. R. R. Tolkien wrote it.| I read it.
It was signed by J. Smith.| Nobody knew.
What?!| That cannot be.
Really?| Yes!| Good.
Stop!!!| I mean it.
Can you help me?| My order is late.
1. Open the box.| 2. Take it out.
My name is Ann
I have no final stop.| This is the end
Use version 2.0.1 of the tool.| It is newer.
The server is 192.168.0.1 here.| Ping it.
It runs Python 3.11.| That is fine.
He holds a Ph.D. in physics.| She has an M.A.
The meeting is on Jan. 5 at noon.| Be there.
Order no. 843-58572-7002 is lost.| Find it.
(He was wrong.)| Nobody told him.
He lives at 12 Main St. in Boston.| Write to him.
Gen. Lee and Sgt. Pepper met.| It was odd.
We sell nuts, bolts, etc.| Ask for prices.
It is 5 ft. 3 in. tall.| That is enough.
The file is report.final.pdf today.| Open it.
Thanks!!| :)
Smith vs. Jones was decided.| Smith won.
ok.| see you then.| bye
My ID is @.| Keep it safe.
Mail @ to Mr. @ please.| He waits.
He earned 3.5 million.| The firm lost 4.
Yes, Prof. Dr. Meyer is in.| Come up.
""".strip().splitlines() if line]  # fmt: skip


def case(line: str) -> tuple[str, list[int]]:
    """The text of a case, a mask in place of `@ `, and where its sentences end."""
    line = line.replace(" @ ", f" {MARK} ").replace("@.", f"{MARK}.")
    parts = line.split("|")
    ends, at = [], 0
    for part in parts:
        at += len(part)
        ends.append(at)
    return "".join(parts), ends


def from_pieces(text: str, pieces: list[str]) -> list[int]:
    """Ends of sentences that a splitter gives as strings; raises if it altered the text."""
    ends, at = [], 0
    for piece in pieces:
        at = text.index(piece.strip(), at) + len(piece.strip())
        ends.append(at)
    return ends


def splitters() -> dict[str, Callable[[str], list[int]]]:
    """Each splitter as a function from a text to the ends of its sentences."""
    found: dict[str, Callable[[str], list[int]]] = {"confide": sentence_ends}
    with contextlib.suppress(ImportError):
        import sentencex

        found["sentencex"] = lambda text: [b["end_index"] for b in sentencex.get_sentence_boundaries("en", text)]
    with contextlib.suppress(ImportError):
        import nupunkt

        found["nupunkt"] = lambda text: [end for _, end in nupunkt.sent_spans(text)]
    with contextlib.suppress(ImportError):
        import pysbd

        segmenter = pysbd.Segmenter(language="en", clean=False, char_span=True)
        found["pysbd"] = lambda text: [span.end for span in segmenter.segment(text)]
    with contextlib.suppress(ImportError):
        import syntok.segmenter

        found["syntok"] = lambda text: [
            sentence[-1].offset + len(sentence[-1].value)
            for paragraph in syntok.segmenter.analyze(text)
            for sentence in paragraph
        ]
    with contextlib.suppress(ImportError, OSError):
        import blingfire

        def fire(text: str) -> list[int]:
            return [end for _, end in blingfire.text_to_sentences_and_offsets(text)[1]]

        found["blingfire"] = fire
    with contextlib.suppress(ImportError):
        import spacy

        nlp = spacy.blank("en")
        nlp.add_pipe("sentencizer")
        nlp.max_length = 10**9
        found["spacy sentencizer"] = lambda text: [sentence.end_char for sentence in nlp(text).sents]
    return found


def trimmed(text: str, ends: list[int]) -> list[int]:
    """Ends without the white space before them, and without empty sentences."""
    return sorted({len(text[:end].rstrip()) for end in ends} - {0})


def failures(ends: Callable[[str], list[int]]) -> list[str]:
    failed = []
    for line in CASES:
        text, truth = case(line)
        try:
            right = trimmed(text, [*ends(text), len(text)]) == truth
        except Exception:  # a splitter that cannot do a case fails it
            right = False
        if not right:
            failed.append(line)
    return failed


def speed(run: Callable[[str], object], texts: list[str]) -> float:
    """Megabytes a second; the faster of two runs."""
    size = sum(len(text) for text in texts)
    best = float("inf")
    for _ in range(2):
        start = time.perf_counter()
        for text in texts:
            run(text)
        best = min(best, time.perf_counter() - start)
    return size / best / 1e6


HOSTILE = {"stops": ".", "letters": "a", "quotes": '"', "spaces": " ", "stop and space": ". ", "initials": "A.",
           "questions": "?!", "brackets": "(", "lines": "\n", "short sentences": "a. B "}  # fmt: skip


def growth(ends: Callable[[str], list[int]], size: int) -> tuple[str, float]:
    """The hostile input on which ten times the text costs the most more time, and how much more. Linear: about 10."""
    worst = ("none", 0.0)
    for name, unit in HOSTILE.items():
        times = []
        for length in (size, 10 * size):
            text = (unit * length)[:length]
            start = time.perf_counter()
            with contextlib.suppress(Exception):
                ends(text)
            times.append(max(time.perf_counter() - start, 1e-3))  # below a millisecond nothing is told
        worst = max(worst, (name, times[1] / times[0]), key=lambda one: one[1])
    return worst


def corpus(copies: int) -> list[str]:
    """Lines of the length of chat turns, made of the cases."""
    texts = [case(line)[0] for line in CASES]
    return [f"USR: {texts[i % len(texts)]} {texts[(7 * i + 3) % len(texts)]}" for i in range(copies * len(texts))]


def measure(quick: bool) -> dict[str, object]:
    lines = corpus(4 if quick else 40)
    documents = [Record(str(i), "\n".join(lines[i : i + 8]), str(i)) for i in range(0, len(lines), 8)]
    result: dict[str, object] = {"cases": len(CASES), "splitters": {}, "missing": []}
    rows: dict[str, dict[str, object]] = {}
    for name, ends in splitters().items():
        failed = failures(ends)
        worst, factor = growth(ends, 200 if quick else 1_000)
        rows[name] = {
            "right": len(CASES) - len(failed),
            "failed": failed,
            "MB/s": speed(ends, lines),
            "worst growth": factor,
            "on": worst,
        }
    result["splitters"] = rows
    peers = ("sentencex", "nupunkt", "pysbd", "syntok", "blingfire", "spacy sentencizer")
    result["missing"] = [name for name in peers if name not in rows]
    by_text = {document.text: document for document in documents}
    texts = list(by_text)
    result["units MB/s"] = {
        unit: speed(lambda text, unit=unit: split(by_text[text], unit), texts)  # type: ignore[misc]
        for unit in ("document", "turn", "sentence")
    }
    result["turns of at most 20 words, MB/s"] = speed(lambda text: split(by_text[text], "turn", 20), texts)
    return result


def show(result: dict[str, object], cases: bool) -> str:
    out = io.StringIO()
    rows = result["splitters"]
    assert isinstance(rows, dict)
    print(f"{'':18} right of {result['cases']}     MB/s   10x hostile text", file=out)
    for name, row in rows.items():
        worst = f"{row['worst growth']:.0f}x the time ({row['on']})"
        print(f"{name:18} {row['right']:>11} {row['MB/s']:>8.2f}   {worst}", file=out)
        for line in row["failed"] if cases else []:
            print(f"    {line}", file=out)
    for name in result["missing"]:  # type: ignore[attr-defined]
        print(f"{name:18}     missing", file=out)
    units = result["units MB/s"]
    assert isinstance(units, dict)
    print("split, MB/s: " + ", ".join(f"{unit} {rate:.0f}" for unit, rate in units.items()), file=out)
    print(f"turns of at most 20 words: {result['turns of at most 20 words, MB/s']:.0f} MB/s", file=out)
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cases", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.quick)
    print(json.dumps(result, indent=2) if arguments.json else show(result, arguments.cases), end="")


if __name__ == "__main__":
    main()
