"""Write the small files that the pages' commands name, so that every command can be tried as it stands.

    python docs/make_samples.py samples

All of it is made here: sentences by a small grammar in English and German, reviews, names, a passage with questions,
stories. The same seed gives the same files. Nothing is overwritten that is already there.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from random import Random

# English one, English many, German one, German many, gender
WHO = (
    ("dog", "dogs", "Hund", "Hunde", "m"),
    ("cat", "cats", "Katze", "Katzen", "f"),
    ("child", "children", "Kind", "Kinder", "n"),
    ("man", "men", "Mann", "Männer", "m"),
    ("woman", "women", "Frau", "Frauen", "f"),
    ("horse", "horses", "Pferd", "Pferde", "n"),
    ("bird", "birds", "Vogel", "Vögel", "m"),
    ("girl", "girls", "Mädchen", "Mädchen", "n"),
)
LOOKS = (("", ""), ("small", "klein"), ("old", "alt"), ("quiet", "ruhig"), ("brown", "braun"), ("happy", "fröhlich"))
COUNTS = (("two", "zwei"), ("three", "drei"), ("four", "vier"))
DOES = (
    ("runs", "run", "rennt", "rennen"),
    ("sleeps", "sleep", "schläft", "schlafen"),
    ("plays", "play", "spielt", "spielen"),
    ("waits", "wait", "wartet", "warten"),
    ("sings", "sing", "singt", "singen"),
    ("sits", "sit", "sitzt", "sitzen"),
)
WHERE = (
    ("in the snow", "im Schnee"),
    ("in the park", "im Park"),
    ("in the garden", "im Garten"),
    ("in the house", "im Haus"),
    ("on the street", "auf der Straße"),
    ("on the beach", "am Strand"),
    ("near the river", "am Fluss"),
)
GOOD = ("A quiet triumph", "Warm and funny", "A joy to watch", "Bold and clever", "Tender, wise and sharp")
BAD = ("A dull mess", "Flat and far too long", "A waste of time", "Tired and noisy", "Cold, slow and empty")
PARTS = ("the acting", "the story", "the music", "the ending", "the camera work", "the dialogue")
PEOPLE = ("Ada Lovelace", "Grace Hopper", "Jim Henson", "Mary Shelley", "Alan Turing", "Clara Schumann")
PLACES = ("London", "New York", "Leipzig", "Greenville", "Vienna", "Paris")
FIRST = ("Ina", "Tom", "Eva", "Karl", "Rosa", "Emil", "Lena", "Otto", "Nora", "Paul")
LAST = ("Berg", "Stone", "Rivers", "Keller", "Marsh", "Winter", "Vogel", "Hill")
JOBS = ("a painter", "an engineer", "a Swedish singer", "a doctor", "a chess player", "an Irish poet")
NOTES = (
    ("Ada Lovelace was an English mathematician. She was born in London in 1815.",
     (("Who was Ada Lovelace?", "an English mathematician"), ("Where was Ada Lovelace born?", "London"))),
    ("Jim Henson was an American puppeteer. He made the Muppets in 1955.",
     (("Who was Jim Henson?", "an American puppeteer"), ("When were the Muppets made?", "1955"))),
    ("Grace Hopper was a computer scientist. She wrote a compiler for the Navy in 1952.",
     (("Who was Grace Hopper?", "a computer scientist"), ("What did Grace Hopper write?", "a compiler"))),
    ("Clara Schumann was a German pianist. She gave her first concert in Leipzig.",
     (("Who was Clara Schumann?", "a German pianist"), ("Where was the first concert?", "Leipzig"))),
)  # fmt: skip
WALKERS, ROOMS, THINGS = ("Mary", "John", "Sandra"), ("kitchen", "garden", "office", "hallway"), ("apple", "ball")

Pair = tuple[str, str]


def sentences() -> list[Pair]:
    """Return every sentence of the grammar with its translation."""
    made = []
    for who, look, does, where in product(WHO, LOOKS, DOES, WHERE):
        looks = f"{look[0]} " if look[0] else ""
        ending = {"m": "er", "f": "e", "n": "es"}[who[4]]
        seems = f"{look[1]}{ending} " if look[1] else ""
        article = "an" if look[0].startswith("o") else "a"
        one = "eine" if who[4] == "f" else "ein"
        made.append((f"{article} {looks}{who[0]} {does[0]} {where[0]}", f"{one} {seems}{who[2]} {does[2]} {where[1]}"))
        seem = f"{look[1]}e " if look[1] else ""
        for count in COUNTS:
            made.append(
                (
                    f"{count[0]} {looks}{who[1]} {does[1]} {where[0]}",
                    f"{count[1]} {seem}{who[3]} {does[3]} {where[1]}",
                )
            )
    return [(sentence(english), sentence(german)) for english, german in made]


def sentence(words: str) -> str:
    """Return words as a sentence."""
    return f"{words[0].upper()}{words[1:]}."


def reviews(chance: Random, count: int) -> Iterator[Pair]:
    """Yield reviews with what they think of a film."""
    for _ in range(count):
        label = chance.choice(("good", "bad"))
        praise = {"good": ("lifts", "carries"), "bad": ("ruins", "spoils")}[label]
        opening = chance.choice(GOOD if label == "good" else BAD)
        yield f"{opening}; {chance.choice(PARTS)} {chance.choice(praise)} the film.", label


def tagged(chance: Random, count: int) -> str:
    """Return sentences with a word and its tag a line."""
    blocks = []
    for _ in range(count):
        first, last = chance.choice(PEOPLE).split()
        place = chance.choice(PLACES).split()
        verb = chance.choice((["was", "born"], ["lived"], ["worked"]))
        towns = [(word, "B-LOC" if number == 0 else "I-LOC") for number, word in enumerate(place)]
        rows = [(first, "B-PER"), (last, "I-PER"), *((word, "O") for word in [*verb, "in"]), *towns, (".", "O")]
        blocks.append("".join(f"{word}\t{tag}\n" for word, tag in rows))
    return "\n".join(blocks)


def lives(chance: Random, count: int) -> Iterator[tuple[str, tuple[Pair, ...]]]:
    """Yield passages about invented people, with questions and their answers."""
    for first, last in chance.sample([*product(FIRST, LAST)], count):
        job, place, year = chance.choice(JOBS), chance.choice(PLACES), str(chance.randrange(1800, 1990))
        text = f"{first} {last} was {job}. The family lived in {place}, where {first} was born in {year}."
        yield (
            text,
            (
                (f"Who was {first} {last}?", job),
                (f"Where was {first} {last} born?", place),
                (f"When was {first} {last} born?", year),
            ),
        )


def passages(told: Sequence[tuple[str, tuple[Pair, ...]]]) -> str:
    """Return passages with their questions, in SQuAD's form."""
    paragraphs = []
    for number, (text, questions) in enumerate(told):
        asked = [
            {
                "id": f"{number}-{place}",
                "question": question,
                "answers": [{"text": answer, "answer_start": text.index(answer)}],
            }
            for place, (question, answer) in enumerate(questions)
        ]
        paragraphs.append({"context": text, "qas": asked})
    return json.dumps({"version": "1.1", "data": [{"title": "notes", "paragraphs": paragraphs}]}, indent=1) + "\n"


