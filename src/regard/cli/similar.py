"""`regard similar`: semantic similarity of texts, and semantic search in the lines of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from regard.cli.embed import EMBEDDING_MODELS, EMBEDDING_OPTIONS
from regard.cli.model_options import ENGINE_OPTIONS, MODEL_ARGUMENT
from regard.cli.options import Option, changed_settings, verb
from regard.cli.output import note, print_result
from regard.cli.texts import ENCODING, IN, TEXTS
from regard.config.inference import EmbeddingConfig
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.pipeline.embedding import NeighbourDict, Neighbours, NeighboursDict, SimilarityDict, SimilarPairDict

HELP = f"""Compute the similarity of texts: the cosine of their embeddings, from -1 to 1.

{EMBEDDING_MODELS}

Two texts are compared with each other; more texts are compared pairwise. With --corpus, find the lines of a file that
are nearest to each TEXT (or to each line of --in); --vectors reuses their embeddings.

\b
  regard similar sentence-transformers/all-MiniLM-L6-v2 "A man is eating food." "A man is eating a piece of bread."
  regard similar runs/adapted "Who paints?" --corpus notes.txt --top-k 3
  regard similar runs/adapted --in questions.txt --corpus notes.txt --vectors notes.npy
"""


@verb(
    HELP,
    [
        MODEL_ARGUMENT,
        TEXTS,
        IN,
        Option(["--corpus"], metavar="FILE", help="Search the lines of this file."),
        Option(["--vectors"], metavar="FILE", help="Embeddings of the corpus, written by `regard embed --out`."),
        Option(["--top-k"], type=click.IntRange(1), default=5, help="Nearest lines to print per text. [default: 5]"),
        ENCODING,
        *(option for option in EMBEDDING_OPTIONS if option.opts[0] != "--normalize"),  # a cosine has no length
        *ENGINE_OPTIONS,
    ],
    output=["regard.pipeline.embedding:SimilarityDict", "regard.pipeline.embedding:NeighboursDict"],
)
def similar(
    context: click.Context,
    folder: str,
    texts: tuple[str, ...],
    source: str | None,
    corpus: str | None,
    vectors: str | None,
    top_k: int,
    encoding: str,
    as_json: bool,
    **load_options: Any,
) -> None:
    """Compare texts with each other or with the lines of a file."""
    from regard.config.data import ReadConfig
    from regard.data.ledger import read_texts

    read_config = ReadConfig(encoding=encoding)
    if bool(texts) == bool(source):
        raise UsageError("pass texts as arguments, or a file of them with --in" + (": not both" if texts else ""))
    if vectors and not corpus:
        raise UsageError("--vectors are the embeddings of the lines of --corpus: name that file too")
    queries = read_texts(source, read_config) if source else list(texts)
    if corpus is None and len(queries) < 2:
        raise UsageError("one text cannot be compared: pass two, or a file to search with --corpus")
    lines = read_texts(corpus, read_config) if corpus else []
    config = EmbeddingConfig().override(changed_settings(context, EmbeddingConfig))
    from regard.pipeline.embedding import nearest_neighbours
    from regard.pipeline.load import load_embedder

    model = load_embedder(folder, **load_options)
    query_embeddings = model.embed(queries, config)
    query_vectors = query_embeddings.vectors
    truncation = query_embeddings.truncation
    if corpus is None:
        _print_pairs(queries, nearest_neighbours(query_vectors, query_vectors, len(queries)), as_json)
    else:
        if vectors:
            line_vectors = _read_vectors(vectors, (len(lines), query_vectors.shape[1]), corpus)
        else:
            line_embeddings = model.embed(lines, config)
            line_vectors = line_embeddings.vectors
            truncation = truncation + line_embeddings.truncation
        _print_nearest(queries, lines, nearest_neighbours(query_vectors, line_vectors, top_k), as_json)
    if truncation.truncated_texts:
        note(truncation.format())


def _read_vectors(path: str, shape: tuple[int, int], corpus: str) -> Any:
    """Read the embeddings of the corpus lines and check their shape."""
    import numpy as np

    try:
        vectors = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a NumPy file of embeddings: {str(error).splitlines()[0]}") from None
    if vectors.shape != shape:
        num_lines, embedding_size = shape
        raise UsageError(
            f"{path}: the array has shape {list(vectors.shape)}, but {corpus} has {num_lines} lines and the model's "
            f"embeddings have size {embedding_size}: embed {corpus} again with this model"
        )
    return vectors


def _print_pairs(texts: list[str], neighbours: Neighbours, as_json: bool) -> None:
    """Print every pair of texts, the most similar first."""
    pairs: list[SimilarPairDict] = []
    for first, (indices, cosines) in enumerate(zip(neighbours.indices, neighbours.similarities, strict=True)):
        for second, cosine in zip(indices, cosines, strict=True):
            if second > first:
                pairs.append({"first": first, "second": int(second), "similarity": round(float(cosine), 6)})
    pairs.sort(key=lambda pair: -pair["similarity"])
    lines = []
    for pair in pairs:
        line = f"{pair['similarity']:.4f}"
        if len(texts) > 2:
            line += f"\t{texts[pair['first']]}\t{texts[pair['second']]}"
        lines.append(line)
    result: SimilarityDict = {"texts": texts, "pairs": pairs}
    print_result(result, lines, as_json)


def _print_nearest(queries: list[str], corpus_lines: list[str], neighbours: Neighbours, as_json: bool) -> None:
    """Print the nearest lines of each query."""
    for query, indices, cosines in zip(queries, neighbours.indices, neighbours.similarities, strict=True):
        nearest: list[NeighbourDict] = [
            {"line": int(index) + 1, "text": corpus_lines[index], "similarity": round(float(cosine), 6)}
            for index, cosine in zip(indices, cosines, strict=True)
        ]
        result: NeighboursDict = {"text": query, "neighbours": nearest}
        lines = [query] if len(queries) > 1 else []
        lines += [f"{line['similarity']:.4f}\t{line['line']}\t{line['text']}" for line in nearest]
        print_result(result, lines, as_json)
