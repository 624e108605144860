"""QAMR as SQuAD JSON: the development file trains, the test file tests; only answers that are one span are kept."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from dataset_io import parse_folders, read_lines, write_json

SPLITS = {"dev": "train", "test": "test"}  # name of the published file → ours
TREEBANK_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "``": '"', "''": '"'}


def read_sentences(path: Path) -> dict[str, list[str]]:
    sentences = {}
    for line in read_lines(path):
        key, text = line.split("\t")
        sentences[key] = [TREEBANK_ESCAPES.get(token, token) for token in text.split(" ")]
    return sentences


def answer_span(tokens: Sequence[str], positions: str) -> dict[str, object] | None:
    """Build the SQuAD answer of space-separated token positions, or None where they are not contiguous."""
    indices = sorted({int(position) for position in positions.split()})
    if not indices or indices[-1] - indices[0] + 1 != len(indices):
        return None
    start = sum(len(token) + 1 for token in tokens[: indices[0]])
    return {"text": " ".join(tokens[indices[0] : indices[-1] + 1]), "answer_start": start}


def read_articles(path: Path, sentences: dict[str, list[str]]) -> list[dict[str, object]]:
    questions: dict[str, list[dict[str, object]]] = defaultdict(list)
    for line in read_lines(path):
        key, targets, worker, question_number, _, question, *annotations = line.split("\t")
        spans = [answer_span(sentences[key], annotation.split(":")[-1]) for annotation in annotations]
        answers = [span for span in spans if span]
        if answers:
            question_id = f"{key}/{targets}/{worker}/{question_number}"
            questions[key].append({"id": question_id, "question": question, "answers": answers})
    return [
        {"title": key, "paragraphs": [{"context": " ".join(sentences[key]), "qas": key_questions}]}
        for key, key_questions in questions.items()
    ]


if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    sentences = read_sentences(source / "wiki-sentences.tsv.gz")
    for published_split, split in SPLITS.items():
        articles = read_articles(source / f"{published_split}.tsv.gz", sentences)
        write_json(target / f"{split}.json", {"version": "1.1", "data": articles})
