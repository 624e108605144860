"""The same fine-tuning by Hugging Face's Trainer: same weights, same data, same passes, its own defaults otherwise.

Texts of like length go together, which makes it quicker and changes nothing of what it learns; in bf16 if asked.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.passages import Asked, hold_out_questions, read_questions
from regard.data.tagged import Sentence, hold_out_sentences, read_tagged
from regard.tasks.entities import entities, entity_scores
from regard.tasks.spans import LONGEST_ANSWER, answer_scores

IGNORED = -100  # a label that no loss is over
LENGTH, OVERLAP = 384, 128
RATE, BATCH = 5e-5, 16


def _trained(model: Any, rows: Any, collator: Any, passes: float, seed: int, folder: str, bf16: bool) -> Any:
    from transformers import Trainer, TrainingArguments

    known = inspect.signature(TrainingArguments.__init__).parameters
    grouped = {"train_sampling_strategy": "group_by_length", "group_by_length": True}  # the newer and the older name
    settings = TrainingArguments(
        folder,
        **{name: value for name, value in grouped.items() if name in known},
        bf16=bf16,
        learning_rate=RATE,
        per_device_train_batch_size=BATCH,
        num_train_epochs=passes,
        seed=seed,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, settings, train_dataset=rows, data_collator=collator)
    trainer.train()
    for name in grouped.keys() & known.keys():  # else it reorders what it is asked, too
        setattr(trainer.args, name, known[name].default)
    return trainer


def _valid(tags: Sequence[str]) -> list[str]:
    """Return tags whose entities all begin, as its own examples read them: an inside without beginning begins one."""
    made: list[str] = []
    for tag in tags:
        before = made[-1] if made else "O"
        made.append(f"B-{tag[2:]}" if tag.startswith("I-") and before[2:] != tag[2:] else tag)
    return made


def tagged(folder: str, train: Path, test: Path, passes: int, seed: int, bf16: bool = False) -> float:
    """Return the strict entity F1 on the test file; the same sentences are held out and left unused."""
    from transformers import (
        AutoModelForTokenClassification,
        AutoTokenizer,
        DataCollatorForTokenClassification,
        set_seed,
    )

    set_seed(seed)
    whole = read_tagged([train])
    names = whole.tags
    learned, asked = hold_out_sentences(whole)[0].sentences, read_tagged([test]).sentences
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def row(sentence: Sentence) -> dict[str, Any]:
        made = tokenizer(list(sentence.words), is_split_into_words=True, truncation=True)
        words = made.word_ids()
        first = [word is not None and word not in words[:place] for place, word in enumerate(words)]
        labels = [names.index(sentence.tags[word]) if one else IGNORED for word, one in zip(words, first, strict=True)]
        return {**{key: made[key] for key in ("input_ids", "attention_mask")}, "labels": labels}

    model = AutoModelForTokenClassification.from_pretrained(folder, num_labels=len(names))
    collator = DataCollatorForTokenClassification(tokenizer)
    with tempfile.TemporaryDirectory() as place:
        trainer = _trained(model, [row(one) for one in learned], collator, passes, seed, place, bf16)
        found = trainer.predict([row(one) for one in asked])
    said = []
    for sentence, scores, labels in zip(asked, found.predictions.argmax(2), found.label_ids, strict=True):
        tags = [names[number] for number in scores[labels != IGNORED]]
        said.append(_valid([*tags, *["O"] * (len(sentence.words) - len(tags))]))
    assert all(entities(tags) is not None for tags in said)
    return entity_scores(said, [list(one.tags) for one in asked])["f1"]


def answered(
    folder: str, train: Sequence[Path], tests: Sequence[Path], passes: int, seed: int, bf16: bool = False
) -> list[dict[str, float]]:
    """Return F1 and exact match on each test file, by windows and the best span over them."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer, DataCollatorWithPadding, set_seed

    set_seed(seed)
    learned = hold_out_questions(read_questions(train))[0].asked
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def rows(found: Sequence[Asked], learns: bool) -> tuple[list[dict[str, Any]], list[tuple[int, list[Any]]]]:
        made, places = [], []
        for number, one in enumerate(found):
            read = tokenizer(
                one.question,
                one.passage,
                truncation="only_second",
                max_length=LENGTH,
                stride=OVERLAP,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            for turn in range(len(read["input_ids"])):
                sides = read.sequence_ids(turn)
                spans = [
                    span if side == 1 else None for span, side in zip(read["offset_mapping"][turn], sides, strict=True)
                ]
                places.append((number, spans))
                row = {key: read[key][turn] for key in ("input_ids", "token_type_ids", "attention_mask")}
                if learns:
                    start, stop = _target(one, spans)
                    row |= {"start_positions": start, "end_positions": stop}
                made.append(row)
        return made, places

    model = AutoModelForQuestionAnswering.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as place:
        trainer = _trained(model, rows(learned, True)[0], DataCollatorWithPadding(tokenizer), passes, seed, place, bf16)
        return [_scored(trainer, read_questions([test]).asked, rows) for test in tests]


def _scored(trainer: Any, asked: Sequence[Asked], rows: Callable[..., Any]) -> dict[str, float]:
    given, places = rows(asked, False)
    starts, stops = trainer.predict(given).predictions
    best = [(-np.inf, "")] * len(asked)
    for (number, spans), start, stop in zip(places, starts, stops, strict=True):
        inside = [at for at, span in enumerate(spans) if span is not None]
        for first in sorted(inside, key=lambda at: -start[at])[:20]:
            for last in sorted(inside, key=lambda at: -stop[at])[:20]:
                score = float(start[first] + stop[last])
                if first <= last < first + LONGEST_ANSWER and score > best[number][0]:
                    best[number] = score, asked[number].passage[spans[first][0] : spans[last][1]]
    return answer_scores([text for _, text in best], asked)


def _target(asked: Asked, spans: Sequence[Any]) -> tuple[int, int]:
    """Return the tokens that the first answer begins and ends with; 0 where it is not in this window."""
    if not asked.answers:
        return 0, 0
    start, text = asked.answers[0]
    stop = start + len(text)
    inside = [at for at, span in enumerate(spans) if span is not None and span[0] < stop and span[1] > start]
    whole = inside and spans[inside[0]][0] <= start and spans[inside[-1]][1] >= stop
    return (inside[0], inside[-1]) if whole else (0, 0)
