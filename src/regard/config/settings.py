"""Config fields: `knob` declares one, `Config` checks, reads and writes them; flags and help come from here."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Self

from regard.errors import ConfigError, nearest


def knob(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    bare: str = "",
) -> Any:
    """Declare a config field with its help, its choices or its range (both ends allowed).

    `bare` is what its flag means without a value.
    """
    metadata = {"help": help, "choices": choices, "low": low, "high": high, "bare": bare}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Knob:
    """One field of a config, as flags, help and messages need it."""

    path: str  # dotted, from the config it was listed for
    type: type
    optional: bool
    default: Any
    help: str
    choices: tuple[str, ...]
    low: float | None
    high: float | None
    bare: str = ""  # what its flag means without a value


def _plain(hint: Any) -> tuple[Any, bool]:
    """Return the type without `None`, and whether `None` is allowed."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [option for option in typing.get_args(hint) if option is not type(None)]
        return inner[0], len(inner) < len(typing.get_args(hint))
    return hint, False


class Config:
    """A frozen dataclass of knobs that checks itself on construction."""

    def __post_init__(self) -> None:
        for known in self.knobs(deep=False):
            value = getattr(self, known.path)
            object.__setattr__(self, known.path, _checked(known, value))
        self.check()

    def check(self) -> None:
        """Raise `ConfigError` where fields contradict one another."""

    @classmethod
    def knobs(cls, *, deep: bool = True) -> Iterator[Knob]:
        """List the fields; those of contained configs follow with dotted paths."""
        return iter(_listed(cls, deep))  # type: ignore[arg-type]  # a class is hashable

    def to_dict(self) -> dict[str, Any]:
        """Return the config as plain JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[call-overload]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Return the config read from plain values; unknown names are refused with the nearest known one."""
        known = {field.path: field for field in cls.knobs(deep=False)}
        arguments: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise ConfigError(f"{where or cls.__name__}: unknown setting {name!r}{nearest(name, known)}")
            kind = known[name].type
            if isinstance(kind, type) and issubclass(kind, Config) and isinstance(value, Mapping):
                value = kind.from_dict(value, where=f"{where}.{name}" if where else name)
            arguments[name] = value
        missing = [name for name, field in known.items() if field.default is dataclasses.MISSING and name not in values]
        if missing:
            raise ConfigError(f"{where or cls.__name__}: {', '.join(missing)} must be given")
        return cls(**arguments)

    def override(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with dotted paths replaced: `config.override({"encoder.layers": 6})`."""
        values = self.to_dict()
        paths = {known.path for known in self.knobs()} | {known.path for known in self.knobs(deep=False)}
        for path, value in changes.items():
            if path not in paths:
                raise ConfigError(f"unknown setting {path!r}{nearest(path, paths)}")
            inner = values
            *parents, last = path.split(".")
            for parent in parents:
                inner[parent] = inner.get(parent) or {}
                inner = inner[parent]
            inner[last] = value
        return type(self).from_dict(values)


@cache
def _listed(config: type[Config], deep: bool) -> tuple[Knob, ...]:
    """Return a config's knobs; found once, for a config is made with every text that has settings of its own."""
    hints, made = typing.get_type_hints(config), []
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        kind, optional = _plain(hints[field.name])
        if deep and isinstance(kind, type) and issubclass(kind, Config):
            made += [dataclasses.replace(inner, path=f"{field.name}.{inner.path}") for inner in kind.knobs()]
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        told = field.metadata
        limits = told.get("choices", ()), told.get("low"), told.get("high"), told.get("bare", "")
        made.append(Knob(field.name, kind, optional, default, told.get("help", ""), *limits))
    return tuple(made)


def _checked(known: Knob, value: Any) -> Any:
    """Return the value in the knob's type, or raise with what is allowed."""
    if value is None:
        if known.optional or known.default is None:
            return None
        raise ConfigError(f"{known.path} must be given")
    kind = known.type
    origin = typing.get_origin(kind)
    if origin is tuple:
        value = tuple(value) if isinstance(value, list | tuple) else (value,)
    elif kind is bool:
        if isinstance(value, str) and value.lower() in ("true", "false", "yes", "no"):
            value = value.lower() in ("true", "yes")
        if not isinstance(value, bool):
            raise ConfigError(f"{known.path} must be true or false, not {value!r}")
    elif kind in (int, float):
        try:
            number = kind(value)
            if isinstance(value, bool) or (kind is int and float(value) != number):
                raise ValueError
        except (TypeError, ValueError):
            raise ConfigError(
                f"{known.path} must be a {'whole ' if kind is int else ''}number, not {value!r}"
            ) from None
        value = number
    elif isinstance(kind, type) and not isinstance(value, kind):
        raise ConfigError(f"{known.path} must be of type {kind.__name__}, not {value!r}")
    if known.choices and value not in known.choices:
        raise ConfigError(
            f"{known.path} must be one of {', '.join(known.choices)}, not {value!r}{nearest(str(value), known.choices)}"
        )
    if known.low is not None and value < known.low:
        raise ConfigError(f"{known.path} ({value}) must be at least {known.low:g}")
    if known.high is not None and value > known.high:
        raise ConfigError(f"{known.path} ({value}) must be at most {known.high:g}")
    return value
