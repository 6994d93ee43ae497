"""Faults of a disk: a folder, a kind of fault and a moment in; a process that meets it there out.

Moments are counted: each call that changes the folder (opening for writing, writing, syncing, renaming, removing, making a folder,
a statement of SQLite) is one. The product knows nothing of this: Python's own functions and audit events are watched, in a process that
was forked for one command.

A power cut leaves what was synced. Everything else may be lost, file by file and folder by folder: a file's content goes back to what
its last fsync saw (or to a part of what was written since), and the names in a folder go back to those that the folder's last fsync saw.
What was there when the command began is on disk. SQLite syncs for itself: its files stay as they are if it was told to sync fully.
"""

import errno
import os
import random
import signal
import sqlite3
import stat
import sys
import time
from pathlib import Path

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link"}
RELATIVE = {"os.remove", "os.rmdir", "os.mkdir", "os.chmod"}  # their last argument is a folder's descriptor, or -1
ERRORS = {"full": errno.ENOSPC, "readonly": errno.EROFS, "broken": errno.EIO}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
OF_SQLITE = ".sqlite"  # what the names of its files hold

_fsync, _write, _connect = os.fsync, os.write, sqlite3.connect


class Disk:
    """Watches a folder in this process, and fails at a moment. `kind` None only counts."""

    def __init__(self, root, kind=None, moment=0, seed=0, lost=0.5):
        self.root, self.kind, self.moment, self.lost = str(root), kind, moment, lost
        self.coins, self.moments, self.at, self.seen = random.Random(seed), 0, "", []
        self.busy, self.lasting = False, self.coins.random() < 0.7  # an error that stays, or one that passes
        self.contents, self.names, self.held, self.unsafe = {}, {}, {}, []
        if kind == "power":
            for folder, folders, files in os.walk(self.root):
                for path in [folder, *(os.path.join(folder, name) for name in (*folders, *files))]:
                    self._keep(path)

    def watch(self):
        """From here on, the moments of this process count."""
        os.fsync, os.write, sqlite3.connect = self._on_fsync, self._on_write, self._on_connect
        sys.addaudithook(self._on_event)

    # -- moments ------------------------------------------------------------------------------------------------------

    def _on_event(self, event, arguments):
        if self.busy or (event != "open" and event not in CHANGES):
            return
        path, *rest = arguments
        if event == "open" and not (isinstance(rest[-1], int) and rest[-1] & WRITES):
            return
        folder = rest[-1] if event in RELATIVE and rest[-1] >= 0 else None
        self._moment(event.removeprefix("os."), _named(path, folder))

    def _on_fsync(self, descriptor):
        path = _named(descriptor)
        self._moment("fsync", path)
        _fsync(descriptor)
        if self.kind == "power" and path.startswith(self.root):
            self._keep(path)

    def _on_write(self, descriptor, data):
        self._moment("write", _named(descriptor))
        return _write(descriptor, data)

    def _on_connect(self, *arguments, **options):
        disk = self

        class Watched(sqlite3.Connection):
            def execute(self, sql, *values):
                if not sql.startswith(("SELECT", "PRAGMA")):
                    disk._moment(f"sqlite {sql.strip()[:6].lower()}", disk.root)
                return super().execute(sql, *values)

            def is_safe(self):
                return super().execute("PRAGMA synchronous").fetchone()[0] >= 2

        opened = _connect(*arguments, **options, factory=Watched)
        self.unsafe.append(opened)
        return opened

    def _moment(self, what, path):
        if self.busy or not path.startswith(self.root):
            return
        self.moments += 1
        if self.kind is None:
            self.seen.append(f"{what} {os.path.relpath(path, self.root)}")
        if self.kind is None or self.moments < self.moment:
            return
        if self.moments == self.moment:
            self._note(what, path)
        if self.kind in ERRORS and (self.lasting or self.moments == self.moment):
            if what not in ("remove", "rmdir") or self.kind == "readonly":  # a full disk lets go
                raise OSError(ERRORS[self.kind], os.strerror(ERRORS[self.kind]), path)
        elif self.kind == "second" and self.moments == self.moment:
            while not os.path.exists(f"{self.root}.go"):
                time.sleep(0.01)
        elif self.kind in ("kill", "power"):
            if self.kind == "power":
                self.busy = True
                self._cut()
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, what, path):
        self.busy = True
        self.at = f"{what} {os.path.relpath(path, self.root)}"
        Path(f"{self.root}.at").write_text(self.at)
        self.busy = False

    # -- what is left after a power cut -------------------------------------------------------------------------------

    def _keep(self, path):
        """What is there now, is on disk. Held open, so that no later file gets its number."""
        self.busy = True
        descriptor = os.open(path, os.O_RDONLY)
        found = os.fstat(descriptor)
        if found.st_ino in self.held:
            os.close(descriptor)
        else:
            self.held[found.st_ino] = descriptor
        if stat.S_ISDIR(found.st_mode):
            self.names[found.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.contents[found.st_ino] = (found.st_mode, Path(path).read_bytes())
        self.busy = False

    def _cut(self):
        """Write what is left beside the folder, as ROOT.left."""
        self.now = {}  # number: path, for what has no synced content
        for folder, folders, files in os.walk(self.root):
            for path in [folder, *(os.path.join(folder, name) for name in (*folders, *files))]:
                self.now[os.stat(path).st_ino] = path
        self.dropped = any(not one.is_safe() for one in self.unsafe)
        self._leave(os.stat(self.root).st_ino, Path(f"{self.root}.left"))

    def _leave(self, number, to):
        path = self.now.get(number)
        if (path is not None and not os.path.isdir(path)) or (path is None and number in self.contents):
            self._leave_file(number, path, to)
            return
        to.mkdir(mode=0o700)
        here = {} if path is None else {entry.name: entry.inode() for entry in os.scandir(path)}
        there = self.names.get(number, {})
        chosen = dict(there if self.coins.random() < self.lost else here)
        chosen |= {name: one for name, one in here.items() if OF_SQLITE in name}
        for name, one in chosen.items():
            if one in self.now or one in self.contents or one in self.names:
                self._leave(one, to / name)

    def _leave_file(self, number, path, to):
        mode, synced = self.contents.get(number, (0o600, b""))
        now = synced if path is None else Path(path).read_bytes()
        if OF_SQLITE in to.name:
            left = b"" if self.dropped and to.name.endswith("-wal") else now
        elif self.coins.random() < self.lost:
            left = synced
        else:
            begun = now.startswith(synced)
            left = now[: self.coins.randint(len(synced), len(now))] if begun else self.coins.choice([now, synced])
        to.write_bytes(left)
        to.chmod(stat.S_IMODE(mode))
        if path is not None:
            times = os.stat(path)
            os.utime(to, ns=(times.st_atime_ns, times.st_mtime_ns))


def _named(path, folder=None):
    """The whole path of what a call names, by a path or a descriptor."""
    if isinstance(path, int):
        path = os.readlink(f"/proc/self/fd/{path}")
    path = os.fsdecode(path)
    if folder is not None and not os.path.isabs(path):
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    return os.path.abspath(path)


def damage(path, kind, coins):
    """Cut a file off at a random place, or flip one bit of it. Out: where."""
    data = bytearray(path.read_bytes())
    at = coins.randrange(max(1, len(data)))
    if kind == "truncate":
        path.write_bytes(bytes(data[:at]))
    elif data:
        data[at] ^= 1 << coins.randrange(8)
        path.write_bytes(bytes(data))
    return at
