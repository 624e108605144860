"""What a page's content security policy says of its own scripts and styles."""

from __future__ import annotations

import base64
import hashlib


def digest(text: str) -> str:
    """Return the digest by which a policy allows a script or a style: SHA-256 in base64.

    >>> digest("")
    '47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
