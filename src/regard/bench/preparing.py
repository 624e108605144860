"""Regard before the first update, as a contestant: files to batches, and long runs of awkward characters to tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from regard.bench import work
from regard.bench.child import Job, Turns, Value, seconds
from regard.config.data import ReadConfig, TokenizerConfig
from regard.data.batching import epoch_batches
from regard.data.sources import read_pairs
from regard.tasks.translation import Languages
from regard.text.learn import learn
from regard.text.sentences import split_sentences

KINDS = [" ", "a", "\u0301", "👩\u200d", "א", "語", "7", ".", "a ", "\t", "é1 ", "A b. ", "?!", "Mr. "]
BUDGET = 4096  # tokens of a batch


def corpus(job: Job, turns: Turns) -> None:
    """Read pairs, learn a tokenizer from them, turn them into tokens and cut one epoch's batches."""
    pairs = work.pairs(job.facts["pairs"], job.facts["size"]["vocabulary"])
    sides = [work.texts_of([pair[side] for pair in pairs]) for side in (0, 1)]
    with tempfile.TemporaryDirectory() as room:
        path = Path(room) / "pairs.tsv"
        path.write_text("".join(f"{one}\t{other}\n" for one, other in zip(*sides, strict=True)), encoding="utf-8")
        del pairs, sides
        turns.serve({"corpus": lambda: seconds(partial(_prepared, path))})


def _prepared(path: Path) -> None:
    pairs = read_pairs((str(path),), ReadConfig())
    tokenizer = learn([*pairs.source, *pairs.target], TokenizerConfig())
    examples = Languages(tokenizer, tokenizer).examples(pairs)
    epoch_batches(examples.lengths, budget=BUDGET, seed=1, epoch=0, digest=pairs.digest)


def text(job: Job, turns: Turns) -> None:
    """Tokenise and split long runs of one kind of characters; the slowest kind counts."""
    tokenizer = learn(["the quick brown fox jumps over the lazy dog 123"] * 50, TokenizerConfig())
    letters = job.facts["letters"]

    def slowest(run: Callable[[str], object]) -> Value:
        taken = {kind: seconds(partial(run, kind * (letters // len(kind)))) for kind in KINDS}
        worst = max(taken, key=lambda kind: taken[kind])
        return Value(taken[worst], f"slowest: {worst!a}")

    turns.serve(
        {
            "tokenise": partial(slowest, lambda given: tokenizer.encode_all([given])),
            "split": partial(slowest, split_sentences),
        }
    )
