"""Bad input is one clear line and an exit code, never a traceback, and leaves no folder behind that was not begun."""

import errno
import json
import shutil
from pathlib import Path

import pytest
import yaml

from confide.cli import main
from confide.errors import BadInput
from confide.screening import Screened
from confide.training import Options, checkpoints, make_plan, train_plan

LSTM = "lstm:hidden_size=16,embedding_size=16"


@pytest.fixture
def cli(capfd):
    """A function from words of a command to (exit code, standard output, standard error)."""

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        assert "mistake in confide" not in err, err
        return end.value.code or 0, out, err

    return run


def words(**choices):
    given = {"model": LSTM, "vocabulary_size": 300, "max_length": 32, "epochs": 1, "private_batch_size": 40}
    if choices.get("method", "crt") in ("crt", "dpsgd", "jft"):
        given |= {"delta": 1e-3, "noise": 1.0}
    given |= choices
    return [str(x) for k, v in given.items() if v is not None for x in (f"--{k.replace('_', '-')}", v)]


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"method": "plain", "epsilon": 3.0}, "adds no noise"),
        ({"method": "plain", "noise": 3.0}, "adds no noise"),
        ({"delta": None}, "--delta"),
        ({"noise": None}, "either --epsilon"),
        ({"epsilon": 2.0}, "either --epsilon"),
        ({"task": "classify"}, "--classes"),
        ({"task": "classify", "classes": "a,b", "model": "gpt2-tiny"}, "--label-field"),
        ({"task": "classify", "classes": "a,b"}, "label"),
        ({"model": "no-such-model-here"}, "no-such-model-here"),
        ({"model": "lstm:hidden=3"}, "hidden"),
        ({"model": "lstm:hidden_size=x"}, "hidden_size"),
        ({"tokenizer": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"vocabulary_from": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"validation": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"method": "jft", "phase1": "hand-screened"}, "JSON lines with the text as people left it"),
        ({"method": "jft", "phase1": "hand-screened", "screened_by_hand": "/nowhere"}, "/nowhere"),
        ({"method": "jft", "phase1": "noised"}, "--phase1-noise"),
        ({"method": "jft", "tuning_runs": 2}, "--tuning-runs"),
        ({"method": "magic"}, "--method must be one of"),
        ({"optimizer": "lion"}, "--optimizer must be one of"),
        ({"momentum": 0.9}, "--momentum"),
        ({"epochs": 0}, "--epochs"),
        ({"epsilon": 1e5, "noise": None}, "promises nothing"),
        ({"vocabulary_size": 100}, "--vocabulary-size"),
        ({"max_length": 1}, "--max-length"),
        ({"model": "gpt2-tiny:max_position_embeddings=16"}, "32"),
        ({"method": "dpsgd"}, "vocabulary"),
        ({"private_batch_size": 10**6}, "--private-batch-size"),
        ({"phase1_epochs": 2}, "an option of jft"),
        ({"variant": "paper"}, "an option of sdp"),
    ],
    ids=repr,
)
def test_options_that_cannot_be_used(screened, cli, tmp_path, choices, says):
    code, out, err = cli("train", screened.folder, "-o", tmp_path / "run", *words(**choices))
    assert code == 2, (code, out, err)
    assert says in err
    assert len(err.strip().splitlines()) == 1, err
    assert list(tmp_path.iterdir()) == []


def test_json_errors_are_json(screened, cli, tmp_path):
    code, out, _ = cli("train", screened.folder, "-o", tmp_path / "run", *words(epochs=0), "--json")
    assert code == json.loads(out)["exit_code"] == 2


def test_a_model_and_a_tokenizer_that_do_not_fit(screened, cli, tmp_path, finished, trained, plain_texts, screen_texts):
    other = trained(screen_texts(plain_texts), method="plain", vocabulary_size=290, epochs=1)
    choices = words(method="plain", model=finished.folder / "model", tokenizer=other.folder / "model")
    code, _, err = cli("train", screened.folder, "-o", tmp_path / "run", *choices)
    assert code == 2, err
    assert "tokenizer" in err
    assert not (tmp_path / "run").exists()


def test_an_existing_folder_is_never_overwritten(screened, cli, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("mine")
    code, _, err = cli("train", screened.folder, "-o", tmp_path / "run", *words())
    assert code == 2
    assert "never overwritten" in err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]


