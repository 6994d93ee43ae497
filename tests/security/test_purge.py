"""confide purge: what is sensitive goes and nothing else, whatever happens meanwhile; what stays is enough for verify."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
import torch

from confide import purging
from confide.attacks.output import write_attacks
from confide.cli import main
from confide.errors import BadInput, ConfideError
from confide.experiments.customersim import dialogues, people
from confide.purging import plan_purge, purge
from confide.reporting import report
from confide.rundir import Lock
from confide.screening import screen
from confide.training import loop, make_plan, plan_of, train_plan

MODEL = {
    "model": "lstm:hidden_size=8,embedding_size=8", "vocabulary_size": 290, "max_length": 24, "epochs": 1, "private_batch_size": 30,
    "method": "crt", "noise": 1.0, "delta": 1e-3, "validation_share": 0.1,
}  # fmt: skip
GOES = ["attacks.json", "checkpoints", "figures", "report.html", "screened"]
torch.set_num_threads(1)  # a fork would wait for threads that are not in it
STAYS = [
    ".lock",
    "certificate-shareable.json",
    "certificate.json",
    "config.yaml",
    "ledger.jsonl",
    "model",
    "telemetry.jsonl",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A screened corpus, and a run on it that was attacked and reported."""
    home = tmp_path_factory.mktemp("made")
    rows = [json.dumps({"id": one.id, "text": one.text}) for one in dialogues(15, crowd=people(0, 24))]
    (home / "chats.jsonl").write_text("\n".join(rows) + "\n")
    corpus = screen(
        str(home / "chats.jsonl"), "patterns", home / "corpus", conservative="allowlist", unit="turn", workers=1
    )
    run = train_plan(make_plan(corpus, **MODEL), home / "run").folder
    write_attacks(
        run / "attacks.json", {"confide_attacks": 1, "contradictions": [], "certificate": None, "options": {}}
    )
    report(run)
    return home


@pytest.fixture
def home(made, tmp_path):
    copy = shutil.copytree(made, tmp_path / "home", symlinks=True)
    config = copy / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(made), str(copy)))
    return copy


