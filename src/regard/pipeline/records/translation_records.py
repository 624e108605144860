"""Records and word alignments of translations, from a trace of a pass over the given target tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.attention.sites import site_kind, site_layer
from regard.attention.trace import trace
from regard.config.inference import RecordConfig
from regard.decoding.beams import BeamTree
from regard.decoding.ensemble import mean_logprobs
from regard.decoding.generator import ScoringGenerator
from regard.errors import CheckpointError, UsageError
from regard.packed_tokens import Tokens
from regard.pipeline.records.trace_records import (
    Axes,
    CapturedText,
    capture_text,
    collect_attention,
    collect_qkv,
    decoding_steps,
    position_encodings,
)
from regard.pipeline.sentence_pairs import TranslatedSentence, encode_source
from regard.tasks.alignment import align_words, merge_subwords, word_positions
from regard.text.tokenizer import Tokenizer
from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import DecodingStep, Omission
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

RECURRENT_SITE = "decoder.attention"  # of a recurrent decoder
Links = list[tuple[int, int]]  # (source word, target word), both counted from 0
Trees = Callable[[TranslatedSentence], BeamTree | None]
AXES = {
    "decoder.cross": Axes("target", "source", is_generated=True),
    "decoder.attention": Axes("target", "source", is_generated=True),
    "encoder.self": Axes("source", "source"),
    "decoder.self": Axes("target", "decoder_input", is_generated=True, is_causal=True),
}


@dataclass(frozen=True)
class StoredAlignmentHead:
    """The head that aligns words best, as training measured it and `task.json` stores it."""

    site: str
    head: int
    shift: int  # rows by which its weights lag behind the target tokens

    @classmethod
    def from_json(cls, metadata: object, model: ScoringGenerator[Any]) -> StoredAlignmentHead | None:
        """Read the head from `task.json`; None where it has none."""
        if not isinstance(metadata, Mapping):
            return None
        site = str(metadata.get("site"))
        head = metadata.get("head")
        sites = model.cross_attention_sites()
        if RECURRENT_SITE in sites and site == "decoder.0.cross":  # its name in older folders
            site = RECURRENT_SITE
        if head not in range(sites.get(site, 0)):
            raise CheckpointError(
                f"task.json names an alignment head that the model lacks: site {site!r}, head {head!r}"
            )
        return cls(site, int(str(head)), shift=int(metadata.get("shift") == 1))


@dataclass(frozen=True)
class _SentenceCapture:
    """Traces of one sentence, a trace for each model, and its decoding steps."""

    models: list[CapturedText]
    steps: tuple[DecodingStep, ...]
    has_tree: bool


@dataclass(frozen=True)
class TranslationRecorder:
    """Records the attention of models, and aligns words, while the decoder reads given translations."""

    models: Sequence[ScoringGenerator[Any]]
    source: Tokenizer
    target: Tokenizer
    alignment_head: StoredAlignmentHead | None

    def source_ids(self, sentence: TranslatedSentence) -> list[int]:
        """Source ids of a sentence as the encoder reads them."""
        return encode_source(self.source, sentence)

    def target_word_ids(self, sentence: TranslatedSentence) -> list[int]:
        """Word index of each target token."""
        return token_word_ids(self.target, sentence.text, sentence.ids)

    def align(self, sentences: Sequence[TranslatedSentence]) -> Links:
        """Align the words of a text: each target word with the source word of the largest attention weight."""
        links: Links = []
        for sentence in sentences:
            source_words = word_positions(self.source.encode(sentence.source).word_ids)
            target_words = word_positions(self.target_word_ids(sentence))
            if not source_words or not target_words:
                continue
            weights = self._alignment_weights(sentence)
            word_weights = merge_subwords(weights, list(target_words.values()), list(source_words.values()))
            source_indices = list(source_words)
            target_indices = list(target_words)
            for source, target in align_words(word_weights):
                source_word = source_indices[source] + sentence.source_word
                target_word = target_indices[target] + sentence.target_word
                links.append((source_word, target_word))
        return sorted(links)

    def _alignment_weights(self, sentence: TranslatedSentence) -> NDArray[np.float32]:
        """Weights of the alignment head, or else the mean over the later half of the layers."""
        head = self.alignment_head
        sites = [*self.models[0].cross_attention_sites()]
        if not sites:
            raise UsageError("this model has no attention over the source: it cannot align words")
        patterns = ",".join(sites[len(sites) // 2 :]) if head is None else head.site
        source_ids = self.source_ids(sentence)
        with trace(patterns, full_precision=True) as captured:
            self.models[0].target_logprobs(Tokens.from_rows([source_ids]), Tokens.from_rows([sentence.ids]))
        weights = np.stack([captured[site].weights[0] for site in captured])  # [sites, heads, queries, keys]
        matrix = weights.mean(axis=(0, 1)) if head is None else weights[0, head.head]  # [queries, keys]
        shift = 0 if head is None else head.shift
        return np.asarray(matrix[shift : shift + len(sentence.ids), : len(source_ids) - 1])  # [target, source]

    def record(
        self,
        source: str,
        target: str,
        sentences: Sequence[TranslatedSentence],
        config: RecordConfig,
        *,
        languages: tuple[str, str] = ("", ""),
        trees: Trees | None = None,
    ) -> Record:
        """Record texts, attention of all heads and decoding steps of a translation; `trees` builds its beam trees."""
        texts = self._build_texts(source, target, sentences, languages)
        config = self._resolve_best_head(config)
        omissions: list[Omission] = []
        if config.store_qkv and len(sentences) != 1:
            reason = f"the text was read in {len(sentences)} parts"
            omissions.append(Omission(reason, "queries, keys and values of heads"))
            config = config.override({"store_qkv": ""})
        captures = [self._capture_sentence(sentence, config, trees) for sentence in sentences]
        if any(not capture.has_tree for capture in captures):
            omissions.append(Omission("the search generated the text from other tokens", "the tree of beams"))
        head = self.alignment_head
        max_length = max((len(text.tokens) for text in texts.values()), default=0)
        return Record(
            source,
            texts,
            self._collect_attention(captures),
            best=None if head is None else (site_kind(head.site), site_layer(head.site), head.head),
            steps=tuple(itertools.chain.from_iterable(capture.steps for capture in captures)),
            positions=position_encodings(self.models[0], max_length),
            qkv=tuple(itertools.chain.from_iterable(collect_qkv(capture.models[0]) for capture in captures)),
            omissions=tuple(omissions),
            view={"shift": head.shift} if head is not None and head.shift else {},
        )

    def _collect_attention(self, captures: Sequence[_SentenceCapture]) -> tuple[AttentionRecord, ...]:
        """Attention of all models; names of those after the first begin with their index."""
        attention: list[AttentionRecord] = []
        for index, model in enumerate(self.models):
            traces = [capture.models[index].trace for capture in captures]
            attention += collect_attention(traces, AXES, model.config, f"{index}." if index else "")
        return tuple(attention)

    def _resolve_best_head(self, config: RecordConfig) -> RecordConfig:
        """Replace `best` in the config by the name of the alignment head."""
        if config.store_qkv != "best":
            return config
        sites = [*self.models[0].cross_attention_sites()]
        if not sites:
            return config.override({"store_qkv": ""})
        head = self.alignment_head
        name = f"{sites[-1]}:0" if head is None else f"{head.site}:{head.head}"
        return config.override({"store_qkv": name})

    def _capture_sentence(
        self, sentence: TranslatedSentence, config: RecordConfig, trees: Trees | None
    ) -> _SentenceCapture:
        """Trace all models while they read a sentence and its translation."""
        source_ids = self.source_ids(sentence)
        source = Tokens.from_rows([source_ids])
        target = Tokens.from_rows([sentence.ids])
        max_length = max(len(source_ids), len(sentence.ids) + 1)
        logprobs = []
        captured_models = []
        for model in self.models:
            with capture_text(config, model.attention_sites(), max_length, max_length) as captured:
                logprobs.append(model.next_token_logprobs(source, target))
            captured_models.append(captured)
        target_ids = [*sentence.ids, self.models[0].eos_id]
        tree = trees(sentence) if trees is not None and config.beam_tree else None
        has_tree = tree is None or tree.contains(target_ids)
        steps = decoding_steps(
            mean_logprobs(logprobs) if len(logprobs) > 1 else logprobs[0],
            target_ids,
            self.target.subwords,
            config.candidates,
            tree if has_tree else None,
        )
        return _SentenceCapture(captured_models, steps, has_tree=has_tree)

    def _build_texts(
        self, source: str, target: str, sentences: Sequence[TranslatedSentence], languages: tuple[str, str]
    ) -> dict[str, RecordText]:
        """Source, target, and the target as the decoder reads it: shifted by bos."""
        eos_id = self.models[0].eos_id
        bos_id = self.models[0].bos_id
        source_subwords: list[str] = []
        target_subwords: list[str] = []
        decoder_subwords: list[str] = []
        source_word_ids: list[int] = []
        target_word_ids: list[int] = []
        decoder_word_ids: list[int] = []
        for sentence in sentences:
            source_subwords += self.source.subwords(self.source_ids(sentence))
            target_subwords += self.target.subwords([*sentence.ids, eos_id])
            decoder_subwords += self.target.subwords([bos_id, *sentence.ids])
            source_words = [sentence.source_word + word for word in self.source.encode(sentence.source).word_ids]
            target_words = [sentence.target_word + word for word in self.target_word_ids(sentence)]
            source_word_ids += [*source_words, -1]  # -1: eos and bos are special tokens
            target_word_ids += [*target_words, -1]
            decoder_word_ids += [-1, *target_words]
        source_language, target_language = languages
        texts = {
            "source": RecordText.from_subwords(source, source_subwords, source_word_ids, language=source_language),
            "target": RecordText.from_subwords(target, target_subwords, target_word_ids, language=target_language),
        }
        if any(site_kind(site) == "decoder.self" for site in self.models[0].attention_sites()):
            texts["decoder_input"] = RecordText.from_subwords(
                target, decoder_subwords, decoder_word_ids, language=target_language
            )
        return texts


def token_word_ids(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[int]:
    """Word index of each generated token of a text."""
    encoding = tokenizer.encode(text)
    if encoding.ids == [*ids]:
        return encoding.word_ids
    # the model generated other tokens than the tokenizer gives: go by the character at which each token begins
    word_at = [max(encoding.word_ids, default=0)] * (len(text) + 1)
    for (_, end), word in reversed([*zip(encoding.spans, encoding.word_ids, strict=True)]):
        word_at[:end] = [word] * end
    starts = [len(tokenizer.decode(ids[:count]).rstrip("\ufffd")) for count in range(len(ids))]
    return [word_at[min(start, len(text))] for start in starts]
