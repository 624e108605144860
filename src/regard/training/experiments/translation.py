"""Train a translation model on parallel text: tokenizers, model size, evaluation by BLEU, tuning of the search."""

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
from regard.checkpoint.model_dir import load_translator, save_translator
from regard.checkpoint.source import TranslatorSource
from regard.checkpoint.weights import to_arrays
from regard.config.inference import DecodingConfig
from regard.config.models import TransformerConfig
from regard.config.rnn_models import TranslationModelConfig
from regard.config.task_runs import TranslateRun
from regard.data.pairs import ParallelTexts, hold_out_pairs, read_pairs
from regard.decoding.batch_search import search_all
from regard.engine.library import unavailable_reason
from regard.engine.translator import TranslatorEngine, unsupported_transformer_reason
from regard.errors import UsageError
from regard.hardware import WorkerPool
from regard.metric_table import METRICS
from regard.models import build_model
from regard.models.base import EncoderDecoder
from regard.packed_tokens import Ids
from regard.tasks.alignment import best_alignment_head
from regard.tasks.metrics import perplexity
from regard.tasks.predictions import PredictedTranslations, Predictions
from regard.tasks.scoring import Scoring, require_metric
from regard.tasks.translation import TokenizedPairs, TokenizerPair, TranslationObjective, mean_loss, search_translations
from regard.text.extend import append_other_side
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer
from regard.training.auto_config import choose_translation_model
from regard.training.evaluation import ModelEvaluator, Samples
from regard.training.experiments.base import BaseExperiment, Notify, prefix_metrics, subsample_indices
from regard.training.experiments.data_splits import DataSplits
from regard.training.experiments.pretrained import digest_pretrained
from regard.training.snapshots import AttentionSnapshot, SnapshotText, choose_example
from regard.training.trivial_baselines import constant_target, token_frequencies, unigram_perplexity
from regard.training.verdict import TrivialBaseline
from regard.training.vocabulary import SOURCE_TABLES, TARGET_TABLES, extend_shared_tables, extend_tables

MAX_TRANSLATED = 1000  # validation sentences translated at each evaluation; the loss is over all of them
MAX_TRANSLATED_UNTRAINED = 50  # while translations of an untrained model run on to the length limit
UNTRAINED_PERPLEXITY = 150.0  # from which on a model counts as untrained
MAX_ALIGNED = 200  # validation sentences that choose the alignment head
MAX_ALIGNED_TRAINING = 40  # the same, during training
MAX_LENGTH_RATIO = 20.0  # of a greedy translation to its source
EXTRA_TOKENS = 5  # of a greedy translation beyond that ratio
LENGTH_PENALTIES = (0.6, 1.0, 1.4, 1.8)  # tried on validation data
BEAM_COST = 3.0  # time of beam search over that of the greedy search of an evaluation
TUNING_FRACTION = 0.03  # of a time budget that tuning the search may take
NUM_SAMPLES = 2  # sentences shown at each evaluation


