"""What an answer hangs on: gradients of its log-probability, and what happens when tokens are hidden.

Attention says where heads looked, not why a model answers as it does. Beside it stand here, for each token of what was
read:

    gradient×input        the gradient of the answer's log-probability, times the token's vector
    integrated gradients  the same, as a mean over vectors on the way from a blank token to this one (Sundararajan et
                          al. 2017): all tokens together add up to the whole change
    occlusion             what the log-probability loses when the token is blank: slow, plain, a check of the others

A blank token is the model's own for hidden words where it has one, else the unknown one. Special tokens are never
blanked. `agreement` is the rank correlation of the size of these values with how much attention the tokens got. The
deletion test blanks tokens from the one that counts most downwards: the more the answer loses, the better the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.trace import trace
from regard.errors import UsageError, nearest
from regard.models.base import EncoderDecoder
from regard.models.bert import Bert
from regard.models.layers.losses import target_logprobs
from regard.models.rnn_text import TextBatch
from regard.pipeline.classification import ClassificationPipeline, EncoderClassifier, RecurrentClassifier
from regard.pipeline.question_answering import QuestionAnsweringPipeline
from regard.pipeline.sentence_pairs import TranslatedSentence, split_pair
from regard.pipeline.translation import Translation, TranslationPipeline
from regard.tasks.question_answering import SpanBatch, answerable_positions, encode_questions, span_logits
from regard.tasks.windows import encode_texts
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, Tokens
from regard.view.record.parts import METHODS, Attribution, Omission
from regard.view.record.record import Record

Floats = NDArray[np.float64]
STEPS = 32  # on the way from blank tokens to real ones
BUDGET = 4096  # tokens that are computed together
DELETED = (0.1, 0.2, 0.3, 0.5)  # shares of the tokens that the deletion test blanks
DRAWN = 5  # orders by chance that it is compared with


class Explainable(Protocol):
    """An answer, as a function of one row of tokens that was read."""

    model: Any
    input_ids: Ids  # as it was read
    special: NDArray[np.bool_]  # tokens that are never blanked
    baseline_id: int  # the token that stands for nothing
    of: str  # what is explained
    table: nn.Embedding  # where the row's vectors come from; it is asked for them first

    def values(self, rows: Tokens) -> Tensor:
        """Return the answer's log-probability for each of some rows like this one, [B]."""
        ...

    def attention(self) -> Floats:
        """Return how much attention each token of the row got, [T]."""
        ...


@dataclass(frozen=True)
class Explanation:
    """What an answer hangs on."""

    of: str
    attributions: tuple[Attribution, ...]  # one for each method
    deletion: Mapping[str, float]  # what the log-probability loses on average, by the order in which tokens are blanked
    gap: float  # how far integrated gradients are from adding up to the whole change, as a share of it


def explain(
    pipeline: Any, *given: str, methods: Sequence[str] = METHODS, steps: int = STEPS, label: str = ""
) -> Explanation:
    """Return what an answer hangs on.

    Given are a text, or two, for a classifier (of `label`, or of the one that it gives), a question and a passage for
    what answers questions, a text and its translation for a translator (without it, the one that it gives).
    """
    for method in methods:
        if method not in METHODS:
            raise UsageError(f"no attribution {method!r}{nearest(method, METHODS)}: there are {', '.join(METHODS)}")
    asked = explainable_predictions(pipeline, given, label)
    found = [_explained(one, methods, steps) for one in asked]
    return found[0] if len(found) == 1 else _joined(found)


def attributions(pipeline: Any, *given: str, methods: Sequence[str] = METHODS) -> tuple[Attribution, ...]:
    """Return what a record says of an answer's attribution; arguments are those of `explain`."""
    return explain(pipeline, *given, methods=methods).attributions


def add_attribution(record: Record, pipeline: Any, *inputs: str, methods: Sequence[str] = METHODS) -> Record:
    """Return the record of an answer with what it hangs on; arguments are those of `explain`."""
    found = attributions(pipeline, *inputs, methods=methods)
    shown = len(record.texts["source"].tokens)
    if any(len(one.values) != shown for one in found):
        why = f"the record shows {shown} tokens, attribution is of {len(found[0].values)}"
        return replace(record, cut=(*record.cut, Omission(why, "attribution")))
    return replace(record, attribution=found)


