"""Names of the places where models look: `encoder.3.self`, `decoder.attention`, `hop.1`; a head: `encoder.3.self:2`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from regard.errors import UsageError, nearest

SINGLE = ("decoder.attention", "pooling", "mix")  # kinds that have one site, without a number


def kind_of(site: str) -> str:
    """Return a site without its numbers.

    >>> kind_of("decoder.2.cross"), kind_of("hop.1"), kind_of("1.encoder.0.self:3")
    ('decoder.cross', 'hop', 'encoder.self')
    """
    return ".".join(name for name in site.partition(":")[0].split(".") if not name.isdigit())


def layer_of(site: str) -> int:
    """Return a site's last number: its layer, or its hop; 0 where it has none.

    >>> layer_of("decoder.2.cross"), layer_of("1.encoder.0.self"), layer_of("decoder.attention")
    (2, 0, 0)
    """
    return int(([*re.findall(r"(?<![^.])\d+(?![^.])", site.partition(":")[0])] or ["0"])[-1])


def named_site(kind: str, layer: int) -> str:
    """Return the name of a site from its kind and its layer.

    >>> named_site("encoder.self", 3), named_site("hop", 1), named_site("1.decoder.attention", 0)
    ('encoder.3.self', 'hop.1', '1.decoder.attention')
    """
    if kind_of(kind) in SINGLE:
        return kind
    front, dot, back = kind.rpartition(".")
    return f"{front}.{layer}.{back}" if dot else f"{kind}.{layer}"


def check_heads(site: str, chosen: Iterable[int], count: int) -> None:
    """Refuse a head that a site with so many heads has not."""
    for head in chosen:
        if not 0 <= head < count:
            has = f"heads 0 to {count - 1}" if count > 1 else "one head, 0"
            raise UsageError(f"{site} has {has}: there is no {site}:{head} (did you mean {site}:{count - 1}?)")


def unknown_site(site: str, sites: Iterable[str], purpose: str = "look at") -> str:
    """Return what is to be said of a site that a model has not: the nearest that it has.

    >>> unknown_site("encoder.9.self", ["encoder.0.self", "encoder.1.self"])
    'the model has no encoder.9.self (did you mean encoder.1.self?): it looks at encoder.N.self, 2 in all'
    """
    known = [*sites]
    if not known:
        return f"there is no {site}: this model has no attention, so there is no head to {purpose}"
    alike = [name for name in known if kind_of(name) == kind_of(site)]
    near = min(alike, key=lambda name: abs(layer_of(name) - layer_of(site))) if alike else ""
    close = f" (did you mean {near}?)" if near else nearest(site, known)
    kinds = ", ".join(dict.fromkeys(re.sub(r"\d+", "N", name) for name in known))
    return f"the model has no {site}{close}: it looks at {kinds}, {len(known)} in all"


def read_heads(given: str | Iterable[str]) -> dict[str, set[int]]:
    """Return heads by their sites, read from their names: several are parted by commas; no head: all of a site.

    >>> read_heads("encoder.3.self:2,encoder.3.self:0,hop.1")
    {'encoder.3.self': {0, 2}, 'hop.1': set()}
    """
    found: dict[str, set[int]] = {}
    for name in ",".join([given] if isinstance(given, str) else given).split(","):
        site, colon, number = name.strip().partition(":")
        if not site or (colon and not number.isdecimal()):
            raise UsageError(f"{name.strip()!r} names no head: write site and number, as in encoder.3.self:2")
        chosen = {int(number)} if colon else set[int]()
        whole = not chosen or found.get(site) == set()
        found[site] = set() if whole else found.get(site, set()) | chosen
    return found
