"""Commands in; a line for each fault that they met at a random moment out, and exit code 1 if anything was lost or told badly.

    python tests/faults/harness.py --points 250 --seed 1 --log faults.jsonl      (or: make faults)
    python tests/faults/harness.py --only train:power --points 20 --seed 7
    python tests/faults/harness.py --only train:power --at 3:41                  one point of a log again: seed 3, moment 41

A point is a command, a kind of fault and a seed. The command runs in a process forked from this one, which has everything imported, on a
copy of a small corpus, screening and run. It is killed (-9); or the power is cut, so that what was not synced is lost; or the disk is
full, read-only or broken from that moment on; or it is truly full (a small tmpfs, where mounting is allowed); or a file is cut off or has
a bit flipped between two commands; or a second process comes along, and is refused. Then the same command goes on, as a user would do it, and all of this must hold:

* no traceback; every refusal names a file or folder and what to do next, and quotes no secret;
* the ledger counts every step that was taken (a diary outside of the folder knows) and none beyond the plan;
* the command ends as if nothing had happened, or damage is refused; answers of a review that were acknowledged are there;
* no file is half-written under its own name, nothing is left over.
"""

import argparse
import contextlib
import gc
import http.client
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from inject import Disk, damage

COMMANDS = ("screen", "train", "attack", "review", "run", "report")
KINDS = ("kill", "power", "full", "readonly", "broken", "tmpfs", "truncate", "flip", "second")
# Of 20 canaries all coins of a half may fall alike, and then there is no audit
SCREEN = ["--policy", "patterns", "--conservative", "allowlist", "--unit", "turn", "--canaries", "audit,number=40"]
TRAIN = {
    "model": "lstm:hidden_size=16,embedding_size=16", "method": "crt", "noise": 1.0, "delta": 1e-3, "vocabulary_size": 300,
    "max_length": 32, "epochs": 2, "private_batch_size": 20, "validation_share": 0.2, "log_every": 1, "checkpoint_every": 4,
    "reserve": 2, "keep": "best",
}  # fmt: skip
ROOM = {
    "screen": 100_000,
    "train": 700_000,
    "attack": 12_000,
    "review": 120_000,
    "run": 800_000,
    "report": 500_000,
}  # bytes that each takes
ATTACK = ["--only", "audit", "--seed", "1"]
NEXT = re.compile(
    r"\b(again|resume|remove|make room|name (a|another)|bring|put it back|restore|free|go on|goes on|start|wait|move it|install|write the)\b"
)
PATIENCE = 120


class Failed(Exception):
    """What a point showed that must not be."""


def must(holds, why):
    if not holds:
        raise Failed(why)


# -- commands in processes of their own -------------------------------------------------------------------------------


