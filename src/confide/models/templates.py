"""Chat templates: a tokenizer and chats in, their texts out. A template is a program of whoever made the model: it runs in a process of its own."""

from __future__ import annotations

import math
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS = 10  # of processor time, and a hundredth for each message
MEMORY = 512 << 20  # bytes beyond what the process has already
LONGEST = 1 << 15  # characters, and a thousand for each message besides what it says
Chat = Sequence[Mapping[str, str]]


class Unrendered(Exception):
    """Why a template made no text of a chat, in words that quote nothing."""


def render(tokenizer: Any, chats: Sequence[Chat], **choices: Any) -> Iterator[str]:
    """The text of each chat in the tokenizer's template; `Unrendered` at the first that has none. `choices` are those of `apply_chat_template`.

    *Formal guarantees.* Whatever the template is, it ends: with `SECONDS` of processor time, with `MEMORY` where the system
    counts it (Linux), or with a text too long for its chat, and takes nothing with it.
    """
    if not chats:
        return
    forks = get_context("fork")  # the tokenizer is there, and nothing has to be loaded again
    results, writer = forks.Pipe(duplex=False)
    worker = forks.Process(target=_work, args=(results, writer, tokenizer, chats, choices))
    worker.start()
    writer.close()
    try:
        for _ in chats:
            try:
                text, problem = results.recv()
            except EOFError:
                raise Unrendered("it does not end, or takes too much memory") from None
            if problem:
                raise Unrendered(problem)
            yield text
    finally:
        worker.kill()
        worker.join()
        results.close()


def _work(
    results: Connection, writer: Connection, tokenizer: Any, chats: Sequence[Chat], choices: Mapping[str, Any]
) -> None:
    results.close()  # else it would wait for itself to read, were the process that waits killed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupts are for the process that waits
    size = Path("/proc/self/statm")
    if size.exists():
        _limit(resource.RLIMIT_AS, MEMORY + resource.getpagesize() * int(size.read_text().split()[0]))
    _limit(resource.RLIMIT_CPU, math.ceil(SECONDS + sum(map(len, chats)) / 100))
    for chat in chats:
        most = LONGEST + sum(1000 + 8 * sum(map(len, message.values())) for message in chat)
        text, problem = "", ""
        try:
            text = tokenizer.apply_chat_template(chat, tokenize=False, **choices)
        except Exception as error:  # templates raise what they like
            problem = type(error).__name__
        if len(text) > most:
            text, problem = "", "it makes too long a text"
        try:
            writer.send((text, problem))
        except OSError:  # nobody waits any more
            return


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
