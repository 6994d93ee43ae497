"""A checkpoint is whole or it is not there, and never outlives the ledger that pays for it."""

import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from confide.accounting import LedgerWriter, PoissonGaussian
from confide.errors import BadInput, ConfideError, Contradiction
from confide.training import checkpoints
from confide.training.checkpoints import check_ledger, fingerprint, latest, load, save
from confide.training.optim import make_optimizer, set_rate


def gpt2(width=16):
    torch.manual_seed(1)
    shape = {"vocab_size": 50, "n_positions": 16, "n_embd": width, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def lora():
    torch.manual_seed(1)
    return get_peft_model(gpt2(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.lstm, self.norm = nn.Embedding(50, 8), nn.LSTM(8, 8, 2, batch_first=True), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 50)
        self.head.weight = self.embed.weight

    def forward(self, input_ids):
        return self.head(self.norm(self.lstm(self.embed(input_ids))[0].transpose(1, 2)).transpose(1, 2))


MODELS = {"gpt2": gpt2, "lora": lora, "recurrent": Recurrent}
OPTIMIZERS = {"sgd": {}, "sgd with momentum": {"momentum": 0.9}, "adam": {}, "adamw": {"weight_decay": 0.1}}


def optimizer_of(model, name="adamw"):
    return make_optimizer(model.parameters(), name.split()[0], **OPTIMIZERS[name])


def train(model, optimizer, slots):
    """Steps whose batches are functions of their number, as if coins were fixed."""
    for slot in slots:
        ids = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(slot))
        output = model(ids)
        logits = output if isinstance(output, torch.Tensor) else output.logits
        nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        set_rate(optimizer, 0.1 / (slot + 1))
        optimizer.step()
        optimizer.zero_grad()


def small():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def write(folder, slots, keep=2, value=None):
    model = small()
    with torch.no_grad():
        model.weight.fill_(slots if value is None else value)
    return save(folder, model, None, {"slots": slots}, slots=slots, keep=keep)


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", MODELS)
def test_a_resumed_run_ends_in_the_same_bytes_as_one_that_was_never_stopped(tmp_path, make, name):
    model = MODELS[make]()
    optimizer = optimizer_of(model, name)
    train(model, optimizer, range(3))
    save(tmp_path / "a", model, optimizer, {"epoch": 0}, slots=3)
    train(model, optimizer, range(3, 6))
    save(tmp_path / "b", model, optimizer, {"epoch": 1}, slots=6)

    resumed = MODELS[make]()
    with torch.no_grad():
        for parameter in resumed.parameters():
            parameter.add_(1.0)
    again = optimizer_of(resumed, name)
    found = latest(tmp_path / "a")
    assert (found.slots, found.state, found.warnings) == (3, {"epoch": 0}, ())
    load(found, resumed, again, ledger_path=None)
    train(resumed, again, range(3, 6))
    save(tmp_path / "c", resumed, again, {"epoch": 1}, slots=6)
    assert content(tmp_path / "b") == content(tmp_path / "c")


def test_the_same_state_saved_twice_gives_the_same_bytes(tmp_path):
    model = gpt2()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    for name in ("a", "b"):
        save(tmp_path / name, model, optimizer, {"b": 1, "a": 2}, {"length": 4, "head": "x"}, slots=2)
        time.sleep(0.01)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_tied_weight_is_kept_once_and_stays_tied(tmp_path):
    model = gpt2()
    path = save(tmp_path, model, None, {}, slots=1)
    size = sum(p.numel() * 4 for p in model.parameters())
    assert (path / "model.safetensors").stat().st_size < size + 4000
    other = gpt2()
    load(latest(tmp_path), other, None, ledger_path=None)
    assert other.lm_head.weight is other.transformer.wte.weight


def test_only_what_is_trained_is_kept_if_asked(tmp_path):
    model = lora()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    path = save(tmp_path, model, optimizer, {}, slots=2, trained_only=True)
    assert (path / "model.safetensors").stat().st_size < 4000
    other = lora()
    load(latest(tmp_path), other, optimizer_of(other), ledger_path=None)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_an_optimizer_goes_on_with_another_implementation_of_itself(tmp_path):
    model = gpt2()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    save(tmp_path, model, optimizer, {}, slots=2)
    other = gpt2()
    plain = torch.optim.AdamW(other.parameters(), lr=1.0, fused=False, foreach=False)
    load(latest(tmp_path), other, plain, ledger_path=None)
    group = plain.param_groups[0]
    assert (group["fused"], group["weight_decay"], group["lr"]) == (False, 0.1, 0.05)
    train(model, optimizer, [2])
    train(other, plain, [2])
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_only_the_owner_may_read_and_nothing_is_pickled(tmp_path):
    old = os.umask(0)
    try:
        path = write(tmp_path / "checkpoints", 1)
    finally:
        os.umask(old)
    assert {p.stat().st_mode & 0o777 for p in (path, path.parent)} == {0o700}
    assert {p.name: p.stat().st_mode & 0o777 for p in path.iterdir()} == {
        "model.safetensors": 0o600,
        "optimizer.safetensors": 0o600,
        "state.json": 0o600,
    }


def test_the_newest_are_kept(tmp_path):
    for slots in (1, 5, 20, 100_000_000, 100_000_001):
        write(tmp_path, slots)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["100000000", "100000001"]
    assert latest(tmp_path).slots == 100_000_001
    assert latest(tmp_path / "nowhere") is None


@settings(max_examples=40)
@given(st.data())
def test_any_changed_byte_is_seen_and_the_one_before_is_used(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("checkpoints")
    write(folder, 1)
    path = write(folder, 2)
    victim = path / data.draw(st.sampled_from(["model.safetensors", "optimizer.safetensors", "state.json"]))
    raw = victim.read_bytes()
    at, flip = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(1, 255))
    victim.write_bytes(raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :])
    found = latest(folder)
    assert found.slots == 1
    assert "00000002" in found.warnings[0]
    assert victim.name in found.warnings[0]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_if_all_are_damaged_the_run_does_not_start_over_in_silence(tmp_path, name):
    for slots in (1, 2):
        (write(tmp_path, slots) / name).unlink()
    with pytest.raises(BadInput, match=r"00000002.*00000001.*backup.*stays spent"):
        latest(tmp_path)


