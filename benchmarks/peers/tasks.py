"""What each benchmark measures: metrics, job settings, and the data and models that runners share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers import flops, workload
from benchmarks.peers.config import BenchmarkConfig, EmbeddingSize, TrainedEncoderSize, TranslatorSize
from benchmarks.peers.statistics import Metric
from benchmarks.peers.worker import Job, time_seconds
from regard.checkpoint.export.convert import convert
from regard.checkpoint.model_dir import save_translator
from regard.config.data import MaskingConfig
from regard.config.inference import DecodingConfig
from regard.config.rnn_models import Seq2SeqConfig
from regard.models import build_model
from regard.models.base import initialize_weights
from regard.tasks.classification import ClassificationObjective
from regard.tasks.masked_lm import MaskedLMObjective, MaskedRowLayout
from regard.tasks.token_stream import TokenStream
from regard.tasks.windows import EncodedTexts

Settings = dict[str, Any]  # of a job

# Training a Transformer: the same batches for every library that accepts batches; the others form their own from the
# same pairs.


def training_settings(size: TranslatorSize) -> Settings:
    """Job settings of training."""
    lengths = workload.draw_batch_lengths(size.batch_tokens, size.steps)
    return {"size": asdict(size), "lengths": lengths}


def training_metrics(size: TranslatorSize, settings: Settings) -> list[Metric]:
    """Target tokens per second of forward pass, backward pass and update."""
    return [
        Metric(
            "training",
            f"training {size.name}",
            unit="target tokens/s",
            tokens_per_unit=1.0,
            flops_per_unit=flops.training_flops(size, settings["lengths"]),
        )
    ]


# Training RNNs with attention. "fed": the attention context is an input of the cell, so that steps are sequential; this
# is the peers' model (Bahdanau et al. 2015). "following": attention comes after the recurrence, and all steps are
# computed together; this is another model, and named so.

INPUT_FEEDING = {"fed": "context", "following": "none"}  # metric → input of the cell beside the token
RECURRENT_CLIP = 1.0  # of the gradient's norm


@dataclass(frozen=True)
class RecurrentSize:
    """An RNN translator and its batches."""

    name: str
    hidden_size: int
    vocab_size: int
    batch_tokens: int
    steps: int

    def config(self, feeding: str) -> Seq2SeqConfig:
        """Model config as peers have it: separate embeddings, an untied output with bias, no dropout."""
        return Seq2SeqConfig(
            source_vocab_size=self.vocab_size,
            target_vocab_size=self.vocab_size,
            share_embeddings=False,
            tie_embeddings=False,
            output_bias=True,
            scale_embedding=False,
            embedding_size=self.hidden_size,
            hidden_size=self.hidden_size,
            input_feeding=feeding,
            dropout=0.0,
        )


RECURRENT_SIZES = {
    "small": RecurrentSize("small", 256, 10_000, 2048, 4),
    "tiny": RecurrentSize("tiny", 16, 200, 128, 1),
}


def recurrent_size(config: BenchmarkConfig) -> RecurrentSize:
    """RNN translator to measure."""
    return RECURRENT_SIZES["tiny" if config.size == "tiny" else "small"]


def recurrent_settings(size: RecurrentSize) -> Settings:
    """Job settings of training RNNs."""
    return {"size": asdict(size), "lengths": workload.draw_batch_lengths(size.batch_tokens, size.steps)}


def recurrent_metrics(size: RecurrentSize) -> list[Metric]:
    """Target tokens per second of forward pass, backward pass and update."""
    return [
        Metric(name, f"recurrent {size.name} {name}", unit="target tokens/s", tokens_per_unit=1.0)
        for name in INPUT_FEEDING
    ]


# Masked language modelling on running text, in rows of full length. The loop around transformers gets our batches with
# their masks; its Trainer masks the same rows itself.

MASK_RATE = 0.15
MASKED_LM_BATCHES = 16  # of an epoch


def masked_lm_settings(size: TrainedEncoderSize) -> Settings:
    """Job settings of masked language modelling."""
    return {"size": asdict(size)}


def masked_lm_metrics(size: TrainedEncoderSize) -> list[Metric]:
    """Tokens per second of forward pass, backward pass and update."""
    return [
        Metric(
            "masked",
            f"masked {size.name}",
            unit="tokens/s",
            tokens_per_unit=1.0,
            flops_per_unit=flops.masked_lm_flops(size, MASK_RATE),
        )
    ]


def build_masked_lm_objective(size: TrainedEncoderSize) -> MaskedLMObjective:
    """Running text as rows with masked tokens."""
    layout = MaskedRowLayout.from_tokenizer(
        workload.build_encoder_tokenizer(size.vocab_size), MaskingConfig(mask_rate=MASK_RATE)
    )
    length = size.max_length - layout.num_special
    num_tokens = MASKED_LM_BATCHES * size.batch_size * length
    (ids,) = workload.draw_token_rows([num_tokens], size.vocab_size - 1, seed=3)
    return MaskedLMObjective(TokenStream(ids.astype(np.int32), length, "ab"), layout, seed=1)


def masked_lm_batch_tokens(size: TrainedEncoderSize) -> int:
    """Tokens of a batch, without special tokens."""
    return size.batch_size * (size.max_length - 2)


# Fine-tuning an encoder to classify texts of mixed lengths. The loop around transformers gets our batches of texts of
# similar length; its Trainer forms batches of as many texts itself: at random, as it does by default, or by length.

NUM_LABELS = 2
FINE_TUNING_BATCHES = 32  # of an epoch


def fine_tuning_settings(size: TrainedEncoderSize) -> Settings:
    """Job settings of fine-tuning."""
    return {"size": asdict(size)}


def fine_tuning_metrics(size: TrainedEncoderSize) -> list[Metric]:
    """Tokens per second, without padding."""
    return [
        Metric(
            "fine_tuning",
            f"fine-tuning {size.name}",
            unit="tokens/s",
            tokens_per_unit=1.0,
            flops_per_unit=flops.fine_tuning_flops(size),
        )
    ]


def build_fine_tuning_objective(size: TrainedEncoderSize) -> ClassificationObjective:
    """Texts with alternating labels."""
    drawn_lengths = workload.draw_text_lengths(FINE_TUNING_BATCHES * size.batch_size, seed=5)
    lengths = np.minimum(drawn_lengths, size.max_length - 2)
    encoded = EncodedTexts()
    for index, row in enumerate(workload.draw_token_rows(lengths, size.vocab_size, seed=5)):
        ids = [workload.BOS_ID, *row.tolist(), workload.EOS_ID]
        encoded.add(ids, [0] * len(ids), index)
    return ClassificationObjective(encoded, np.arange(len(encoded)) % NUM_LABELS, seed=1, digest="ab")


def fine_tuning_batch_tokens(size: TrainedEncoderSize) -> int:
    """Tokens of a batch: the average of `batch_size` texts."""
    return int(build_fine_tuning_objective(size).lengths.mean() * size.batch_size)


# Translation with one random model for all libraries, and translations as long as their sources. The model never ends a
# text by itself (its bias forbids it), so that every library generates as many tokens as requested: those of the source
# and the end token. Regard gets texts, peers get tokens.


@dataclass(frozen=True)
class TranslationMode:
    """How sentences are translated."""

    beam: int
    is_single: bool  # one sentence at a time


TRANSLATION_MODES = {
    "greedy": TranslationMode(1, is_single=False),
    "beam 4": TranslationMode(4, is_single=False),
    "single greedy": TranslationMode(1, is_single=True),
    "single beam 4": TranslationMode(4, is_single=True),
}
FORBIDDEN_BIAS = -1e4  # of tokens that are never generated
LAYOUTS = {"transformers": "huggingface", "ctranslate2": "ctranslate2"}  # library → layout that `convert` writes
BATCH_SIZES = (32, 64, 128)  # sentences; peers use the one that suits them best


def write_translators(folder: Path, size: TranslatorSize, libraries: Sequence[str]) -> None:
    """Write a random translator for Regard, and the same weights for each library that reads another layout."""
    config = size.config(norm_placement="post", output_bias=True)
    model = build_model(config)
    initialize_weights(model, 1)
    with torch.no_grad():
        assert model.lm_head_bias is not None
        model.lm_head_bias[[config.pad_id, config.eos_id, config.bos_id]] = FORBIDDEN_BIAS
    tokenizer = workload.build_tokenizer(size.vocab_size)
    save_translator(
        folder / "regard",
        config,
        model.state_dict(),
        tokenizers={"source": tokenizer, "target": tokenizer},
        decoding=DecodingConfig(),
        metadata={},
        card="# Random weights, for measuring speed only\n",
    )
    for library in libraries:
        if library in LAYOUTS and not (folder / library).exists():
            convert(folder / "regard", folder / library, format=LAYOUTS[library])


def translation_settings(size: TranslatorSize, folder: Path, modes: Sequence[str]) -> Settings:
    """Job settings of translation."""
    return {
        "size": asdict(size),
        "folder": str(folder),
        "modes": list(modes),
        "lengths": workload.draw_sentence_lengths(size.sentences, seed=7)[0].tolist(),
        "single_lengths": workload.draw_sentence_lengths(size.single_sentences, seed=3)[0].tolist(),
    }


def translation_metrics(size: TranslatorSize, settings: Settings) -> list[Metric]:
    """Sentences per second in batches, and milliseconds of single sentences."""
    return [
        _translation_metric(name, mode, size, settings)
        for name, mode in TRANSLATION_MODES.items()
        if name in settings["modes"]
    ]


def _translation_metric(name: str, mode: TranslationMode, size: TranslatorSize, settings: Settings) -> Metric:
    lengths = settings["single_lengths" if mode.is_single else "lengths"]
    kind = "latency" if mode.is_single else "translation"
    return Metric(
        name,
        f"{kind} {size.name} {name.removeprefix('single ')}",
        unit="ms/sentence" if mode.is_single else "sentences/s",
        lower_is_better=mode.is_single,
        tokens_per_unit=sum(length + 2 for length in lengths) / len(lengths),
        flops_per_unit=flops.translation_flops(size, lengths, mode.beam),
    )


def translator_folder(job: Job, library: str) -> Path:
    """Folder of a library's copy of the model."""
    return Path(job.settings["folder"]) / library


