"""The only module that names the API of Regard; everything else speaks of models, texts, settings and plain values.

Settings have neutral names (those of the field); the tables below translate them to those of the present code. Answers
become plain values, so that names of their fields do not enter any digest.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import regard  # before torch: it sets how OpenMP threads wait
from tools.behaviour.weights import Parameter

Array = NDArray[Any]
Draw = Callable[[Sequence[Parameter]], Sequence[NDArray[np.float32]]]  # parameters in definition order → arrays

# ---- names of settings: neutral → present

STACK_NAMES = {name: f"stack.{name}" for name in ("num_layers", "num_heads", "feed_forward_size")}
MODEL_NAMES: dict[str, dict[str, str]] = {"bert": STACK_NAMES, "gpt": STACK_NAMES}  # family → names that differ
MODEL_VALUES: dict[str, dict[Any, Any]] = {  # neutral setting → neutral value → present value
    "norm": {"pre": "before", "post": "after"},
    "source_context": {"initial": "start", "every_step": "every"},
    "directions": {"forward": "one"},
    "attention": {"block_sparse": "blocks"},
    "head": {"none": "plain", "masked_lm": "masked", "sequence": "label"},
}
RUN_GROUPS = {  # family → group of a run's settings
    "transformer": "model",
    "seq2seq": "seq2seq",
    "bert": "bert",
    "gpt": "gpt",
    "elmo": "elmo",
    "rnn_classifier": "rnn_classifier",
    "rnn_tagger": "rnn_tagger",
    "memory_network": "memory_network",
}
TRAINED_FAMILIES = {  # task, architecture → family whose settings are the group `model.`
    ("translate", "transformer"): "transformer",
    ("translate", "rnn"): "seq2seq",
    ("classify", "rnn"): "rnn_classifier",
    ("tag", "rnn"): "rnn_tagger",
    ("masked-lm", ""): "bert",
    ("causal-lm", ""): "gpt",
    ("elmo", ""): "elmo",
    ("story-qa", ""): "memory_network",
}
TIMINGS = ("speed", "seconds")  # metrics that are no function of the data


def _renamed(settings: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in settings.items()}


def _model_settings(family: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: MODEL_VALUES.get(name, {}).get(value, value) for name, value in settings.items()}
    return _renamed(values, MODEL_NAMES.get(family, {}))


# ---- machine


def prepare(cache: Path) -> None:
    """Keep what the package remembers of this machine in a folder of its own, and compute with one thread."""
    import torch

    os.environ["REGARD_CACHE"] = str(cache)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)  # training turns them on for the whole process


def engine_instructions() -> str:
    """The instruction set that the engine computes with; empty without an engine."""
    from regard.engine.library import select_instruction_set, unavailable_reason

    return "" if unavailable_reason() else select_instruction_set()


# ---- folders


def build_native_folder(
    family: str,
    folder: Path,
    settings: Mapping[str, Any],
    draw: Draw,
    *,
    tokenizer: Path | None = None,
    target_tokenizer: Path | None = None,
    labels: Sequence[str] = (),
    vocabulary: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Path:
    """Write a model folder with drawn weights; `vocabulary` has the words and the answers of a memory network."""
    import torch

    from regard.models import build_model

    source = _read_tokenizer(tokenizer) if tokenizer is not None else None
    target = _read_tokenizer(target_tokenizer) if target_tokenizer is not None else source
    sizes = _sizes_of_data(family, source, target, labels, vocabulary)
    config = _config_class(family)().override(_model_settings(family, {**sizes, **settings}))
    model = build_model(config)
    parameters = [parameter for _, parameter in model.named_parameters()]
    arrays = draw([Parameter(tuple(one.shape), one.dim() == 1 and bool((one == 1).all())) for one in parameters])
    with torch.no_grad():
        for parameter, array in zip(parameters, arrays, strict=True):
            parameter.copy_(torch.from_numpy(array))
    _save(family, folder, model, source, target, labels, vocabulary)
    return folder


def _config_class(family: str) -> Any:
    from regard.config import models, rnn_models

    return {
        "transformer": models.TransformerConfig,
        "seq2seq": rnn_models.Seq2SeqConfig,
        "bert": models.BertConfig,
        "gpt": models.GptConfig,
        "elmo": rnn_models.ElmoConfig,
        "rnn_classifier": rnn_models.RnnClassifierConfig,
        "rnn_tagger": rnn_models.RnnTaggerConfig,
        "memory_network": rnn_models.MemoryNetworkConfig,
    }[family]


def _sizes_of_data(
    family: str, source: Any, target: Any, labels: Sequence[str], vocabulary: tuple[Sequence[str], Sequence[str]]
) -> dict[str, Any]:
    """Settings that tokenizer, labels and vocabulary decide, by their neutral names."""
    if family in ("transformer", "seq2seq"):
        ids = {"pad_id": target.pad_id, "eos_id": target.eos_id, "bos_id": target.bos_id}
        return {"source_vocab_size": source.vocab_size, "target_vocab_size": target.vocab_size, **ids}
    if family == "bert":
        return {"vocab_size": source.vocab_size, "num_labels": len(labels), "pad_id": source.pad_id}
    if family == "gpt":
        return {"vocab_size": source.vocab_size, "eos_id": source.eos_id}
    if family == "elmo":
        return {"vocab_size": source.vocab_size, "boundary_id": source.eos_id}
    if family == "memory_network":
        return {"vocab_size": len(vocabulary[0])}
    return {"encoder.vocab_size": source.vocab_size, "num_labels": len(labels)}


def _save(
    family: str,
    folder: Path,
    model: Any,
    source: Any,
    target: Any,
    labels: Sequence[str],
    vocabulary: tuple[Sequence[str], Sequence[str]],
) -> None:
    from regard.checkpoint.causal_dir import save_causal_lm
    from regard.checkpoint.encoder_dir import save_encoder
    from regard.checkpoint.model_dir import save_translator
    from regard.checkpoint.native import save_memory_network, save_text_model
    from regard.config.inference import DecodingConfig

    facts: dict[str, Any] = {"step": 1, "data_digests": {}, "metrics": {}}
    weights = model.state_dict()
    if family in ("transformer", "seq2seq"):
        save_translator(
            folder,
            model.config,
            weights,
            tokenizers={"source": source, "target": target},
            decoding=DecodingConfig(),
            metadata={**facts, "max_length": 96},
            card="",
        )
    elif family == "bert":
        save_encoder(
            folder,
            model.config,
            weights,
            tokenizer=source,
            task={"token": "tag", "label": "classify", "span": "answer"}.get(model.config.head, ""),
            metadata=facts,
            card="",
            labels=tuple(labels),
        )
    elif family == "gpt":
        save_causal_lm(folder, model.config, weights, tokenizer=source, metadata=facts, card="")
    elif family == "memory_network":
        words = {"words": [*vocabulary[0]], "answers": [*vocabulary[1]]}
        save_memory_network(folder, model.config, weights, vocabulary=words, metadata=facts, card="")
    else:
        task = {"elmo": "elmo", "rnn_classifier": "classify", "rnn_tagger": "tag"}[family]
        if labels:
            facts |= {"labels": [*labels], "max_length": 64}
        save_text_model(folder, model.config, weights, tokenizer=source, task=task, metadata=facts, card="")


def convert_for_engine(folder: Path, out: Path, precision: str, *, shortlist: Sequence[Path] = ()) -> Path:
    """Write a model as a folder whose weights are laid out for the engine."""
    files = ["--shortlist", *map(str, shortlist)] if shortlist else []
    _run_command("convert", str(folder), str(out), "--precision", precision, *files)
    return out


def _run_command(*arguments: str) -> str:
    """Run a command in this process; return its standard output."""
    from regard.cli import run

    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = run(arguments)
    if code:
        raise RuntimeError(f"{' '.join(arguments)}: exit code {code}: {errors.getvalue()}")
    return output.getvalue()


def _read_tokenizer(path: Path) -> Any:
    from regard.text.tokenizer import Tokenizer

    return Tokenizer.from_json(path.read_text("utf-8"), where=str(path))


def tokenize(path: Path, texts: Sequence[str]) -> list[Any]:
    """Token ids, readable subwords, character spans and word indices of texts, and the texts decoded again."""
    tokenizer = _read_tokenizer(path)
    encodings = [tokenizer.encode(text) for text in texts]
    decoded = [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)]
    return [[(one.ids, one.subwords, one.spans, one.word_ids) for one in encodings], decoded]


# ---- models


def load(
    folder: Path | Sequence[Path], *, backend: str = "torch", precision: str | None = "float32", task: str = ""
) -> Any:
    """Open the model of a folder; `task="embed"` opens any encoder to make vectors. Several folders: an ensemble."""
    from regard.pipeline.load import load_embedder

    settings: dict[str, Any] = {"backend": backend, "precision": precision, "threads": 1}
    if task == "embed":
        return load_embedder(folder, **settings)  # type: ignore[arg-type]
    return regard.load(folder, **settings)


def translate(model: Any, texts: Sequence[str], *, prefixes: Sequence[str] | None = None, **settings: Any) -> list[Any]:
    """Translations with scores and alternatives; `force` and `forbid` are words to use and to avoid."""
    from regard.decoding.constraints import Constraints

    force, forbid = settings.pop("force", ()), settings.pop("forbid", ())
    constraints = Constraints(force=force, forbid=forbid) if force or forbid else None
    found = model.translate(texts, prefixes=prefixes, constraints=constraints, **settings)
    return [[_translation(one), [_translation(other) for other in one.alternatives]] for one in found]


def _translation(one: Any) -> list[Any]:
    ids = [part.ids for part in one.sentences]
    return [str(one), one.score, one.logprob, one.finished, ids, one.tokens]


def score_translations(model: Any, sources: Sequence[str], targets: Sequence[str], **settings: Any) -> list[Any]:
    """Log-probabilities of given translations."""
    found = model.score(sources, targets, **settings)
    return [[one.score, one.logprob, one.num_tokens] for one in found]


def align(model: Any, sources: Sequence[str], targets: Sequence[str]) -> list[Any]:
    """Word alignments of given translations."""
    return [[list(link) for link in links] for links in model.align(sources, targets)]


def classify(model: Any, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Any]:
    """Labels with the probabilities of all of them."""
    found = model.classify(texts, pairs)
    return [
        [str(one), one.probability, list(one.probabilities.items()), one.labels, one.windows, one.truncated]
        for one in found
    ]


def tag(model: Any, texts: Sequence[str]) -> list[Any]:
    """Tags of words with probabilities, and the entities that they mark."""
    return [
        [
            [one.words, one.spans, one.tags, one.probabilities, one.windows],
            [[entity.text, entity.label, entity.start, entity.end, entity.probability] for entity in one.entities],
        ]
        for one in model.tag(texts)
    ]


def answer_questions(model: Any, questions: Sequence[tuple[str, str]], top_k: int = 3) -> list[Any]:
    """Spans that answer questions about passages, and the next best ones."""
    found = model.answer(questions, top_k=top_k)
    return [
        [[other.text, other.start, other.end, other.score, other.windows] for other in (one, *one.alternatives)]
        for one in found
    ]


def mask_token(model: Any) -> str:
    """How a masked token is written in texts."""
    return str(model.mask)


def fill_masks(model: Any, texts: Sequence[str], top_k: int = 5) -> list[Any]:
    """The likeliest tokens for the masks of texts."""
    return [
        [
            one.best_text,
            one.truncated,
            [[[fill.token, fill.probability, fill.text, fill.token_id] for fill in gap] for gap in one.masks],
        ]
        for one in model.fill(texts, top_k=top_k)
    ]


def embed(model: Any, texts: Sequence[str], *, pooling: str, long_texts: str, normalize: bool = False) -> Array:
    """Vectors of texts."""
    from regard.config.inference import EmbeddingConfig

    config = EmbeddingConfig(
        pooling=pooling, long_texts=long_texts, normalize="yes" if normalize else "no", batch_tokens=1024
    )
    vectors: Array = model.embed(texts, config).vectors
    return vectors


def find_similar(model: Any, queries: Sequence[str], texts: Sequence[str], top_k: int = 5) -> list[Any]:
    """Indices and cosines of the nearest texts of each query."""
    from regard.pipeline.embedding import nearest_neighbours

    near = nearest_neighbours(model.embed(queries).vectors, model.embed(texts).vectors, top_k)
    return [near.indices, near.similarities]


def generate(model: Any, prompts: Sequence[str], **settings: Any) -> list[Any]:
    """Continuations of prompts with log-probabilities."""
    from regard.config.inference import GenerationConfig

    config = GenerationConfig(**settings)
    return [
        [[str(one), one.ids, one.logprob, one.finished, one.truncated, one.unknown] for one in continuations]
        for continuations in model.generate(prompts, config)
    ]


def extract_features(model: Any, texts: Sequence[str], unit: str) -> list[Array]:
    """All layers of an ELMo-like model at each word or token of texts."""
    return [np.ascontiguousarray(one.layers) for one in model.features(texts, unit=unit)]


def answer_stories(model: Any, stories: Sequence[tuple[Sequence[str], str]], top_k: int = 3) -> list[Any]:
    """Answers of a memory network with probabilities and the weights of each hop."""
    found = [model(list(sentences), question, top_k=top_k) for sentences, question in stories]
    return [
        [[[str(other), other.score] for other in (one, *one.alternatives)], np.ascontiguousarray(one.hops)]
        for one in found
    ]


# ---- attention


def attention_maps(model: Any, *inputs: Any, **settings: Any) -> list[Array]:
    """The attention weights that an answer shows, site by site."""
    maps = _answer(model, inputs, settings).attention
    return [np.ascontiguousarray(maps[site].weights) for site in maps]


def decoding_steps(model: Any, *inputs: Any, **settings: Any) -> list[Any]:
    """Tokens of an answer with probabilities, candidates and the beams of the search."""
    steps = _answer(model, inputs, settings).steps
    return [[one.token, one.probability, one.entropy, list(map(list, one.top)), list(one.beams)] for one in steps]


def trace_attention(model: Any, *inputs: Any, **settings: Any) -> list[Array]:
    """The exact attention weights of a trace around one answer, site by site; search must be greedy."""
    with regard.trace(full_precision=True) as traced:
        _answer(model, inputs, settings)
    return [np.ascontiguousarray(traced[site].weights) for site in traced]


def answer_with_ablation(model: Any, head: str, *inputs: Any) -> Any:
    """An answer while one attention head is switched off, as plain values."""
    with regard.ablate(head):
        answer = _answer(model, inputs, {})
    if hasattr(answer, "vectors"):
        return answer.vectors
    return [str(answer), getattr(answer, "logprob", 0.0), list(getattr(answer, "probabilities", {}).items())]


def _answer(model: Any, inputs: Sequence[Any], settings: Mapping[str, Any]) -> Any:
    if hasattr(model, "embed"):
        return model.embed(list(inputs))
    if hasattr(model, "generate"):
        return model(*inputs, **settings)
    return model(*inputs, **settings)


def explain(model: Any, *inputs: str) -> list[Any]:
    """Attributions by all methods, their agreement with attention, and the deletion test."""
    from regard.interpret.attribution import explain as explain_answer

    found = explain_answer(model, *inputs, steps=8)
    attributions = [[np.array(one.values), one.agreement] for one in found.attributions]
    return [found.target, attributions, list(found.deletion.values()), found.gap]


def head_importance(model: Any, *inputs: str) -> list[list[float]]:
    """What an answer loses without each head, site by site."""
    from regard.interpret.ablation import head_importance as measure

    return list(measure(model, *inputs)[1].values())


# ---- training and evaluation


class _Listener:
    """Keeps the metrics that a run ends with, and those of every evaluation."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []

    def on_event(self, kind: str, facts: dict[str, Any]) -> None:
        if kind in ("evaluate", "done") and "metrics" in facts:
            self.metrics.append(numbers_of(facts["metrics"]))


