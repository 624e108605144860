"""Published data sets converted to files that Regard reads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

SPLIT_FILES = {"train": "train", "valid": "dev", "test": "test"}  # split → file name in SST-2 and WNUT-17


def convert_trec(source: Path, target: Path) -> Path:
    """Convert TREC's "label question" lines in ISO-8859-1 to text and label in UTF-8."""
    rows = [line.split(" ", 1) for line in source.read_text("iso-8859-1").splitlines()]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(f"{text.strip()}\t{label}\n" for label, text in rows), "utf-8")
    return target


def write_entity_types(source: Path, target: Path) -> Path:
    """Write tagged sentences with the types of entities that each contains: none, one or several."""
    from regard.data.conll import read_tagged

    rows = []
    for sentence in read_tagged([source]).sentences:
        types = sorted({tag.split("-", 1)[1] for tag in sentence.tags if "-" in tag})
        rows.append({"text": sentence.text, "label": types})
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return target


def convert_qamr(folder: Path, split: str, target: Path) -> Path:
    """Convert QAMR, whose answers are word indices, to SQuAD's format; only contiguous answers are kept."""
    with gzip.open(folder / "wiki-sentences.tsv.gz", "rt", encoding="utf-8") as file:
        contexts = dict(line.rstrip("\n").split("\t", 1) for line in file)
    questions: dict[str, list[dict[str, Any]]] = {}  # by context
    with gzip.open(folder / f"{split}.tsv.gz", "rt", encoding="utf-8") as file:
        for index, line in enumerate(file):
            cells = line.rstrip("\n").split("\t")
            words = contexts[cells[0]].split(" ")
            index_lists = [cells[6], *(cell.split(":", 1)[1] for cell in cells[7:9])]
            answers = [answer for text in index_lists if (answer := _contiguous_answer(words, text))]
            if answers:
                question = {"id": str(index), "question": cells[5], "answers": answers}
                questions.setdefault(cells[0], []).append(question)
    paragraphs = [{"context": contexts[name], "qas": entries} for name, entries in questions.items()]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"data": [{"title": split, "paragraphs": paragraphs}]}), "utf-8")
    return target


def _contiguous_answer(words: list[str], index_list: str) -> dict[str, Any] | None:
    """Answer made of the words at these indices; None where they have gaps."""
    indices = sorted({int(index) for index in index_list.split()})
    if not indices or indices != [*range(indices[0], indices[-1] + 1)]:
        return None
    start = len(" ".join([*words[: indices[0]], ""]))
    return {"text": " ".join(words[indices[0] : indices[-1] + 1]), "answer_start": start}
