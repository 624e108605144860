"""QAMR as SQuAD JSON: the development file trains, the test file tests; answers in one piece only."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from folders import folders, lines_of, write_json

SPLITS = {"dev": "train", "test": "test"}
SIGNS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "``": '"', "''": '"'}


def answer(tokens: Sequence[str], places: str) -> dict[str, object] | None:
    numbers = sorted({int(place) for place in places.split()})
    if not numbers or numbers[-1] - numbers[0] + 1 != len(numbers):
        return None
    start = sum(len(token) + 1 for token in tokens[: numbers[0]])
    return {"text": " ".join(tokens[numbers[0] : numbers[-1] + 1]), "answer_start": start}


def articles(path: Path, sentences: dict[str, list[str]]) -> list[dict[str, object]]:
    questions: dict[str, list[dict[str, object]]] = defaultdict(list)
    for line in lines_of(path):
        key, targets, worker, number, _, question, *given = line.split("\t")
        found = [answer(sentences[key], places.split(":")[-1]) for places in given]
        if answers := [one for one in found if one]:
            name = f"{key}/{targets}/{worker}/{number}"
            questions[key].append({"id": name, "question": question, "answers": answers})
    return [
        {"title": key, "paragraphs": [{"context": " ".join(sentences[key]), "qas": found}]}
        for key, found in questions.items()
    ]


if __name__ == "__main__":
    source, target = folders(__doc__)
    rows = (line.split("\t") for line in lines_of(source / "wiki-sentences.tsv.gz"))
    sentences = {key: [SIGNS.get(token, token) for token in text.split(" ")] for key, text in rows}
    for theirs, ours in SPLITS.items():
        write_json(
            target / f"{ours}.json", {"version": "1.1", "data": articles(source / f"{theirs}.tsv.gz", sentences)}
        )
