"""CTranslate2: translation with all threads in one worker or with one-thread workers, and embeddings of BERT."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers import tasks, workload
from benchmarks.peers.libraries import Library
from benchmarks.peers.libraries.bert import Array, build_bert, build_encoding_measures
from benchmarks.peers.worker import BestSetting, Channel, Job
from regard.text.tokenizer import SPECIAL_TOKENS

WORKERS = "one-thread workers"
LIBRARY = Library(
    "ctranslate2",
    requirements={"ctranslate2": "ctranslate2"},
    benchmarks={
        "translation": ("float32", "int8", f"int8 {WORKERS}", f"float32 {WORKERS}"),
        "encoding": ("float32", "int8"),
    },
    quick={"translation": (f"int8 {WORKERS}",)},
)

Translate = Callable[[Sequence[Sequence[int]], int, int], None]  # rows, beam, batch size


def run_translation(job: Job, channel: Channel) -> None:
    """Translate; with one-thread workers, a single sentence has one thread."""
    import ctranslate2

    has_workers = job.variant.endswith(WORKERS)
    translator = ctranslate2.Translator(
        str(tasks.translator_folder(job, "ctranslate2")),
        device="cpu",
        compute_type=job.variant.split()[0],
        inter_threads=job.threads if has_workers else 1,
        intra_threads=1 if has_workers else job.threads,
    )

    def translate(rows: Sequence[Sequence[int]], beam: int, batch_size: int) -> None:
        pending = [
            translator.translate_batch(
                [[_token_name(token_id) for token_id in row] for row in batch],
                beam_size=beam,
                min_decoding_length=num_tokens,
                max_decoding_length=num_tokens,
                max_batch_size=0,
                asynchronous=True,
            )
            for batch, num_tokens in tasks.batch_by_length(rows, batch_size)
        ]
        for batch_results in pending:
            for result in batch_results:
                assert result.result().hypotheses[0], "the translation is empty"

    channel.serve({name: _build_measure(job, name, translate) for name in job.settings["modes"]})


def _build_measure(job: Job, mode_name: str, translate: Translate) -> BestSetting[int]:
    mode = tasks.TRANSLATION_MODES[mode_name]
    rows = tasks.source_rows(job, mode_name)

    def translate_all(batch_size: int) -> None:
        for group in [[row] for row in rows] if mode.is_single else [rows]:
            translate(group, mode.beam, batch_size)

    def measure(batch_size: int) -> float:
        return tasks.measure_translation(partial(translate_all, batch_size), mode_name, job)

    sizes = {"one by one": 1}
    if not mode.is_single:
        sizes = {f"batch {size}": size for size in tasks.candidate_batch_sizes(job)}
    return BestSetting(measure, sizes, lower_is_better=mode.is_single)


def _token_name(token_id: int) -> str:
    return SPECIAL_TOKENS[token_id] if token_id < len(SPECIAL_TOKENS) else workload.spell_word(token_id)


def run_encoding(job: Job, channel: Channel) -> None:
    """Embed texts with BERT."""
    import ctranslate2
    from ctranslate2.converters.converter import Converter
    from ctranslate2.converters.transformers import BertLoader

    class VocabularyOnly:
        """The part of a tokenizer that the converter uses."""

        unk_token = "<unk>"
        bos_token = "<s>"
        eos_token = "</s>"

        def get_vocab(self) -> dict[str, int]:
            """Token ids by name."""
            return {_token_name(token_id): token_id for token_id in range(job.settings["size"]["vocab_size"])}

    class InMemoryConverter(Converter):
        """Converts a model that is not in a folder."""

        def _load(self) -> Any:
            model = build_bert(job, pooler=True)  # required by the converter, not used by embeddings
            model.config.position_embedding_type = "absolute"
            with torch.no_grad():
                return BertLoader()(model, VocabularyOnly())

    with tempfile.TemporaryDirectory() as temporary:
        folder = str(Path(temporary) / "model")
        InMemoryConverter().convert(folder)
        encoder = ctranslate2.Encoder(
            folder, device="cpu", compute_type=job.variant, inter_threads=1, intra_threads=job.threads
        )

    def forward(ids: Array, mask: Array) -> Array:
        rows = [row[:length].tolist() for row, length in zip(ids, mask.sum(1), strict=True)]
        return np.asarray(encoder.forward_batch(rows).last_hidden_state)

    channel.serve(build_encoding_measures(job, forward))
