"""Texts as sentences that fit the model, paired with their translations; scores of given translations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.attention.trace import is_tracing, suspend_traces, trace
from regard.config.inference import DecodingConfig
from regard.decoding.batch_search import batch_by_length
from regard.decoding.constraints import ForcedPhrases
from regard.decoding.ensemble import mean_logprobs
from regard.decoding.generator import ScoringGenerator
from regard.decoding.search import Hypothesis, hypothesis_score
from regard.engine.backend import TranslatorBackend
from regard.errors import UsageError
from regard.packed_tokens import Tokens
from regard.text.sentences import Sentences, split_lines, split_long, split_sentences
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TranslatedSentence:
    """Source sentence and its translation, as the model read and generated them."""

    source: str
    text: str
    ids: list[int]  # of the translation, without bos and eos
    source_word: int  # index of its first word in the whole source text
    target_word: int
    finished: bool = True  # False: the length limit cut the translation, so it has no eos


@dataclass(frozen=True)
class TranslationScore:
    """Score and log-probability of a given translation."""

    score: float  # as the search ranks translations
    logprob: float  # includes eos, unless the length limit cut the translation
    num_tokens: int  # likewise

    def to_dict(self) -> dict[str, Any]:
        """JSON form of the score."""
        return dict(vars(self))

    @classmethod
    def from_hypothesis(cls, hypothesis: Hypothesis) -> TranslationScore:
        """Score of a sentence as the search found it."""
        return cls(hypothesis.score, hypothesis.logprob, num_tokens=len(hypothesis.ids) + hypothesis.finished)

    @classmethod
    def combine(cls, scores: Sequence[TranslationScore]) -> TranslationScore:
        """Score of a text of several sentences: mean of the scores, sum of log-probabilities and tokens."""
        mean_score = sum(sentence.score for sentence in scores) / len(scores) if scores else 0.0
        logprob = sum(sentence.logprob for sentence in scores)
        return cls(mean_score, logprob, num_tokens=sum(sentence.num_tokens for sentence in scores))


@dataclass(frozen=True)
class CandidateTranslation:
    """Hypothesis for one sentence, and its text."""

    text: str
    hypothesis: Hypothesis


@dataclass(frozen=True)
class SentenceCandidates:
    """Candidates of one sentence, and the token ids that the tokenizer gives their texts."""

    index: int
    source: str
    candidates: list[CandidateTranslation]
    tokenizer_ids: list[list[int]]
    max_length: int  # tokens of a translation

    @property
    def should_rescore(self) -> list[bool]:
        """Which texts the tokenizer gives other tokens than the search, and such as fit the model."""
        return [
            ids != candidate.hypothesis.ids and len(ids) <= self.max_length
            for candidate, ids in zip(self.candidates, self.tokenizer_ids, strict=True)
        ]

    def pairs_to_rescore(self) -> list[TranslatedSentence]:
        """Sentence pairs with the tokenizer's own tokens, for all candidates that need another score."""
        return [
            TranslatedSentence(
                self.source,
                candidate.text,
                ids=ids,
                source_word=0,
                target_word=0,
                finished=candidate.hypothesis.finished,
            )
            for candidate, ids, should_rescore in self._zip()
            if should_rescore
        ]

    def rescore(self, scores: Iterator[TranslationScore]) -> list[CandidateTranslation]:
        """Candidates with the tokenizer's own tokens; takes a score for each of `pairs_to_rescore`."""
        candidates = []
        for candidate, ids, should_rescore in self._zip():
            if should_rescore:
                score = next(scores)
                finished = candidate.hypothesis.finished
                hypothesis = Hypothesis(ids, score.score, logprob=score.logprob, finished=finished)
                candidate = CandidateTranslation(candidate.text, hypothesis)
            candidates.append(candidate)
        return candidates

    def _zip(self) -> Iterator[tuple[CandidateTranslation, list[int], bool]]:
        return zip(self.candidates, self.tokenizer_ids, self.should_rescore, strict=True)


def sort_by_score(candidates: Sequence[CandidateTranslation]) -> list[CandidateTranslation]:
    """Sort candidates, best first."""
    return sorted(candidates, key=lambda candidate: -candidate.hypothesis.score)


def unique_texts(candidates: Sequence[CandidateTranslation]) -> list[CandidateTranslation]:
    """Keep the first candidate of each text."""
    by_text: dict[str, CandidateTranslation] = {}
    for candidate in candidates:
        by_text.setdefault(candidate.text, candidate)
    return list(by_text.values())


