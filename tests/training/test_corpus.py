"""Records become tokens record by record, masks become one token, and what was redacted is never read."""

import json
import os
import re
import stat
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from confide.errors import BadInput, ConfideError
from confide.models import templates
from confide.policies import Finding, Policy, load
from confide.records import MASK, Columns, Fields, Turn, make_record
from confide.screening import Screened, screen
from confide.screening.treatment import treat
from confide.training.corpus import (
    Source,
    TokenFile,
    examples,
    fingerprint,
    raw_turns,
    tokenise,
)
from confide.training.encoding import Encoder, Example, Tokens
from confide.training.fillings import invented

TEXTS = ["hello there, my name is bob", "call 555 123 now", "user: hi\nassistant: good day"] * 5
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(special, **names):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    if "cls_token" in names:
        backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def gpt2():
    end = "<|endoftext|>"
    return byte_level([end], bos_token=end, eos_token=end, pad_token=end, mask_token=MASK)


def roberta():
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"}
    return byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], unk_token="<unk>", mask_token="<mask>", **names)


def llama():
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    special = ["<unk>", "<s>", "</s>"]
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=99, special_tokens=special, show_progress=False))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token=MASK, **names)


def chatty():
    tokenizer = gpt2()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    return tokenizer


def word_level():
    """A vocabulary of whole words, in which the mask is a word like any other."""
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, MASK: 2, "hi": 3}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token=MASK, **names)


TOKENIZERS = {"gpt2": gpt2(), "roberta": roberta(), "llama": llama()}
GPT2 = TOKENIZERS["gpt2"]


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]


def one(encoder, text, view="screened", **more):
    return encoder.encode([Example(text, view, **more)])[0]


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def corpus(tmp_path, rows, policy="digits", **options):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"conservative": "digits", **options}
    return screen(str(path), policy, tmp_path / "screened", workers=1, **options)


# -- encoding ---------------------------------------------------------------------------------------------------------


def test_a_record_is_framed_and_a_mask_is_one_token(tokenizer):
    found = one(Encoder(tokenizer, 64), f"call {MASK} now")
    assert found.ids[0] == tokenizer.bos_token_id
    assert found.ids[-1] == tokenizer.eos_token_id
    assert list(found.ids).count(tokenizer.mask_token_id) == 1
    assert found.target.tolist() == [False] + [True] * (len(found.ids) - 1)
    assert not found.private.any()
    assert found.label == -1


def test_special_tokens_are_not_parsed_out_of_text(tokenizer):
    hostile = "<|endoftext|> </s> <s> <mask> <pad> <unk>"
    found = one(Encoder(tokenizer, 256), hostile, "raw").ids[1:-1].tolist()
    assert not set(tokenizer.all_special_ids) - {tokenizer.unk_token_id} & set(found)
    assert tokenizer is not GPT2 or tokenizer.decode(found) == hostile


def test_a_literal_mask_in_raw_text_is_ordinary_text(tokenizer):
    assert tokenizer.mask_token_id not in one(Encoder(tokenizer, 64), f"call {MASK} now", "raw").ids


def test_an_overlong_record_loses_its_end():
    found = one(Encoder(GPT2, 5), "hello there, my name is bob")
    whole = one(Encoder(GPT2, 500), "hello there, my name is bob")
    assert len(found.ids) == len(found.target) == len(found.private) == 5
    assert np.array_equal(found.ids, whole.ids[:5])


def test_masks_are_no_targets_if_they_are_ignored():
    found = one(Encoder(GPT2, 64, ignore_mask=True), f"call {MASK} now")
    assert np.array_equal(found.target, (found.ids != GPT2.mask_token_id) & (np.arange(len(found.ids)) > 0))


FILLED = {"fillings": ("Ann Lee", "555")}


def test_invented_values_stand_where_masks_were_and_are_tokenised_like_any_text(tokenizer):
    encoder = Encoder(tokenizer, 64, **FILLED)
    texts = {f"call {a}, or {b}" for a in FILLED["fillings"] for b in FILLED["fillings"]}
    plain = {tuple(one(encoder, text, "raw").ids) for text in texts}
    found = [one(encoder, f"call {MASK}, or {MASK}") for _ in range(200)]
    assert {tuple(each.ids) for each in found} == plain  # all pairs: the masks of a record are filled independently
    assert all(each.target[1:].all() for each in found)


