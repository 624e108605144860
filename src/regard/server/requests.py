"""Requests to run a model from the page: a task, a text and a few options, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from regard.errors import UsageError, nearest
from regard.view.record.record import Record

Run = Callable[[str, str, Mapping[str, Any]], Record]  # task, text, options → a new record

MAX_CHARACTERS = 20_000  # of a text
MAX_BEAM = 16
MAX_ENTRIES = 4_096  # tokens of a target prefix, ablated heads
MAX_ENTRY_CHARACTERS = 256

_Entries = Annotated[list[Annotated[str, Field(max_length=MAX_ENTRY_CHARACTERS)]], Field(max_length=MAX_ENTRIES)]


class RunOptions(BaseModel):
    """Options of a run; the model's defaults apply to those that are not sent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    beam: Annotated[int, Field(ge=1, le=MAX_BEAM)] = 1
    ablate: _Entries = []  # heads: encoder.3.self:2
    target_prefix: _Entries = []  # tokens that the output begins with


class RunRequest(BaseModel):
    """A task, a text and options; the validation context's `tasks` are the allowed ones."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str
    text: Annotated[str, Field(max_length=MAX_CHARACTERS)]
    options: RunOptions = RunOptions()

    @field_validator("task")
    @classmethod
    def _check_task(cls, task: str, info: ValidationInfo) -> str:
        tasks = sorted((info.context or {}).get("tasks", ()))
        if task not in tasks:
            raise ValueError(f"should be one of {', '.join(tasks)}")
        return task

    @field_validator("text")
    @classmethod
    def _check_text(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("should have at least one character that is not white space")
        return text


def read_request(body: bytes, tasks: Collection[str]) -> RunRequest:
    """Validate the JSON of a request; raise `UsageError` with its first fault.

    >>> request = read_request(b'{"task": "translate", "text": "two dogs", "options": {"beam": 4}}', ["translate"])
    >>> request.text, request.options.model_dump(exclude_unset=True)
    ('two dogs', {'beam': 4})
    """
    try:
        return RunRequest.model_validate_json(body, context={"tasks": tasks})
    except ValidationError as error:
        raise UsageError(_describe_fault(error)) from None


def _describe_fault(error: ValidationError) -> str:
    """Describe the first fault of a request: location, what is allowed there, and what was sent."""
    fault = error.errors(include_url=False)[0]
    location = ".".join(map(str, fault["loc"]))
    if fault["type"] == "json_invalid":
        return f"the request is not JSON ({fault['ctx']['error']}): send task, text and options"
    if fault["type"] == "extra_forbidden":
        fields = RunOptions.model_fields if fault["loc"][0] == "options" else RunRequest.model_fields
        name = str(fault["loc"][-1])
        return f"the request has the unknown field {name!r:.60}{nearest(name, fields)}: allowed are {', '.join(fields)}"
    if fault["type"] == "missing":
        return f"the request has no {location}: send task, text and options"
    allowed = fault["msg"].partition("should ")[2]
    actual = "" if ", not " in allowed else f", not {fault['input']!r:.60}"
    return f"{location or 'the request'} should {allowed}{actual}"
