"""A screened folder comes in; its review is served to a browser on this machine until Ctrl-C, SIGTERM or SIGHUP."""

from __future__ import annotations

import secrets as entropy
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput, ConfideError
from ..rundir import write_private
from .counting import counted
from .store import Store, open_store

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from uvicorn import Server

HOST, PORT = "127.0.0.1", 8765


def create_app(store: Store, token: str) -> Starlette:
    """The web application over a store; `token` is what the link must hold."""
    try:
        from .app import create_app as create
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return create(store, token)


def serve(
    folder: str | Path,
    *,
    sample: int | None = None,
    port: int | None = None,
    reviewer: str = "reviewer",
    cap: int | None = None,
    confidence: float | None = None,
    open_browser: bool = True,
    say: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Serve the review of a screened folder until it is interrupted. Out: the result so far.

    `port`: 0 for any that is free; by default 8765, or any if that is taken.
    """
    try:
        import uvicorn

        from .app import keep
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    store = open_store(folder, sample=sample, reviewer=reviewer, cap=cap, confidence=confidence)
    with closing(store), closing(_listen(port)) as listener:
        token = entropy.token_urlsafe(32)
        link = f"http://{HOST}:{listener.getsockname()[1]}/?token={token}"
        config = uvicorn.Config(
            create_app(store, token), log_level="critical", access_log=False, server_header=False, lifespan="off",
            ws="none", timeout_graceful_shutdown=5,
        )  # fmt: skip
        server = uvicorn.Server(config)
        # A browser's command line is open to every user of the machine; a file of ours is not.
        doorway = store.screened.folder / "review.html"
        with _orderly(server):
            try:
                keep(store, counted(store))
                say(f"Review {len(store.order):,} records at {link}")
                say("Every answer is saved at once; stop with Ctrl-C and go on later with the same command.")
                if open_browser:
                    write_private(
                        doorway, f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(link)}">\n'
                    )
                    webbrowser.open(doorway.resolve().as_uri())
                server.run(sockets=[listener])
            except KeyboardInterrupt:
                pass
            finally:
                with suppress(OSError):
                    doorway.unlink(missing_ok=True)
                store.refresh()
                found = keep(store, counted(store))
    return found


@contextmanager
def _orderly(server: Server) -> Iterator[None]:
    """SIGTERM and SIGHUP (a terminal that is closed) end the server as Ctrl-C does, and cut nothing short that follows."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for number in signal.valid_signals() & {signal.SIGTERM, getattr(signal, "SIGHUP", None)}:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup's wish stays
                before[number] = signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(port: int | None) -> socket.socket:
    """A socket that only this machine can reach."""
    if port is not None and not 0 <= port <= 65535:
        raise BadInput("--port must be a whole number from 0 to 65535")
    # The protocol is named, or asyncio leaves Nagle on
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, PORT if port is None else port))
    except OSError as error:
        if port is not None:
            listener.close()
            raise BadInput(f"port {port} cannot be used ({error.strerror}); name another with --port") from None
        listener.bind((HOST, 0))
    listener.listen(64)
    return listener


def _missing(error: ModuleNotFoundError) -> ConfideError:
    return ConfideError(f"the review page needs {error.name}: install it with `pip install 'confide[review]'`")
