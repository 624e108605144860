"""Tables that plugins extend: names → objects. Tasks are in `registry`, other parts in `components` and `metric_table`.

Built-in targets are import strings, resolved on first use, so that a table imports nothing and no layer imports
upwards. A plugin is a function of the entry-point group `regard.plugins`; it is called with the package and registers
objects or import strings:

    def register(regard):
        regard.register("family", "my-encoder", Family(config=MyConfig, model=MyModel))
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from regard.errors import UsageError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "regard.plugins"  # of entry points
PACKAGE = "regard"  # owner of the built-in entries
T = TypeVar("T")


class PluginWarning(UserWarning):
    """A plugin could not be loaded."""


def resolve(target: Any) -> Any:
    """Import what an import string names; any other object is returned as it is.

    >>> resolve("regard.errors:nearest").__name__, resolve(7)
    ('nearest', 7)
    """
    if not isinstance(target, str):
        return target
    module_name, _, attribute = target.partition(":")
    imported: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        imported = getattr(imported, part)
    return imported


class Registry(Mapping[str, T], Generic[T]):
    """Objects of one kind by name. Plugins are loaded on the first iteration, or when a name is missing.

    >>> numbers = Registry("number", {"pi": "math:pi"})
    >>> numbers["pi"]
    3.141592653589793
    >>> numbers["pie"]
    Traceback (most recent call last):
    regard.errors.UsageError: unknown number 'pie' (did you mean pi?): one of pi
    """

    def __init__(self, kind: str, entries: Mapping[str, str | T]) -> None:
        self.kind = kind
        self.entries = dict(entries)  # import strings until their first use
        self.owners: dict[str, str] = {}  # name → plugin, for entries that are not built in

    def register(self, name: str, target: str | T, *, owner: str) -> None:
        """Add an entry; a name that is taken is an error that names both owners."""
        if name in self.entries:
            raise UsageError(
                f"the {self.kind} {name!r} of {owner} has the name of one of {self.owner(name)}: choose another name"
            )
        self.entries[name] = target
        self.owners[name] = owner

    def owner(self, name: str) -> str:
        """Plugin that added an entry, or the package itself."""
        return self.owners.get(name, PACKAGE)

    def __getitem__(self, name: str) -> T:
        if name not in self:
            names = ", ".join(self.entries)
            raise UsageError(f"unknown {self.kind} {name!r}{nearest(name, self.entries)}: one of {names}")
        entry: T = resolve(self.entries[name])
        self.entries[name] = entry
        return entry

    def __contains__(self, name: object) -> bool:
        if name not in self.entries:
            load_plugins()
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(self.entries)

    def __len__(self) -> int:
        load_plugins()
        return len(self.entries)


# ---- plugins


@dataclass
class PluginState:
    """What this process has loaded."""

    are_loaded: bool = False
    package: str = ""  # whose plugin is being called
    errors: dict[str, Exception | None] = field(default_factory=dict)  # package → why its plugin is not loaded


PLUGINS = PluginState()


def load_plugins() -> None:
    """Call every plugin once. One that raises is named in a warning; the others are loaded all the same."""
    if PLUGINS.are_loaded:
        return
    PLUGINS.are_loaded = True
    from importlib.metadata import entry_points  # slow to import, and rarely needed

    for entry_point in entry_points(group=GROUP):
        with _loading(entry_point):
            entry_point.load()(importlib.import_module(PACKAGE))


@contextmanager
def _loading(entry_point: EntryPoint) -> Iterator[None]:
    """Attribute what is registered to a plugin; turn its errors into a warning."""
    distribution = entry_point.dist.name if entry_point.dist is not None else entry_point.value
    PLUGINS.package = distribution
    PLUGINS.errors[distribution] = None
    try:
        yield
    except Exception as error:
        PLUGINS.errors[distribution] = error
        warnings.warn(
            f"the plugin {entry_point.name} of {distribution} is not loaded: {type(error).__name__}: {error}; "
            "repair or uninstall it",
            PluginWarning,
            stacklevel=2,
        )
    finally:
        PLUGINS.package = ""
