"""A screened folder comes in; its review is served to a browser on this machine until Ctrl-C."""

from __future__ import annotations

import secrets as entropy
import socket
import webbrowser
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput, ConfideError
from ..screening.output import write_private
from .counting import save
from .store import Store, open_store

if TYPE_CHECKING:
    from starlette.applications import Starlette

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
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    store = open_store(folder, sample=sample, reviewer=reviewer, cap=cap, confidence=confidence)
    token = entropy.token_urlsafe(32)
    app = create_app(store, token)
    listener = _listen(port)
    link = f"http://{HOST}:{listener.getsockname()[1]}/?token={token}"
    save(store)
    # A browser's command line is open to every user of the machine; a file of ours is not.
    doorway = store.screened.folder / "review.html"
    try:
        say(f"Review {len(store.order):,} records at {link}")
        say("Every answer is saved at once; stop with Ctrl-C and go on later with the same command.")
        if open_browser:
            write_private(doorway, f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(link)}">\n')
            webbrowser.open(doorway.resolve().as_uri())
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, server_header=False, lifespan="off", ws="none"
        )
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        doorway.unlink(missing_ok=True)
        listener.close()
        found = save(store)
        store.close()
    return found


def _listen(port: int | None) -> socket.socket:
    """A socket that only this machine can reach."""
    if port is not None and not 0 <= port <= 65535:
        raise BadInput("--port must be a whole number from 0 to 65535")
    listener = socket.socket(
        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # named, or asyncio leaves Nagle on
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
