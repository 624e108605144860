"""Command-line options built from config knobs: one declaration gives the field, its flag, its help and its checks."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import click

from regard.config.settings import AUTO, MAX_SIZE, Config, Knob
from regard.errors import UsageError

Flags = Mapping[str, str]  # dotted path → short flag
Output = Sequence[Any]  # types, or import strings of types: the forms of what `--json` prints
HELP_ALL_KEY = "regard.help_all"  # in the metadata of a context: the help lists every option
FILES_METAVAR = "FILE …"  # of an option with several values
_FLAG_WIDTH = 30  # longer flags have a line of their own in the help
LAST_SECTION = "General"


class FiniteRange(click.FloatRange):
    """A range of numbers without infinity and NaN, which compares with nothing."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Convert the text of an option."""
        converted = super().convert(value, parameter, context)
        if not math.isfinite(converted):
            self.fail(f"{value!r} is not a finite number", parameter, context)
        return converted


class AutoNumber(click.ParamType[float]):
    """A number in a range, or `auto`, which is 0 in code.

    >>> AutoNumber(click.IntRange(1)).convert("auto", None, None)
    0
    """

    name = "number"

    def __init__(self, number_range: click.IntRange | click.FloatRange) -> None:
        self.number_range = number_range

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Convert the text of an option."""
        if value == AUTO:
            return 0
        try:
            return self.number_range.convert(value, parameter, context)
        except click.BadParameter:
            number_type = "whole number" if isinstance(self.number_range, click.IntRange) else "number"
            low = "above" if self.number_range.min_open else "from"
            high = "" if self.number_range.max is None else f" to {self.number_range.max:g}"
            allowed = f"{AUTO}, or a {number_type} {low} {self.number_range.min:g}{high}"
            self.fail(f"{value!r}: must be {allowed}", parameter, context)


class Option(click.Option):
    """An option with its section of the help."""

    def __init__(self, names: Sequence[str], *, section: str = "Main options", **settings: Any) -> None:
        super().__init__(names, **settings)
        self.section = section
        if self.metavar is None and not self.is_flag:
            self.metavar = _type_metavar(self.type)

    def get_help_extra(self, context: click.Context) -> click.types.OptionHelpExtra:
        """Only whether the option is required: the help has defaults and ranges."""
        extra = super().get_help_extra(context)
        return {"required": extra["required"]} if "required" in extra else {}


class KnobOption(Option):
    """An option that sets the config field at the dotted `path`; `usage` is its metavar in the help."""

    def __init__(
        self, names: Sequence[str], *, path: str, usage: str, is_advanced: bool = False, **settings: Any
    ) -> None:
        super().__init__(names, **settings)
        self.path = path
        self.usage = usage
        self.is_advanced = is_advanced  # listed by `--help-all` alone

    def get_help_record(self, context: click.Context) -> tuple[str, str]:
        """Flag (the short one where there are two) and help with the default."""
        return f"{self.opts[0]} {self.usage}".rstrip(), self.help or ""


def _type_metavar(kind: click.ParamType[Any]) -> str:
    """What stands for a value of a type in the help."""
    if isinstance(kind, AutoNumber):
        return f"{_type_metavar(kind.number_range)}|{AUTO}"
    if isinstance(kind, click.Choice):
        return "|".join(kind.choices)
    return {"integer range": "N", "float range": "X", "float": "X", "boolean": "true|false"}.get(kind.name, "TEXT")


def max_two_values(arguments: Sequence[str]) -> int:
    """Default limit of a greedy option: a parallel corpus is two files."""
    return 2


class Verb(click.Command):
    """A command whose help lists options by section, and whose `greedy` options take several values.

    `max_values` computes from the command line how many values a greedy option takes at most. `model_groups` are
    groups of settings, with their help, that `--help-all` lists on one line each. `output` are the types of the JSON
    objects that `--json` prints, from which the site's JSON schemas are made.
    """

    def __init__(
        self,
        *arguments: Any,
        greedy: Iterable[str] = (),
        max_values: Callable[[Sequence[str]], int] = max_two_values,
        model_groups: Mapping[str, str] | None = None,
        output: Output = (),
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.output = output
        self.model_groups = model_groups or {}
        self.greedy = tuple(greedy)
        self.max_values = max_values

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Expand `--valid a b` to `--valid a --valid b`."""
        expanded: list[str] = []
        max_values = self.max_values(arguments)
        while arguments:
            flag, *arguments = arguments
            expanded.append(flag)
            if flag in self.greedy and arguments:
                expanded.append(arguments.pop(0))
                for _ in range(max_values - 1):
                    if arguments and not arguments[0].startswith("-"):
                        expanded += [flag, arguments.pop(0)]
        return super().parse_args(context, expanded)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        model_section = ""
        models: dict[str, list[str]] = {}  # group of a model's settings → their names
        for parameter in self.get_params(context):
            is_advanced = getattr(parameter, "is_advanced", False)
            is_hidden = getattr(parameter, "hidden", False)
            if is_hidden or (is_advanced and not context.meta.get(HELP_ALL_KEY)):
                continue
            group, _, name = getattr(parameter, "path", "").partition(".")
            if is_advanced and group in self.model_groups:
                models.setdefault(group, []).append(name)
                model_section = getattr(parameter, "section", "")
                continue
            record = parameter.get_help_record(context)
            if record and not isinstance(parameter, click.Argument):
                sections.setdefault(getattr(parameter, "section", LAST_SECTION), []).append(record)
        for group, names in models.items():
            record = (f"--{group}.NAME VALUE", f"{self.model_groups[group]} Names: {', '.join(names)}.")
            sections.setdefault(model_section, []).append(record)
        flags = [flag for records in sections.values() for flag, _ in records]
        width = min(_FLAG_WIDTH, max(map(len, flags)))
        for name in sorted(sections, key=lambda name: name == LAST_SECTION):
            with formatter.section(name):
                formatter.write_dl([(flag.ljust(width), text) for flag, text in sections[name]], col_max=width)


