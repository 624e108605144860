"""The page, served on this machine only: `app` has the routes, `guard` admits requests, `store` holds the records."""

from __future__ import annotations

from regard.server.serve import serve

__all__ = ["serve"]
