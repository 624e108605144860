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

from regard.attention.noise import Noise
from regard.attention.rows import Rows
from regard.data.passages import Asked
from regard.errors import UsageError
from regard.models.encoder import Encoder
from regard.tasks.base import RowTask
from regard.tasks.encoding import Account, Encoded, KeptStates, encoder_states, windows
from regard.text.framing import Framing
from regard.tokens import Tokens

Numbers = NDArray[np.int64]
Floats = NDArray[np.floating]
LONGEST_ANSWER = 30  # tokens
BEST = 20  # starts and ends of a window that are combined
QUESTION = 64  # tokens of a question that are read
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


# ---- as SQuAD compares


def plain_answer(text: str) -> str:
    """Return an answer as it is compared: lower case, no punctuation, no articles, single spaces.

    >>> plain_answer("The  Eiffel-Tower.")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def word_f1(said: str, wanted: str) -> float:
    """Return the F1 of the words that two answers share, 0 to 1; two empty ones agree.

    >>> round(word_f1("in the city of Paris", "Paris"), 3), word_f1("", "")
    (0.4, 1.0)
    """
    left, right = plain_answer(said).split(), plain_answer(wanted).split()
    if not left or not right:
        return float(left == right)
    both = sum((Counter(left) & Counter(right)).values())
    return 2 * both / (len(left) + len(right))


def answer_values(said: Sequence[str], asked: Sequence[Asked]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return for each question whether the answer is exactly one of people's, and its best F1 with one of them."""
    rows = [*zip(said, asked, strict=True)]
    exact = [any(plain_answer(one) == plain_answer(text) for text in row.texts) for one, row in rows]
    f1 = [max(word_f1(one, text) for text in row.texts) for one, row in rows]
    return np.array(exact, dtype=np.float64), np.array(f1, dtype=np.float64)


def answer_scores(said: Sequence[str], asked: Sequence[Asked]) -> dict[str, float]:
    """Return exact match and F1 in percent; apart for questions with and without an answer where there are both.

    >>> answer_scores(["paris"], [Asked("Where?", "In Paris.", ((3, "Paris"),))])
    {'exact': 100.0, 'f1': 100.0}
    """
    exact, f1 = answer_values(said, asked)
    scores = {"exact": 100 * float(exact.mean()), "f1": 100 * float(f1.mean())}
    there = np.array([bool(one.answers) for one in asked])
    if not there.all() and there.any():
        scores |= {"answerable_f1": 100 * float(f1[there].mean()), "no_answer_f1": 100 * float(f1[~there].mean())}
    return scores


