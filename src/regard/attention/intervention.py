"""Head ablation: while a block runs, the output of the named heads is zero.

Like a trace, an intervention lives in a context variable, so that concurrent requests do not mix and models need no
code for it. A head is named by site and index, `encoder.3.self:2`; a site alone names all its heads.
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
    """Ablated heads by site (an empty set: all heads), and the sites that ran meanwhile."""

    def __init__(self, heads: Mapping[str, set[int]]) -> None:
        self.heads = dict(heads)
        self.visited_sites: dict[str, int] = {}  # site → number of heads

    def visit(self, site: str, num_heads: int) -> set[int] | None:
        """Record that a site runs; return its ablated heads, or None where there are none."""
        self.visited_sites[site] = num_heads
        heads = self.heads.get(site)
        if heads is None:
            return None
        check_heads(site, heads, num_heads)
        return heads or set(range(num_heads))

    def apply(self, output: Tensor, site: str) -> Tensor:
        """Zero the ablated heads in a site's output, [B, H, Q, v]."""
        if not site:
            return output
        num_heads = output.shape[1]
        heads = self.visit(site, num_heads)
        if heads is None:
            return output
        if len(heads) == num_heads:
            return output.new_zeros(output.shape)
        factors = output.new_ones(num_heads, 1, 1)
        factors[list(heads)] = 0
        return output * factors

    def check(self, sites: Mapping[str, int]) -> None:
        """Reject heads that a model with these sites (site → number of heads) does not have."""
        for site, heads in self.heads.items():
            if site not in sites:
                raise UsageError(unknown_site_message(site, sites, "ablate"))
            check_heads(site, heads, sites[site])

    def __str__(self) -> str:
        names: list[str] = []
        for site, heads in self.heads.items():
            names += [f"{site}:{head}" for head in sorted(heads)] or [site]
        return ",".join(names)


_active: ContextVar[Intervention | None] = ContextVar("regard_intervention", default=None)


def active_intervention() -> Intervention | None:
    """Return the innermost ablation; None without one."""
    return _active.get()


def apply_ablation(output: Tensor, site: str) -> Tensor:
    """Zero the ablated heads in a site's output; without an ablation, return it unchanged."""
    intervention = _active.get()
    return output if intervention is None else intervention.apply(output, site)


@contextmanager
def disable_ablation() -> Iterator[None]:
    """Enable all heads while the block runs, whatever is ablated around it."""
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def ablate(heads: str | Iterable[str]) -> Iterator[Intervention]:
    """Ablate heads while the block runs: their output is zero.

    Heads are named `encoder.3.self:2`, several separated by commas or in a list. Nested blocks add up. If models ran
    and none of them has a named site, leaving the block raises an error.

    >>> import torch
    >>> from regard.attention.attend import attend
    >>> ones = torch.ones(1, 2, 1, 1)
    >>> with ablate("hop.0:1"):
    ...     attend(ones, ones, ones, site="hop.0").flatten().tolist()
    [1.0, 0.0]
    """
    outer = _active.get()
    intervention = Intervention(_merge_heads(parse_heads(heads), outer.heads if outer is not None else {}))
    token = _active.set(intervention)
    try:
        yield intervention
    finally:
        _active.reset(token)
        if outer is not None:
            outer.visited_sites.update(intervention.visited_sites)
    visited = intervention.visited_sites
    if visited and not intervention.heads.keys() <= visited.keys():
        intervention.check(visited)


def _merge_heads(heads: dict[str, set[int]], outer: Mapping[str, set[int]]) -> dict[str, set[int]]:
    """Union of two ablations by site; an empty set stands for all heads of a site and absorbs any other."""
    merged = dict(heads)
    for site, outer_heads in outer.items():
        inner_heads = merged.get(site, outer_heads)
        has_all_heads = not outer_heads or not inner_heads
        merged[site] = set() if has_all_heads else inner_heads | outer_heads
    return merged
