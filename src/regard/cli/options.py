"""Command-line options made from config knobs: one declaration gives the field, its flag, its help and its checks."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from regard.config.settings import Config, Knob
from regard.errors import UsageError

Flags = Mapping[str, str]  # dotted path → short flag
EVERY = "Every other setting (those above have dotted names too: --training.steps is --steps)"
_FLAG_WIDTH = 30  # longer flags have a line of their own in a help
_LAST = ("Options", "Options", EVERY)  # sections at the end of a help: the more often named, the later


class Option(click.Option):
    """An option that has its place in a section of the help."""

    def __init__(self, names: Sequence[str], *, section: str = "Main options", **settings: Any) -> None:
        super().__init__(names, **settings)
        self.section = section


class KnobOption(Option):
    """An option that sets one field of a config; `path` is where."""

    def __init__(self, names: Sequence[str], *, path: str, shown: str, **settings: Any) -> None:
        super().__init__(names, **settings)
        self.path, self.metavar_text = path, shown

    def get_help_record(self, context: click.Context) -> tuple[str, str]:
        """Return the flag, the short one where there are two, and its help with the default."""
        return f"{self.opts[0]} {self.metavar_text}".rstrip(), self.help or ""


def max_two_values(words: Sequence[str]) -> int:
    """Return how many values a greedy option takes: a parallel corpus is two files."""
    return 2


class Verb(click.Command):
    """A command whose help lists its options by section, and whose `greedy` options take several values.

    How many they take at most, `most` says of the words of the command line.
    """

    def __init__(
        self,
        *arguments: Any,
        greedy: Iterable[str] = (),
        most: typing.Callable[[Sequence[str]], int] = max_two_values,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.greedy, self.max_values = tuple(greedy), most

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Spell `--valid a b` as `--valid a --valid b`."""
        spelled: list[str] = []
        most = self.max_values(arguments)
        while arguments:
            word, *arguments = arguments
            spelled.append(word)
            if word in self.greedy and arguments:
                spelled.append(arguments.pop(0))
                for _ in range(most - 1):
                    if arguments and not arguments[0].startswith("-"):
                        spelled += [word, arguments.pop(0)]
        return super().parse_args(context, spelled)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of each section together."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            if record := parameter.get_help_record(context):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        wide = min(_FLAG_WIDTH, max(len(flag) for records in sections.values() for flag, _ in records))
        for name in sorted(sections, key=_LAST.count):
            with formatter.section(name):
                formatter.write_dl([(flag.ljust(wide), text) for flag, text in sections[name]], col_max=wide)


def knob_options(config: type[Config], *, section: str, skip: Iterable[str] = ()) -> list[click.Parameter]:
    """Return an option for each field of a flat config; its flag is its name.

    >>> from regard.config.inference import DecodingConfig
    >>> options = knob_options(DecodingConfig, section="Search")
    >>> options[0].opts, options[0].help
    (['--beam'], 'Beam size; 1 is greedy search. [default: 5; 1 to 64]')
    """
    return [
        option
        for knob in config.knobs()
        if knob.path not in skip
        for option in _one_knob(knob, "--" + knob.path.replace("_", "-"), "", section)
    ]


def dotted_options(
    config: type[Config],
    *,
    flags: Flags,
    sections: Mapping[str, str],
    negated: Mapping[str, str],
    skip: Iterable[str] = (),
) -> list[click.Parameter]:
    """Return an option for each field of a config of configs: its dotted path, and a short flag where `flags` has one.

    `sections` names the section of the short flags whose paths start with its keys; the first that fits counts.
    `negated` has the help of short flags that turn off what is on by default.
    """
    options: list[click.Parameter] = []
    for knob in config.knobs():
        if knob.path not in skip:
            section = next(name for start, name in sections.items() if knob.path.startswith(start))
            options += _one_knob(knob, flags.get(knob.path, ""), f"--{knob.path}", section, negated.get(knob.path, ""))
    return options


def _one_knob(knob: Knob, short: str, dotted: str, section: str, negated: str = "") -> list[click.Parameter]:
    name = "knob_" + knob.path.replace(".", "_")
    if knob.type is bool and short:
        # alone, the flag turns the field to what it is not by default; the dotted one takes a value
        flag: list[click.Parameter] = [
            KnobOption(
                [short, name],
                path=knob.path,
                section=section,
                is_flag=True,
                flag_value=not knob.default,
                default=None,
                shown="",
                help=negated or knob.help,
            )
        ]
        return flag + (_one_knob(knob, "", dotted, EVERY) if dotted else [])
    names = list(dict.fromkeys(flag for flag in (short, dotted) if flag))
    many = typing.get_origin(knob.type) is tuple
    return [
        KnobOption(
            [*names, name if short else name + "_dotted"],
            path=knob.path,
            section=section if short else EVERY,
            type=_click_type(knob),
            multiple=many,
            default=None,
            shown=f"[{_metavar(knob)}]" if knob.bare else _metavar(knob),
            help=f"{knob.help} [{_default(knob)}]",
            **({"is_flag": False, "flag_value": knob.bare} if knob.bare else {}),
        )
    ]