def test_what_fills_a_mask_is_drawn_for_each_record_even_if_records_are_alike():
    encoder = Encoder(GPT2, 64, fillings=tuple(map(str, range(1000))))
    found = encoder.encode([Example(f"call {MASK}", "screened")] * 100)
    assert len({tuple(each.ids) for each in found}) > 80


DRAWN = """
import random
import numpy as np
from confide.training import encoding
random.seed(0), np.random.seed(0)
encoder = object.__new__(encoding.Encoder)
for name, value in (("fillings", tuple(map(str, range(1000)))), ("ignore_mask", False)):
    object.__setattr__(encoder, name, value)
print(next(encoder._masked([""] * 21, True, True)).text)
"""


def test_what_fills_a_mask_comes_from_no_seed():
    """A stream that others share, or that repeats, would let one mask more move what all later records hold."""
    once, again = (
        subprocess.run([sys.executable, "-c", DRAWN], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert once.strip().isdecimal()
    assert once != again


def test_a_mask_more_moves_no_other_record(monkeypatch):
    """Given the coins of each record, what it becomes is its own matter: corpora that differ in one record differ in one."""
    monkeypatch.setattr("confide.training.encoding.entropy.choice", lambda values: values[0])
    encoder = Encoder(GPT2, 64, fillings=("Ann Lee", "555"))
    before, after = (
        encoder.encode([Example(text, "screened") for text in (first, f"call {MASK}", f"{MASK} or {MASK}", MASK)])
        for first in ("my code is 4711", f"my code is {MASK}")
    )
    assert [same(one, other) for one, other in zip(before, after, strict=True)] == [False, True, True, True]


def test_what_fills_an_ignored_mask_is_no_target():
    encoder = Encoder(GPT2, 64, ignore_mask=True, **FILLED)
    bare = Encoder(GPT2, 64, ignore_mask=True)
    for _ in range(20):
        found, other = one(encoder, f"call {MASK} now"), one(bare, f"call {MASK} now")
        assert GPT2.mask_token_id not in found.ids
        assert np.array_equal(found.ids[found.target], other.ids[other.target])


@pytest.mark.parametrize("view", ["raw", "anonymized", "segments"])
def test_only_masks_of_screened_text_are_filled(view):
    assert same(one(Encoder(GPT2, 64, **FILLED), "call 12 now", view), one(Encoder(GPT2, 64), "call 12 now", view))


def test_a_copy_that_dedup_took_away_is_not_filled():
    assert same(one(Encoder(GPT2, 64, **FILLED), MASK), one(Encoder(GPT2, 64), MASK))


def test_the_invented_values_are_the_same_every_time_and_hold_no_mask():
    code = "from confide.training.fillings import invented; print('|'.join(invented()))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "|".join(invented()) + "\n"
    assert len(invented()) == 10_000
    assert not any(MASK in value or "\n" in value or value != value.strip() for value in invented())


@pytest.mark.parametrize("length", [4, 64])
def test_a_dropped_record_has_no_target_even_if_its_mask_is_cut_off(length):
    encoder = Encoder(GPT2, length, drop_masked=True)
    assert not one(encoder, f"hello there, my name is {MASK}").target.any()
    assert one(encoder, "hello there, my name is bob").target.any()


def test_a_classifier_gets_the_tokenizers_own_frame_and_a_class():
    tokenizer = TOKENIZERS["roberta"]
    encoder = Encoder(tokenizer, 8, "classify", classes=("good", "bad"), drop_masked=True)
    found = one(encoder, "hello there, my name is bob", label="bad")
    assert (found.ids[0], found.ids[-1], len(found.ids), found.label) == (0, 2, 8, 1)
    assert np.array_equal(one(encoder, "bob", label="bad").ids, tokenizer("bob").input_ids)
    assert one(encoder, f"my {MASK}", label="bad").label == -100


def test_an_unknown_label_is_named_by_part_and_row_only():
    encoder = Encoder(GPT2, 8, "classify", classes=("good", "bad"))
    for label in ("rare disease", None):
        with pytest.raises(BadInput, match="row 3 of the private part") as error:
            one(encoder, "secret words", label=label, where="row 3 of the private part")
        assert "disease" not in str(error.value)
        assert "secret" not in str(error.value)


def test_findings_become_the_placeholders_of_their_types():
    tokenizer = gpt2()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<num>", "<name>"]})
    number, name = tokenizer.convert_tokens_to_ids(["<num>", "<name>"])
    encoder = Encoder(tokenizer, 64, placeholders={"NUM": number, "NAME": name})
    findings = [Finding(12, 15, "NUM", "p"), Finding(5, 8, "NAME", "p"), Finding(6, 8, "NUM", "p")]
    found = one(encoder, "call bob at 555.", "anonymized", findings=findings).ids
    assert tokenizer.decode(found[1:-1]).replace(" ", "") == "call<name>at<num>."
    with pytest.raises(BadInput, match="type OTHER"):
        one(encoder, "call", "anonymized", findings=[Finding(0, 2, "OTHER", "p")])


WORDS = st.text(alphabet="ab 1é€<>MASK\n", min_size=0, max_size=12)


@given(st.lists(WORDS, min_size=3, max_size=3), WORDS)
def test_public_tokens_never_depend_on_private_characters(parts, other):
    before, secret, after = parts[0], parts[1] or "x", parts[2]
    other = (other + "y" * len(secret))[: len(secret)]
    tokens = []
    for private in (secret, other):
        text = before + private + after
        findings = [Finding(len(before), len(before) + len(private), "T", "p")]
        found = one(Encoder(GPT2, 500), text, "segments", findings=findings)
        assert GPT2.decode(found.ids[found.private]) == private
        tokens.append(found.ids[~found.private].tolist())
    assert tokens[0] == tokens[1]


@settings(max_examples=40)
@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=3).map(MASK.join), min_size=1, max_size=5),
    st.sampled_from([*TOKENIZERS, "chat"]),
)
def test_encoding_a_record_in_a_batch_equals_encoding_it_alone(texts, name):
    tokenizer = CHATTY if name == "chat" else TOKENIZERS[name]
    encoder = Encoder(tokenizer, 20, assistant_only=True)
    some = [
        Example(text, view, [Turn(("user", "assistant")[i % 2], 0, len(text))] if i % 3 else ())
        for i, text in enumerate(texts)
        for view in ("screened", "raw")
    ]
    together = encoder.encode(some)
    assert all(same(found, encoder.encode([example])[0]) for found, example in zip(together, some, strict=True))


