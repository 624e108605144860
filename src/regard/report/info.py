"""What a model or run folder holds: read from its small files, without loading its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.filesize import decimal

from regard.checkpoint import causal_dir, native
from regard.checkpoint.atomic import is_temporary, published_path, read_json
from regard.checkpoint.encoder_dir import read_encoder_config, read_encoder_labels
from regard.checkpoint.hf import causal, encoder_decoders, encoders
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CONFIG, TASK_FILE
from regard.checkpoint.model_dir import expected_shapes
from regard.checkpoint.native import NativeConfig, read_native_config
from regard.checkpoint.run_dir import RunDirectory, folder_kind
from regard.checkpoint.tokenizer_files import PIECES, TARGET_TOKENIZER, TOKENIZER
from regard.config.models import GptConfig
from regard.config.rnn_models import ElmoConfig, MemoryNetworkConfig, RnnClassifierConfig, RnnTaggerConfig
from regard.engine.backend import read_encoder
from regard.engine.folder import is_engine_folder
from regard.errors import CheckpointError
from regard.tasks.story_qa import StoryScores
from regard.training.verdict import Verdict


class Described(NativeConfig, Protocol):
    """The config of a model of any family."""

    def summary(self) -> str:
        """Say what it is in a few words."""
        ...


# types of our own, whose config is read as ours; all other types are translators'
KINDS: dict[str, type[ElmoConfig | RnnClassifierConfig | RnnTaggerConfig | MemoryNetworkConfig | GptConfig]] = {
    **native.MEMORY_NETWORK_TYPES,
    **native.RNN_TEXT_TYPES,
    causal_dir.OWN: GptConfig,
}


@dataclass(frozen=True)
class FolderInfo:
    """A folder in words and numbers."""

    folder: str
    kind: str  # run, model
    model: Described | None = None  # nothing for a run that has not written its model yet
    parameters: int = 0
    tokenizers: dict[str, int] = field(default_factory=dict)  # file → tokens
    task: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)  # where a run stands
    files: dict[str, int] = field(default_factory=dict)  # bytes

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {**vars(self), "model": self.model.to_dict() if self.model else None}

    def lines(self) -> list[str]:
        """Return it for people."""
        lines = [f"{self.folder}: a {self.kind}" + ("" if self.model else " that has not written its model yet")]
        if self.model is not None:
            lines += self._model_lines(self.model)
        lines += self._state_lines()
        lines.append("files:")
        wide = max(map(len, self.files), default=0)
        return lines + [f"  {name:<{wide}}  {decimal(count):>9}" for name, count in self.files.items()]

    def _model_lines(self, model: Described) -> list[str]:
        lines = [f"model: {model.family}, {self.parameters:,} parameters, {model.summary()}"]
        lines += [f"tokens: {count:,} in {name}" for name, count in self.tokenizers.items()]
        metrics = self.task.get("metrics", {})
        shown = [f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, int | float)]
        place = f"{self.task.get('unit', 'step')} {self.task.get('step', '?')}"
        lines += [f"scores at {place}: {', '.join(shown)}"] if shown else []
        if (verdict := Verdict.from_dict(self.task.get("verdict"))) and verdict.text:
            lines.append(verdict.text)
        if self.task.get("task") == "stories":
            lines += [f"  {line}" for line in StoryScores.from_dict(metrics["valid"]).lines()]
        lines += [f"  {value}" for name, value in metrics.items() if name.endswith("bleu_signature")]
        if labels := self.task.get("labels"):
            more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
            lines.append(f"labels: {', '.join(labels[:20])}{more}")
        if features := self.task.get("features"):
            shares = ", ".join(f"{share:.2f}" for share in features["weights"])
            scale = f"times {features['scale']:.3g}"
            lines.append(f"features: frozen, in {features['folder']}/; layers mixed {shares}, {scale}")
        if align := self.task.get("align"):
            lines.append(f"best aligning head: {align['site']}, head {align['head']} (score {align['score']:.3g})")
        return lines

    def _state_lines(self) -> list[str]:
        if not self.run:
            return []
        if self.run["finished"]:
            return [f"training: finished at {self.run['unit']} {self.run['step']}"]
        unit = self.run["unit"]
        return [
            f"training: stopped or still going, last report at {unit} {self.run['step']}; "
            f"saved at {', '.join(map(str, self.run['checkpoints'])) or f'no {unit} yet'}",
            f"to go on: repeat its train command with --out {self.folder}",
        ]


def describe_folder(folder: str | Path) -> FolderInfo:
    """Return what a folder holds, or say that it is no model and no run."""
    path = resolve_model(folder)
    kind = folder_kind(path)
    if kind not in ("run", "model"):
        what = "no such folder" if not path.exists() else "neither a run nor a model"
        raise CheckpointError(f"{path}: {what}; a folder with {CONFIG} or run.json is needed")
    place = published_path(path)
    files = _sizes(path)
    run = _run_state(path) if kind == "run" else {}
    if not (place / CONFIG).exists():
        return FolderInfo(str(path), kind, run=run, files=files)
    fields = read_json(place / CONFIG)
    where = str(place / CONFIG)
    model = _model(place, fields, where)
    return FolderInfo(
        str(path),
        kind,
        model,
        sum(map(math.prod, expected_shapes(model).values())),
        {name: count(place / name) for name, count in COUNTS.items() if (place / name).exists()},
        {**_labels(place, fields), **(read_json(place / TASK_FILE) if (place / TASK_FILE).exists() else {})},
        run,
        files,
    )


def _model(place: Path, fields: dict[str, Any], where: str) -> Described:
    """Return what a folder's `config.json` describes, whatever the type."""
    kind = fields.get("model_type")
    if kind in KINDS:
        return read_native_config(fields, KINDS, where)
    if kind in causal.KINDS:
        return causal.read_config(fields, where)
    if not encoders.is_encoder(fields):
        return encoder_decoders.read_config(fields, where)
    if is_engine_folder(place):
        return read_encoder(place).config
    return read_encoder_config(place)


