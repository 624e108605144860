"""A translator's shortlist: learned from a parallel text, and measured on a part of it that it did not learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from regard.checkpoint.model_dir import LoadedTranslator
from regard.config.models import TransformerConfig
from regard.data.pairs import hold_out_pairs, read_pairs
from regard.decoding.batch_search import search_all
from regard.engine.shortlist import Shortlist, train_shortlist
from regard.engine.translator import TranslatorEngine
from regard.errors import UsageError
from regard.tasks.metrics import bleu
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, Tokens

MOST = 500  # sentences that the effect is measured on


@dataclass(frozen=True)
class TrainedShortlist:
    """A shortlist, and sentences that were kept back to measure what it costs."""

    shortlist: Shortlist
    source: list[str]
    target: list[str]
    covered: float  # share of the words kept back that it allows
    size: float  # words that a text has on average
    vocabulary: int

    @classmethod
    def train(cls, model: LoadedTranslator, files: Sequence[str | Path]) -> TrainedShortlist:
        """Learn which words translate which from a parallel text, in the forms that training reads."""
        config = model.config
        if not isinstance(config, TransformerConfig):
            raise UsageError("a shortlist is for the engine, which computes Transformers, not recurrent models")
        used, kept = hold_out_pairs(read_pairs([str(file) for file in files]), seed=1)
        source, target = _ids(model.source, used.source), _ids(model.target, used.target)
        always = [config.eos_id, *(number for number in model.target.special_ids if number < config.target_vocab_size)]
        alike = model.source.to_json() == model.target.to_json()
        made = train_shortlist(source, target, config.source_vocab_size, config.target_vocab_size, always, alike)
        asked, wanted = kept.source[:MOST], kept.target[:MOST]
        words, ends = made.token_lists(Tokens.from_rows(_ids(model.source, asked)))
        lists = [words[first:last] for first, last in pairwise(ends)]
        inside = [np.isin(ids, mine) for ids, mine in zip(_ids(model.target, wanted), lists, strict=True)]
        covered = float(np.concatenate(inside).mean())
        return cls(made, asked, wanted, covered, len(words) / len(asked), config.target_vocab_size)

    def describe_effect(self, model: LoadedTranslator, engine: TranslatorEngine) -> list[str]:
        """Say what it costs a translator that is asked for the sentences kept back."""
        end = np.array([model.source.eos_id], np.int32)
        rows = [np.concatenate([ids, end]) for ids in _ids(model.source, self.source)]
        engine.shortlist = self.shortlist
        with_it, without = (
            [
                model.target.decode(found[0].ids)
                for found in search_all(engine, rows, asked, max_length=engine.config.max_positions - 1)
            ]
            for asked in (model.decoding.override({"whole_vocabulary": whole}) for whole in (False, True))
        )
        scores = [bleu(said, self.target) for said in (with_it, without)]
        same = np.mean([one == other for one, other in zip(with_it, without, strict=True)])
        return [
            f"shortlist: {self.size:,.0f} of {self.vocabulary:,} words for a text on average, "
            f"{100 * self.covered:.1f} % of those of translations kept back are among them",
            f"its effect on {len(self.source):,} sentences kept back: BLEU {scores[0]:.2f}, with all words "
            f"{scores[1]:.2f}; {100 * same:.1f} % of the translations stay the same (--whole-vocabulary)",
        ]


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
    return [np.asarray(ids, np.int32) for ids in tokenizer.encode_batch(texts)]
