"""Small files of training data for every task, with the same sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

SENTENCES = tuple(f"the w{index % 7} was {word}" for index in range(30) for word in ("lovely", "dull"))


def write_data(folder: Path, task: str, sentences: Sequence[str] = SENTENCES) -> Path:
    """Write a small file of training data for a task; the last word of a sentence is its label or answer."""
    if task == "translate":
        content = "".join(f"{sentence}\t{sentence.upper()}\n" for sentence in sentences)
    elif task == "classify":
        content = "".join(f"{sentence}\t{sentence.split()[-1]}\n" for sentence in sentences)
    elif task == "tag":
        rows = ["\n".join(f"{word}\t{'B-x' if word == 'dull' else 'O'}" for word in text.split()) for text in sentences]
        content = "\n\n".join(rows) + "\n"
    elif task == "answer":
        answers = [{"text": sentence.split()[-1], "answer_start": sentence.rindex(" ") + 1} for sentence in sentences]
        paragraphs = [
            {"context": sentence, "qas": [{"id": str(index), "question": "was w1", "answers": [answer]}]}
            for index, (sentence, answer) in enumerate(zip(sentences, answers, strict=True))
        ]
        content = json.dumps({"data": [{"paragraphs": paragraphs}]})
    else:
        content = "\n".join(sentences)
    suffixes = {"answer": ".json", "translate": ".tsv", "classify": ".tsv"}
    path = folder / f"data{suffixes.get(task, '.txt')}"
    path.write_text(content, "utf-8")
    return path