@pytest.mark.parametrize("way", ["a folder of someone's", "a link"])
def test_what_lies_where_a_start_works_is_never_emptied_unless_a_start_left_it(screened, small, tmp_path, way):
    mine = tmp_path / "mine"
    (mine / "thesis").mkdir(parents=True)
    (mine / "thesis" / "a.txt").write_text("precious")
    draft = tmp_path / ".run.partial"
    if way == "a link":
        draft.symlink_to(mine)
    else:
        mine.rename(draft)
    with pytest.raises(BadInput, match=r"\.run\.partial is nothing that a start of a run left"):
        train_plan(make_plan(screened, **small(epochs=1)), tmp_path / "run")
    assert (draft / "thesis" / "a.txt").read_text() == "precious"


def test_nothing_to_resume(cli, tmp_path):
    code, _, err = cli("train", "--resume", "-o", tmp_path / "run")
    assert code == 2
    assert "nothing to resume" in err


def test_no_corpus(cli, tmp_path):
    code, _, err = cli("train", "-o", tmp_path / "run", *words())
    assert code == 2
    code, _, err = cli("train", tmp_path, "-o", tmp_path / "run", *words())
    assert code == 2
    assert "screen" in err


def test_policies_that_flag_nothing_or_everything_are_said(screen_texts, plain_texts, cli, tmp_path, outside):
    nothing = screen_texts(plain_texts)
    code, out, _ = cli("plan", nothing.folder, "--no-probe", *words(private_batch_size=None), "--json")
    assert code == 0
    assert "flagged nothing" in " ".join(json.loads(out)["notes"])
    assert "epsilon" not in json.loads(out)
    code, out, err = cli("train", nothing.folder, "-o", tmp_path / "nothing", *words(private_batch_size=None))
    assert code == 0, err
    assert "no certificate" in out
    everything = screen_texts(plain_texts, policy="everything", conservative="everything")
    code, out, _ = cli("plan", everything.folder, "--no-probe", *words(vocabulary_from=outside), "--json")
    assert code == 0
    assert "flagged everything" in " ".join(json.loads(out)["notes"])
    code, _, err = cli("train", everything.folder, "-o", tmp_path / "everything", *words())
    assert code == 2
    assert "never trained on private text" in err
    code, out, err = cli("train", everything.folder, "-o", tmp_path / "everything", *words(vocabulary_from=outside))
    assert code == 0, err


@pytest.mark.parametrize("part", ["public", "private"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "gone"])
def test_a_damaged_corpus(screened, cli, tmp_path, part, damage):
    shutil.copytree(screened.folder, tmp_path / "screened")
    for path in (tmp_path / "screened" / part).glob("*.parquet"):
        path.chmod(0o600)
        content = path.read_bytes()
        path.unlink()
        if damage != "gone":
            path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"x" * 100)
    code, _, err = cli("train", tmp_path / "screened", "-o", tmp_path / "run", *words())
    assert code == 2, err
    assert str(tmp_path / "screened" / part) in err
    assert not (tmp_path / "run").exists()


def test_a_corpus_damaged_in_its_text_only(screened, cli, tmp_path):
    """The names of groups can be read, the texts cannot."""
    shutil.copytree(screened.folder, tmp_path / "screened")
    import pyarrow.parquet as pq

    for path in (tmp_path / "screened" / "private").glob("*.parquet"):
        path.chmod(0o600)
        table = pq.read_table(path)
        pq.write_table(table.drop_columns(["text"]), path)
    assert Screened.open(tmp_path / "screened").manifest["private"]
    code, _, err = cli("train", tmp_path / "screened", "-o", tmp_path / "run", *words())
    assert code == 2
    assert "00000.parquet is damaged" in err


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "where",
    [
        "confide.training.beginning._begin",
        "confide.training.checkpoints._write_tensors",
        "confide.training.run.save",
        "telemetry.jsonl",
        "confide.training.corpus.write_private",
        "confide.accounting.certificate.write_private",
        "confide.training.beginning.LedgerWriter.create",
    ],
)
def test_a_full_disk_is_said_and_the_run_goes_on_when_there_is_room(screened, cli, tmp_path, monkeypatch, where):
    with monkeypatch.context() as patch:
        opened = Path.open
        if where == "telemetry.jsonl":
            patch.setattr(Path, "open", lambda path, *a, **k: full() if where in path.name else opened(path, *a, **k))
        else:
            patch.setattr(where, full)
        code, _, err = cli("train", screened.folder, "-o", tmp_path / "run", *words(log_every=1))
    assert code == 1, err
    assert "No space left on device" in err
    assert "answer" not in err
    resume = ["--resume"] if (tmp_path / "run").exists() else [screened.folder, *words(log_every=1)]
    code, _, err = cli("train", *resume, "-o", tmp_path / "run")
    assert code == 0, err


