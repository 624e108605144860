"""Settings: `knob` declares one, `Config` checks, reads and writes them. Options and their help derive from here."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeGuard

from regard.errors import ConfigError, nearest

MAX_SIZE = 2**24  # of any size of a model
_MAX_INTEGER = 2**53 - 1  # of any setting: floats and the JSON of every tool keep it exactly
AUTO = "auto"  # of a number that Regard chooses; it is 0 in code, so that `setting or choice` reads as it should
_TRUE = ("true", "yes")
_FALSE = ("false", "no")


def knob(
    default: Any,
    help: str,
    *,
    choices: Collection[str] | None = None,
    low: float | None = None,
    high: float | None = None,
    bare: str = "",
    negated: str = "",
    metavar: str = "",
) -> Any:
    """Declare a setting with its help, its choices or its range (both limits included).

    Choices are names, or a table of names that plugins can extend (`components`), which is only read when it is needed.
    `default` of a nested config is its class, or a function that builds it; `AUTO` of a number, which has a lower
    limit, allows `auto` as a value. `bare` is the value of its option where the option is passed without one, `negated`
    the help of the option that turns it off, `metavar` stands for its value in the help.
    """
    is_auto = default == AUTO and low is not None
    metadata = {
        "help": help,
        "choices": choices,
        "low": low,
        "high": high,
        "bare": bare,
        "negated": negated,
        "metavar": metavar,
        "is_auto": is_auto,
    }
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=0 if is_auto else default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Knob:
    """One setting of a config, as options, help and messages need it."""

    path: str  # dotted, relative to the config that lists it
    type: type
    is_optional: bool
    default: Any
    help: str
    choices: Collection[str] | None = dataclasses.field(compare=False)  # names, or a table of them; None: any value
    low: float | None
    high: float | None
    bare: str = ""  # value of its option where that is passed without one
    negated: str = ""  # help of the option that turns it off
    metavar: str = ""  # stands for its value in the help
    is_auto: bool = False  # a number that may be `auto`

    @property
    def json_default(self) -> Any:
        """Default as recipes have it."""
        return AUTO if self.is_auto and not self.default else self.default


class Config:
    """A frozen dataclass of knobs that checks itself on construction."""

    excluded: ClassVar[tuple[str, ...]] = ()  # dotted paths of nested settings that mean nothing to this config
    # dotted path → help of a setting, where it means something more specific here than where it is declared
    descriptions: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for setting in self.knobs(deep=False):
            value = getattr(self, setting.path)
            object.__setattr__(self, setting.path, _convert(setting, value))
        self.check()

    def check(self) -> None:
        """Raise `ConfigError` where settings contradict each other."""

    @classmethod
    def knobs(cls, *, deep: bool = True) -> Iterator[Knob]:
        """Iterate over the settings; with `deep`, nested configs are replaced by their settings with dotted paths."""
        return iter(_list_knobs(cls, deep))  # type: ignore[arg-type]  # a class is hashable

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[call-overload]
        for path in self.excluded:
            group, name = _find_group(values, path)
            del group[name]
        for path in _auto_paths(type(self)):  # type: ignore[arg-type]  # a class is hashable
            group, name = _find_group(values, path)
            group[name] = group[name] or AUTO
        return values

    @classmethod
    def unknown_setting(cls, path: str, known: Iterable[str]) -> ConfigError:
        """Error about a setting that this config does not have."""
        return ConfigError(f"unknown setting {path!r}{nearest(path, known)}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Build a config from JSON values. An unknown name raises `ConfigError` with the nearest known one."""
        location = where or cls.__name__
        _check_excluded(cls, values)
        settings = {setting.path: setting for setting in cls.knobs(deep=False)}
        arguments: dict[str, Any] = {}
        for name, value in values.items():
            if name not in settings:
                raise ConfigError(f"{location}: {cls.unknown_setting(name, settings)}")
            kind = settings[name].type
            default = settings[name].default
            if _is_config(kind) and isinstance(value, Mapping):
                defaults = default.to_dict() if isinstance(default, Config) else {}
                value = kind.from_dict(_merge(defaults, value), where=f"{where}.{name}" if where else name)
            arguments[name] = value
        required = [name for name, setting in settings.items() if setting.default is dataclasses.MISSING]
        missing = [name for name in required if name not in values]
        if missing:
            raise ConfigError(f"{location}: {', '.join(missing)} must be set")
        return cls(**arguments)

    def override(self, changes: Mapping[str, Any]) -> Self:
        """Copy with values replaced by dotted path: `config.override({"encoder.num_layers": 6})`."""
        values = self.to_dict()
        paths = {setting.path for setting in self.knobs()} | {setting.path for setting in self.knobs(deep=False)}
        for path, value in changes.items():
            if path not in paths:
                raise self.unknown_setting(path, paths)
            inner = values
            *parents, last = path.split(".")
            for parent in parents:
                inner[parent] = inner.get(parent) or {}
                inner = inner[parent]
            inner[last] = value
        return type(self).from_dict(values)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted paths.

    >>> flatten({"training": {"steps": 3}, "preset": "tiny"})
    {'training.steps': 3, 'preset': 'tiny'}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        flat |= flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nest settings by dotted path; the inverse of `flatten`.

    >>> nest({"training.steps": 3, "preset": "tiny"})
    {'training': {'steps': 3}, 'preset': 'tiny'}
    """
    values: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        inner = values
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    return values


def _find_group(values: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The innermost mapping of a dotted path, and the last name of the path."""
    *parents, name = path.split(".")
    for parent in parents:
        values = values[parent]
    return values, name


@cache
def _auto_paths(config: type[Config]) -> tuple[str, ...]:
    return tuple(setting.path for setting in config.knobs() if setting.is_auto)