def _click_type(knob: Knob) -> click.ParamType[Any]:
    if knob.choices:
        return click.Choice(knob.choices)
    if knob.type is bool:
        return click.BOOL
    if knob.type is int:
        return click.IntRange(_whole(knob.low), _whole(knob.high))
    if knob.type is float:
        return click.FloatRange(knob.low, knob.high)
    return click.STRING


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def _metavar(knob: Knob) -> str:
    if knob.choices:
        return "|".join(knob.choices)
    if typing.get_origin(knob.type) is tuple:
        return "FILE …"
    return {bool: "true|false", int: "N", float: "X"}.get(knob.type, "TEXT")


def _default(knob: Knob) -> str:
    """Return the default as it would be typed, and the range where there is one."""
    value = f"{knob.default:g}" if isinstance(knob.default, float) else str(knob.default)
    if isinstance(knob.default, bool):
        value = value.lower()
    if knob.default in ("", (), None):
        value = "none"
    bounds = f"; {knob.low:g} to {knob.high:g}" if knob.low is not None and knob.high is not None else ""
    alone = f"; the flag alone: {knob.bare}" if knob.bare else ""
    return f"default: {value}{bounds}{alone}"


def changed_settings(context: click.Context, config: type[Config] | None = None) -> dict[str, Any]:
    """Return what was given on the command line, by dotted path; with `config`, only its fields."""
    known = None if config is None else {knob.path for knob in config.knobs()}
    given: dict[str, Any] = {}
    for option in context.command.params:
        if not isinstance(option, KnobOption) or (known is not None and option.path not in known):
            continue
        value = context.params.get(option.name or "")
        if value is None or value == ():
            continue
        if option.path in given and given[option.path] != value:
            raise UsageError(f"{option.opts[0]} is given twice, with different values: keep one of them")
        given[option.path] = value
    return given


def is_given(context: click.Context, flag: str) -> bool:
    """Whether a flag is on the command line."""
    return any(flag in option.opts and _on_command_line(context, option) for option in context.command.params)


def _on_command_line(context: click.Context, option: click.Parameter) -> bool:
    return context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE


def reject_other_options(context: click.Context, known: Iterable[str], why: str) -> None:
    """Raise for the first option on the command line that is none of these flags and no argument."""
    for option in context.command.params:
        if isinstance(option, click.Option) and _on_command_line(context, option) and option.opts[0] not in known:
            raise UsageError(f"{option.opts[0]} means nothing to {why}: leave it out")


def verb(
    help: str,
    options: Sequence[click.Parameter] = (),
    *,
    greedy: Iterable[str] = (),
    most: typing.Callable[[Sequence[str]], int] = max_two_values,
    name: str = "",
) -> typing.Callable[[typing.Callable[..., None]], Verb]:
    """Return a decorator that makes a function a verb; it is called with the context and all that was given.

    The function's docstring is not its help: the help is for users and ends with examples.
    """

    def decorate(function: typing.Callable[..., None]) -> Verb:
        def call(**values: Any) -> None:
            plain = {key: value for key, value in values.items() if not key.startswith("knob_")}
            heads = plain.pop(SWITCHED, ())
            with _switched(heads):
                function(click.get_current_context(), **plain)

        every = [*options, JSON]
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
        return Verb(
            name or function.__name__,
            callback=call,
            params=every,
            help=help,
            greedy=greedy,
            most=most,
            context_settings=settings,
        )

    return decorate


@contextmanager
def _switched(heads: Sequence[str]) -> Iterator[None]:
    """Run a verb with heads switched off, if any."""
    if not heads:
        yield
        return
    from regard.attention.intervention import ablate

    with ablate(heads):
        yield


SWITCHED = "switched_off"
OFF = Option(
    ["--off", SWITCHED],
    multiple=True,
    metavar="HEAD",
    section="Computing",
    help="switch off a head, as in encoder.3.self:2, or several with commas between; a site alone: all its heads",
)
JSON = Option(["--json", "as_json"], section="Options", is_flag=True, help="give the result as JSON, for programs")