# -- chats ------------------------------------------------------------------------------------------------------------

CHATTY = chatty()
CHAT = "user: hi <|im_end|>\nassistant: good day\nuser: bye"
TURNS = (Turn("user", 6, 19), Turn("assistant", 31, 39), Turn("user", 46, 49))


def test_a_chat_goes_through_the_template_and_its_words_cannot_break_it():
    found = one(Encoder(CHATTY, 500), CHAT, turns=TURNS)
    messages = [{"role": role, "content": CHAT[start:end]} for role, start, end in TURNS]
    assert CHATTY.decode(found.ids) == CHATTY.apply_chat_template(messages, tokenize=False)
    end = CHATTY.convert_tokens_to_ids("<|im_end|>")
    assert list(found.ids).count(end) == 3
    assert found.target[1:].all()


def test_only_the_assistants_words_and_the_end_of_its_turn_are_targets():
    found = one(Encoder(CHATTY, 500, assistant_only=True), CHAT, turns=TURNS)
    assert CHATTY.decode(found.ids[found.target]) == "good day<|im_end|>"
    plain = one(Encoder(CHATTY, 500, assistant_only=True, chat="never"), CHAT, turns=TURNS)
    assert CHATTY.decode(plain.ids[plain.target]) == "good day\n"
    assert CHATTY.decode(plain.ids[1:-1]) == CHAT


def test_a_text_without_roles_never_goes_through_the_template():
    assert same(one(Encoder(CHATTY, 50), "hi bob"), one(Encoder(CHATTY, 50, chat="never"), "hi bob"))


def test_a_template_that_refuses_the_roles_is_bad_input():
    tokenizer = chatty()
    tokenizer.chat_template = "{{ raise_exception('Roles must alternate') }}"
    with pytest.raises(BadInput, match=r"row 0.*--unit document.*--tokenizer"):
        one(Encoder(tokenizer, 50), CHAT, turns=TURNS, where="row 0")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content * 3 }}",
        "{{ messages[0].content.replace('0', '99') }}",
        "{{ messages[0].content.replace('0', '9' * 5000) }}",
    ],
)
def test_a_template_that_repeats_messages_or_makes_them_up_is_refused(template):
    tokenizer = chatty()
    tokenizer.chat_template = template
    with pytest.raises(BadInput, match=r"row 0.*leaves all messages out, or repeats them.*--tokenizer"):
        one(Encoder(tokenizer, 50), CHAT, turns=TURNS, where="row 0")


