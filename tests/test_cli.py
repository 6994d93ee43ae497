"""The commands as scripts and people meet them: answers, exit codes and one clear line for every mistake."""

import difflib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.main import get_command

from confide.cli import app, main
from confide.commands.shell import SUMMARIES

BASE = ["epsilon", "--sampling-rate", "0.03125", "--noise", "2", "--steps", "320", "--delta", "8e-5"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    captured = capsys.readouterr()
    return done.value.code, captured.out, captured.err


def ask(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    assert err == ""
    return json.loads(out)


def test_epsilon_names_everything_it_depends_on(capsys):
    found = ask(capsys, *BASE)
    assert found["epsilon"] == pytest.approx(1.97, abs=0.01)
    for key in (
        "delta",
        "adjacency",
        "sampler",
        "accountant",
        "unit",
        "noise_multiplier",
        "sampling_rate",
        "steps",
        "k",
    ):
        assert key in found
    code, out, _ = run(capsys, *BASE)
    assert code == 0
    for word in ("substitution", "poisson", "dp_accounting", "record", "epsilon = 1.97"):
        assert word in out


def test_rates_may_be_fractions_or_batch_sizes(capsys):
    want = ask(capsys, *BASE)["epsilon"]
    rest = ["--noise", "2", "--delta", "8e-5"]
    assert ask(capsys, "epsilon", "--sampling-rate", "1/32", "--steps", "320", *rest)["epsilon"] == want
    by_size = ask(capsys, "epsilon", "--records", "32000", "--batch-size", "1000", "--epochs", "10", *rest)
    assert by_size["epsilon"] == want
    assert by_size["steps"] == 320


def test_a_million_steps(capsys):
    long = ["--sampling-rate", "0.001", "--noise", "1", "--steps", "1000000", "--delta", "1e-5"]
    assert ask(capsys, "epsilon", *long)["epsilon"] == pytest.approx(11.03, abs=0.01)  # dp_accounting: 11.029


def test_groups_and_misses(capsys):
    assert ask(capsys, *BASE, "--group", "2")["epsilon"] == pytest.approx(4.41, abs=0.01)
    found = ask(capsys, *BASE, "--misses", "20/200")["bayesian"]
    assert found["slot_epsilon"] == pytest.approx(0.469, abs=2e-3)
    assert found["corpus_epsilon"] > found["slot_epsilon"]
    both = ask(capsys, *BASE, "--misses", "20/200", "--public-misses", "0/200")["bayesian"]
    assert both["slot_epsilon"] == pytest.approx(0.485, abs=2e-3)
    assert both["delta"] == pytest.approx(0.0184, abs=1e-4)


def test_whatever_is_left_out_is_found(capsys):
    noise = ask(capsys, "epsilon", "--epsilon", "2", "--sampling-rate", "1/32", "--steps", "320", "--delta", "8e-5")
    assert noise["noise_multiplier"] == pytest.approx(1.97, abs=0.01)
    assert noise["epsilon"] <= 2
    steps = ask(capsys, "epsilon", "--epsilon", "1.97", "--sampling-rate", "1/32", "--noise", "2", "--delta", "8e-5")
    assert steps["steps"] == 320
    batch = ask(capsys, "epsilon", "--epsilon", "2", "--records", "2000", "--epochs", "3", "--delta", "1e-5")
    assert batch["least_noise_per_step"] == 256
    assert batch["batch_size"] <= 256
    slot = ["--bayesian-epsilon", "0.3", "--misses", "20/200", "--steps", "320"]
    found = ask(capsys, "epsilon", "--sampling-rate", "1/32", "--delta", "8e-5", *slot)
    assert 0.29 < found["bayesian"]["slot_epsilon"] <= 0.3
    assert found["target"] == "bayesian slot epsilon"


def test_printed_noise_meets_the_target_when_typed_in_again(capsys):
    for target in ("0.5", "2", "3"):
        rest = ["--sampling-rate", "1/32", "--steps", "320", "--delta", "8e-5"]
        _, out, _ = run(capsys, "epsilon", "--epsilon", target, *rest)
        noise = re.search(r"noise multiplier ([0-9.]+)", out)[1]
        assert ask(capsys, "epsilon", "--noise", noise, *rest)["epsilon"] <= float(target)
    labels = ask(capsys, "epsilon", "--labels-for", "8e-5")
    assert labels["labels"] == 37_446


@pytest.mark.parametrize(
    "arguments",
    [
        ["--epsilon", "2", "--sampling-rate", "1/32", "--steps", "320"],
        ["--epsilon", "2", "--records", "2000", "--epochs", "3"],
        ["--sampling-rate", "1/32", "--steps", "10", "--noise", "3", "--sampler", "fixed-size"],
        ["--epochs", "10", "--noise", "3", "--sampler", "shuffled"],
        ["--sampling-rate", "1/32", "--steps", "10", "--noise", "3", "--misses", "2/50", "--public-misses", "0/50"],
        ["--labels-for", "0.01"],
    ],
)
def test_every_answer_has_a_page_for_people(capsys, arguments):
    delta = [] if "--labels-for" in arguments else ["--delta", "1e-5"]
    code, out, err = run(capsys, "epsilon", *delta, *arguments)
    assert (code, err) == (0, "")
    assert "nan" not in out
    for word in ("delta", "substitution", "no amplification", "confidence"):
        if word in out:
            break
    else:
        raise AssertionError("an answer without its conditions")


NO_CONNECTION = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("a connection was opened")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from confide.cli import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A small demo: its folder, and what a terminal without Unicode shows of it."""
    folder = tmp_path_factory.mktemp("shown") / "demo"
    arguments = ["demo", "-o", str(folder), "--dialogues", "40", "--epochs", "1"]
    done = subprocess.run(
        [sys.executable, "-c", NO_CONNECTION, *arguments],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder, " ".join(done.stdout.split())


def test_a_terminal_without_unicode_gets_an_answer():
    done = subprocess.run(
        [sys.executable, "-m", "confide", *BASE],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0
    assert b"epsilon" in done.stdout


def test_a_full_disk_is_one_line(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "confide", *BASE, "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1


def test_version_and_bare_call(capsys):
    assert run(capsys, "--version")[1].startswith("confide 0.")
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert "epsilon" in out


BAD = [
    ["epsilon", "--sampling-rate", "0", "--noise", "2", "--steps", "320", "--delta", "8e-5"],
    ["epsilon", "--sampling-rate", "1.5", "--noise", "2", "--steps", "320", "--delta", "8e-5"],
    ["epsilon", "--sampling-rate", "nan", "--noise", "2", "--steps", "320", "--delta", "8e-5"],
    ["epsilon", "--sampling-rate", "one", "--noise", "2", "--steps", "320", "--delta", "8e-5"],
    ["epsilon", "--sampling-rate", "0.1", "--noise", "0", "--steps", "320", "--delta", "8e-5"],
    ["epsilon", "--sampling-rate", "0.1", "--noise", "-1", "--steps", "320", "--delta", "8e-5"],
    ["epsilon", "--sampling-rate", "0.1", "--noise", "inf", "--steps", "320", "--delta", "8e-5"],
    ["epsilon", "--sampling-rate", "0.1", "--noise", "2", "--steps", "0", "--delta", "8e-5"],
    ["epsilon", "--sampling-rate", "0.1", "--noise", "2", "--steps", "x", "--delta", "8e-5"],
    ["epsilon", "--sampling-rate", "0.1", "--noise", "2", "--steps", "10", "--delta", "1"],
    ["epsilon", "--sampling-rate", "0.1", "--noise", "2", "--steps", "10", "--delta", "1e-12"],
    ["epsilon", "--sampling-rate", "0.1", "--noise", "2", "--steps", "10"],
    ["epsilon", "--sampling-rate", "0.1", "--noise", "2", "--delta", "1e-5"],
    ["epsilon", "--sampling-rate", "0.1", "--steps", "10", "--delta", "1e-5"],
    ["epsilon", "--noise", "2", "--steps", "10", "--delta", "1e-5"],
    [*BASE, "--misses", "300/200"],
    [*BASE, "--misses", "20"],
    [*BASE, "--misses", "-1/200"],
    [*BASE, "--misses", "20/200", "--public-misses", "21/200"],
    [*BASE, "--misses", "20/200", "--public-misses", "0/100"],
    [*BASE, "--public-misses", "0/100"],
    [*BASE, "--misses", "20/200", "--confidence", "1"],
    [*BASE, "--group", "0"],
    [*BASE, "--group", "2", "--adjacency", "add-remove"],
    [*BASE, "--adjacency", "replace"],
    [*BASE, "--sampler", "sorted"],
    [*BASE, "--epsilon", "2"],
    [*BASE, "--bayesian-epsilon", "2"],
    [*BASE, "--records", "7"],
    [*BASE, "--misses", "20/200", "--adjacency", "add-remove"],
    [*BASE, "--misses", "9" * 5000 + "/5"],
    ["epsilon", "--sampler", "shuffled", "--epochs", "3", "--noise", "2", "--delta", "1e-5", "--steps", "3"],
    ["epsilon", "--epsilon", "2", "--records", "2000", "--epochs", "3", "--delta", "1e-5", "--misses", "2/20"],
    ["epsilon", "--epsilon", "2", "--delta", "1e-5"],
    ["epsilon", "--labels-for", "0.1", "--delta", "1e-5"],
    ["epsilon", "--labels-for", "1e-12"],
    ["epsilon", "--epsilon", "700", "--sampling-rate", "0.01", "--steps", "100", "--delta", "1e-5"],
    [*BASE, "--misses", "\u0663/\u0662\u0660\u0660"],
    ["epsilon", "--epsilon", "100", "--noise", "50", "--sampling-rate", "0.001", "--delta", "1e-5"],
    [*BASE, "--batch-size", "3"],
    [*BASE, "--epochs", "3"],
    ["epsilon", "--epsilon", "0", "--sampling-rate", "0.1", "--steps", "10", "--delta", "1e-5"],
    ["epsilon", "--epsilon", "0.001", "--sampling-rate", "1", "--noise", "1", "--delta", "1e-5"],
    ["epsilon", "--labels-for", "0"],
    ["verify", "no/such/run"],
    ["verify"],
    ["unknown"],
    ["epsilon", "--what"],
]


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_is_one_clear_line_and_exit_code_two(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("confide: ")
    assert len(err.strip().splitlines()) == 1
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 2
    assert json.loads(out)["exit_code"] == 2


def test_demo_then_verify_then_forge(shown, capsys):
    folder, out = shown
    assert "holds" in out
    assert "recomputed" in out
    assert "rank of the planted secret" in out
    assert {"model", "certificate.json", "ledger.jsonl", "telemetry.jsonl"} <= {
        p.name for p in (folder / "crt").iterdir()
    }
    assert not (folder / "plain" / "certificate.json").exists()
    code, out, _ = run(capsys, "verify", str(folder / "crt"))
    assert code == 0
    assert "under these assumptions" in out
    assert ask(capsys, "verify", str(folder / "crt"))["holds"] is True
    forged = json.loads((folder / "crt" / "certificate.json").read_text())
    forged["guarantees"][0]["epsilon"] /= 2
    (folder / "crt" / "forged.json").write_text(json.dumps(forged))
    code, out, err = run(capsys, "verify", str(folder / "crt" / "forged.json"))
    assert code == 3
    assert "epsilon" in err
    code, out, err = run(capsys, "verify", str(folder / "crt" / "forged.json"), "--json")
    assert json.loads(out)["holds"] is False


def test_the_demo_never_overwrites(capsys, tmp_path):
    code, _, err = run(capsys, "demo", "-o", str(tmp_path))
    assert code == 2
    assert "exists" in err
    (tmp_path / "file").touch()
    assert run(capsys, "demo", "-o", str(tmp_path / "file"))[0] == 2


WATCHED = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("a connection was opened")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        assert name.split(".")[0] not in ("torch", "transformers"), name
sys.meta_path.insert(0, NoTorch())
import confide.accounting
from confide.cli import main
main(sys.argv[1:])
"""


def test_no_command_opens_a_connection_or_imports_torch(shown):
    for arguments in (BASE, ["verify", str(shown[0] / "crt")], ["train", "--help"], ["plan", "--help"]):
        done = subprocess.run([sys.executable, "-c", WATCHED, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_installed_command_and_the_module_are_the_same():
    script = os.path.join(os.path.dirname(sys.executable), "confide")
    by_script = subprocess.run([script, *BASE, "--json"], capture_output=True, text=True, check=True)
    by_module = subprocess.run(
        [sys.executable, "-m", "confide", *BASE, "--json"], capture_output=True, text=True, check=True
    )
    assert by_script.stdout == by_module.stdout


def test_the_demo_prints_what_readme_shows(shown):
    """The same titles and rows, and the same words but for numbers, wherever the lines break."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    page = re.search(r"<!-- demo -->\n```text\n(.*?)```", readme, flags=re.DOTALL)[1]
    titles = re.findall(r"(?<= )\d  \S.*?(?= [─-]|$)", page, flags=re.MULTILINE)
    assert len(titles) == 6
    said = shown[1].replace(str(shown[0]), "demo")
    words = [re.sub(r"\S*\d\S*", "0", re.sub(r"[─?-]{2,}", " ", text)).split() for text in (page, said)]
    assert [title for title in titles if " ".join(title.split()) not in said] == []
    for label in (
        "perplexity, held-out public turns",
        "next tokens right",
        "rank of the planted secret",
        "its exposure, in bits",
    ):
        assert label in page
        assert label in said
    alike = difflib.SequenceMatcher(None, *words, autojunk=False).ratio()
    assert alike > 0.8  # examples and what the model writes differ


def test_help_lists_every_command_and_fits_a_screen(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    group = get_command(app)
    assert set(SUMMARIES) == set(group.commands)
    for command in (None, *group.commands):
        code, out, _ = run(capsys, *([] if command is None else [command]), "--help")
        assert code == 0
        lines = out.splitlines()
        assert len(lines) <= 40, f"{command}: {len(lines)} lines"
        assert max(map(len, lines)) <= 80, command
        example = lines[next(i for i, line in enumerate(lines) if line.strip() == "Example:") + 2]
        words = shlex.split(example)
        assert words[0] == "confide"
        assert command in (None, words[1])
        group.commands[words[1]].make_context(words[1], words[2:])
    out = run(capsys, "-h")[1]
    assert all(f"\n  {name} " in out for name in SUMMARIES)
    assert "..." not in out.split("Commands:")[1]


@pytest.mark.parametrize("command", ["screen", "plan", "train", "attack"])
def test_rare_options_are_listed_on_demand_and_work_as_ever(capsys, command):
    few, every = (run(capsys, command, flag)[1] for flag in ("--help", "--help-all"))
    options = {name for one in get_command(app).commands[command].params for name in one.opts}
    assert all(name in every for name in options)
    assert not all(name in few for name in options)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (["scren"], "screen"),
        (["verfy", "run"], "verify"),
        (["screen", "chats.jsonl", "--polcy", "patterns"], "--policy"),
        (["train", "screened", "--metod", "crt"], "--method"),
        (["train", "screened", "--tuning-run", "1"], "--tuning-runs"),
        (["screen", str(Path(__file__).parents[1] / "README.md"), "--policy", "pattern"], "patterns"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else words,
)
def test_mistyped_words_are_answered_with_the_right_one(capsys, wrong, right):
    code, out, err = run(capsys, *wrong)
    assert (code, out) == (2, "")
    assert f"id you mean '{right}'?" in err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("confide tr", "train"), ("confide screen --conserv", "--conservative"), ("confide train --method j", "jft")],
)
def test_the_shell_completes_commands_options_and_choices(typed, offered):
    words = typed.split(" ")
    for shell, more in (
        ("bash", {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": typed}),
        ("fish", {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "confide"], capture_output=True, text=True, check=True,
            env={**os.environ, "_CONFIDE_COMPLETE": f"complete_{shell}", **more},
        )  # fmt: skip
        assert offered in done.stdout, shell


def test_the_package_offers_verify(shown):
    import confide

    assert confide.verify(shown[0] / "crt").numbers > 50
    with pytest.raises(AttributeError):
        _ = confide.nothing


@pytest.fixture
def chats(tmp_path):
    rows = [
        {"id": i, "text": f"SYS: Hello there.\nUSR: I am Zoe Quill, my number is 555-010-{1000 + i}."} for i in range(4)
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "chats.jsonl"


def test_screen_counts_and_shows_records_only_if_asked(capsys, chats, tmp_path):
    command = ["screen", str(chats), "--policy", "patterns", "--conservative", "allowlist", "--unit", "turn"]
    found = ask(capsys, *command, "-o", str(tmp_path / "a"))
    assert (found["records"], found["public"], found["private"]) == (8, 4, 4)
    assert found["k"]["missed"] == 1
    code, out, err = run(capsys, *command, "-o", str(tmp_path / "b"))
    assert (code, err) == (0, "")
    assert "4 public, 4 private" in out
    assert "Quill" not in out
    _, shown, _ = run(capsys, *command, "-o", str(tmp_path / "c"), "--show", "1")
    assert "Quill" in shown
    assert "PHONE (patterns" in " ".join(shown.split())


def test_screen_says_loudly_what_is_missing(capsys, chats, tmp_path):
    _, out, _ = run(capsys, "screen", str(chats), "--policy", "miss(digits, 0.5)", "-o", str(tmp_path / "out"))
    assert "warning: policy: misses a share of 0.5" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.jsonl", "--policy", "digits"], "nowhere.jsonl"),
        (["CHATS"], "--policy"),
        (["CHATS", "--policy", "nonsense"], "no policy is called 'nonsense'"),
        (["CHATS", "--policy", "digits", "--text-field", "words"], "has no column 'words' for --text-field"),
        (["CHATS", "--policy", "digits", "--workers", "0"], "--workers"),
        (["CHATS", "--policy", "digits", "--cluster", "?"], "--cluster is `auto`"),
        (["CHATS", "--policy", "digits", "--unit", "letter"], "--unit must be one of document, turn, sentence"),
        (["CHATS", "--policy", "digits", "--show", "-1"], "--show"),
    ],
)
def test_screening_mistakes_are_one_line_and_leave_nothing(capsys, chats, tmp_path, arguments, reason):
    arguments = [str(chats) if argument == "CHATS" else argument for argument in arguments]
    code, out, err = run(capsys, "screen", *arguments, "-o", str(tmp_path / "out"))
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["screen", "CHATS", "--policy", "digits", "-o", "b\udcff"],
        ["screen", "CHATS\udcff", "--policy", "digits", "-o", "out"],
        ["generate", "run", "\udcff"],
        ["verify", "\udcff", "--json"],
    ],
)
def test_arguments_that_are_not_utf_8_are_refused_before_anything_is_made(
    capsys, chats, tmp_path, monkeypatch, arguments
):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *(one.replace("CHATS", str(chats)) for one in arguments))
    assert code == 2
    assert re.fullmatch(r"confide: argument \d is not UTF-8; .*\n", err)
    assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]


def test_what_cannot_be_read_or_made_says_so(capsys, chats, tmp_path, monkeypatch):
    def closed(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("confide.screening.pipeline.partial_folder", closed)
        code, _, err = run(capsys, "screen", str(chats), "--policy", "digits", "-o", str(tmp_path / "out"))
    assert (code, "nothing was written; name another folder" in err) == (1, True)
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr("confide.sources.os.access", lambda path, mode: False)
    code, _, err = run(capsys, "screen", str(tmp_path / "closed"), "--policy", "digits", "-o", str(tmp_path / "out"))
    assert (code, "permission denied" in err) == (2, True)


def test_what_is_of_another_kind_is_called_by_its_name(capsys, chats, tmp_path):
    ask(capsys, "screen", str(chats), "--policy", "digits", "-o", str(tmp_path / "screened"))
    _, _, err = run(capsys, "generate", str(tmp_path / "screened"), "hi")
    assert "is a screened corpus; name a run" in err
    _, _, err = run(capsys, "verify", str(chats))
    assert "is not a certificate" in err
    assert "ledger" not in err
    (tmp_path / "odd").mkdir()
    _, _, err = run(capsys, "purge", str(tmp_path / "odd"))
    assert "name such a folder" in err


def test_policies_are_listed_with_what_they_need(capsys):
    names = {entry["name"]: entry for entry in ask(capsys, "policies")["policies"]}
    for name in (
        "digits",
        "patterns",
        "pii",
        "low-entity",
        "high-contextual",
        "scores",
        "known",
        "allowlist",
        "customersim",
    ):
        assert names[name]["summary"]
    assert "presidio" in names["pii"]["needs"]
    code, out, _ = run(capsys, "policies")
    assert code == 0
    assert "union(A, B, …)" in out


def test_unexpected_errors_name_their_place_and_quote_nothing(capsys, chats, tmp_path, monkeypatch):
    from confide.screening import pipeline

    def wrong(*_):
        raise ZeroDivisionError("Zoe Quill")

    monkeypatch.setattr(pipeline._Work, "write", wrong)
    code, out, err = run(capsys, "screen", str(chats), "--policy", "digits", "-o", str(tmp_path / "out"))
    assert (code, out) == (1, "")
    assert "ZeroDivisionError at pipeline.py:" in err
    assert "Quill" not in err


def test_an_interrupt_is_said(capsys, chats, tmp_path, monkeypatch):
    from confide.screening import pipeline

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline._Work, "write", interrupt)
    code, _, err = run(capsys, "screen", str(chats), "--policy", "digits", "-o", str(tmp_path / "out"), "--json")
    assert code == 130
    assert "interrupted; go on with --resume" in err


@pytest.mark.parametrize("out", [".", "/", ""])
def test_the_output_is_a_new_folder(capsys, chats, out):
    code, _, err = run(capsys, "screen", str(chats), "--policy", "digits", "-o", out)
    assert code == 2
    assert "name a new folder with -o" in err


def test_the_place_of_an_error_is_a_line_of_ours_wherever_the_libraries_lie(capsys, tmp_path, monkeypatch):
    """In a clone called confide, as in its .venv, every path holds the name."""
    library = tmp_path / "confide" / ".venv" / "library.py"
    library.parent.mkdir(parents=True)
    library.write_text("def broken(*_, **__):\n    raise RuntimeError\n")
    found = {}
    exec(compile(library.read_text(), str(library), "exec"), found)
    monkeypatch.setattr("confide.policies.known_policies", found["broken"])
    code, _, err = run(capsys, "policies")
    assert code == 1
    assert "RuntimeError at screening.py:" in err


def test_errors_that_nobody_catches_are_told_without_their_message(capsys, monkeypatch):
    """Those of threads, and of what is cleared away: Python would print their messages."""

    class Careless:
        def __del__(self):
            raise RuntimeError("cleared away: Jane Roe")

    def careless(*_, **__):
        thread = threading.Thread(target=lambda: {}["in a thread: Jane Roe"])
        thread.start()
        thread.join()
        Careless()
        return 0

    monkeypatch.setattr("confide.cli.app", careless)
    before = sys.unraisablehook, threading.excepthook
    with pytest.raises(SystemExit):
        main(["policies"])
    said = capsys.readouterr().err
    assert "KeyError" in said
    assert "RuntimeError" in said
    assert "Jane Roe" not in said
    assert (sys.unraisablehook, threading.excepthook) == before
