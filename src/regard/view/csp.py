"""Content security policies of the pages: nothing runs or loads but what a page itself consists of."""

from __future__ import annotations

import base64
import hashlib

_NO_FORMS_OR_BASE = "base-uri 'none'; form-action 'none'"
SERVED_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    f"{_NO_FORMS_OR_BASE}; frame-ancestors 'none'"
)


def csp_hash(text: str) -> str:
    """Hash by which a policy allows an inline script or style: SHA-256 in base64.

    >>> csp_hash("")
    '47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def file_policy(script: str, style: str) -> str:
    """Policy of a page in a file: one inline script, one inline style, images as data."""
    return (
        f"default-src 'none'; script-src 'sha256-{csp_hash(script)}'; style-src 'sha256-{csp_hash(style)}'; "
        f"img-src data:; {_NO_FORMS_OR_BASE}"
    )