def explainable_predictions(pipeline: Any, inputs: Sequence[str], label: str = "") -> list[Explainable]:
    """Return the answers to explain: one, or one for each sentence of a translation."""
    if isinstance(pipeline, ClassificationPipeline) and 1 <= len(inputs) <= 2:
        return [_label(pipeline, inputs, label)]
    if isinstance(pipeline, QuestionAnsweringPipeline) and len(inputs) == 2:
        return [_ExplainableSpan.of_pipeline(pipeline, *inputs)]
    if isinstance(pipeline, TranslationPipeline) and 1 <= len(inputs) <= 2:
        target = inputs[1] if len(inputs) == 2 else pipeline(inputs[0])
        own = target.sentences if isinstance(target, Translation) and target.source == inputs[0] else None
        parts = split_pair(inputs[0], target, pipeline.target, split=True) if own is None else own
        made = [_ExplainableTranslation(pipeline, part) for part in parts if part.ids]
        if not made:
            raise UsageError("the translation is empty: there is nothing to explain")
        return list(made)
    raise UsageError(
        "attribution is for labels (a text, or two), answers (a question, a passage) and translations (a text, its "
        f"translation): a {type(pipeline).__name__} and {len(inputs)} texts are given"
    )


@contextmanager
def _standing_in(table: nn.Embedding, vectors: Tensor) -> Iterator[None]:
    """Let the table give these vectors when it is asked first."""
    waiting = [vectors]

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        return waiting.pop().to(output.dtype) if waiting else None

    handle = table.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _batches(rows: NDArray[np.int32]) -> Iterator[NDArray[np.int32]]:
    size = max(1, BUDGET // max(1, rows.shape[1]))
    return (rows[first : first + size] for first in range(0, len(rows), size))


def _values(asked: Explainable, rows: NDArray[np.int32]) -> Floats:
    """Return the answer's log-probability for rows [B, T]."""
    with torch.no_grad():
        made = [asked.values(Tokens.from_rows(list(some))).double().cpu().numpy() for some in _batches(rows)]
    return np.concatenate(made)


def _gradients(asked: Explainable, shares: Sequence[float]) -> tuple[Floats, Floats]:
    """Return, for vectors such shares of the way from blank ones, the gradient's mean times the way, and the values."""
    device = asked.table.weight.device
    real, blank = (
        asked.table.weight.detach()[torch.from_numpy(ids.astype(np.int64)).to(device)].float()
        for ids in (asked.input_ids, _blanked(asked, np.arange(len(asked.input_ids))))
    )
    total, values = torch.zeros(len(asked.input_ids), device=device), []
    size = max(1, BUDGET // len(asked.input_ids))
    for first in range(0, len(shares), size):
        part = torch.tensor(shares[first : first + size], device=device)[:, None, None]
        vectors = (blank + part * (real - blank)).flatten(0, 1).requires_grad_()  # [b·T, D]
        tokens = Tokens.from_rows([asked.input_ids] * len(part))
        with torch.enable_grad(), _standing_in(asked.table, vectors):
            found = asked.values(tokens)
            (gradient,) = torch.autograd.grad(found.sum(), vectors)
        way = real if len(shares) == 1 else real - blank
        total += (gradient.view(len(part), *way.shape) * way).sum(-1).sum(0)
        values.append(found.detach().double().cpu().numpy())
    return (total / len(shares)).double().cpu().numpy(), np.concatenate(values)


def _blanked(asked: Explainable, places: NDArray[np.int64]) -> Ids:
    """Return the row with blank tokens at some places, where they are not special."""
    made = asked.input_ids.copy()
    made[places] = np.where(asked.special[places], made[places], asked.baseline_id)
    return made


def _gradient(asked: Explainable, steps: int) -> tuple[Floats, float]:
    return _gradients(asked, [1.0])[0], 0.0


def _integrated(asked: Explainable, steps: int) -> tuple[Floats, float]:
    made, _ = _gradients(asked, [(number + 0.5) / steps for number in range(steps)])
    ends = _values(asked, np.stack([asked.input_ids, _blanked(asked, np.arange(len(asked.input_ids)))]))
    change = float(ends[0] - ends[1])
    return made, abs(float(made.sum()) - change) / max(abs(change), 1e-9)


def _occlusion(asked: Explainable, steps: int) -> tuple[Floats, float]:
    places = np.flatnonzero(~asked.special)
    rows = np.stack([asked.input_ids, *(_blanked(asked, np.array([place])) for place in places)])
    values = _values(asked, rows)
    made = np.zeros(len(asked.input_ids))
    made[places] = values[0] - values[1:]
    return made, 0.0


METHODS_BY_NAME: dict[str, Callable[[Explainable, int], tuple[Floats, float]]] = dict(
    zip(METHODS, (_gradient, _integrated, _occlusion), strict=True)
)


def _explained(asked: Explainable, methods: Sequence[str], steps: int) -> Explanation:
    looked, ordinary = asked.attention(), ~asked.special
    found = {method: METHODS_BY_NAME[method](asked, steps) for method in methods}
    made = tuple(
        Attribution(
            method,
            asked.of,
            "source",
            tuple(float(value) for value in values),
            rank_correlation(np.abs(values)[ordinary], looked[ordinary]),
        )
        for method, (values, _) in found.items()
    )
    orders = {method: values for method, (values, _) in found.items()} | {"attention": looked}
    return Explanation(asked.of, made, _deletion(asked, orders), max(gap for _, gap in found.values()))


def _joined(found: Sequence[Explanation]) -> Explanation:
    """Return what the sentences of one text hang on as one."""
    made = []
    for some in zip(*(one.attributions for one in found), strict=True):
        known = [one.agreement for one in some if one.agreement is not None]
        values = tuple(value for one in some for value in one.values)
        agreement = float(np.mean(known)) if known else None
        made.append(Attribution(some[0].method, " ".join(one.of for one in some), some[0].side, values, agreement))
    deletion = {name: float(np.mean([one.deletion[name] for one in found])) for name in found[0].deletion}
    return Explanation(made[0].of if made else "", tuple(made), deletion, max(one.gap for one in found))


def _deletion(asked: Explainable, orders: Mapping[str, Floats]) -> dict[str, float]:
    """Return what the log-probability loses on average when the first tokens of an order are blank."""
    places = np.flatnonzero(~asked.special)
    if not len(places):
        return {}
    counts = sorted({max(1, round(share * len(places))) for share in DELETED})
    named = {name: places[np.argsort(-values[places], kind="stable")] for name, values in orders.items()}
    chance = np.random.default_rng(0)
    drawn = [chance.permutation(places) for _ in range(DRAWN)]
    every = [*named.values(), *drawn]
    rows = np.stack([asked.input_ids, *(_blanked(asked, order[:count]) for order in every for count in counts)])
    values = _values(asked, rows)
    lost = (values[0] - values[1:]).reshape(len(every), len(counts)).mean(axis=1)
    made = {name: float(value) for name, value in zip(named, lost, strict=False)}
    return {**made, "chance": float(lost[len(named) :].mean())}


def rank_correlation(one: NDArray[np.floating], other: NDArray[np.floating]) -> float | None:
    """Return Spearman's rank correlation; nothing where there are fewer than three, or one side has a single value.

    >>> rank_correlation(np.array([1.0, 5.0, 2.0]), np.array([10.0, 90.0, 20.0]))
    1.0
    """
    if len(one) < 3:
        return None
    ranks = [_ranks(values) for values in (one, other)]
    if any(float(values.std()) == 0 for values in ranks):
        return None
    return float(np.clip(np.corrcoef(ranks[0], ranks[1])[0, 1], -1, 1).round(12))


def _ranks(values: NDArray[np.floating]) -> Floats:
    """Return the ranks of values; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], dtype=np.float64)


def _blank(tokenizer: Tokenizer, mask: int = -1) -> int:
    """Return the token that stands for nothing: for hidden words, else unknown ones, padding or the end."""
    return next(one for one in (mask, tokenizer.unk_id, tokenizer.pad_id, tokenizer.eos_id, 0) if one >= 0)


def _rollout(model: Bert, tokens: Tokens, places: Sequence[int]) -> Floats:
    """Return how much of each token reaches these places through all layers (Abnar and Zuidema 2020), [T]."""
    with trace() as seen, torch.no_grad():
        model.encode(tokens)
    mixed = np.eye(int(tokens.lengths[0]))
    for site in seen:
        weights = seen[site].weights[0].mean(axis=0).astype(np.float64)  # [Q, K]
        mixed = (0.5 * weights + 0.5 * np.eye(len(weights))) @ mixed
    return np.asarray(mixed[list(places)].mean(axis=0))


def _label(pipeline: ClassificationPipeline, given: Sequence[str], label: str) -> Explainable:
    label = label or next(iter(pipeline(*given).probabilities), "")
    if label not in pipeline.labels:
        raise UsageError(f"no label {label!r}{nearest(label, pipeline.labels)}: {', '.join(pipeline.labels)}")
    number = pipeline.labels.index(label)
    if isinstance(pipeline.reader, RecurrentClassifier):
        if len(given) > 1:
            raise UsageError("this classifier reads single texts, not pairs")
        return _ExplainableRnnLabel(pipeline.reader, given[0], label, number)
    assert isinstance(pipeline.reader, EncoderClassifier)
    return _ExplainableLabel(pipeline.reader, given, label, number, pipeline.thresholds is not None)


class _ExplainableRow:
    """A row that an encoder reads."""

    def __init__(self, model: Bert, framing: SpecialTokens, row: Ids, token_types: Ids, of: str) -> None:
        self.model, self.input_ids, self.token_types, self.of = model, row, token_types, of
        self.special = np.isin(row, sorted(framing.tokenizer.special_ids - {framing.unknown}))
        self.baseline_id, self.table = _blank(framing.tokenizer, framing.mask), model.words

    def tokens(self, rows: Tokens) -> Tokens:
        """Return rows with their types."""
        return Tokens(rows.ids, rows.offsets, np.tile(self.token_types, len(rows)))

    def states(self, rows: Tokens) -> tuple[Tensor, Any]:
        """Return a state for each token, and the layout."""
        tokens = self.tokens(rows)
        ids, layout = self.model.to_tensors(tokens)
        return self.model(ids, layout, self.model.token_type_tensor(tokens)), layout


class _ExplainableLabel(_ExplainableRow):
    """Why an encoder gives a label; of a long text, its first window."""

    def __init__(self, reader: EncoderClassifier, given: Sequence[str], label: str, number: int, several: bool) -> None:
        pairs = [given[1]] if len(given) > 1 else None
        read = encode_texts(reader.framing, [given[0]], pairs, reader.max_length)
        super().__init__(reader.model, reader.framing, read.rows[0], read.token_types[0], label)
        self.label_index, self.is_multi_label, self.temperature = number, several, reader.temperature

    def values(self, rows: Tokens) -> Tensor:
        """Return the log-probability of the label."""
        scores = self.model.head_logits(*self.states(rows)).float() / self.temperature
        logs = nn.functional.logsigmoid(scores) if self.is_multi_label else torch.log_softmax(scores, dim=1)
        return logs[:, self.label_index]

    def attention(self) -> Floats:
        """Return how much of each token reaches the first one, which the label is read from."""
        return _rollout(self.model, self.tokens(Tokens.from_rows([self.input_ids])), [0])


class _ExplainableRnnLabel:
    """Why a reader with words of its own gives a label."""

    def __init__(self, reader: RecurrentClassifier, text: str, label: str, number: int) -> None:
        self.model, self.of, self.label_index = reader.model, label, number
        (read,) = reader.perception.encode([text]).batches()
        if read[1].features is not None:
            raise UsageError("attribution is for models whose words are their own: this one reads frozen features, too")
        self.input_ids, tokenizer = read[1].tokens.row(0), reader.perception.tokenizer
        self.special = np.isin(self.input_ids, sorted(tokenizer.special_ids - {tokenizer.unk_id}))
        self.baseline_id, self.table = _blank(tokenizer), reader.model.encoder.words

    def values(self, rows: Tokens) -> Tensor:
        """Return the log-probability of the label."""
        return torch.log_softmax(self.model.output(self.model(TextBatch(rows))).float(), dim=1)[:, self.label_index]

    def attention(self) -> Floats:
        """Return how much pooling took of each token; equally much of all where it does not look."""
        with trace() as seen, torch.no_grad():
            self.model(TextBatch(Tokens.from_rows([self.input_ids])))
        for site in seen:
            return np.asarray(seen[site].weights[0, 0, 0], dtype=np.float64)
        return np.ones(len(self.input_ids))


class _ExplainableSpan(_ExplainableRow):
    """Why an answer stands where it does; of a long passage, the window that it stands in."""

    def __init__(
        self, pipeline: QuestionAnsweringPipeline, read: Any, number: int, span: tuple[int, int], of: str
    ) -> None:
        super().__init__(pipeline.model, pipeline.framing, read.rows[number], read.token_types[number], of)
        self.span = span
        self.allowed = answerable_positions(read, np.array([number]))

    @classmethod
    def of_pipeline(cls, pipeline: QuestionAnsweringPipeline, question: str, passage: str) -> _ExplainableSpan:
        """Return the question of why the pipeline answers as it does."""
        answer = pipeline(question, passage)
        read = encode_questions(pipeline.framing, [(question, passage)], pipeline.max_length, pipeline.overlap)
        if not answer.text:
            return cls(pipeline, read, 0, (0, 0), "no answer")
        for number, spans in enumerate(read.spans):
            inside = [place for place, (start, stop) in enumerate(spans) if start < answer.end and stop > answer.start]
            if inside and spans[inside[0]][0] <= answer.start and spans[inside[-1]][1] >= answer.end:
                first = read.begins[number]
                return cls(pipeline, read, number, (first + inside[0], first + inside[-1]), answer.text)
        raise UsageError(f"the answer {answer.text!r} stands in no window of the passage")

    def values(self, rows: Tokens) -> Tensor:
        """Return the log-probability of the start and the end."""
        states, layout = self.states(rows)
        wanted = np.tile(np.array([self.span]), (len(rows), 1))
        batch = SpanBatch(self.tokens(rows), wanted, np.tile(self.allowed, len(rows)))
        logs = torch.log_softmax(span_logits(self.model, batch, states, layout, None), dim=1)  # [B, T, 2]
        return logs[:, self.span[0], 0] + logs[:, self.span[1], 1]

    def attention(self) -> Floats:
        """Return how much of each token reaches the first and the last token of the answer."""
        return _rollout(self.model, self.tokens(Tokens.from_rows([self.input_ids])), self.span)


class _ExplainableTranslation:
    """Why a translation says what it says: its log-probability as a function of the source."""

    def __init__(self, pipeline: TranslationPipeline, part: TranslatedSentence) -> None:
        self.model: EncoderDecoder = pipeline.models[0]
        self.input_ids = np.asarray(pipeline.recorder.source_ids(part), dtype=np.int32)
        self.target, self.of = part.ids, part.text
        source = pipeline.source
        self.special = np.isin(self.input_ids, sorted(source.special_ids - {source.unk_id}))
        self.baseline_id, self.table = _blank(source), self.model.embedding("source")

    def values(self, rows: Tokens) -> Tensor:
        """Return the log-probability of the translation, its end included."""
        given, wanted = self.model.shift_targets(Tokens.from_rows([self.target] * len(rows)))
        hidden = self.model(rows, given)
        targets = self.model.to_tensors(wanted)[0]
        found = target_logprobs(hidden, self.model.output_weight, self.model.output_bias, targets)
        return found.view(len(rows), -1).sum(1)

    def attention(self) -> Floats:
        """Return how much all heads that look at the source looked at each token."""
        sites = [*self.model.cross_attention_sites()]
        if not sites:
            return np.ones(len(self.input_ids))
        with trace(",".join(sites)) as seen:
            self.model.target_logprobs(Tokens.from_rows([self.input_ids]), Tokens.from_rows([self.target]))
        return np.asarray(np.mean([seen[site].weights[0].mean(axis=(0, 1)) for site in seen], axis=0), dtype=np.float64)
