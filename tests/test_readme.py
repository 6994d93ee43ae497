"""The README's code and commands do what they say."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from confide.cli import main
from confide.experiments.customersim import write_corpus

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_python_examples_run(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    config = GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=20, n_positions=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).train()
    yours = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters()),
        "collate": lambda rows: dict.fromkeys(("input_ids", "labels"), torch.zeros(len(rows), 4, dtype=torch.long)),
    }
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        shorter = block.replace("32_000, batch=1_000", "320, batch=10").replace("steps=320", "steps=3")
        exec(compile(shorter, "README.md", "exec"), dict(yours))
    assert (tmp_path / "run" / "certificate.json").exists()


def commands():
    found = re.findall(r"`(confide [^`]+)`", TEXT) + re.findall(r"^\$ (confide .+)$", TEXT, flags=re.MULTILINE)
    base = next(c for c in found if "--noise 2 --steps 320" in c)
    options = re.findall(r"`\.\.\. ([^`]+)`", TEXT)
    return [c for c in found if c.startswith("confide epsilon --")] + [f"{base} {option}" for option in options]


@pytest.mark.parametrize("command", commands())
def test_every_command_answers(command, capsys):
    with pytest.raises(SystemExit) as done:
        main(shlex.split(command)[1:])
    assert done.value.code == 0, capsys.readouterr().err


@pytest.fixture
def chats(tmp_path, monkeypatch):
    """The corpus that the examples are about."""
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "sim", 60, 0, 24, lambda: None)
    (tmp_path / "sim" / "train.jsonl").rename("chats.jsonl")


@pytest.mark.parametrize("page", ["README.md", "docs/screening.md"])
def test_the_screening_commands_run(page, chats, capsys):
    found = re.findall(r"^(?:\$ )?(confide screen .+)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    commands = [command for command in found if "--cluster" not in command]
    assert commands
    for command in commands:
        with pytest.raises(SystemExit) as done:
            main(shlex.split(command)[1:])
        assert done.value.code == 0, capsys.readouterr().err
        assert "60 documents" in capsys.readouterr().out


def test_the_screening_example_runs(chats):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "screening.md").read_text(), flags=re.DOTALL)
    names = {}
    exec(compile(block, "screening.md", "exec"), names)
    assert names["setting"].unit == "turn"


def test_the_training_page_runs(chats, tmp_path, monkeypatch):
    """Its Python, with a small model in a folder in place of one on the hub."""
    from confide.models import build, load_tokenizer, save

    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), flags=re.DOTALL)
    tokenizer, _ = load_tokenizer(None, "gpt2-tiny", public_texts=lambda: iter(["SYS: Hello."]), vocabulary_size=300)
    sizes = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2"
    save(build(f"gpt2-tiny:{sizes}", tokenizer, max_length=256), tokenizer, tmp_path / "distilgpt2")
    smaller = block.replace('"pii"', '"patterns"').replace("epsilon=2.0", "epsilon=2.0, epochs=1, max_length=32")
    found: dict = {}
    exec(compile(smaller, "training.md", "exec"), found)
    assert found["run"].certificate["guarantees"][0]["epsilon"] <= 2
    assert found["model"].can_generate()
