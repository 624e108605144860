"""What a served page lets in: this machine's names only, its own pages only, one who knows the token, small requests.

Pure ASGI, so that a request that is not let in touches nothing else.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost", "[::1]")
BODY = 1_000_000  # bytes
HEADERS, HEADER_BYTES = 100, 16_384
ADDRESS = 4_096  # bytes of a path and its query
SECONDS = 10.0  # in which a request must have come in


@dataclass
class Guard:
    """Stands before an app; `token` opens it once, then the cookie that it gave does."""

    app: App
    token: str
    policy: str
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    used: bool = False

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies do not know ports, so that each start has its own."""
        return f"regard-{sha256(self.secret.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets
            return
        sending = _with_headers(send, self.policy)
        refused = self._refused(scope)
        if refused:
            await _answer(sending, *refused)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None and (self._knows(scope) or self._opens(given)):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            await self._welcome(sending, scope["path"] + (f"?{rest}" if rest else ""))
            return
        if not self._knows(scope):
            await _answer(sending, 403, "this page needs the address that was printed when it was started, once")
            return
        await self.app(scope, _limited(receive), sending)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if len(headers) > HEADERS or sum(len(name) + len(value) for name, value in headers) > HEADER_BYTES:
            return 431, f"too many headers: at most {HEADERS} of {HEADER_BYTES} bytes together"
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > ADDRESS:
            return 414, f"the address is too long: at most {ADDRESS} bytes"
        named = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(named) != 1 or _without_port(named[0]) not in HOSTS:
            return 403, f"asked for another machine's name: this page answers to {', '.join(HOSTS)} only"
        origins = [value.decode("latin-1").lower() for name, value in headers if name == b"origin"]
        if any(origin != f"http://{named[0]}" for origin in origins):
            return 403, "asked from another page: this page answers to its own only"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "this method is not for this page"
        if scope["method"] == "POST":
            kinds = [value.partition(b";")[0].strip() for name, value in headers if name == b"content-type"]
            if kinds != [b"application/json"]:
                return 415, "only JSON is read: send it as application/json"
        lengths = [value for name, value in headers if name == b"content-length"]
        if any(not value.isdigit() or int(value[:16]) > BODY for value in lengths):
            return 413, f"too much at once: at most {BODY} bytes"
        return None

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


def _without_port(host: str) -> str:
    """Return a host without its port.

    >>> _without_port("127.0.0.1:8000"), _without_port("[::1]:80"), _without_port("evil.example")
    ('127.0.0.1', '[::1]', 'evil.example')
    """
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


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


def _limited(receive: Receive) -> Receive:
    """Return a receiver that takes a body of a limited size within a limited time."""
    until, taken, whole = monotonic() + SECONDS, 0, False

    async def receiving() -> Message:
        nonlocal taken, whole
        if whole:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.01, until - monotonic()))
        except TimeoutError:
            return {"type": "http.disconnect"}
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if taken > BODY:
                return {"type": "http.disconnect"}
        return message

    return receiving


async def _answer(send: Send, status: int, error: str) -> None:
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
