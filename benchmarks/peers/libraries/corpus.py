"""The training pairs as files, for libraries that read and batch them themselves."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers import workload
from benchmarks.peers.worker import Job

VALIDATION_PAIRS = 50  # of the training pairs; no library evaluates them


def write_corpus(job: Job, folder: Path) -> list[str]:
    """Write `train.src`, `train.trg`, `dev.src` and `dev.trg`; return all words of the vocabulary."""
    vocab_size = job.settings["size"]["vocab_size"]
    pairs = workload.draw_pairs(workload.POOL_PAIRS, vocab_size)
    sides = {"src": [source for source, _ in pairs], "trg": [target for _, target in pairs]}
    for suffix, rows in sides.items():
        lines = [f"{text}\n" for text in workload.spell_rows(rows)]
        (folder / f"train.{suffix}").write_text("".join(lines), encoding="utf-8")
        (folder / f"dev.{suffix}").write_text("".join(lines[:VALIDATION_PAIRS]), encoding="utf-8")
    return [workload.spell_word(token_id) for token_id in range(workload.FIRST_WORD_ID, vocab_size)]
