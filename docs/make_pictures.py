"""Draw the figures of the README and the site, in both themes, from models that Regard trained.

    python -m docs.make_pictures runs            # all figures, into docs/pictures
    python -m docs.make_pictures runs --only hops

`runs` contains the models that these commands train in a folder of samples (docs/make_samples.py); the first needs the
data that recipes/prepare/multi30k.py writes:

    regard train --recipe recipes/multi30k-en-de.json --out runs/m30k
    regard train story-qa qa2_train.txt --valid qa2_test.txt --hops 3 --out runs/babi2
    regard train classify reviews.csv --from sentence-transformers/all-MiniLM-L6-v2 --out runs/mood
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import regard
from docs.schemes import draw_attention, draw_bottleneck
from regard.attention.masks import Mask, causal, global_tokens, window
from regard.view.drawing import Drawing
from regard.view.figure import figure
from regard.view.figures.matrix_figure import confidence
from regard.view.palette import Theme, get_theme
from regard.view.record.attention import AttentionRecord
from regard.view.record.record import Record
from regard.view.record.texts import RecordText
from regard.view.selection import select_attention
from regard.view.svg import svg_text

PICTURES = Path(__file__).parent / "pictures"
THEMES = ("light", "dark")
SENTENCE = "Two young men are playing football in the snow."
STORY = ("Mary took the apple.", "John went to the office.", "Mary went to the garden.")
SKETCH_SOURCE = ("Two", "young", "men", "are", "playing", "football")  # the first words of SENTENCE
SKETCH_TARGET = ("Zwei", "junge", "Männer", "spielen")
SKETCH_STEP = 2  # the word whose attention is drawn
MASK_SENTENCE = "The cat sat on the mat because it was warm."


@dataclass(frozen=True)
class Picture:
    """A figure: the record of a result, and a view of it."""

    record: Callable[[Path], Record]
    view: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def save(self, runs: Path, theme: str, file: Path) -> None:
        """Draw the view of the record."""
        figure(self.record(runs), self.view, theme=theme, **self.options).save(file)


@dataclass(frozen=True)
class Sketch:
    """A drawing of an encoder–decoder."""

    title: str
    draw: Callable[[Path, Theme], Drawing]

    def save(self, runs: Path, theme: str, file: Path) -> None:
        """Draw the sketch."""
        file.write_text(svg_text(self.draw(runs, get_theme(theme)), title=self.title), encoding="utf-8")


@cache
def translation_record(runs: Path, store_qkv: str = "") -> Record:
    """Record of a translation."""
    return regard.load(runs / "m30k", threads=1)(SENTENCE).record(store_qkv=store_qkv)


@cache
def alignment_record(runs: Path) -> Record:
    """Record that opens with the cross-attention head whose largest weights are on the most source words."""
    record = replace(translation_record(runs), best=None, view={})

    def alignment_score(site: tuple[str, int, int]) -> tuple[int, float]:
        selection = select_attention(record, *site, words=True)
        return len({*selection.table.argmax(axis=1).tolist()}), confidence(selection)

    cross = record["decoder.cross"]
    sites = [(cross.name, layer, head) for layer in cross.layers for head in range(cross.num_heads)]
    return replace(record, best=max(sites, key=alignment_score))


@cache
def answer_record(runs: Path) -> Record:
    """Record of an answer about a story."""
    model = regard.load(runs / "babi2", threads=1)
    return model(list(STORY), "Where is the apple?").record()


@cache
def label_record(runs: Path) -> Record:
    """Record of a classified review."""
    return regard.load(runs / "mood", threads=1)("A quiet triumph; the ending carries the film.").record()


def mask_record(mask: Mask, _: Path) -> Record:
    """Record of uniform attention under a mask."""
    words = MASK_SENTENCE.split()
    positions = torch.arange(len(words))[None]
    allowed = mask.bind(positions, positions).dense.expand(1, 1, len(words), len(words)).float().numpy()
    weights = (allowed / allowed.sum(-1, keepdims=True)).astype(np.float32)
    text = RecordText.from_subwords(MASK_SENTENCE, words, range(len(words)))
    attention = AttentionRecord("encoder.self", "source", "source", weights, (0,))
    return Record(title=str(mask), texts={"source": text}, attention=(attention,))


def bottleneck_sketch(_: Path, theme: Theme) -> Drawing:
    """An encoder–decoder without attention."""
    return draw_bottleneck(theme, SKETCH_SOURCE, SKETCH_TARGET)


def attention_sketch(runs: Path, theme: Theme) -> Drawing:
    """An encoder–decoder with attention; the weights are those of a head of the translation model."""
    selection = select_attention(alignment_record(runs), words=True)
    step = next(index for index, unit in enumerate(selection.rows) if unit.label == SKETCH_TARGET[SKETCH_STEP])
    words = SENTENCE.split()
    columns = [words.index(word) for word in SKETCH_SOURCE]
    weights = [float(selection.table[step, column]) for column in columns]
    return draw_attention(theme, SKETCH_SOURCE, SKETCH_TARGET, weights, SKETCH_STEP)


FIGURES: dict[str, Picture | Sketch] = {
    "bottleneck": Sketch("A recurrent encoder–decoder without attention", bottleneck_sketch),
    "attention": Sketch("A recurrent encoder–decoder with attention", attention_sketch),
    "alignment": Picture(alignment_record, "matrix", {"words": True}),
    "lines": Picture(alignment_record, "lines", {"words": True}),
    "heads": Picture(alignment_record, "heads", {"attention": "decoder.cross", "width": "page"}),
    "decoding": Picture(translation_record, "decoding", {"width": "page"}),
    "beam-tree": Picture(translation_record, "beam-tree", {"width": "page"}),
    "positions": Picture(translation_record, "positions", {"width": "page"}),
    "flow": Picture(translation_record, "flow", {"attention": "encoder.self", "words": True, "width": "page"}),
    "math": Picture(lambda runs: translation_record(runs, "encoder.1.self:0"), "math", {"width": "page"}),
    "hops": Picture(answer_record, "hops"),
    "prediction": Picture(label_record, "prediction"),
    "mask-causal": Picture(partial(mask_record, causal()), "matrix"),
    "mask-window": Picture(partial(mask_record, window(1)), "matrix"),
    "mask-sparse": Picture(partial(mask_record, window(1) | global_tokens(0)), "matrix"),
}


def draw(runs: Path, name: str, folder: Path = PICTURES) -> list[Path]:
    """Draw a figure in every theme; return the files."""
    picture = FIGURES[name]
    files = []
    for theme in THEMES:
        file = folder / f"{name}-{theme}.svg"
        picture.save(runs, theme, file)
        files.append(file)
    return files


def main() -> None:
    """Draw the selected figures."""
    parser = argparse.ArgumentParser(description="Draw the figures of the README and the site.")
    parser.add_argument("runs", type=Path, help="folder of the models")
    parser.add_argument("--only", choices=FIGURES, action="append", help="one figure; may be repeated")
    parser.add_argument("--out", type=Path, default=PICTURES, help="output folder")
    arguments = parser.parse_args()
    files = [str(file) for name in arguments.only or FIGURES for file in draw(arguments.runs, name, arguments.out)]
    print(json.dumps(files, indent=1))


if __name__ == "__main__":
    main()
