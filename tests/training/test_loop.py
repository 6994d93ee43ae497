"""What a run shows: nothing of a private record, on disk or on the screen, whether it ends well or badly."""

import json
import stat

import numpy as np
import pytest
import torch

from confide.cli import main
from confide.dp import PrivateGradients
from confide.training import make_plan, telemetry, train_plan
from confide.training.loop import by_length
from confide.training.phases import slots

GPT = "gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2"
# guarantees §7, word by word; training_loss is of methods that promise nothing
MAY_SHOW = {
    "phase", "epoch", "slot", "public_step", "private_step", "learning_rate", "private_learning_rate", "public_loss", "training_loss",
    "noised_gradient_norm", "validation_loss", "validation_accuracy", "epsilon", "delta",
    "epsilon_of",
}  # fmt: skip


@pytest.fixture(scope="session")
def unspeakable(chats, screened):
    """Every secret, and every private record, that no public record happens to hold too."""
    public = "\n".join(row for batch in screened.batches("public", ("text",)) for row in batch["text"].to_pylist())
    private = [row for batch in screened.batches("private", ("text", "raw")) for row in batch.to_pylist()]
    found = {chat.text[start:end] for chat in chats for start, end, _ in chat.secrets}
    found |= {row[name] for row in private for name in ("text", "raw")}
    found = {text for text in found if len(text) > 6 and text not in public and text.replace("<MASK>", "").strip(" .")}
    assert len(found) > 50
    return sorted(found)


@pytest.fixture(scope="session")
def silent_about(unspeakable):
    def check(text, where):
        for secret in unspeakable:
            assert secret not in text, where
            assert json.dumps(secret)[1:-1] not in text, where

    return check


def test_nothing_outside_of_the_sensitive_folders_tells_of_a_private_record(finished, silent_about):
    looked = 0
    for path in finished.folder.rglob("*"):
        inside = path.relative_to(finished.folder).parts
        if path.is_dir() or inside[0] == "screened":
            continue
        silent_about(path.read_bytes().decode("latin-1"), path)
        silent_about(path.read_bytes().decode("utf-8", errors="replace"), path)
        looked += 1
    assert looked >= 10


def test_telemetry_holds_what_may_be_shown_and_nothing_else(finished):
    assert telemetry.ALLOWED == MAY_SHOW
    keys = {key for line in finished.telemetry() for key in line}
    assert keys <= MAY_SHOW
    assert {"public_loss", "noised_gradient_norm", "epsilon", "validation_loss"} <= keys
    assert all(isinstance(value, (int, float, str)) for line in finished.telemetry() for value in line.values())
    assert {line["phase"] for line in finished.telemetry()} == {"train"}


@pytest.mark.parametrize("name", ["private_loss", "clip_fraction", "batch_size", "seconds", "seed", "gradient_norm"])
def test_telemetry_refuses_anything_else(tmp_path, name):
    with pytest.raises(AssertionError, match=name):
        telemetry.Telemetry(tmp_path / "telemetry.jsonl", 0).write(slot=1, **{name: 1.0})


def test_no_file_holds_draws_seeds_or_sizes_of_batches(finished, screened, small, tmp_path, monkeypatch):
    drawn, release = [], PrivateGradients.release

    def spy(self, step):
        drawn.append(len(step.indices))
        release(self, step)

    monkeypatch.setattr(PrivateGradients, "release", spy)
    run = train_plan(make_plan(screened, **small(private_batch_size=50, epochs=1)), tmp_path / "run")
    values = [
        value
        for line in run.telemetry()
        for name, value in line.items()
        if name not in ("slot", "public_step", "private_step", "epoch")
    ]
    # Sizes that nothing public has: an expected batch, say, is in the plan
    odd = set(map(float, drawn)) - {
        float(value) for value in _values(make_plan(screened, **small(private_batch_size=50, epochs=1)).summary())
    }
    assert odd, "all batches had public sizes: draw others"
    assert not odd & {float(value) for value in values if isinstance(value, int | float)}
    for path in (run.folder / "ledger.jsonl", *run.folder.glob("checkpoints/0*/state.json")):
        keys = {key for line in path.read_text().splitlines() for key in _keys(json.loads(line))}
        assert not [
            key for key in keys for word in ("seed", "indices", "drawn", "rng", "timing", "second") if word in key
        ]


