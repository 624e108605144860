"""Runs by task: a task has its own settings alone, its own defaults, and reads what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from regard.config.runs import RunConfig, build_run, read_run, run_config_class, tasks_with, trained_tasks
from regard.config.story_run import StoryQARun
from regard.config.task_runs import TranslateRun
from regard.errors import ConfigError

PRETRAINED = {"answer": {"pretrained": "a/bert"}}  # settings without which a task cannot be trained


@pytest.mark.parametrize(
    ("task", "path", "value", "message"),
    [
        ("story-qa", "pretrained", "a/bert", "unknown setting 'pretrained' of the task story-qa: it is a setting"),
        ("story-qa", "tokenizer.kind", "words", "unknown setting 'tokenizer.kind'"),
        ("story-qa", "fine_tuning.seeds", 3, "it is a setting of classify, tag, answer$"),
        ("story-qa", "lora.rank", 3, "unknown setting 'lora.rank'"),
        ("story-qa", "data.read.format", "tsv", "it is a setting of translate, classify$"),
        ("story-qa", "memory_network.hops", 0, r"hops \(0\) must be at least 1"),
        ("story-qa", "training.epochs", 2.5, r"training.epochs \(2.5\) of a memory network must be a whole number"),
        ("story-qa", "training.metric", "loss", "is not computed for a memory network: choose accuracy or error"),
        ("translate", "memory_network.hops", 2, "it is a setting of story-qa$"),
        ("translate", "training.random_noise", 0.5, "it is a setting of story-qa$"),
        ("translate", "data.read.label", "x", "it is a setting of classify, tag$"),
        ("classify", "training.tune_length_penalty", False, "it is a setting of translate$"),
        (
            "classify",
            "traning.steps",
            3,
            r"unknown setting 'traning.steps' of the task classify \(did you mean training",
        ),
        ("answer", "fine_tuning.features", "x", "it is a setting of classify, tag$"),
        ("elmo", "masking.mask_rate", 0.3, "it is a setting of masked-lm$"),
    ],
)
def test_a_setting_of_another_task_is_unknown_and_its_tasks_are_named(
    task: str, path: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_run(task, {**PRETRAINED.get(task, {}), path: value})


def test_an_excluded_setting_is_unknown_in_a_recipe_and_not_written() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'data.read.source' of the task story-qa: it is a setting"):
        read_run({"task": "story-qa", "data": {"read": {"source": "x"}}})
    written = StoryQARun().to_dict()["data"]
    assert set(written) == {"train", "valid", "read", "max_length"}
    assert set(written["read"]) == {"encoding", "lenient", "max_reject"}


def test_a_masked_language_model_has_no_settings_of_a_label_head_but_reads_the_files_that_name_their_defaults() -> None:
    for path, value in (("bert.pooling", "attention"), ("bert.pooler", False)):
        with pytest.raises(ConfigError, match=f"unknown setting '{path}' of the task masked-lm"):
            build_run("masked-lm", {path: value})
        with pytest.raises(ConfigError, match=f"unknown setting '{path}' of the task masked-lm"):
            read_run({"task": "masked-lm", "bert": {path.removeprefix("bert."): value}})
    run = build_run("masked-lm", {"bert.norm_placement": "pre"})
    values = run.to_dict()
    assert not {"pooling", "pooler"} & values["bert"].keys()
    assert read_run({**values, "bert": {**values["bert"], "pooling": "first", "pooler": True}}) == run


def test_a_config_describes_a_setting_of_a_nested_config_in_its_own_words() -> None:
    help_texts = {task: _help_of(task, "documents.document_boundary") for task in ("causal-lm", "masked-lm", "elmo")}
    assert "auto: file" in help_texts["causal-lm"]
    assert help_texts["masked-lm"] == help_texts["elmo"] != help_texts["causal-lm"]

    @dataclass(frozen=True, kw_only=True)
    class Outdated(StoryQARun):
        descriptions: ClassVar[Mapping[str, str]] = {"training.stesp": "a setting that does not exist"}

    with pytest.raises(AssertionError, match="Outdated describes settings that it does not have"):
        list(Outdated.knobs())


def _help_of(task: str, path: str) -> str:
    return next(knob.help for knob in run_config_class(task).knobs() if knob.path == path)


@pytest.mark.parametrize("task", trained_tasks())
def test_a_run_reads_what_it_writes(task: str) -> None:
    run = build_run(task, {**PRETRAINED.get(task, {}), "data.train": ("a", "b"), "training.seed": 7})
    assert run.task == task
    assert read_run(run.to_dict()) == run
    assert build_run(task, {}, run.to_dict()) == run


DEFAULTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("translate", {}, {"training.label_smoothing": 0.1, "architecture": "transformer", "data.max_length": 256}),
    ("classify", {}, {"training.label_smoothing": 0.0, "architecture": "rnn", "training.optimizer": "muon"}),
    (
        "classify",
        {"pretrained": "x"},
        {"architecture": "pretrained", "training.optimizer": "adamw", "data.max_length": 512},
    ),
    ("answer", {"pretrained": "x"}, {"architecture": "pretrained", "training.ema_decay": 0.0, "data.max_length": 384}),
    (
        "classify",
        {"architecture": "transformer"},
        {"tokenizer.kind": "wordpiece", "tokenizer.lowercase": True, "transformer.pooling": "mean"},
    ),
    ("tag", {"architecture": "transformer"}, {"tokenizer.kind": "wordpiece", "tokenizer.lowercase": False}),
    ("answer", {"architecture": "transformer"}, {"training.label_smoothing": 0.1, "data.max_length": 384}),
    ("story-qa", {"architecture": "rnn"}, {"training.restarts": 1, "rnn_classifier.pooling": "last"}),
    ("story-qa", {"architecture": "transformer"}, {"training.restarts": 1, "transformer.pooling": "first"}),
    ("masked-lm", {}, {"tokenizer.kind": "wordpiece", "tokenizer.lowercase": True, "training.label_smoothing": 0.0}),
    ("causal-lm", {}, {"tokenizer.kind": "bpe", "tokenizer.lowercase": False, "training.label_smoothing": 0.0}),
]


@pytest.mark.parametrize(("task", "settings", "defaults"), DEFAULTS)
def test_a_task_has_its_own_defaults(task: str, settings: dict[str, Any], defaults: dict[str, Any]) -> None:
    recipe = {"training": {"steps": 3}}  # part of a group: the rest keeps the defaults of the task
    for run in (build_run(task, settings), build_run(task, settings, recipe), build_run(task, {}, settings)):
        for path, value in defaults.items():
            assert _value(run, path) == value, path


def _value(run: RunConfig, path: str) -> object:
    value: object = run
    for name in path.split("."):
        value = getattr(value, name)
    return value


TRANSFORMER = {"architecture": "transformer"}
RNN = {"architecture": "rnn"}
WITHOUT_TIME = {"memory_network.time_encoding": "none"}
SEQUENCES_ONLY = "means nothing to --arch memory-network: it is for --arch rnn or transformer"
PRETRAINED_ENCODER = {"pretrained": "a/bert"}
MAX_POSITIONS = "transformer.max_positions"
VOCABULARY = r"\(500\) is for a new vocabulary, and --from a/bert has its own: .* add --extend-vocabulary"
FROM_SCRATCH = "is for a model from scratch, and --from a/bert is one with its own settings"


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("answer", {}, "add --from MODEL to fine-tune one, or --arch transformer to train one from scratch"),
        ("answer", {**TRANSFORMER, "pretrained": "a/bert"}, "arch is transformer, --from is a/bert"),
        ("answer", {"architecture": "rnn"}, "architecture must be one of transformer, pretrained, not 'rnn'"),
        ("classify", {"architecture": "pretrained"}, "they need it: arch is pretrained, --from is not set"),
        ("classify", {"transformer.causal": True}, r"transformer.causal \(True\) means nothing to --arch rnn"),
        ("classify", {**TRANSFORMER, "rnn_classifier.pooling": "max"}, "it is for --arch rnn"),
        ("classify", {**TRANSFORMER, "fine_tuning.features": "x"}, "it is for --arch rnn"),
        ("classify", {**TRANSFORMER, "fine_tuning.freeze_encoder": True}, "it is for --arch pretrained"),
        ("classify", {**TRANSFORMER, "tokenizer.extend": "texts"}, "add --from MODEL"),
        ("classify", {**TRANSFORMER, "lora.rank": 2}, "add --from MODEL"),
        ("classify", {**TRANSFORMER, "transformer.hidden_size": 64}, "is a size that the preset gives: add --preset"),
        ("classify", {**PRETRAINED_ENCODER, "preset": "tiny"}, "it is for --arch rnn or transformer"),
        ("answer", {**PRETRAINED_ENCODER, "preset": "tiny"}, "it is for --arch transformer$"),
        ("classify", {"data.read.pair": "2"}, r"pair \(2\) means nothing to --arch rnn: .* transformer or pretrained"),
        ("classify", {"data.read.label_separator": ";"}, r"separator \(;\) means nothing to --arch rnn"),
        ("classify", {**TRANSFORMER, "fine_tuning.feature_cache_mb": 7}, "it is for --arch rnn or pretrained"),
        ("classify", {**TRANSFORMER, MAX_POSITIONS: 255}, r"less than the tokens of a row: .* --max-length \(256\)"),
        ("classify", {**TRANSFORMER, MAX_POSITIONS: 257}, r"beyond them would stay random: raise --max-length \(256\)"),
        ("classify", {**PRETRAINED_ENCODER, "tokenizer.vocab_size": 500}, VOCABULARY),
        ("translate", {**PRETRAINED_ENCODER, "tokenizer.vocab_size": 500}, VOCABULARY),
        ("masked-lm", {**PRETRAINED_ENCODER, "tokenizer.vocab_size": 500}, VOCABULARY),
        ("translate", {**PRETRAINED_ENCODER, "preset": "tiny"}, FROM_SCRATCH),
        ("translate", {**PRETRAINED_ENCODER, "seq2seq.cell": "gru"}, FROM_SCRATCH),
        ("causal-lm", {**PRETRAINED_ENCODER, "preset": "small"}, FROM_SCRATCH),
        ("causal-lm", {**PRETRAINED_ENCODER, "gpt.dropout": 0.0}, FROM_SCRATCH),
        ("masked-lm", {**PRETRAINED_ENCODER, "bert.causal": True}, FROM_SCRATCH),
        ("elmo", {**PRETRAINED_ENCODER, "elmo.dropout": 0.3}, FROM_SCRATCH),
        ("tag", {**PRETRAINED_ENCODER, "tokenizer.kind": "words"}, "it is for --arch rnn or transformer"),
        ("answer", {**PRETRAINED_ENCODER, "preset": "tiny"}, "it is for --arch transformer$"),
        ("classify", {**TRANSFORMER, "fine_tuning.lm_weight": 0.5}, r"--lm-weight \(0.5\) is for .*: add --causal, or"),
        (
            "answer",
            {**TRANSFORMER, "fine_tuning.lm_weight": 0.5, "transformer.causal": True, "transformer.embedding_size": 8},
            r"leave out --transformer.embedding_size \(8\), or --lm-weight",
        ),
        ("tag", {**TRANSFORMER, "transformer.pooling": "mean"}, "it is a setting of classify, story-qa$"),
        (
            "classify",
            {**TRANSFORMER, "transformer.causal": True, "transformer.pooling": "first"},
            "the first token of a causal encoder attends to itself alone.*: set pooling to last, mean or attention",
        ),
        *(
            ("story-qa", {path: value}, SEQUENCES_ONLY)
            for path, value in (
                ("training.minutes", 5.0),
                ("training.workers", 2),
                ("training.max_gradient_norm", 3.0),
                ("preset", "tiny"),
                ("data.max_length", 77),
            )
        ),
        (
            "story-qa",
            {"rnn_classifier.pooling": "max"},
            "means nothing to --arch memory-network: it is for --arch rnn$",
        ),
        ("story-qa", {"transformer.positions": "none"}, "it is for --arch transformer$"),
        ("story-qa", {"training.precision": "bf16"}, "memory networks are trained in float32: leave it out"),
        ("story-qa", {**RNN, "transformer.positions": "none"}, "means nothing to --arch rnn"),
        ("story-qa", {**TRANSFORMER, "memory_network.hops": 2}, "it is for --arch memory-network$"),
        ("story-qa", {**RNN, **WITHOUT_TIME}, "it is for --arch memory-network$"),
        ("story-qa", {**TRANSFORMER, "memory_network.state_map": "linear"}, "it is for --arch memory-network$"),
        ("story-qa", {**RNN, "training.linear_start": False}, "it is for --arch memory-network$"),
        ("story-qa", {**TRANSFORMER, "training.batch_size": 7}, "it is for --arch memory-network$"),
        ("story-qa", {**TRANSFORMER, "training.matrix_gradient_norm": 7.0}, "it is for --arch memory-network$"),
        ("story-qa", {**RNN, "rnn_classifier.encoder.hidden_size": 64}, "is a size that the preset gives"),
        ("story-qa", {**RNN, "training.restarts": 2, "training.workers": 2}, "one after another.*leave out --workers"),
        ("story-qa", {**WITHOUT_TIME, "training.random_noise": 0.3}, "without time encoding does not know: leave it"),
        ("masked-lm", {"bert.causal": True, "masking.next_sentence": True}, "leave out --causal, or --next-sentence"),
    ],
)
def test_settings_that_mean_nothing_to_an_architecture_are_refused(
    task: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_run(task, settings)


def test_settings_of_new_vocabularies_and_of_more_positions_are_accepted() -> None:
    vocabulary = {**PRETRAINED_ENCODER, "tokenizer.vocab_size": 500}
    build_run("classify", {**vocabulary, "tokenizer.extend": "texts"})
    build_run("masked-lm", {**vocabulary, "masking.new_vocabulary": True})
    build_run("classify", {**TRANSFORMER, MAX_POSITIONS: 400, "data.max_length": 400})
    build_run("classify", {**TRANSFORMER, MAX_POSITIONS: 400, "transformer.positions": "rotary"})


def test_a_story_run_is_a_memory_network_with_restarts_in_parallel_unless_it_names_another_architecture() -> None:
    run = build_run("story-qa", {})
    assert (run.architecture, _value(run, "training.restarts")) == ("memory-network", 10)
    assert _value(build_run("story-qa", {**RNN, "training.restarts": 3}), "training.restarts") == 3


def test_the_help_of_a_setting_has_the_default_of_the_task() -> None:
    smoothing = {
        task: knob.default
        for task in trained_tasks()
        for knob in type(build_run(task, PRETRAINED.get(task, {}))).knobs()
        if knob.path == "training.label_smoothing"
    }
    assert smoothing.pop("translate") == 0.1
    assert set(smoothing.values()) == {0.0}


def test_settings_of_the_command_line_come_before_those_of_a_recipe() -> None:
    recipe = {"preset": "tiny", "training": {"steps": 5, "seed": 3}}
    run = TranslateRun.build({"training.steps": 9}, recipe)
    assert (run.training.steps, run.training.seed, run.preset) == (9, 3, "tiny")


def test_tasks_of_a_setting() -> None:
    assert tasks_with("training.minutes") == trained_tasks()
    assert tasks_with("training.restarts") == ["story-qa"]
    assert tasks_with("nothing") == []


def test_a_task_that_no_model_is_trained_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="no model is trained for the task embed: one of translate, "):
        build_run("embed", {})
