"""Attacks on whole runs: what breaks plain training must be tried on crt, and must fail there."""

import json
import shutil

import numpy as np
import pytest
from scipy import stats

from confide.attacks import attack, attack_model
from confide.attacks.outside import read_candidates
from confide.attacks.subject import Subject
from confide.cli import main
from confide.errors import BadInput, Contradiction
from confide.experiments.customersim import dialogues, people
from confide.models import build
from confide.screening import screen
from confide.screening.canaries import write_canaries
from confide.training import make_plan, train_plan
from confide.training.corpus import TokenFile

CANARIES = "audit,number=30,copies=3,format=My ID is: {digits:6}"
MODEL = {
    "model": "lstm:hidden_size=64,embedding_size=64",
    "vocabulary_size": 280,
    "max_length": 48,
    "microbatch": 64,
    "validation_share": 0.2,
    "seed": 0,
}
WITHOUT_NOISE = {"epochs": 30, "learning_rate": 2e-2, "batch_size": 16}
RUNS = {
    "plain": WITHOUT_NOISE,
    "redacted": WITHOUT_NOISE,
    "crt": {"epochs": 8, "learning_rate": 5e-3, "epsilon": 2.0, "delta": 1e-3, "private_batch_size": 64},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("attacks")


@pytest.fixture(scope="module")
def corpus(home):
    rows = [{"id": one.id, "text": one.text} for one in dialogues(40, crowd=people(0, 60))]
    (home / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return screen(
        str(home / "chats.jsonl"), "miss(customersim, 0.3)", home / "screened", conservative="allowlist", unit="turn",
        workers=1, canaries=CANARIES,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(home, corpus):
    return {
        name: train_plan(make_plan(corpus, method=name, **MODEL, **choices), home / name)
        for name, choices in RUNS.items()
    }


@pytest.fixture(scope="module")
def found(runs):
    more = {"crt": {"white_box": True}, "plain": {"papers": True}}
    return {name: attack(run, samples=200, seed=0, **more.get(name, {})) for name, run in runs.items()}


def by_chance(exposure):
    """Whether a mean of exposures is one that a model which knows nothing shows, but for one time in a million."""
    number = exposure["number"]
    return exposure["mean"] < stats.gamma.ppf(1 - 1e-6, number) / (number * np.log(2))


def test_attacks_break_plain_training_and_fail_on_crt(found):
    assert found["plain"]["exposure"]["max"] >= 19
    assert found["plain"]["membership"]["strongest"]["auc"]["low"] > 0.55
    assert found["plain"]["membership"]["beats_blind"]
    assert found["redacted"]["exposure"]["max"] >= 15
    for name in ("plain", "redacted"):
        assert not by_chance(found[name]["exposure"])
        assert by_chance(found[name]["exposure"]["control"])
        assert found[name]["audit"]["black_box"]["coins"]["auc"]["value"] > 0.7
    crt = found["crt"]["exposure"]
    assert by_chance(crt)
    assert crt["mean"] <= crt["ceiling"]["mean"]
    assert crt["chance"]["mean"] == pytest.approx(1.44, abs=0.01)
    assert not found["crt"]["contradictions"]


def test_a_canary_in_three_copies_is_held_against_the_curve_of_three_records(found):
    certificate = found["crt"]["certificate"]
    assert found["crt"]["exposure"]["ceiling"]["about"] == "3 changed records"
    assert found["crt"]["audit"]["black_box"]["certified"] > certificate["epsilon"]
    assert found["crt"]["audit"]["white_box"]["certified"] == pytest.approx(certificate["epsilon"])
    assert found["crt"]["audit"]["white_box"]["lower_bound"] < certificate["epsilon"]


def test_nothing_is_promised_about_plain_training(found):
    assert found["plain"]["certificate"] is None
    assert found["plain"]["exposure"]["ceiling"] is None
    assert found["plain"]["audit"]["black_box"]["certified"] is None


def test_the_papers_protocols_are_labelled(found):
    papers = found["plain"]["membership"]["papers"]
    assert set(papers) == {"crt", "crt-group", "sdp", "sdp-two-round"}
    assert all("flaw" in one for one in papers.values())
    assert "perplexity" in found["plain"]["exposure"]["papers"]["ranking"]


def strings(plain):
    """Every key and every text of plain data; digits of a float may be anybody's."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from (key, *strings(value))
    elif isinstance(plain, list):
        for value in plain:
            yield from strings(value)
    elif isinstance(plain, str):
        yield plain


def test_what_is_written_names_no_secret(found, runs, corpus):
    secrets = {one["secret"] for one in json.loads((corpus.folder / "canaries.json").read_text())["canaries"]}
    for batch in corpus.batches("private", ("raw", "spans")):
        for row in batch.to_pylist():
            secrets |= {row["raw"][one["start"] : one["end"]] for one in row["spans"] or ()}
            secrets.add(row["raw"])
    for run in runs.values():
        path = run.folder / "attacks.json"
        assert path.stat().st_mode & 0o777 == 0o600
        words = "\n".join(strings(json.loads(path.read_text())))
        assert not [secret for secret in secrets if secret in words]


def test_members_and_others_have_texts_of_their_own(found):
    for one in found.values():
        part = one["membership"]
        assert "skipped" in part or part["others_also_members"] == 0


@pytest.mark.parametrize("method", ["crt", "redacted"])
def test_members_are_scored_with_what_was_drawn_for_their_masks(corpus, tmp_path, method):
    run = train_plan(
        make_plan(corpus, method=method, **MODEL, **RUNS[method] | {"epochs": 1}, fill_masks=True), tmp_path / "run"
    )
    subject = Subject.open(run.folder)
    rows = subject.trained
    once, again = (subject.candidates(rows)[0] for _ in range(2))
    assert [one.row for one in once] == [one.row for one in again]
    trained = {
        tuple(record.ids)
        for path in (run.folder / "screened").glob("*/header.json")
        for record in TokenFile.open(path.parent)
    }
    assert sum("<MASK>" in one.text for one in once) > 5
    assert all(tuple(one.row.ids) in trained for one in once)
    for path in (run.folder / "screened").glob("*"):
        shutil.rmtree(path)
    with pytest.raises(BadInput, match="is known no more"):
        subject.candidates(rows)


def test_a_bound_above_the_certificate_ends_with_code_3(runs, tmp_path, monkeypatch, capsys):
    from confide.attacks import on_canaries

    shutil.copytree(runs["crt"].folder, tmp_path / "run")
    scores = lambda model, tokenizer, form, secrets, **_: np.arange(len(secrets), dtype=float)  # noqa: E731
    monkeypatch.setattr(on_canaries, "canary_scores", scores)
    bounds = lambda found, certificate, **_: {  # noqa: E731
        **found, "certified": 0.1, "records": 1, "adjacency": "substitution", "contradicts": True, "says": "the audit contradicts the certificate"
    }  # fmt: skip
    monkeypatch.setattr(on_canaries.audit, "against", bounds)
    with pytest.raises(SystemExit) as ended:
        main(["attack", str(tmp_path / "run"), "--only", "audit"])
    assert ended.value.code == 3
    assert json.loads((tmp_path / "run" / "attacks.json").read_text())["contradictions"]
    assert "contradicts" in capsys.readouterr().err


def test_an_exposure_that_the_certificate_rules_out_is_a_contradiction(runs, tmp_path, monkeypatch):
    """A run whose certificate says crt and whose model was trained plainly."""
    shutil.copytree(runs["crt"].folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.copytree(runs["plain"].folder / "model", tmp_path / "run" / "model")
    from confide.attacks import subject

    # As if training had made those weights, and the ledger named them
    monkeypatch.setattr("confide.accounting.verification._refuse_other_model", lambda model, ledger: None)
    # Three copies allow much; as if each canary had been planted once
    monkeypatch.setattr(subject.Setting, "k_repeated", lambda self, copies: 1)
    with pytest.raises(Contradiction, match="allows an exposure of"):
        attack(tmp_path / "run", only=("exposure",), seed=0)


def test_a_forged_certificate_is_not_held_against(runs, tmp_path):
    shutil.copytree(runs["crt"].folder, tmp_path / "run")
    path = tmp_path / "run" / "certificate.json"
    path.write_text(path.read_text().replace('"delta": 0.001', '"delta": 0.0001'))
    with pytest.raises(Contradiction):
        attack(tmp_path / "run", only=("exposure",))


@pytest.fixture
def knowing(monkeypatch, corpus):
    """A guesser who knows every coin, so that what follows from a contradiction can be seen."""
    from confide.attacks import on_canaries

    present = json.loads((corpus.folder / "coins.json").read_text())["present"]
    monkeypatch.setattr(on_canaries, "canary_scores", lambda *_, **__: np.array(present, dtype=float))


def test_a_model_from_elsewhere_is_attacked_by_the_canaries_of_its_corpus(runs, corpus, home, capsys, knowing):
    model, planted = runs["plain"].folder / "model", home / "planted"
    planted.mkdir()
    for name in ("canaries.json", "coins.json"):  # a claim for one record says nothing about three copies
        (planted / name).write_text((corpus.folder / name).read_text().replace('"copies": 3', '"copies": 1'))
    found = attack_model(model, planted, only=("exposure",), seed=0)
    assert found["exposure"]["max"] >= 19
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "attack",
                "--model",
                str(model),
                "--canaries",
                str(planted),
                "--claimed-epsilon",
                "0.1",
                "--delta",
                "1e-5",
                "--claimed-adjacency",
                "add-remove",
            ]
        )
    assert ended.value.code == 3
    texts = [one.text for one in dialogues(60, crowd=people(0, 60))]
    for name, some in (("in", texts[:30]), ("out", texts[30:])):
        (home / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "attack",
                "--model",
                str(model),
                "--members",
                str(home / "in.jsonl"),
                "--others",
                str(home / "out.jsonl"),
                "--json",
            ]
        )
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["membership"]["members"] == 30


def test_rows_that_are_no_candidates_are_counted_and_not_quoted(runs, home, capsys):
    texts = [one.text for one in dialogues(60, crowd=people(0, 60))]
    good = [json.dumps({"text": text}) for text in texts]
    bad = ["{oops 4711", "{oops", json.dumps({"text": " "}), json.dumps({"other": "QUITE-SECRET"})]
    (home / "some.jsonl").write_text("\n".join([*good[:30], good[0], *bad]))
    (home / "rest.jsonl").write_text("\n".join(good[30:]))
    base = ["attack", "--model", str(runs["crt"].folder / "model"), "--others", str(home / "rest.jsonl"), "--members"]
    told = []
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main([*base, str(home / "some.jsonl"), *more])
        assert ended.value.code == 0
        told.append(capsys.readouterr().out)
    assert "members: of 35 rows 4 left out (" in told[0]
    assert "not JSON from column … on: 2" in " ".join(told[0].split())
    assert "1 read like an earlier one" in " ".join(told[0].split())
    assert "others: of" not in told[0]
    rows = json.loads(told[1])["rows"]
    assert rows["members"]["rows"] == 35
    assert rows["members"]["used"] == 31
    assert sum(rows["members"]["left_out"].values()) == 4
    assert rows["members"]["repeated"] == 1
    assert rows["others"]["left_out"] == {}
    assert "SECRET" not in "".join(told)
    assert "4711" not in "".join(told)
    (home / "few.jsonl").write_text("\n".join(bad))
    with pytest.raises(SystemExit) as ended:
        main([*base, str(home / "few.jsonl")])
    assert ended.value.code == 2
    assert "members: of 4 rows 4 left out" in capsys.readouterr().err


def test_texts_that_a_model_cannot_see_whole_are_cut_and_counted(runs, home):
    model = build("gpt2-tiny:hidden_size=16,num_hidden_layers=1,max_position_embeddings=8", runs["crt"].tokenizer())
    (home / "long.jsonl").write_text(
        json.dumps({"text": "a b c d e f g h i j k l m n o p"}) + "\n" + json.dumps({"text": "a"})
    )
    found, counts = read_candidates(home / "long.jsonl", model, runs["crt"].tokenizer())
    assert [len(one.row.ids) for one in found] == [9, 2]
    assert (counts["cut"], counts["left_out"]) == (1, {})


def test_canaries_for_other_programs_hide_those_that_the_coin_took_out(tmp_path):
    found = write_canaries("audit,number=40,seed=3", tmp_path / "planted")
    planted = json.loads((tmp_path / "planted" / "canaries.json").read_text())
    present = json.loads((tmp_path / "planted" / "coins.json").read_text())["present"]
    texts = [json.loads(line)["text"] for line in (tmp_path / "planted" / "canaries.jsonl").read_text().splitlines()]
    assert found["texts"] == len(texts) == 40
    for one, there, text in zip(planted["canaries"], present, texts, strict=True):
        assert (one["secret"] in text) is there
        assert ("<MASK>" in text) is not there


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a run to attack"),
        (["nowhere"], "is no run"),
        (["RUN", "--only", "guessing"], "the attacks are"),
        (["RUN", "--samples", "1"], "--samples"),
        (["RUN", "--canaries", "x"], "--canaries goes with --model"),
        (["--model", "x", "--papers"], "--papers goes with a run"),
        (["--model", "x"], "nothing to attack with"),
        (["--model", "x", "--members", "a", "--canaries", "b"], "together with --others"),
        (["--model", "x", "--canaries", "SCREENED", "--only", "extraction"], "nothing is known"),
        (["RUN", "--only", "exposure", "--white-box"], "belongs to the audit"),
        (["--model", "x", "--canaries", "x"], "no such file"),
        (["RUN", "--held-out", "RUN"], "no screened corpus"),
        (["RUN", "--held-out", "SCREENED"], "is the corpus that the run was trained on"),
        (["RUN", "--also", "RUN", "--only", "audit"], "share their coins"),
        (["RUN", "--reference", "nowhere"], "no model there"),
        (["RUN", "--reference", "PLAIN"], "is no reference"),
        (
            ["--model", "x", "--canaries", "SCREENED", "--claimed-epsilon", "1", "--delta", "1e-5"],
            "--claimed-adjacency",
        ),
        (["--model", "x", "--members", "a", "--others", "b", "--claimed-epsilon", "1"], "--delta"),
        (["RUN", "--show", "--json"], "--show"),
        (["RUN", "--secrets", "nothing-such"], "nothing-such"),
    ],
)
def test_bad_use_is_explained(runs, corpus, arguments, says, capsys):
    names = {"RUN": str(runs["crt"].folder), "PLAIN": str(runs["plain"].folder), "SCREENED": str(corpus.folder)}
    with pytest.raises(SystemExit) as ended:
        main(["attack", *[names.get(one, one) for one in arguments]])
    output = capsys.readouterr()
    assert says in output.err
    assert ended.value.code == 2
    assert "Traceback" not in output.err


def test_an_attack_that_was_asked_for_must_be_made(runs, tmp_path, capsys):
    shutil.copytree(runs["crt"].folder, tmp_path / "run")
    with pytest.raises(SystemExit) as ended:
        main(["attack", str(tmp_path / "run"), "--only", "membership", "--samples", "20"])
    assert ended.value.code == 2
    assert "membership could not be attacked" in capsys.readouterr().err


def test_attacks_of_other_kinds_are_kept_and_contradictions_with_them(runs, tmp_path):
    shutil.copytree(runs["crt"].folder, tmp_path / "run")
    path = tmp_path / "run" / "attacks.json"
    before = json.loads(path.read_text())
    before["audit"]["black_box"] |= {"contradicts": True, "says": "it was contradicted"}
    path.write_text(json.dumps(before))
    with pytest.raises(Contradiction, match="it was contradicted"):
        attack(tmp_path / "run", only=("exposure",), seed=0)
    after = json.loads(path.read_text())
    assert after["inference"] == before["inference"]
    assert after["contradictions"] == ["it was contradicted"]


def test_a_classifier_or_a_model_that_looks_ahead_is_refused(runs, corpus, tmp_path):
    import transformers

    small = {
        "vocab_size": 300,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    for model in (
        transformers.GPT2ForSequenceClassification(
            transformers.GPT2Config(vocab_size=300, n_positions=32, n_embd=16, n_layer=1, n_head=2)
        ),
        transformers.BertForMaskedLM(transformers.BertConfig(**small)),
    ):
        folder = tmp_path / type(model).__name__
        model.save_pretrained(folder)
        runs["plain"].tokenizer().save_pretrained(folder)
        with pytest.raises(BadInput, match="no causal language model"):
            attack_model(folder, corpus.folder)


def test_coins_that_masked_every_canary_are_explained(runs, corpus, tmp_path):
    shutil.copy(corpus.folder / "canaries.json", tmp_path)
    (tmp_path / "coins.json").write_text(json.dumps({"present": [False] * 30}))
    with pytest.raises(BadInput, match="every coin masked"):
        attack_model(runs["plain"].folder / "model", tmp_path, only=("exposure",))


def test_a_contradiction_is_told_with_its_numbers(runs, corpus, home, capsys, knowing):
    planted = home / "once"
    planted.mkdir()
    for name in ("canaries.json", "coins.json"):
        (planted / name).write_text((corpus.folder / name).read_text().replace('"copies": 3', '"copies": 1'))
    with pytest.raises(SystemExit) as ended:
        main(
            ["attack", "--model", str(runs["plain"].folder / "model"), "--canaries", str(planted), "--claimed-epsilon", "0.1",
             "--delta", "1e-5", "--claimed-adjacency", "substitution", "--only", "audit", "--json"]
        )  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert (ended.value.code, told["exit_code"], told["holds"]) == (3, 3, False)
    assert told["audit"]["black_box"]["lower_bound"] > 0.1
    assert told["claim"]["adjacency"] == "substitution"


def test_options_are_checked(runs):
    with pytest.raises(BadInput, match="seed"):
        attack(runs["crt"], seed=-1)


def test_a_configuration_attacks_once_and_again_when_its_options_change(home, corpus):
    from confide.config import read_config, run_all

    (home / "customers.txt").write_text("Zoe Quill\n")  # beside the configuration, and not where the tests run
    config = {
        "corpus": "chats.jsonl",
        "out": "whole",
        "screen": {
            "policy": "union(customersim, known:customers.txt)",
            "conservative": "allowlist",
            "unit": "turn",
            "canaries": CANARIES,
        },
        "train": {
            "model": "lstm:hidden_size=16,embedding_size=16",
            "method": "redacted",
            "vocabulary_size": 280,
            "epochs": 1,
        },
        "attack": {"only": "exposure", "seed": 1},
    }
    path = home / "whole.yaml"
    path.write_text(json.dumps({**config, "train": {"model": "lstm", "tokenizer": "whole", "reference": "gpt2"}}))
    (home / "whole").mkdir()
    assert read_config(path)["train"] == {"model": "lstm", "tokenizer": str(home / "whole"), "reference": "gpt2"}
    (home / "whole").rmdir()
    path.write_text(json.dumps(config))
    run_all(path)
    written = home / "whole" / "run" / "attacks.json"
    first = written.stat().st_mtime_ns
    assert set(json.loads(written.read_text())) >= {"exposure", "options"}
    path.write_text(
        json.dumps({**config, "screen": {**config["screen"], "workers": 1}})
    )  # which changes nothing but the time
    run_all(path)
    assert written.stat().st_mtime_ns == first
    path.write_text(json.dumps({**config, "attack": {"only": ["exposure"], "seed": 2}}))
    run_all(path)
    assert written.stat().st_mtime_ns != first
    path.write_text(json.dumps({**config, "attack": {"only": "guessing"}}))
    with pytest.raises(BadInput, match="the attacks are"):
        run_all(path)
