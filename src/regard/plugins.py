"""Registration of what plugins add: the kinds of entries, their tables, and the packages that a model needs."""

from __future__ import annotations

import sys
from typing import Any

from regard.errors import UsageError, nearest
from regard.tables import PLUGINS, Registry, load_plugins, resolve

SCRIPT = "__main__"  # owner of what a script registers
TABLES: dict[str, str] = {  # kind, as `register` takes it → import string of its table
    "task": "regard.registry:TASKS",
    "family": "regard.components:FAMILIES",
    "positions": "regard.components:POSITIONS",
    "score": "regard.components:SCORES",
    "optimizer": "regard.components:OPTIMIZERS",
    "view": "regard.components:VIEWS",
    "metric": "regard.metric_table:METRICS",
}


def register(kind: str, name: str, target: Any) -> None:
    """Add an entry to a table: a task, a model family, a metric or another part (`TABLES` has the kinds).

    `target` is an object or an import string such as `"my_package.models:FAMILY"`, imported on first use.

    >>> register("family", "bert", "my_package.models:FAMILY")
    Traceback (most recent call last):
    regard.errors.UsageError: the model family 'bert' of my_package has the name of one of regard: choose another name
    """
    if kind not in TABLES:
        raise UsageError(f"unknown kind {kind!r}{nearest(kind, TABLES)}: one of {', '.join(TABLES)}")
    owner = PLUGINS.package or _package_of(target) or sys._getframe(1).f_globals.get("__name__", SCRIPT)
    table: Registry[Any] = resolve(TABLES[kind])
    table.register(name, target, owner=str(owner))


def _package_of(target: Any) -> str:
    """Package that an import string names, or that defines a class or function; empty for other objects."""
    if isinstance(target, str):
        return target.partition(":")[0].partition(".")[0]
    return str(target.__module__).partition(".")[0] if hasattr(target, "__qualname__") else ""


def missing_plugin_advice(package: str) -> str:
    """What to do to load the plugin of a package; empty where it is loaded.

    >>> missing_plugin_advice("no-such-package")
    'pip install no-such-package'
    """
    load_plugins()
    tables: list[Registry[Any]] = [resolve(table) for table in TABLES.values()]
    if any(package in table.owners.values() for table in tables):
        return ""
    if package == SCRIPT:
        return "register what the script that trained it registers"
    if package not in PLUGINS.errors:
        return f"pip install {package}"
    error = PLUGINS.errors[package]
    return f"repair it ({type(error).__name__}: {error})" if error is not None else ""
