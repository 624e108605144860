"""JSON Schemas of what `--json` prints, made from the types of the results; every verb declares its types once.

A verb's `output` names classes whose fields are the fields of the JSON: dataclasses, and typed dictionaries where the
JSON form of a result differs from the result. The comment behind a field is its description.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

import click

from regard.cli.evaluation_output import EvaluationOutput
from regard.cli.options import Verb
from regard.registry import resolve

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
SCALARS: dict[Any, Schema] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    Any: {},
}
_BASE = re.compile(r"^class \w+\((\w+)\):", re.MULTILINE)  # a typed dictionary does not know what it extends
_FIELD = re.compile(r"^    (\w+): .*?  # (.*)$", re.MULTILINE)


def verb_schema(name: str, command: click.Command) -> Schema:
    """Schema of one line of a verb's JSON output.

    A verb that prints several kinds of objects has an alternative for each.
    """
    assert isinstance(command, Verb)
    targets: list[Any] = []
    for target in map(resolve, command.output):
        targets += target() if inspect.isfunction(target) else [target]
    if not targets:
        raise ValueError(f"regard {name} does not say what --json prints: pass `output` to the decorator of the verb")
    builder = SchemaBuilder()
    alternatives = [alternative for target in targets for alternative in _alternatives(builder.schema(target))]
    schema: Schema = {"$schema": DIALECT, "title": f"regard {name} --json", "description": "One line of the output."}
    schema |= alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
    return {**schema, "$defs": dict(sorted(builder.definitions.items()))}


def schema_text(name: str, command: click.Command) -> str:
    """The schema of a verb as a file."""
    return json.dumps(verb_schema(name, command), indent=2, ensure_ascii=False) + "\n"


def output_titles(name: str, command: click.Command) -> list[str]:
    """What one line of a verb's JSON output may be.

    >>> from regard.cli.info import info
    >>> output_titles("info", info)
    ['FolderInfo']
    """
    schema = verb_schema(name, command)
    return [alternative["$ref"].rpartition("/")[2] for alternative in schema.get("anyOf", [schema])]


def _alternatives(schema: Schema) -> list[Schema]:
    return schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]


class SchemaBuilder:
    """Builds the schemas of types; classes become definitions.

    >>> builder = SchemaBuilder()
    >>> builder.schema(list[int] | None)
    {'anyOf': [{'type': 'array', 'items': {'type': 'integer'}}, {'type': 'null'}]}
    >>> builder.schema(tuple[str, float])
    {'type': 'array', 'prefixItems': [{'type': 'string'}, {'type': 'number'}], 'items': False, 'minItems': 2}
    """

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def schema(self, annotation: Any) -> Schema:
        """Schema of a type."""
        if annotation in SCALARS:
            return SCALARS[annotation]
        if isinstance(annotation, EvaluationOutput):
            return self._evaluation(annotation)
        origin = get_origin(annotation)
        arguments = get_args(annotation)
        if origin is NotRequired:
            return self.schema(arguments[0])
        if origin is Literal:
            return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.schema(argument) for argument in arguments]}
        if origin is tuple and Ellipsis not in arguments:
            items = [self.schema(argument) for argument in arguments]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        if inspect.isclass(origin) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.schema(arguments[1])}
        if inspect.isclass(origin) and issubclass(origin, Sequence):
            return {"type": "array", "items": self.schema(arguments[0])}
        if dataclasses.is_dataclass(annotation) or typing.is_typeddict(annotation):
            return self._reference(annotation)
        raise TypeError(f"{annotation!r} has no JSON schema")

    def _reference(self, owner: Any) -> Schema:
        """Reference to the definition of a class, which is built on first use."""
        name = owner.__name__.removesuffix("Dict")
        if name not in self.definitions:
            self.definitions[name] = {}  # a class may refer to itself
            self.definitions[name] = self._definition(owner)
        return {"$ref": f"#/$defs/{name}"}

    def _definition(self, owner: Any) -> Schema:
        hints = get_type_hints(owner, include_extras=True)
        descriptions = field_comments(owner)
        properties = {}
        for field, annotation in hints.items():
            description = {"description": descriptions[field]} if field in descriptions else {}
            properties[field] = {**self.schema(annotation), **description}
        required = [field for field, annotation in hints.items() if get_origin(annotation) is not NotRequired]
        return {
            "type": "object",
            "description": (inspect.getdoc(owner) or "").split("\n\n")[0],
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def _evaluation(self, output: EvaluationOutput) -> Schema:
        """Definition of an evaluation: the fields of its type, and the metrics of the task by name."""
        definition = self._definition(output.fields)
        metrics = {key: {"type": "number"} for key in output.metrics}
        signatures = {key: {"type": "string"} for key in output.signatures}
        definition["properties"] = {**metrics, **signatures, **definition["properties"]}
        name = f"{output.task}-evaluation"
        self.definitions[name] = definition
        return {"$ref": f"#/$defs/{name}"}


def field_comments(owner: type) -> dict[str, str]:
    """Comments behind the fields of a class, and of the typed dictionary that it extends."""
    source = inspect.getsource(owner)
    comments: dict[str, str] = {}
    base = _BASE.search(source)
    if base and base[1] != "TypedDict":
        comments = field_comments(getattr(inspect.getmodule(owner), base[1]))
    return comments | dict(_FIELD.findall(source))