def _merge(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with those of `values` replaced."""
    merged = {**defaults, **values}
    for name, value in values.items():
        default = defaults.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            merged[name] = _merge(default, value)
    return merged


def _check_excluded(config: type[Config], values: Mapping[str, Any]) -> None:
    """Raise for excluded settings; those of files that were written before the exclusion may have their defaults."""
    if not config.excluded:
        return
    for path, value in flatten(values).items():
        if path in config.excluded and value != _declared_default(config, path):
            raise config.unknown_setting(path, (setting.path for setting in config.knobs()))


def _declared_default(config: type[Config], path: str) -> Any:
    """Default of a setting at a dotted path, also of an excluded one."""
    name, _, nested_path = path.partition(".")
    default = _field_default(next(field for field in dataclasses.fields(config) if field.name == name))  # type: ignore[arg-type]
    return attrgetter(nested_path)(default) if nested_path else default


def _field_default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _is_config(kind: Any) -> TypeGuard[type[Config]]:
    return isinstance(kind, type) and issubclass(kind, Config)


def _split_optional(hint: Any) -> tuple[Any, bool]:
    """Split a type hint into the type without `None` and whether `None` is allowed."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = typing.get_args(hint)
        inner = [member for member in members if member is not type(None)]
        return inner[0], len(inner) < len(members)
    return hint, False


@cache  # requests with their own settings build configs by the thousand
def _list_knobs(config: type[Config], deep: bool) -> tuple[Knob, ...]:
    """List a config's knobs."""
    hints = typing.get_type_hints(config)
    knobs = []
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        kind, optional = _split_optional(hints[field.name])
        default = _field_default(field)
        if deep and _is_config(kind):
            knobs += _list_nested(field.name, kind, default)
            continue
        setting = Knob(
            path=field.name,
            type=kind,
            is_optional=optional,
            default=default,
            help=field.metadata.get("help", ""),
            choices=field.metadata.get("choices"),
            low=field.metadata.get("low"),
            high=field.metadata.get("high"),
            bare=field.metadata.get("bare", ""),
            negated=field.metadata.get("negated", ""),
            metavar=field.metadata.get("metavar", ""),
            is_auto=field.metadata.get("is_auto", False),
        )
        knobs.append(setting)
    unknown = config.descriptions.keys() - {setting.path for setting in knobs} if deep else ()
    assert not unknown, f"{config.__name__} describes settings that it does not have: {sorted(unknown)}"
    return tuple(
        dataclasses.replace(setting, help=config.descriptions.get(setting.path, setting.help))
        for setting in knobs
        if setting.path not in config.excluded
    )


def _list_nested(name: str, kind: type[Config], default: Any) -> list[Knob]:
    """Knobs of a nested config, with the defaults that the outer config gives them."""
    knobs = []
    for inner in kind.knobs():
        inner_default = attrgetter(inner.path)(default) if isinstance(default, Config) else inner.default
        knobs.append(dataclasses.replace(inner, path=f"{name}.{inner.path}", default=inner_default))
    return knobs


def _convert(setting: Knob, value: Any) -> Any:
    """Convert a value to the setting's type, or raise `ConfigError` with what is allowed."""
    if value is None:
        if setting.is_optional or setting.default is None:
            return None
        raise ConfigError(f"{setting.path} must be set")
    if setting.is_auto and not isinstance(value, bool) and value in (AUTO, 0):
        return setting.type(0)
    value = _convert_type(setting, value)
    if setting.choices is not None and value not in setting.choices:
        suggestion = nearest(str(value), setting.choices)
        raise ConfigError(f"{setting.path} must be one of {', '.join(setting.choices)}, not {value!r}{suggestion}")
    if setting.low is not None and value < setting.low:
        raise ConfigError(f"{setting.path} ({value}) must be at least {_format_bound(setting.low)}")
    if setting.high is not None and value > setting.high:
        raise ConfigError(f"{setting.path} ({value}) must be at most {_format_bound(setting.high)}")
    return value


def _format_bound(bound: float) -> str:
    """Format a limit of a range: a whole number with all its digits.

    >>> _format_bound(16777216), _format_bound(0.95)
    ('16777216', '0.95')
    """
    return f"{bound:.0f}" if bound == int(bound) else f"{bound:g}"


def _convert_type(setting: Knob, value: Any) -> Any:
    kind = setting.type
    if typing.get_origin(kind) is tuple:
        return tuple(value) if isinstance(value, list | tuple) else (value,)
    if kind is bool:
        return _convert_bool(setting, value)
    if kind in (int, float):
        return _convert_number(setting, value)
    if isinstance(kind, type) and not isinstance(value, kind):
        raise ConfigError(f"{setting.path} must be of type {kind.__name__}, not {value!r}")
    return value


def _convert_bool(setting: Knob, value: Any) -> bool:
    if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
        return value.lower() in _TRUE
    if not isinstance(value, bool):
        raise ConfigError(f"{setting.path} must be true or false, not {value!r}")
    return value


def _convert_number(setting: Knob, value: Any) -> float:
    kind = setting.type
    try:
        converted: float = kind(value)
        if isinstance(value, bool) or (kind is int and float(value) != converted):
            raise ValueError
        if not math.isfinite(converted) or (kind is int and abs(converted) > _MAX_INTEGER):
            raise ValueError
    except (OverflowError, TypeError, ValueError):
        number_type = "whole number" if kind is int else "finite number"
        if type(value) is int and abs(value) > _MAX_INTEGER:
            number_type += f" of at most {_MAX_INTEGER}"
        if setting.is_auto:
            number_type += f" or {AUTO}"
        raise ConfigError(f"{setting.path} must be a {number_type}, not {value!r:.60}") from None
    return converted
