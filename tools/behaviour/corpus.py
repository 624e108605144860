"""Generated texts and data files; the same in every run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

TEXT_COUNT = 200

WORDS = tuple(
    "the a one two old new red blue small large quick slow cold warm bright dark dog cat horse bird river house "
    "garden street window winter summer morning evening teacher doctor letter story question answer ran walks slept "
    "found lost reads wrote sees heard opened closed under over near behind before after with without and but or not "
    "never always soon here there market bridge mountain village island music colour picture number".split()
)
NAMES = ("Ada", "Alan", "Grace", "Mary Ann", "John", "Sandra")
CITIES = ("London", "Paris", "New York", "Rome", "Kyoto")
UNICODE_WORDS = (
    *("Übergröße", "naïve", "café", "cafe\u0301", "Ångström", "smörgåsbord", "Привет", "мир", "γλώσσα", "ﬁne"),
    *(
        "你好",
        "世界",
        "日本語",
        "テキスト",
        "한국어",
        "العربية",
        "שלום",
        "हिन्दी",
        "ไทย",
        "🙂",
        "👩‍👧",
        "½",
        "№",
        "ſ",
        "İstanbul",
    ),
)
SIGNS = (",", ";", ":", " –", "…", "!", "?", " (", ")", '"', "'s")


def make_texts(count: int = TEXT_COUNT, seed: int = 1, *, long: bool = True) -> list[str]:
    """Texts of several lengths: most of one sentence, some with Unicode or signs, one in 25 long, a few of two lines.

    >>> len(make_texts()), make_texts() == make_texts(), max(len(text.split()) for text in make_texts()) > 60
    (200, True, True)
    """
    random = Random(seed)
    texts = []
    for index in range(count):
        if long and index % 25 == 24:
            sentences = [_sentence(random, random.randint(5, 14)) for _ in range(random.randint(6, 12))]
            texts.append(" ".join(sentences))
        elif long and index % 50 == 13:
            texts.append("\n".join(_sentence(random, random.randint(2, 6)) for _ in range(2)))
        elif index % 10 == 7:
            texts.append(_sentence(random, random.randint(1, 8), unicode_share=0.5))
        elif index % 10 == 3:
            texts.append(_sentence(random, random.randint(4, 11), sign_share=0.3))
        else:
            texts.append(_sentence(random, random.randint(1, 14)))
    return texts


def _sentence(random: Random, length: int, unicode_share: float = 0.03, sign_share: float = 0.05) -> str:
    words = []
    for _ in range(length):
        draw = random.random()
        if draw < unicode_share:
            word = random.choice(UNICODE_WORDS)
        elif draw < unicode_share + 0.05:
            word = str(random.randint(0, 2026))
        elif draw < unicode_share + 0.12:
            word = random.choice((*NAMES, *CITIES))
        else:
            word = random.choice(WORDS)
        words.append(word + (random.choice(SIGNS) if random.random() < sign_share else ""))
    text = " ".join(words)
    return text[:1].upper() + text[1:] + random.choice((".", ".", ".", "?", "!", ""))


def make_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """A toy language pair: the words in reverse order, each with its letters marked."""
    random = Random(seed)
    pairs = []
    for _ in range(count):
        words = [random.choice(WORDS[:40]) for _ in range(random.randint(2, 8))]
        pairs.append((" ".join(words), " ".join(f"{word}en" for word in reversed(words))))
    return pairs


def make_targets(texts: Sequence[str], seed: int = 2) -> list[str]:
    """A target text for each source text, about as long; one in ten has another number of sentences."""
    random = Random(seed)
    targets = []
    for index, text in enumerate(texts):
        target = _sentence(random, max(1, len(text.split()) + random.randint(-2, 2)))
        targets.append(f"{target} {_sentence(random, 3)}" if index % 10 == 9 else target)
    return targets


def make_questions(count: int = TEXT_COUNT, seed: int = 3) -> list[tuple[str, str]]:
    """Questions with the passages that they are about; one passage in 25 is long."""
    random = Random(seed)
    passages = make_texts(count, seed + 100)
    questions = []
    for passage in passages:
        words = passage.split()
        question = f"Where is {random.choice(words)} {random.choice(WORDS)}?"
        questions.append((question, f"{passage} {_sentence(random, 4)}"))
    return questions


def make_masked_texts(mask: str, count: int = TEXT_COUNT, seed: int = 4) -> list[str]:
    """Texts with one to three masks; no two masks of a text are far apart."""
    random = Random(seed)
    texts = []
    for index, text in enumerate(make_texts(count, seed + 100)):
        words = [word for word in text.split() if mask not in word]
        first = random.randrange(len(words))
        for position in range(first, min(first + 1 + index % 3, len(words))):
            words[position] = mask
        texts.append(" ".join(words))
    return texts


class Story(NamedTuple):
    """Sentences, a question about them, its answer and the numbers of the supporting sentences (from 1)."""

    sentences: tuple[str, ...]
    question: str
    answer: str
    support: int


PEOPLE = ("Mary", "John", "Sandra", "Daniel")
PLACES = ("kitchen", "garden", "office", "hallway", "bathroom")


def make_stories(count: int = TEXT_COUNT, seed: int = 5, *, max_sentences: int = 9) -> list[Story]:
    """Stories in which people go to places; the question is where one of them is."""
    random = Random(seed)
    stories = []
    for _ in range(count):
        moves = [(random.choice(PEOPLE), random.choice(PLACES)) for _ in range(random.randint(1, max_sentences))]
        person = random.choice(moves)[0]
        support = max(number for number, (walker, _) in enumerate(moves, 1) if walker == person)
        sentences = tuple(f"{walker} went to the {place}." for walker, place in moves)
        stories.append(Story(sentences, f"Where is {person}?", moves[support - 1][1], support))
    return stories


def story_vocabulary() -> tuple[list[str], list[str]]:
    """All words of the stories, and those of them that are answers."""
    words = [*map(str.lower, PEOPLE), "went", "to", "the", *PLACES, "where", "is"]
    return words, list(PLACES)


def write_stories(path: Path, count: int, seed: int) -> Path:
    """Write stories in the format of bAbI."""
    lines = []
    for story in make_stories(count, seed, max_sentences=5):
        lines += [f"{number} {sentence}" for number, sentence in enumerate(story.sentences, 1)]
        lines.append(f"{len(story.sentences) + 1} {story.question}\t{story.answer}\t{story.support}")
    return _write_lines(path, lines)


def write_parallel(folder: Path, name: str, count: int, seed: int) -> list[Path]:
    """Write two parallel files."""
    pairs = make_pairs(count, seed)
    return [
        _write_lines(folder / f"{name}.source", [source for source, _ in pairs]),
        _write_lines(folder / f"{name}.target", [target for _, target in pairs]),
    ]


MOODS = {"good": ("bright", "warm", "quick"), "bad": ("dark", "cold", "slow")}


def _labelled(count: int, seed: int) -> Iterator[tuple[str, str]]:
    random = Random(seed)
    for index in range(count):
        label = ("good", "bad", "mixed")[index % 3]
        choices = MOODS.get(label, ("one", "two"))
        words = [random.choice(WORDS) for _ in range(random.randint(2, 9))]
        words.insert(random.randrange(len(words)), random.choice(choices))
        yield " ".join(words), label


def write_labelled(path: Path, count: int, seed: int) -> Path:
    """Write texts with one label each."""
    return _write_lines(path, [f"{text}\t{label}" for text, label in _labelled(count, seed)])


def write_multilabel(path: Path, count: int, seed: int) -> Path:
    """Write texts with no, one or several labels, separated by semicolons."""
    rows = []
    for text, label in _labelled(count, seed):
        labels = [*([label] if label != "mixed" else []), *(["animal"] if "dog" in text or "cat" in text else [])]
        rows.append(f"{text}\t{'; '.join(labels)}")
    return _write_lines(path, rows)


def write_labelled_pairs(path: Path, count: int, seed: int) -> Path:
    """Write CSV rows of two texts and a label."""
    random = Random(seed)
    rows = ["text,other,label"]
    rows += [f"{text},{_letters(random)} {random.choice(WORDS)},{label}" for text, label in _labelled(count, seed)]
    return _write_lines(path, rows)


def _letters(random: Random) -> str:
    return " ".join(random.choice(WORDS) for _ in range(random.randint(1, 5)))


def write_tagged(path: Path, count: int, seed: int) -> Path:
    """Write sentences in CoNLL columns with people and places."""
    random = Random(seed)
    lines = []
    for _ in range(count):
        tokens = [(random.choice(WORDS), "O") for _ in range(random.randint(1, 5))]
        for name, kind in ((random.choice(NAMES), "PER"), (random.choice(CITIES), "LOC")):
            parts = name.split()
            tokens += [(part, f"{'I' if index else 'B'}-{kind}") for index, part in enumerate(parts)]
            tokens.append((random.choice(WORDS), "O"))
        lines += [f"{word}\t{tag}" for word, tag in tokens]
        lines.append("")
    return _write_lines(path, lines)


def write_questions(path: Path, count: int, seed: int) -> Path:
    """Write questions in the format of SQuAD 2; one in six has no answer."""
    random = Random(seed)
    paragraphs = []
    for index in range(count):
        name, city = random.choice(NAMES), random.choice(CITIES)
        passage = f"the {_letters(random)} and {name} walks in {city} {_letters(random)}"
        answers = [("who is it", name), ("where is it", city)]
        questions: list[dict[str, object]] = [
            {
                "id": f"{index}-{word}",
                "question": word,
                "answers": [{"text": text, "answer_start": passage.index(text)}],
            }
            for word, text in answers
        ]
        if index % 3 == 0:
            questions.append({"id": f"{index}-none", "question": "never here", "answers": [], "is_impossible": True})
        paragraphs.append({"context": passage, "qas": questions})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "", "paragraphs": paragraphs}]}), "utf-8")
    return path


def write_documents(path: Path, count: int, seed: int) -> Path:
    """Write paragraphs of running text with blank lines between them."""
    random = Random(seed)
    lines = []
    for _ in range(count):
        lines += [_sentence(random, random.randint(4, 10), 0.0) for _ in range(random.randint(2, 5))]
        lines.append("")
    return _write_lines(path, lines)


def _write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path