def test_a_model_that_cannot_be_written_by_safetensors(screened, cli, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def fails(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr("confide.training.run.save", fails)
        code, _, err = cli("train", screened.folder, "-o", tmp_path / "run", *words())
    assert code == 1
    assert "--resume" in err


def test_a_folder_that_cannot_be_made(screened, cli, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = cli("train", screened.folder, "-o", tmp_path / "file" / "run", *words())
    assert code in (1, 2)
    assert "file" in err


def test_labels_are_needed_and_checked(screen_texts, plain_texts, cli, tmp_path, outside):
    labels = ["good" if i % 2 else "bad" for i in range(len(plain_texts))]
    corpus = screen_texts(plain_texts, policy="digits", conservative="nothing", labels=labels)
    base = {
        "task": "classify",
        "vocabulary_from": outside,
        "method": "plain",
        "model": "gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2",
    }
    code, _, err = cli("train", corpus.folder, "-o", tmp_path / "run", *words(**base, classes="good,ugly"))
    assert code == 2
    assert "not among the 2 classes" in err
    assert "bad" not in err.replace("bad input", "")
    code, _, err = cli("train", corpus.folder, "-o", tmp_path / "fine", *words(**base, classes="good,bad"))
    assert code == 0, err


@pytest.mark.parametrize("content", ["", "{", '{"id": 1}\n', '{"text": ""}\n', "[]\n", b"\xff\xfe"], ids=repr)
def test_a_file_screened_by_hand_that_is_not_one(screened, cli, tmp_path, content):
    file = tmp_path / "hand.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    choices = words(method="jft", phase1="hand-screened", screened_by_hand=file)
    code, _, err = cli("train", screened.folder, "-o", tmp_path / "run", *choices)
    assert code == 2
    assert "hand.jsonl" in err


# -- confide run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path, chats):
    rows = [{"id": chat.id, "text": chat.text} for chat in chats[:20]]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "chats.yaml"
    file.write_text(
        """
corpus: chats.jsonl
out: out
screen: {policy: "miss(customersim, 0.1)", conservative: allowlist, unit: turn}
train:
  model: "lstm:hidden_size=16,embedding_size=16"
  vocabulary-size: 300
  max-length: 32
  epochs: 1
  private-batch-size: 20
  learning-rate: 1e-2
  epsilon: 8
  delta: 1e-3
"""
    )
    return file


def test_all_stages_from_one_file_and_each_only_once(config, cli, tmp_path, monkeypatch):
    code, out, err = cli("run", config, "--json")
    assert code == 0, err
    first = json.loads(out)
    assert first["epsilon"] <= 8
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)  # also by another path
        code, out, err = cli("run", config.name, "--json")
    assert code == 0, err
    assert json.loads(out)["epsilon"] == first["epsilon"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    text = config.read_text()
    config.write_text(text.replace("epochs: 1", "epochs: 2"))
    code, _, err = cli("run", config)
    assert code == 2
    assert "--epochs" in err
    config.write_text(text.replace("unit: turn", "unit: document"))
    code, _, err = cli("run", config)
    assert code == 2
    assert "screened with other options" in err


def test_all_stages_go_on_after_an_interruption(config, cli, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("confide.screening.pipeline.finish", full)
        assert cli("run", config)[0] == 1
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_write_tensors", full)
        assert cli("run", config)[0] == 1
    with monkeypatch.context() as patch:
        # the model is there, its certificate is not
        patch.setattr("confide.accounting.certificate.write_private", full)
        assert cli("run", config)[0] == 1
    assert (tmp_path / "out" / "run" / "model").exists()
    code, out, err = cli("run", config, "--json")
    assert code == 0, err
    assert json.loads(out)["certificate"]
    assert json.loads(out)["epsilon"] <= 8


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("epochs: 1", "epochz: 1"), "epochz"),
        (("unit: turn", "unti: turn"), "unti"),
        (("unit: turn", "unit: 5"), "unit"),
        (('policy: "miss(customersim, 0.1)", ', ""), "policy"),
        (("corpus: chats.jsonl", "corpora: chats.jsonl"), "sections"),
        (("corpus: chats.jsonl", "corpus: 5"), "corpus"),
        (("corpus: chats.jsonl", "corpus: nowhere.jsonl"), "nowhere.jsonl"),
        (("out: out", ""), "out is missing"),
        (("epochs: 1", "epochs: many"), "--epochs"),
        (("epochs: 1", "epochs: [1]"), "--epochs"),
        (("delta: 1e-3", "delta: yes"), "--delta"),
        (("epochs: 1", "? [a]\n  : 1"), ""),
        (("epochs: 1", "5: 1"), ""),
        (("out: out", "out: ["), "not a YAML file"),
    ],
    ids=repr,
)
def test_a_configuration_that_is_not_one(config, cli, tmp_path, change, says):
    assert change[0] in config.read_text()
    config.write_text(config.read_text().replace(*change))
    code, _, err = cli("run", config)
    assert code == 2, err
    assert says in err


def test_files_named_in_a_configuration_lie_beside_it(config, cli, tmp_path, monkeypatch):
    (tmp_path / "words.txt").write_text("the parcel was sent to you last week and we hope that all is fine " * 9)
    config.write_text(config.read_text() + "  vocabulary-from: words.txt\n")
    with monkeypatch.context() as patch:
        patch.chdir("/")
        code, _, err = cli("run", config)
    assert code == 0, err
    stored = yaml.safe_load((tmp_path / "out" / "run" / "config.yaml").read_text())
    assert stored["options"]["vocabulary_from"] == str(tmp_path / "words.txt")


def test_a_library_call_says_the_same(screened, small, tmp_path):
    with pytest.raises(ValueError, match="never overwritten"):
        train_plan(make_plan(screened, **small()), tmp_path)


def test_a_run_without_a_finite_epsilon_ends_and_says_so(screened, small, tmp_path):
    run = train_plan(make_plan(screened, **small(noise=0.02, epochs=1)), tmp_path / "run")
    assert run.summary()["epsilon"] is None
    assert next(line for line in run.telemetry() if "epsilon" in line)["epsilon"] is None


def test_a_model_must_be_named(screened):
    with pytest.raises(BadInput, match="--model"):
        make_plan(screened, noise=1.0, delta=1e-3)


def test_a_refusal_before_the_first_step_leaves_no_folder(screened, small, tmp_path):
    (tmp_path / "bad.jsonl").write_text("not json\n")
    with pytest.raises(BadInput, match=r"bad\.jsonl"):
        train_plan(make_plan(screened, **small(validation=str(tmp_path / "bad.jsonl"))), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_lists_with_commas_and_types_are_checked_wherever_options_come_from():
    assert Options(model="m", method="plain", special_tokens="SYS:, USR:").special_tokens == ("SYS:", "USR:")
    for choices in ({"ignore_mask": "false"}, {"validation": 3}, {"classes": (1, 2)}):
        with pytest.raises(BadInput, match="--"):
            Options(model="m", method="plain", **choices)


def test_choosing_by_validation_needs_something_to_validate_on(screen_texts, small):
    private = screen_texts(["the parcel was sent"] * 8, conservative="everything")
    with pytest.raises(BadInput, match="--validation"):
        make_plan(private, **small(keep="best", vocabulary_from="x"))


def test_the_best_models_own_validation_is_shown(screened, small, tmp_path, monkeypatch):
    losses = iter([1.0, 2.0])
    monkeypatch.setattr("confide.training.evaluation.quick", lambda *_, **__: {"loss": next(losses), "accuracy": 0.5})
    run = train_plan(make_plan(screened, **small(keep="best")), tmp_path / "run")
    assert run.summary()["validation_loss"] == 1.0
