"""The reference, generated from the code while the site is built: commands from their options, names from docstrings.

python docs/reference.py FOLDER     # write the pages, to look at them without building the site
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

import regard
from regard.cli import VERBS
from regard.cli import regard as commands
from regard.cli.json_schema import output_titles, schema_text
from regard.cli.options import LAST_SECTION
from regard.config.settings import Config
from regard.metric_table import METRICS
from regard.registry import TASKS, resolve

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

CLAIM_RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "claims"
Pages = dict[str, str]  # path below docs/ → Markdown
EXITS = """
*Every command with all of its options, generated from the code.*

Results go to standard output, everything else to standard error. `--json` prints results as JSON, one object per
line ([schemas](../json/index.md)). Exit codes: 0 success; 2 invalid input, with one message that says what is wrong
and where; 1 any other failure; 130 interrupted by Ctrl-C.
"""


# ---- commands


def verbs() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its whole name, in the table's order."""
    context = click.Context(commands, info_name="regard")
    for name in VERBS:
        verb = commands.get_command(context, name)
        assert verb is not None
        if isinstance(verb, click.Group):
            for inner in verb.list_commands(context):
                command = verb.get_command(context, inner)
                assert command is not None
                yield f"{name} {inner}", command
        else:
            yield name, verb


def command_page(name: str, verb: click.Command) -> str:
    """Return the page of one command."""
    context = click.Context(verb, info_name=f"regard {name}")
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in verb.get_params(context):
        record = parameter.get_help_record(context)
        if record and isinstance(parameter, click.Option):
            sections.setdefault(getattr(parameter, "section", LAST_SECTION), []).append(record)
    usage = " ".join(verb.collect_usage_pieces(context))
    parts = [f"# regard {name}", f"```text\nregard {name} {usage}\n```", help_text(verb.help or "")]
    for section in sorted(sections, key=lambda name: name == LAST_SECTION):
        title, _, note = section.partition(" (")
        parts.append(f"## {title}")
        if note:
            parts.append(f"{note.rstrip(')').capitalize()}.")
        rows = [f"| `{cell(flag)}` | {cell(text)} |" for flag, text in sections[section]]
        parts.append("\n".join(["| option | description |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def help_text(text: str) -> str:
    """Return a command's help as Markdown: paragraphs, and its examples as a block."""
    paragraphs = []
    for part in inspect.cleandoc(text).split("\n\n"):
        if part.startswith("\b"):
            examples = "\n".join(line.strip() for line in part.splitlines()[1:])
            paragraphs.append(f"```text\n{examples}\n```")
        else:
            plain = " ".join(part.split()).replace("<", "&lt;")
            paragraphs.append(re.sub(r"(?<![`\w])(--[a-z][\w.-]*)", r"`\1`", plain))
    return "\n\n".join(paragraphs)


def cell(text: str) -> str:
    """Return a text as it stands in a cell of a table.

    >>> cell("a|b  <c>")
    'a\\\\|b &lt;c>'
    """
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")


def command_index() -> str:
    """Return the page that lists the commands."""
    rows = [f"| [`regard {name}`]({place(name)}) | {cell(short(name, verb))} |" for name, verb in verbs()]
    return "\n".join(["# Commands", EXITS, "| command | purpose |", "| --- | --- |", *rows]) + "\n"


def short(name: str, verb: click.Command) -> str:
    """Return a command in a line."""
    return VERBS[name][1] if name in VERBS else " ".join((verb.help or "").split("\n\n")[0].split())


def place(name: str) -> str:
    """Return the file of a command's page."""
    return f"{name.replace(' ', '-')}.md"


# ---- JSON output


JSON_INTRODUCTION = """
Every command has `--json`: the result goes to standard output as JSON, one object per line, everything else to standard
error. The fields are those of the results in Python: a line is what `to_dict()` of the result returns, for example
`regard.load("runs/mood")("A quiet triumph.").to_dict()`. Numbers that are not finite are `null`. `train`, `distil`,
`demo` and `compare` first print a line for every event of the training, which has a field `event`.

The files are [JSON Schemas](https://json-schema.org/) (draft 2020-12) of one line. They allow no further fields; tests
validate the output of every command. A plugin's task adds what its own evaluation prints.
"""


def schema_files() -> Pages:
    """The JSON Schema of every command's output."""
    return {f"reference/json/{schema_name(name)}": schema_text(name, verb) for name, verb in verbs()}


def schema_name(name: str) -> str:
    """File of a command's JSON Schema."""
    return f"{name.replace(' ', '-')}.json"


def json_page() -> str:
    """Page that lists the JSON Schemas."""
    rows = []
    for name, verb in verbs():
        titles = output_titles(name, verb)
        events = ["an event of the training"] if "StepEvent" in titles else []
        titles = events + [f"`{title}`" for title in titles if not title.endswith("Event") or title == "ReportEvent"]
        rows.append(f"| `regard {name}` | [{schema_name(name)}]({schema_name(name)}) | {', '.join(titles)} |")
    header = ["| command | schema | one line is |", "| --- | --- | --- |"]
    return "\n".join(["# JSON output", JSON_INTRODUCTION, *header, *rows]) + "\n"


# ---- metrics


METRICS_INTRODUCTION = """
*The metrics of every task, by the name that `--metric` takes.*

`regard train TASK --metric NAME` reports a metric on validation data and keeps the model that is best by it; `regard
evaluate MODEL FILES --metric NAME` adds it to the report, and may be repeated. Shares are in percent, and the Matthews
correlation is times 100. Plugins add metrics.
"""


def metrics_page() -> str:
    """Page of the metrics by name."""
    rows = []
    for name, metric in METRICS.items():
        texts = dict.fromkeys(summary(resolve(function)) for function in metric.functions.values())
        tasks = [task for task, row in TASKS.items() if row.metrics.keys() & metric.functions.keys()]
        better = "larger" if metric.larger_is_better else "smaller"
        rows.append(f"| `{name}` | {cell(' '.join(texts))} | {', '.join(tasks)} | {better} |")
    header = ["| name | metric | tasks | better |", "| --- | --- | --- | --- |"]
    defaults = ["| task | predictions | selects the best model | ties |", "| --- | --- | --- | --- |"]
    for task, row in TASKS.items():
        for kind, names in row.metrics.items():
            main, *ties = names.ranking
            defaults.append(f"| {task} | {kind} | `{main}` | {', '.join(f'`{tie}`' for tie in ties)} |")
    return "\n".join(["# Metrics", METRICS_INTRODUCTION, *header, *rows, "", "## Defaults", "", *defaults]) + "\n"


# ---- names


def groups() -> dict[str, list[str]]:
    """Return the public names by what they are."""
    found: dict[str, list[str]] = {"functions": [], "pipelines": [], "results": [], "settings": [], "errors": []}
    for name in regard.__all__:
        value = getattr(regard, name)
        if not inspect.isclass(value):
            found["functions"].append(name)
        elif issubclass(value, Exception):
            found["errors"].append(name)
        elif issubclass(value, Config):
            found["settings"].append(name)
        elif name.endswith("Pipeline"):
            found["pipelines"].append(name)
        else:
            found["results"].append(name)
    return found


TITLES = {
    "functions": "Functions",
    "pipelines": "Pipelines: what `regard.load` returns",
    "results": "Results and other classes",
    "settings": "Settings",
    "errors": "Errors",
}


MODULES = {
    "nn": "Custom models: `regard.nn`",
    "search": "Search and sampling: `regard.search`",
}


def module_page(name: str) -> str:
    """Page of a public module."""
    module = getattr(regard, name)
    return names_page(MODULES[name], module, module.__all__, docstring(module))


def names_page(title: str, owner: ModuleType, names: list[str], introduction: str = "") -> str:
    """Return the page of a group of public names."""
    parts = [f"# {title}", introduction]
    for name in names:
        value = getattr(owner, name)
        parts.append(f"## {owner.__name__}.{name}")
        if issubclass(value, Config) if inspect.isclass(value) else False:
            parts += [docstring(value), settings(value)]
        else:
            parts += [signature(name, value), docstring(value)]
            if inspect.isclass(value) and not issubclass(value, Exception):
                parts += members(value)
    return "\n\n".join(part for part in parts if part) + "\n"


def members(owner: type) -> list[str]:
    """Return what a class offers, as a table of fields and its methods with their texts."""
    fields = [one.name for one in dataclasses.fields(owner) if one.repr] if dataclasses.is_dataclass(owner) else []
    own = {name: value for name, value in inspect_members(owner) if name not in fields}
    properties = {name: value for name, value in own.items() if not callable(value)}
    rows = [f"| `{name}` | {cell(summary(value))} |" for name, value in properties.items()]
    table = "\n".join(["| attribute | description |", "| --- | --- |", *rows]) if rows else ""
    methods = [(name, value) for name, value in own.items() if callable(value)]
    told = [f"### {owner.__name__}.{name}\n\n{signature(name, value)}\n\n{docstring(value)}" for name, value in methods]
    return [table, *told]


def inspect_members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that Regard gives a class, its bases' too."""
    seen = set()
    for base in owner.__mro__:
        if base.__module__.startswith("regard."):
            for name, value in vars(base).items():
                plain = inspect.unwrap(getattr(value, "__func__", value))
                told = getattr(plain, "func", plain) if not isinstance(plain, property) else plain
                if (name.startswith("_") and name != "__call__") or name in seen or not summary(told):
                    continue
                seen.add(name)
                yield name, told if inspect.isfunction(told) and not hasattr(plain, "func") else _Attribute(told)


class _Attribute:
    """A property, for tables."""

    def __init__(self, value: Any) -> None:
        self.__doc__ = value.__doc__


def summary(value: Any) -> str:
    """Return the first sentence of what a thing says of itself."""
    return (inspect.getdoc(value) or "").split("\n\n")[0]


def signature(name: str, value: Any) -> str:
    """Return how a function or class is called, as a block."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    arguments = [text for text in written(found) if text != "self"]
    ending = "" if found.return_annotation in (found.empty, "None") else f" -> {readable(found.return_annotation)}"
    line = f"{name}({', '.join(arguments)}){ending}"
    if len(line) > 100:
        line = f"{name}(\n    " + ",\n    ".join(arguments) + f",\n){ending}"
    return f"```text\n{line}\n```"


def written(found: inspect.Signature) -> Iterator[str]:
    """Yield the arguments of a function as they are written.

    >>> list(written(inspect.signature(lambda one, *, two="b": 0)))
    ['one', '*', "two='b'"]
    """
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    starred = False
    for one in found.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        text = f"{stars.get(one.kind, '')}{one.name}"
        if one.annotation is not one.empty:
            text += f": {readable(one.annotation)}"
        if one.default is not one.empty:
            text += f" = {default(one.default)}" if ":" in text else f"={default(one.default)}"
        yield text


def default(value: Any) -> str:
    """Return a default as it is written; an object by the name of its class."""
    if inspect.isfunction(value):
        return value.__name__
    text = repr(value)
    return f"{type(value).__name__}()" if text.startswith("<") else text


def readable(annotation: Any) -> str:
    """Return a type as it is written, without the modules."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def docstring(value: Any) -> str:
    """Return what a thing says of itself as Markdown; examples become blocks."""
    lines: list[str] = []
    fenced = False
    for line in (inspect.getdoc(value) or "").splitlines():
        if line.startswith(">>>") and not fenced:
            lines += ["", "```python"]
            fenced = True
        if not line.strip() and fenced:
            lines.append("```")
            fenced = False
        lines.append(line)
    return "\n".join([*lines, *(["```"] if fenced else [])])


def settings(config: type[Config]) -> str:
    """Return the fields of a config as a table."""
    rows = [f"| `{knob.path}` | `{knob.json_default}` | {cell(knob.help)} |" for knob in config.knobs()]
    return "\n".join(["| field | default | description |", "| --- | --- | --- |", *rows])


# ---- pages


def pages() -> Pages:
    """Return every page of the reference."""
    made = {"reference/commands/index.md": command_index()}
    made |= {f"reference/commands/{place(name)}": command_page(name, verb) for name, verb in verbs()}
    made["reference/metrics/index.md"] = metrics_page()
    made["reference/json/index.md"] = json_page()
    listed = "\n".join(
        f"- [{TITLES[group]}]({group}.md): {', '.join(f'`{name}`' for name in names)}"
        for group, names in groups().items()
    )
    listed += "".join(
        f"\n- [{title}]({name}.md): {', '.join(f'`{member}`' for member in getattr(regard, name).__all__)}"
        for name, title in MODULES.items()
    )
    intro = docstring(regard)
    made["reference/python/index.md"] = (
        f"# Python\n\n*The public names of Regard, with their signatures and examples.*\n\n{intro}\n\n{listed}\n"
    )
    made |= {
        f"reference/python/{group}.md": names_page(TITLES[group], regard, names) for group, names in groups().items()
    }
    made |= {f"reference/python/{name}.md": module_page(name) for name in MODULES}
    return made


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the generated pages in the navigation, in place of their folders: a hook of mkdocs."""
    config.nav = expand_folders(config.nav, [*pages()])
    return config


def expand_folders(entry: Any, names: list[str]) -> Any:
    """Replace folders in a navigation, which end in a slash, by the pages inside them.

    >>> expand_folders([{"Commands": "reference/commands/"}], ["reference/commands/fill.md", "index.md"])
    [{'Commands': ['reference/commands/fill.md']}]
    """
    if isinstance(entry, list):
        return [expand_folders(child, names) for child in entry]
    if isinstance(entry, dict):
        return {title: expand_folders(child, names) for title, child in entry.items()}
    if entry.endswith("/"):
        return [name for name in names if name.startswith(entry)]
    return entry


def claim_files() -> Pages:
    """Results and figures of the checked claims, which the page "What we found" shows."""
    return {f"claims/{path.name}": path.read_text(encoding="utf-8") for path in sorted(CLAIM_RESULTS.glob("*.*"))}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to the site: a hook of mkdocs."""
    from mkdocs.structure.files import File

    for name, text in {**pages(), **schema_files(), **claim_files()}.items():
        files.append(File.generated(config, name, content=text))
    return files


if __name__ == "__main__":
    for name, text in {**pages(), **schema_files()}.items():
        path = Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
