"""Without the private part: logged noised gradients and public records give every checkpoint and every line of telemetry again."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from confide.dp import PrivateGradients
from confide.screening import Screened, screen
from confide.screening.manifest import checksum
from confide.training import checkpoints, make_plan, train_plan
from confide.training.provenance import TRAINED_ON

GPT = "gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2"
LSTM = "lstm:hidden_size=16,embedding_size=16"


@pytest.fixture
def without_private(screened, tmp_path):
    """The corpus with other words in place of every private record; public part, sizes and groups are the same."""
    folder = tmp_path / "elsewhere" / screened.folder.name
    shutil.copytree(screened.folder, folder)
    for path in (folder / "private").glob("*.parquet"):
        table = pq.read_table(path)
        empty = {"text": "zzz", "raw": "zzz"}
        for at, name in enumerate(table.column_names):
            if name in empty:
                column = pa.array([empty[name]] * len(table), table.schema.field(name).type)
                table = table.set_column(at, table.schema.field(name), column)
        path.chmod(0o600)
        pq.write_table(table, path)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["footers"]  # as of a corpus that was screened before there were any
    (folder / "manifest.json").chmod(0o600)
    (folder / "manifest.json").write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))
    return Screened.open(folder)


@pytest.mark.parametrize(
    ("model", "choices"),
    [
        (LSTM, {"schedule": "anneal", "private_schedule": "linear"}),
        (GPT, {"order": "alternate", "keep": "best", "optimizer": "sgd", "momentum": 0.9}),
        (LSTM, {"epsilon": 5.0, "delta": 1e-3, "weight_decay": 0.1}),
    ],
)
def test_a_run_is_a_function_of_released_gradients_and_public_records(
    screened, without_private, small, tmp_path, monkeypatch, model, choices
):
    monkeypatch.setattr(checkpoints, "_prune", lambda *_: None)
    choices = small(model=model, dropout=0.1, checkpoint_every=1, **choices)
    logged, release = [], PrivateGradients.release

    def log(self, step):
        release(self, step)
        logged.append([p.grad.clone() for p in self.model.parameters()])

    def replay(self, step):
        for parameter, gradient in zip(self.model.parameters(), next(again), strict=True):
            parameter.grad = gradient.clone()
        step.released = True

    with monkeypatch.context() as patch:
        patch.setattr(PrivateGradients, "release", log)
        first = train_plan(make_plan(screened, **choices), tmp_path / "first")
    again = iter(logged)
    with monkeypatch.context() as patch:
        patch.setattr(PrivateGradients, "accumulate", lambda self, batch: None)
        patch.setattr(PrivateGradients, "release", replay)
        second = train_plan(make_plan(without_private, **choices), tmp_path / "second")
    assert next(again, None) is None
    assert len(list((first.folder / "checkpoints").glob("0*"))) > 10
    files = sorted(path.relative_to(first.folder) for path in first.folder.rglob("*") if path.is_file())
    shown = [path for path in files if path.parts[0] != "screened" and path.name != "config.yaml"]
    assert {"telemetry.jsonl", "ledger.jsonl", "certificate.json"} <= {path.name for path in shown}
    for path in shown:
        assert (first.folder / path).read_bytes() == (second.folder / path).read_bytes(), path


def test_replaying_would_show_a_gradient_that_is_not_from_the_log(screened, small, tmp_path, monkeypatch):
    """The test above can fail: two runs with coins of their own differ."""
    runs = [train_plan(make_plan(screened, **small(epochs=1)), tmp_path / name) for name in ("one", "other")]
    one, other = (run.model().state_dict() for run in runs)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_another_secret_changes_nothing_that_is_public(chats, small, tmp_path):
    """Altered x: the same tokenizer, vocabulary, plan, steps, configuration and keys of telemetry."""
    at, (start, end, _) = next((i, one) for i, chat in enumerate(chats) for one in chat.secrets if one[2] == "phone")
    runs = []
    for name, phone in (("one", chats[at].text[start:end]), ("other", "5550001111")):
        home = tmp_path / name
        home.mkdir()
        rows = [{"id": chat.id, "text": chat.text} for chat in chats]
        rows[at]["text"] = chats[at].text[:start] + phone + chats[at].text[end:]
        (home / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        corpus = screen(
            str(home / "chats.jsonl"),
            "miss(customersim, 1.0)",
            home / "screened",
            conservative="allowlist",
            unit="turn",
            workers=1,
        )
        runs.append(train_plan(make_plan(corpus, **small(epochs=1, epsilon=8.0, delta=1e-3)), home / "run"))
    texts = [
        {
            row
            for b in Screened.open(run.folder.parent / "screened").batches("private", ("text",))
            for row in b["text"].to_pylist()
        }
        for run in runs
    ]
    assert texts[0] != texts[1], "the secret was not missed: nothing is tested"
    one, other = (run.folder for run in runs)
    for path in ("checkpoints/tokenizer/tokenizer.json", "model/tokenizer.json"):
        assert (one / path).read_bytes() == (other / path).read_bytes(), path
    models = [json.loads((folder / "model" / "config.json").read_bytes()) for folder in (one, other)]
    digests = [model.pop(TRAINED_ON) for model in models]  # under keys of the two screenings, which nobody else has
    assert models[0] == models[1]
    assert [len(found) for found in digests] == [1, 1]
    configs = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in (one, other)]
    for config in configs:
        del (
            config["screened"],
            config["corpus"],
            config["digest"],
        )  # paths, and a digest under a key that nobody else has
    assert configs[0] == configs[1]
    lines = [[(list(line), line["slot"]) for line in run.telemetry()] for run in runs]
    assert lines[0] == lines[1]
    ledgers = [
        [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()] for folder in (one, other)
    ]
    assert [line.get("planned") for line in ledgers[0]] == [line.get("planned") for line in ledgers[1]]
    assert [line.get("event") for line in ledgers[0]] == [line.get("event") for line in ledgers[1]]
    assert runs[0].certificate["guarantees"] == runs[1].certificate["guarantees"]
