"""Answers as spans of passages: windows with overlap, the best span over all of them, no answer where that is likelier.

Scores of a start and an end are added (Devlin et al. 2019); what is compared with people's answers is as in SQuAD.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.dropout import Noise
from regard.attention.packed_batch import PackedBatch
from regard.data.squad import SquadExample
from regard.errors import UsageError
from regard.models.bert import Bert
from regard.tasks.base import RowObjective
from regard.tasks.windows import CachedStates, EncodedTexts, encode_for_training, window_spans
from regard.text.special_tokens import SpecialTokens, TruncationReport
from regard.tokens import Tokens

Numbers = NDArray[np.int64]
Floats = NDArray[np.floating]
LONGEST_ANSWER = 30  # tokens
BEST = 20  # starts and ends of a window that are combined
QUESTION = 64  # tokens of a question that are read
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_squad_answer(text: str) -> str:
    """Return an answer as it is compared: lower case, no punctuation, no articles, single spaces.

    >>> normalize_squad_answer("The  Eiffel-Tower.")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def word_f1(said: str, wanted: str) -> float:
    """Return the F1 of the words that two answers share, 0 to 1; two empty ones agree.

    >>> round(word_f1("in the city of Paris", "Paris"), 3), word_f1("", "")
    (0.4, 1.0)
    """
    left, right = normalize_squad_answer(said).split(), normalize_squad_answer(wanted).split()
    if not left or not right:
        return float(left == right)
    both = sum((Counter(left) & Counter(right)).values())
    return 2 * both / (len(left) + len(right))


