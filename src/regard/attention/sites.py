"""Names of attention sites, `encoder.3.self`, `decoder.attention`, `hop.1`, and of heads, `encoder.3.self:2`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from regard.errors import UsageError, nearest

POOLING_SITE = "pooling"  # site of attention pooling
SINGLE_SITE_KINDS = ("decoder.attention", POOLING_SITE, "mix")  # kinds with one site, without a layer index


def site_kind(site: str) -> str:
    """A site's name without its indices.

    >>> site_kind("decoder.2.cross"), site_kind("hop.1"), site_kind("1.encoder.0.self:3")
    ('decoder.cross', 'hop', 'encoder.self')
    """
    return ".".join(name for name in site.partition(":")[0].split(".") if not name.isdigit())


def site_layer(site: str) -> int:
    """The last index of a site: its layer or hop; 0 without one.

    >>> site_layer("decoder.2.cross"), site_layer("1.encoder.0.self"), site_layer("decoder.attention")
    (2, 0, 0)
    """
    indices = re.findall(r"(?<![^.])\d+(?![^.])", site.partition(":")[0])
    return int(indices[-1]) if indices else 0


def site_name(kind: str, layer: int) -> str:
    """The name of the site of a kind in a layer.

    >>> site_name("encoder.self", 3), site_name("hop", 1), site_name("1.decoder.attention", 0)
    ('encoder.3.self', 'hop.1', '1.decoder.attention')
    """
    if site_kind(kind) in SINGLE_SITE_KINDS:
        return kind
    prefix, dot, role = kind.rpartition(".")
    return f"{prefix}.{layer}.{role}" if dot else f"{kind}.{layer}"


def check_heads(site: str, selected: Iterable[int], num_heads: int) -> None:
    """Reject heads that a site with `num_heads` heads does not have."""
    for head in selected:
        if not 0 <= head < num_heads:
            heads = f"heads 0 to {num_heads - 1}" if num_heads > 1 else "one head, 0"
            raise UsageError(f"{site} has {heads}: there is no {site}:{head} (did you mean {site}:{num_heads - 1}?)")


def unknown_site_message(site: str, sites: Iterable[str], purpose: str = "show") -> str:
    """Error message for a site that a model does not have, with the nearest one that it has.

    >>> unknown_site_message("encoder.9.self", ["encoder.0.self", "encoder.1.self"])
    'the model has no encoder.9.self (did you mean encoder.1.self?): it has encoder.N.self, 2 sites in all'
    """
    known = [*sites]
    if not known:
        return f"there is no {site}: this model has no attention, so there is no head to {purpose}"
    same_kind = [name for name in known if site_kind(name) == site_kind(site)]
    if same_kind:
        nearest_site = min(same_kind, key=lambda name: abs(site_layer(name) - site_layer(site)))
        suggestion = f" (did you mean {nearest_site}?)"
    else:
        suggestion = nearest(site, known)
    kinds = ", ".join(dict.fromkeys(re.sub(r"\d+", "N", name) for name in known))
    return f"the model has no {site}{suggestion}: it has {kinds}, {len(known)} sites in all"


def parse_heads(names: str | Iterable[str]) -> dict[str, set[int]]:
    """Parse the names of heads, separated by commas, into heads by site; an empty set: all heads of the site.

    >>> parse_heads("encoder.3.self:2,encoder.3.self:0,hop.1")
    {'encoder.3.self': {0, 2}, 'hop.1': set()}
    """
    text = names if isinstance(names, str) else ",".join(names)
    heads_by_site: dict[str, set[int]] = {}
    for name in text.split(","):
        site, colon, head = name.strip().partition(":")
        if not site or (colon and not head.isdecimal()):
            raise UsageError(f"{name.strip()!r} names no head: write site and head index, as in encoder.3.self:2")
        has_all_heads = not colon or heads_by_site.get(site) == set()
        heads_by_site[site] = set() if has_all_heads else heads_by_site.get(site, set()) | {int(head)}
    return heads_by_site
