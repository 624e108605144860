"""Evaluation while training: the averaged weights, float32, on validation data, in a model of their own.

Training a translator: parallel text, tokenizers, the model's size, and what is kept in the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.trace import trace
from regard.checkpoint.atomic import write_file
from regard.checkpoint.model_dir import LoadedTranslator, load_translator, save_translator
from regard.config.inference import DecodingConfig
from regard.config.models import TransformerConfig
from regard.config.rnn_models import TranslationModelConfig
from regard.config.runs import RunConfig
from regard.data.pairs import ParallelTexts, hold_out_pairs, read_pairs
from regard.decoding.batch_search import search_all
from regard.engine.library import unavailable_reason
from regard.engine.translator import TranslatorEngine
from regard.errors import UsageError
from regard.hardware import WorkerPool
from regard.models import build_model
from regard.models.base import EncoderDecoder, Model
from regard.tasks.alignment import best_alignment_head
from regard.tasks.metrics import bleu, exact_match, perplexity, translation_scores
from regard.tasks.translation import TokenizedPairs, TokenizerPair, TranslationObjective, mean_loss, search_translations
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from regard.tokens import Ids
from regard.training.auto_config import choose_translation_model
from regard.training.experiments.base import (
    BaseExperiment,
    EvaluationResult,
    ModelEvaluator,
    Notify,
    initialize_model,
    prefix_metrics,
    rejection_notes,
    spread_indices,
)
from regard.training.snapshots import AttentionSnapshot, SnapshotText, choose_example
from regard.training.trivial_baselines import constant_target, token_frequencies, unigram_perplexity
from regard.training.verdict import TrivialBaseline

MOST_TRANSLATED = 1000  # validation sentences translated at each evaluation; the loss is over all of them
FEW_TRANSLATED = 50  # while the model knows next to nothing, not even when to end a text
UNTRAINED_PERPLEXITY = 150.0  # perplexity from which on that is so
FEW_ALIGNED, MOST_ALIGNED = 40, 200  # validation sentences that choose the aligning head
MAX_RATIO, EXTRA_TOKENS = 20.0, 5  # of a greedy translation's length, beside what validation data shows


class TranslationEvaluator(ModelEvaluator[EncoderDecoder]):
    """A model of its own, float32, that receives the weights to be measured."""

    def __init__(
        self, config: TranslationModelConfig, languages: TokenizerPair, valid: TokenizedPairs, device: str
    ) -> None:
        super().__init__(build_model(config), device)
        self.languages, self.valid = languages, valid
        # no longer than what is to be written needs: a model that knows nothing yet does not know when to end
        ratios = valid.lengths[:, 1] / np.maximum(1, valid.lengths[:, 0])
        ratio = float(np.clip(ratios.max(initial=1.0), 1.0, MAX_RATIO))
        self.greedy = DecodingConfig(
            beam=1, batch_size=128, batch_tokens=2048, max_length_a=ratio, max_length_b=EXTRA_TOKENS
        )
        self.uses_engine = isinstance(config, TransformerConfig) and device == "cpu" and not unavailable_reason()
        self.search_seconds = 0.0  # of the last evaluation
        self.engine: TranslatorEngine | None = None  # of the weights that were loaded last

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take these weights; the engine decodes with them where it can."""
        super().load(named)
        if not self.uses_engine:
            self.model.pack()
            return
        weights = {name: tensor.detach().float().numpy() for name, tensor in self.model.state_dict().items()}
        assert isinstance(self.model.config, TransformerConfig)
        self.engine = TranslatorEngine.of(self.model.config, weights)

    def compute_metrics(self) -> EvaluationResult:
        """Return loss, perplexity, BLEU and exact match of greedy translations."""
        loss = mean_loss(self.model, self.valid)
        most = MOST_TRANSLATED if perplexity(loss, 1) < UNTRAINED_PERPLEXITY else FEW_TRANSLATED
        count = min(most, len(self.valid))
        began = time.monotonic()
        said = self.translations(count, self.greedy)
        self.search_seconds = time.monotonic() - began
        source, wanted = self.valid.texts.source[:count], self.valid.texts.target[:count]
        metrics = {
            "loss": loss,
            "perplexity": perplexity(loss, 1),
            "bleu": bleu(said, wanted),
            "exact_match": exact_match(said, wanted),
        }
        samples = list(zip(source[:2], wanted[:2], said[:2], strict=True))
        return metrics, (round(metrics["bleu"], 4), -loss), samples

    def translations(self, count: int, decoding: DecodingConfig) -> list[str]:
        """Return translations of the first validation sentences."""
        return self._translate(self.valid.source[:count], decoding)

    def _translate(self, rows: Sequence[Ids], decoding: DecodingConfig) -> list[str]:
        """Decode source rows, by the engine where it can."""
        workers = torch.get_num_threads() if self.model.device().type == "cpu" else 1
        if self.engine is None or decoding.coverage_penalty:  # which needs the attention weights of every step
            hypotheses = search_translations(self.model, rows, decoding, workers)
        else:
            longest = self.model.settings.max_positions - 1
            hypotheses = search_all(
                self.engine, rows, decoding, max_length=longest, map_batches=WorkerPool(workers).map
            )
        return [self.languages.target.decode(best[0].ids) for best in hypotheses]

    @torch.no_grad()
    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Return where the model looks while it is made to write the translation of one validation sentence."""
        number = choose_example(self.valid.lengths)
        if number is None:
            return None
        batch = self.valid.batch(np.array([number]))
        with trace() as seen:
            self.model.target_logprobs(batch.source, batch.target)
        texts, end = self.valid.texts, self.model.eos_id
        (translation,) = self._translate([self.valid.source[number]], self.greedy)
        return AttentionSnapshot.from_trace(
            seen,
            SnapshotText.of(self.languages.source, texts.source[number], batch.source.ids.tolist()),
            SnapshotText.of(self.languages.target, texts.target[number], [*batch.target.ids.tolist(), end]),
            translation,
        )

    @torch.no_grad()
    def alignment_head(self, most: int) -> dict[str, Any] | None:
        """Return the cross-attention head that aligns words best on the first sentences, for `task.json`."""
        if not self.model.cross_attention_sites():
            return None
        count = min(most, len(self.valid))
        batch = self.valid.batch(np.arange(count))
        with trace(",".join(self.model.cross_attention_sites()), full_precision=True) as seen:
            self.model.target_logprobs(batch.source, batch.target)
        weights = {site: seen[site].weights for site in seen}
        source, target = (
            [tokenizer.encode(text) for text in texts[:count]]
            for tokenizer, texts in (
                (self.languages.source, self.valid.texts.source),
                (self.languages.target, self.valid.texts.target),
            )
        )
        return asdict(best_alignment_head(weights, source, target))


LENGTH_POWERS = (0.6, 1.0, 1.4, 1.8)  # tried on validation data
BEAM_COST = 3.0  # beam search takes about so many times as long as the greedy search of an evaluation
TUNING_SHARE = 0.03  # of a time budget that tuning the search may take


class TranslationExperiment(BaseExperiment[TranslationModelConfig, TranslationEvaluator]):
    """Parallel text and the translator that learns it."""

    name = "translate"
    _evaluator: TranslationEvaluator | None = None

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.notes: list[str] = []
        self.preferred_settings: dict[str, float] = {}
        self.decoding = config.decoding
        pairs = read_pairs(config.data.train, config.data.read)
        rejects = rejection_notes(pairs, "training")
        if config.data.valid:
            valid = read_pairs(config.data.valid, config.data.read)
            rejects += rejection_notes(valid, "validation")
        else:
            pairs, valid = hold_out_pairs(pairs, config.training.seed)
            self.notes.append(f"validation: {len(valid):,} of the training pairs are held out (chosen by the seed)")
        self.digests = {"train": pairs.digest, "valid": valid.digest}
        self.notes += rejects
        self.start = load_translator(config.pretrained) if config.pretrained else None
        self.is_pretrained = self.start is not None
        self.languages = self._languages(pairs)
        train = self._fitting(self.languages.examples(pairs), "training")
        self.valid = self._fitting(self.languages.examples(valid), "validation")
        self.tokens_per_epoch = int(train.lengths[:, 1].sum())
        seed, sampling = config.training.seed, config.tokenizer.bpe_dropout
        self.task = TranslationObjective(self.languages, train, self.valid, seed=seed, sampling=sampling)
        if self.start is None:
            self.model_config, self.reason = choose_translation_model(config, self.languages, self.tokens_per_epoch)
        else:
            self.model_config, self.reason = self.start.config, f"as in {config.pretrained}"
        self.hidden_size = self.model_config.hidden_size

    # ---- choices

    def _languages(self, pairs: ParallelTexts) -> TokenizerPair:
        folder = self.folder / "tokenizers"
        if (folder / "target.json").exists():
            source, target = (
                Tokenizer.from_json((folder / name).read_text("utf-8"), where=str(folder / name))
                for name in ("source.json", "target.json")
            )
            return TokenizerPair(source, target)
        settings = self.config.tokenizer
        if self.start is not None:
            languages = TokenizerPair(self.start.source, self.start.target)
        elif settings.joint:
            tokenizer = train_tokenizer([*pairs.source, *pairs.target], settings)
            languages = TokenizerPair(tokenizer, tokenizer)
        else:
            languages = TokenizerPair(train_tokenizer(pairs.source, settings), train_tokenizer(pairs.target, settings))
        folder.mkdir(exist_ok=True)
        write_file(folder / "source.json", languages.source.to_json().encode())
        write_file(folder / "target.json", languages.target.to_json().encode())
        return languages

    def _fitting(self, examples: TokenizedPairs, name: str) -> TokenizedPairs:
        """Leave out rows beyond the longest length, and say how many."""
        most = self.config.data.max_length
        fits = np.flatnonzero(examples.lengths.max(axis=1) <= most) if len(examples) else np.zeros(0, np.int64)
        if len(fits) == 0:
            raise UsageError(f"no {name} pair has at most {most} tokens: raise --data.max_length or split the texts")
        if len(fits) == len(examples):
            return examples
        self.notes.append(f"{len(examples) - len(fits):,} {name} pairs of over {most} tokens are left out")
        return examples.select(fits)

    # ---- what a run asks

    def model(self) -> Model:
        """Return the model with its first weights."""
        weights = self.start.weights if self.start is not None else None
        return initialize_model(build_model(self.model_config), self.config.training.seed, weights)

    def limit_validation(self, share: float) -> None:
        """Validate on this share of the validation pairs only."""
        self.valid = self.valid.select(spread_indices(len(self.valid), share))

    def validation_tokens(self) -> int:
        """Return how many tokens one evaluation reads and writes."""
        return int(self.valid.lengths.sum())

    def closing_seconds(self, evaluation: float) -> float:
        """Estimate the seconds of the last translations by beam search, and a share of the time for tuning."""
        greedy = min(evaluation, self.search_seconds) if self.search_seconds else evaluation
        beam = BEAM_COST * greedy if self.config.decoding.beam > 1 else greedy
        tuning = min((len(LENGTH_POWERS) - 1) * beam, TUNING_SHARE * 60 * self.config.training.minutes)
        return super().closing_seconds(evaluation) - greedy + beam + tuning

    def evaluator(self, device: str) -> TranslationEvaluator:
        """Return what measures weights."""
        self._evaluator = TranslationEvaluator(self.model_config, self.languages, self.valid, device)
        return self._evaluator

    @property
    def search_seconds(self) -> float:
        """Seconds that the greedy search of the last evaluation took; 0 before the first."""
        return 0.0 if self._evaluator is None else self._evaluator.search_seconds

    def describe(self, parameters: int) -> list[str]:
        """Say what the data and the model are."""
        config = self.model_config
        kinds = f"{self.languages.source.vocab_size:,}" + (
            "" if config.share_embeddings else f" and {self.languages.target.vocab_size:,}"
        )
        train, valid = len(self.task.train), len(self.valid)
        return [
            f"data: {train:,} pairs, {self.tokens_per_epoch:,} target tokens; validation {valid:,} pairs",
            f"tokens: {self.config.tokenizer.kind}, {kinds} kinds",
            f"model: {parameters / 1e6:.2f} M parameters, {config.summary()} ({self.reason})",
        ]

    def metadata(self, evaluator: TranslationEvaluator) -> dict[str, Any]:
        """Return what must be known to translate as in training."""
        count = FEW_ALIGNED if self.verdict is None else MOST_ALIGNED  # while it trains, a quick choice will do
        return {"max_length": self.config.data.max_length, "align": evaluator.alignment_head(count)}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of target tokens by their training frequencies, and what the most frequent target scores."""
        target = self.languages.target
        train, valid = (
            [np.append(row, target.eos_id) for row in part.target] for part in (self.task.train, self.valid)
        )
        constant = constant_target(self.task.train.texts.target, self.valid.texts.target[:MOST_TRANSLATED])
        frequencies = token_frequencies(unigram_perplexity(train, valid, target.vocab_size), translation=True)
        return [frequencies, constant]

    def save(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        save_translator(
            self.folder,
            self.model_config,
            weights,
            tokenizers={"source": self.languages.source, "target": self.languages.target},
            decoding=self.decoding,
            task=facts,
            card=card,
            fields=self.start.hf_config if self.start is not None else None,
        )

    def load_saved(self) -> LoadedTranslator:
        """Return the run's model as it was written."""
        return load_translator(self.folder)

    def final_evaluation(
        self, evaluator: TranslationEvaluator, notify: Notify
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tune the search on validation data and return the scores of its translations."""
        count = min(MOST_TRANSLATED, len(self.valid))
        self.decoding, said = self._tuned(evaluator, count, notify)
        return prefix_metrics("valid", translation_scores(said, self.valid.texts.target[:count])), {}

    def _tuned(self, evaluator: TranslationEvaluator, count: int, notify: Notify) -> tuple[DecodingConfig, list[str]]:
        """Return the search with the length power that scores best on validation data, and its translations."""
        given = self.config.decoding
        powers = [given.length_penalty]
        if self.config.training.tune_length_penalty and given.beam > 1 and not given.sample:
            powers += [power for power in LENGTH_POWERS if power != given.length_penalty]
        tried = []
        for power in powers:
            began = time.monotonic()
            decoding = replace(given, length_penalty=power)
            said = evaluator.translations(count, decoding)
            tried.append((bleu(said, self.valid.texts.target[:count]), decoding, said))
            if 2 * time.monotonic() - began > self.deadline and len(tried) < len(powers):
                notify(f"the time is up: {len(tried)} of {len(powers)} length powers were tried")
                break
        _, decoding, said = max(tried, key=lambda one: one[0])  # the first of equals: the given one
        if len(tried) > 1:
            told = ", ".join(f"{one.length_penalty:g}: {found:.2f}" for found, one, _ in tried)
            notify(f"length power {decoding.length_penalty:g} is best on validation data (BLEU by power {told})")
        return decoding, said