def ask(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main([*map(str, arguments)])
    told = capsys.readouterr()
    return done.value.code, told.out, told.err


def tree(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_sensitive_goes_and_verify_still_holds(home, capsys):
    before = tree(home / "run")
    code, out, _ = ask(capsys, "purge", home / "run", "--yes", "--json")
    found = json.loads(out)
    assert (code, found["removed"], found["kept"], found["left"]) == (0, GOES, STAYS, [])
    assert found["bytes"] > 0
    after = tree(home / "run")
    assert sorted(os.listdir(home / "run")) == sorted([*STAYS, "purged.json"])
    assert {name: content for name, content in after.items() if name != "purged.json"} == {
        name: content for name, content in before.items() if name.split("/")[0] in STAYS
    }
    assert ask(capsys, "verify", home / "run")[0] == 0
    assert ask(capsys, "generate", home / "run", "USR:", "--max-new-tokens", "2")[0] == 0
    assert (home / "corpus" / "private").is_dir(), "the corpus is another folder's matter"


def test_a_purged_run_says_so_wherever_it_matters(home, capsys):
    purge(home / "run")
    for arguments in (["attack", home / "run"], ["train", "--resume", "-o", home / "run"]):
        code, _, err = ask(capsys, *arguments)
        assert code == 2
        assert "was purged" in err
    with pytest.raises(BadInput, match="start a new run"):
        plan_of(home / "run")
    page = report(home / "run", shareable=True).read_text()
    assert "the run was purged" in page
    assert "confide attack" not in page.split("Reproducing it")[0]
    assert "epsilon" in (home / "run" / "model" / "README.md").read_text().lower()
    assert plan_purge(home / "run").parts == {}
    assert (
        "the run was purged"
        in report([home / "run", shutil.copytree(home / "run", home / "other")]).read_text().lower()
    )


def test_nothing_is_removed_without_a_yes(home, capsys):
    before = tree(home)
    code, _, err = ask(capsys, "purge", home / "run")
    assert code == 2
    assert "--yes" in err
    code, out, _ = ask(capsys, "purge", home / "run", "--dry-run")
    assert code == 0
    for name in (*GOES, *STAYS):
        assert name in out
    assert json.loads(ask(capsys, "purge", home / "run", "--dry-run", "--json")[1])["dry_run"]
    assert tree(home) == before


def at_a_terminal(folder, answer):
    """`confide purge` by someone who types an answer."""
    ours, theirs = os.openpty()
    try:
        os.write(ours, answer)
        command = [sys.executable, "-m", "confide", "purge", str(folder)]
        return subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=120)
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("answer", [b"n\n", b"\x04"])
def test_a_person_who_does_not_agree_keeps_everything(home, answer):
    before = tree(home)
    done = at_a_terminal(home / "run", answer)
    assert done.returncode == 2, done.stderr
    assert "nothing was removed" in done.stderr
    assert tree(home) == before


def test_a_person_is_shown_what_goes_and_asked(home):
    done = at_a_terminal(home / "run", b"y\n")
    assert done.returncode == 0, done.stderr
    for word in (*GOES, "certificate.json", "Remove this for good?"):
        assert word in done.stderr
    assert "removed" in done.stdout
    assert not (home / "run" / "checkpoints").exists()


def test_a_screened_corpus_goes_whole(home, capsys):
    code, out, _ = ask(capsys, "purge", home / "corpus", "--yes", "--json")
    assert code == 0
    assert not (home / "corpus").exists()
    assert {"private", "public", "key", "manifest.json"} <= set(json.loads(out)["removed"])
    assert ask(capsys, "verify", home / "run")[0] == 0
    assert "is not where it was" in report(home / "run").read_text()


def test_a_screening_that_did_not_end_can_be_purged(home, capsys):
    partial = home / "corpus.partial"
    (home / "corpus").rename(partial)
    (partial / "manifest.json").unlink()
    (partial / "plan.json").write_text("{}")
    (partial / "lock").touch()
    with closing(Lock(partial, "lock")):
        code, _, err = ask(capsys, "purge", partial, "--yes")
        assert code == 2
        assert "another process" in err
        assert (partial / "private").exists()
    assert ask(capsys, "purge", partial, "--yes")[0] == 0
    assert not partial.exists()


def test_what_lost_its_own_description_can_be_purged_all_the_same(home, capsys):
    (home / "corpus" / "manifest.json").write_text("{}")
    (home / "run" / "config.yaml").write_text("a: !!timestamp foo")
    for folder in (home / "run", home / "corpus"):
        assert ask(capsys, "purge", folder, "--yes")[0] == 0
    assert not (home / "corpus").exists()
    assert not (home / "run" / "checkpoints").exists()


@pytest.mark.parametrize("name", ["chats.jsonl", "nothing", "."])
def test_other_folders_are_refused(home, capsys, name):
    (home / "notes").mkdir()
    before = tree(home)
    for folder in (home / name, home / "notes", home / "run" / "model"):
        code, _, err = ask(capsys, "purge", folder, "--yes")
        assert code == 2
        assert "run" in err
    assert tree(home) == before
    assert str(home / "corpus") in ask(capsys, "purge", home, "--yes")[2], "what could be meant is named"


def test_files_that_are_not_confides_own_are_left_and_named(home, capsys):
    for folder in ("run", "corpus"):
        (home / folder / "notes.txt").write_text("mine")
    found = json.loads(ask(capsys, "purge", home / "run", "--yes", "--json")[1])
    assert found["left"] == ["notes.txt"]
    ask(capsys, "purge", home / "corpus", "--yes")
    assert os.listdir(home / "corpus") == ["notes.txt"]


def test_half_made_files_go_too(home):
    for name in ("model.partial", "attacks.json.new", "certificate.json.new"):
        (home / "run" / name).write_text("half")
    assert {"model.partial", "attacks.json.new", "certificate.json.new"} <= set(purge(home / "run").parts)
    assert not list((home / "run").glob("*.p*art*"))


def test_links_are_never_followed(home, capsys):
    """Neither a part that is a link, nor a link inside a part."""
    far = home / "far"
    far.mkdir()
    (far / "mine").write_text("mine")
    shutil.rmtree(home / "run" / "checkpoints")
    (home / "run" / "checkpoints").symlink_to(far)
    (home / "run" / "screened" / "away").symlink_to(far)
    (home / "run" / "report.html").unlink()
    (home / "run" / "report.html").symlink_to(far / "mine")
    found = json.loads(ask(capsys, "purge", home / "run", "--yes", "--json")[1])
    assert found["links"] == {"checkpoints": str(far), "report.html": str(far / "mine")}
    assert any(str(far) in note for note in found["notes"])
    assert (far / "mine").read_text() == "mine"
    assert not [path for path in (home / "run").iterdir() if path.is_symlink()]


def test_a_link_to_a_folder_is_no_folder(home, capsys):
    (home / "link").symlink_to(home / "corpus")
    code, _, err = ask(capsys, "purge", home / "link", "--yes")
    assert code == 2
    assert f"name {home / 'corpus'} itself" in " ".join(err.split())
    assert (home / "corpus" / "manifest.json").exists()


def test_a_folders_name_cannot_paint_the_terminal(home, capsys):
    (home / "run").rename(home / "ev\x1b[31mil")
    code, out, _ = ask(capsys, "purge", home / "ev\x1b[31mil", "--dry-run")
    assert code == 0
    assert "\x1b" not in out


@pytest.mark.parametrize("method", ["crt", "plain"])
def test_a_run_that_another_process_trains_is_refused(home, capsys, monkeypatch, method):
    noised = ("noise", "delta", "private_batch_size")
    options = {**{name: one for name, one in MODEL.items() if method == "crt" or name not in noised}, "method": method}
    reads, tells = os.pipe()
    child = os.fork()
    if not child:
        try:
            monkeypatch.setattr(loop.Work, "checkpoint", lambda work: (os.write(tells, b"at work"), time.sleep(600)))
            train_plan(make_plan(home / "corpus", **options), home / "busy")
        finally:
            os._exit(1)
    os.close(tells)
    try:
        assert os.read(reads, 7) == b"at work"
        before = tree(home / "busy")
        for command in (["purge", home / "busy", "--yes"], ["train", "--resume", "-o", home / "busy"]):
            code, _, err = ask(capsys, *command)
            assert code == 2
            assert "another process is at work" in err
        assert tree(home / "busy") == before
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
    told = plan_purge(home / "busy").notes
    assert any("has not ended" in note for note in told)
    assert ask(capsys, "purge", home / "busy", "--yes")[0] == 0
    assert not (home / "busy" / "checkpoints").exists()


@pytest.mark.parametrize("many", [0, 1, 2, 4, 8, 16])
def test_killed_anywhere_it_ends_when_it_is_called_again(made, tmp_path, many):
    """In one process for each, since forking is quick; folders are never taken for whole in between."""
    for name in ("run", "corpus"):
        folder = shutil.copytree(made / name, tmp_path / name)
        child = os.fork()
        if not child:
            _die_after(many)
            purge(folder)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9)
        if many < 4:
            assert code == 9
        if name == "run" and (folder / "purged.json").exists():
            with pytest.raises(BadInput, match="was purged"):
                plan_of(folder)
        elif name == "corpus" and folder.exists() and not (folder / "private").exists():
            assert not (folder / "manifest.json").exists()
        if folder.exists():
            purge(folder)
        assert not plan_purge(folder).parts if name == "run" else not folder.exists()
        if name == "run":
            told = json.loads((folder / "purged.json").read_text())["removed"]
            assert set(GOES) <= set(told)


def _die_after(many):
    left = many

    def hook(event, given):
        nonlocal left
        if event in ("os.remove", "os.rmdir", "os.rename"):
            left -= 1
            if left < 0:
                os._exit(9)

    sys.addaudithook(hook)


def test_what_cannot_be_removed_is_said(home, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(purging, "_remove", refuse)
    with pytest.raises(ConfideError, match=r"cannot remove .*Permission denied; mend that, then purge again"):
        purge(home / "run")


def test_notes_say_what_a_person_should_know_before(home):
    notes = " ".join(plan_purge(home / "run").notes)
    assert "confide report --shareable" in notes
    assert str(home / "corpus") in notes
    config = home / "run" / "config.yaml"
    config.write_text(config.read_text().replace("method: crt", "method: plain"))
    assert "may have memorised secrets" in " ".join(plan_purge(home / "run").notes)
    certificate = json.loads((home / "run" / "certificate.json").read_text())
    (home / "run" / "certificate.json").write_text(json.dumps({**certificate, "evidence": {"kind": "review"}}))
    assert "states the counts of a review" in " ".join(plan_purge(home / "run").notes)
