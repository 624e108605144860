"""Where translators looked: a forced pass with the tap open gives weights, alignments and what pictures need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.attention.sites import kind_of, layer_of
from regard.attention.trace import trace
from regard.blocks.recurrent import SITE as RECURRENT
from regard.config.seeing import SeeingConfig
from regard.decoding.ensemble import mean_probability
from regard.decoding.tree import BeamTree
from regard.errors import CheckpointError, UsageError
from regard.models.translator import Translator
from regard.models.writer import Writer
from regard.pipeline.gathering import Axes, Seen, gathered, insides, places_of, seeing
from regard.pipeline.parts import Part, source_row
from regard.pipeline.steps import steps_of
from regard.tasks.alignment import links, merge, places
from regard.text.tokenizer import Tokenizer
from regard.tokens import Tokens
from regard.view.record import Attention, Cut, Places, Record, Side, Step

Links = list[tuple[int, int]]  # (source word, target word), both counted from 0
Trees = Callable[[Part], BeamTree | None]
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
    def recorded(cls, found: object, model: Writer) -> AligningHead | None:
        """Return what `task.json` says of it; None where it says nothing."""
        if not isinstance(found, Mapping):
            return None
        site, head = str(found.get("site")), found.get("head")
        if RECURRENT in model.looks() and site == "decoder.0.cross":  # as folders of old name it
            site = RECURRENT
        if head not in range(model.looks().get(site, 0)):
            raise CheckpointError(
                f"task.json names an aligning head that the model lacks: site {site!r}, head {head!r}"
            )
        return cls(site, int(str(head)), int(found.get("shift") == 1))


@dataclass(frozen=True)
class _Looked:
    """What was seen of one part: where each model looked, and how likely each token was to all of them."""

    seen: list[Seen]  # of each model
    steps: tuple[Step, ...]
    has_tree: bool


@dataclass(frozen=True)
class Looker:
    """Shows where models look while they write given texts."""

    models: Sequence[Writer]
    source: Tokenizer
    target: Tokenizer
    best: AligningHead | None

    def row(self, part: Part) -> list[int]:
        """Return a part's source as the model reads it."""
        return source_row(self.source, part)

    def links(self, parts: Sequence[Part]) -> Links:
        """Return the word alignment of the parts of a text: for each target word the source word most looked at."""
        made: Links = []
        for part in parts:
            read, written = places(self.source.encode(part.source).words), places(self.written_words(part))
            if read and written:
                found = links(merge(self._looked(part), list(written.values()), list(read.values())))
                read_words, written_words = list(read), list(written)
                made += [
                    (read_words[source] + part.source_word, written_words[target] + part.target_word)
                    for source, target in found
                ]
        return sorted(made)

    def _looked(self, part: Part) -> NDArray[np.float32]:
        """Return where each token of a part looked, [T, S]: the aligning head, or the mean of the later layers."""
        sites = [*self.models[0].looks()]
        if not sites:
            raise UsageError("this model has no attention: it looks nowhere, so there is no alignment to show")
        later = ",".join(sites[len(sites) // 2 :])
        row = self.row(part)
        with trace(self.best.site if self.best else later, exact=True) as seen:
            self.models[0].score_tokens(Tokens.from_rows([row]), Tokens.from_rows([part.ids]))
        weights = np.stack([seen[site].weights[0] for site in seen])  # [sites, H, Q, K]
        chosen = weights[0, self.best.head] if self.best else weights.mean(axis=(0, 1))  # [Q, K]
        shift = self.best.shift if self.best else 0
        return np.asarray(chosen[shift : shift + len(part.ids), : len(row) - 1])

    def written_words(self, part: Part) -> list[int]:
        """Return the number of the word that each written token belongs to."""
        return word_numbers(self.target, part.text, part.ids)

    def record(
        self,
        source: str,
        target: str,
        parts: Sequence[Part],
        config: SeeingConfig,
        *,
        languages: tuple[str, str] = ("", ""),
        trees: Trees | None = None,
    ) -> Record:
        """Return what pictures of a translation are drawn from: its texts, where each head looked, and its steps."""
        sides = self._sides(source, target, parts, languages)
        config = self._with_best(config)
        cut: list[Cut] = []
        if config.inside and len(parts) != 1:
            cut.append(Cut(f"the text was read in {len(parts)} parts", "the numbers inside heads"))
            config = config.override({"inside": ""})
        looked = [self._part(part, config, trees) for part in parts]
        if any(not one.has_tree for one in looked):
            cut.append(Cut("the search went through other tokens than these", "the tree of beams"))
        best = (kind_of(self.best.site), layer_of(self.best.site), self.best.head) if self.best else None
        return Record(
            source,
            sides,
            self._attention(looked),
            best=best,
            steps=tuple(step for one in looked for step in one.steps),
            places=self._places(max((len(one.tokens) for one in sides.values()), default=0)),
            inside=tuple(found for one in looked for found in insides(one.seen[0])),
            cut=tuple(cut),
            view={"shift": self.best.shift} if self.best and self.best.shift else {},
        )

    def _attention(self, looked: Sequence[_Looked]) -> tuple[Attention, ...]:
        """Return where the models looked; those after the first have their number in front."""
        fronts = ["", *(f"{number}." for number in range(1, len(self.models)))]
        return tuple(
            seen
            for number, front in enumerate(fronts)
            for seen in gathered([one.seen[number].trace for one in looked], AXES, front)
        )

    def _with_best(self, config: SeeingConfig) -> SeeingConfig:
        """Return the settings with the aligning head named, where the best one is asked for."""
        if config.inside != "best":
            return config
        sites = self.models[0].looks()
        if not sites:
            return config.override({"inside": ""})
        named = (self.best.site, self.best.head) if self.best else ([*sites][-1], 0)
        return config.override({"inside": "{}:{}".format(*named)})

    def _part(self, part: Part, config: SeeingConfig, trees: Trees | None) -> _Looked:
        """Return what is seen while the models write one part again."""
        row, end = self.row(part), self.models[0].end_token
        read, written = Tokens.from_rows([row]), Tokens.from_rows([part.ids])
        longest = max(len(row), len(part.ids) + 1)
        found, every = [], []
        for model in self.models:
            with seeing(config, model.sites(), longest, longest) as seen:
                found.append(model.distributions(read, written))
            every.append(seen)
        tree = trees(part) if trees is not None and not config.no_beams else None
        is_path = tree is None or tree.has([*part.ids, end])
        ids = [*part.ids, end]
        logp = mean_probability(found) if len(found) > 1 else found[0]
        return _Looked(every, steps_of(logp, ids, self.target.pieces, config.top, tree if is_path else None), is_path)

    def _sides(self, source: str, target: str, parts: Sequence[Part], languages: tuple[str, str]) -> dict[str, Side]:
        end, start = self.models[0].end_token, self.models[0].start_token
        read = [piece for part in parts for piece in self.source.pieces(self.row(part))]
        written = [piece for part in parts for piece in self.target.pieces([*part.ids, end])]
        given = [piece for part in parts for piece in self.target.pieces([start, *part.ids])]
        read_words = [self.source.encode(part.source).words for part in parts]
        words = [self.written_words(part) for part in parts]
        firsts = [part.source_word for part in parts], [part.target_word for part in parts]
        after = _numbered(words, firsts[1])
        before = _numbered(words, firsts[1], first=True)
        made = {
            "source": Side.of_pieces(source, read, _numbered(read_words, firsts[0]), language=languages[0]),
            "target": Side.of_pieces(target, written, after, language=languages[1]),
        }
        if any(kind_of(site) == "decoder.self" for site in self.models[0].sites()):
            made["given"] = Side.of_pieces(target, given, before, language=languages[1])
        return made

    def _places(self, count: int) -> Places | None:
        model = self.models[0]
        if not isinstance(model, Translator):
            return None
        width = model.config.width
        turned = width // model.config.decoder.heads if model.config.positions == "rotary" else width
        return places_of(model.target_positions, turned, max(count, 32))


def word_numbers(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[int]:
    """Return the number of the word of a text that each of the tokens belongs to that a model wrote it in."""
    encoding = tokenizer.encode(text)
    if encoding.ids == [*ids]:
        return encoding.words
    # the model cut the text in another way than the tokenizer does: go by where each token begins in the text
    word_from = [max(encoding.words, default=0)] * (len(text) + 1)
    for (_, stop), word in reversed([*zip(encoding.spans, encoding.words, strict=True)]):
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