def test_a_template_without_end_is_bad_input(monkeypatch):
    monkeypatch.setattr(templates, "SECONDS", 0.5)
    tokenizer = chatty()
    tokenizer.chat_template = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(BadInput, match=r"row 0.*does not end.*--tokenizer"):
        one(Encoder(tokenizer, 50), CHAT, turns=TURNS, where="row 0")


def test_the_template_sees_raw_text_where_its_turns_are(tmp_path):
    messages = [
        {"role": "user", "content": "i am 12 34\nuser: 5"},
        {"role": "assistant", "content": "77"},
        {"role": "user", "content": "ok"},
    ]
    screened = corpus(tmp_path, [{"id": "a", "messages": messages}])
    encoder = Encoder(CHATTY, 500)
    [[example]] = examples(screened, Source(view="raw"), encoder)
    assert CHATTY.decode(encoder.encode([example])[0].ids) == CHATTY.apply_chat_template(messages, tokenize=False)


# -- reading ----------------------------------------------------------------------------------------------------------

ROWS = [{"id": f"d{i}", "text": f"hello bob number {i}" if i % 2 else "good day <mask>"} for i in range(10)]


def decoded(tokens):
    return [GPT2.decode(record.ids[1:-1]) for record in tokens]


def test_views_of_a_screened_corpus_in_the_order_of_its_rows(tmp_path):
    screened = corpus(tmp_path, ROWS, dedup="off")
    assert (screened.manifest["public"], screened.manifest["private"]) == (5, 5)
    encoder = Encoder(GPT2, 64)

    def read(name, *source):
        return tokenise(screened, Source(*source), encoder, tmp_path / name)

    public = ["good day ‹mask›"] * 5
    raw = [f"hello bob number {i}" for i in range(1, 10, 2)]
    assert decoded(read("a", ("public",))) == public
    assert decoded(read("b", ("private",))) == [f"hello bob number {MASK}"] * 5
    assert decoded(read("c", ("public", "private"), "raw")) == public + raw
    segments = read("d", ("public", "private"), "segments")
    assert decoded(segments) == public + raw
    assert [GPT2.decode(record.ids[record.private]) for record in segments][5:] == list("13579")
    assert not any(record.private.any() for record in list(segments)[:5])


def test_the_screened_view_never_opens_raw_text(tmp_path, monkeypatch):
    screened = corpus(tmp_path, ROWS)
    opened = []
    real = Screened.batches

    def spied(self, part, columns=(), rows=0):
        opened.extend(columns)
        return real(self, part, columns, rows)

    monkeypatch.setattr(Screened, "batches", spied)
    for encoder in (Encoder(CHATTY, 64, assistant_only=True), Encoder(GPT2, 64)):
        for parts in (("public",), ("private",), ("public", "private")):
            list(examples(screened, Source(parts), encoder))
    assert set(opened) == {"text", "turns"}


def test_masking_by_hand_what_the_policy_finds_changes_no_token(tmp_path):
    encoder = Encoder(GPT2, 64)
    tokens = []
    for name, value in (("one", 123456), ("two", 9)):
        (tmp_path / name).mkdir()
        screened = corpus(tmp_path / name, [{"id": "a", "text": f"call {value}, bob"}])
        tokens.append(list(tokenise(screened, Source(), encoder, tmp_path / name / "tokens")))
    assert all(same(*pair) for pair in zip(*tokens, strict=True))


def test_labels_reach_the_classifier(tmp_path):
    rows = [row | {"kind": "odd" if i % 2 else "even"} for i, row in enumerate(ROWS)]
    screened = corpus(tmp_path, rows, dedup="off", fields=Fields(label="kind"))
    encoder = Encoder(GPT2, 64, "classify", classes=("odd", "even"))
    tokens = tokenise(screened, Source(), encoder, tmp_path / "tokens")
    assert [record.label for record in tokens] == [1] * 5 + [0] * 5
    assert tokens.batch([0, 9], 0)["labels"].tolist() == [1, 0]