def answer_matches(
    predictions: Sequence[str], examples: Sequence[SquadExample]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return for each question whether the answer is exactly one of people's, and its best F1 with one of them."""
    rows = [*zip(predictions, examples, strict=True)]
    exact = [
        any(normalize_squad_answer(one) == normalize_squad_answer(text) for text in row.texts) for one, row in rows
    ]
    f1 = [max(word_f1(one, text) for text in row.texts) for one, row in rows]
    return np.array(exact, dtype=np.float64), np.array(f1, dtype=np.float64)


def answer_scores(said: Sequence[str], asked: Sequence[SquadExample]) -> dict[str, float]:
    """Return exact match and F1 in percent; apart for questions with and without an answer where there are both.

    >>> answer_scores(["paris"], [SquadExample("Where?", "In Paris.", ((3, "Paris"),))])
    {'exact': 100.0, 'f1': 100.0}
    """
    exact, f1 = answer_matches(said, asked)
    scores = {"exact": 100 * float(exact.mean()), "f1": 100 * float(f1.mean())}
    there = np.array([bool(one.answers) for one in asked])
    if not there.all() and there.any():
        scores |= {"answerable_f1": 100 * float(f1[there].mean()), "no_answer_f1": 100 * float(f1[~there].mean())}
    return scores


def word_overlap_baseline(question: str, passage: str) -> str:
    """Return the run of words that stands nearest to the question's words: what a model must beat.

    >>> word_overlap_baseline("Who wrote Emma?", "Emma was written by Jane Austen. It is long.")
    'was written by Jane Austen'
    """
    found = [*re.finditer(r"\w+(?:[-'’.,]\w+)*|[^\w\s]", passage)]
    wanted = {*re.findall(r"\w+", question.lower())}
    words = [one.group().lower() for one in found]
    counts = Counter(words)
    marks = np.array([0.0 if word not in wanted else 1 / counts[word] for word in words])
    best, answer, first = -1.0, "", 0
    places = np.arange(len(words))
    for place in range(len(words) + 1):
        ends = place == len(words) or marks[place] > 0 or not re.match(r"\w", words[place])
        if not ends and place - first < 8:
            continue
        if place > first:
            distance = np.minimum(np.abs(places - first), np.abs(places - place + 1))
            score = float((marks / (1 + distance)).sum())
            if score > best:
                best, answer = score, passage[found[first].start() : found[place - 1].end()]
        first = place + 1 if ends else place
    return answer


@dataclass
class EncodedPassages(EncodedTexts):
    """Rows of a question and a window of its passage."""

    begins: list[int] = field(default_factory=list)  # where in a row the window begins
    spans: list[Sequence[tuple[int, int]]] = field(default_factory=list)  # characters of the window's tokens
    passages: list[str] = field(default_factory=list)  # of the questions


def encode_questions(
    special_tokens: SpecialTokens, questions: Sequence[tuple[str, str]], max_length: int, overlap: int
) -> EncodedPassages:
    """Return questions with passages as rows of at most `longest` tokens; passages in windows that share `overlap`."""
    made = EncodedPassages(account=TruncationReport(texts=len(questions), max_length=max_length))
    known: dict[str, tuple[list[int], Sequence[tuple[int, int]]]] = {}
    opening = len(special_tokens.pair.before) + len(special_tokens.pair.between)
    for number, (question, passage) in enumerate(questions):
        if passage not in known:
            encoded = special_tokens.tokenizer.encode(passage)
            known[passage] = encoded.ids, encoded.spans
        ids, spans = known[passage]
        made.passages.append(passage)
        first = special_tokens.tokenizer.encode_batch([question])[0]
        most = min(QUESTION, max(1, max_length // 2))
        if len(first) > most:
            made.account.truncated_texts += 1
            made.account.truncated_tokens += len(first) - most
            first = first[:most]
        room = max_length - special_tokens.num_special(pair=True) - len(first)
        if room < 2:
            raise UsageError(f"rows of {max_length} tokens have no room for a passage: see --max-length")
        found = window_spans(len(ids), room, min(overlap, room // 2))
        made.account.tokens += len(ids)
        made.account.windowed += len(found) > 1
        for start, stop in found:
            made.add(*special_tokens.add(first, ids[start:stop]), number)
            made.begins.append(opening + len(first))
            made.spans.append(spans[start:stop])
    made.account.windows = len(made)
    return made


def span_targets(rows: EncodedPassages, examples: Sequence[SquadExample]) -> Numbers:
    """Return start and end of the first answer in each row, [rows, 2]; the first token where it is not there."""
    made = np.zeros((len(rows), 2), dtype=np.int64)
    for row, owner in enumerate(rows.text_indices):
        if not examples[owner].answers:
            continue
        start, text = examples[owner].answers[0]
        inside = [
            place for place, (left, right) in enumerate(rows.spans[row]) if left < start + len(text) and right > start
        ]
        spans = rows.spans[row]
        if inside and spans[inside[0]][0] <= start and spans[inside[-1]][1] >= start + len(text):
            made[row] = rows.begins[row] + inside[0], rows.begins[row] + inside[-1]
    return made


@dataclass(frozen=True)
class SpanBatch:
    """Rows and where the answer stands in each."""

    tokens: Tokens
    targets: Numbers  # [rows, 2]
    allowed: NDArray[np.bool_]  # [tokens]: where an answer may begin and end
    cached_states: Tensor | None = None

    @property
    def num_predictions(self) -> int:
        """Rows: each has a start and an end."""
        return len(self.targets)

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.tokens)} windows of up to {self.tokens.lengths.max()} tokens"


class SpanObjective(RowObjective[EncodedPassages]):
    """Knows what a batch of questions about passages means."""

    unit = "windows"

    def __init__(
        self, train: EncodedPassages, wanted: Numbers, *, seed: int, digest: str, kept: CachedStates | None = None
    ) -> None:
        super().__init__(train, seed=seed, digest=digest)
        self.targets, self.cached_states = wanted, kept

    def batch(self, numbers: Numbers, epoch: int) -> SpanBatch:
        """Return training rows and their answers."""
        states = None if self.cached_states is None else self.cached_states.get(numbers)
        return SpanBatch(
            self.train.batch(numbers), self.targets[numbers], answerable_positions(self.train, numbers), states
        )

    def loss(self, model: Bert, batch: SpanBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sum over the rows of the mean surprise at the start and at the end, twice: nothing is smoothed."""
        states, rows = encode_for_training(model, batch.tokens, noise, batch.cached_states)
        logs = torch.log_softmax(span_logits(model, batch, states, rows, noise), dim=1)
        wanted = torch.from_numpy(batch.targets).to(logs.device)
        loss = -logs.gather(1, wanted[:, None])[:, 0].mean(1).sum()
        return loss, loss.detach()


def span_logits(model: Bert, batch: SpanBatch, hidden: Tensor, packed: PackedBatch, noise: Noise | None) -> Tensor:
    """Return the scores of starts and ends at each place of each row, [B, T, 2]; -10,000 where none may be."""
    scores = model.head_logits(hidden, packed, noise).float()
    barred = torch.from_numpy(~batch.allowed).to(scores.device)
    padded = packed.pad(scores.masked_fill(barred[:, None], -1e4))
    within = torch.arange(packed.max_length, device=scores.device)[None] < packed.lengths[:, None]
    return padded.masked_fill(~within[:, :, None], -1e4)


def answerable_positions(rows: EncodedPassages, indices: Numbers) -> NDArray[np.bool_]:
    """Return where in packed rows an answer may stand: in the passage, or at the first token, which means none."""
    made = []
    for number in indices:
        here = np.zeros(len(rows.rows[number]), dtype=np.bool_)
        here[0] = True
        here[rows.begins[number] : rows.begins[number] + len(rows.spans[number])] = True
        made.append(here)
    return np.concatenate(made)


class AnswerSpan(NamedTuple):
    """A possible answer: characters of the passage, and its score beside that of no answer."""

    start: int
    stop: int
    score: float  # of start and end
    no_answer_probability: float  # the least score of no answer in the windows of the passage
    probability: float  # among all that were considered, no answer too

    @property
    def margin(self) -> float:
        """How much likelier it is than no answer, in logarithms."""
        return self.score - self.no_answer_probability


def best_spans(model: Bert, read: EncodedPassages, count: int, best: int = 1) -> list[list[AnswerSpan]]:
    """Return the best spans of each of `count` passages, best first, over all windows."""
    found: list[dict[tuple[int, int], float]] = [{} for _ in range(count)]
    none = np.full(count, np.inf)
    for numbers, tokens, scores in read.iter_logits(model):
        for at, number in enumerate(numbers):
            row, owner = (
                scores[tokens.offsets[at] : tokens.offsets[at + 1]].astype(np.float64),
                read.text_indices[number],
            )
            none[owner] = min(none[owner], row[0].sum())
            spans, first = read.spans[number], read.begins[number]
            inside = row[first : first + len(spans)]
            for start, stop, score in _likeliest(inside):
                key = _visible(read.passages[owner], spans[start][0], spans[stop][1])
                if key[1] > key[0] and score > found[owner].get(key, -np.inf):
                    found[owner][key] = score
    return [_ranked(one, float(none[owner]), best) for owner, one in enumerate(found)]


def _visible(passage: str, start: int, stop: int) -> tuple[int, int]:
    """Return a span without white space at its ends.

    >>> _visible("in  Rome ", 2, 9)
    (4, 8)
    """
    inside = passage[start:stop]
    return start + len(inside) - len(inside.lstrip()), start + len(inside.rstrip())


def _likeliest(scores: Floats) -> list[tuple[int, int, float]]:
    """Return the likeliest spans of one window, given the scores of starts and ends, [T, 2]."""
    starts, stops = (np.argsort(-scores[:, side], kind="stable")[:BEST] for side in (0, 1))
    total = scores[starts, 0][:, None] + scores[stops, 1][None]
    length = stops[None] - starts[:, None]
    total[(length < 0) | (length >= LONGEST_ANSWER)] = -np.inf
    ranked = np.argsort(-total, axis=None, kind="stable")[:BEST]
    pairs = [(int(place) // len(stops), int(place) % len(stops)) for place in ranked]
    return [(int(starts[i]), int(stops[j]), float(total[i, j])) for i, j in pairs if np.isfinite(total[i, j])]


def _ranked(found: dict[tuple[int, int], float], none: float, best: int) -> list[AnswerSpan]:
    if not found:
        return []
    ranked = sorted(found, key=lambda key: (-found[key], key))
    scores = np.array([found[key] for key in ranked] + [none])
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    return [AnswerSpan(*key, found[key], none, float(chances[at])) for at, key in enumerate(ranked[:best])]


def answer_texts(spans: Sequence[Sequence[AnswerSpan]], passages: Sequence[str], threshold: float) -> list[str]:
    """Return the text of each passage's best span; the empty text where no answer is likelier by the threshold."""
    return [
        passage[found[0].start : found[0].stop] if found and found[0].margin > threshold else ""
        for found, passage in zip(spans, passages, strict=True)
    ]


def best_threshold(spans: Sequence[Sequence[AnswerSpan]], asked: Sequence[SquadExample]) -> float:
    """Return the margin over no answer from which answering has the best F1 on these questions.

    Where every question has an answer, whatever is best is said.
    """
    if all(one.answers for one in asked):
        return -1e9
    margins = np.array([found[0].margin if found else -1e9 for found in spans])
    _, with_answer = answer_matches(answer_texts(spans, [one.passage for one in asked], -1e9 - 1), asked)
    _, without = answer_matches([""] * len(asked), asked)
    order = np.argsort(-margins, kind="stable")
    gains = np.concatenate([[0.0], np.cumsum(with_answer[order] - without[order])])
    best = int(gains.argmax())
    ranked = margins[order]
    if best == 0:
        return float(ranked[0]) + 1.0
    return float((ranked[best - 1] + ranked[best]) / 2) if best < len(ranked) else float(ranked[-1]) - 1.0
