"""The Hugging Face Trainer of docs/engine.md trains."""

import re
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from confide.dp import Plan, PrivateGradients


def test_the_trainer_of_the_docs_trains_with_the_plans_batches(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "PrivateTrainer" in block)
    lines = [line[4:] for line in code.splitlines() if line[:4] in (">>> ", "... ")]
    names = {"torch": torch, "PrivateGradients": PrivateGradients}
    exec("\n".join(lines), names)
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=8, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    before = model.transformer.wte.weight.detach().clone()
    records = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 50, (40, 8))]
    plan = Plan(records=40, sampling_rate=0.2, steps=5, noise_multiplier=1.0)
    arguments = TrainingArguments(
        str(tmp_path),
        max_grad_norm=0,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = names["PrivateTrainer"](model=model, args=arguments, train_dataset=records, plan=plan)
    trainer.train()
    assert trainer.state.global_step == 5
    assert not torch.equal(model.transformer.wte.weight, before)
    assert all(record.get("loss", 0.0) == 0.0 for record in trainer.state.log_history)