def overlap_answer(question: str, passage: str) -> str:
    """Return the run of words that stands nearest to the question's words: what a model must beat.

    >>> overlap_answer("Who wrote Emma?", "Emma was written by Jane Austen. It is long.")
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


# ---- passages as an encoder reads them


@dataclass
class EncodedQuestions(Encoded):
    """Rows of a question and a window of its passage."""

    begins: list[int] = field(default_factory=list)  # where in a row the window begins
    spans: list[Sequence[tuple[int, int]]] = field(default_factory=list)  # characters of the window's tokens
    passages: list[str] = field(default_factory=list)  # of the questions


def read_asked(framing: Framing, asked: Sequence[tuple[str, str]], longest: int, overlap: int) -> EncodedQuestions:
    """Return questions with passages as rows of at most `longest` tokens; passages in windows that share `overlap`."""
    made = EncodedQuestions(account=Account(texts=len(asked), longest=longest))
    known: dict[str, tuple[list[int], Sequence[tuple[int, int]]]] = {}
    opening = len(framing.pair.before) + len(framing.pair.between)
    for number, (question, passage) in enumerate(asked):
        if passage not in known:
            encoded = framing.tokenizer.encode(passage)
            known[passage] = encoded.ids, encoded.spans
        ids, spans = known[passage]
        made.passages.append(passage)
        first = framing.tokenizer.encode_all([question])[0]
        most = min(QUESTION, max(1, longest // 2))
        if len(first) > most:
            made.account.cut_texts += 1
            made.account.cut_tokens += len(first) - most
            first = first[:most]
        room = longest - framing.room(pair=True) - len(first)
        if room < 2:
            raise UsageError(f"rows of {longest} tokens have no room for a passage: see --max-length")
        found = windows(len(ids), room, min(overlap, room // 2))
        made.account.tokens += len(ids)
        made.account.windowed += len(found) > 1
        for start, stop in found:
            made.add(*framing.frame(first, ids[start:stop]), number)
            made.begins.append(opening + len(first))
            made.spans.append(spans[start:stop])
    made.account.windows = len(made)
    return made


def targets(read: EncodedQuestions, asked: Sequence[Asked]) -> Numbers:
    """Return start and end of the first answer in each row, [rows, 2]; the first token where it is not there."""
    made = np.zeros((len(read), 2), dtype=np.int64)
    for row, owner in enumerate(read.owners):
        if not asked[owner].answers:
            continue
        start, text = asked[owner].answers[0]
        inside = [
            place for place, (left, right) in enumerate(read.spans[row]) if left < start + len(text) and right > start
        ]
        spans = read.spans[row]
        if inside and spans[inside[0]][0] <= start and spans[inside[-1]][1] >= start + len(text):
            made[row] = read.begins[row] + inside[0], read.begins[row] + inside[-1]
    return made


@dataclass(frozen=True)
class SpanBatch:
    """Rows and where the answer stands in each."""

    tokens: Tokens
    targets: Numbers  # [rows, 2]
    allowed: NDArray[np.bool_]  # [tokens]: where an answer may begin and end
    states: Tensor | None = None

    @property
    def count(self) -> int:
        """Rows: each has a start and an end."""
        return len(self.targets)

    @property
    def shape(self) -> str:
        """Say how large the batch is."""
        return f"{len(self.tokens)} windows of up to {self.tokens.lengths.max()} tokens"


class SpanTask(RowTask[EncodedQuestions]):
    """Knows what a batch of questions about passages means."""

    counted = "windows"

    def __init__(
        self, train: EncodedQuestions, wanted: Numbers, *, seed: int, digest: str, kept: KeptStates | None = None
    ) -> None:
        super().__init__(train, seed=seed, digest=digest)
        self.wanted, self.kept = wanted, kept

    def batch(self, numbers: Numbers, epoch: int) -> SpanBatch:
        """Return training rows and their answers."""
        states = None if self.kept is None else self.kept.of(numbers)
        return SpanBatch(self.train.batch(numbers), self.wanted[numbers], allowed(self.train, numbers), states)

    def loss(self, model: Encoder, batch: SpanBatch, smoothing: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
        """Return the sum over the rows of the mean surprise at the start and at the end, twice: nothing is smoothed."""
        states, rows = encoder_states(model, batch.tokens, noise, batch.states)
        logs = torch.log_softmax(span_scores(model, batch, states, rows, noise), dim=1)
        wanted = torch.from_numpy(batch.targets).to(logs.device)
        loss = -logs.gather(1, wanted[:, None])[:, 0].mean(1).sum()
        return loss, loss.detach()


def span_scores(model: Encoder, batch: SpanBatch, states: Tensor, rows: Rows, noise: Noise | None) -> Tensor:
    """Return the scores of starts and ends at each place of each row, [B, T, 2]; -10,000 where none may be."""
    scores = model.label_scores(states, rows, noise).float()
    barred = torch.from_numpy(~batch.allowed).to(scores.device)
    padded = rows.pad(scores.masked_fill(barred[:, None], -1e4))
    within = torch.arange(rows.longest, device=scores.device)[None] < rows.lengths[:, None]
    return padded.masked_fill(~within[:, :, None], -1e4)


def allowed(read: EncodedQuestions, numbers: Numbers) -> NDArray[np.bool_]:
    """Return where in packed rows an answer may stand: in the passage, or at the first token, which means none."""
    made = []
    for number in numbers:
        here = np.zeros(len(read.rows[number]), dtype=np.bool_)
        here[0] = True
        here[read.begins[number] : read.begins[number] + len(read.spans[number])] = True
        made.append(here)
    return np.concatenate(made)


class Span(NamedTuple):
    """A possible answer: characters of the passage, and its score beside that of no answer."""

    start: int
    stop: int
    score: float  # of start and end
    none: float  # the least score of no answer in the windows of the passage
    chance: float  # among all that were considered, no answer too

    @property
    def margin(self) -> float:
        """How much likelier it is than no answer, in logarithms."""
        return self.score - self.none


def best_spans(model: Encoder, read: EncodedQuestions, count: int, best: int = 1) -> list[list[Span]]:
    """Return the best spans of each of `count` passages, best first, over all windows."""
    found: list[dict[tuple[int, int], float]] = [{} for _ in range(count)]
    none = np.full(count, np.inf)
    for numbers, tokens, scores in read.scored(model):
        for at, number in enumerate(numbers):
            row, owner = scores[tokens.offsets[at] : tokens.offsets[at + 1]].astype(np.float64), read.owners[number]
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


def _ranked(found: dict[tuple[int, int], float], none: float, best: int) -> list[Span]:
    if not found:
        return []
    ranked = sorted(found, key=lambda key: (-found[key], key))
    scores = np.array([found[key] for key in ranked] + [none])
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    return [Span(*key, found[key], none, float(chances[at])) for at, key in enumerate(ranked[:best])]


def said_answers(spans: Sequence[Sequence[Span]], passages: Sequence[str], threshold: float) -> list[str]:
    """Return the text of each passage's best span; the empty text where no answer is likelier by the threshold."""
    return [
        passage[found[0].start : found[0].stop] if found and found[0].margin > threshold else ""
        for found, passage in zip(spans, passages, strict=True)
    ]


def best_threshold(spans: Sequence[Sequence[Span]], asked: Sequence[Asked]) -> float:
    """Return the margin over no answer from which answering has the best F1 on these questions.

    Where every question has an answer, whatever is best is said.
    """
    if all(one.answers for one in asked):
        return -1e9
    margins = np.array([found[0].margin if found else -1e9 for found in spans])
    _, with_answer = answer_values(said_answers(spans, [one.passage for one in asked], -1e9 - 1), asked)
    _, without = answer_values([""] * len(asked), asked)
    order = np.argsort(-margins, kind="stable")
    gains = np.concatenate([[0.0], np.cumsum(with_answer[order] - without[order])])
    best = int(gains.argmax())
    ranked = margins[order]
    if best == 0:
        return float(ranked[0]) + 1.0
    return float((ranked[best - 1] + ranked[best]) / 2) if best < len(ranked) else float(ranked[-1]) - 1.0
