"""Extractive question answering: answers as spans of passages, with SQuAD's metrics.

Long passages are read in overlapping windows. The score of a span is the sum of its start and end logits, and the best
span over all windows competes with the score of no answer at the first token (Devlin et al. 2019); at the last one in
causal models, whose first token attends to itself alone, and where no special token is before the question.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from regard.backends import EncoderBackend
from regard.data.squad import SquadExample
from regard.errors import UsageError
from regard.tasks.predictions import Predictions
from regard.tasks.windows import EncodedTexts, window_spans
from regard.text.special_tokens import SpecialTokens, TruncationReport

Indices = NDArray[np.int64]
FloatArray = NDArray[np.floating]
Span = tuple[int, int]  # start and stop
MAX_ANSWER_TOKENS = 30  # tokens
NUM_BEST = 20  # starts, ends and spans of a window that are considered
MAX_QUESTION_TOKENS = 64
MAX_BASELINE_WORDS = 8  # of an answer of the word-overlap baseline
MASKED_LOGIT = -1e4  # of tokens that cannot be part of an answer
ALWAYS_ANSWER = -1e9  # threshold below every margin
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORD_OR_MARK = re.compile(r"\w+(?:[-'’.,]\w+)*|[^\w\s]")


def normalize_squad_answer(text: str) -> str:
    """Normalize an answer for comparison: lower case, no punctuation, no articles, single spaces.

    >>> normalize_squad_answer("The  Eiffel-Tower.")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def word_f1(prediction: str, reference: str) -> float:
    """F1 of the words that two answers share, 0 to 1; two empty answers agree.

    >>> round(word_f1("in the city of Paris", "Paris"), 3), word_f1("", "")
    (0.4, 1.0)
    """
    predicted_words = normalize_squad_answer(prediction).split()
    reference_words = normalize_squad_answer(reference).split()
    if not predicted_words or not reference_words:
        return float(predicted_words == reference_words)
    num_shared = sum((Counter(predicted_words) & Counter(reference_words)).values())
    return 2 * num_shared / (len(predicted_words) + len(reference_words))


