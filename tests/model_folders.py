"""Model folders with random weights, one for each task that the engine computes, and what their pipelines answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import workload
from benchmarks.random_models import save_random_translator
from regard.checkpoint.causal_dir import save_causal_lm
from regard.checkpoint.encoder_dir import load_encoder, save_encoder
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig, GenerationConfig
from regard.config.models import GptConfig, StackConfig, TransformerConfig
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.text.train import train_tokenizer
from tests.encoders import saved_encoder

TASKS = ("translate", "classify", "tag", "answer", "embed", "generate")
VOCAB_SIZE = 97
STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=48)
SOURCES = workload.draw_texts([5, 3, 9, 14, 2, 7, 4, 11], VOCAB_SIZE)
TEXTS = [
    "the dog runs over the green hill",
    "a cat",
    "the cat sleeps in the house all day long while it rains",
    "a dog and a cat run",
    "rain",
]
PROMPTS = ["once", "upon a", "a time there was"]
LABELS = ("good", "bad", "odd")


def save_model_folders(root: Path) -> dict[str, Path]:
    """Write a model folder for each task."""
    folders = {"embed": saved_encoder(root / "embed", TEXTS)}
    for task, head, labels in (("classify", "label", LABELS), ("tag", "token", LABELS), ("answer", "span", ())):
        folders[task] = root / task
        _save_with_head(folders["embed"], folders[task], task, head, labels)
    folders["translate"] = _save_translator(root / "translate")
    folders["generate"] = _save_causal_lm(root / "generate")
    return folders


def _save_with_head(plain: Path, folder: Path, task: str, head: str, labels: tuple[str, ...]) -> None:
    encoder = load_encoder(plain, head=head, labels=labels or None)
    save_encoder(
        folder,
        encoder.config,
        encoder.weights,
        tokenizer=encoder.tokenizer,
        task=task,
        metadata={"max_length": 32, "labels": list(labels)},
        card="",
        labels=labels,
    )


def _save_translator(folder: Path) -> Path:
    config = TransformerConfig(
        source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE, hidden_size=24, encoder=STACK, decoder=STACK
    )
    return save_random_translator(folder, config, DecodingConfig(beam=2, max_length_a=1.0, max_length_b=3))


def _save_causal_lm(folder: Path) -> Path:
    trained = train_tokenizer(PROMPTS * 9, TokenizerConfig(kind="characters"))
    tokenizer = trained.without_special_tokens()
    config = GptConfig(
        vocab_size=tokenizer.vocab_size, eos_id=tokenizer.eos_id, hidden_size=24, stack=STACK, max_positions=32
    )
    model = build_model(config)
    initialize_weights(model, 1)
    metadata = {"document": "file"}
    save_causal_lm(folder, config, model.state_dict(), tokenizer=tokenizer, metadata=metadata, card="")
    return folder


def predict(task: str, pipeline: Any) -> tuple[list[str], list[float]]:
    """Texts and numbers that a pipeline answers."""
    match task:
        case "translate":
            results = pipeline.translate(SOURCES, nbest=2)
            return [str(result) for result in results], [result.score for result in results]
        case "classify":
            labels = pipeline.classify(TEXTS)
            return [str(label) for label in labels], [label.probability for label in labels]
        case "tag":
            tagged = pipeline.tag(TEXTS)
            return [" ".join(text.tags) for text in tagged], [sum(text.probabilities) for text in tagged]
        case "answer":
            answers = pipeline.answer([("cat", text) for text in TEXTS])
            return [answer.text for answer in answers], [answer.score for answer in answers]
        case "embed":
            vectors = pipeline.embed(TEXTS).vectors
            return [str(np.shape(vectors))], vectors.ravel().tolist()
        case _:
            generated = pipeline.generate(PROMPTS, GenerationConfig(max_new_tokens=12, seed=3, samples=2))
            continuations = [text for texts in generated for text in texts]
            return [str(text) for text in continuations], [text.logprob for text in continuations]