class Ended:
    """A process that has ended: its exit code (negative: a signal), its output, its complaint."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


def start(world, arguments, disk=None, diary=None):
    """Fork a process that runs a command of confide under a fault."""
    out, err = world.scratch / "out.txt", world.scratch / "err.txt"
    err.unlink(missing_ok=True)  # of the process before
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.chdir("/")
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        if diary is not None:
            _count_steps(diary)
        if disk is not None:
            disk.watch()
        from confide.cli import main

        main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            if disk is not None:
                disk.busy = True
                Path(f"{disk.root}.moments").write_text(json.dumps([disk.seen, sorted(sys.modules)]))
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _count_steps(diary):
    """Note each noised step in a file outside of the folder, before it takes effect."""
    from confide.dp import PrivateGradients

    release = PrivateGradients.release
    note = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    write = os.write

    def noted(self, step):
        write(note, b"step\n")
        return release(self, step)

    PrivateGradients.release = noted


def wait(world, child, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            texts = [(world.scratch / name).read_text(errors="replace") for name in ("out.txt", "err.txt")]
            return Ended(os.waitstatus_to_exitcode(status), *texts)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Failed(f"no end after {seconds} s")


def confide(world, *arguments, disk=None, diary=None):
    return wait(world, start(world, [*map(str, arguments), "--json"], disk, diary))


# -- a small world ----------------------------------------------------------------------------------------------------


class World:
    """A folder with a corpus, and copies of it with a screening, a run, attacks and a review in it, always at the same place."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.home, self.scratch, self.kept = (self.folder / name for name in ("home", "scratch", "kept"))
        self.mounted = False
        for one in (self.scratch, self.kept):
            one.mkdir(parents=True)
        self.wanted = {}  # what whole stages hold
        self.seen, self.moments = {}, {}  # of a command without a fault: each by name, and how many there are

    def build(self, cells):
        """Everything that the commands start from, made by the commands themselves, each counted."""
        names = {name for name, _ in cells}
        importlib.import_module("confide.cli")
        from confide.experiments.customersim import dialogues, people

        self.home.mkdir()
        chats = list(dialogues(16, crowd=people(0, 60)))
        rows = [json.dumps({"id": chat.id, "text": chat.text}) + "\n" for chat in chats]
        (self.home / "chats.jsonl").write_text("".join(rows))
        self.secrets = {chat.text[start:end] for chat in chats for start, end, _ in chat.secrets}
        self.secrets = {one for one in self.secrets if len(one) > 6}
        choice = dict(zip(("policy", "conservative", "unit", "canaries"), SCREEN[1::2], strict=True))
        config = {"out": "all", "corpus": "chats.jsonl", "screen": choice, "train": TRAIN}
        (self.home / "all.yaml").write_text(json.dumps({**config, "attack": {"only": ["audit"], "seed": 1}}))
        self.save("corpus")
        needed = {*names, *(BEFORE[name] for name in names), "screen", *(["train"] if "run" in names else [])}
        for name in [one for one in COMMANDS if one in needed]:
            self.load(BEFORE[name])
            disk = Disk(self.home)
            if name == "review":
                ended, _ = review(self, disk)
            else:
                ended = confide(self, *line(self, name), disk=disk)
            if ended.code:
                raise SystemExit(f"{name} fails without any fault: {ended.err}")
            self.seen[name], modules = json.loads(Path(f"{self.home}.moments").read_text())
            self.moments[name] = len(self.seen[name])
            for module in modules:  # so that the next process need not load them
                with contextlib.suppress(Exception):
                    importlib.import_module(module)
            self.wanted[name] = _contents(self, name)
            self.save(name)
            if name == "review" and {("review", "truncate"), ("review", "flip")} & set(cells):
                must(confide(self, *reviewed(self)).code == 0, "a run with a review fails without any fault")
                self.wanted[name] = _promised(self.home / "run")

    def save(self, name):
        shutil.copytree(self.home, self.kept / name)

    def load(self, name, room=None):
        """The world as it was after a command; on a tmpfs with so many bytes of room if `room` is given."""
        self.unmount()
        shutil.rmtree(self.home, ignore_errors=True)
        for rest in self.folder.glob("home.*"):
            shutil.rmtree(rest) if rest.is_dir() else rest.unlink()
        if room is None:
            shutil.copytree(self.kept / name, self.home)
            return
        self.home.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(self.home)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            raise PermissionError
        self.mounted = True
        shutil.copytree(self.kept / name, self.home, dirs_exist_ok=True)
        free = os.statvfs(self.home)
        (self.home / "filler").write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - room)))

    def make_room(self):
        (self.home / "filler").unlink()

    def unmount(self):
        if self.mounted:
            subprocess.run(["umount", str(self.home)], check=True)
            self.mounted = False


BEFORE = {
    "screen": "corpus",
    "train": "screen",
    "attack": "train",
    "review": "screen",
    "run": "corpus",
    "report": "train",
}


def line(world, name, again=False):
    """A command as a user types it; `again`: as its own complaint, or common sense, says after an interruption."""
    home = world.home
    if name == "screen":
        resume = ["--resume"] if again and (home / "screened.partial").exists() else []
        return ["screen", home / "chats.jsonl", *SCREEN, "-o", home / "screened", *resume]
    if name == "train":
        if again and (home / "run").exists():
            return ["train", "--resume", "-o", home / "run"]
        options = [part for key, value in TRAIN.items() for part in (f"--{key.replace('_', '-')}", value)]
        return ["train", home / "screened", *options, "-o", home / "run"]
    return {
        "attack": ["attack", home / "run", *ATTACK],
        "run": ["run", home / "all.yaml"],
        "report": ["report", home / "run"],
    }[name]


