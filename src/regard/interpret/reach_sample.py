"""Measurement of reach in torch: gradients and occlusion of the tokens that translators and causal models read."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from regard.config.data import ReadConfig
from regard.data.documents import Documents, read_documents
from regard.data.pairs import ParallelTexts, read_pairs
from regard.errors import UsageError
from regard.interpret.gradients import replace_embeddings
from regard.interpret.reach import UNKNOWN, Floats, Ints, ReachSample
from regard.models.base import EncoderDecoder
from regard.models.gpt import Gpt
from regard.packed_tokens import Ids, Tokens
from regard.pipeline.generation import GenerationPipeline
from regard.pipeline.loaders import Pipeline
from regard.pipeline.translation import TranslationPipeline
from regard.tasks.translation import TokenizerPair

BATCH_TOKENS = 8192  # computed together
OCCLUDED_TOKENS = 8  # of each row, the recalled one among them
MAX_PREDICTIONS = 1000  # by default
SPECIAL = -1  # distance of a special token
Progress = Callable[[Iterable[list[Any]], int, str], Iterable[Any]]


@dataclass(frozen=True)
class ReachRow:
    """A prediction: what the model reads before it, and the reference token."""

    input_ids: Ids  # source of a translation, text before the token of a causal model
    distances: Ints  # of the input tokens; SPECIAL for special ones
    reference_id: int
    prefix_ids: Ids  # target tokens before the prediction
    recalled: int | None  # position of the input token that equals the reference token, where there is just one


class ReachSubject(Protocol):
    """A model and the predictions that are measured."""

    summary: str  # of the model

    def __len__(self) -> int: ...

    @property
    def embedding(self) -> nn.Embedding:
        """Embedding of the input tokens; the first embedding that a forward pass calls."""
        ...

    def row(self, index: int, rng: np.random.Generator) -> ReachRow | None:
        """The prediction with this index; None where there is none."""
        ...

    def logprobs(self, inputs: Tokens, rows: Sequence[ReachRow]) -> Tensor:
        """Log-probabilities of the predicted tokens, [rows, vocabulary]."""
        ...


class TranslationReach:
    """Sentence pairs: of each, the prediction of one target token, by preference one that recalls a source token."""

    def __init__(self, pipeline: TranslationPipeline, pairs: ParallelTexts) -> None:
        self.model: EncoderDecoder = pipeline.backends[0].torch_model()
        self.summary = self.model.config.summary()
        self.source = pipeline.source
        self.target = pipeline.target
        examples = TokenizerPair(pipeline.source, pipeline.target).tokenize(pairs)
        max_lengths = [pipeline.max_source_length, pipeline.max_target_length]
        fits = (examples.lengths <= max_lengths).all(axis=1)
        self.examples = examples.select(np.flatnonzero(fits))

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def embedding(self) -> nn.Embedding:
        """Embedding of the source tokens."""
        return self.model.embedding("source")

    def row(self, index: int, rng: np.random.Generator) -> ReachRow | None:
        """Choose a target token of a pair at random: of those that recall a source token, where there are any."""
        source_ids = self.examples.source[index]
        target_ids = self.examples.target[index]
        if not len(target_ids):
            return None
        source = self.source.subwords(source_ids.tolist())
        target = self.target.subwords(target_ids.tolist())
        recalling = [position for position, subword in enumerate(target) if source.count(subword) == 1]
        position = int(rng.choice(recalling or len(target)))
        is_special = np.isin(source_ids, sorted(self.source.special_ids - {self.source.unk_id}))
        following = np.cumsum(~is_special[::-1])[::-1] - 1
        return ReachRow(
            source_ids,
            np.where(is_special, SPECIAL, following + position),
            reference_id=int(target_ids[position]),
            prefix_ids=target_ids[:position],
            recalled=source.index(target[position]) if recalling else None,
        )

    def logprobs(self, inputs: Tokens, rows: Sequence[ReachRow]) -> Tensor:
        """Log-probabilities of the next target tokens."""
        decoder_inputs, _ = self.model.shift_targets(Tokens.from_rows([row.prefix_ids for row in rows]))
        hidden = self.model(inputs, decoder_inputs)
        return _next_logprobs(hidden, decoder_inputs, self.model.output_weight, self.model.lm_head_bias)


class CausalReach:
    """Running text: predictions of single tokens, from those before them in their document."""

    def __init__(self, pipeline: GenerationPipeline, documents: Documents) -> None:
        self.model: Gpt = pipeline.model.torch_model()
        self.summary = self.model.config.summary()
        self.documents = [np.asarray(ids, dtype=np.int32) for ids in pipeline.tokenizer.encode_batch(documents.texts)]
        # the first token of a document is not predicted: nothing is read before it
        self.starts = np.cumsum([0, *(max(0, len(ids) - 1) for ids in self.documents)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def embedding(self) -> nn.Embedding:
        """Embedding of the tokens."""
        return self.model.token_embedding

    def row(self, index: int, rng: np.random.Generator) -> ReachRow | None:
        """A token with as many tokens before it as the model reads."""
        document = int(np.searchsorted(self.starts, index, side="right")) - 1
        position = index - int(self.starts[document]) + 1
        ids = self.documents[document]
        context = ids[max(0, position - self.model.config.max_positions) : position]
        matches = np.flatnonzero(context == ids[position])
        return ReachRow(
            context,
            np.arange(len(context) - 1, -1, -1),
            reference_id=int(ids[position]),
            prefix_ids=context[:0],
            recalled=int(matches[0]) if len(matches) == 1 else None,
        )

    def logprobs(self, inputs: Tokens, rows: Sequence[ReachRow]) -> Tensor:
        """Log-probabilities of the tokens after the inputs."""
        return _next_logprobs(self.model(inputs), inputs, self.model.output_weight, None)


def _next_logprobs(hidden: Tensor, tokens: Tokens, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Log-probabilities after the last token of each sequence, [sequences, vocabulary]."""
    last = torch.from_numpy(tokens.offsets[1:].astype(np.int64) - 1).to(hidden.device)
    return nn.functional.linear(hidden[last], weight, bias).float().log_softmax(dim=1)


