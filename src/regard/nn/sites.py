"""Site names of public modules: their place in a model, or a running number."""

from __future__ import annotations

from collections import Counter
from weakref import WeakKeyDictionary

from torch import nn

_running_sites: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # of modules without a name of their own
_counts: Counter[str] = Counter()  # modules that were numbered, by kind


class SiteModule(nn.Module):
    """A module with a site: the name under which a trace, an ablation and the noise know it.

    The name is `site` if that is set, by the constructor or by `name_sites`; otherwise the kind of module with a
    running number, `attention.0`, in the order in which such modules of the process first ran. A copy of an unnamed
    module gets a number of its own.
    """

    _kind = "module"
    site: str

    @property
    def site_name(self) -> str:
        """Name of the module's site."""
        if self.site:
            return self.site
        if self not in _running_sites:
            _running_sites[self] = f"{self._kind}.{_counts[self._kind]}"
            _counts[self._kind] += 1
        return _running_sites[self]

    def attention_sites(self) -> dict[str, int]:
        """Attention sites of the module, with their number of heads."""
        return {}


def name_sites(model: nn.Module) -> dict[str, int]:
    """Name the sites of a model by the places of its modules; return its attention sites with their number of heads.

    The names depend on the model alone, unlike running numbers. A site that has a name keeps it.

    >>> from regard.nn import MultiHeadAttention
    >>> model = nn.ModuleDict({"read": MultiHeadAttention(8, 2), "write": MultiHeadAttention(8, 4)})
    >>> name_sites(model)
    {'read': 2, 'write': 4}
    """
    attention_sites: dict[str, int] = {}
    for path, module in model.named_modules():
        if isinstance(module, SiteModule):
            module.site = module.site or path or f"{module._kind}.0"
            attention_sites |= module.attention_sites()
    return attention_sites
