"""Weights, metrics and answers after a few seeded training steps of every task and architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tools.behaviour import api, corpus, hf_folders
from tools.behaviour.cases import Case, Outputs, Workspace
from tools.behaviour.digest import Multiset

STEPS = {"training.steps": 12, "training.evaluate_every": 6, "training.batch_tokens": 160, "training.seed": 5}
TEXTS = corpus.make_texts(12, seed=31, long=False)
LIMITS: dict[str, Any] = {"max_length_a": 1.0, "max_length_b": 5}


@dataclass(frozen=True)
class Training:
    """One training run: its task, its data by name, its settings, and the folders that it starts from."""

    task: str
    data: str
    architecture: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    pretrained: str = ""  # an encoder as Hugging Face has it, or the name of another training here
    features: str = ""  # the name of another training here
    evaluation: Mapping[str, str] = field(default_factory=dict)  # how the test set is read


# ---- data


def _write_parallel(folder: Path) -> None:
    corpus.write_parallel(folder, "train", 90, seed=41)
    corpus.write_parallel(folder, "valid", 14, seed=42)


def _write_labelled(folder: Path) -> None:
    corpus.write_labelled(folder / "train.tsv", 72, seed=43)
    corpus.write_labelled(folder / "valid.tsv", 24, seed=44)


def _write_multilabel(folder: Path) -> None:
    corpus.write_multilabel(folder / "train.tsv", 72, seed=45)
    corpus.write_multilabel(folder / "valid.tsv", 24, seed=46)


def _write_labelled_pairs(folder: Path) -> None:
    corpus.write_labelled_pairs(folder / "train.csv", 72, seed=47)
    corpus.write_labelled_pairs(folder / "valid.csv", 24, seed=48)


def _write_tagged(folder: Path) -> None:
    corpus.write_tagged(folder / "train.conll", 60, seed=49)
    corpus.write_tagged(folder / "valid.conll", 20, seed=50)


def _write_questions(folder: Path) -> None:
    corpus.write_questions(folder / "train.json", 30, seed=51)
    corpus.write_questions(folder / "valid.json", 9, seed=52)


def _write_documents(folder: Path) -> None:
    corpus.write_documents(folder / "train.txt", 60, seed=53)
    corpus.write_documents(folder / "valid.txt", 12, seed=54)


def _write_stories(folder: Path) -> None:
    corpus.write_stories(folder / "train.txt", 70, seed=55)
    corpus.write_stories(folder / "valid.txt", 20, seed=56)


DATA: dict[str, Callable[[Path], None]] = {
    "parallel": _write_parallel,
    "labelled": _write_labelled,
    "multilabel": _write_multilabel,
    "labelled-pairs": _write_labelled_pairs,
    "tagged": _write_tagged,
    "questions": _write_questions,
    "documents": _write_documents,
    "stories": _write_stories,
}


def _data(workspace: Workspace, name: str) -> tuple[list[Path], list[Path]]:
    """The training files and the validation files of one kind of data."""

    def build(folder: Path) -> None:
        folder.mkdir()
        DATA[name](folder)

    files = sorted(workspace.build(f"data/{name}", build).iterdir())
    return [file for file in files if file.stem == "train"], [file for file in files if file.stem == "valid"]


# ---- answers of the trained model


def _answers(task: str, folder: Path) -> Outputs:
    model = api.load(folder)
    if task == "translate":
        yield "answers", api.translate(model, TEXTS, beam=3, nbest=2, **LIMITS)
    elif task == "classify":
        yield "answers", api.classify(model, TEXTS)
    elif task == "tag":
        yield "answers", api.tag(model, TEXTS)
    elif task == "answer":
        yield "answers", api.answer_questions(model, corpus.make_questions(12, seed=32))
    elif task == "masked-lm":
        yield "answers", api.fill_masks(model, corpus.make_masked_texts(api.mask_token(model), 12, seed=33))
    elif task == "causal-lm":
        yield "answers", api.generate(model, TEXTS, greedy=True, max_new_tokens=10)
    elif task == "elmo":
        yield "answers", api.extract_features(model, TEXTS, "words")
    else:
        stories = [(story.sentences, story.question) for story in corpus.make_stories(12, seed=34, max_sentences=5)]
        yield "answers", api.answer_stories(model, stories)


# ---- runs


def _folder(workspace: Workspace, name: str) -> Path:
    return workspace.path / "runs" / name


def _train(workspace: Workspace, name: str) -> list[Any]:
    """Train a run of the table, after those that it starts from; return its metrics."""
    training = TRAININGS[name]
    files, valid = _data(workspace, training.data)
    settings = {**({} if training.task == "story-qa" else STEPS), **training.settings}
    if training.pretrained:
        settings["pretrained"] = str(_pretrained(workspace, training.pretrained))
    if training.features:
        settings["fine_tuning.features"] = str(_trained(workspace, training.features))
    out = workspace.new(f"runs/{name}")
    return api.train(training.task, files, out, settings, architecture=training.architecture, valid=valid)


def _trained(workspace: Workspace, name: str) -> Path:
    """The folder of a run that another one starts from; trained anew where its own case did not run before."""
    if not _folder(workspace, name).exists():
        _train(workspace, name)
    return _folder(workspace, name)


def _pretrained(workspace: Workspace, name: str) -> Path:
    if name in TRAININGS:
        return _trained(workspace, name)
    return workspace.build(f"hf/{name}-none", lambda folder: hf_folders.build_encoder(folder, name, "none"))


def run_training(workspace: Workspace, name: str) -> Outputs:
    """Weights, metrics and answers of one run."""
    training = TRAININGS[name]
    folder = _folder(workspace, name)
    if folder.exists():  # another case started from it
        folder.rename(folder.with_name(f"{name} before"))
    yield "metrics", _train(workspace, name)
    yield "weights", Multiset(tuple(api.read_weights(folder)))
    yield from _answers(training.task, folder)
    _, valid = _data(workspace, training.data)
    yield "evaluation", api.evaluate(folder, valid, **training.evaluation)


# ---- the table of runs

SMALL_STACKS = {
    f"model.{side}.{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"num_layers": 2, "num_heads": 2, "feed_forward_size": 48}.items()
}
TRANSFORMER = {"preset": "custom", "model.hidden_size": 32, **SMALL_STACKS, "model.max_positions": 64}
SHORT = {"data.max_length": 32}
ON_TORCH = {"backend": "torch"}
RNN = {"preset": "custom", "model.embedding_size": 20, "model.hidden_size": 24}
RNN_TEXT = {"preset": "custom", "model.encoder.embedding_size": 20, "model.encoder.hidden_size": 24}
BERT = {
    "preset": "custom",
    "model.hidden_size": 32,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.feed_forward_size": 48,
    "model.max_positions": 48,
    "documents.sequence_length": 32,
}
GPT = {**BERT, "documents.sequence_length": 24}
ELMO = {"preset": "custom", "model.hidden_size": 20, "documents.sequence_length": 24}
FINE_TUNING = {"training.learning_rate": 0.002, "data.max_length": 48}
STORY_QA = {
    "model.embedding_size": 10,
    "model.hops": 2,
    "training.restarts": 3,
    "training.epochs": 4,
    "training.linear_start_epochs": 2,
    "training.batch_size": 16,
    "training.seed": 5,
}


def _translate(architecture: str, **settings: Any) -> Training:
    base = TRANSFORMER if architecture == "transformer" else RNN
    return Training("translate", "parallel", architecture, {**base, **SHORT, **settings})


def _rnn(**model: Any) -> Training:
    return _translate("rnn", **{f"model.{name}": value for name, value in model.items()})


def _classify(pretrained: str, settings: Mapping[str, Any] | None = None) -> Training:
    return Training("classify", "labelled", "", {**FINE_TUNING, **(settings or {})}, pretrained)


TRAININGS: dict[str, Training] = {
    "translate-transformer": _translate("transformer"),
    "translate-transformer-adamw": _translate(
        "transformer",
        **{
            "model.norm": "post",
            "model.positions": "learned",
            "model.attention_dropout": 0.1,
            "model.activation_dropout": 0.1,
            "training.optimizer": "adamw",
            "training.accumulation_steps": 2,
            "training.average_checkpoints": 2,
            "training.ema_decay": 0.0,
            "training.label_smoothing": 0.0,
            "tokenizer.bpe_dropout": 0.1,
        },
    ),
    "translate-transformer-unigram": _translate(
        "transformer",
        **{
            "model.positions": "rotary",
            "tokenizer.kind": "unigram",
            "tokenizer.joint": False,
            "training.ema_decay": 0.5,
        },
    ),
    "translate-continued": Training(
        "translate", "parallel", "", {**SHORT, "training.learning_rate": 0.001}, "translate-transformer"
    ),
    "translate-lstm": _rnn(cell="lstm", attention="none"),
    "translate-gru": _rnn(cell="gru", attention="none", source_context="every_step"),
    "translate-bahdanau": _rnn(cell="gru", attention="additive", input_feeding="context"),
    "translate-luong": _rnn(cell="lstm", attention="dot", input_feeding="output", num_layers=2),
    "translate-concat": _rnn(cell="gru", attention="concat"),
    "translate-hard": _rnn(cell="lstm", attention="additive", hard_attention="straight-through"),
    "translate-reinforce": _rnn(cell="lstm", attention="bilinear", hard_attention="reinforce"),
    "elmo": Training("elmo", "documents", "", {**ELMO, "tokenizer.kind": "words"}),
    "elmo-gru": Training("elmo", "documents", "", {**ELMO, "model.cell": "gru", "tokenizer.kind": "characters"}),
    "classify-rnn": Training("classify", "labelled", "rnn", RNN_TEXT),
    "classify-rnn-mean": Training(
        "classify",
        "labelled",
        "rnn",
        {**RNN_TEXT, "model.pooling": "mean", "tokenizer.kind": "words", "fine_tuning.class_weights": "balanced"},
    ),
    "classify-rnn-elmo": Training("classify", "labelled", "rnn", RNN_TEXT, features="elmo"),
    "classify-rnn-seeds": Training("classify", "labelled", "rnn", {**RNN_TEXT, "fine_tuning.seeds": 2}),
    "tag-rnn": Training("tag", "tagged", "rnn", {**RNN_TEXT, "tokenizer.kind": "words"}),
    "tag-rnn-elmo": Training("tag", "tagged", "rnn", RNN_TEXT, features="elmo"),
    **{f"classify-{name}": _classify(name) for name in hf_folders.ENCODERS},
    # recorded on torch: the engine did not project embeddings then
    **{f"classify-{name}": replace(_classify(name), evaluation=ON_TORCH) for name in ("albert", "electra")},
    "classify-frozen": _classify("bert", {"fine_tuning.freeze_encoder": True}),
    "classify-layer-decay": _classify(
        "bert", {"trainable.layer_lr_decay": 0.7, "fine_tuning.class_weights": "balanced"}
    ),
    "classify-random-init": _classify("bert", {"fine_tuning.random_init": True}),
    "classify-multilabel": Training(
        "classify",
        "multilabel",
        "",
        {**FINE_TUNING, "data.read.label_separator": ";"},
        "bert",
        evaluation={"label_separator": ";"},
    ),
    "classify-pairs": Training(
        "classify",
        "labelled-pairs",
        "",
        {**FINE_TUNING, "data.read.pair": "other"},
        "bert",
        evaluation={"pair": "other"},
    ),
    "tag-bert": Training("tag", "tagged", "", FINE_TUNING, "bert"),
    "tag-frozen": Training("tag", "tagged", "", {**FINE_TUNING, "fine_tuning.freeze_encoder": True}, "roberta"),
    "answer-bert": Training("answer", "questions", "", FINE_TUNING, "bert"),
    "answer-frozen": Training(
        "answer", "questions", "", {**FINE_TUNING, "fine_tuning.freeze_encoder": True}, "distilbert"
    ),
    "masked-lm": Training("masked-lm", "documents", "", BERT),
    "masked-lm-next-sentence": Training(
        "masked-lm",
        "documents",
        "",
        {
            **BERT,
            "masking.next_sentence": True,
            "masking.whole_word_masking": True,
            "masking.mask_rate": 0.15,
            "masking.pretraining_dropout": 0.1,
        },
    ),
    "masked-lm-adapted": Training("masked-lm", "documents", "", {"documents.sequence_length": 32}, "bert"),
    "masked-lm-new-vocabulary": Training(
        "masked-lm", "documents", "", {"documents.sequence_length": 32, "masking.new_vocabulary": True}, "bert"
    ),
    "causal-lm": Training("causal-lm", "documents", "", GPT),
    "causal-lm-learned": Training(
        "causal-lm",
        "documents",
        "",
        {
            **GPT,
            "model.positions": "learned",
            "tokenizer.kind": "characters",
            "documents.document_boundary": "paragraph",
        },
    ),
    "causal-lm-continued": Training("causal-lm", "documents", "", {"documents.sequence_length": 24}, "causal-lm"),
    "story-qa": Training("story-qa", "stories", "", STORY_QA),
    "story-qa-layerwise": Training(
        "story-qa",
        "stories",
        "",
        {**STORY_QA, "model.tying": "layerwise", "model.sentence_encoding": "bag", "training.linear_start": False},
    ),
    "distil-classify": _classify("classify-bert", {"distillation.student_layers": 1}),
    "distil-tag": Training(
        "tag",
        "tagged",
        "",
        {**FINE_TUNING, "distillation.student_layers": 1, "distillation.label_weight": 0.2},
        "tag-bert",
    ),
    "distil-answer": Training(
        "answer",
        "questions",
        "",
        {**FINE_TUNING, "distillation.student_layers": 1, "distillation.hidden_weight": 0.0},
        "answer-bert",
    ),
}


def training_cases() -> list[Case]:
    """All training runs."""
    return [Case(f"training/{name}", partial(run_training, name=name)) for name in TRAININGS]
