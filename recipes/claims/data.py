"""Data of a claim: a named data set, or synthetic pairs made from the seed of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recipes.datasets import DataFiles, limit_file, prepare_dataset
from regard.checkpoint.atomic import make_folder, write_file
from regard.data.brackets import generate_brackets
from regard.data.synthetic import generate_pairs
from regard.errors import ConfigError, nearest

ClaimData = DataFiles
DEFAULT_TRAIN_ROWS = 20_000  # of synthetic data
DEFAULT_TEST_ROWS = 500
QUICK_ROWS = 200  # of a short trial
QUICK_TEST_ROWS = 40
BRACKETS = "brackets"  # a kind of synthetic data: text, and words with their depths
SYNTHETIC_SETTINGS = ("kind", "count", "tested", "lengths", "distances")
NAMED_SETTINGS = ("name", "rows", "tested")


def check_data(settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for data that are neither named nor synthetic, and for unknown settings."""
    if not settings:
        return
    known = NAMED_SETTINGS if "name" in settings else SYNTHETIC_SETTINGS
    if known[0] not in settings:
        raise ConfigError(f"data: name a data set (name) or a kind of synthetic data (kind), not {dict(settings)}")
    for setting in settings:
        if setting not in known:
            raise ConfigError(f"data: unknown {setting!r}{nearest(setting, known)}: there are {', '.join(known)}")


def prepare_data(
    settings: Mapping[str, Any], root: Path | None, out: Path, *, seed: int, is_quick: bool = False
) -> ClaimData:
    """Write, convert or find the data of a claim; synthetic data differ by seed, test data included."""
    check_data(settings)
    if not settings:
        return DataFiles(train=())
    if "name" in settings:
        return _named_data(settings, root, out, is_quick)
    return _synthetic_data(settings, out, seed, is_quick)


def _named_data(settings: Mapping[str, Any], root: Path | None, out: Path, is_quick: bool) -> ClaimData:
    files = prepare_dataset(settings["name"], root, out)
    rows = int(settings.get("rows", 0))
    tested = int(settings.get("tested", 0))
    is_stories = settings["name"].startswith("babi")  # a story has several lines
    if is_quick and not is_stories:
        rows = min(rows or QUICK_ROWS, QUICK_ROWS)
        tested = QUICK_TEST_ROWS
    folder = out / f"{settings['name']}-limited"
    valid_rows = tested if is_quick else 0
    return DataFiles(
        train=_limit(files.train, rows, folder),
        test=_limit(files.test, tested, folder),
        valid=_limit(files.valid, valid_rows, folder),
    )


def _limit(files: tuple[str, ...], count: int, folder: Path) -> tuple[str, ...]:
    if not count:
        return files
    return tuple(str(limit_file(Path(file), count, folder / Path(file).suffix[1:])) for file in files)


def _synthetic_data(settings: Mapping[str, Any], out: Path, seed: int, is_quick: bool) -> ClaimData:
    """Generate training and test pairs; the same settings and seed always give the same files."""
    ranges = {name: tuple(settings[name]) for name in ("lengths", "distances") if name in settings}
    counts = {"train": settings.get("count", DEFAULT_TRAIN_ROWS), "test": settings.get("tested", DEFAULT_TEST_ROWS)}
    if is_quick:
        counts = {"train": QUICK_ROWS, "test": QUICK_TEST_ROWS}
    kind = settings["kind"]
    folder = out / "-".join(map(str, (kind, *sum(ranges.values(), ()), *counts.values(), f"seed{seed}")))
    make_folder(folder)
    suffixes = {"train": "txt", "test": "conll"} if kind == BRACKETS else dict.fromkeys(counts, "tsv")
    files = {split: folder / f"{split}.{suffix}" for split, suffix in suffixes.items()}
    for split, file in files.items():
        if not file.exists():
            lines = _generate_lines(kind, counts[split], seed, split=split, ranges=ranges)
            write_file(file, "".join(f"{line}\n" for line in lines).encode())
    return DataFiles(train=(str(files["train"]),), test=(str(files["test"]),))


def _generate_lines(kind: str, count: int, seed: int, *, split: str, ranges: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a file: pairs; of brackets, text to train on, and words with their depths to test on."""
    if kind != BRACKETS:
        for source, target in generate_pairs(kind, count, seed, split=split, **ranges):
            yield f"{source}\t{target}"
        return
    for row in generate_brackets(count, seed, split=split, **ranges):
        if split == "train":
            yield " ".join(row.words)
        else:
            yield from (f"{word}\t{depth}" for word, depth in zip(row.words, row.depths, strict=True))
            yield ""