def answer_matches(
    predictions: Sequence[str], examples: Sequence[SquadExample]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Exact match and F1 of each prediction with the nearest reference answer.

    As in SQuAD's script, references that normalize to nothing do not count beside others, and mean no answer alone.
    """
    exact = np.zeros(len(examples), dtype=np.float64)
    f1 = np.zeros(len(examples), dtype=np.float64)
    for index, (prediction, example) in enumerate(zip(predictions, examples, strict=True)):
        references = [text for text in example.texts if normalize_squad_answer(text)] or [""]
        normalized = normalize_squad_answer(prediction)
        exact[index] = any(normalized == normalize_squad_answer(reference) for reference in references)
        f1[index] = max(word_f1(prediction, reference) for reference in references)
    return exact, f1


def answer_scores(predictions: Sequence[str], examples: Sequence[SquadExample]) -> dict[str, float]:
    """Exact match and F1 in percent; where some questions have no answer, also F1 with and without answer.

    >>> answer_scores(["paris"], [SquadExample("Where?", "In Paris.", ((3, "Paris"),))])
    {'exact_match': 100.0, 'f1': 100.0}
    """
    exact, f1 = answer_matches(predictions, examples)
    scores = {"exact_match": 100 * float(exact.mean()), "f1": 100 * float(f1.mean())}
    has_answer = np.array([bool(example.answers) for example in examples])
    if has_answer.any() and not has_answer.all():
        scores["answerable_f1"] = 100 * float(f1[has_answer].mean())
        scores["no_answer_f1"] = 100 * float(f1[~has_answer].mean())
    return scores


@dataclass(frozen=True, kw_only=True)
class PredictedAnswers(Predictions):
    """Answers to questions about passages; an empty text is no answer."""

    kind = "answers"

    predictions: Sequence[str]
    references: Sequence[SquadExample]

    @cached_property
    def scores(self) -> dict[str, float]:
        """Exact match and F1 in percent, also of the questions with and without answer where there are both."""
        return answer_scores(self.predictions, self.references)


def word_overlap_baseline(question: str, passage: str) -> str:
    """Baseline: the phrase of the passage that is nearest to the words of the question.

    >>> word_overlap_baseline("Who wrote Emma?", "Emma was written by Jane Austen. It is long.")
    'was written by Jane Austen'
    """
    matches = list(_WORD_OR_MARK.finditer(passage))
    words = [match.group().lower() for match in matches]
    counts = Counter(words)
    question_words = {*re.findall(r"\w+", question.lower())}
    word_weights = np.array([1 / counts[word] if word in question_words else 0.0 for word in words])
    positions = np.arange(len(words))
    best_score = -1.0
    answer = ""
    start = 0
    for stop in range(len(words) + 1):
        is_boundary = stop == len(words) or word_weights[stop] > 0 or not re.match(r"\w", words[stop])
        if not is_boundary and stop - start < MAX_BASELINE_WORDS:
            continue
        if stop > start:
            distances = np.minimum(np.abs(positions - start), np.abs(positions - stop + 1))
            score = float((word_weights / (1 + distances)).sum())
            if score > best_score:
                best_score = score
                answer = passage[matches[start].start() : matches[stop - 1].end()]
        start = stop + 1 if is_boundary else stop
    return answer


@dataclass
class EncodedPassages(EncodedTexts):
    """Rows of a question and a window of its passage."""

    row_fields = (*EncodedTexts.row_fields, "passage_starts", "spans", "no_answer_positions")

    passage_starts: list[int] = field(default_factory=list)  # position in each row at which the window starts
    spans: list[Sequence[Span]] = field(default_factory=list)  # characters of the window's tokens
    no_answer_positions: list[int] = field(default_factory=list)  # of the token that stands for no answer, by row
    passages: list[str] = field(default_factory=list)  # by question

    def select(self, texts: Indices) -> Self:
        """All rows of the questions at these indices, with the passages of these questions."""
        return replace(super().select(texts), passages=[self.passages[text] for text in texts])


def encode_questions(
    special_tokens: SpecialTokens,
    questions: Sequence[tuple[str, str]],
    max_length: int,
    overlap: int,
    *,
    is_causal: bool,
) -> EncodedPassages:
    """Encode questions and passages as rows of at most `max_length` tokens; windows of a passage share `overlap`.

    For a causal model, the last token stands for no answer: the first one knows neither question nor passage.
    """
    encoded = EncodedPassages(truncation=TruncationReport(texts=len(questions), max_length=max_length))
    passage_cache: dict[str, tuple[list[int], Sequence[Span]]] = {}
    template = special_tokens.pair_template
    num_before = len(template.before) + len(template.between)
    has_no_answer_at_end = bool(template.after) and (is_causal or not template.before)
    for index, (question, passage) in enumerate(questions):
        if passage not in passage_cache:
            encoding = special_tokens.tokenizer.encode(passage)
            passage_cache[passage] = (encoding.ids, encoding.spans)
        passage_ids, spans = passage_cache[passage]
        encoded.passages.append(passage)
        question_ids = _truncate_question(special_tokens, question, encoded.truncation)
        capacity = max_length - special_tokens.num_special(pair=True) - len(question_ids)
        if capacity < 2:
            raise UsageError(f"rows of {max_length} tokens leave no room for a passage: raise --max-length")
        windows = window_spans(len(passage_ids), capacity, min(overlap, capacity // 2))
        encoded.truncation.tokens += len(passage_ids)
        encoded.truncation.windowed += len(windows) > 1
        for start, stop in windows:
            row, token_types = special_tokens.add(question_ids, passage_ids[start:stop])
            encoded.add(row, token_types, index)
            encoded.passage_starts.append(num_before + len(question_ids))
            encoded.spans.append(spans[start:stop])
            encoded.no_answer_positions.append(len(row) - 1 if has_no_answer_at_end else 0)
    encoded.truncation.windows = len(encoded)
    return encoded


def _truncate_question(special_tokens: SpecialTokens, question: str, report: TruncationReport) -> list[int]:
    """Token ids of a question, at most half of a row; what is truncated is reported."""
    ids = special_tokens.tokenizer.encode_batch([question])[0]
    max_tokens = min(MAX_QUESTION_TOKENS, max(1, report.max_length // 2))
    if len(ids) > max_tokens:
        report.truncated_texts += 1
        report.truncated_tokens += len(ids) - max_tokens
    return ids[:max_tokens]


def span_targets(rows: EncodedPassages, examples: Sequence[SquadExample]) -> Indices:
    """First and last position of the first reference answer, [rows, 2]; in rows without it, those of no answer.

    White space at the ends of an answer, which tokens need not cover, does not count.
    """
    targets = np.repeat(np.array(rows.no_answer_positions, dtype=np.int64)[:, None], 2, axis=1)
    for row, (text_index, spans) in enumerate(zip(rows.text_indices, rows.spans, strict=True)):
        if not examples[text_index].answers:
            continue
        answer_start, text = examples[text_index].answers[0]
        answer_start, answer_stop = _strip_span(rows.passages[text_index], answer_start, answer_start + len(text))
        overlapping = [
            position for position, (start, stop) in enumerate(spans) if start < answer_stop and stop > answer_start
        ]
        if not overlapping:
            continue
        first = overlapping[0]
        last = overlapping[-1]
        if spans[first][0] <= answer_start and spans[last][1] >= answer_stop:
            targets[row] = (rows.passage_starts[row] + first, rows.passage_starts[row] + last)
    return targets


def questions_without_target(rows: EncodedPassages, targets: Indices, examples: Sequence[SquadExample]) -> list[int]:
    """Questions whose answer no row contains whole: it is longer than a window, or lies between tokens."""
    has_target = targets[:, 1] != np.array(rows.no_answer_positions)
    with_target = {rows.text_indices[row] for row in np.flatnonzero(has_target)}
    return [index for index, example in enumerate(examples) if example.answers and index not in with_target]


def answerable_positions(rows: EncodedPassages, indices: Indices) -> NDArray[np.bool_]:
    """Mask of the packed rows: passage tokens, and the token that stands for no answer."""
    masks = []
    for index in indices:
        mask = np.zeros(len(rows.rows[index]), dtype=np.bool_)
        mask[rows.no_answer_positions[index]] = True
        mask[rows.passage_starts[index] : rows.passage_starts[index] + len(rows.spans[index])] = True
        masks.append(mask)
    return np.concatenate(masks)


class AnswerSpan(NamedTuple):
    """A candidate answer: characters of the passage, with its score and that of no answer."""

    start: int
    stop: int
    score: float  # sum of start and end logits
    no_answer_score: float  # lowest score of no answer over the windows of the passage
    probability: float  # among all candidates, including no answer
    no_answer_probability: float  # of no answer, among all candidates

    @property
    def margin(self) -> float:
        """Difference of its score and the score of no answer."""
        return self.score - self.no_answer_score


def best_spans(model: EncoderBackend, texts: EncodedPassages, num_questions: int, k: int = 1) -> list[list[AnswerSpan]]:
    """The k best spans of each question over all windows of its passage, best first."""
    span_scores: list[dict[Span, float]] = [{} for _ in range(num_questions)]
    no_answer_scores = np.full(num_questions, np.inf)
    for indices, tokens, logits in texts.iter_logits(model):
        for row, index in enumerate(indices):
            row_logits = logits[tokens.offsets[row] : tokens.offsets[row + 1]].astype(np.float64)
            question = texts.text_indices[index]
            no_answer_scores[question] = min(
                no_answer_scores[question], row_logits[texts.no_answer_positions[index]].sum()
            )
            spans = texts.spans[index]
            start = texts.passage_starts[index]
            for first, last, score in _top_spans(row_logits[start : start + len(spans)]):
                characters = _strip_span(texts.passages[question], spans[first][0], spans[last][1])
                is_empty = characters[1] <= characters[0]
                if not is_empty and score > span_scores[question].get(characters, -np.inf):
                    span_scores[question][characters] = score
    return [
        _rank_spans(scores, float(no_answer_score), k)
        for scores, no_answer_score in zip(span_scores, no_answer_scores, strict=True)
    ]


def _strip_span(passage: str, start: int, stop: int) -> Span:
    """Span without white space at its ends.

    >>> _strip_span("in  Rome ", 2, 9)
    (4, 8)
    """
    text = passage[start:stop]
    return start + len(text) - len(text.lstrip()), start + len(text.rstrip())


def _top_spans(logits: FloatArray) -> list[tuple[int, int, float]]:
    """First position, last position and score of the best spans of one window, by its logits [T, 2]."""
    starts = np.argsort(-logits[:, 0], kind="stable")[:NUM_BEST]
    ends = np.argsort(-logits[:, 1], kind="stable")[:NUM_BEST]
    scores = logits[starts, 0][:, None] + logits[ends, 1][None]
    lengths = ends[None] - starts[:, None]
    scores[(lengths < 0) | (lengths >= MAX_ANSWER_TOKENS)] = -np.inf
    spans = []
    for flat_index in np.argsort(-scores, axis=None, kind="stable")[:NUM_BEST].tolist():
        row, column = divmod(flat_index, len(ends))
        if np.isfinite(scores[row, column]):
            spans.append((int(starts[row]), int(ends[column]), float(scores[row, column])))
    return spans


def _rank_spans(span_scores: dict[Span, float], no_answer_score: float, k: int) -> list[AnswerSpan]:
    if not span_scores:
        return []
    ranked = sorted(span_scores, key=lambda span: (-span_scores[span], span))
    scores = np.array([span_scores[span] for span in ranked] + [no_answer_score])
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    return [
        AnswerSpan(
            start,
            stop,
            score=span_scores[start, stop],
            no_answer_score=no_answer_score,
            probability=float(probability),
            no_answer_probability=float(probabilities[-1]),
        )
        for (start, stop), probability in zip(ranked[:k], probabilities, strict=False)
    ]


def answer_texts(spans: Sequence[Sequence[AnswerSpan]], passages: Sequence[str], threshold: float) -> list[str]:
    """Text of each question's best span; empty where its margin over no answer does not exceed the threshold."""
    texts = []
    for candidates, passage in zip(spans, passages, strict=True):
        is_answered = bool(candidates) and candidates[0].margin > threshold
        texts.append(passage[candidates[0].start : candidates[0].stop] if is_answered else "")
    return texts


def best_threshold(spans: Sequence[Sequence[AnswerSpan]], examples: Sequence[SquadExample]) -> float:
    """Margin over no answer at which answering has the best F1 on these questions.

    If every question has an answer, the best span is always the answer.
    """
    if all(example.answers for example in examples):
        return ALWAYS_ANSWER
    margins = np.array([candidates[0].margin if candidates else ALWAYS_ANSWER for candidates in spans])
    answers = answer_texts(spans, [example.passage for example in examples], ALWAYS_ANSWER - 1)
    _, f1_with_answer = answer_matches(answers, examples)
    _, f1_without_answer = answer_matches([""] * len(examples), examples)
    order = np.argsort(-margins, kind="stable")
    gains = np.concatenate([[0.0], np.cumsum(f1_with_answer[order] - f1_without_answer[order])])
    num_answered = int(gains.argmax())
    sorted_margins = margins[order]
    if num_answered == 0:
        return float(sorted_margins[0]) + 1.0
    if num_answered == len(sorted_margins):
        return float(sorted_margins[-1]) - 1.0
    return float((sorted_margins[num_answered - 1] + sorted_margins[num_answered]) / 2)
