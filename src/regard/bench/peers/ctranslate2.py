"""CTranslate2: translation with all threads in one worker or with workers of one thread, and vectors from BERT."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.bench import translation as translating
from regard.bench import work
from regard.bench.child import Best, Job, Turns
from regard.bench.peers import Peer
from regard.bench.peers.bert import Arrays, bert, encoder_tasks
from regard.text.tokenizer import SPECIALS

WORKERS = "one-thread workers"
PEER = Peer(
    "ctranslate2",
    {"ctranslate2": "ctranslate2"},
    {
        "translation": ("float32", "int8", f"int8 {WORKERS}", f"float32 {WORKERS}"),
        "encoding": ("float32", "int8"),
    },
    quick={"translation": (f"int8 {WORKERS}",)},
)


def translation(job: Job, turns: Turns) -> None:
    """Translate; a lone sentence has one thread where workers have one."""
    import ctranslate2

    several = job.variant.endswith(WORKERS)
    translator = ctranslate2.Translator(
        str(translating.folder(job, "ctranslate2")),
        device="cpu",
        compute_type=job.variant.split()[0],
        inter_threads=job.threads if several else 1,
        intra_threads=1 if several else job.threads,
    )

    def translate(rows: Sequence[Sequence[int]], beam: int, size: int) -> None:
        jobs = [
            translator.translate_batch(
                [[_name(number) for number in row] for row in part],
                beam_size=beam,
                min_decoding_length=count,
                max_decoding_length=count,
                max_batch_size=0,
                asynchronous=True,
            )
            for part, count in translating.batches(rows, size)
        ]
        for found in (one.result() for part in jobs for one in part):
            assert found.hypotheses[0], "nothing was written"

    turns.serve({name: _translating(job, name, translate) for name in job.facts["tasks"]})


def _translating(job: Job, name: str, translate: Any) -> Best[int]:
    beam, lone = translating.TASKS[name]
    rows = translating.rows(job, name)

    def run(size: int) -> float:
        if lone:
            return translating.value(lambda: [translate([row], beam, 1) for row in rows], name, job)
        return translating.value(partial(translate, rows, beam, size), name, job)

    sizes = {"one by one": 1} if lone else {f"batch {size}": size for size in translating.batch_sizes(job)}
    return Best(run, sizes, less=lone)


def _name(number: int) -> str:
    return SPECIALS[number] if number < len(SPECIALS) else work.word(number)


def encoding(job: Job, turns: Turns) -> None:
    """Turn texts into vectors by BERT."""
    import ctranslate2
    from ctranslate2.converters.converter import Converter
    from ctranslate2.converters.transformers import BertLoader

    class Names:
        """As much of a tokenizer as the converter asks for."""

        unk_token, bos_token, eos_token = "<unk>", "<s>", "</s>"

        def get_vocab(self) -> dict[str, int]:
            """Return every name with its number."""
            return {_name(number): number for number in range(job.facts["size"]["vocabulary"])}

    class InMemory(Converter):
        """Converts a model that is no folder."""

        def _load(self) -> Any:
            model = bert(job, pooler=True)  # the converter looks for one; vectors do not use it
            model.config.position_embedding_type = "absolute"
            with torch.no_grad():
                return BertLoader()(model, Names())

    with tempfile.TemporaryDirectory() as room:
        folder = str(Path(room) / "model")
        InMemory().convert(folder)
        encoder = ctranslate2.Encoder(
            folder, device="cpu", compute_type=job.variant, inter_threads=1, intra_threads=job.threads
        )

    def forward(ids: Arrays, mask: Arrays) -> Arrays:
        rows = [row[:count].tolist() for row, count in zip(ids, mask.sum(1), strict=True)]
        return np.asarray(encoder.forward_batch(rows).last_hidden_state)

    turns.serve(encoder_tasks(job, forward))
