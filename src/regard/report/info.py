"""Description of a model or run folder, read from its small files without loading its weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.filesize import decimal

from regard.checkpoint import native
from regard.checkpoint.atomic import is_temporary, published_path, read_json
from regard.checkpoint.encoder_dir import read_encoder_config, read_encoder_labels
from regard.checkpoint.feature_dir import describe_features
from regard.checkpoint.hf import causal, encoder_decoders, encoders
from regard.checkpoint.hub import resolve_model
from regard.checkpoint.locate import CONFIG, TASK_FILE, read_task_file, verify
from regard.checkpoint.model_dir import expected_shapes, has_only_pickled_weights
from regard.checkpoint.model_types import check_model_type, native_family
from regard.checkpoint.native import NativeConfig, read_native_config
from regard.checkpoint.run_dir import RunDirectory, folder_kind
from regard.checkpoint.tokenizer_files import TARGET_TOKENIZER, TOKENIZER, WORDPIECE_VOCAB, read_tokenizer
from regard.config.settings import Config
from regard.engine.folder import is_engine_folder, read_encoder
from regard.errors import CheckpointError
from regard.metric_table import METRICS, format_metrics
from regard.registry import TASKS, resolve
from regard.report.json_output import FolderInfoDict, RunStateDict
from regard.training.verdict import Verdict

MAX_LABELS = 20  # labels that are listed
DESCRIBED_FILES = (CONFIG, TASK_FILE, TOKENIZER, TARGET_TOKENIZER, native.VOCABULARY)  # weights are not read


class DescribedConfig(NativeConfig, Protocol):
    """Config of a model of any family."""

    def summary(self) -> str:
        """Describe the model in a few words."""
        ...


@dataclass(frozen=True)
class FolderInfo:
    """Contents and state of a folder."""

    folder: str
    kind: str  # run, model
    model: DescribedConfig | None = None  # None for a run that has not written its model yet
    parameters: int = 0
    tokenizers: dict[str, int] = field(default_factory=dict)  # file → number of tokens
    task: dict[str, Any] = field(default_factory=dict)  # content of task.json
    run: RunStateDict | None = None  # state of a run
    files: dict[str, int] = field(default_factory=dict)  # bytes
    model_type: str = ""  # in config.json
    is_pickled: bool = False  # whether there are only pickled weights, which are not read

    def to_dict(self) -> FolderInfoDict:
        """All of it as plain values."""
        return {
            "folder": self.folder,
            "kind": self.kind,
            "model": self.model.to_dict() if self.model else None,
            "parameters": self.parameters,
            "tokenizers": self.tokenizers,
            "task": self.task,
            "run": self.run,
            "files": self.files,
        }

    def lines(self) -> list[str]:
        """Format for reading."""
        lines = [f"{self.folder}: a {self.kind}" + ("" if self.model else " that has not written its model yet")]
        if self.model is not None:
            lines += self._model_lines(self.model)
        lines += self._state_lines()
        lines.append("files:")
        width = max(map(len, self.files), default=0)
        return lines + [f"  {name:<{width}}  {decimal(num_bytes):>9}" for name, num_bytes in self.files.items()]

    def _model_lines(self, model: DescribedConfig) -> list[str]:
        is_hf_type = self.model_type and not native_family(self.model_type)
        kind = f"type {self.model_type}" if is_hf_type else f"family {model.family}"
        lines = [f"model: {model.summary()}; {self.parameters:,} parameters ({kind})"]
        if self.is_pickled:
            lines.append(
                f"weights: only pickled ones, which are not opened: head and parameters are those that {CONFIG} names; "
                f"`regard convert {self.folder} OUT --to regard` makes a folder that every command opens"
            )
        lines += [f"vocabulary: {count:,} tokens in {name}" for name, count in self.tokenizers.items()]
        lines += self._score_lines()
        labels = self.task.get("labels")
        if labels:
            more = f" and {len(labels) - MAX_LABELS} more" if len(labels) > MAX_LABELS else ""
            lines.append(f"labels: {', '.join(labels[:MAX_LABELS])}{more}")
        features = self.task.get("features")
        if features:
            lines.append(f"features: {describe_features(features)}; in {features['folder']}/")
        alignment_head = self.task.get("alignment_head")
        if alignment_head:
            head = f"{alignment_head['site']}:{alignment_head['head']}"
            lines.append(f"best alignment head: {head} ({alignment_head['score']:.3g} nats per word)")
        return lines

    def _score_lines(self) -> list[str]:
        """Metrics of the saved model, and the verdict of its run."""
        metrics = self.task.get("metrics", {})
        scores = format_metrics(metrics)
        lines = []
        if scores:
            step = f"{self.task.get('unit', 'step')} {self.task.get('step', '?')}"
            lines.append(f"metrics at {step}: {'; '.join(scores)}")
        if self.task.get("metric"):
            lines.append(f"selected by: {METRICS[self.task['metric']].field_name} on validation data")
        verdict = Verdict.from_dict(self.task.get("verdict"), where="task.json")
        if verdict and verdict.text:
            lines.append(verdict.text)
        format_details = resolve(TASKS[self.task["task"]].format_metrics) if "task" in self.task else None
        if format_details is not None:
            lines += [f"  {line}" for line in format_details(metrics)]
        lines += [f"  {signature}" for name, signature in metrics.items() if name.endswith("bleu_signature")]
        return lines

    def _state_lines(self) -> list[str]:
        if self.run is None:
            return []
        unit = self.run["unit"]
        step = f"{unit} {self.run['step']}"
        throughput = self.run["throughput"]
        lines = [f"computed in: {throughput}"] if throughput else []
        if self.run["finished"]:
            return [*lines, f"training: finished at {step}"]
        checkpoints = ", ".join(map(str, self.run["checkpoints"])) or f"no {unit} yet"
        return [
            *lines,
            f"training: stopped or still running, last report at {step}; saved at {checkpoints}",
            f"to resume: repeat its train command with --out {self.folder}",
        ]


def describe_folder(folder: str | Path) -> FolderInfo:
    """Describe a folder; raise if it is neither a model nor a run."""
    path = resolve_model(folder)
    kind = folder_kind(path)
    if kind not in ("run", "model"):
        problem = "no such folder" if not path.exists() else "neither a run nor a model"
        raise CheckpointError(f"{path}: {problem}; a folder with {CONFIG} or run.json is needed")
    files = _file_sizes(path)
    run = _run_state(path) if kind == "run" else None
    model_path = published_path(path)
    config_path = model_path / CONFIG
    if not config_path.exists():
        return FolderInfo(str(path), kind, run=run, files=files)
    task = read_task_file(model_path)  # first: the version shows an older folder
    verify(model_path, DESCRIBED_FILES)
    fields = read_json(config_path)
    model = _read_config(model_path, fields, str(config_path))
    return FolderInfo(
        str(path),
        kind,
        model=model,
        parameters=sum(map(math.prod, expected_shapes(model).values())),
        tokenizers=_vocabulary_sizes(model_path),
        task={**_read_labels(model_path, fields), **task},
        run=run,
        files=files,
        model_type=str(fields.get("model_type", "")),
        is_pickled=has_only_pickled_weights(model_path),
    )


def _read_config(path: Path, fields: dict[str, Any], where: str) -> DescribedConfig:
    """Config of a folder of any model type; `fields` is the content of its `config.json`."""
    check_model_type(fields, where)
    model_type = fields.get("model_type")
    if encoders.is_encoder(fields):
        return read_encoder(path).config if is_engine_folder(path) else read_encoder_config(path)
    if model_type in causal.CAUSAL_TYPES:
        return causal.config_from_hf(fields, where)
    if model_type not in encoder_decoders.ARCHITECTURES and native_family(model_type):
        config: Any = read_native_config(fields, Config, where)
        described: DescribedConfig = config
        return described
    return encoder_decoders.config_from_hf(fields, where)


def _read_labels(path: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Labels of an encoder's folder."""
    if not encoders.is_encoder(fields):
        return {}
    labels = read_encoder(path).labels if is_engine_folder(path) else read_encoder_labels(path)
    return {"labels": list(labels)} if labels else {}