class TranslationEvaluator(ModelEvaluator[EncoderDecoder]):
    """Evaluates loss and greedy translations on validation data; the engine decodes where it can."""

    def __init__(
        self,
        config: TranslationModelConfig,
        tokenizers: TokenizerPair,
        valid: TokenizedPairs,
        device: str,
        scoring: Scoring,
    ) -> None:
        super().__init__(build_model(config), device, scoring)
        self.tokenizers = tokenizers
        self.valid = valid
        self.greedy = _greedy_decoding(valid)
        is_supported = isinstance(config, TransformerConfig) and not unsupported_transformer_reason(config)
        self.uses_engine = is_supported and device == "cpu" and not unavailable_reason()
        self.search_seconds = 0.0  # of the last evaluation
        self.engine: TranslatorEngine | None = None  # with the weights that were loaded last

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights to evaluate, also into the engine where it can decode."""
        super().load(weights)
        if not self.uses_engine:
            self.model.pack()
            return
        arrays = {name: tensor.detach().float().numpy() for name, tensor in self.model.state_dict().items()}
        assert isinstance(self.model.config, TransformerConfig)
        self.engine = TranslatorEngine.from_weights(self.model.config, arrays)

    def predict(self) -> tuple[Predictions, Samples]:
        """Translate validation sentences greedily, and compute the loss of all of them."""
        loss = mean_loss(self.model, self.valid)
        is_trained = perplexity(loss, 1) < UNTRAINED_PERPLEXITY
        count = min(MAX_TRANSLATED if is_trained else MAX_TRANSLATED_UNTRAINED, len(self.valid))
        start = time.monotonic()
        translations = self.translations(count, self.greedy)
        self.search_seconds = time.monotonic() - start
        sources = self.valid.texts.source[:count]
        references = self.valid.texts.target[:count]
        samples = list(zip(sources[:NUM_SAMPLES], references[:NUM_SAMPLES], translations[:NUM_SAMPLES], strict=True))
        return PredictedTranslations(predictions=translations, references=references, loss=loss), samples

    def translations(self, count: int, decoding: DecodingConfig) -> list[str]:
        """Translate the first `count` validation sentences."""
        return self._translate(self.valid.source[:count], decoding)

    def _translate(self, sources: Sequence[Ids], decoding: DecodingConfig) -> list[str]:
        workers = torch.get_num_threads() if self.model.device().type == "cpu" else 1
        # The coverage penalty needs the attention weights of every step, which the engine does not return.
        if self.engine is None or decoding.coverage_penalty:
            hypotheses = search_translations(self.model, sources, decoding, workers)
        else:
            hypotheses = search_all(
                self.engine,
                sources,
                decoding,
                max_length=self.model.settings.max_positions - 1,
                map_batches=WorkerPool(workers).map,
            )
        return [self.tokenizers.target.decode(nbest[0].ids) for nbest in hypotheses]

    @torch.no_grad()
    def attention_snapshot(self) -> AttentionSnapshot | None:
        """Attention of one validation pair, with the reference as decoder input, and the greedy translation."""
        index = choose_example(self.valid.lengths)
        if index is None:
            return None
        batch = self.valid.batch(np.array([index]))
        with trace() as attention:
            self.model.target_logprobs(batch.source, batch.target)
        texts = self.valid.texts
        source_ids = batch.source.ids.tolist()
        target_ids = [*batch.target.ids.tolist(), self.model.eos_id]
        (translation,) = self._translate([self.valid.source[index]], self.greedy)
        return AttentionSnapshot.from_trace(
            attention,
            self.model.config,
            SnapshotText.from_ids(self.tokenizers.source, texts.source[index], source_ids),
            SnapshotText.from_ids(self.tokenizers.target, texts.target[index], target_ids),
            translation,
        )

    @torch.no_grad()
    def alignment_head(self, max_sentences: int) -> dict[str, Any] | None:
        """Cross-attention head that aligns words best on the first validation sentences, for task.json."""
        sites = self.model.cross_attention_sites()
        if not sites:
            return None
        count = min(max_sentences, len(self.valid))
        batch = self.valid.batch(np.arange(count))
        with trace(",".join(sites), full_precision=True) as attention:
            self.model.target_logprobs(batch.source, batch.target)
        weights = {site: attention[site].weights for site in attention}
        sources = [self.tokenizers.source.encode(text) for text in self.valid.texts.source[:count]]
        targets = [self.tokenizers.target.encode(text) for text in self.valid.texts.target[:count]]
        return asdict(best_alignment_head(weights, sources, targets))


def _greedy_decoding(valid: TokenizedPairs) -> DecodingConfig:
    """Greedy search, limited to the lengths of validation data: an untrained model does not predict the end."""
    ratios = valid.lengths[:, 1] / np.maximum(1, valid.lengths[:, 0])
    max_ratio = float(np.clip(ratios.max(initial=1.0), 1.0, MAX_LENGTH_RATIO))
    return DecodingConfig(beam=1, batch_size=128, batch_tokens=2048, max_length_a=max_ratio, max_length_b=EXTRA_TOKENS)


class TranslationExperiment(BaseExperiment[TranslationModelConfig, TranslationEvaluator]):
    """Train a Transformer or RNN encoder–decoder on parallel text."""

    config: TranslateRun
    _evaluator: TranslationEvaluator | None = None

    # set by `prepare`
    pretrained: TranslatorSource | None
    tokenizers: TokenizerPair
    valid: TokenizedPairs
    objective: TranslationObjective

    def __init__(self, config: TranslateRun, folder: Path) -> None:
        super().__init__(config, folder)
        self.decoding = config.decoding

    def prepare(self) -> None:
        """Read the pairs, load or train the tokenizers, build the objective, and choose the model config."""
        config = self.config
        pairs = self.read_splits()
        self.notes += pairs.notes
        self.digests = pairs.digests
        self.pretrained = load_translator(config.pretrained) if config.pretrained else None
        if self.pretrained is not None:
            self.digests["start"] = digest_pretrained(self.pretrained)
        self.tokenizers = self._load_or_train_tokenizers(pairs.train)
        if self.pretrained is not None and config.tokenizer.extend:
            self.pretrained = self._extend_pretrained(self.pretrained)
        train = self._drop_long_pairs(self.tokenizers.tokenize(pairs.train), "training")
        self.valid = self._drop_long_pairs(self.tokenizers.tokenize(pairs.valid), "validation")
        self.tokens_per_epoch = int(train.lengths[:, 1].sum())
        self.objective = TranslationObjective(
            self.tokenizers,
            train,
            self.valid,
            seed=config.training.seed,
            bpe_dropout=config.tokenizer.bpe_dropout,
        )
        if self.pretrained is None:
            self.model_config, self.reason = choose_translation_model(config, self.tokenizers, self.tokens_per_epoch)
        else:
            self.model_config = self.pretrained.config
            self.reason = f"as in {config.pretrained}"
        self.hidden_size = self.model_config.hidden_size

    # ---- data

    def read_splits(self) -> DataSplits[ParallelTexts]:
        """Read training and validation pairs; hold some out where there are no validation files."""
        return DataSplits.read(
            self.config,
            read_pairs,
            lambda pairs: hold_out_pairs(pairs, self.config.training.seed),
            describe_held_out=lambda valid: f"{len(valid):,} of the training pairs are held out (chosen by the seed)",
        )

    def digest_model(self, name: str) -> str:
        """Digest the pretrained model."""
        return digest_pretrained(load_translator(self.config.pretrained))

    def _load_or_train_tokenizers(self, pairs: ParallelTexts) -> TokenizerPair:
        """Load the tokenizers of a run that is resumed; take the pretrained ones or train them where it starts."""
        folder = self.folder / "tokenizers"
        source_path = folder / "source.json"
        target_path = folder / "target.json"
        if target_path.exists():
            source = Tokenizer.from_json(source_path.read_text("utf-8"), where=str(source_path))
            target = Tokenizer.from_json(target_path.read_text("utf-8"), where=str(target_path))
            return TokenizerPair(source, target)
        config = self.config.tokenizer
        if self.pretrained is not None:
            tokenizers = self._extend_tokenizers(self.pretrained, pairs)
        elif config.joint:
            tokenizer = train_tokenizer([*pairs.source, *pairs.target], config)
            tokenizers = TokenizerPair(tokenizer, tokenizer)
        else:
            tokenizers = TokenizerPair(train_tokenizer(pairs.source, config), train_tokenizer(pairs.target, config))
        folder.mkdir(exist_ok=True)
        write_file(source_path, tokenizers.source.to_json().encode())
        write_file(target_path, tokenizers.target.to_json().encode())
        return tokenizers

    def _extend_tokenizers(self, pretrained: TranslatorSource, pairs: ParallelTexts) -> TokenizerPair:
        """Tokenizers of the pretrained model, extended if the config says so."""
        source = pretrained.source
        target = pretrained.target
        if source.digest == target.digest:
            tokenizer = self.extend_vocabulary(source, [*pairs.source, *pairs.target])
            return TokenizerPair(tokenizer, tokenizer)
        new_source = self.extend_vocabulary(source, pairs.source)
        if not (self.config.tokenizer.extend and pretrained.config.share_embeddings):
            return TokenizerPair(new_source, self.extend_vocabulary(target, pairs.target))
        # two tokenizers over one vocabulary (Marian): first the new tokens of the source, then those of the target
        target = append_other_side(target, new_source, source.vocab_size)
        new_target = self.extend_vocabulary(target, pairs.target)
        return TokenizerPair(append_other_side(new_source, new_target, target.vocab_size), new_target)

    def _extend_pretrained(self, pretrained: TranslatorSource) -> TranslatorSource:
        """Extend the token tables of both sides to the extended vocabularies."""
        old = pretrained.weights
        source = self.tokenizers.source
        target = self.tokenizers.target
        if pretrained.config.share_embeddings:
            weights = extend_shared_tables(old, (pretrained.source, source), (pretrained.target, target))
        else:
            weights = extend_tables(old, pretrained.source, source, SOURCE_TABLES)
            weights = extend_tables(weights, pretrained.target, target, TARGET_TABLES)
        sizes = {"source_vocab_size": source.vocab_size, "target_vocab_size": target.vocab_size}
        return replace(
            pretrained,
            source=source,
            target=target,
            config=pretrained.config.override(sizes),
            arrays=to_arrays(weights),
        )

    def _drop_long_pairs(self, examples: TokenizedPairs, split: str) -> TokenizedPairs:
        """Drop pairs beyond the maximum length, and note how many."""
        max_length = self.config.data.max_length
        indices = np.zeros(0, np.int64)
        if len(examples):
            indices = np.flatnonzero(examples.lengths.max(axis=1) <= max_length)
        if len(indices) == 0:
            raise UsageError(
                f"no {split} pair has at most {max_length} tokens: raise --data.max_length or split the texts"
            )
        if len(indices) == len(examples):
            return examples
        self.notes.append(f"{len(examples) - len(indices):,} {split} pairs of over {max_length} tokens are left out")
        return examples.select(indices)

    # ---- interface of a run

    def limit_validation(self, fraction: float) -> None:
        """Validate on this fraction of the validation pairs only."""
        self.valid = self.valid.select(subsample_indices(len(self.valid), fraction))

    def validation_tokens(self) -> int:
        """Count the tokens that one evaluation reads and generates."""
        return int(self.valid.lengths.sum())

    def closing_seconds(self, evaluation_seconds: float) -> float:
        """Estimate the duration of the final beam search, and of tuning the search."""
        greedy = min(evaluation_seconds, self.search_seconds) if self.search_seconds else evaluation_seconds
        beam = BEAM_COST * greedy if self.config.decoding.beam > 1 else greedy
        tuning_budget = TUNING_FRACTION * 60 * self.config.training.minutes
        tuning = min((len(LENGTH_PENALTIES) - 1) * beam, tuning_budget)
        return super().closing_seconds(evaluation_seconds) - greedy + beam + tuning

    def evaluator(self, device: str) -> TranslationEvaluator:
        """Build the evaluator on validation data."""
        self._evaluator = TranslationEvaluator(
            self.model_config, self.tokenizers, valid=self.valid, device=device, scoring=self.scoring
        )
        return self._evaluator

    @property
    def search_seconds(self) -> float:
        """Duration of the greedy search of the last evaluation; 0 before the first."""
        return 0.0 if self._evaluator is None else self._evaluator.search_seconds

    @property
    def data_summary(self) -> str:
        """Size of the training data in a few words."""
        return f"{len(self.objective.train):,} pairs"

    def describe(self, num_parameters: int) -> list[str]:
        """Describe data and model for the user."""
        config = self.model_config
        vocabulary = f"vocabulary of {self.tokenizers.source.vocab_size:,}"
        if not config.share_embeddings:
            vocabulary = (
                f"vocabularies of {self.tokenizers.source.vocab_size:,} and {self.tokenizers.target.vocab_size:,}"
            )
        kind = f"those of {self.config.pretrained}" if self.pretrained else self.config.tokenizer.kind
        return [
            f"data: {self.data_summary}, {self.tokens_per_epoch:,} target tokens; validation {len(self.valid):,} pairs",
            f"tokens: {kind}, {vocabulary}",
            self.describe_model(num_parameters),
        ]

    def metadata(self, evaluator: TranslationEvaluator) -> dict[str, Any]:
        """Entries of task.json on the maximum length and the alignment head."""
        max_sentences = MAX_ALIGNED_TRAINING if self.verdict is None else MAX_ALIGNED
        return {"max_length": self.config.data.max_length, "alignment_head": evaluator.alignment_head(max_sentences)}

    def trivial_baselines(self) -> list[TrivialBaseline]:
        """Perplexity of target tokens by their training frequencies, and the score of the most frequent target."""
        target = self.tokenizers.target
        train_ids = [np.append(ids, target.eos_id) for ids in self.objective.train.target]
        valid_ids = [np.append(ids, target.eos_id) for ids in self.valid.target]
        perplexity = unigram_perplexity(train_ids, valid_ids, target.vocab_size)
        return [
            token_frequencies(perplexity, is_translation=True),
            constant_target(self.objective.train.texts.target, self.valid.texts.target[:MAX_TRANSLATED]),
        ]

    def save(self, weights: Mapping[str, Tensor], metadata: Mapping[str, Any], card: str) -> None:
        """Write weights as the run's model."""
        save_translator(
            self.folder,
            self.model_config,
            weights,
            tokenizers={"source": self.tokenizers.source, "target": self.tokenizers.target},
            decoding=self.decoding,
            metadata=metadata,
            card=card,
            original_config=self.pretrained.hf_config if self.pretrained is not None else None,
        )

    def load_saved(self) -> TranslatorSource:
        """Load the run's model."""
        return load_translator(self.folder)

    # ---- final evaluation

    def final_evaluation(
        self, evaluator: TranslationEvaluator, notify: Notify
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tune the length penalty on validation data, and score the translations."""
        references = self.valid.texts.target[:MAX_TRANSLATED]
        loss = mean_loss(evaluator.model, self.valid) if self.scoring.requested else None
        self.decoding, predictions = self._tune_search(evaluator, references, loss, notify)
        scores = {"sentences": len(references), **self.scoring.compute_final(predictions)}
        return prefix_metrics("valid", scores), {}

    def _tune_search(
        self, evaluator: TranslationEvaluator, references: Sequence[str], loss: float | None, notify: Notify
    ) -> tuple[DecodingConfig, PredictedTranslations]:
        """Search with several length penalties; return the config with the best metric, and its translations."""
        metric = METRICS[self.metric]
        penalties = self._length_penalties()
        trials: list[tuple[DecodingConfig, PredictedTranslations]] = []
        scores: dict[float, float] = {}  # by length penalty
        for penalty in penalties:
            start = time.monotonic()
            decoding = replace(self.config.decoding, length_penalty=penalty)
            translations = evaluator.translations(len(references), decoding)
            predictions = PredictedTranslations(predictions=translations, references=references, loss=loss)
            trials.append((decoding, predictions))
            scores[penalty] = require_metric(self.metric, predictions)
            next_end = 2 * time.monotonic() - start  # if the next search takes as long
            if next_end > self.deadline and len(scores) < len(penalties):
                notify(f"the time is up: {len(scores)} of {len(penalties)} length penalties were tried")
                break
        # the first of equals: the configured one
        best_decoding, best_predictions = max(trials, key=lambda trial: metric.rank(scores[trial[0].length_penalty]))
        if len(scores) > 1:
            by_penalty = ", ".join(f"{penalty:g}: {score:.2f}" for penalty, score in scores.items())
            notify(
                f"length penalty {best_decoding.length_penalty:g} is best on validation data "
                f"({metric.field_name} by penalty {by_penalty})"
            )
        return best_decoding, best_predictions

    def _length_penalties(self) -> list[float]:
        """Length penalties to try, the configured one first."""
        decoding = self.config.decoding
        penalties = [decoding.length_penalty]
        if self.config.training.tune_length_penalty and decoding.beam > 1 and not decoding.sample:
            penalties += [penalty for penalty in LENGTH_PENALTIES if penalty != decoding.length_penalty]
        return penalties
