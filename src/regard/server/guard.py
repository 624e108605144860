"""Admission of requests to a served page: host names of this machine, its own origin, its token, small requests.

Pure ASGI, so that a refused request reaches nothing else. Host and size of a request are checked by Starlette's
middleware; its short responses are replaced by messages that name what is allowed.
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
MAX_HEADERS = 100
MAX_HEADER_BYTES = 16_384  # of all headers
MAX_ADDRESS_BYTES = 4_096  # of a path and its query
BODY_SECONDS = 10.0  # in which a request must have arrived
MAX_REQUESTS = 64  # answered at a time
_STARLETTE_REFUSALS = {
    400: f"the request names another host: this page answers to {', '.join(HOSTS)} only",
    413: f"the request is too large: at most {MAX_BODY} bytes",
}


@dataclass
class Guard:
    """Middleware before an app: `token` opens it once and sets a cookie, which opens it from then on."""

    app: ASGIApp
    token: str
    policy: str
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    is_token_used: bool = False
    num_requests: int = 0  # that the app is answering

    def __post_init__(self) -> None:
        body_limit = RequestBodyLimitMiddleware(self._admit, max_body_size=MAX_BODY)
        self._middleware = TrustedHostMiddleware(body_limit, allowed_hosts=HOSTS, www_redirect=False)

    @property
    def cookie(self) -> str:
        """Name of the cookie; browsers share cookies between ports, so each server has its own name."""
        return f"regard-{sha256(self.secret.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":  # there are no web sockets
            guarded_send = _replace_refusals(_add_headers(send, self.policy))
            await self._middleware(scope, _limit_time(receive), guarded_send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the app, if it is well formed and has the cookie or the token."""
        refusal = _find_refusal(scope)
        if refusal:
            status, message = refusal
            await _send_error(send, status, message)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(query).get("token")
        if token is not None and (self._has_cookie(scope) or self._accept_token(token)):
            other_parameters = urlencode([(name, value) for name, value in query if name != "token"])
            await self._send_cookie(send, scope["path"] + (f"?{other_parameters}" if other_parameters else ""))
            return
        if not self._has_cookie(scope):
            await _send_error(send, 403, "open this page once with the address that was printed at its start")
            return
        if self.num_requests >= MAX_REQUESTS:
            await _send_error(send, 503, f"{MAX_REQUESTS} requests are being answered: try again in a moment", wait=1)
            return
        self.num_requests += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.num_requests -= 1

    def _has_cookie(self, scope: Scope) -> bool:
        jar: SimpleCookie = SimpleCookie()
        try:
            for name, value in scope["headers"]:
                if name == b"cookie":
                    jar.load(value.decode("latin-1"))
        except CookieError:
            return False
        cookie = jar.get(self.cookie)
        return cookie is not None and secrets.compare_digest(cookie.value.encode(), self.secret.encode())

    def _accept_token(self, token: str) -> bool:
        """Check the token and mark it as used."""
        is_accepted = secrets.compare_digest(token.encode(), self.token.encode()) and not self.is_token_used
        if is_accepted:
            self.is_token_used = True
        return is_accepted

    async def _send_cookie(self, send: Send, address: str) -> None:
        """Set the cookie and redirect to the same address without the token."""
        cookie = f"{self.cookie}={self.secret}; Path=/; HttpOnly; SameSite=Strict"
        location = "/" + quote(address.lstrip("/\\"), safe="/?=&%")  # a path only, never another host
        headers = [(b"set-cookie", cookie.encode()), (b"location", location.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _find_refusal(scope: Scope) -> tuple[int, str] | None:
    """Status and message for a request that is malformed or from another origin; None for a good one."""
    headers = Headers(scope=scope)
    num_header_bytes = sum(len(name) + len(value) for name, value in headers.raw)
    if len(headers.raw) > MAX_HEADERS or num_header_bytes > MAX_HEADER_BYTES:
        return 431, f"too many headers: at most {MAX_HEADERS} of {MAX_HEADER_BYTES} bytes together"
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_ADDRESS_BYTES:
        return 414, f"the address is too long: at most {MAX_ADDRESS_BYTES} bytes"
    if len(headers.getlist("host")) != 1:
        return 400, _STARLETTE_REFUSALS[400]
    own_origin = f"http://{headers['host']}".lower()
    if any(origin.lower() != own_origin for origin in headers.getlist("origin")):
        return 403, "the request is from another origin: this page answers to its own only"
    if scope["method"] not in ("GET", "HEAD", "POST"):
        return 405, f"the method {scope['method']} is not allowed: this page answers to GET, HEAD and POST"
    if scope["method"] == "POST":
        media_types = [value.partition(";")[0].strip() for value in headers.getlist("content-type")]
        if media_types != ["application/json"]:
            return 415, "only JSON is accepted: send it as application/json"
    return None


def _add_headers(send: Send, policy: str) -> Send:
    """Wrap `send` to add headers that isolate the page from other origins."""
    security_headers = [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
    ]

    async def wrapped_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *security_headers]}
        await send(message)

    return wrapped_send


def _replace_refusals(send: Send) -> Send:
    """Wrap `send` to replace refusals of Starlette's middleware by messages of ours."""
    is_replaced = False

    async def wrapped_send(message: Message) -> None:
        nonlocal is_replaced
        if message["type"] == "http.response.start" and message["status"] in _STARLETTE_REFUSALS:
            is_replaced = True
            await _send_error(send, message["status"], _STARLETTE_REFUSALS[message["status"]])
        elif not is_replaced:
            await send(message)

    return wrapped_send


def _limit_time(receive: Receive) -> Receive:
    """Wrap `receive` to wait a limited time for the whole body; a late client counts as disconnected."""
    deadline = monotonic() + BODY_SECONDS
    is_complete = False

    async def wrapped_receive() -> Message:
        nonlocal is_complete
        if is_complete:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.01, deadline - monotonic()))
        except TimeoutError:
            return {"type": "http.disconnect"}
        is_complete = message["type"] == "http.request" and not message.get("more_body", False)
        return message

    return wrapped_receive


async def _send_error(send: Send, status: int, error: str, wait: int = 0) -> None:
    """Send an error; with `wait`, the seconds after which the client may try again."""
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if wait:
        headers.append((b"retry-after", str(wait).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
