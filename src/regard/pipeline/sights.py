"""Where heads looked, as numbers with labels: by site, by kind, by head; in tokens or in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.attention.sites import check_heads, named_site, unknown_site
from regard.errors import UsageError
from regard.tasks.alignment import merge
from regard.view.record import Record, Side


@dataclass(frozen=True)
class Sight:
    """Where the heads of one site looked; one of them, where it was asked for or measured as best."""

    site: str
    weights: NDArray[np.float32]  # [H, Q, K]
    rows: list[str]  # who looked; in the decoder the tokens that were being produced
    columns: list[str]  # what was looked at
    head: int | None = None
    sides: tuple[Side, Side] | None = None

    @property
    def looked(self) -> NDArray[np.float32]:
        """The weights of the head [Q, K]; where none is chosen, the mean of all."""
        return np.asarray(self.weights.mean(axis=0) if self.head is None else self.weights[self.head])

    def words(self) -> Sight:
        """Return the same for words: what a word looks at is added up over its tokens, who looks is averaged.

        >>> side = Side("two dogs", ("two", " dog", "s"), (0, 1, 1))
        >>> names, weights = [*side.tokens], np.eye(3, dtype=np.float32)[None]
        >>> sight = Sight("encoder.0.self", weights, names, names, 0, (side, side))
        >>> sight.words().rows, sight.words().looked.tolist()
        (['two', 'dogs'], [[1.0, 0.0], [0.0, 1.0]])
        """
        if self.sides is None:
            return self
        rows, columns = (side.units(words=True) for side in self.sides)
        groups = [members for _, members in rows], [members for _, members in columns]
        weights = np.stack([merge(one, *groups) for one in self.weights])
        return Sight(self.site, weights, [name for name, _ in rows], [name for name, _ in columns], self.head)

    def best(self) -> list[tuple[str, str, float]]:
        """Return for each row the column most looked at, and how much."""
        looked = self.looked
        if not looked.size:
            return []
        most = looked.argmax(axis=1)
        return [
            (row, self.columns[column], float(looked[at, column]))
            for at, (row, column) in enumerate(zip(self.rows, most.tolist(), strict=True))
        ]

    def __array__(self, dtype: type | None = None, copy: bool | None = None) -> NDArray[np.float32]:
        return np.asarray(self.looked, dtype=dtype)


class Sights(Mapping[str, Sight]):
    """Sights by their sites: `decoder.2.cross`, `decoder.2.cross:3` for a head, `decoder.cross` for the best of a kind.

    The best of a kind is the head that training measured, or else the mean of the last layer's heads.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        pairs = [(seen, layer) for seen in record.attention for layer in seen.layers]
        self._places = {named_site(seen.name, layer): (seen, layer) for seen, layer in pairs}

    def __getitem__(self, name: str) -> Sight:
        site, colon, number = name.partition(":")
        head = int(number) if number.isdecimal() else None
        if colon and head is None:
            raise UsageError(f"{name!r} names no head: write site and number, as in encoder.3.self:2")
        if site not in self._places:
            site, measured = self._of_kind(site)
            head = measured if head is None else head
        seen, layer = self._places[site]
        if head is not None:
            check_heads(site, [head], seen.heads)
        rows, columns = self.record.texts[seen.rows], self.record.texts[seen.columns]
        weights = np.stack([seen.matrix(layer, number) for number in range(seen.heads)])
        return Sight(site, weights, [*rows.tokens], [*columns.tokens], head, (rows, columns))

    def _of_kind(self, name: str) -> tuple[str, int | None]:
        """Return the site, and the head where one was measured, that stand for all sites of a kind."""
        found = [site for site in self._places if self._places[site][0].name == name]
        if not found:
            raise UsageError(unknown_site(name, self._places))
        best = self.record.best
        if best is not None and best[0] == name:
            return next(site for site in found if self._places[site][1] == best[1]), best[2]
        return found[-1], None

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
