"""Chat templates are strangers' programs: whatever they are, they end, and take nothing with them."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from confide.models import templates
from confide.models.templates import Unrendered, render

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "good day"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}INNER{% endfor %}{% endfor %}"


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 0.5)


def test_texts_are_those_of_the_tokenizer(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ add_generation_prompt }}"
    )
    chats = [CHAT, CHAT[:1]]
    for choices in ({}, {"add_generation_prompt": True}):
        own = [tokenizer.apply_chat_template(chat, tokenize=False, **choices) for chat in chats]
        assert list(render(tokenizer, chats, **choices)) == own
    assert list(render(tokenizer, [])) == []


@pytest.mark.parametrize(
    "template",
    [
        LOOP,
        "{{ 9 ** (9 ** 9) }}",
        LOOP.replace("INNER", "{{ messages }}"),
        pytest.param(
            "{{ 'a' * 99999999999 }}", marks=pytest.mark.skipif(sys.platform != "linux", reason="memory is not counted")
        ),
        "{{ messages[0].role * 99999 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ raise_exception('no') }}",
        "{% for",
    ],
)
def test_a_template_that_makes_no_text_is_refused_in_words_and_soon(tokenizer, template):
    tokenizer.chat_template = template
    began, most = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(Unrendered, match=r"it does not end|it makes too long a text|^\w+Error$"):
        list(render(tokenizer, [CHAT]))
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - most < 5
    assert not multiprocessing.active_children()


def test_the_first_chat_without_a_text_stops_it_and_the_others_before_it_have_theirs(tokenizer):
    tokenizer.chat_template = "{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}one"
    texts = render(tokenizer, [CHAT[:1], CHAT])
    assert next(texts) == "one"
    with pytest.raises(Unrendered, match="TemplateError"):
        next(texts)


def test_a_long_message_may_make_a_long_text(tokenizer):
    tokenizer.chat_template = "{{ messages[0].content | tojson }}"
    long = [{"role": "user", "content": "\x01" * 10**6}]
    assert len(next(render(tokenizer, [long]))) > 10**6


def test_nothing_is_left_running_when_the_process_that_waits_is_killed(tokenizer):
    def wait(told):
        tokenizer.chat_template = "{{ 'a' * 30000 }}"
        texts = render(tokenizer, [CHAT] * 100)
        next(texts)
        told.send(multiprocessing.active_children()[0].pid)
        os.kill(os.getpid(), signal.SIGKILL)

    forks = multiprocessing.get_context("fork")
    told, teller = forks.Pipe(duplex=False)
    waiting = forks.Process(target=wait, args=(teller,))
    waiting.start()
    worker = told.recv()
    waiting.join()
    for _ in range(100):
        if not running(worker):
            return
        time.sleep(0.1)
    raise AssertionError("the worker waits for ever")


def running(pid):
    """A process that ended, and that nobody has collected yet, does not run."""
    done = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip() not in ("", "Z")
