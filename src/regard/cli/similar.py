"""`regard similar`: how alike two texts are, or which lines of a file are nearest to a text."""

from __future__ import annotations

from typing import Any

import click

from regard.cli.embed import EMBEDDING
from regard.cli.model_options import ENGINE, FOLDER
from regard.cli.options import Option, changed_settings, verb
from regard.cli.output import note, print_result
from regard.cli.texts import ENCODING, IN, TEXTS
from regard.config.inference import EmbeddingConfig
from regard.errors import UsageError

HELP = """Say how alike texts are: the cosine of their vectors, from -1 to 1.

Two texts are compared with each other; more, each with every other. With --among, each TEXT (or each line of --in)
is searched for among the lines of a file, whose vectors may be given too.

\b
  regard similar runs/adapted "A man is eating food." "A man is eating a piece of bread."
  regard similar runs/adapted "Who paints?" --among notes.txt --best 3
  regard similar runs/adapted --in questions.txt --among notes.txt --vectors notes.npy
"""


@verb(
    HELP,
    [
        FOLDER,
        TEXTS,
        IN,
        Option(["--among"], metavar="FILE", help="search among the lines of this file"),
        Option(["--vectors"], metavar="FILE", help="their vectors, as `regard embed --out` wrote them"),
        Option(["--best"], type=click.IntRange(1), default=5, help="how many of the nearest lines [default: 5]"),
        ENCODING,
        *EMBEDDING,
        *ENGINE,
    ],
)
def similar(
    context: click.Context,
    folder: str,
    texts: tuple[str, ...],
    source: str | None,
    among: str | None,
    vectors: str | None,
    best: int,
    encoding: str,
    as_json: bool,
    **computing: Any,
) -> None:
    """Compare texts."""
    from regard.config.data import ReadConfig
    from regard.data.ledger import read_lines

    reading = ReadConfig(encoding=encoding)
    if bool(texts) == bool(source):
        raise UsageError("give texts, or a file of them with --in" + (": not both" if texts else ""))
    if vectors and not among:
        raise UsageError("--vectors are those of the lines of --among: name that file too")
    given = read_lines(source, reading) if source else list(texts)
    if among is None and len(given) < 2:
        raise UsageError("one text alone is like nothing: give two, or a file to search with --among")
    lines = read_lines(among, reading) if among else []
    config = EmbeddingConfig().override(changed_settings(context, EmbeddingConfig))
    from regard.pipeline.embedding import nearest_neighbours
    from regard.pipeline.load import load_embedder

    model = load_embedder(folder, **computing)
    found = model.embed(given, config)
    account = found.truncation
    if among is None:
        near = nearest_neighbours(found.vectors, found.vectors, len(given))
        _give_pairs(given, near, as_json)
    else:
        known = _known(vectors, len(lines), found.vectors.shape[1], among) if vectors else None
        if known is None:
            searched = model.embed(lines, config)
            known, account = searched.vectors, account + searched.truncation
        _give_nearest(given, lines, nearest_neighbours(found.vectors, known, best), as_json)
    if account.truncated_texts:
        note(account.format())


def _known(path: str, count: int, width: int, among: str) -> Any:
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a file of vectors: {str(error).splitlines()[0]}") from None
    if found.shape != (count, width):
        raise UsageError(f"{path}: {list(found.shape)} numbers, but {among} has {count} lines and vectors have {width}")
    return found


def _give_pairs(texts: list[str], near: Any, as_json: bool) -> None:
    pairs = []
    for number, (others, cosines) in enumerate(zip(near.indices, near.similarities, strict=True)):
        pairs += [
            {"first": number, "second": int(other), "cosine": round(float(cosine), 6)}
            for other, cosine in zip(others, cosines, strict=True)
            if other > number
        ]
    pairs.sort(key=lambda pair: -pair["cosine"])
    shown = [f"{pair['cosine']:.4f}" for pair in pairs]
    if len(texts) > 2:
        shown = [f"{pair['cosine']:.4f}\t{texts[int(pair['first'])]}\t{texts[int(pair['second'])]}" for pair in pairs]
    print_result({"texts": texts, "pairs": pairs}, shown, as_json)


def _give_nearest(texts: list[str], lines: list[str], near: Any, as_json: bool) -> None:
    facts, shown = [], []
    for text, numbers, cosines in zip(texts, near.indices, near.similarities, strict=True):
        found = [
            {"line": int(number) + 1, "text": lines[number], "cosine": round(float(cosine), 6)}
            for number, cosine in zip(numbers, cosines, strict=True)
        ]
        facts.append({"text": text, "nearest": found})
        shown += [text] if len(texts) > 1 else []
        shown += [f"{one['cosine']:.4f}\t{one['line']}\t{one['text']}" for one in found]
    print_result(facts, shown, as_json)