def _file_sizes(path: Path) -> dict[str, int]:
    """Bytes of each file of a folder, and of each subfolder with files."""
    sizes: dict[str, int] = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and not is_temporary(file):
            relative = file.relative_to(path)
            name = relative.name if relative.parent == Path() else f"{relative.parent}/"
            sizes[name] = sizes.get(name, 0) + file.stat().st_size
    return sizes


def _run_state(path: Path) -> RunStateDict:
    directory = RunDirectory(path)
    run = directory.read_run()
    result = run.get("result")
    logged_steps = [event.get("step", 0) for event in directory.read_log()]
    return {
        "finished": result is not None,
        "step": result["step"] if result else max(logged_steps, default=0),
        "unit": run.get("unit", "step"),
        "checkpoints": directory.steps(),
        "config": run.get("config"),
        "throughput": run.get("resolved", {}).get("throughput"),
    }


def _vocabulary_sizes(path: Path) -> dict[str, int]:
    """Number of tokens in each tokenizer file of a folder."""
    counters: dict[str, Callable[[Path], int]] = {
        TOKENIZER: _count_tokens,
        WORDPIECE_VOCAB: _count_lines,
        TARGET_TOKENIZER: _count_tokens,
        native.VOCABULARY: _count_words,
    }
    return {name: count(path / name) for name, count in counters.items() if (path / name).exists()}


def _count_tokens(path: Path) -> int:
    """Number of tokens in a tokenizer file."""
    return read_tokenizer(path).vocab_size


def _count_words(path: Path) -> int:
    """Number of words in a memory network's vocabulary."""
    words = read_json(path).get("words")
    return len(words) if isinstance(words, list) else 0


def _count_lines(path: Path) -> int:
    """Number of tokens in a vocabulary file with one token per line."""
    return len(path.read_bytes().splitlines())