def test_a_damaged_checkpoint_is_replaced_when_the_run_comes_by_again(tmp_path):
    for slots in (1, 2, 3):
        write(tmp_path, slots, keep=3)
    for slots in (2, 3):
        (tmp_path / f"{slots:08d}" / "model.safetensors").write_bytes(b"")
    assert latest(tmp_path).slots == 1
    write(tmp_path, 2, keep=1, value=7.0)
    assert [p.name for p in tmp_path.iterdir()] == ["00000002"]  # the line that held 3 was given up
    model = small()
    load(latest(tmp_path), model, None, ledger_path=None)
    assert float(model.weight.detach()[0, 0]) == 7.0


class Killed(BaseException):
    pass


CALLS = ["mkdir", "fsync", "rename", "chmod", "replace", "rmdir", "unlink", "open"]


@pytest.mark.parametrize("again", [False, True], ids=["a new one", "one of the same number"])
def test_a_save_that_dies_before_any_call_to_the_system_leaves_a_whole_checkpoint(tmp_path, monkeypatch, again):
    """Die at the first, second, third … call, and do not even clean up, as after kill -9."""
    for at in itertools.count():
        folder = tmp_path / str(at)
        write(folder, 1)
        if again:
            write(folder, 2, value=5.0)
        calls = itertools.count()

        def dying(function, calls=calls, at=at):
            def call(*arguments, **options):
                if next(calls) >= at:
                    raise Killed
                return function(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, dying(getattr(os, name)))
            try:
                write(folder, 2)
                done = True
            except Killed:
                done = False
        model = small()
        found = latest(folder)
        load(found, model, None, ledger_path=None)
        value = float(model.weight.detach()[0, 0])
        assert value in ((5.0, 2.0) if again else (1.0, 2.0))
        assert found.slots == (2 if again else int(value))
        write(folder, 3)
        assert not list(folder.glob("*.partial"))
        if done:
            assert value == 2.0
            break
    assert at > 10


