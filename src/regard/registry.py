"""Names → objects that plugins can extend: tasks and model families.

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
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from regard.errors import UsageError, nearest

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


_plugins = {"are_loaded": False, "loading": ""}  # state of this process


def load_plugins() -> None:
    """Call every plugin once. One that raises is named in a warning; the others are loaded all the same."""
    if _plugins["are_loaded"]:
        return
    _plugins["are_loaded"] = True
    for entry_point in entry_points(group=GROUP):
        with _loading(entry_point):
            entry_point.load()(importlib.import_module(PACKAGE))


@contextmanager
def _loading(entry_point: EntryPoint) -> Iterator[None]:
    """Attribute what is registered to a plugin; turn its errors into a warning."""
    distribution = entry_point.dist.name if entry_point.dist is not None else entry_point.value
    _plugins["loading"] = distribution
    try:
        yield
    except Exception as error:
        warnings.warn(
            f"the plugin {entry_point.name} of {distribution} is not loaded: {type(error).__name__}: {error}; "
            "repair or uninstall it",
            PluginWarning,
            stacklevel=2,
        )
    finally:
        _plugins["loading"] = ""


def register(kind: str, name: str, target: Any) -> None:
    """Add an entry to a table: a task or a model family.

    `target` is an object or an import string such as `"my_package.models:FAMILY"`, imported on first use.

    >>> register("family", "bert", "my_package.models:FAMILY")
    Traceback (most recent call last):
    regard.errors.UsageError: the model family 'bert' of my_package has the name of one of regard: choose another name
    """
    if kind not in TABLES:
        raise UsageError(f"unknown kind {kind!r}{nearest(kind, TABLES)}: one of {', '.join(TABLES)}")
    owner = _plugins["loading"] or _package_of(target)
    TABLES[kind].register(name, target, owner=str(owner))


def _package_of(target: Any) -> str:
    """Package that defines an object or is named by an import string."""
    module = target if isinstance(target, str) else getattr(target, "__module__", type(target).__module__)
    return str(module).partition(":")[0].partition(".")[0]


# ---- model families


@dataclass(frozen=True)
class Family:
    """A model family: its config class and the module that is built from it, as objects or import strings."""

    config: Any
    model: Any


FAMILIES: Registry[Family] = Registry(
    "model family",
    {
        "transformer": Family("regard.config.models:TransformerConfig", "regard.models.transformer:Transformer"),
        "seq2seq": Family("regard.config.rnn_models:Seq2SeqConfig", "regard.models.seq2seq:Seq2Seq"),
        "memory_network": Family(
            "regard.config.rnn_models:MemoryNetworkConfig", "regard.models.memory_network:MemoryNetwork"
        ),
        "elmo": Family("regard.config.rnn_models:ElmoConfig", "regard.models.elmo:Elmo"),
        "rnn_classifier": Family(
            "regard.config.rnn_models:RnnClassifierConfig", "regard.models.rnn_text:RnnClassifier"
        ),
        "rnn_tagger": Family("regard.config.rnn_models:RnnTaggerConfig", "regard.models.rnn_text:RnnTagger"),
        "bert": Family("regard.config.models:BertConfig", "regard.models.bert:Bert"),
        "gpt": Family("regard.config.models:GptConfig", "regard.models.gpt:Gpt"),
    },
)
TABLES: dict[str, Registry[Any]] = {"family": FAMILIES}  # kind, as `register` takes it → table
