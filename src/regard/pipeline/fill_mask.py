"""`FillMaskPipeline`: the most probable tokens for the masks of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from regard.config.inference import RecordConfig
from regard.data.batching import length_sorted_batches
from regard.data.documents import Documents
from regard.errors import UsageError
from regard.models.bert import Bert
from regard.packed_tokens import Tokens
from regard.pipeline.pickling import PicklablePipeline
from regard.pipeline.records.encoder_records import EncoderRecorder, VisibleWindow, encode_row
from regard.pipeline.records.trace_records import decoding_steps
from regard.pipeline.result import PipelineResult, attach_recorder
from regard.tasks.masked_lm import FilledToken, MaskedRowLayout, predict_masked_tokens, top_tokens_at, unigram_loss
from regard.tasks.scoring import Scoring
from regard.tasks.token_stream import TokenStream
from regard.text.special_tokens import SpecialTokens
from regard.text.tokenizer import Tokenizer
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

TASK = "masked-lm"
TEXTS_PER_BATCH = 256  # read from a stream at a time
BATCH_TOKENS = 4096  # computed together


class PredictionDict(TypedDict):
    """JSON form of a `Prediction`."""

    token: str
    probability: float
    text: str  # with the token in place of this mask; other masks stay
    token_id: int


@dataclass(frozen=True)
class Prediction:
    """A token for a mask."""

    token: str
    probability: float
    text: str  # with the token in place of this mask; other masks stay
    token_id: int

    def to_dict(self) -> PredictionDict:
        """JSON form of the prediction."""
        return {
            "token": self.token,
            "probability": round(self.probability, 6),
            "text": self.text,
            "token_id": self.token_id,
        }


class FilledTextDict(TypedDict):
    """JSON form of a `FilledText`."""

    text: str
    masks: list[list[PredictionDict]]  # in the order of the text, each with the most probable token first
    best_text: str  # the text with the most probable token for every mask
    truncated: int  # tokens far from the masks that were not read


@dataclass(frozen=True)
class FilledText(PipelineResult):
    """A text and the predictions for its masks."""

    text: str
    masks: list[list[Prediction]]  # in the order of the text, each with the most probable token first
    best_text: str  # the text with the most probable token for every mask
    truncated: int  # tokens far from the masks that were not read

    def __str__(self) -> str:
        return self.best_text

    def to_dict(self) -> FilledTextDict:
        """JSON form of the text and the predictions for its masks."""
        return {
            "text": self.text,
            "masks": [[prediction.to_dict() for prediction in mask] for mask in self.masks],
            "best_text": self.best_text,
            "truncated": self.truncated,
        }


@dataclass(frozen=True)
class _MaskedRow:
    """Row of a text with masks, as the model reads it."""

    ids: list[int]
    token_types: list[int]
    positions: list[int]  # of the masks
    truncated: int
    start: int = 0  # index of the first token of the text that is read


class FillMaskPipeline(PicklablePipeline):
    """Predicts the masked tokens of texts."""

    task_name = TASK

    def __init__(
        self,
        model: Bert,
        tokenizer: Tokenizer,
        task: dict[str, Any],
        max_length: int,
        token_counts: NDArray[np.int64] | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.task = task
        self.max_length = max_length
        self.token_counts = token_counts
        self.special_tokens = SpecialTokens(tokenizer)
        self.mask = str(tokenizer.backend.id_to_token(self.special_tokens.mask_id))

    def stream(self, texts: Iterable[str], *, top_k: int = 5) -> Iterator[FilledText]:
        """Yield the `k` best predictions for each mask of each text, in order."""
        if top_k < 1:
            raise UsageError(f"top_k ({top_k}) must be at least 1")
        pending = iter(texts)
        num_read = 0
        while batch := list(islice(pending, TEXTS_PER_BATCH)):
            yield from self._fill_batch(batch, top_k, num_read)
            num_read += len(batch)

    def fill(self, texts: Sequence[str], *, top_k: int = 5) -> list[FilledText]:
        """Predict the masks of each text."""
        if isinstance(texts, str):
            raise UsageError("fill takes a list of texts: call the pipeline itself with a single one")
        return list(self.stream(texts, top_k=top_k))

    def __call__(self, text: str, *, top_k: int = 5) -> FilledText:
        """Predict the masks of one text."""
        return self.fill([text], top_k=top_k)[0]

    def _fill_batch(self, texts: Sequence[str], top_k: int, num_read: int) -> list[FilledText]:
        rows = [self._encode_row(text, text_number) for text_number, text in enumerate(texts, num_read + 1)]
        filled_texts: dict[int, FilledText] = {}
        lengths = np.array([[len(row.ids)] for row in rows], dtype=np.int64)
        for batch in length_sorted_batches(lengths, max_tokens=BATCH_TOKENS):
            indices = batch.tolist()
            tokens, token_indices = _pack_rows([rows[index] for index in indices])
            ids, probabilities = top_tokens_at(self.model, tokens, token_indices, top_k)
            predictions = iter(zip(ids, probabilities, strict=True))  # mask by mask
            for index in indices:
                row = rows[index]
                row_predictions = list(islice(predictions, len(row.positions)))
                filled = self._fill_text(texts[index], row_predictions, row.truncated)
                recorder = partial(self._build_record, filled, row)
                filled_texts[index] = attach_recorder(filled, recorder, self.model.backend_name)
        return [filled_texts[index] for index in range(len(texts))]

    def _encode_row(self, text: str, text_number: int) -> _MaskedRow:
        """Encode a text whole, or what fits the model around its masks."""
        encoded = self.special_tokens.encode(text, parse_special=True)
        content = [token_id for token_id, side in zip(encoded.ids, encoded.sides, strict=True) if side >= 0]
        positions = [position for position, token_id in enumerate(content) if token_id == self.special_tokens.mask_id]
        if not positions or len(positions) != text.count(self.mask):
            excerpt = text if len(text) <= 60 else f"{text[:57]}…"
            raise UsageError(
                f"text {text_number} has no mask ({excerpt!r}): write {self.mask} where a token is to be predicted"
            )
        max_content = self.max_length - self.special_tokens.num_special()
        start = 0
        if len(content) > max_content:
            extent = positions[-1] - positions[0] + 1
            if extent > max_content:
                raise UsageError(
                    f"text {text_number}: its masks span {extent:,} tokens, the model reads {max_content:,}: split it"
                )
            centred_start = (positions[0] + positions[-1] + 1 - max_content) // 2
            start = min(max(0, centred_start), len(content) - max_content)
        ids, token_types = self.special_tokens.add(content[start : start + max_content])
        num_before = len(self.special_tokens.single_template.before)
        return _MaskedRow(
            ids,
            token_types,
            positions=[num_before + position - start for position in positions],
            truncated=max(0, len(content) - max_content),
            start=start,
        )

    def _fill_text(
        self, text: str, predictions: list[tuple[NDArray[np.int32], NDArray[np.float32]]], truncated: int
    ) -> FilledText:
        """Put predicted tokens in place of the masks; `predictions` are token ids and probabilities of each mask."""
        fragments = text.split(self.mask)
        masks = []
        best_text = fragments[0]
        for mask_index, (ids, probabilities) in enumerate(predictions):
            before = self.mask.join(fragments[: mask_index + 1])
            after = self.mask.join(fragments[mask_index + 1 :])
            mask_predictions = []
            for token_id, probability in zip(ids.tolist(), probabilities.tolist(), strict=True):
                token = FilledToken.from_id(self.tokenizer, token_id)
                mask_predictions.append(
                    Prediction(token.text, probability, text=token.insert(before, after), token_id=token_id)
                )
            masks.append(mask_predictions)
            best_token = FilledToken.from_id(self.tokenizer, int(ids[0]))
            best_text = best_token.insert(best_text, fragments[mask_index + 1])
        return FilledText(text, masks, best_text=best_text, truncated=truncated)

    def _build_record(self, filled: FilledText, row: _MaskedRow, config: RecordConfig) -> Record:
        """Record the attention over a text; each mask is a step whose token is the most probable one."""
        num_content = len(row.ids) - self.special_tokens.num_special()
        encoded_row = encode_row(
            self.special_tokens,
            filled.text,
            max_length=self.max_length,
            window=VisibleWindow(row.start, row.start + num_content),
            parse_special=True,
        )
        best_ids = [predictions[0].token_id for predictions in filled.masks]

        def build_steps(logits: NDArray[np.float32]) -> dict[str, Any]:
            mask_logits = logits[row.positions].astype(np.float64)
            logprobs = mask_logits - np.logaddexp.reduce(mask_logits, axis=1, keepdims=True)
            steps = decoding_steps(logprobs, best_ids, self.tokenizer.subwords, config.candidates)
            target = RecordText.from_labels(filled.best_text, [step.token for step in steps])
            return {"texts": {"target": target}, "steps": steps}

        recorder = EncoderRecorder(self.model, self.special_tokens)
        return recorder.record(encoded_row, config, task=TASK, run_model=self.model.logits, extra_parts=build_steps)

    def evaluate(self, documents: Documents, row_length: int = 0, *, metrics: Sequence[str] = ()) -> dict[str, Any]:
        """Masked-LM loss and perplexity of running text, beside those of a unigram model, and metrics by name.

        15 % of the tokens are masked, always the same ones; `row_length` defaults to that of training.
        """
        from regard.config.data import MaskingConfig

        has_pairs = self.model.config.head == "pretraining"
        layout = MaskedRowLayout.from_tokenizer(self.tokenizer, MaskingConfig(next_sentence=has_pairs))
        max_length = min(row_length or int(self.task.get("row", 128)), self.max_length) - layout.num_special
        stream = TokenStream.from_documents(documents, self.tokenizer, max(1, max_length))
        baseline_loss = None if self.token_counts is None else unigram_loss(self.token_counts, stream, layout)
        predictions = predict_masked_tokens(self.model, stream, layout, unigram_loss=baseline_loss)
        scores: dict[str, Any] = {
            "documents": len(documents),
            "tokens": len(stream.ids),
            "masked": len(predictions.references),
            **Scoring(self.task_name, tuple(metrics)).compute_final(predictions),
        }
        if "perplexity_unigram" in scores:
            scores["times_better"] = scores["perplexity_unigram"] / scores["perplexity"]
        return scores


def _pack_rows(rows: Sequence[_MaskedRow]) -> tuple[Tokens, NDArray[np.int64]]:
    """Pack rows into one batch; also return the token indices of their masks."""
    packed = Tokens.from_rows([row.ids for row in rows])
    token_types: list[int] = []
    mask_indices: list[int] = []
    for offset, row in zip(packed.offsets, rows, strict=False):
        token_types += row.token_types
        mask_indices += [int(offset) + position for position in row.positions]
    return Tokens(packed.ids, packed.offsets, np.array(token_types, dtype=np.int32)), np.array(mask_indices)
