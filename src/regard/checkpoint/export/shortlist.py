"""Shortlist of a translation model: trained on a parallel text and measured on a held-out part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from regard.checkpoint.source import TranslatorSource
from regard.config.models import TransformerConfig
from regard.data.pairs import hold_out_pairs, read_pairs
from regard.decoding.batch_search import search_all
from regard.engine.shortlist import Shortlist, train_shortlist
from regard.engine.translator import TranslatorEngine
from regard.errors import UsageError
from regard.packed_tokens import Ids, Tokens
from regard.tasks.metrics import bleu
from regard.text.tokenizer import Tokenizer

MAX_SENTENCES = 500  # that the effect is measured on


@dataclass(frozen=True)
class TrainedShortlist:
    """A shortlist, and held-out sentences to measure its effect."""

    shortlist: Shortlist
    source: list[str]
    target: list[str]
    coverage: float  # fraction of the held-out target tokens that it allows
    mean_size: float  # tokens that it allows a text on average
    vocab_size: int

    @classmethod
    def train(cls, model: TranslatorSource, files: Sequence[str | Path]) -> TrainedShortlist:
        """Train on a parallel text, in the formats that training reads."""
        config = model.config
        if not isinstance(config, TransformerConfig):
            raise UsageError("a shortlist is for the engine, which computes Transformers, not recurrent models")
        pairs, held_out = hold_out_pairs(read_pairs([str(file) for file in files]), seed=1)
        special_ids = [token_id for token_id in model.target.special_ids if token_id < config.target_vocab_size]
        shortlist = train_shortlist(
            _encode(model.source, pairs.source),
            _encode(model.target, pairs.target),
            config.source_vocab_size,
            config.target_vocab_size,
            [config.eos_id, *special_ids],
            model.source.to_json() == model.target.to_json(),
        )
        source = held_out.source[:MAX_SENTENCES]
        target = held_out.target[:MAX_SENTENCES]
        token_ids, offsets = shortlist.token_lists(Tokens.from_rows(_encode(model.source, source)))
        allowed = [token_ids[start:stop] for start, stop in pairwise(offsets)]
        is_allowed = [
            np.isin(ids, list_ids) for ids, list_ids in zip(_encode(model.target, target), allowed, strict=True)
        ]
        return cls(
            shortlist,
            source,
            target=target,
            coverage=float(np.concatenate(is_allowed).mean()),
            mean_size=len(token_ids) / len(source),
            vocab_size=config.target_vocab_size,
        )

    def describe_effect(self, model: TranslatorSource, engine: TranslatorEngine) -> list[str]:
        """Compare translations of the held-out sentences with and without the shortlist."""
        engine.shortlist = self.shortlist
        with_shortlist = self._translate(model, engine, use_shortlist=True)
        without_shortlist = self._translate(model, engine, use_shortlist=False)
        bleu_with = bleu(with_shortlist, self.target)
        bleu_without = bleu(without_shortlist, self.target)
        is_same = [first == second for first, second in zip(with_shortlist, without_shortlist, strict=True)]
        same_percent = 100 * np.mean(is_same)
        return [
            f"shortlist: {self.mean_size:,.0f} of {self.vocab_size:,} tokens per text on average; "
            f"it has {100 * self.coverage:.1f} % of the tokens of held-out translations",
            f"its effect on {len(self.source):,} held-out sentences: BLEU {bleu_with:.2f}, with the whole vocabulary "
            f"{bleu_without:.2f}; {same_percent:.1f} % of the translations stay the same (--no-shortlist)",
        ]

    def _translate(self, model: TranslatorSource, engine: TranslatorEngine, *, use_shortlist: bool) -> list[str]:
        """Translate the held-out sentences."""
        eos = np.array([model.source.eos_id], np.int32)
        sequences = [np.concatenate([ids, eos]) for ids in _encode(model.source, self.source)]
        decoding = model.decoding.override({"shortlist": use_shortlist})
        hypotheses = search_all(engine, sequences, decoding, max_length=engine.config.max_positions - 1)
        return [model.target.decode(ranked[0].ids) for ranked in hypotheses]


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
    return [np.asarray(ids, np.int32) for ids in tokenizer.encode_batch(texts)]
