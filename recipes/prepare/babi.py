"""bAbI stories: en/ and en-10k/ as qa1.train.txt, qa1.valid.txt (every tenth training story) and qa1.test.txt."""

import re
from collections.abc import Iterator
from pathlib import Path

from dataset_io import parse_folders, read_lines, write_lines

VALID_EVERY = 10
FILE_NAME = re.compile(r"qa(?P<task>\d+)_.*_(?P<split>train|test)\.txt")


def read_stories(path: Path) -> Iterator[list[str]]:
    story: list[str] = []
    for line in read_lines(path):
        if line.startswith("1 ") and story:
            yield story
            story = []
        story.append(line)
    yield story


def split_stories(stories: list[list[str]], published_split: str) -> dict[str, list[list[str]]]:
    if published_split == "test":
        return {"test": stories}
    train = [story for index, story in enumerate(stories) if index % VALID_EVERY]
    return {"train": train, "valid": stories[::VALID_EVERY]}


if __name__ == "__main__":
    source, target = parse_folders(__doc__)
    for path in sorted(source.glob("en*/qa*.txt*")):
        match = FILE_NAME.match(path.name)
        assert match, f"{path}: not named as bAbI's files are"
        folder = target / path.parent.name
        folder.mkdir(exist_ok=True)
        for split, stories in split_stories(list(read_stories(path)), match["split"]).items():
            write_lines(folder / f"qa{match['task']}.{split}.txt", (line for story in stories for line in story))