def _values(value):
    if isinstance(value, dict | list | tuple):
        return [one for part in (value.values() if isinstance(value, dict) else value) for one in _values(part)]
    return [value] if isinstance(value, int | float) else []


def _keys(value):
    if isinstance(value, dict):
        return {*value, *(key for one in value.values() for key in _keys(one))}
    return {key for one in value for key in _keys(one)} if isinstance(value, list) else set()


def test_folders_are_for_their_owner_alone(finished):
    for name in (".", "screened", "checkpoints"):
        assert stat.S_IMODE((finished.folder / name).stat().st_mode) & 0o077 == 0, name


def arguments(screened, out, **choices):
    given = {"model": "lstm:hidden_size=16,embedding_size=16", "vocabulary-size": 300, "max-length": 32, "epochs": 1}
    given |= {"delta": 1e-3, "noise": 1.0, "private-batch-size": 40, **choices}
    return ["train", str(screened.folder), "-o", str(out), *(str(x) for k, v in given.items() for x in (f"--{k}", v))]


def run_cli(capfd, *words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    out, err = capfd.readouterr()
    return end.value.code or 0, out, err


def test_the_command_shows_public_quantities(screened, tmp_path, capfd, silent_about):
    code, out, err = run_cli(capfd, *arguments(screened, tmp_path / "run"), "--json")
    assert code == 0, err
    silent_about(out + err, "the command's output")
    found = json.loads(out)
    assert (
        found["epsilon"] == json.loads((tmp_path / "run" / "certificate.json").read_text())["guarantees"][0]["epsilon"]
    )
    code, out, err = run_cli(capfd, *arguments(screened, tmp_path / "other"))
    assert code == 0
    silent_about(out + err, "the command's output")
    assert "epsilon" in out


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, IndexError, KeyError, UnicodeError, torch.OutOfMemoryError])
def test_an_error_in_a_private_step_does_not_quote_text(
    screened, tmp_path, capfd, monkeypatch, unspeakable, silent_about, kind
):
    def fails(self, batch, *_, **__):
        raise kind(f"could not handle {unspeakable[0]!r} of {len(batch)} records")

    monkeypatch.setattr(PrivateGradients, "accumulate", fails)
    code, out, err = run_cli(capfd, *arguments(screened, tmp_path / "run", epochs=1))
    assert code == 1
    assert "Traceback" not in out + err
    silent_about(out + err, "an error")


def test_the_slots_of_a_phase_are_a_function_of_public_numbers():
    for order in ("public-first", "private-first", "alternate"):
        for epochs, public, private in ((1, 0, 3), (2, 3, 5), (3, 4, 1), (5, 1, 12), (2, 2, 0)):
            made = list(slots(0, epochs, public, private, order))
            assert [s.step for s in made if s.kind == "private"] == list(range(private))
            assert [s.step for s in made if s.kind == "public"] == list(range(public * epochs))
            assert [s.epoch for s in made if s.kind == "epoch"] == list(range(epochs))
            per_epoch = [sum(s.kind == "private" and s.epoch == e for s in made) for e in range(epochs)]
            assert max(per_epoch) - min(per_epoch) <= 1


def test_bf16_runs_and_keeps_single_precision_weights(screened, small, tmp_path):
    run = train_plan(make_plan(screened, **small(model=GPT, precision="bf16", epochs=1)), tmp_path / "run")
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in run.model().parameters())


def test_microbatches_hold_every_record_once_and_no_more_tokens_than_their_share():
    lengths = np.random.default_rng(0).integers(1, 65, 1000)
    drawn = np.flatnonzero(np.random.default_rng(1).random(1000) < 0.4)
    pieces = list(by_length(lengths, drawn, 4, 64))
    assert sorted(np.concatenate(pieces)) == list(drawn)
    for piece in pieces:
        assert len(piece) <= 4 or len(piece) * lengths[piece].max() <= 4 * 64
        assert len(piece) <= 4 * 8
    assert len(pieces) < len(drawn) / 4 * 0.7
    assert list(by_length(lengths, drawn[:0], 4, 64)) == []
    assert [len(piece) for piece in by_length(np.full(10, 99), np.arange(10), 4, 64)] == [4, 4, 2]