def source_lengths(job: Job, mode: str) -> list[int]:
    """Lengths of the sentences to translate."""
    lengths: list[int] = job.settings["single_lengths" if TRANSLATION_MODES[mode].is_single else "lengths"]
    return lengths


def source_texts(job: Job, mode: str) -> list[str]:
    """Sentences to translate."""
    return workload.draw_texts(source_lengths(job, mode), job.settings["size"]["vocab_size"])


def source_rows(job: Job, mode: str) -> list[list[int]]:
    """Sentences to translate as token ids, each with the end token."""
    rows = workload.draw_token_rows(source_lengths(job, mode), job.settings["size"]["vocab_size"], seed=7)
    return [[*row.tolist(), workload.EOS_ID] for row in rows]


def batch_by_length(rows: Sequence[Sequence[int]], batch_size: int) -> list[tuple[list[Sequence[int]], int]]:
    """Batches of rows of similar length, with the number of tokens to generate: their mean length and the end token.

    >>> batch_by_length([[5, 6, 1], [7, 1], [8, 9, 9, 1]], 2)
    [([[8, 9, 9, 1], [5, 6, 1]], 5), ([[7, 1]], 3)]
    """
    ordered = sorted(rows, key=len, reverse=True)
    batches = [list(ordered[first : first + batch_size]) for first in range(0, len(ordered), batch_size)]
    return [(batch, round(sum(map(len, batch)) / len(batch)) + 1) for batch in batches]