def build_reach_subject(pipeline: Pipeline, files: Sequence[str], config: ReadConfig | None = None) -> ReachSubject:
    """Read the files for a pipeline: sentence pairs for translation, running text for a causal language model."""
    config = config or ReadConfig()
    subject: ReachSubject
    if isinstance(pipeline, TranslationPipeline):
        if len(pipeline.backends) > 1:
            raise UsageError("reach is measured in one model at a time: give folders one by one")
        subject = TranslationReach(pipeline, read_pairs(files, config))
    elif isinstance(pipeline, GenerationPipeline):
        unit = pipeline.task.get("document", "file")
        subject = CausalReach(pipeline, read_documents(files, config, "auto" if unit == "file" else unit))
    else:
        raise UsageError(
            f"reach is measured in translation models and causal language models, not in a {type(pipeline).__name__}: "
            "regard see --attribution shows what a single prediction depends on"
        )
    if not len(subject):
        raise UsageError(f"{files[0]}: there is no text that the model can read whole")
    return subject


def _no_progress(windows: Iterable[list[Any]], total: int, what: str) -> Iterator[Any]:
    return itertools.chain.from_iterable(windows)


def sample_reach(
    subject: ReachSubject,
    *,
    sample: int = MAX_PREDICTIONS,
    minutes: float = 2.0,
    seed: int = 0,
    occluded: int = OCCLUDED_TOKENS,
    progress: Progress = _no_progress,
) -> ReachSample:
    """Measure up to `sample` predictions, the same for the same seed; at most so many minutes, but one batch."""
    rng = np.random.default_rng(seed)
    indices = (
        rng.permutation(len(subject))[:sample] if len(subject) <= 1 << 24 else rng.integers(len(subject), size=sample)
    )
    deadline = time.monotonic() + 60 * minutes

    def batches() -> Iterator[list[ReachSample | None]]:
        for rows in _iter_batches(subject, indices, rng):
            measured = _measure_batch(subject, rows, occluded, rng)
            yield [measured, *[None] * (len(rows) - 1)]
            if time.monotonic() > deadline:
                return

    measured = [batch for batch in progress(batches(), len(indices), "predictions") if batch is not None]
    if not measured:
        raise UsageError("no text has a token to predict: give other data")
    return _join_samples(measured)


def _iter_batches(subject: ReachSubject, indices: Ints, rng: np.random.Generator) -> Iterator[list[ReachRow]]:
    """Yield the rows with these indices, so many together as are computed together."""
    batch: list[ReachRow] = []
    num_tokens = 0
    for index in indices:
        row = subject.row(int(index), rng)
        if row is None or not (row.distances != SPECIAL).any():
            continue
        if batch and num_tokens + len(row.input_ids) > BATCH_TOKENS:
            yield batch
            batch = []
            num_tokens = 0
        batch.append(row)
        num_tokens += len(row.input_ids)
    if batch:
        yield batch