def knob_options(
    config: type[Config],
    *,
    section: str,
    skip: Iterable[str] = (),
    descriptions: Mapping[str, str] = MappingProxyType({}),
) -> list[click.Parameter]:
    """Build an option for each field of a flat config; its flag is the field's name, `--no-…` where that is on.

    `descriptions` replaces the help of a field where it means something more specific.

    >>> from regard.config.inference import DecodingConfig
    >>> options = knob_options(DecodingConfig, section="Search")
    >>> options[0].opts, options[0].help.endswith(" [default: 5; 1 to 64]")
    (['--beam'], True)
    """
    options: list[click.Parameter] = []
    for knob in config.knobs():
        if knob.path not in skip:
            knob = replace(knob, help=descriptions.get(knob.path, knob.help))
            prefix = "--no-" if knob.default is True else "--"
            options += _build_options(knob, prefix + knob.path.replace("_", "-"), "", section)
    return options


def dotted_options(
    knobs: Iterable[Knob],
    *,
    flags: Flags,
    sections: Mapping[str, str],
    skip: Iterable[str] = (),
    advanced: Iterable[str] = (),
) -> list[click.Parameter]:
    """Build an option for each knob of a nested config: its dotted path, and a short flag where `flags` has one.

    `sections` maps prefixes of paths to sections of the help; the first match counts. Options of `advanced` paths are
    listed by `--help-all` alone, as are all without a short flag. Paths that begin with one of `skip` have no option.
    """
    options: list[click.Parameter] = []
    for knob in knobs:
        if not knob.path.startswith(tuple(skip)):
            section = next(name for prefix, name in sections.items() if knob.path.startswith(prefix))
            short = flags.get(knob.path, "")
            options += _build_options(knob, short, f"--{knob.path}", section)
    for option in options:
        if isinstance(option, KnobOption) and option.path in advanced:
            option.is_advanced = True
    return options