def reviewed(world):
    """Training with what the review says."""
    first, *rest = line(world, "train")[1:]
    return ["train", first, "--review", world.home / "screened" / "review.json", *rest]


# -- a review: a server, and a browser that answers -------------------------------------------------------------------


def review(world, disk, answers=6):
    """Serve a review and answer records until the server ends. Every answer that it acknowledged is noted."""
    child = start(world, ["review", str(world.home / "screened"), "--sample", "8", "--no-browser", "--port", "0"], disk)
    done = []
    try:
        link = _link(world, child)
        if link is not None:
            _answer(link, answers, done)
    except (OSError, http.client.HTTPException):
        pass  # the server met its fault
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)
    return wait(world, child), done


def _link(world, child):
    """The link that the server prints; None if it ended before."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        text = (world.scratch / "err.txt").read_text(errors="replace") if (world.scratch / "err.txt").exists() else ""
        found = re.search(r"http://127.0.0.1:(\d+)/\?token=(\S+)\nEvery", text)
        if found:
            return int(found[1]), found[2]
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return None
        time.sleep(0.02)
    raise Failed("the review never began")


def _answer(link, answers, done):
    """Answer as a browser does; whatever the server says it has saved goes into `done` at once."""
    port, token = link
    browser = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    browser.request("GET", f"/?token={token}")
    response = browser.getresponse()
    response.read()
    cookie = response.headers["set-cookie"].partition(";")[0]
    headers = {"Cookie": cookie, "Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"}
    for place in range(answers):
        body = {"do": "skip" if place % 3 == 2 else "answer", "place": place, "piece": 0, "version": 0}
        browser.request("POST", "/act", json.dumps(body), headers)
        response = browser.getresponse()
        said = json.loads(response.read())
        if response.status != 200:
            must("error" in said, f"an answer was refused without a reason ({response.status})")
            must("Traceback" not in said["error"], "a traceback on the page")
            break
        done.append((place, body["do"]))


def _saved_answers(world):
    """What the review's file holds, read by SQLite alone."""
    import sqlite3

    path = world.home / "screened" / "review.sqlite"
    if not path.exists():
        return []
    connection = sqlite3.connect(path)
    try:
        return [kind for (kind,) in connection.execute("SELECT kind FROM actions ORDER BY number")]
    except sqlite3.OperationalError:  # killed before its tables were there
        return []
    finally:
        connection.close()


# -- what must hold ---------------------------------------------------------------------------------------------------


def clear(world, ended, codes=(1, 2)):
    """A refusal as it must be: one line, what, where, what next, and no secret."""
    must("Traceback" not in ended.err, f"a traceback: {ended.err[-1500:]}")
    must(ended.code in codes, f"exit code {ended.code}: {ended.err[-600:]}")
    said = [one for one in ended.err.splitlines() if one.startswith("confide: ")]
    must(len(said) == 1, f"{len(said)} complaints: {ended.err[-600:]}")
    must("mistake in confide" not in said[0], f"an unexpected error: {said[0]}")
    must(str(world.home) in said[0], f"no file is named: {said[0]}")
    must(NEXT.search(said[0]), f"no next step is named: {said[0]}")
    must(not any(secret in ended.err for secret in world.secrets), "a secret in a complaint")


def _contents(world, name):
    """What a stage made, in so far as it is the same every time."""
    home = world.home / "all" if name == "run" else world.home
    if name == "screen":
        return _records(home / "screened")
    if name in ("train", "run"):
        return _promised(home / "run")
    if name == "attack":
        return json.loads((home / "run" / "attacks.json").read_text())["audit"]["black_box"]["canaries"]
    if name == "report":
        return (home / "run" / "report.html").stat().st_size > 0
    return None


