"""Write the sample files that the commands of the documentation read, so that every command runs as it stands.

    python docs/make_samples.py samples

The texts are synthetic: English and German sentences from a small grammar, reviews, names, passages with questions,
stories. The same seed gives the same files. Existing files are kept.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from random import Random

# English singular and plural, German singular and plural, gender
SUBJECTS = (
    ("dog", "dogs", "Hund", "Hunde", "m"),
    ("cat", "cats", "Katze", "Katzen", "f"),
    ("child", "children", "Kind", "Kinder", "n"),
    ("man", "men", "Mann", "Männer", "m"),
    ("woman", "women", "Frau", "Frauen", "f"),
    ("horse", "horses", "Pferd", "Pferde", "n"),
    ("bird", "birds", "Vogel", "Vögel", "m"),
    ("girl", "girls", "Mädchen", "Mädchen", "n"),
)
ADJECTIVES = (
    ("", ""),
    ("small", "klein"),
    ("old", "alt"),
    ("quiet", "ruhig"),
    ("brown", "braun"),
    ("happy", "fröhlich"),
)
COUNTS = (("two", "zwei"), ("three", "drei"), ("four", "vier"))
VERBS = (
    ("runs", "run", "rennt", "rennen"),
    ("sleeps", "sleep", "schläft", "schlafen"),
    ("plays", "play", "spielt", "spielen"),
    ("waits", "wait", "wartet", "warten"),
    ("sings", "sing", "singt", "singen"),
    ("sits", "sit", "sitzt", "sitzen"),
)
PLACES = (
    ("in the snow", "im Schnee"),
    ("in the park", "im Park"),
    ("in the garden", "im Garten"),
    ("in the house", "im Haus"),
    ("on the street", "auf der Straße"),
    ("on the beach", "am Strand"),
    ("near the river", "am Fluss"),
)
PRAISE = ("A quiet triumph", "Warm and funny", "A joy to watch", "Bold and clever", "Tender, wise and sharp")
CRITICISM = ("A dull mess", "Flat and far too long", "A waste of time", "Tired and noisy", "Cold, slow and empty")
FILM_PARTS = ("the acting", "the story", "the music", "the ending", "the camera work", "the dialogue")
PEOPLE = ("Ada Lovelace", "Grace Hopper", "Jim Henson", "Mary Shelley", "Alan Turing", "Clara Schumann")
TOWNS = ("London", "New York", "Leipzig", "Greenville", "Vienna", "Paris")
FIRST_NAMES = ("Ina", "Tom", "Eva", "Karl", "Rosa", "Emil", "Lena", "Otto", "Nora", "Paul")
LAST_NAMES = ("Berg", "Stone", "Rivers", "Keller", "Marsh", "Winter", "Vogel", "Hill")
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
WALKERS = ("Mary", "John", "Sandra")
ROOMS = ("kitchen", "garden", "office", "hallway")
OBJECTS = ("apple", "ball")
OWNERS = ("Mila", "Juno", "Bruno", "Fips", "Tilda")
ANIMALS = ("fox", "hen", "mole", "newt")
COLOURS = ("red", "white", "grey", "yellow")

Pair = tuple[str, str]
Passage = tuple[str, tuple[Pair, ...]]  # text; questions with their answers


def sentences() -> list[Pair]:
    """All sentences of the grammar, with their translations."""
    phrases = []
    for subject, adjective, verb, place in product(SUBJECTS, ADJECTIVES, VERBS, PLACES):
        english_adjective = f"{adjective[0]} " if adjective[0] else ""
        ending = {"m": "er", "f": "e", "n": "es"}[subject[4]]
        inflected = f"{adjective[1]}{ending} " if adjective[1] else ""
        article = "an" if adjective[0].startswith("o") else "a"
        german_article = "eine" if subject[4] == "f" else "ein"
        phrases.append(
            (
                f"{article} {english_adjective}{subject[0]} {verb[0]} {place[0]}",
                f"{german_article} {inflected}{subject[2]} {verb[2]} {place[1]}",
            )
        )
        plural_adjective = f"{adjective[1]}e " if adjective[1] else ""
        for count in COUNTS:
            phrases.append(
                (
                    f"{count[0]} {english_adjective}{subject[1]} {verb[1]} {place[0]}",
                    f"{count[1]} {plural_adjective}{subject[3]} {verb[3]} {place[1]}",
                )
            )
    return [(as_sentence(english), as_sentence(german)) for english, german in phrases]


def as_sentence(phrase: str) -> str:
    """A phrase with a capital letter and a full stop."""
    return f"{phrase[0].upper()}{phrase[1:]}."


def reviews(random: Random, count: int) -> Iterator[Pair]:
    """Yield film reviews with their labels."""
    for _ in range(count):
        label = random.choice(("good", "bad"))
        verbs = {"good": ("lifts", "carries"), "bad": ("ruins", "spoils")}[label]
        opening = random.choice(PRAISE if label == "good" else CRITICISM)
        yield f"{opening}; {random.choice(FILM_PARTS)} {random.choice(verbs)} the film.", label


def tagged_sentences(random: Random, count: int) -> str:
    """Sentences in CoNLL columns: a word and its tag per line."""
    blocks = []
    for _ in range(count):
        first_name, last_name = random.choice(PEOPLE).split()
        town = random.choice(TOWNS).split()
        verb = random.choice((["was", "born"], ["lived"], ["worked"]))
        town_rows = [(word, "B-LOC" if index == 0 else "I-LOC") for index, word in enumerate(town)]
        outside_rows = [(word, "O") for word in [*verb, "in"]]
        rows = [(first_name, "B-PER"), (last_name, "I-PER"), *outside_rows, *town_rows, (".", "O")]
        blocks.append("".join(f"{word}\t{tag}\n" for word, tag in rows))
    return "\n".join(blocks)


def biographies(random: Random, count: int) -> Iterator[Passage]:
    """Yield passages about fictional people."""
    for first_name, last_name in random.sample([*product(FIRST_NAMES, LAST_NAMES)], count):
        job = random.choice(JOBS)
        town = random.choice(TOWNS)
        year = str(random.randrange(1800, 1990))
        name = f"{first_name} {last_name}"
        text = f"{name} was {job}. The family lived in {town}, where {first_name} was born in {year}."
        questions = ((f"Who was {name}?", job), (f"Where was {name} born?", town), (f"When was {name} born?", year))
        yield text, questions


def as_squad(passages: Sequence[Passage]) -> str:
    """Passages with their questions in SQuAD's format."""
    paragraphs = []
    for passage_index, (text, questions) in enumerate(passages):
        entries = [
            {
                "id": f"{passage_index}-{question_index}",
                "question": question,
                "answers": [{"text": answer, "answer_start": text.index(answer)}],
            }
            for question_index, (question, answer) in enumerate(questions)
        ]
        paragraphs.append({"context": text, "qas": entries})
    return json.dumps({"version": "1.1", "data": [{"title": "notes", "paragraphs": paragraphs}]}, indent=1) + "\n"