def _build_options(knob: Knob, short: str, dotted: str, section: str) -> list[click.Parameter]:
    """Build the option of a knob; one with a short flag that takes no value also has a dotted one that does."""
    switches: list[click.Parameter] = []
    if knob.type is bool and short:  # the short flag inverts the default
        switches = [_build_switch(knob, short, section, not knob.default, knob.negated or knob.help)]
    elif knob.negated and short:  # a choice of auto, yes and no
        negative = f"--no-{short.removeprefix('--')}"
        switches = [
            _build_switch(knob, short, section, "yes", knob.help),
            _build_switch(knob, negative, section, "no", knob.negated, suffix="_off"),
        ]
    if switches:
        dotted_twins = _build_options(knob, "", dotted, section) if dotted else []
        for twin in dotted_twins:
            twin.hidden = True  # type: ignore[attr-defined]  # an option, not an argument
        return [*switches, *dotted_twins]
    names = list(dict.fromkeys(flag for flag in (short, dotted) if flag))
    name = _parameter_name(knob)
    metavar = _metavar(knob)
    bare_flag = {"is_flag": False, "flag_value": knob.bare} if knob.bare else {}
    return [
        KnobOption(
            [*names, name if short else f"{name}_dotted"],
            path=knob.path,
            section=section,
            is_advanced=not short,
            type=_click_type(knob),
            multiple=typing.get_origin(knob.type) is tuple,
            default=None,
            usage=f"[{metavar}]" if knob.bare else metavar,
            help=knob.help + _format_default(knob),
            **bare_flag,
        )
    ]


def _build_switch(knob: Knob, flag: str, section: str, value: bool | str, help: str, *, suffix: str = "") -> KnobOption:
    """Flag that sets a knob to a value; `suffix` tells the parameters of one knob apart."""
    return KnobOption(
        [flag, _parameter_name(knob) + suffix],
        path=knob.path,
        section=section,
        is_flag=True,
        flag_value=value,
        default=None,
        usage="",
        help=help,
    )


def _parameter_name(knob: Knob) -> str:
    return "knob_" + knob.path.replace(".", "_")


def _click_type(knob: Knob) -> click.ParamType[Any]:
    if knob.is_auto:
        return AutoNumber(_number_range(knob))
    if knob.choices is not None:
        return click.Choice(list(knob.choices))
    if knob.type is bool:
        return click.BOOL
    if knob.type in (int, float):
        return _number_range(knob)
    return click.STRING


def _number_range(knob: Knob) -> click.IntRange | click.FloatRange:
    if knob.type is int:
        return click.IntRange(_integer_bound(knob.low), _integer_bound(knob.high))
    return FiniteRange(knob.low, knob.high, min_open=knob.is_auto)  # 0 is auto in code


