"""What a served page lets in: this machine's names only, its own pages only, one who knows the token, small requests.

Pure ASGI, so that a request that is not let in touches nothing else. Host and size of a request are checked by
Starlette's middleware; its short answers are replaced by messages that say what is allowed.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from time import monotonic
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY = 1_000_000  # bytes
HEADERS, HEADER_BYTES = 100, 16_384
ADDRESS = 4_096  # bytes of a path and its query
BODY_SECONDS = 10.0  # in which a request must have come in
_STARLETTE_REFUSALS = {
    400: f"asked for another machine's name: this page answers to {', '.join(HOSTS)} only",
    413: f"too much at once: at most {MAX_BODY} bytes",
}


@dataclass
class Guard:
    """Stands before an app; `token` opens it once, then the cookie that it gave does."""

    app: ASGIApp
    token: str
    policy: str
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    used: bool = False

    def __post_init__(self) -> None:
        limited = RequestBodyLimitMiddleware(self._admit, max_body_size=MAX_BODY)
        self._entrance = TrustedHostMiddleware(limited, allowed_hosts=HOSTS, www_redirect=False)

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies do not know ports, so that each start has its own."""
        return f"regard-{sha256(self.secret.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":  # there are no web sockets
            sending = _with_messages(_with_headers(send, self.policy))
            await self._entrance(scope, _with_deadline(receive), sending)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request for this machine on to the app, if it is well formed and knows the token or the cookie."""
        refused = _refusal(scope)
        if refused:
            await _answer(send, *refused)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None and (self._knows(scope) or self._opens(given)):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            await self._welcome(send, scope["path"] + (f"?{rest}" if rest else ""))
            return
        if not self._knows(scope):
            await _answer(send, 403, "this page needs the address that was printed when it was started, once")
            return
        await self.app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        jar: SimpleCookie = SimpleCookie()
        try:
            for name, value in scope["headers"]:
                if name == b"cookie":
                    jar.load(value.decode("latin-1"))
        except CookieError:
            return False
        found = jar.get(self.cookie)
        return found is not None and secrets.compare_digest(found.value.encode(), self.secret.encode())

    def _opens(self, given: str) -> bool:
        right = secrets.compare_digest(given.encode(), self.token.encode()) and not self.used
        self.used = self.used or right
        return right

    async def _welcome(self, send: Send, address: str) -> None:
        """Give the cookie and lead to the same address without the token."""
        cookie = f"{self.cookie}={self.secret}; Path=/; HttpOnly; SameSite=Strict"
        place = "/" + quote(address.lstrip("/\\"), safe="/?=&%")  # never to another machine
        headers = [(b"set-cookie", cookie.encode()), (b"location", place.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _refusal(scope: Scope) -> tuple[int, str] | None:
    """Status and message for a request that is malformed or comes from another page; None for a good one."""
    headers = Headers(scope=scope)
    if len(headers.raw) > HEADERS or sum(len(name) + len(value) for name, value in headers.raw) > HEADER_BYTES:
        return 431, f"too many headers: at most {HEADERS} of {HEADER_BYTES} bytes together"
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > ADDRESS:
        return 414, f"the address is too long: at most {ADDRESS} bytes"
    if len(headers.getlist("host")) != 1:
        return 400, _STARLETTE_REFUSALS[400]
    own_origin = f"http://{headers['host']}".lower()
    if any(origin.lower() != own_origin for origin in headers.getlist("origin")):
        return 403, "asked from another page: this page answers to its own only"
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return 405, "this method is not for this page"
    if scope["method"] == "POST":
        media_types = [value.partition(";")[0].strip() for value in headers.getlist("content-type")]
        if media_types != ["application/json"]:
            return 415, "only JSON is read: send it as application/json"
    return None


def _with_headers(send: Send, policy: str) -> Send:
    """Return a sender that adds what keeps a page to itself."""
    added = [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
    ]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return sending


def _with_messages(send: Send) -> Send:
    """Return a sender that answers what Starlette's middleware refuses with a message of ours."""
    is_replaced = False

    async def sending(message: Message) -> None:
        nonlocal is_replaced
        if message["type"] == "http.response.start" and message["status"] in _STARLETTE_REFUSALS:
            is_replaced = True
            await _answer(send, message["status"], _STARLETTE_REFUSALS[message["status"]])
        elif not is_replaced:
            await send(message)

    return sending


def _with_deadline(receive: Receive) -> Receive:
    """Return a receiver that waits a limited time for the whole body; a late sender counts as disconnected."""
    deadline = monotonic() + BODY_SECONDS
    is_whole = False

    async def receiving() -> Message:
        nonlocal is_whole
        if is_whole:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.01, deadline - monotonic()))
        except TimeoutError:
            return {"type": "http.disconnect"}
        is_whole = message["type"] == "http.request" and not message.get("more_body", False)
        return message

    return receiving


async def _answer(send: Send, status: int, error: str) -> None:
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
