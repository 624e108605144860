"""Where the models looked: a forced pass with the tap open gives weights, word alignments and what pictures need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.attention.trace import trace
from regard.errors import CheckpointError, UsageError
from regard.models.writer import Writer
from regard.pipeline.parts import Part
from regard.tasks.alignment import links, merge, places
from regard.text.tokenizer import Tokenizer
from regard.tokens import Tokens
from regard.view.record import Attention, Record, Side

Links = list[tuple[int, int]]  # (source word, target word), both counted from 0


@dataclass(frozen=True)
class Sight:
    """Where the heads of one site looked."""

    site: str
    weights: NDArray[np.float32]  # [H, Q, K]
    rows: list[str]  # who looked; in the decoder the tokens that were being produced
    columns: list[str]  # what was looked at


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
        site, head = found.get("site"), found.get("head")
        if head not in range(model.looks().get(str(site), 0)):
            raise CheckpointError(
                f"task.json names an aligning head that the model lacks: site {site!r}, head {head!r}"
            )
        return cls(str(site), int(str(head)), int(found.get("shift") == 1))


@dataclass(frozen=True)
class Looker:
    """Shows where models look while they write given texts."""

    models: Sequence[Writer]
    source: Tokenizer
    target: Tokenizer
    best: AligningHead | None

    def sights(self, parts: Sequence[Part]) -> dict[str, Sight]:
        """Return where every site looked while the parts of a text were written.

        The weights of the parts stand along the diagonal: a sentence saw nothing of the others. Sites of an ensemble
        have the model's number in front.
        """
        made: dict[str, list[Sight]] = {}
        for part in parts:
            row = self.row(part)
            read, end, start = self.source.pieces(row), self.models[0].end_token, self.models[0].start_token
            written, given = self.target.pieces([*part.ids, end]), self.target.pieces([start, *part.ids])
            sides = {"encoder.self": (read, read), "decoder.self": (written, given), "decoder.cross": (written, read)}
            for number, model in enumerate(self.models):
                with trace() as seen:
                    model.score_tokens(Tokens.from_rows([row]), Tokens.from_rows([part.ids]))
                for site in seen:
                    name = f"{number}.{site}" if len(self.models) > 1 else site
                    made.setdefault(name, []).append(Sight(name, seen[site].weights[0], *sides[_kind(site)]))
        return {name: _along_diagonal(sights) for name, sights in made.items()}

    def row(self, part: Part) -> list[int]:
        """Return a part's source as the model reads it."""
        return [*self.source.encode_all([part.source])[0], self.source.end]

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
        with trace(self.best.site if self.best else later) as seen:
            self.models[0].score_tokens(Tokens.from_rows([row]), Tokens.from_rows([part.ids]))
        weights = np.stack([seen[site].weights[0] for site in seen])  # [sites, H, Q, K]
        chosen = weights[0, self.best.head] if self.best else weights.mean(axis=(0, 1))  # [Q, K]
        shift = self.best.shift if self.best else 0
        return np.asarray(chosen[shift : shift + len(part.ids), : len(row) - 1])

    def written_words(self, part: Part) -> list[int]:
        """Return the number of the word that each written token belongs to."""
        encoding = self.target.encode(part.text)
        if encoding.ids == part.ids:
            return encoding.words
        # the model cut the text in another way than the tokenizer does: go by where each token begins in the text
        word_from = [max(encoding.words, default=0)] * (len(part.text) + 1)
        for (_, stop), word in reversed([*zip(encoding.spans, encoding.words, strict=True)]):
            word_from[:stop] = [word] * stop
        begins = [len(self.target.decode(part.ids[:count]).rstrip("\ufffd")) for count in range(len(part.ids))]
        return [word_from[min(begin, len(part.text))] for begin in begins]

    def record(
        self, source: str, target: str, parts: Sequence[Part], *, title: str, languages: tuple[str, str]
    ) -> Record:
        """Return what pictures of a translation are drawn from: its texts, and where each head looked."""
        end = self.models[0].end_token
        read = [piece for part in parts for piece in self.source.pieces(self.row(part))]
        written = [piece for part in parts for piece in self.target.pieces([*part.ids, end])]
        read_words = [self.source.encode(part.source).words for part in parts]
        firsts = [part.source_word for part in parts], [part.target_word for part in parts]
        sides = {
            "source": Side.of_pieces(source, read, _numbered(read_words, firsts[0]), language=languages[0]),
            "target": Side.of_pieces(
                target, written, _numbered(map(self.written_words, parts), firsts[1]), language=languages[1]
            ),
        }
        sights = self.sights(parts)
        own = [
            site for site in sights if site[0].isalpha() or site.startswith("0.")
        ]  # of an ensemble the first model's
        seen = []
        for kind, rows in (("decoder.cross", "target"), ("encoder.self", "source")):
            some = [sights[site].weights for site in own if _kind(site) == kind]
            if some:
                seen.append(Attention(kind, rows, "source", np.stack(some), tuple(range(len(some))), rows == "target"))
        best = ("decoder.cross", int(self.best.site.split(".")[1]), self.best.head) if self.best else None
        return Record(title, sides, tuple(seen), best=best)


def _kind(site: str) -> str:
    """Return a site without numbers.

    >>> _kind("1.decoder.2.cross")
    'decoder.cross'
    """
    return ".".join(name for name in site.split(".") if not name.isdigit())


def _numbered(words: Sequence[Sequence[int]] | map[list[int]], firsts: Sequence[int]) -> list[int]:
    """Return word numbers of parts as those of the whole text; the end mark after each part is no word."""
    return [
        number for some, first in zip(words, firsts, strict=True) for number in [*(first + one for one in some), -1]
    ]


def _along_diagonal(sights: Sequence[Sight]) -> Sight:
    """Return the weights of several sentences as one: each saw itself only."""
    rows, columns = [label for sight in sights for label in sight.rows], [c for sight in sights for c in sight.columns]
    weights = np.zeros((len(sights[0].weights), len(rows), len(columns)), dtype=np.float32)
    row = column = 0
    for sight in sights:
        height, width = len(sight.rows), len(sight.columns)
        weights[:, row : row + height, column : column + width] = sight.weights
        row, column = row + height, column + width
    return Sight(sights[0].site, weights, rows, columns)
