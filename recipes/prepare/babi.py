"""bAbI stories: en/ and en-10k/ as qa1.train.txt, qa1.valid.txt (every tenth story of theirs), qa1.test.txt."""

import re
from collections.abc import Iterator
from pathlib import Path

from folders import folders, lines_of, write_lines


def stories(path: Path) -> Iterator[list[str]]:
    story: list[str] = []
    for line in lines_of(path):
        if line.startswith("1 ") and story:
            yield story
            story = []
        story.append(line)
    yield story


if __name__ == "__main__":
    source, target = folders(__doc__)
    for path in sorted(source.glob("en*/qa*.txt*")):
        number, split = re.match(r"qa(\d+)_.*_(train|test)\.txt", path.name).groups()  # type: ignore[union-attr]
        folder = target / path.parent.name
        folder.mkdir(exist_ok=True)
        found = list(stories(path))
        rest = [story for place, story in enumerate(found) if place % 10]
        parts = {"test": found} if split == "test" else {"train": rest, "valid": found[::10]}
        for name, kept in parts.items():
            write_lines(folder / f"qa{number}.{name}.txt", (line for story in kept for line in story))
