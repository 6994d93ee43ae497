"""Runs commands one after the other as their users would, in one process: a list of jobs on standard input comes in; what each
printed goes into files of its name, and exit codes, functions called and what the network saw go to standard output.

A job may crash: the given call of a function of confide raises an error whose message is private text, or kills the process.
"""

import collections
import functools
import http.client
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import urllib.parse
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

import confide
from confide import demo
from confide.cli import main

HERE = os.path.dirname(confide.__file__)
KINDS = {
    "RuntimeError": RuntimeError,
    "KeyError": KeyError,
    "UnicodeDecodeError": lambda text: UnicodeDecodeError("utf-8", text.encode(), 0, 1, text),
    "ValueError": ValueError,
}


def loopback():
    """Switch on this network namespace's own loopback, if it has one of its own; there is no other way out of it."""
    with socket.socket() as one, suppress(OSError):
        ioctl(one, 0x8914, struct.pack("16sh", b"lo", 1 | 64))  # SIOCSIFFLAGS: up and running


def refused_by_the_network():
    """Packets and connections for which the kernel knew no way, of any code in this namespace."""
    found = {}
    for path, name in (("/proc/net/snmp", "OutNoRoutes"), ("/proc/net/snmp6", "Ip6OutNoRoutes")):
        with suppress(OSError):
            lines = [line.split() for line in Path(path).read_text().splitlines()]
            if path.endswith("6"):
                found[name] = next(int(line[1]) for line in lines if line[0] == name)
            else:
                names, values = (line for line in lines if line[0] == "Ip:")
                found[name] = int(dict(zip(names, values, strict=True))[name])
    return found


@functools.cache
def function_of(code):
    """The name of a function of confide's, by its file; None for the rest, for what a module does when it is loaded, and for the shell."""
    path = code.co_filename
    if not path.startswith(HERE) or code.co_name == "<module>" or path.endswith("cli.py") or "/commands/" in path:
        return None
    return f"{path[len(HERE) + 1 :]}:{code.co_qualname}"


def counting(calls):
    def trace(frame, event, _):
        if (name := function_of(frame.f_code)) is not None:
            calls[name] += 1

    return trace


def crashing(function, call, kind, text):
    left = call

    def trace(frame, event, _):
        nonlocal left
        if function_of(frame.f_code) == function:
            left -= 1
            if not left:
                if kind == "kill":
                    os._exit(137)
                raise KINDS[kind](text) from LookupError(text)

    return trace


def reviewer(printed):
    """Open the link that the command prints, look at a record and answer it, look at what is wrong, and end the server."""
    try:
        while not (link := re.search(r"http://\S+", Path(printed).read_text())):
            time.sleep(0.05)
        where = urllib.parse.urlsplit(link[0])
        server = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
        host = {"Host": where.netloc}

        def ask(method, path, body=None, **headers):
            server.request(method, path, body, {**host, **headers})
            answer = server.getresponse()
            return answer, answer.read()

        entered, _ = ask("GET", f"/?{where.query}")
        cookie = {"Cookie": entered.headers["set-cookie"].partition(";")[0]}
        shown, page = ask("GET", "/record/1", **cookie)
        assert shown.status == 200, page
        told = {"Origin": f"http://{where.netloc}", "Content-Type": "application/json", **cookie}
        for act in (
            {"do": "answer", "place": 0, "version": 0},
            {"do": "mark", "place": 0, "version": -9},
            {"do": "none"},
        ):
            ask("POST", "/act", json.dumps(act), **told)
    except BaseException:
        traceback.print_exc()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def run(job, out, text):
    """Run one job with the files 1 and 2 in the place of the terminal. Out: its exit code, and what it called."""
    calls, began = collections.Counter(), time.process_time()
    printed = [os.path.join(out, f"{job['name']}.{end}") for end in ("out", "err")]
    kept = [os.dup(1), os.dup(2)]
    for number, path in enumerate(printed, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.umask(0)
    if job["argv"][0] == "review" and "--export" not in job["argv"]:
        threading.Thread(target=reviewer, args=(printed[1],), daemon=True).start()
    hook = None
    if "crash" in job:
        hook = crashing(*job["crash"], text)
    elif job.get("count"):
        hook = counting(calls)
    sys.settrace(hook)
    try:
        main(job["argv"])
        code = None
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = -1
    finally:
        sys.settrace(None)
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
    return {"code": code, "umask": os.umask(0), "calls": dict(calls), "seconds": time.process_time() - began}


def in_a_fork(job, out, text):
    child = os.fork()
    if not child:
        run(job, out, text)
        os._exit(0)
    return {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "umask": 0, "calls": {}}


def points(calls, many, kinds):
    """Some of the functions that a command calls, evenly from the first to the last; each at a call in the middle."""
    names = list(calls)
    step = max(1, len(names) // many)
    for number, name in enumerate(names[step // 2 :: step][:many]):
        yield name, (calls[name] + 1) // 2, kinds[number % len(kinds)]


def all_of(given):
    """Every job; after one that is to crash many times, those crashes, each with a folder of its own in place of `{n}`."""
    found = {}
    for job in given["jobs"]:
        many, argv = job.get("crashes", 0), job["argv"]
        found[job["name"]] = run(
            {**job, "count": bool(many), "argv": [one.replace("{n}", "") for one in argv]}, given["out"], given["text"]
        )
        kinds = [*KINDS, "kill"]
        for number, crash in enumerate(points(found[job["name"]]["calls"], many, kinds) if many else ()):
            one = {
                "name": f"{job['name']}-{number}",
                "argv": [part.replace("{n}", f"-{number}") for part in argv],
                "crash": crash,
            }
            done = (in_a_fork if crash[2] == "kill" else run)(one, given["out"], given["text"])
            found[one["name"]] = {**done, "crash": crash}
    return found


def smaller():
    """The demo ranks its secret among a million others, which takes long and leaks no more than a thousand."""
    demo.SECRET = "482"
    demo.CANARY = f"number=1,copies={demo.COPIES},secret={demo.SECRET},format={demo.PREFIX}{{digits:3}}"


if __name__ == "__main__":
    smaller()
    if os.environ.get("WATCH_NAMESPACE"):
        loopback()
    given = json.load(sys.stdin)
    found = all_of(given)
    print(json.dumps({"jobs": found, "network": refused_by_the_network()}))
