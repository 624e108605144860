"""Heads switched off: while a block runs, what chosen heads found counts for nothing.

Like a trace, an intervention is held in a context variable, so that two requests never mix; models know nothing of it.
A head is named by its site and its number, `encoder.3.self:2`; a site alone means all its heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from regard.attention.sites import check_heads, parse_heads, unknown_site_message
from regard.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


class Intervention:
    """Which heads are off, and which sites were met since."""

    def __init__(self, heads: Mapping[str, set[int]]) -> None:
        self.heads = dict(heads)
        self.met: dict[str, int] = {}  # site → how many heads it has

    def apply(self, output: Tensor, site: str) -> Tensor:
        """Return what the heads of a site found, [B, H, Q, v], with zeros for those that are off."""
        if not site:
            return output
        count = self.met[site] = output.shape[1]
        chosen = self.heads.get(site)
        if chosen is None:
            return output
        check_heads(site, chosen, count)
        if not chosen or len(chosen) == count:
            return output.new_zeros(output.shape)
        kept = output.new_ones(count, 1, 1)
        kept[list(chosen)] = 0
        return output * kept

    def check(self, sites: Mapping[str, int]) -> None:
        """Refuse a head that a model with these sites, each with its number of heads, has not."""
        for site, chosen in self.heads.items():
            if site not in sites:
                raise UsageError(unknown_site_message(site, sites, "switch off"))
            check_heads(site, chosen, sites[site])

    def __str__(self) -> str:
        named = ((site, chosen) for site, chosen in self.heads.items())
        return ",".join(
            name for site, chosen in named for name in ([f"{site}:{head}" for head in sorted(chosen)] or [site])
        )


_open: ContextVar[Intervention | None] = ContextVar("regard_intervention", default=None)


def active_intervention() -> Intervention | None:
    """Return which heads are off now; None where all are on."""
    return _open.get()


def apply_ablation(output: Tensor, site: str) -> Tensor:
    """Return what the heads of a site found, with zeros for those that are off; as it is where all are on."""
    chosen = _open.get()
    return output if chosen is None else chosen.apply(output, site)


@contextmanager
def disable_ablation() -> Iterator[None]:
    """Let all heads count while the block runs, whatever is off around it."""
    token = _open.set(None)
    try:
        yield
    finally:
        _open.reset(token)


@contextmanager
def ablate(heads: str | Iterable[str]) -> Iterator[Intervention]:
    """Switch heads off while the block runs: what they found is zero, as if they had found nothing.

    Heads are named `encoder.3.self:2`, several parted by commas or in a list. One block within another adds to it.
    Where models ran and none of them has a site that was named, the end of the block says so.

    >>> import torch
    >>> from regard.attention.attend import attend
    >>> one = torch.ones(1, 2, 1, 1)
    >>> with ablate("hop.0:1"):
    ...     attend(one, one, one, site="hop.0").flatten().tolist()
    [1.0, 0.0]
    """
    before, chosen = _open.get(), parse_heads(heads)
    for site, held in (before.heads if before else {}).items():
        chosen[site] = chosen.get(site, held) | held if held and chosen.get(site, held) else set()
    found = Intervention(chosen)
    token = _open.set(found)
    try:
        yield found
    finally:
        _open.reset(token)
        if before is not None:
            before.met.update(found.met)
    if found.met and not found.heads.keys() <= found.met.keys():
        found.check(found.met)