def stories(chance: Random, count: int) -> str:
    """Return stories whose question needs two sentences: who carries a thing, and where they went last."""
    lines = []
    for _ in range(count):
        thing, carrier, other = chance.choice(THINGS), *chance.sample(WALKERS, 2)
        told = [
            f"{other} went to the {chance.choice(ROOMS)}.",
            f"{carrier} took the {thing}.",
            f"{other} went to the {chance.choice(ROOMS)}.",
        ]
        place = chance.choice(ROOMS)
        told.insert(chance.choice((2, 3)), f"{carrier} went to the {place}.")
        lines += [f"{number} {line}" for number, line in enumerate(told, 1)]
        facts = f"{told.index(f'{carrier} took the {thing}.') + 1} {told.index(f'{carrier} went to the {place}.') + 1}"
        lines.append(f"{len(told) + 1} Where is the {thing}?\t{place}\t{facts}")
    return as_lines(lines)


def as_lines(rows: Sequence[str]) -> str:
    """Return rows as the text of a file."""
    return "".join(f"{row}\n" for row in rows)


def as_table(rows: Sequence[Pair], names: Pair | None = None, delimiter: str = "\t") -> str:
    """Return pairs as two columns."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([names, *rows] if names else rows)
    return text.getvalue()


def files(seed: int = 1) -> dict[str, str]:
    """Return the name and text of every file."""
    chance = Random(seed)
    pairs = sentences()
    chance.shuffle(pairs)
    train, valid, test, mine = pairs[:3000], pairs[3000:3100], pairs[3100:3200], pairs[3200:3400]
    english = [source for source, _ in pairs]
    told = [text for text, _ in NOTES]
    running: Callable[[int], str] = lambda start: as_lines([*told, *english[start : start + 600], *told])  # noqa: E731
    asked = [question for _, questions in NOTES for question, _ in questions]
    return {
        "train.en": as_lines([source for source, _ in train]),
        "train.de": as_lines([target for _, target in train]),
        "val.en": as_lines([source for source, _ in valid]),
        "val.de": as_lines([target for _, target in valid]),
        "test.en": as_lines([source for source, _ in test]),
        "test.de": as_lines([target for _, target in test]),
        "pairs.tsv": as_table(train),
        "test.tsv": as_table(test[:30]),
        "mine.tsv": as_table(mine),
        "lines.txt": as_lines(english[-3:]),
        "big.txt": as_lines(english[-200:]),
        "reviews.csv": as_table([*reviews(chance, 600)], ("text", "label"), ","),
        "test.csv": as_table([*reviews(chance, 100)], ("text", "label"), ","),
        "names.conll": tagged(chance, 200),
        "test.conll": tagged(chance, 40),
        "squad.json": passages([*NOTES, *lives(chance, 60)]),
        "notes.txt": "\n\n".join(told) + "\n",
        "notes/people.txt": as_lines([*told, *[text for text, _ in reviews(chance, 200)]]),
        "books/one.txt": running(0),
        "books/two.txt": running(600),
        "book.txt": running(1200),
        "test.txt": running(1800),
        "terms.txt": as_lines(["mathematician", "puppeteer", "compiler"]),
        "texts.txt": as_lines([*told, *english[:20]]),
        "questions.txt": as_lines(asked),
        "qa2_train.txt": stories(chance, 300),
        "qa2_test.txt": stories(chance, 60),
        "story.txt": as_lines(["Mary took the apple.", "John went to the office.", "Mary went to the garden."]),
    }


def write(folder: Path, seed: int = 1) -> list[Path]:
    """Write the files that are not there, and return them."""
    written = []
    for name, text in files(seed).items():
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            written.append(path)
    return written


if __name__ == "__main__":
    for made in write(Path(sys.argv[1] if len(sys.argv) > 1 else "samples")):
        print(made)
