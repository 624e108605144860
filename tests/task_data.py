"""A small data file for every task, and an encoder to fine-tune."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.encoders import saved_encoder
from tests.stories import write

WORDS = "ada alan grace went saw liked the big old red house tree river in near by London".split()


def write_task_data(folder: Path) -> Path:
    """Write pairs.csv, labels.csv, texts.txt, tags.conll, squad.json, walks.txt and the folder encoder."""
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=6)) for _ in range(80)]
    pairs = [f"{text},{' '.join(reversed(text.split()))}\n" for text in texts]
    (folder / "pairs.csv").write_text("source,target\n" + "".join(pairs))
    (folder / "labels.csv").write_text("text,label\n" + "".join(f"{text},{'ada' in text}\n" for text in texts))
    (folder / "texts.txt").write_text("\n".join(texts))
    sentences = ["".join(f"{word} {'B-X' if word.istitle() else 'O'}\n" for word in text.split()) for text in texts]
    (folder / "tags.conll").write_text("\n".join(sentences))
    questions = [{"id": str(n), "question": "who?", "answers": [{"text": "ada", "answer_start": 0}]} for n in range(40)]
    passages = [{"context": f"ada {text}", "qas": [question]} for text, question in zip(texts, questions, strict=False)]
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": passages}]}))
    write(folder, "walks.txt", 40, seed=1)
    saved_encoder(folder / "encoder", texts)
    return folder