def _records(folder):
    from confide.errors import ConfideError
    from confide.screening.screened import Screened

    columns = {"public": ["id", "text"], "private": ["id", "text", "raw"]}
    try:
        screened = Screened.open(folder)
        found = {
            part: [row for b in screened.batches(part, names) for row in b.to_pylist()]
            for part, names in columns.items()
        }
    except ConfideError as error:
        raise Failed(f"the screened corpus cannot be read: {error}") from None
    manifest = {key: value for key, value in screened.manifest.items() if key not in ("digest", "checksum")}
    # what was planted is drawn anew
    return (
        [[row for row in rows if not row["id"].startswith("canary")] for rows in found.values()],
        manifest["k"],
        manifest["certificate"],
    )


def _promised(run):
    certificate = json.loads((run / "certificate.json").read_text())
    return certificate["guarantees"]


def counts_every_step(world, run, diary):
    """The ledger holds at least the steps that were taken. Out: how many it holds."""
    from confide.accounting import read_ledger
    from confide.errors import ConfideError

    taken = len(diary.read_text().split()) if diary.exists() else 0
    if not (run / "ledger.jsonl").exists():
        must(taken == 0, f"{taken} steps were taken, and there is no ledger")
        return 0
    data = (run / "ledger.jsonl").read_bytes()
    whole = world.scratch / "ledger.jsonl"
    whole.write_bytes(data[: data.rfind(b"\n") + 1])  # a torn line is no line
    try:
        ledger = read_ledger(whole)
    except ConfideError as error:
        raise Failed(f"the ledger cannot be read: {error}") from None
    paid = sum(event.count for phase, event in ledger.spent if phase == "train")
    planned = sum(event.count for phase, event in ledger.planned if phase == "train")
    must(taken <= paid <= planned, f"{taken} steps were taken, {paid} are in the ledger, {planned} were planned")
    return paid


def whole(world, name, diary):
    """A stage that says it is done, is."""
    home = world.home / "all" if name == "run" else world.home
    if name in ("screen", "run"):
        must(_records(home / "screened") == world.wanted["screen"], "the screened records are others")
        must(not (home / "screened.partial").exists(), "a partial folder is left")
    if name in ("train", "run"):
        must(_promised(home / "run") == world.wanted["train"], "the certificate is another one")
        counts_every_step(world, home / "run", diary)
        _verifies(home / "run")
        _loads(home / "run")
        for text in (home / "run" / "telemetry.jsonl").read_text().splitlines():
            json.loads(text)
    if name == "attack":
        must(_contents(world, name) == world.wanted[name], "the attack found something else")
    if name == "run":
        must(json.loads((home / "run" / "attacks.json").read_text())["contradictions"] == [], "no attacks")
    if name == "report":
        page = (home / "run" / "report.html").read_text()
        must(page.rstrip().endswith("</html>"), "half a report")
    left = [path for path in home.rglob("*") if path.name.endswith((".partial", ".new", ".replaced"))]
    must(not left, f"left over: {left}")


def _verifies(run):
    from confide.accounting import verify
    from confide.errors import ConfideError

    try:
        verify(run)
    except ConfideError as error:
        raise Failed(f"the certificate does not verify: {error}") from None


def _loads(run):
    """The model is a model: its weights can be read and are finite."""
    import torch
    from safetensors.torch import load_file

    found = load_file(run / "model" / "model.safetensors")
    must(found and all(torch.isfinite(one).all() for one in found.values()), "the model's weights are broken")


# -- points -----------------------------------------------------------------------------------------------------------


