"""Every command and every snippet of the README and of the pages in docs/ does what it says.

A page is followed from top to bottom in a folder of its own, which holds small stand-ins for what a reader brings: a corpus,
lists, models in folders of the names that the hub has. Examples with `>>>` are run by doctest.
"""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.main import get_command

from confide.cli import app, main
from confide.experiments.customersim import write_corpus

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"`(confide [^`]+)`")
LOOKS_LIKE_ONE = re.compile(r"^\$ |^(confide|make|pip|python|torchrun|git|cd) ", flags=re.MULTILINE)

# What is not run here, and why. Of these the options must exist.
NOT_RUN = {
    "make": "installs, or takes minutes; its target must exist",
    "git": "needs the network",
    "cd": "the folder of the clone",
    "pip": "needs the network",
    "ray": "starts a cluster; tests/screening/test_cluster.py does",
    "torchrun": "several processes; tests/training/test_processes.py does",
    "python": "benchmarks take minutes",
    "vllm": "is not a dependency",
    "source": "changes the reader's shell",
    "confide demo": "takes minutes; tests/test_cli.py runs a small one and compares what README shows",
    "confide reproduce": "takes hours; tests/experiments/test_reproduce.py makes small ones",
    "confide --install-completion": "changes the reader's shell; tests/test_cli.py",
    "--cluster": "needs Ray started; tests/screening/test_cluster.py",
}
# The same in small, so that all pages take a minute together.
SMALL = "gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2"
SMALLER = (
    (r"--policy pii\b|(?<=[(\"'])pii\b|(?<=: )pii\b", lambda m: m[0].replace("pii", "patterns")),  # spaCy takes seconds
    (r"(--model |model=\"|model: )gpt2-tiny\b", lambda m: m[1] + SMALL),
    (r"\baudit(,number=\d+)?(?= )", "audit,number=40"),
    (r"epsilon=2.0,", "epsilon=2.0, epochs=1, max_length=32, vocabulary_size=300,"),
    (r"32_000, batch=1_000, steps=320", "320, batch=10, steps=3"),
    (r"epochs: 3", "epochs: 1, max_length: 32"),
    (r"samples: 500", "samples: 20"),
    (r"--sample \d+", "--sample 20"),
    (r"^confide (train|plan) .*(?=--model)(?!.*--epochs)", lambda m: m[0] + "--epochs 1 --max-length 32 "),
    (r"^confide plan ", lambda m: m[0] + "--no-probe "),
    (r"^confide (train|plan) .*(?=--model (lstm|gpt2-tiny))", lambda m: m[0] + "--vocabulary-size 300 "),
    (r"^confide attack ", lambda m: m[0] + "--samples 20 "),
    (r"^confide screen ", lambda m: m[0] + "--workers 1 "),
)


def smaller(text):
    for pattern, short in SMALLER:
        text = re.sub(pattern, short, text, flags=re.MULTILINE)
    return text


def blocks(page):
    """The fenced blocks of a page: line, language, text."""
    text = page.read_text()
    return [(text[: m.start()].count("\n") + 2, m[1], m[2]) for m in BLOCK.finditer(text)]


def commands(language, block):
    """The commands of a block, each with the lines that the page shows below it."""
    found = []
    for line in block.replace("\\\n", " ").splitlines():
        if language == "console" and not line.startswith("$ "):
            found[-1][1].append(line)
        elif line.strip() and not line.startswith("#"):
            found.append(
                (" ".join(shlex.split(line.removeprefix("$ "), comments=True)) and line.removeprefix("$ "), [])
            )
    return found


def parse(words):
    """Check a command of confide without running it: it exists, and so does every option."""
    group = get_command(app)
    if not words[0].startswith("--"):
        assert words[0] in group.commands, f"no command {words[0]}"
        group.commands[words[0]].make_context(words[0], list(words[1:]))
    else:
        assert words[0] in {name for one in group.params for name in one.opts}