def encode_source(tokenizer: Tokenizer, sentence: TranslatedSentence) -> list[int]:
    """Encode the source of a sentence as the encoder reads it, with eos."""
    return [*tokenizer.encode_batch([sentence.source])[0], tokenizer.eos_id]


# ---- from texts to sentences


def split_into_sentences(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, *, split: bool, keep_whole: Sequence[bool]
) -> tuple[list[Sentences], list[list[int]]]:
    """Split texts into sentences of fewer than `max_length` tokens; return them with the token ids of all sentences.

    Without `split` each line is a sentence. A text with `keep_whole` is a single sentence. What is too long and must
    not be split is an error.
    """
    drafts = []
    for text_number, (text, is_whole) in enumerate(zip(texts, keep_whole, strict=True), 1):
        lines = split_lines(text)
        if is_whole and len(lines.sentences) > 1:
            raise UsageError(
                f"text {text_number} has {len(lines.sentences)} lines: prefixes and forced phrases need a single line"
            )
        drafts.append(split_sentences(text) if split and not is_whole else lines)
    all_sentences = itertools.chain.from_iterable(draft.sentences for draft in drafts)
    encoded = iter(tokenizer.encode_batch(list(all_sentences)))
    fitting_drafts = []
    token_ids = []
    for text_number, (draft, is_whole) in enumerate(zip(drafts, keep_whole, strict=True), 1):
        draft_ids = list(itertools.islice(encoded, len(draft.sentences)))
        if max(map(len, draft_ids), default=0) >= max_length:
            max_tokens = max_length - 1 if split and not is_whole else 0
            split_sentence = partial(
                _split_to_fit,
                tokenizer=tokenizer,
                max_length=max_length,
                max_tokens=max_tokens,
                name=f"text {text_number}",
            )
            draft = draft.split_each(split_sentence)
            draft_ids = tokenizer.encode_batch(draft.sentences)
        fitting_drafts.append(draft)
        token_ids += draft_ids
    return fitting_drafts, token_ids


