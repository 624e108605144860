"""Draw the pictures of the README and the site, in light and dark, with Regard's own figures of Regard's own models.

    python docs/make_pictures.py runs            # every picture, into docs/pictures
    python docs/make_pictures.py runs --only hops

The folder given holds the models, made by these commands in a folder of samples (docs/make_samples.py), the first at
the root with the data that recipes/prepare/multi30k.py makes:

    regard train --recipe recipes/multi30k-en-de.json --out runs/m30k
    regard train story-qa qa2_train.txt --valid qa2_test.txt --hops 3 --out runs/babi2
    regard train classify reviews.csv --from sentence-transformers/all-MiniLM-L6-v2 --out runs/mood
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import regard
from regard.attention.masks import Mask, causal, global_tokens, window
from regard.view.figure import figure
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText

PICTURES = Path(__file__).parent / "pictures"
THEMES = ("light", "dark")
SENTENCE = "Two young men are playing football in the snow."
STORY = ("Mary took the apple.", "John went to the office.", "Mary went to the garden.")
SEEN = "The cat sat on the mat because it was warm."


@dataclass(frozen=True)
class Picture:
    """What is drawn: the record of a model's answer, and a view of it."""

    record: Callable[[Path], Record]
    view: str
    options: Mapping[str, Any] = field(default_factory=dict)


@cache
def translated(runs: Path, store_qkv: str = "") -> Record:
    """Return the record of a translation."""
    return regard.load(runs / "m30k", threads=1)(SENTENCE).record(store_qkv=store_qkv)


@cache
def answered(runs: Path) -> Record:
    """Return the record of an answer about a story."""
    model = regard.load(runs / "babi2", threads=1)
    return model(list(STORY), "Where is the apple?").record()


@cache
def judged(runs: Path) -> Record:
    """Return the record of a classified review."""
    return regard.load(runs / "mood", threads=1)("A quiet triumph; the ending carries the film.").record()


def masked(mask: Mask) -> Callable[[Path], Record]:
    """Return what makes a record of who may look at whom."""

    def made(_: Path) -> Record:
        words = SEEN.split()
        slots = torch.arange(len(words))[None]
        allowed = mask.bind(slots, slots).dense.expand(1, 1, len(words), len(words)).float().numpy()
        weights = (allowed / allowed.sum(-1, keepdims=True)).astype(np.float32)
        side = RecordText.from_subwords(SEEN, words, range(len(words)))
        seen = AttentionRecord("encoder.self", "source", "source", weights, (0,))
        return Record(title=str(mask), texts={"source": side}, attention=(seen,))

    return made


ALL: dict[str, Picture] = {
    "alignment": Picture(translated, "align", {"attention": "decoder.3.cross:0", "words": True}),
    "look": Picture(translated, "look", {"attention": "decoder.3.cross:0", "words": True}),
    "heads": Picture(translated, "heads", {"attention": "decoder.cross", "width": "page"}),
    "steps": Picture(translated, "steps", {"width": "page"}),
    "beams": Picture(translated, "beams", {"width": "page"}),
    "places": Picture(translated, "place", {"width": "page"}),
    "flow": Picture(translated, "flow", {"attention": "encoder.self", "width": "page"}),
    "maths": Picture(lambda runs: translated(runs, "encoder.1.self:0"), "maths", {"width": "page"}),
    "hops": Picture(answered, "hops"),
    "verdict": Picture(judged, "verdict"),
    "mask-causal": Picture(masked(causal()), "align"),
    "mask-window": Picture(masked(window(1)), "align"),
    "mask-sparse": Picture(masked(window(1) | global_tokens(0)), "align"),
}


def draw(runs: Path, name: str, folder: Path = PICTURES) -> list[Path]:
    """Draw one picture in every theme, and return the files."""
    wanted = ALL[name]
    record = wanted.record(runs)
    places = []
    for theme in THEMES:
        place = folder / f"{name}-{theme}.svg"
        figure(record, wanted.view, theme=theme, **wanted.options).save(place)
        places.append(place)
    return places


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the README and the site.")
    parser.add_argument("runs", type=Path, help="the folder of the models")
    parser.add_argument("--only", choices=ALL, action="append", help="one picture; may be repeated")
    parser.add_argument("--out", type=Path, default=PICTURES, help="where to draw")
    given = parser.parse_args()
    drawn = [str(place) for name in given.only or ALL for place in draw(given.runs, name, given.out)]
    print(json.dumps(drawn, indent=1))


if __name__ == "__main__":
    main()