def location_stories(random: Random, count: int) -> str:
    """Stories whose question has two supporting facts: who carries an object, and where they went last."""
    lines = []
    for _ in range(count):
        object_name = random.choice(OBJECTS)
        carrier, other = random.sample(WALKERS, 2)
        taking = f"{carrier} took the {object_name}."
        story = [f"{other} went to the {random.choice(ROOMS)}.", taking, f"{other} went to the {random.choice(ROOMS)}."]
        room = random.choice(ROOMS)
        moving = f"{carrier} went to the {room}."
        story.insert(random.choice((2, 3)), moving)
        lines += as_babi(story, f"Where is the {object_name}?", room, supporting=(taking, moving))
    return as_lines(lines)


def induction_stories(random: Random, count: int) -> str:
    """Stories whose question has three supporting facts: an animal, another of its kind, and that one's colour."""
    lines = []
    for _ in range(count):
        asked, same, *others = random.sample(OWNERS, 4)
        kind, *other_kinds = random.sample(ANIMALS, 3)
        colour, *other_colours = random.sample(COLOURS, 3)
        supporting = (f"{asked} is a {kind}.", f"{same} is a {kind}.", f"{same} is {colour}.")
        story = [*supporting]
        for name, other_kind, other_colour in zip(others, other_kinds, other_colours, strict=True):
            story += [f"{name} is a {other_kind}.", f"{name} is {other_colour}."]
        random.shuffle(story)
        lines += as_babi(story, f"What colour is {asked}?", colour, supporting=supporting)
    return as_lines(lines)