def point(world, name, kind, seed, moment=None, lost=None, near=""):
    """One fault, and what came of it: a line for the log. Raises `Failed`."""
    coins = random.Random(f"{name}:{kind}:{seed}")
    diary = world.scratch / "diary"
    diary.unlink(missing_ok=True)
    if kind in ("truncate", "flip"):
        return damaged(world, name, kind, coins, diary)
    if kind == "second":
        return two_at_once(world, name, coins, diary)
    room = coins.randint(0, ROOM[name]) if kind == "tmpfs" else None
    disk = None
    try:
        world.load(BEFORE[name], room)
    except PermissionError:
        kind = "full"  # mounting is not allowed here
        world.load(BEFORE[name])
    if kind != "tmpfs":
        near = [number for number, one in enumerate(world.seen[name], 1) if near in one]
        moment = moment or coins.choice(near)
        share = coins.choice([0.3, 0.7, 1.0]) if lost is None else lost
        disk = Disk(world.home, kind, moment, seed, share)
    ended, done = run_once(world, name, disk, diary)
    if kind == "power" and Path(f"{world.home}.left").exists():
        shutil.rmtree(world.home)
        Path(f"{world.home}.left").rename(world.home)
    at = Path(f"{world.home}.at").read_text() if Path(f"{world.home}.at").exists() else ""
    about = {"moment": moment, "artefact": at, "exit": ended.code}
    if ended.code > 0:
        clear(world, ended)
    else:
        must(ended.code in (0, -signal.SIGKILL), f"ended with {ended.code}: {ended.err[-600:]}")
        must("Traceback" not in ended.err, f"a traceback: {ended.err[-1500:]}")
    if name in ("train", "run"):
        counts_every_step(world, world.home / ("all/run" if name == "run" else "run"), diary)
    if name == "review":
        kept = _saved_answers(world)
        must(
            len(kept) >= len(done) and kept[: len(done)] == [do for _, do in done],
            f"{len(done)} answers were acknowledged, {len(kept)} are there",
        )
    if kind == "tmpfs":
        world.make_room()
    if ended.code == 0 and name != "review" and not at:
        whole(world, name, diary)
        return {**about, "outcome": "done"}
    again, _ = run_once(world, name, None, diary, again=True)
    if again.code == 2 and name in ("screen", "train") and "exists and is never overwritten" in again.err:
        must(name == "screen", f"a run can neither be resumed nor begun: {again.err}")
    else:
        must(again.code == 0, f"it does not go on ({again.code}): {again.err[-1500:]}")
    whole(world, name, diary)
    if name == "review":
        must(_saved_answers(world)[: len(done)] == [do for _, do in done], "answers are gone after going on")
    return {**about, "outcome": "went on"}


def run_once(world, name, disk, diary, again=False):
    if name == "review":
        return review(world, disk, answers=0 if again else 6)
    steps = diary if name in ("train", "run") else None
    return confide(world, *line(world, name, again), disk=disk, diary=steps), []


