"""`NextSentencePipeline`: the probability that one text follows another, by an encoder's next-sentence head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from regard.data.batching import length_sorted_batches
from regard.errors import UsageError
from regard.models.bert import Bert
from regard.packed_tokens import Tokens
from regard.pipeline.pickling import PicklablePipeline
from regard.tasks.windows import BATCH_TOKENS
from regard.text.special_tokens import SpecialTokens, TruncationReport


class NextSentenceDict(TypedDict):
    """JSON form of a `NextSentence`."""

    first: str
    second: str
    probability: float  # that the second text follows the first
    backend: str  # what computed it, and in which precision: torch float32


@dataclass(frozen=True)
class NextSentence:
    """Two texts, and the probability that the second follows the first."""

    first: str
    second: str
    probability: float
    backend: str

    def to_dict(self) -> NextSentenceDict:
        """JSON form of the prediction."""
        return {
            "first": self.first,
            "second": self.second,
            "probability": round(self.probability, 6),
            "backend": self.backend,
        }


class NextSentencePipeline(PicklablePipeline):
    """Predicts whether a text follows another (Devlin et al. 2019, section 3.1); torch computes it."""

    def __init__(self, model: Bert, special_tokens: SpecialTokens, max_length: int) -> None:
        self.model = model
        self.special_tokens = special_tokens
        self.max_length = max_length
        self.truncation_report = TruncationReport(max_length=max_length)

    def predict(self, first: Sequence[str], second: Sequence[str]) -> list[NextSentence]:
        """Predict for each pair; of a pair that is too long, the longer text is truncated first."""
        for pair_number, pair in enumerate(zip(first, second, strict=True), start=1):
            if not all(text.strip() for text in pair):
                raise UsageError(f"pair {pair_number} has an empty text: both are needed")
        tokens, report = self.special_tokens.encode_batch(first, second, max_length=self.max_length)
        self.truncation_report.add(report)
        assert tokens.token_types is not None
        rows = list(tokens)
        token_types = np.split(tokens.token_types, tokens.offsets[1:-1])
        probabilities = np.zeros(len(rows), dtype=np.float32)
        lengths = tokens.lengths.astype(np.int64).reshape(-1, 1)
        for indices in length_sorted_batches(lengths, max_tokens=BATCH_TOKENS):
            packed = Tokens.from_rows([rows[index] for index in indices])
            batch = Tokens(packed.ids, packed.offsets, np.concatenate([token_types[index] for index in indices]))
            probabilities[indices] = self.model.next_sentence_probabilities(batch)
        return [
            NextSentence(left, right, float(probability), backend=self.model.backend_name)
            for left, right, probability in zip(first, second, probabilities, strict=True)
        ]

    def __call__(self, first: str, second: str) -> NextSentence:
        """Predict for one pair."""
        return self.predict([first], [second])[0]