def _measure_batch(
    subject: ReachSubject, rows: Sequence[ReachRow], occluded: int, rng: np.random.Generator
) -> ReachSample:
    norms, logprobs, is_correct = _gradient_norms(subject, rows)
    tokens: list[tuple[int, int]] = []  # row, position
    replacements: list[int] = []
    for index, row in enumerate(rows):
        for position, token_id in _replacements(row, occluded, rng):
            tokens.append((index, position))
            replacements.append(token_id)
    offsets = np.cumsum([0, *(len(row.input_ids) for row in rows)])
    occlusion = np.full(int(offsets[-1]), np.nan)
    if tokens:
        changed = _occluded_logprobs(subject, rows, tokens, replacements)
        row_indices = np.array([index for index, _ in tokens])
        token_indices = offsets[row_indices] + np.array([position for _, position in tokens])
        occlusion[token_indices] = logprobs[row_indices] - changed
    distance = np.concatenate([row.distances for row in rows])
    is_recalled = np.zeros(len(distance), dtype=bool)
    recalled_distance = np.full(len(rows), UNKNOWN)
    for index, row in enumerate(rows):
        if row.recalled is not None:
            is_recalled[offsets[index] + row.recalled] = True
            recalled_distance[index] = row.distances[row.recalled]
    is_counted = distance != SPECIAL
    return ReachSample(
        prediction=np.repeat(np.arange(len(rows)), np.diff(offsets))[is_counted],
        distance=distance[is_counted].astype(np.int64),
        gradient=norms[is_counted],
        occlusion=occlusion[is_counted],
        is_recalled=is_recalled[is_counted],
        recalled_distance=recalled_distance,
        is_correct=is_correct,
    )


def _gradient_norms(subject: ReachSubject, rows: Sequence[ReachRow]) -> tuple[Floats, Floats, np.ndarray]:
    """Gradient norm of every input token; log-probability of each reference, and whether it is the most probable."""
    inputs = Tokens.from_rows([row.input_ids for row in rows])
    weight = subject.embedding.weight
    ids = torch.from_numpy(inputs.ids.astype(np.int64)).to(weight.device)
    vectors = weight.detach()[ids].float().requires_grad_()  # [tokens, embedding]
    references = torch.tensor([row.reference_id for row in rows], device=weight.device)
    with torch.enable_grad(), replace_embeddings(subject.embedding, vectors):
        logprobs = subject.logprobs(inputs, rows)
        reference_logprobs = logprobs.gather(1, references[:, None])[:, 0]
        (gradient,) = torch.autograd.grad(reference_logprobs.sum(), vectors)
    is_correct = (logprobs.argmax(dim=1) == references).cpu().numpy()
    return _to_numpy(gradient.norm(dim=1)), _to_numpy(reference_logprobs), is_correct


def _replacements(row: ReachRow, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Positions to occlude, the recalled one among them, each with another token of the row."""
    positions = np.flatnonzero(row.distances != SPECIAL)
    chosen = rng.permutation(positions)[:count]
    if row.recalled is not None and row.recalled not in chosen:
        chosen[-1] = row.recalled
    replacements = []
    for position in chosen:
        others = row.input_ids[positions][row.input_ids[positions] != row.input_ids[position]]
        if len(others):
            replacements.append((int(position), int(rng.choice(others))))
    return replacements


@torch.no_grad()
def _occluded_logprobs(
    subject: ReachSubject, rows: Sequence[ReachRow], tokens: Sequence[tuple[int, int]], replacements: Sequence[int]
) -> Floats:
    """Log-probability of the reference token where one input token is replaced, for each of these tokens."""
    logprobs = []
    start = 0
    while start < len(tokens):
        longest = max(len(row.input_ids) for row in rows)
        end = start + max(1, BATCH_TOKENS // longest)
        batch_rows = [rows[index] for index, _ in tokens[start:end]]
        inputs = [row.input_ids.copy() for row in batch_rows]
        for ids, (_, position), replacement in zip(inputs, tokens[start:end], replacements[start:end], strict=True):
            ids[position] = replacement
        batch = subject.logprobs(Tokens.from_rows(inputs), batch_rows)
        references = torch.tensor([row.reference_id for row in batch_rows], device=batch.device)
        logprobs.append(_to_numpy(batch.gather(1, references[:, None])[:, 0]))
        start = end
    return np.concatenate(logprobs)


def _join_samples(samples: Sequence[ReachSample]) -> ReachSample:
    """One sample of all predictions."""
    offsets = np.cumsum([0, *(len(sample) for sample in samples)])

    def join(name: str) -> Any:
        return np.concatenate([getattr(sample, name) for sample in samples])

    predictions = [sample.prediction + offset for sample, offset in zip(samples, offsets[:-1], strict=True)]
    names = ("distance", "gradient", "occlusion", "is_recalled", "recalled_distance", "is_correct")
    return ReachSample(prediction=np.concatenate(predictions), **{name: join(name) for name in names})


def _to_numpy(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().double().cpu().numpy())