def as_babi(story: Sequence[str], question: str, answer: str, *, supporting: Sequence[str]) -> list[str]:
    """Numbered lines of a story and its question in bAbI's format."""
    line_numbers = " ".join(str(story.index(fact) + 1) for fact in supporting)
    numbered = [f"{line_number} {sentence}" for line_number, sentence in enumerate(story, 1)]
    return [*numbered, f"{len(story) + 1} {question}\t{answer}\t{line_numbers}"]


def as_lines(rows: Sequence[str]) -> str:
    """Rows as the text of a file."""
    return "".join(f"{row}\n" for row in rows)


def as_table(rows: Sequence[Pair], header: Pair | None = None, delimiter: str = "\t") -> str:
    """Pairs as a file with two columns."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([header, *rows] if header else rows)
    return text.getvalue()


def sample_files(seed: int = 1) -> dict[str, str]:
    """Text of every file, by name."""
    random = Random(seed)
    pairs = sentences()
    random.shuffle(pairs)
    train = pairs[:3000]
    valid = pairs[3000:3100]
    test = pairs[3100:3200]
    other = pairs[3200:3400]
    english = [source for source, _ in pairs]
    notes = [text for text, _ in NOTES]
    questions = [question for _, pairs_of_text in NOTES for question, _ in pairs_of_text]

    def book(start: int) -> str:
        return as_lines([*notes, *english[start : start + 600], *notes])

    return {
        "train.en": as_lines([source for source, _ in train]),
        "train.de": as_lines([target for _, target in train]),
        "val.en": as_lines([source for source, _ in valid]),
        "val.de": as_lines([target for _, target in valid]),
        "test.en": as_lines([source for source, _ in test]),
        "test.de": as_lines([target for _, target in test]),
        "pairs.tsv": as_table(train),
        "test.tsv": as_table(test[:30]),
        "mine.tsv": as_table(other),
        "lines.txt": as_lines(english[-3:]),
        "big.txt": as_lines(english[-200:]),
        "reviews.csv": as_table([*reviews(random, 600)], ("text", "label"), ","),
        "test.csv": as_table([*reviews(random, 100)], ("text", "label"), ","),
        "names.conll": tagged_sentences(random, 200),
        "test.conll": tagged_sentences(random, 40),
        "squad.json": as_squad([*NOTES, *biographies(random, 60)]),
        "notes.txt": "\n\n".join(notes) + "\n",
        "notes/people.txt": as_lines([*notes, *[text for text, _ in reviews(random, 200)]]),
        "books/one.txt": book(0),
        "books/two.txt": book(600),
        "book.txt": book(1200),
        "test.txt": book(1800),
        "terms.txt": as_lines(["mathematician", "puppeteer", "compiler"]),
        "texts.txt": as_lines([*notes, *english[:20]]),
        "questions.txt": as_lines(questions),
        "qa2_train.txt": location_stories(random, 300),
        "qa2_test.txt": location_stories(random, 60),
        "story.txt": as_lines(["Mary took the apple.", "John went to the office.", "Mary went to the garden."]),
        "qa16_train.txt": induction_stories(random, 1000),
        "qa16_test.txt": induction_stories(random, 200),
        "animals.txt": as_lines(
            ["Juno is a fox.", "Bruno is a hen.", "Mila is a fox.", "Bruno is white.", "Juno is red."]
        ),
    }


def write_samples(folder: Path, seed: int = 1) -> list[Path]:
    """Write the files that do not exist yet; return their paths."""
    written = []
    for name, text in sample_files(seed).items():
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            written.append(path)
    return written


if __name__ == "__main__":
    for sample in write_samples(Path(sys.argv[1] if len(sys.argv) > 1 else "samples")):
        print(sample)