def test_a_corpus_without_labels_is_told_how_to_get_them(tmp_path):
    encoder = Encoder(GPT2, 64, "classify", classes=("odd", "even"))
    with pytest.raises(BadInput, match="--label-field"):
        tokenise(corpus(tmp_path, ROWS), Source(), encoder, tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()


# -- files ------------------------------------------------------------------------------------------------------------


def made(lengths, seed=0):
    coins = np.random.default_rng(seed)
    return [
        Tokens(coins.integers(0, 300, n).astype(np.int32), coins.random(n) < 0.5, coins.random(n) < 0.5)
        for n in lengths
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.integers(1, 30), max_size=12), st.data())
def test_what_is_read_is_what_was_written(tmp_path_factory, lengths, data):
    records = made(lengths)
    folder = tmp_path_factory.mktemp("tokens") / "file"
    tokens = TokenFile.write(folder, iter(records))
    assert len(tokens) == len(records)
    assert tokens.lengths.tolist() == lengths
    assert all(same(*pair) for pair in zip(TokenFile.open(folder), records, strict=True))
    rows = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=6)) if records else []
    batch = tokens.batch(rows, pad_id=999)
    width = batch["input_ids"].shape[1]
    assert all(value.shape == (len(rows), width) for value in batch.values())
    assert not rows or width <= max(lengths)
    for i, row in enumerate(rows):
        ids, target, *_ = records[row]
        pad = width - len(ids)
        assert pad >= 0
        assert width % 8 == 0 or width == max(lengths)
        assert batch["input_ids"][i].tolist() == ids.tolist() + [999] * pad
        assert batch["attention_mask"][i].tolist() == [1] * len(ids) + [0] * pad
        assert batch["labels"][i].tolist() == np.where(target, ids, -100).tolist() + [-100] * pad


def test_only_the_owner_can_read_the_files_and_no_step_remains(tmp_path):
    TokenFile.write(tmp_path / "tokens", made([3, 4]))
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]
    assert stat.S_IMODE((tmp_path / "tokens").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tokens").iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["ids.bin", "flags.bin", "offsets.bin", "labels.bin", "header.json"])
@pytest.mark.parametrize("harm", ["truncate", "remove", "scramble"])
def test_a_damaged_file_is_refused(tmp_path, name, harm):
    TokenFile.write(tmp_path / "tokens", made([3, 4, 5]))
    path = tmp_path / "tokens" / name
    if harm == "truncate":
        os.truncate(path, path.stat().st_size - 2)
    elif harm == "remove":
        path.unlink()
    elif name in ("offsets.bin", "header.json"):
        path.write_bytes(b"\x07" * path.stat().st_size)
    else:
        return  # any bytes are tokens
    with pytest.raises(BadInput, match="remove it, and they are made again"):
        TokenFile.open(tmp_path / "tokens")


def test_a_killed_run_leaves_nothing_that_looks_whole(tmp_path):
    def killed():
        yield from made([3, 4])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TokenFile.write(tmp_path / "tokens", killed())
    assert not (tmp_path / "tokens").exists()
    assert len(TokenFile.write(tmp_path / "tokens", made([3]))) == 1
    assert not (tmp_path / "tokens.partial").exists()


def test_an_empty_record_and_a_mixture_of_tasks_are_not_written(tmp_path):
    for records in ([*made([2]), made([2])[0]._replace(label=1)], made([0])):
        with pytest.raises(ConfideError):
            TokenFile.write(tmp_path / "tokens", records)


def test_a_batch_beyond_the_file_is_an_error(tmp_path):
    tokens = TokenFile.write(tmp_path / "tokens", made([3, 4]))
    for rows in ([2], [-1]):
        with pytest.raises(IndexError):
            tokens.batch(rows, 0)
    with pytest.raises(IndexError):
        tokens[2]
    assert same(tokens[-1], tokens[1])


def test_a_second_run_finds_the_tokens_of_the_first_and_no_others(tmp_path):
    screened = corpus(tmp_path, ROWS)
    encoder, source = Encoder(GPT2, 64), Source()
    tokenise(screened, source, encoder, tmp_path / "tokens")
    stamp = (tmp_path / "tokens" / "ids.bin").stat().st_mtime_ns
    counts = []
    tokenise(screened, source, encoder, tmp_path / "tokens", counts.append)
    assert (tmp_path / "tokens" / "ids.bin").stat().st_mtime_ns == stamp
    assert sum(counts) == 10
    with pytest.raises(BadInput, match="another"):
        tokenise(screened, source, Encoder(GPT2, 63), tmp_path / "tokens")


def test_the_fingerprint_tells_everything_apart_that_decides_the_tokens(tmp_path):
    screened = corpus(tmp_path, ROWS)
    base = fingerprint(screened, Source(), Encoder(gpt2(), 64))
    tokenizer = gpt2()
    tokenizer(["a", "b c"], padding=True, truncation=True, max_length=2)  # leaves settings behind that we do not use
    assert fingerprint(screened, Source(), Encoder(tokenizer, 64)) == base
    other = Screened(screened.folder, screened.manifest | {"digest": "0"})
    names = {
        base,
        fingerprint(other, Source(), Encoder(GPT2, 64)),
        fingerprint(screened, Source(("private",)), Encoder(GPT2, 64)),
        fingerprint(screened, Source(view="raw"), Encoder(GPT2, 64)),
        fingerprint(screened, Source(), Encoder(GPT2, 64, ignore_mask=True)),
        fingerprint(screened, Source(), Encoder(GPT2, 64, **FILLED)),
        fingerprint(screened, Source(), Encoder(CHATTY, 64)),
        fingerprint(screened, Source(), Encoder(TOKENIZERS["llama"], 64)),
    }
    assert len(names) == 8


def test_bad_encoders_are_refused_in_clear_words():
    tokenizer = gpt2()
    tokenizer.add_tokens(["<num>"])
    plain = tokenizer.convert_tokens_to_ids("<num>")
    for match, bad in [
        ("special tokens", {"placeholders": {"NUM": plain}}),
        ("no room", {"max_length": 2}),
        ("two classes", {"task": "classify", "classes": ("one",)}),
    ]:
        with pytest.raises(BadInput, match=match):
            Encoder(**{"tokenizer": tokenizer, "max_length": 64} | bad)
    with pytest.raises(BadInput, match="in ordinary text"):
        Encoder(word_level(), 64)
    with pytest.raises(BadInput, match="a view is"):
        Source(view="secret")
    with pytest.raises(BadInput, match="roles"):
        next(examples(None, Source(view="segments"), Encoder(GPT2, 9, assistant_only=True)))


@settings(max_examples=80)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["user", "assistant"]), st.text(alphabet="a1 \n:", max_size=6) | st.just("\nuser: 1")
        ),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_turns_are_found_again_in_raw_text(said, across):
    if not any(words.strip() for _, words in said):
        return
    record = make_record({"m": [{"role": r, "content": w} for r, w in said]}, Columns("m", None, None), "d")
    policy = Across() if across else load("digits")
    treated = treat(record, policy)
    found = raw_turns(record.text, treated.findings, treated.text, treated.turns)
    if across:  # where a finding covers the border of two turns, several borders may do
        assert [turn.role for turn in found] == [turn.role for turn in record.turns]
    else:
        assert found == record.turns