def _save_forever(folder, started):
    torch.set_num_threads(1)
    model = nn.Linear(300, 300)
    for slots in itertools.count(1):
        with torch.no_grad():
            model.weight.fill_(slots)
        save(folder, model, None, {}, slots=slots)
        os.write(started, slots.to_bytes(4, "big"))


def test_kill_nine_at_any_moment_leaves_the_last_acknowledged_checkpoint_or_a_newer_one(tmp_path):
    moments = random.Random(0)
    for trial in range(4):
        folder = tmp_path / str(trial)
        reader, sender = os.pipe()
        process = multiprocessing.get_context("fork").Process(target=_save_forever, args=(folder, sender))
        process.start()
        os.close(sender)
        last = int.from_bytes(os.read(reader, 4), "big")
        time.sleep(moments.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while word := os.read(reader, 4):
            last = int.from_bytes(word, "big")
        os.close(reader)
        found, model = latest(folder), nn.Linear(300, 300)
        load(found, model, None, ledger_path=None)
        assert found.slots in (last, last + 1)
        assert bool((model.weight == found.slots).all())


def _save_with_little_room(folder, answer):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        save(folder, nn.Linear(300, 300), None, {}, slots=2)
    except ConfideError as error:
        os.write(answer, str(error).encode())


def test_a_full_disk_is_explained_and_costs_no_checkpoint(tmp_path):
    write(tmp_path, 1)
    before = content(tmp_path)
    reader, sender = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_save_with_little_room, args=(tmp_path, sender))
    process.start()
    process.join()
    os.close(sender)
    message = os.read(reader, 4000).decode()
    os.close(reader)
    assert "cannot write the checkpoint" in message
    assert "File too large" in message
    assert "older checkpoints are intact" in message
    assert content(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["00000001"]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_disk_that_fails_late_is_explained_too(tmp_path, monkeypatch, call):
    write(tmp_path, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(ConfideError, match="No space left on device; older checkpoints are intact"):
            write(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["00000001"]
    assert latest(tmp_path).slots == 1


@pytest.fixture
def ledger(tmp_path):
    """A run of three paid steps, with its checkpoint after two of them."""
    path = tmp_path / "ledger.jsonl"
    model = small()
    with LedgerWriter.create(path, {}, [("train", PoissonGaussian(0.1, 1.0, 3))]) as writer:
        for step in range(3):
            writer.append(PoissonGaussian(0.1, 1.0))
            if step == 1:
                save(tmp_path / "c", model, None, {}, {"length": writer.length, "head": writer.head}, slots=2)
    return path, latest(tmp_path / "c")


def test_a_ledger_that_went_on_is_still_the_ledger_of_its_checkpoint(ledger):
    path, checkpoint = ledger
    assert checkpoint.ledger["length"] == 3
    load(checkpoint, small(), None, ledger_path=path)
    with open(path, "ab") as file:
        file.write(b'{"torn')
    load(checkpoint, small(), None, ledger_path=path)


def test_a_ledger_that_was_cut_off_replaced_or_removed_stops_the_run(ledger, tmp_path):
    path, checkpoint = ledger
    model = small()
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    with pytest.raises(Contradiction, match="cut off"):
        load(checkpoint, model, None, ledger_path=path)
    path.unlink()
    with pytest.raises(Contradiction, match="forgotten"):
        load(checkpoint, model, None, ledger_path=path)
    with pytest.raises(Contradiction, match="forgotten"):
        load(checkpoint, model, None, ledger_path=None)
    with LedgerWriter.create(path, {"other": 1}, []) as writer:
        for _ in range(3):
            writer.append(PoissonGaussian(0.1, 1.0))
    with pytest.raises(Contradiction, match="replaced"):
        load(checkpoint, model, None, ledger_path=path)
    assert bool((model.weight == before + 1).all()), "nothing was restored"


def test_a_checkpoint_without_a_ledger_does_not_belong_to_a_run_that_has_one(ledger, tmp_path):
    path, _ = ledger
    write(tmp_path / "plain", 1)
    check_ledger(latest(tmp_path / "plain"), tmp_path / "none.jsonl")
    with pytest.raises(Contradiction, match="not this run's"):
        load(latest(tmp_path / "plain"), small(), None, ledger_path=path)


def test_another_model_or_optimizer_is_named_and_left_as_it_is(tmp_path):
    model = gpt2()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    save(tmp_path, model, optimizer, {}, slots=2)
    found = latest(tmp_path)
    for other, words in (
        (gpt2(width=32), r"\(16,\).*\(32,\)|\(50, 16\).*\(50, 32\)"),
        (Recurrent(), "differ in .* tensors"),
        (gpt2().to(torch.bfloat16), "float32.*bfloat16"),
    ):
        before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
        with pytest.raises(BadInput, match=words):
            load(found, other, optimizer_of(other), ledger_path=None)
        assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())
    same = gpt2()
    with pytest.raises(BadInput, match=r"AdamW on .* this run has SGD"):
        load(found, same, optimizer_of(same, "sgd"), ledger_path=None)
    with pytest.raises(BadInput, match="does not have"):
        save(tmp_path, model, optimizer_of(same), {}, slots=3)
    save(tmp_path / "b", model, None, {}, slots=1)
    with pytest.raises(BadInput, match="without an optimizer"):
        load(latest(tmp_path / "b"), same, optimizer_of(same), ledger_path=None)


def test_other_settings_are_another_run(tmp_path):
    mark = fingerprint({"learning_rate": 0.1, "method": "crt"})
    assert mark == fingerprint({"method": "crt", "learning_rate": 0.1})
    save(tmp_path, small(), None, {}, slots=1, fingerprint=mark)
    load(latest(tmp_path), small(), None, ledger_path=None, fingerprint=mark)
    with pytest.raises(BadInput, match="other settings"):
        load(latest(tmp_path), small(), None, ledger_path=None, fingerprint=fingerprint({"method": "plain"}))


def test_state_that_is_not_plain_is_refused(tmp_path):
    for state in ({"x": float("nan")}, {"x": torch.ones(2)}, {"x": {1, 2}}):
        with pytest.raises(BadInput, match="plain JSON"):
            save(tmp_path, small(), None, state, slots=1)
    with pytest.raises(BadInput, match="keep"):
        save(tmp_path, small(), None, {}, slots=1, keep=0)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_a_later_format_asks_for_a_newer_confide(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "FORMAT", 2)
        write(tmp_path, 1)
    with pytest.raises(BadInput, match="newer confide"):
        latest(tmp_path)


def test_what_is_not_a_checkpoint_is_left_alone(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "0001").mkdir()
    write(tmp_path, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000001", "0001", "notes"]
    assert json.loads((tmp_path / "00000001" / "state.json").read_text())["slots"] == 1
    shutil.rmtree(tmp_path / "00000001")
    assert latest(tmp_path) is None


def test_a_wrapped_models_checkpoint_fits_the_model_itself(tmp_path):
    model, wrapper = small(), nn.Module()
    wrapper._orig_mod = model  # as torch.compile does
    save(tmp_path, wrapper, None, {}, slots=1)
    other = small()
    with torch.no_grad():
        other.weight.zero_()
    load(latest(tmp_path), other, None, ledger_path=None)
    assert torch.equal(other.weight, model.weight)