def _labels(place: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the labels that an encoder's folder names."""
    if not encoders.is_encoder(fields):
        return {}
    labels = read_encoder(place).labels if is_engine_folder(place) else read_encoder_labels(place)
    return {"labels": list(labels)} if labels else {}


def _sizes(path: Path) -> dict[str, int]:
    """Return the bytes of each file of a folder, and of each folder in it that holds files."""
    sizes: dict[str, int] = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and not is_temporary(file):
            inner = file.relative_to(path)
            name = inner.name if inner.parent == Path() else f"{inner.parent}/"
            sizes[name] = sizes.get(name, 0) + file.stat().st_size
    return sizes


def _run_state(path: Path) -> dict[str, Any]:
    directory = RunDirectory(path)
    run, log = directory.read_run(), directory.read_log()
    finished = run.get("finished")
    step = finished["step"] if finished else max((report.get("step", 0) for report in log), default=0)
    return {
        "finished": finished is not None,
        "step": step,
        "unit": run.get("unit", "step"),
        "checkpoints": directory.steps(),
        "config": run.get("config"),
    }


def _tokens(path: Path) -> int:
    """Return how many tokens a tokenizer file lists."""
    content = read_json(path)
    vocabulary = content.get("model", {}).get("vocab", [])
    added = {one["content"] for one in content.get("added_tokens", [])}
    return len(added | set(vocabulary if isinstance(vocabulary, dict) else (token for token, _ in vocabulary)))


def _words(path: Path) -> int:
    """Return how many words a memory network's vocabulary has."""
    return len(read_json(path).get("words", []))


def _lines(path: Path) -> int:
    """Return how many tokens an older vocabulary file lists."""
    return len(path.read_bytes().splitlines())


COUNTS = {TOKENIZER: _tokens, PIECES: _lines, TARGET_TOKENIZER: _tokens, native.VOCABULARY: _words}
