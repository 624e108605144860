"""Where translators looked: a forced pass with the tap open gives weights, alignments and what pictures need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.attention.sites import site_kind, site_layer
from regard.attention.trace import trace
from regard.config.inference import RecordConfig
from regard.decoding.beams import BeamTree
from regard.decoding.ensemble import mean_logprobs
from regard.errors import CheckpointError, UsageError
from regard.models.base import EncoderDecoder
from regard.models.layers.recurrent import SITE as RECURRENT
from regard.models.transformer import Transformer
from regard.pipeline.records.attention import (
    Axes,
    CapturedText,
    capture_text,
    collect_attention,
    collect_qkv,
    decoding_steps,
    position_codes,
)
from regard.pipeline.sentence_pairs import TranslatedSentence, encode_source
from regard.tasks.alignment import align_words, merge_subwords, word_positions
from regard.text.tokenizer import Tokenizer
from regard.tokens import Tokens
from regard.view.record.attention import AttentionRecord
from regard.view.record.parts import DecodingStep, Omission, PositionCodes
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

Links = list[tuple[int, int]]  # (source word, target word), both counted from 0
Trees = Callable[[TranslatedSentence], BeamTree | None]
AXES = {
    "decoder.cross": Axes("target", "source", produced=True),
    "decoder.attention": Axes("target", "source", produced=True),
    "encoder.self": Axes("source", "source"),
    "decoder.self": Axes("target", "given", produced=True, causal=True),
}


@dataclass(frozen=True)
class AligningHead:
    """The head that links words best, as training measured it."""

    site: str
    head: int
    shift: int  # rows later that it is read

    @classmethod
    def recorded(cls, found: object, model: EncoderDecoder) -> AligningHead | None:
        """Return what `task.json` says of it; None where it says nothing."""
        if not isinstance(found, Mapping):
            return None
        site, head = str(found.get("site")), found.get("head")
        if RECURRENT in model.cross_attention_sites() and site == "decoder.0.cross":  # as folders of old name it
            site = RECURRENT
        if head not in range(model.cross_attention_sites().get(site, 0)):
            raise CheckpointError(
                f"task.json names an aligning head that the model lacks: site {site!r}, head {head!r}"
            )
        return cls(site, int(str(head)), int(found.get("shift") == 1))


@dataclass(frozen=True)
class _SentenceCapture:
    """What was seen of one part: where each model looked, and how likely each token was to all of them."""

    seen: list[CapturedText]  # of each model
    steps: tuple[DecodingStep, ...]
    has_tree: bool


@dataclass(frozen=True)
class TranslationRecorder:
    """Shows where models look while they write given texts."""

    models: Sequence[EncoderDecoder]
    source: Tokenizer
    target: Tokenizer
    best: AligningHead | None

    def source_ids(self, sentence: TranslatedSentence) -> list[int]:
        """Return a part's source as the model reads it."""
        return encode_source(self.source, sentence)

    def align(self, sentences: Sequence[TranslatedSentence]) -> Links:
        """Return the word alignment of the parts of a text: for each target word the source word most looked at."""
        made: Links = []
        for part in sentences:
            read, written = (
                word_positions(self.source.encode(part.source).word_ids),
                word_positions(self.target_word_ids(part)),
            )
            if read and written:
                found = align_words(merge_subwords(self._looked(part), list(written.values()), list(read.values())))
                read_words, written_words = list(read), list(written)
                made += [
                    (read_words[source] + part.source_word, written_words[target] + part.target_word)
                    for source, target in found
                ]
        return sorted(made)

    def _looked(self, part: TranslatedSentence) -> NDArray[np.float32]:
        """Return where each token of a part looked, [T, S]: the aligning head, or the mean of the later layers."""
        sites = [*self.models[0].cross_attention_sites()]
        if not sites:
            raise UsageError("this model has no attention: it looks nowhere, so there is no alignment to show")
        later = ",".join(sites[len(sites) // 2 :])
        row = self.source_ids(part)
        with trace(self.best.site if self.best else later, full_precision=True) as seen:
            self.models[0].target_logprobs(Tokens.from_rows([row]), Tokens.from_rows([part.ids]))
        weights = np.stack([seen[site].weights[0] for site in seen])  # [sites, H, Q, K]
        chosen = weights[0, self.best.head] if self.best else weights.mean(axis=(0, 1))  # [Q, K]
        shift = self.best.shift if self.best else 0
        return np.asarray(chosen[shift : shift + len(part.ids), : len(row) - 1])

    def target_word_ids(self, sentence: TranslatedSentence) -> list[int]:
        """Return the number of the word that each written token belongs to."""
        return token_word_ids(self.target, sentence.text, sentence.ids)

    def record(
        self,
        source: str,
        target: str,
        parts: Sequence[TranslatedSentence],
        config: RecordConfig,
        *,
        languages: tuple[str, str] = ("", ""),
        trees: Trees | None = None,
    ) -> Record:
        """Return what pictures of a translation are drawn from: its texts, where each head looked, and its steps."""
        sides = self._sides(source, target, parts, languages)
        config = self._with_best(config)
        cut: list[Omission] = []
        if config.store_qkv and len(parts) != 1:
            cut.append(Omission(f"the text was read in {len(parts)} parts", "the numbers inside heads"))
            config = config.override({"store_qkv": ""})
        looked = [self._part(part, config, trees) for part in parts]
        if any(not one.has_tree for one in looked):
            cut.append(Omission("the search went through other tokens than these", "the tree of beams"))
        best = (site_kind(self.best.site), site_layer(self.best.site), self.best.head) if self.best else None
        return Record(
            source,
            sides,
            self._attention(looked),
            best=best,
            steps=tuple(step for one in looked for step in one.steps),
            places=self._places(max((len(one.tokens) for one in sides.values()), default=0)),
            inside=tuple(found for one in looked for found in collect_qkv(one.seen[0])),
            cut=tuple(cut),
            view={"shift": self.best.shift} if self.best and self.best.shift else {},
        )

    def _attention(self, looked: Sequence[_SentenceCapture]) -> tuple[AttentionRecord, ...]:
        """Return where the models looked; those after the first have their number in front."""
        fronts = ["", *(f"{number}." for number in range(1, len(self.models)))]
        return tuple(
            seen
            for number, front in enumerate(fronts)
            for seen in collect_attention([one.seen[number].trace for one in looked], AXES, front)
        )

    def _with_best(self, config: RecordConfig) -> RecordConfig:
        """Return the settings with the aligning head named, where the best one is asked for."""
        if config.store_qkv != "best":
            return config
        sites = self.models[0].cross_attention_sites()
        if not sites:
            return config.override({"store_qkv": ""})
        named = (self.best.site, self.best.head) if self.best else ([*sites][-1], 0)
        return config.override({"store_qkv": "{}:{}".format(*named)})

    def _part(self, part: TranslatedSentence, config: RecordConfig, trees: Trees | None) -> _SentenceCapture:
        """Return what is seen while the models write one part again."""
        row, end = self.source_ids(part), self.models[0].eos_id
        read, written = Tokens.from_rows([row]), Tokens.from_rows([part.ids])
        longest = max(len(row), len(part.ids) + 1)
        found, every = [], []
        for model in self.models:
            with capture_text(config, model.attention_sites(), longest, longest) as seen:
                found.append(model.next_token_logprobs(read, written))
            every.append(seen)
        tree = trees(part) if trees is not None and not config.no_beams else None
        is_path = tree is None or tree.contains([*part.ids, end])
        ids = [*part.ids, end]
        logp = mean_logprobs(found) if len(found) > 1 else found[0]
        return _SentenceCapture(
            every, decoding_steps(logp, ids, self.target.subwords, config.top_k, tree if is_path else None), is_path
        )

    def _sides(
        self, source: str, target: str, parts: Sequence[TranslatedSentence], languages: tuple[str, str]
    ) -> dict[str, RecordText]:
        end, start = self.models[0].eos_id, self.models[0].bos_id
        read = [piece for part in parts for piece in self.source.subwords(self.source_ids(part))]
        written = [piece for part in parts for piece in self.target.subwords([*part.ids, end])]
        given = [piece for part in parts for piece in self.target.subwords([start, *part.ids])]
        read_words = [self.source.encode(part.source).word_ids for part in parts]
        words = [self.target_word_ids(part) for part in parts]
        firsts = [part.source_word for part in parts], [part.target_word for part in parts]
        after = _numbered(words, firsts[1])
        before = _numbered(words, firsts[1], first=True)
        made = {
            "source": RecordText.from_subwords(source, read, _numbered(read_words, firsts[0]), language=languages[0]),
            "target": RecordText.from_subwords(target, written, after, language=languages[1]),
        }
        if any(site_kind(site) == "decoder.self" for site in self.models[0].attention_sites()):
            made["given"] = RecordText.from_subwords(target, given, before, language=languages[1])
        return made

    def _places(self, count: int) -> PositionCodes | None:
        model = self.models[0]
        if not isinstance(model, Transformer):
            return None
        width = model.config.hidden_size
        turned = width // model.config.decoder.num_heads if model.config.positions == "rotary" else width
        return position_codes(model.target_positions, turned, max(count, 32))


def token_word_ids(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[int]:
    """Return the number of the word of a text that each of the tokens belongs to that a model wrote it in."""
    encoding = tokenizer.encode(text)
    if encoding.ids == [*ids]:
        return encoding.word_ids
    # the model cut the text in another way than the tokenizer does: go by where each token begins in the text
    word_from = [max(encoding.word_ids, default=0)] * (len(text) + 1)
    for (_, stop), word in reversed([*zip(encoding.spans, encoding.word_ids, strict=True)]):
        word_from[:stop] = [word] * stop
    begins = [len(tokenizer.decode(ids[:count]).rstrip("\ufffd")) for count in range(len(ids))]
    return [word_from[min(begin, len(text))] for begin in begins]


def _numbered(words: Sequence[Sequence[int]], firsts: Sequence[int], first: bool = False) -> list[int]:
    """Return word numbers of parts as those of the whole text; the mark after each part, or before it, is no word."""
    made = []
    for some, start in zip(words, firsts, strict=True):
        shifted = [start + one for one in some]
        made += [-1, *shifted] if first else [*shifted, -1]
    return made