def two_at_once(world, name, coins, diary):
    """The same command a second time while the first is in the midst of it: the second is refused, the first ends well."""
    world.load(BEFORE[name])
    moment = coins.randint(world.moments[name] // 4 + 1, world.moments[name] - 3)
    first = start(world, [*map(str, line(world, name)), "--json"], Disk(world.home, "second", moment), diary)
    _until(Path(f"{world.home}.at").exists, "the first never came to its moment")
    at = Path(f"{world.home}.at").read_text()
    second = confide(world, *line(world, name, again=coins.random() < 0.5), diary=diary)
    Path(f"{world.home}.go").touch()
    ended = wait(world, first)
    clear(world, second)
    must(ended.code == 0, f"the first ended with {ended.code}")
    whole(world, name, diary)
    return {"moment": moment, "artefact": at, "exit": second.code, "outcome": "the second was refused"}


def _until(holds, why):
    end = time.monotonic() + PATIENCE
    while not holds():
        must(time.monotonic() < end, why)
        time.sleep(0.02)


def damaged(world, name, kind, coins, diary):
    """A file cut off or changed after a kill or at the end, and then whatever reads it."""
    half = name in ("screen", "train", "run") and coins.random() < 0.5
    moment = None
    world.load(BEFORE[name] if half else name)
    if half:
        moment = coins.randint(world.moments[name] // 4, world.moments[name])
        confide(world, *line(world, name), disk=Disk(world.home, "kill", moment), diary=diary)
    folders = [world.home / one for one in ("screened", "screened.partial", "run", "all")]
    files = sorted(
        path for folder in folders for path in folder.rglob("*") if path.is_file() and _is_of(world, path, name)
    )
    if not files:
        files = [world.home / "chats.jsonl"]
    path = coins.choice(files)
    at = damage(path, kind, coins)
    about = {"moment": moment, "artefact": str(path.relative_to(world.home)), "place": at}
    outcomes = {}
    for follow, arguments in _followers(world, name, half):
        if follow == "review":
            ended, _ = review(world, None, answers=0)
        else:
            ended = confide(world, *arguments, diary=diary)
        outcomes[follow] = ended.code
        if ended.code:
            clear(world, ended, codes=(1, 2, 3))
            break  # a user would stop here
        must("Traceback" not in ended.err, "a traceback")
        promised = world.home / ("all/run" if name == "run" else "run")
        wanted = world.wanted["review" if name == "review" else "train"]
        if (promised / "certificate.json").exists() and (promised / "model").exists() and follow != "review":
            check = confide(world, "verify", promised)
            if check.code == 0:
                must(_promised(promised) == wanted, f"another certificate verifies after {follow}")
            else:
                clear(world, check, codes=(1, 2, 3))
    if half and name != "screen" and "ledger.jsonl" not in path.name:
        counts_every_step(world, world.home / ("all/run" if name == "run" else "run"), diary)
    return {
        **about,
        "exit": list(outcomes.values())[-1],
        "outcome": " ".join(f"{key}={value}" for key, value in outcomes.items()),
    }


def _is_of(world, path, name):
    """Whether a file belongs to what a command made."""
    inside = path.relative_to(world.home).parts
    if name in ("train", "report"):
        return inside[0] == "run"
    if name == "attack":
        return inside[:2] == ("run", "attacks.json") or coin_of(inside)
    if name == "review":
        return inside[1].startswith("review")
    return True


def coin_of(inside):
    """Files that an attack reads besides its own."""
    return (inside[0] == "screened" and inside[1] in ("canaries.json", "coins.json")) or inside[:2] == ("run", "model")


def _followers(world, name, half):
    run = world.home / "run"
    if name == "screen":
        if half and not (world.home / "screened").exists():
            yield "screen", line(world, "screen", again=True)
        yield "train", line(world, "train")
    elif name == "train":
        yield "train", line(world, "train", again=True)
        yield "attack", line(world, "attack")
        yield "report", ["report", run]
    elif name == "review":
        yield "review", None
        if (world.home / "screened" / "review.json").exists():
            yield "train", reviewed(world)
    elif name == "run":
        yield "run", line(world, "run")
    else:
        yield "report", ["report", run]
        yield "attack", line(world, "attack")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=250, help="in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="COMMAND:KIND, several with commas; * for all of one side")
    parser.add_argument("--at", help="SEED:MOMENT of one point again")
    parser.add_argument("--near", help="only moments whose name holds this, such as 'fsync run/ledger.jsonl'")
    parser.add_argument("--lost", type=float, help="share of what is not synced that a power cut takes")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--keep", action="store_true", help="stop at the first failure, and leave the folder")
    given = parser.parse_args(arguments)
    chosen = [pair.split(":") for pair in (given.only or ",".join(f"{name}:*" for name in COMMANDS[:5])).split(",")]
    cells = [
        (name, kind)
        for kind in KINDS
        for name in COMMANDS
        if any(a in (name, "*") and b in (kind, "*") for a, b in chosen) and (name, kind) != ("review", "second")
    ]
    import tempfile

    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where a sync takes no time
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=memory))
    world, failed = World(folder), 0
    try:
        world.build(cells)
        gc.collect()
        gc.freeze()
        log = given.log.open("w") if given.log else None
        for number in range(given.points):
            name, kind = cells[number % len(cells)]
            seed = given.seed * 100_000 + number
            moment = None
            if given.at:
                seed, moment = (int(one) if one and one != "None" else None for one in given.at.split(":"))
            begun = time.monotonic()
            about = {"seed": seed, "command": name, "fault": kind}
            try:
                about |= point(world, name, kind, seed, moment, given.lost, given.near or "")
            except Failed as failure:
                failed += 1
                about |= {"outcome": "FAILED", "why": str(failure)}
                for detail in ("at",):
                    where = Path(f"{world.home}.{detail}")
                    about[detail] = where.read_text() if where.exists() else ""
            about["seconds"] = round(time.monotonic() - begun, 2)
            print(json.dumps(about), flush=True)
            if log:
                log.write(json.dumps(about) + "\n")
                log.flush()
            if failed and given.keep:
                print(folder)
                break
    finally:
        world.unmount()
        if not (given.keep and failed):
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what this process imported for others need not be taken down
