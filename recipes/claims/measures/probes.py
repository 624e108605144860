"""What the layers of a model encode: linear probes, as `regard probe` trains them."""

from __future__ import annotations

from pathlib import Path

from recipes.claims.measure import Measurement, Subject
from regard.checkpoint.atomic import write_file
from regard.config.data import ReadConfig
from regard.data.conll import conll_lines
from regard.data.pairs import read_pairs
from regard.report.probes import run_probes

PLAIN_TAG = "O"  # of words whose position is the target


def probe(subject: Subject, *, target: str, sample: int = 600) -> Measurement:
    """R² of a linear probe of each layer for the position or the depth of words.

    The numbers are `layer_0` (the embeddings), `layer_1` and so on; `embeddings` and `last` are those of the first and
    the last layer, `best` is the highest one. Words are those of the test data: tagged ones, or the sources of pairs.
    """
    report = run_probes(str(subject.folder), [str(_word_file(subject))], target, sample=sample, threads=subject.threads)
    scores = [layer.score.mean for layer in report.result.layers]
    numbers = {f"layer_{index}": score for index, score in enumerate(scores)}
    numbers |= {"embeddings": scores[0], "last": scores[-1], "best": max(scores)}
    return Measurement(numbers, curve=tuple((float(index), score) for index, score in enumerate(scores)))


def _word_file(subject: Subject) -> Path:
    """Test data in CoNLL columns."""
    assert subject.data is not None
    file = Path(subject.data.test[0])
    if file.suffix == ".conll":
        return file
    sentences = [source.split() for source in read_pairs(subject.data.test, ReadConfig()).source]
    target = subject.folder.with_name(f"{subject.folder.name}-words.conll")
    lines = conll_lines((words, [PLAIN_TAG] * len(words)) for words in sentences)
    write_file(target, "".join(f"{line}\n" for line in lines).encode())
    return target
