"""HTTP clients of a served page, for tests and benchmarks: one that behaves, and connections that say nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket

from tests.scale import HANG_GUARD

HttpResponse = tuple[int, dict[str, str], bytes]  # status, headers, body


class Client:
    """HTTP client of the server, with or without its cookie."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""

    def request(self, path: str, method: str = "GET", body: object = None, **headers: str) -> HttpResponse:
        all_headers = {"Host": f"127.0.0.1:{self.port}"}
        if self.cookie:
            all_headers["Cookie"] = self.cookie
        all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            all_headers.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_GUARD)
        connection.request(method, path, body, all_headers)
        response = connection.getresponse()
        response_headers = {name.lower(): value for name, value in response.getheaders()}
        content = response.read()
        connection.close()
        return response.status, response_headers, content

    def open_with(self, token: str) -> None:
        """Open the page by its token, as a browser does."""
        _, headers, _ = self.request(f"/newest?token={token}")
        self.cookie = headers["set-cookie"].partition(";")[0]

    def post_text(self, text: str, timeout: float = HANG_GUARD) -> http.client.HTTPConnection:
        """Send a text to translate; return the connection, whose response is still to be read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        body = json.dumps({"task": "translate", "text": text}).encode()
        connection.request("POST", "/run", body, {"Cookie": self.cookie, "Content-Type": "application/json"})
        return connection


def open_silent(port: int, sent: bytes = b"") -> socket.socket:
    """Connection that sends nothing, or only these bytes."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=HANG_GUARD)
    connection.sendall(sent)
    return connection


def wait_until_closed(connection: socket.socket) -> None:
    """Wait until the server has closed a connection, whatever it sends before."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65_536):
            pass
    connection.close()