class Across(Policy):
    """Finds from one digit to the next, over the borders of turns."""

    def find(self, text):
        return [Finding(*found.span(), "T", "p") for found in re.finditer(r"1[^1]*1", text)]


def llama_chat():
    """Turns end with a space and the end of a text, as in Llama 2's template."""
    tokenizer = llama()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
    )
    return tokenizer


def test_a_special_token_that_ends_the_turn_is_a_target_also_behind_a_space():
    tokenizer = llama_chat()
    found = one(Encoder(tokenizer, 500, assistant_only=True), CHAT, turns=TURNS)
    assert list(found.ids[found.target]).count(tokenizer.eos_token_id) == 1
    assert found.ids[found.target][-1] == tokenizer.eos_token_id
    behind = np.flatnonzero(found.target)[-1] + 1
    assert found.ids[behind] == tokenizer.bos_token_id  # the next turn's beginning is none
    assert not found.target[behind:].any()


def test_without_a_special_token_the_first_one_behind_the_turn_is_a_target():
    tokenizer = chatty()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}"
    found = one(Encoder(tokenizer, 500, assistant_only=True), CHAT, turns=TURNS)
    assert tokenizer.decode(found.ids[found.target]) == "good day\n"


def test_messages_name_what_a_user_can_say():
    tokenizer = chatty()
    tokenizer.chat_template = "nothing of it"
    with pytest.raises(BadInput, match=r"row 0.*leaves all messages out.*--tokenizer"):
        one(Encoder(tokenizer, 50), CHAT, turns=TURNS, where="row 0")
    with pytest.raises(BadInput, match="--classes"):
        Encoder(GPT2, 8, "classify", classes=("one",))