def candidate_batch_sizes(job: Job) -> Sequence[int]:
    """Batch sizes that peers try; one with --quick."""
    return BATCH_SIZES[1:2] if job.settings.get("quick") else BATCH_SIZES


def measure_translation(translate: Callable[[], object], mode: str, job: Job) -> float:
    """Translate all sentences; return sentences per second, or milliseconds per sentence."""
    seconds = time_seconds(translate)
    count = len(source_lengths(job, mode))
    return 1000 * seconds / count if TRANSLATION_MODES[mode].is_single else count / seconds


# Encoding: texts of mixed lengths to one vector each, tokenization included; and single texts of two lengths.

SINGLE_TEXTS = {"single 16": 16, "single 128": 128}  # metric → tokens, special tokens included
SINGLE_REPEATS = 20  # encodings of a single text in one measurement


def encoding_settings(size: EmbeddingSize, *, with_single_texts: bool) -> Settings:
    """Job settings of encoding."""
    return {
        "size": asdict(size),
        "lengths": workload.draw_text_lengths(size.texts, seed=5).tolist(),
        "single_texts": list(SINGLE_TEXTS) if with_single_texts else [],
    }


def encoding_metrics(size: EmbeddingSize, settings: Settings) -> list[Metric]:
    """Texts per second in batches, and milliseconds of single texts."""
    lengths: list[int] = settings["lengths"]
    throughput = Metric(
        "encoding",
        f"encoding {size.name}",
        unit="texts/s",
        tokens_per_unit=sum(length + 2 for length in lengths) / len(lengths),
        flops_per_unit=flops.encoding_flops(size, lengths),
    )
    latencies = [
        Metric(
            name,
            f"latency {size.name} {SINGLE_TEXTS[name]} tokens",
            unit="ms/text",
            lower_is_better=True,
            tokens_per_unit=SINGLE_TEXTS[name],
        )
        for name in settings["single_texts"]
    ]
    return [throughput, *latencies]


def draw_single_texts(job: Job) -> dict[str, str]:
    """Text of each metric about single texts."""
    vocab_size = job.settings["size"]["vocab_size"]
    return {name: workload.draw_texts([SINGLE_TEXTS[name] - 2], vocab_size)[0] for name in job.settings["single_texts"]}


def measure_single_text(encode: Callable[[], object]) -> float:
    """Milliseconds that it takes to encode a single text."""
    return 1000 * time_seconds(lambda: [encode() for _ in range(SINGLE_REPEATS)]) / SINGLE_REPEATS
