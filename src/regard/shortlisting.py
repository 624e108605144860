"""A translator's shortlist: learned from a parallel text, and measured on a part of it that it did not learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from regard.checkpoint.model_folder import LoadedModel
from regard.config.model import TranslatorConfig
from regard.data.sources import hold_out_pairs, read_pairs
from regard.decoding.batches import search_rows
from regard.engine.shortlist import Shortlist, learned
from regard.engine.translator import Engine
from regard.errors import UsageError
from regard.tasks.metrics import bleu
from regard.text.tokenizer import Tokenizer
from regard.tokens import Ids, Tokens

MOST = 500  # sentences that the effect is measured on


@dataclass(frozen=True)
class Listed:
    """A shortlist, and sentences that were kept back to measure what it costs."""

    shortlist: Shortlist
    source: list[str]
    target: list[str]
    covered: float  # share of the words kept back that it allows
    size: float  # words that a text has on average
    vocabulary: int

    @classmethod
    def learned(cls, model: LoadedModel, files: Sequence[str | Path]) -> Listed:
        """Learn which words translate which from a parallel text, in the forms that training reads."""
        config = model.config
        if not isinstance(config, TranslatorConfig):
            raise UsageError("a shortlist is for the engine, which computes Transformers, not recurrent models")
        used, kept = hold_out_pairs(read_pairs([str(file) for file in files]), seed=1)
        source, target = _ids(model.source, used.source), _ids(model.target, used.target)
        always = [config.end, *(number for number in model.target.specials if number < config.target_vocabulary)]
        alike = model.source.dumps() == model.target.dumps()
        made = learned(source, target, config.source_vocabulary, config.target_vocabulary, always, alike)
        asked, wanted = kept.source[:MOST], kept.target[:MOST]
        words, ends = made.of(Tokens.from_rows(_ids(model.source, asked)))
        lists = [words[first:last] for first, last in pairwise(ends)]
        inside = [np.isin(ids, mine) for ids, mine in zip(_ids(model.target, wanted), lists, strict=True)]
        covered = float(np.concatenate(inside).mean())
        return cls(made, asked, wanted, covered, len(words) / len(asked), config.target_vocabulary)

    def effect(self, model: LoadedModel, engine: Engine) -> list[str]:
        """Say what it costs a translator that is asked for the sentences kept back."""
        end = np.array([model.source.end], np.int32)
        rows = [np.concatenate([ids, end]) for ids in _ids(model.source, self.source)]
        engine.shortlist = self.shortlist
        with_it, without = (
            [
                model.target.decode(found[0].ids)
                for found in search_rows(engine, rows, asked, longest=engine.config.places - 1)
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
    return [np.asarray(ids, np.int32) for ids in tokenizer.encode_all(texts)]
