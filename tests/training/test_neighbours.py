"""What a reviewer broke: neighbouring corpora that differed in more than the certificate said, and refusals that were missing."""

import json
from collections import Counter

import pytest
import yaml

import confide.screening.batches as batches
from confide.errors import BadInput, Contradiction, Refused
from confide.records import MARK, Fields
from confide.screening import screen
from confide.training import Options, beginning, loop, make_plan, plan_of, train_plan

SECRET = "Zorro"
GPT = "gpt2-tiny:num_hidden_layers=1,hidden_size=8,num_attention_heads=1"


def masked(record):
    """The neighbour of a record: turns behind the secret move with it."""
    at, less = record.text.index(SECRET), len(MARK) - len(SECRET)
    moved = [t._replace(start=t.start + less * (t.start > at), end=t.end + less * (t.end > at)) for t in record.turns]
    return record._replace(text=record.text.replace(SECRET, MARK), turns=tuple(moved))


@pytest.fixture
def neighbours(tmp_path, monkeypatch):
    """A function from rows and choices to the private examples of a corpus and of its neighbour, and the stated k."""

    def go(rows, choices, **screening):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "words.txt").write_text("hello call there\n" * 5)
        found, own = [], batches.split
        for name in ("one", "other"):
            left = [name == "other"]

            def split(document, *rest, left=left):
                records = own(document, *rest)
                if left[0] and SECRET in document.text:
                    left[0] = False
                    return [masked(record) if SECRET in record.text else record for record in records]
                return records

            monkeypatch.setattr(batches, "split", split)
            screened = screen(str(tmp_path / "rows.jsonl"), "digits", tmp_path / name, workers=1, **screening)
            monkeypatch.setattr(batches, "split", own)
            options = {"noise": 2.0, "delta": 1e-5, "validation_share": 0.0, "private_batch_size": 2, "epochs": 1}
            plan = make_plan(screened, **{"model": GPT, **options, **choices})
            prepared = beginning.prepare_run(plan, tmp_path / f"run-{name}", False, lambda records: None)
            private = prepared.streams(plan.phases[-1])[1]
            found.append(
                Counter((tuple(private.tokens[int(row)].ids), private.tokens[int(row)].label) for row in private.rows)
            )
            prepared.close()
        return (found[0] - found[1]).total(), plan.setting.k_missed

    return go


def test_a_label_does_not_show_which_copy_was_blanked(neighbours, tmp_path):
    rows = [{"text": "call Zorro", "y": label} for label in ("good", "bad")]
    rows += [{"text": f"hello {i}", "y": "good"} for i in "abcdefgh"]
    choices = {
        "task": "classify",
        "classes": ("good", "bad"),
        "vocabulary_from": str(tmp_path / "words.txt"),
        "vocabulary_size": 300,
    }
    for more in ({}, {"mask_records": "drop"}):
        distance, k = neighbours(rows, {"method": "crt", **choices, **more}, fields=Fields(label="y"))
        assert distance <= k == 1
        for folder in ("one", "other", "run-one", "run-other"):
            (tmp_path / folder).rename(tmp_path / f"{folder}-{len(more)}")


def chat_tokenizer(folder):
    from confide.models.tokens import train_bpe

    tokenizer = train_bpe(["hello call fine thanks"] * 5, 300, "")
    tokenizer.chat_template = "{% for m in messages %}[{{m.role}}] {{m.content}}|{% endfor %}"
    tokenizer.save_pretrained(folder)
    return str(folder)


def chat(*turns):
    return {"messages": [{"role": role, "content": words} for role, words in turns]}


def test_turns_do_not_show_which_copy_was_blanked(neighbours, tmp_path):
    rows = [chat(("user", "call Zorro"), ("assistant", "ok")), chat(("user", "call Zorro\nassistant: ok"))]
    rows += [chat(("user", f"hello {i}"), ("assistant", "yes")) for i in "abcdefgh"]
    distance, k = neighbours(rows, {"method": "crt", "tokenizer": chat_tokenizer(tmp_path / "tokenizer")})
    assert distance <= k == 1


def test_roles_of_raw_chats_need_a_screening_without_dedup(neighbours, tmp_path):
    rows = [chat(("user", f"call {who}"), ("assistant", "ok")) for who in ("Zorro", "555123")]
    rows += [chat(("user", f"hello {i}"), ("assistant", "yes")) for i in "abcdefgh"]
    choices = {"method": "dpsgd", "tokenizer": chat_tokenizer(tmp_path / "tokenizer")}
    with pytest.raises(Refused, match="--dedup off"):
        neighbours(rows, choices)
    assert not (tmp_path / "run-one").exists()
    (tmp_path / "one").rename(tmp_path / "before")
    distance, k = neighbours(rows, choices, dedup="off")
    assert distance <= k == 1


