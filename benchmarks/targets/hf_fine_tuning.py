"""The same fine-tuning by Hugging Face's Trainer: same weights, data and epochs, otherwise its defaults.

Texts of similar length are batched together, which makes it faster without changing what it learns; bf16 on request.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.conll import TaggedSentence, hold_out_sentences, read_tagged
from regard.data.squad import SquadExample, hold_out_questions, read_squad
from regard.tasks.entities import entity_scores, tag_spans
from regard.tasks.question_answering import MAX_ANSWER_TOKENS, answer_scores

IGNORED = -100  # label that transformers leaves out of the loss
MAX_LENGTH = 384  # tokens of a window
STRIDE = 128
LEARNING_RATE = 5e-5
BATCH_SIZE = 16
CANDIDATES = 20  # starts and ends of an answer that are combined

Span = tuple[int, int] | None  # characters of a token in the passage; None outside of it


def _run_trainer(model: Any, rows: Any, collator: Any, *, epochs: float, seed: int, folder: str, bf16: bool) -> Any:
    from transformers import Trainer, TrainingArguments

    known = inspect.signature(TrainingArguments.__init__).parameters
    grouping = {"train_sampling_strategy": "group_by_length", "group_by_length": True}  # the newer and the older name
    arguments = TrainingArguments(
        folder,
        **{name: value for name, value in grouping.items() if name in known},
        bf16=bf16,
        learning_rate=LEARNING_RATE,
        per_device_train_batch_size=BATCH_SIZE,
        num_train_epochs=epochs,
        seed=seed,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=rows, data_collator=collator)
    trainer.train()
    for name in grouping.keys() & known.keys():  # otherwise it reorders what it predicts as well
        setattr(trainer.args, name, known[name].default)
    return trainer


def _repair_tags(tags: Sequence[str]) -> list[str]:
    """Start an entity where an inside tag has no beginning, as the examples of transformers do."""
    repaired: list[str] = []
    for tag in tags:
        previous = repaired[-1] if repaired else "O"
        is_start = tag.startswith("I-") and previous[2:] != tag[2:]
        repaired.append(f"B-{tag[2:]}" if is_start else tag)
    return repaired


def train_tagger(
    pretrained: str, train_file: Path, test_file: Path, *, epochs: int, seed: int, bf16: bool = False
) -> float:
    """Strict entity F1 on the test file; the sentences that Regard holds out are left unused."""
    from transformers import (
        AutoModelForTokenClassification,
        AutoTokenizer,
        DataCollatorForTokenClassification,
        set_seed,
    )

    set_seed(seed)
    tagged = read_tagged([train_file])
    tag_names = tagged.tags
    train_sentences = hold_out_sentences(tagged)[0].sentences
    test_sentences = read_tagged([test_file]).sentences
    tokenizer = AutoTokenizer.from_pretrained(pretrained)

    def encode(sentence: TaggedSentence) -> dict[str, Any]:
        encoding = tokenizer(list(sentence.words), is_split_into_words=True, truncation=True)
        word_ids = encoding.word_ids()
        labels = [
            tag_names.index(sentence.tags[word]) if word is not None and word not in word_ids[:position] else IGNORED
            for position, word in enumerate(word_ids)
        ]
        return {
            "input_ids": encoding["input_ids"],
            "attention_mask": encoding["attention_mask"],
            "labels": labels,
        }

    model = AutoModelForTokenClassification.from_pretrained(pretrained, num_labels=len(tag_names))
    collator = DataCollatorForTokenClassification(tokenizer)
    train_rows = [encode(sentence) for sentence in train_sentences]
    with tempfile.TemporaryDirectory() as folder:
        trainer = _run_trainer(model, train_rows, collator, epochs=epochs, seed=seed, folder=folder, bf16=bf16)
        output = trainer.predict([encode(sentence) for sentence in test_sentences])
    predictions = []
    for sentence, best, labels in zip(test_sentences, output.predictions.argmax(2), output.label_ids, strict=True):
        tags = [tag_names[index] for index in best[labels != IGNORED]]
        truncated = ["O"] * (len(sentence.words) - len(tags))
        predictions.append(_repair_tags([*tags, *truncated]))
    assert all(tag_spans(tags) is not None for tags in predictions)
    return entity_scores(predictions, [list(sentence.tags) for sentence in test_sentences])["f1"]


@dataclass(frozen=True)
class Windows:
    """Questions as rows of a model, and the question and passage spans of each row."""

    rows: list[dict[str, Any]]
    questions: list[int]  # index of the question of each row
    spans: list[list[Span]]


def _encode_questions(tokenizer: Any, questions: Sequence[SquadExample], *, with_targets: bool) -> Windows:
    windows = Windows([], [], [])
    for index, question in enumerate(questions):
        encoding = tokenizer(
            question.question,
            question.passage,
            truncation="only_second",
            max_length=MAX_LENGTH,
            stride=STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for window in range(len(encoding["input_ids"])):
            sequence_ids = encoding.sequence_ids(window)
            offsets = encoding["offset_mapping"][window]
            spans = [span if sequence == 1 else None for span, sequence in zip(offsets, sequence_ids, strict=True)]
            row = {key: encoding[key][window] for key in ("input_ids", "token_type_ids", "attention_mask")}
            if with_targets:
                start, end = _target_tokens(question, spans)
                row |= {"start_positions": start, "end_positions": end}
            windows.rows.append(row)
            windows.questions.append(index)
            windows.spans.append(spans)
    return windows


def train_answerer(
    pretrained: str,
    train_files: Sequence[Path],
    test_files: Sequence[Path],
    *,
    epochs: int,
    seed: int,
    bf16: bool = False,
) -> list[dict[str, float]]:
    """F1 and exact match on each test file, by the best span over windows."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer, DataCollatorWithPadding, set_seed

    set_seed(seed)
    questions = hold_out_questions(read_squad(train_files))[0].examples
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    model = AutoModelForQuestionAnswering.from_pretrained(pretrained)
    train_rows = _encode_questions(tokenizer, questions, with_targets=True).rows
    collator = DataCollatorWithPadding(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _run_trainer(model, train_rows, collator, epochs=epochs, seed=seed, folder=folder, bf16=bf16)
        return [_evaluate_answers(trainer, tokenizer, read_squad([file]).examples) for file in test_files]


def _evaluate_answers(trainer: Any, tokenizer: Any, questions: Sequence[SquadExample]) -> dict[str, float]:
    windows = _encode_questions(tokenizer, questions, with_targets=False)
    start_logits, end_logits = trainer.predict(windows.rows).predictions
    best_scores = [-np.inf] * len(questions)
    answers = [""] * len(questions)
    for index, spans, starts, ends in zip(windows.questions, windows.spans, start_logits, end_logits, strict=True):
        passage_tokens = [position for position, span in enumerate(spans) if span is not None]
        best_starts = sorted(passage_tokens, key=lambda position: -starts[position])[:CANDIDATES]
        best_ends = sorted(passage_tokens, key=lambda position: -ends[position])[:CANDIDATES]
        for first in best_starts:
            for last in best_ends:
                score = float(starts[first] + ends[last])
                if first <= last < first + MAX_ANSWER_TOKENS and score > best_scores[index]:
                    best_scores[index] = score
                    answers[index] = _passage_text(questions[index], spans[first], spans[last])
    return answer_scores(answers, questions)


def _passage_text(question: SquadExample, first: Span, last: Span) -> str:
    assert first is not None
    assert last is not None
    return question.passage[first[0] : last[1]]


def _target_tokens(question: SquadExample, spans: Sequence[Span]) -> tuple[int, int]:
    """First and last token of the first answer; 0 where it is not in this window."""
    if not question.answers:
        return 0, 0
    start, text = question.answers[0]
    end = start + len(text)
    inside = [
        (position, span)
        for position, span in enumerate(spans)
        if span is not None and span[0] < end and span[1] > start
    ]
    if not inside:
        return 0, 0
    first, first_span = inside[0]
    last, last_span = inside[-1]
    is_whole = first_span[0] <= start and last_span[1] >= end
    return (first, last) if is_whole else (0, 0)
