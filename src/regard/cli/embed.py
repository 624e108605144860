"""`regard embed`: embeddings of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from regard.cli.model_options import ENGINE_OPTIONS
from regard.cli.options import changed_settings, knob_options
from regard.cli.output import json_line, note, print_result, show_progress, write_array
from regard.cli.texts import TextInput, text_verb
from regard.config.inference import EmbeddingConfig
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.pipeline.embedding import EmbeddingDict, EmbeddingPipeline
    from regard.text.special_tokens import TruncationReport

EMBEDDING_MODELS = """MODEL is an encoder: a run, a Hugging Face folder of bert, distilbert, roberta, xlm-roberta,
big_bird, electra, albert or modernbert, also one of sentence-transformers, or the name of a model on the hub."""
HELP = f"""Compute an embedding of TEXT, of each line of a file, or of standard input line by line.

{EMBEDDING_MODELS}

--out is a NumPy file; without it each embedding is printed as a line of values.

\b
  regard embed runs/adapted --in texts.txt --out vectors.npy
  regard embed sentence-transformers/all-MiniLM-L6-v2 "A quiet triumph." --json
"""
EMBEDDING_OPTIONS = knob_options(EmbeddingConfig, section="Embeddings")


@text_verb(
    HELP,
    [*EMBEDDING_OPTIONS, *ENGINE_OPTIONS],
    json_help="Print one JSON object per input text; with --out, one about the file of embeddings.",
    output=["regard.pipeline.embedding:EmbeddingDict", "regard.pipeline.embedding:EmbeddingFileDict"],
)
def embed(context: click.Context, folder: str, inputs: TextInput, **load_options: Any) -> None:
    """Print or write the embedding of each text."""
    if inputs.out and not inputs.out.endswith(".npy"):
        raise UsageError(f"{inputs.out}: embeddings are written as a NumPy file: name it *.npy")
    config = EmbeddingConfig().override(changed_settings(context, EmbeddingConfig))
    windows, total = inputs.windows()
    from regard.pipeline.load import load_embedder

    stream = _EmbeddingStream(load_embedder(folder, **load_options), config)
    batches = stream.embed_windows(windows)
    if inputs.out:
        _write_embeddings(inputs, stream, show_progress(batches, total, "texts") if total else _flatten(batches))
    else:
        _print_embeddings(_flatten(batches), inputs.as_json)
    if stream.truncation is not None:
        num_windows = stream.num_windows
        extra = f"; {num_windows:,} additional windows of long texts" if num_windows else ""
        note(stream.truncation.format() + extra)


class _EmbeddingStream:
    """Embeds windows of texts and adds up their truncation reports."""

    def __init__(self, model: EmbeddingPipeline, config: EmbeddingConfig) -> None:
        self.model = model
        self.config = config
        self.truncation: TruncationReport | None = None  # None before the first window
        self.num_windows = 0  # additional windows of long texts

    def embed_windows(self, windows: Iterable[Sequence[str]]) -> Iterator[list[tuple[str, Any]]]:
        """Yield the texts of each window with their embeddings."""
        for window in windows:
            embeddings = self.model.embed(window, self.config)
            if self.truncation is None:
                self.truncation = embeddings.truncation
            else:
                self.truncation = self.truncation + embeddings.truncation
            self.num_windows += embeddings.windows
            yield list(zip(window, embeddings.vectors, strict=True))


def _flatten(batches: Iterator[list[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
    for batch in batches:
        yield from batch


def _print_embeddings(pairs: Iterator[tuple[str, Any]], as_json: bool) -> None:
    for text, vector in pairs:
        if as_json:
            result: EmbeddingDict = {"text": text, "vector": [round(float(x), 7) for x in vector]}
            print(json_line(result), flush=True)
        else:
            print(" ".join(f"{x:.6g}" for x in vector), flush=True)


def _write_embeddings(inputs: TextInput, stream: _EmbeddingStream, pairs: Iterator[tuple[str, Any]]) -> None:
    """Write all embeddings as one array and report its shape."""
    import numpy as np

    assert inputs.out is not None
    vectors = [vector for _, vector in pairs]
    array = np.stack(vectors) if vectors else np.zeros((0, stream.model.embedding_size), np.float32)
    write_array(inputs.out, array)
    num_texts, embedding_size = array.shape
    result = {
        "out": inputs.out,
        "texts": num_texts,
        "embedding_size": embedding_size,
        "windows": stream.num_windows,
        "truncation": stream.truncation.to_dict() if stream.truncation is not None else None,
    }
    print_result(result, [f"{inputs.out}: {num_texts:,} embeddings of size {embedding_size}"], inputs.as_json)