def check_only(words):
    """What is not run: its options and targets exist."""
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
    elif words[0] == "confide":
        parse(words[1:])
    elif words[0] == "torchrun":
        parse(words[words.index("confide") + 1 :])
    elif words[0] == "python":
        source = (ROOT / words[1]).read_text()
        assert all(f'"{word}"' in source for word in words[2:] if word.startswith("--")), words
    elif words[:2] == ["pip", "install"]:
        extras = [extra for word in words for part in re.findall(r"\[(.+)\]", word) for extra in part.split(",")]
        listed = (ROOT / "pyproject.toml").read_text()
        assert all(
            f"\n{extra} = [" in listed for extra in extras if "confide" in " ".join(words) or ".[" in " ".join(words)
        )


class Reader:
    """Someone who follows a page, in a folder of its own."""

    kept: dict = {}  # noqa: RUF012  (what the same commands made on another page)

    def __init__(self, folder, store, capsys, names):
        self.folder, self.store, self.capsys, self.names, self.made = folder, store, capsys, names, {}

    def follow(self, page, language, block):
        if language == "python" and ">>>" not in block:
            exec(compile(smaller(block), page.name, "exec"), self.names)
        elif language == "yaml":
            name = re.match(r"# (\S+\.ya?ml)\n", block)
            assert name, "a YAML block begins with the name of its file"
            (self.folder / name[1]).write_text(smaller(block))
        elif language in ("console", "bash", "sh"):
            for command, shown in commands(language, block):
                self.type(command, shown)

    def type(self, command, shown):
        words = shlex.split(command, comments=True)
        if words[0] in NOT_RUN or " ".join(words[:2]) in NOT_RUN or any(word in NOT_RUN for word in words):
            return check_only(words)
        assert words[0] == "confide", f"nobody says how to try {words[0]}"
        if words[1] == "review" and "--export" not in words:
            parse(words[1:])
            return self.review(words[2])
        words = shlex.split(smaller(command), comments=True)
        out = words[words.index("-o") + 1] if "-o" in words and words[1] in ("screen", "train") else None
        key = (*words, *(self.made[word] for word in words if word in self.made))
        if out and key in self.kept and not shown:
            shutil.copytree(self.kept[key], self.folder / out)
        else:
            self.capsys.readouterr()
            with pytest.raises(SystemExit) as done:
                main(words[1:])
            said = self.capsys.readouterr()
            assert done.value.code == 0, f"{command}: {said.err}"
            self.compare(command, shown, said.out)
            if out:
                self.kept[key] = shutil.copytree(self.folder / out, self.store / str(len(self.kept)))
        if out:
            self.made[out] = hash(key)
        return None

    def compare(self, command, shown, said):
        """What the page shows is what is said: word for word by the calculator, elsewhere but for numbers."""
        plain = (
            (lambda text: text)
            if command.startswith("confide epsilon")
            else (lambda text: re.sub(r"\d[\d,.e+-]*", "0", text))
        )
        said = " ".join(plain(said).split())
        for line in shown:
            assert line.strip() == "..." or " ".join(plain(line).split()) in said, f"{command} does not say {line!r}"

    def review(self, folder):
        """A person at the review page, who finds nothing that was missed."""
        from confide.review import open_store, save

        store = open_store(self.folder / folder, sample=20)
        while (place := store.frontier()) < len(store.order):
            store.act(place, "answer", store.state(store.order[place]).version)
        save(store)
        store.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """What a reader of the pages has: a corpus, lists, mails, models."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from confide.models import build, load_tokenizer, save

    folder = tmp_path_factory.mktemp("brought")
    write_corpus(folder / "sim", 40, 0, 24, lambda: None)
    rows = [json.loads(line) for line in (folder / "sim" / "train.jsonl").read_text().splitlines()]
    shutil.rmtree(folder / "sim")
    lines = [json.dumps({"id": row["id"], "text": row["text"]}) + "\n" for row in rows]
    for name, part in (("chats", lines), ("trained", lines[:20]), ("held-out", lines[20:])):
        (folder / f"{name}.jsonl").write_text("".join(part))
    (folder / "customers.txt").write_text("Ada Quill\nBo Thorn\n")
    (folder / "public_names.txt").write_text("Acme\n")
    (folder / "mails").mkdir()
    for number in range(3):
        mail = f"From: a{number}@example.org\nSubject: Order\nContent-Type: text/plain\n\nMy order 55-{number}-1234 is late.\nBo\n"
        (folder / "mails" / f"{number}.eml").write_text(mail)
    tokenizer, _ = load_tokenizer(None, "gpt2-tiny", public_texts=lambda: iter(["SYS: Hello."]), vocabulary_size=300)
    for name in ("distilgpt2", "their-model"):
        save(build(SMALL, tokenizer, max_length=256), tokenizer, folder / name)
    shape = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **shape))
    save(llama, tokenizer, folder / "meta-llama" / "Llama-3.2-1B")
    return folder


GIVEN = {  # what a page takes for granted
    "report.md": ("confide screen chats.jsonl --policy patterns --conservative allowlist --unit turn -o screened",
                  "confide train screened --model gpt2-tiny --method crt --epsilon 2 --delta 1e-5 -o run",
                  "confide train screened --model gpt2-tiny --method crt --epsilon 2 --delta 1e-5 -o another"),
    "security.md": ("confide screen chats.jsonl --policy patterns --conservative allowlist --unit turn -o screened",
                    "confide train screened --model gpt2-tiny --method crt --epsilon 2 --delta 1e-5 -o run"),
    "review.md": ("confide screen chats.jsonl --policy patterns --conservative allowlist --unit turn -o screened",),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_can_be_followed_to_the_letter(page, brought, store, tmp_path, monkeypatch, capsys):
    shutil.copytree(brought, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, store, capsys, {})
    for command in GIVEN.get(page.name, ()):
        reader.type(command, [])
    for line, language, block in blocks(page):
        try:
            reader.follow(page, language, block)
        except BaseException as error:
            raise AssertionError(f"{page.name}, line {line}: {error}") from error


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_hides_from_the_test_above(page):
    for line, language, block in blocks(page):
        hidden = re.search(r"^\$ ", block, flags=re.MULTILINE) if language == "text" else LOOKS_LIKE_ONE.search(block)
        assert language in ("console", "bash", "sh") or not hidden, (
            f"{page.name}, line {line}"
        )  # text: what was printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_within_sentences_exist(page):
    group = get_command(app)
    for command in COMMAND.findall(BLOCK.sub("", page.read_text())):
        words = command.split()[1:]
        options = {name for one in group.params for name in one.opts}
        if not words[0].startswith("-"):
            assert words[0] in group.commands, command
            options = {name for one in group.commands[words[0]].params for name in (*one.opts, *one.secondary_opts)}
        named = {
            word.strip(",;.").split("=")[0]
            for word in words
            if word.startswith("-") and word not in ("-h", "--help", "-")
        }
        assert named <= options, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page):
    for target, place in re.findall(r"\]\(([^)#\s]+)(#[^)\s]*)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"
        if place and not target.startswith("http"):
            headings = re.findall(r"^#+ (.*)$", (page.parent / target).read_text(), flags=re.MULTILINE)
            known = {"#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert place in known, f"{page.name}: {target}{place}"


def test_sections_of_the_guarantees_that_are_named_are_there():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    there = set(re.findall(r"^#+ (\d(?:\.\d)?)\.? |^\*\*(\d[a-z])\.", page, flags=re.MULTILINE))
    there = {number or letter for number, letter in there}
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *PAGES]
    named = {}
    for path in files:
        for first, last in re.findall(r"guarantees §(\d(?:\.\d+|[a-z])?)(?:(?:-| and §)(\d))?", path.read_text()):
            named |= {section: path.name for section in (first, last) if section}
    assert {section: name for section, name in named.items() if section not in there} == {}
    assert len(named) > 8
