"""The web application: requests of one browser on this machine come in; pages and saved answers go out.

Nothing is answered without the cookie, and the cookie is given for the token alone. Every response forbids scripts,
styles, frames and connections from anywhere else, and no cache may keep it.
"""

from __future__ import annotations

import hmac
import json
import secrets as entropy
import sqlite3
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import BadInput, ConfideError
from . import page
from .counting import Draws, counted, result, save
from .file import LARGEST_SAMPLE
from .store import Stale, Store

HOSTS = ("127.0.0.1", "localhost")
LARGEST_BODY = 1 << 16
MORE = 100
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STATIC = {"review.js": "text/javascript", "review.css": "text/css", "icon.svg": "image/svg+xml"}

Handler = Callable[[Request], Awaitable[Response]]


def create_app(store: Store, token: str) -> Starlette:
    """The application over one reviewer's store. `token`: what the link must hold."""
    session = entropy.token_urlsafe(32)
    files = {name: resources.files(__package__).joinpath("static", name).read_bytes() for name in STATIC}

    async def home(request: Request) -> Response:
        given = request.query_params.get("token")
        if given is not None:
            if not hmac.compare_digest(given.encode(), token.encode()):
                return _refusal(request, "this link is not the one that the command printed", 403)
            response = HTMLResponse(page.entrance())
            response.set_cookie(_cookie(request), session, httponly=True, samesite="strict", path="/")
            return response
        return RedirectResponse(f"/record/{store.frontier() + 1}", 303)

    async def record(request: Request) -> Response:
        store.refresh()
        place = int(request.path_params["number"]) - 1
        if not 0 <= place <= store.frontier():
            return RedirectResponse(f"/record/{store.frontier() + 1}", 303)
        return HTMLResponse(page.page(store, place, _number(request.query_params.get("piece"), 0)))

    async def act(request: Request) -> Response:
        given = await _body(request)
        place, piece = _number(given.get("place"), -1), _number(given.get("piece"), 0)
        try:
            place, piece, said = _do(store, given, place, piece)
        except Stale as error:
            return JSONResponse(_view(store, place, piece, str(error)), 409)
        return JSONResponse(_view(store, place, piece, said))

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            return _refusal(request, "there is no such page", 404)
        return Response(files[name], media_type=STATIC[name])

    def guarded(handler: Handler) -> Handler:
        async def inner(request: Request) -> Response:
            entering = request.url.path == "/" and "token" in request.query_params
            cookie = request.cookies.get(_cookie(request), "")
            if not entering and not hmac.compare_digest(cookie.encode(), session.encode()):
                why = "open the link that the command printed; the server may have been started anew"
                return _refusal(request, why, 403)
            try:
                return await handler(request)
            except ConfideError as error:
                return _refusal(request, str(error), 400 if isinstance(error, BadInput) else 500)

        return inner

    routes = [
        Route("/", guarded(home)),
        Route("/record/{number:int}", guarded(record)),
        Route("/act", guarded(act), methods=["POST"]),
        Route("/{name}", guarded(static)),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(_Guard)
    return app


def _do(store: Store, given: dict[str, Any], place: int, piece: int) -> tuple[int, int, str]:
    """Do what a page asks for. Out: the place and part to show next, and a word about it."""
    kind = given.get("do")
    if kind == "show":
        store.refresh()
        return place, piece, ""
    if kind == "undo":
        return store.undo(_number(given.get("last"), -1)), 0, "Undone."
    if kind == "more":
        store.extend(min(LARGEST_SAMPLE, len(store.draws) + MORE))
        return store.frontier(), 0, f"{MORE} more records were drawn."
    if kind == "answer" and 0 <= place < len(store.order) and piece + 1 < len(page.pieces(store.show(place).text)):
        raise BadInput("look at all parts of this record before you answer")
    start, end, name = _number(given.get("start"), -1), _number(given.get("end"), -1), given.get("type")
    store.act(place, str(kind), _number(given.get("version"), -1), start, end, name if isinstance(name, str) else "")
    words = {
        "mark": "Marked as missed.",
        "unmark": "Mark removed.",
        "flag": "Flagged as a false alarm.",
        "unflag": "A secret after all.",
        "answer": "Answered.",
        "skip": f"Skipped: counts as {store.cap} missed.",
    }
    return (place + 1, 0, words[str(kind)]) if kind in ("answer", "skip") else (place, piece, words[str(kind)])


def _view(store: Store, place: int, piece: int, said: str) -> dict[str, Any]:
    draws = counted(store)
    saved = keep(store, draws)
    place = max(0, min(place, store.frontier()))
    path = f"/record/{place + 1}" + (f"?piece={piece}" if piece > 0 else "")
    return {
        "main": page.body(store, place, piece),
        "bound": page.panel(store, draws, saved),
        "said": said,
        "path": path,
    }


def keep(store: Store, draws: Draws) -> dict[str, Any]:
    """Write `review.json` once something is answered: a review that was only opened is none. Out: the result so far."""
    begun = draws or (store.screened.folder / "review.json").exists()  # the latter if all answers were undone
    return save(store, draws) if begun else result(store, draws)


def _cookie(request: Request) -> str:
    """Cookies do not tell ports apart: two reviews at once need two names."""
    return f"confide-review-{(request.scope.get('server') or ('', 0))[1]}"


def _number(value: Any, otherwise: int) -> int:
    """A small whole number, of JSON or of a query."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31 else otherwise


async def _body(request: Request) -> dict[str, Any]:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > LARGEST_BODY:
            raise BadInput("the request is too large")
    try:
        given = json.loads(content)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise BadInput("the request is no JSON object")
    return given


def _refusal(request: Request, why: str, status: int) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(page.refused(why), status)
    return JSONResponse({"error": why}, status)


class _Guard:
    """Lets only requests of a browser on this machine through, puts the headers on every response, and keeps errors quiet."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                ours = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}
                kept = [(name, value) for name, value in message.get("headers", []) if name.lower() not in ours]
                message = {**message, "headers": [*kept, *ours.items()]}
            await send(message)

        why = _foreign(scope)
        try:
            if why:
                await _refusal(Request(scope), why, 403)(scope, receive, with_headers)
            else:
                await self.app(scope, receive, with_headers)
        except (Exception, sqlite3.Error) as error:  # a traceback in a log could hold text of the corpus
            if not begun:
                failed = f"something went wrong here ({type(error).__name__}); reload the page"
                await _refusal(Request(scope), failed, 500)(scope, receive, with_headers)


def _foreign(scope: Scope) -> str | None:
    """Why a request is not one of our own page's: it names another host, or comes from another origin."""
    headers: dict[bytes, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value.decode("latin-1"))
    port = (scope.get("server") or ("", 0))[1]
    allowed = {f"{host}:{port}" for host in HOSTS} | (set(HOSTS) if port == 80 else set())
    host = headers.get(b"host", [])
    if len(host) != 1 or host[0] not in allowed:
        return "this address is not the review's own; open the link that the command printed"
    if scope["method"] in ("GET", "HEAD"):
        return None
    if headers.get(b"origin") != [f"http://{host[0]}"]:
        return "requests from other pages are refused"
    if headers.get(b"sec-fetch-site", ["same-origin"]) != ["same-origin"]:
        return "requests from other pages are refused"
    if headers.get(b"content-type", [""])[0].partition(";")[0].strip().lower() != "application/json":
        return "answers are sent as JSON"
    return None
