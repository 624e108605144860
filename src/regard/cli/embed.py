"""`regard embed`: vectors of texts."""

from __future__ import annotations

from typing import Any

import click

from regard.cli.model_options import ENGINE
from regard.cli.options import changed_settings, knob_options
from regard.cli.output import json_line, note, print_result, show_progress, write_array
from regard.cli.texts import TextInput, text_verb
from regard.config.inference import EmbeddingConfig
from regard.errors import UsageError

HELP = """Make one vector of TEXT, of each line of a file, or of standard input line by line.

FOLDER is an encoder's: a run, a folder of bert, distilbert, roberta or xlm-roberta from elsewhere, or the name of a
published one. --out is a NumPy file; without it each vector is a line of numbers.

\b
  regard embed runs/adapted --in texts.txt --out vectors.npy
  regard embed sentence-transformers/all-MiniLM-L6-v2 "A quiet triumph." --json
"""
EMBEDDING = knob_options(EmbeddingConfig, section="Vectors")


@text_verb(HELP, [*EMBEDDING, *ENGINE])
def embed(context: click.Context, folder: str, given: TextInput, **computing: Any) -> None:
    """Make vectors of what was given."""
    import numpy as np

    out = given.out
    if out and not out.endswith(".npy"):
        raise UsageError(f"{out}: vectors are written as a NumPy file: name it *.npy")
    config = EmbeddingConfig().override(changed_settings(context, EmbeddingConfig))
    waiting, total = given.windows()
    from regard.pipeline.load import load_embedder

    model = load_embedder(folder, **computing)
    accounts, windows = [], 0
    made: list[Any] = []

    def each() -> Any:
        nonlocal windows
        for window in waiting:
            found = model.embed(window, config)
            accounts.append(found.truncation)
            windows += found.windows
            yield list(zip(window, found.vectors, strict=True))

    shown = show_progress(each(), total, "texts") if out and total else (row for rows in each() for row in rows)
    for number, (text, vector) in enumerate(shown):
        if out:
            made.append(vector)
        elif given.as_json:
            print(json_line({"number": number, "text": text, "vector": [round(float(one), 7) for one in vector]}))
        else:
            print(" ".join(f"{one:.6g}" for one in vector), flush=True)
    account = sum(accounts[1:], accounts[0]) if accounts else None
    if out:
        vectors = np.stack(made) if made else np.zeros((0, model.embedding_size), np.float32)
        write_array(out, vectors)
        facts = {"file": out, "texts": len(vectors), "width": int(vectors.shape[1]), "windows": windows}
        facts |= {"truncation": _truncation_counts(account) if account else None}
        print_result(facts, [f"{out}: {len(vectors):,} vectors of {vectors.shape[1]} numbers"], given.as_json)
    if account is not None:
        note(account.format() + (f"; {windows:,} more windows were made of long texts" if windows else ""))


def _truncation_counts(report: Any) -> dict[str, int]:
    """Counts of a `TruncationReport` under the keys of this command's JSON."""
    return {
        "texts": report.texts,
        "tokens": report.tokens,
        "cut_texts": report.truncated_texts,
        "cut_tokens": report.truncated_tokens,
        "max_length": report.max_length,
    }