def train(
    task: str,
    files: Sequence[Path],
    out: Path,
    settings: Mapping[str, Any],
    *,
    architecture: str = "",
    valid: Sequence[Path] = (),
) -> list[Any]:
    """Train a model with one thread in float32; return the metrics of evaluations and of the finished run."""
    family = TRAINED_FAMILIES.get((task, architecture), "")
    model = {path.removeprefix("model."): value for path, value in settings.items() if path.startswith("model.")}
    others = {path: value for path, value in settings.items() if not path.startswith("model.")}
    given = {**others, "training.threads": 1}
    if task != "story-qa":
        given["training.precision"] = "float32"
    if model:
        group = RUN_GROUPS[family]
        given |= {f"{group}.{path}": value for path, value in _model_settings(family, model).items()}
    if architecture:
        given["architecture"] = architecture
    listener = _Listener()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a few steps teach nothing
        regard.train(
            task,
            *files,
            out=out,
            valid=valid,
            listeners=[listener],
            **{path.replace(".", "__"): value for path, value in given.items()},
        )
    return listener.metrics


def read_weights(folder: Path) -> list[NDArray[np.float32]]:
    """All weights of a trained model, without their names."""
    from safetensors.numpy import load_file

    return [np.ascontiguousarray(array, dtype=np.float32) for array in load_file(folder / "model.safetensors").values()]


def evaluate(
    folder: Path, files: Sequence[Path], *, label_separator: str = "", pair: str = "", backend: str = ""
) -> list[float]:
    """All numbers that the evaluation of a test set prints, sorted."""
    flags = {"--label-separator": label_separator, "--pair": pair, "--backend": backend}
    options = [part for flag, value in flags.items() if value for part in (flag, value)]
    output = _run_command("evaluate", str(folder), *map(str, files), "--threads", "1", "--json", *options)
    return numbers_of(json.loads(output))


def numbers_of(value: Any) -> list[float]:
    """All numbers in nested values but timings, sorted, as floats.

    >>> numbers_of({"b": [2, {"c": 1.5}], "seconds": 9.0, "text": "x"})
    [1.5, 2.0]
    """
    if isinstance(value, Mapping):
        parts = [inner for name, inner in value.items() if name not in TIMINGS]
        return sorted(number for inner in parts for number in numbers_of(inner))
    if isinstance(value, list | tuple):
        return sorted(number for inner in value for number in numbers_of(inner))
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return [float(value)] if is_number else []
