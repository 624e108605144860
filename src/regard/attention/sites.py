"""Names of the places where models look: `encoder.3.self`, `decoder.attention`, `hop.1`; a head: `encoder.3.self:2`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from regard.errors import UsageError, nearest

SINGLE = ("decoder.attention", "pooling", "mix")  # kinds that have one site, without a number


def site_kind(site: str) -> str:
    """Return a site without its numbers.

    >>> site_kind("decoder.2.cross"), site_kind("hop.1"), site_kind("1.encoder.0.self:3")
    ('decoder.cross', 'hop', 'encoder.self')
    """
    return ".".join(name for name in site.partition(":")[0].split(".") if not name.isdigit())


def site_layer(site: str) -> int:
    """Return a site's last number: its layer, or its hop; 0 where it has none.

    >>> site_layer("decoder.2.cross"), site_layer("1.encoder.0.self"), site_layer("decoder.attention")
    (2, 0, 0)
    """
    return int(([*re.findall(r"(?<![^.])\d+(?![^.])", site.partition(":")[0])] or ["0"])[-1])


def site_name(kind: str, layer: int) -> str:
    """Return the name of a site from its kind and its layer.

    >>> site_name("encoder.self", 3), site_name("hop", 1), site_name("1.decoder.attention", 0)
    ('encoder.3.self', 'hop.1', '1.decoder.attention')
    """
    if site_kind(kind) in SINGLE:
        return kind
    front, dot, back = kind.rpartition(".")
    return f"{front}.{layer}.{back}" if dot else f"{kind}.{layer}"


def check_heads(site: str, selected: Iterable[int], count: int) -> None:
    """Refuse a head that a site with so many heads has not."""
    for head in selected:
        if not 0 <= head < count:
            has = f"heads 0 to {count - 1}" if count > 1 else "one head, 0"
            raise UsageError(f"{site} has {has}: there is no {site}:{head} (did you mean {site}:{count - 1}?)")


def unknown_site_message(site: str, sites: Iterable[str], purpose: str = "look at") -> str:
    """Return what is to be said of a site that a model has not: the nearest that it has.

    >>> unknown_site_message("encoder.9.self", ["encoder.0.self", "encoder.1.self"])
    'the model has no encoder.9.self (did you mean encoder.1.self?): it looks at encoder.N.self, 2 in all'
    """
    known = [*sites]
    if not known:
        return f"there is no {site}: this model has no attention, so there is no head to {purpose}"
    alike = [name for name in known if site_kind(name) == site_kind(site)]
    near = min(alike, key=lambda name: abs(site_layer(name) - site_layer(site))) if alike else ""
    close = f" (did you mean {near}?)" if near else nearest(site, known)
    kinds = ", ".join(dict.fromkeys(re.sub(r"\d+", "N", name) for name in known))
    return f"the model has no {site}{close}: it looks at {kinds}, {len(known)} in all"


def parse_heads(names: str | Iterable[str]) -> dict[str, set[int]]:
    """Return heads by their sites, read from their names: several are parted by commas; no head: all of a site.

    >>> parse_heads("encoder.3.self:2,encoder.3.self:0,hop.1")
    {'encoder.3.self': {0, 2}, 'hop.1': set()}
    """
    found: dict[str, set[int]] = {}
    for name in ",".join([names] if isinstance(names, str) else names).split(","):
        site, colon, number = name.strip().partition(":")
        if not site or (colon and not number.isdecimal()):
            raise UsageError(f"{name.strip()!r} names no head: write site and number, as in encoder.3.self:2")
        chosen = {int(number)} if colon else set[int]()
        whole = not chosen or found.get(site) == set()
        found[site] = set() if whole else found.get(site, set()) | chosen
    return found