def test_a_model_for_chats_trains_on_raw_text_without_roles(neighbours, tmp_path):
    rows = [{"text": f"call {who}"} for who in ("Zorro", "555123", *"abcdefgh")]
    distance, k = neighbours(rows, {"method": "dpsgd", "tokenizer": chat_tokenizer(tmp_path / "tokenizer")})
    assert distance <= k == 1


def test_sdp_is_refused_where_the_policy_never_saw_the_duplicates(screen_texts, small):
    screened = screen_texts(
        ["my phone is 555123 ok"] * 3 + ["the parcel was sent"], "digits", "digits", dedup="exact", order="dedup-redact"
    )
    for method in ("sdp", "anonymized"):
        with pytest.raises(Refused, match="redact-dedup"):
            make_plan(screened, **small(method=method))


def test_jft_is_refused_where_redaction_reaches_beyond_the_record(screen_texts, small):
    texts = ["my phone is 555123. the parcel was sent.", "we hope that all of it was fine."]
    whole = screen_texts(texts, "digits", "digits", unit="sentence", context="group")
    with pytest.raises(Refused, match="whole documents"):
        make_plan(whole, **small(method="jft"))
    parts = screen_texts(texts, "digits", "digits", dedup="exact", dedup_unit="sentence")
    with pytest.raises(Refused, match="--dedup-unit"):
        make_plan(parts, **small(method="jft", phase1="noised", phase1_noise=1.0))


def test_a_subset_screened_by_hand_leaves_no_part_public(screened, small, tmp_path):
    (tmp_path / "hand.jsonl").write_text(json.dumps({"text": "the parcel was sent"}) + "\n")
    plan = make_plan(
        screened, **small(method="jft", phase1="hand-screened", screened_by_hand=str(tmp_path / "hand.jsonl"))
    )
    with pytest.raises(Refused, match="vocabulary"):
        train_plan(plan, tmp_path / "run")
    assert plan.summary()["public"] == 0


def test_tuning_runs_are_counted_with_the_noise_that_they_had(small):
    with pytest.raises(BadInput, match="--noise"):
        Options(**small(epsilon=2.0, delta=1e-3, tuning_runs=3))


def test_weights_and_vocabularies_of_a_run_on_the_same_records_are_refused(screened, small, tmp_path):
    first = train_plan(make_plan(screened, **small(epochs=1)), tmp_path / "first")
    model = str(first.folder / "model")
    for choices in ({"model": model}, {"tokenizer": model}):
        with pytest.raises(Refused, match="very records"):
            train_plan(make_plan(screened, **small(**choices)), tmp_path / "second")


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    "change",
    [
        {"mask_records": "drop"},
        {"method": "dpsgd"},
        {"method": "plain", "noise": None, "delta": None},
        {"clip_norm": 2.0},
    ],
)
def test_a_run_is_not_resumed_as_another(screened, small, tmp_path, monkeypatch, change):
    steps = loop.Work.private_step

    def die(self, slot):
        if slot.step == 2:
            raise Killed
        steps(self, slot)

    monkeypatch.setattr(loop.Work, "private_step", die)
    (tmp_path / "words.txt").write_text("hello call there\n" * 5)
    with pytest.raises(Killed):
        train_plan(
            make_plan(screened, **small(epochs=1, vocabulary_from=str(tmp_path / "words.txt"))), tmp_path / "run"
        )
    path = tmp_path / "run" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["options"] |= change
    path.write_text(yaml.safe_dump(config))
    with pytest.raises((Refused, Contradiction)):
        train_plan(plan_of(tmp_path / "run"), tmp_path / "run", resume=True)


def test_what_sdp_promises_is_called_selective(screened, small):
    found = make_plan(screened, **small(method="sdp")).summary()
    assert found["adjacency"] == "selective"
    assert "must not be compared" in found["guarantees"][0]["sentence"]


def test_a_record_that_is_held_out_stays_out_whatever_part_it_is_in(screen_texts, small):
    """Masking a secret in a public record makes it private: to dpsgd as many records train as before, and the same."""
    texts = ["the parcel was sent to you last week"] * 16
    sizes = set()
    for flagged in range(16):
        changed = [text if i != flagged else f"{text} 7" for i, text in enumerate(texts)]
        plan = make_plan(
            screen_texts(changed, "digits", "digits"),
            **small(method="dpsgd", validation_share=0.5, private_batch_size=2),
        )
        assert plan.screened.manifest["private"] == 1
        sizes.add((plan.sizes["public"] + plan.sizes["private"], plan.private["train"]))
    assert len(sizes) == 1