def _split_to_fit(sentence: str, tokenizer: Tokenizer, max_length: int, max_tokens: int, name: str) -> Sentences:
    """Split a sentence after about `max_tokens` tokens until all parts fit; with `max_tokens=0` it must fit as is."""
    length = len(tokenizer.encode_batch([sentence])[0])
    if length < max_length:
        return Sentences([sentence], ["", ""])
    if not max_tokens:
        raise UsageError(
            f"{name} has a sentence of {length + 1:,} tokens, but the model was trained on {max_length:,} at "
            "most: allow splitting, or shorten it"
        )
    parts = split_long(sentence, tokenizer.encode(sentence).spans, max_tokens)
    return parts.split_each(lambda part: _split_to_fit(part, tokenizer, max_length, max_tokens // 2, name))


def pair_sentences(
    source: Sentences, target: Sentences, ids: Sequence[list[int]], finished: Sequence[bool] | None = None
) -> list[TranslatedSentence]:
    """Pair source sentences with their translations; `ids` are the target tokens, `finished` whether eos follows.

    >>> source = Sentences(["One.", "Two."], ["", " ", ""])
    >>> target = Sentences(["Eins zwei.", "Drei."], ["", " ", ""])
    >>> [(pair.source_word, pair.target_word) for pair in pair_sentences(source, target, [[5], [6]])]
    [(0, 0), (1, 2)]
    """
    if finished is None:
        finished = [True] * len(ids)
    sentences = zip(source.sentences, target.sentences, ids, finished, strict=True)
    first_words = zip(_first_word_indices(source), _first_word_indices(target), strict=True)
    return [
        TranslatedSentence(
            source_text,
            text,
            ids=target_ids,
            source_word=source_word,
            target_word=target_word,
            finished=is_finished,
        )
        for (source_text, text, target_ids, is_finished), (source_word, target_word) in zip(
            sentences, first_words, strict=True
        )
    ]


def split_pair(source: str, target: str, tokenizer: Tokenizer, *, split: bool) -> list[TranslatedSentence]:
    """Pair the sentences of a text and its translation if these have equally many; else keep both texts whole."""
    source_sentences = split_sentences(source)
    target_sentences = split_sentences(target)
    if not split or len(source_sentences.sentences) != len(target_sentences.sentences):
        source_sentences = Sentences([source.strip()], ["", ""])
        target_sentences = Sentences([target.strip()], ["", ""])
    return pair_sentences(source_sentences, target_sentences, tokenizer.encode_batch(target_sentences.sentences))


def _first_word_indices(sentences: Sentences) -> list[int]:
    """Index of each sentence's first word in the text; words are separated by white space."""
    indices = []
    num_words = 0
    is_word_open = False
    for separator, sentence in zip(sentences.separators, sentences.sentences, strict=False):
        continues_word = is_word_open and not separator  # two sentences in one word
        indices.append(num_words - continues_word)
        num_words += len(sentence.split()) - continues_word
        is_word_open = bool(sentence)
    return indices


def check_forced_length(
    sentences: Sequence[str],
    prefixes: Sequence[Sequence[int]] | None,
    forced: Sequence[ForcedPhrases] | None,
    max_length: int,
) -> None:
    """Check that the prefix and the forced phrases of each sentence fit a translation."""
    for row, sentence in enumerate(sentences):
        prefix_length = len(prefixes[row]) if prefixes else 0
        num_forced = prefix_length + (forced[row].num_tokens if forced else 0)
        if num_forced > max_length:
            raise UsageError(f"{num_forced} tokens are forced upon {sentence!r:.60}, but {max_length} fit")


# ---- scores of given translations


def score_sentences(
    sentences: Sequence[TranslatedSentence],
    source_ids: Sequence[list[int]],
    backends: Sequence[TranslatorBackend],
    config: DecodingConfig,
) -> list[TranslationScore]:
    """Score given translations as the search does; several backends form an ensemble.

    An open trace receives the attention of the first backend, a row for each translation.
    """
    has_coverage = bool(config.coverage_penalty)
    models = [backend.generator(with_attention=has_coverage) for backend in backends]
    with suspend_traces():
        scores = _score_batches(sentences, source_ids, models, config)
    trace_translations(models[0], source_ids, [sentence.ids for sentence in sentences])
    return scores


def trace_translations(
    model: ScoringGenerator[Any], source_ids: Sequence[list[int]], target_ids: Sequence[list[int]]
) -> None:
    """Give the open traces the attention of a model over given translations, a row for each."""
    if is_tracing() and source_ids:
        model.target_logprobs(Tokens.from_rows(source_ids), Tokens.from_rows(target_ids))


def _score_batches(
    sentences: Sequence[TranslatedSentence],
    source_ids: Sequence[list[int]],
    models: Sequence[ScoringGenerator[Any]],
    config: DecodingConfig,
) -> list[TranslationScore]:
    has_coverage = bool(config.coverage_penalty)
    lengths = [(len(ids), len(pair.ids) + 1) for ids, pair in zip(source_ids, sentences, strict=True)]
    scores = [TranslationScore(0.0, 0.0, num_tokens=0)] * len(sentences)
    for batch in batch_by_length(np.array(lengths, np.int64).reshape(-1, 2), config):
        indices = batch.tolist()
        source = Tokens.from_rows([source_ids[index] for index in indices])
        target = Tokens.from_rows([sentences[index].ids for index in indices])
        outputs = [_score_batch(model, source, target, has_coverage) for model in models]
        for row, index in enumerate(indices):
            num_tokens = len(sentences[index].ids) + sentences[index].finished
            logprobs = mean_logprobs([batch_logprobs[row] for batch_logprobs, _ in outputs])[:num_tokens]
            logprob = float(logprobs.sum(dtype=np.float64))
            coverage = np.mean([coverages[row] for _, coverages in outputs], axis=0) if has_coverage else None
            score = hypothesis_score(logprob, num_tokens, config, coverage)
            scores[index] = TranslationScore(score, logprob, num_tokens=num_tokens)
    return scores


def _score_batch(
    model: ScoringGenerator[Any], source: Tokens, target: Tokens, has_coverage: bool
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float64]]]:
    """Log-probabilities of the target tokens and, with `has_coverage`, the attention summed over them, row by row."""
    if not has_coverage:
        return model.target_logprobs(source, target), []
    site = [*model.cross_attention_sites()][-1]  # the site whose coverage the search counts
    with trace(site, full_precision=True) as captured:
        logprobs = model.target_logprobs(source, target)
    weights = captured[site].weights.mean(axis=1)  # [rows, target, source]
    coverages = []
    for row_weights, source_length, target_length in zip(weights, source.lengths, target.lengths + 1, strict=True):
        coverages.append(row_weights[:target_length, :source_length].sum(0, dtype=np.float64))
    return logprobs, coverages