def _integer_bound(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def _metavar(knob: Knob) -> str:
    if knob.choices is not None:
        return "|".join(knob.choices)
    if typing.get_origin(knob.type) is tuple:
        return FILES_METAVAR
    metavar = knob.metavar or {bool: "true|false", int: "N", float: "X"}.get(knob.type, "TEXT")
    return f"{metavar}|{AUTO}" if knob.is_auto else metavar


def _format_default(knob: Knob) -> str:
    """Default as the user would type it, with the range where there is one; nothing for an empty default."""
    default = f"{knob.json_default:g}" if isinstance(knob.json_default, float) else str(knob.json_default)
    if isinstance(knob.default, bool):
        default = default.lower()
    has_bounds = knob.low is not None and knob.high is not None and knob.high < MAX_SIZE
    bounds = f"; {knob.low:g} to {knob.high:g}" if has_bounds else ""
    parts = [] if knob.default in ("", (), None) else [f"default: {default}{bounds}"]
    if knob.bare:
        parts.append(f"without a value: {knob.bare}")
    return f" [{'; '.join(parts)}]" if parts else ""


def changed_settings(context: click.Context, config: type[Config] | None = None) -> dict[str, Any]:
    """Settings of the command line by dotted path; with `config`, only its fields."""
    paths = None if config is None else {knob.path for knob in config.knobs()}
    settings: dict[str, Any] = {}
    for option in context.command.params:
        if not isinstance(option, KnobOption) or (paths is not None and option.path not in paths):
            continue
        setting = context.params.get(option.name or "")
        if setting is None or setting == ():
            continue
        if option.path in settings and settings[option.path] != setting:
            raise UsageError(f"{option.opts[0]} is set twice, to different values: keep one of them")
        settings[option.path] = setting
    return settings


def is_on_command_line(context: click.Context, flag: str) -> bool:
    """Whether a flag is on the command line."""
    return any(flag in option.opts and _is_set(context, option) for option in context.command.params)


def _is_set(context: click.Context, option: click.Parameter) -> bool:
    return context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE


def reject_other_options(context: click.Context, allowed: Iterable[str], model: str) -> None:
    """Raise for the first option on the command line that is not an `allowed` flag; the message names the model."""
    for option in context.command.params:
        if isinstance(option, click.Option) and _is_set(context, option) and option.opts[0] not in allowed:
            raise UsageError(f"{option.opts[0]} does not apply to {model}: leave it out")


def verb(
    help: str,
    options: Sequence[click.Parameter] = (),
    *,
    greedy: Iterable[str] = (),
    max_values: Callable[[Sequence[str]], int] = max_two_values,
    model_groups: Mapping[str, str] | None = None,
    output: Output = (),
    json_help: str = "Print the result as JSON.",
    name: str = "",
    verb_class: type[Verb] = Verb,
) -> Callable[[Callable[..., None]], Verb]:
    """Decorator that turns a function into a verb; the function receives the context and every parameter.

    The help is separate from the function's docstring: it is for users and ends with examples.
    """

    def decorate(function: Callable[..., None]) -> Verb:
        def call(**parameters: Any) -> None:
            arguments = {key: value for key, value in parameters.items() if not key.startswith("knob_")}
            heads = arguments.pop(ABLATED_HEADS, ())
            with _ablate_heads(heads), _allow_unused_layers(arguments.pop(UNUSED_ALLOWED, False)):
                function(click.get_current_context(), **arguments)

        return verb_class(
            name or function.__name__,
            callback=call,
            params=[*options, Option(["--json", "as_json"], section=LAST_SECTION, is_flag=True, help=json_help)],
            help=help,
            greedy=greedy,
            max_values=max_values,
            model_groups=model_groups,
            output=output,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        )

    return decorate


@contextmanager
def _ablate_heads(heads: Sequence[str]) -> Iterator[None]:
    """Run a verb with the requested heads ablated."""
    if not heads:
        yield
        return
    from regard.attention.intervention import ablate

    with ablate(heads):
        yield


@contextmanager
def _allow_unused_layers(is_allowed: bool) -> Iterator[None]:
    """Run a verb that may load folders with layers that are not used."""
    if not is_allowed:
        yield
        return
    from regard.checkpoint.unused_weights import allow_unused_layers

    with allow_unused_layers():
        yield


def _print_help_all(context: click.Context, option: click.Parameter, is_set: bool) -> None:
    if is_set:
        context.meta[HELP_ALL_KEY] = True
        click.echo(context.get_help())
        context.exit()


HELP_ALL = Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_help_all,
    section=LAST_SECTION,
    help="Show every setting. Each has a dotted name, too: --seed is --training.seed.",
)
ABLATED_HEADS = "ablated_heads"
HEADS = "HEAD,…"
ABLATE = Option(
    ["--ablate", ABLATED_HEADS],
    multiple=True,
    metavar=HEADS,
    section="Computing",
    help="Set the output of attention heads to zero. A head is STACK.LAYER.KIND:HEAD, counted from 0, as in "
    "encoder.3.self:2; without :HEAD, all heads of the layer.",
)
UNUSED_ALLOWED = "unused_allowed"
ALLOW_UNUSED = Option(
    ["--allow-unused", UNUSED_ALLOWED],
    is_flag=True,
    section=LAST_SECTION,
    help="Load a checkpoint even if the model has no place for whole layers of it. [default: an error]",
)
