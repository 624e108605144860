"""A plugin that adds a task: texts are spam or not; an RNN is trained, and a word that betrays spam always wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.config.data import ReadConfig
from regard.config.runs import ClassifyRun
from regard.config.settings import Config, knob
from regard.registry import Task

NAME = "spam"


@dataclass(frozen=True, kw_only=True)
class SpamConfig(Config):
    """Settings that only this task has."""

    word: str = knob("lottery", "Word that betrays spam.")


@dataclass(frozen=True, kw_only=True)
class SpamRun(ClassifyRun):
    """A spam filter."""

    task: str = knob(NAME, "Task to train.", choices=(NAME,))
    spam: SpamConfig = knob(SpamConfig, "Spam filter.")


def build_experiment(config: SpamRun, folder: Path) -> Any:
    """Train an RNN classifier, and keep the word in task.json."""
    from regard.training.experiments.classification import RnnClassificationExperiment

    class SpamExperiment(RnnClassificationExperiment):
        def metadata(self, evaluator: Any) -> dict[str, Any]:
            return {**super().metadata(evaluator), "word": config.spam.word}

    return SpamExperiment(config, folder)


def load(folder: str | Path, *, device: str, precision: str, threads: int) -> Any:
    """Load a spam filter."""
    from regard.checkpoint.native import load_rnn_text
    from regard.config.rnn_models import RnnClassifierConfig
    from regard.models import build_model
    from regard.pipeline.classification import ClassificationPipeline, RecurrentClassifier
    from regard.tasks.rnn_text import RnnPreprocessor

    class SpamPipeline(ClassificationPipeline):
        task_name = NAME

    loaded = load_rnn_text(folder, RnnClassifierConfig, NAME)
    model = build_model(loaded.config)
    model.load_state_dict(loaded.weights)
    preprocessor = RnnPreprocessor(loaded.tokenizer, int(loaded.metadata["max_length"]), None)
    return SpamPipeline(RecurrentClassifier(model.eval(), preprocessor), loaded.metadata)


def evaluate(test: Any) -> None:
    """Print the accuracy on labelled texts."""
    from regard.data.labelled import read_labelled

    pipeline = load(test.folder, **test.load_options)
    texts = read_labelled(test.files, test.read_config)
    word = pipeline.task["word"]
    labels = ["spam" if word in text else str(pipeline(text)) for text in texts.texts]
    correct = sum(label == expected for label, expected in zip(labels, texts.labels, strict=True))
    print(f"accuracy {100 * correct / len(labels):.1f} %")


def read(files: Sequence[str], config: ReadConfig) -> Any:
    """Read labelled texts."""
    from regard.data.labelled import read_labelled

    return read_labelled(files, config)


def register(regard: ModuleType) -> None:
    """Add the task; called once, when Regard looks for plugins."""
    task = Task(
        field_name="spam filter",
        tag="text-classification",
        command="regard see",
        example='regard see {} "A text."',
        load=load,
        has_engine=False,
        evaluate=evaluate,
        request="regard.interpret.record_request:classify_text",
        probe="regard.interpret.encoder_probes:LabelProbe.read",
        run_config=SpamRun,
        summary="train a spam filter",
        data="labelled texts",
        commands=("mails.tsv --out runs/spam",),
        experiments={"rnn": build_experiment},
        procedure="regard.training.run:build_seed_procedure",
        read_examples=read,
        has_many_files=False,
    )
    regard.register("task", NAME, task)
