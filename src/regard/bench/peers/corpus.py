"""The training pairs as files, for libraries that read and batch them themselves."""

from __future__ import annotations

from pathlib import Path

from regard.bench import work
from regard.bench.child import Job
from regard.text.tokenizer import SPECIALS

HELD_OUT = 50  # pairs that are also the validation data, which nobody looks at


def write_corpus(job: Job, folder: Path) -> list[str]:
    """Write `train.src`, `train.trg`, `dev.src` and `dev.trg`, and return all words."""
    pairs = work.pairs(work.POOL, job.facts["size"]["vocabulary"])
    for side, ending in enumerate(("src", "trg")):
        lines = work.texts_of([pair[side] for pair in pairs])
        for name, some in (("train", lines), ("dev", lines[:HELD_OUT])):
            (folder / f"{name}.{ending}").write_text("".join(f"{line}\n" for line in some), encoding="utf-8")
    return [work.word(number) for number in range(len(SPECIALS), job.facts["size"]["vocabulary"])]
