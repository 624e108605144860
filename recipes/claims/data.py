"""Data of a claim: a named data set, or synthetic pairs made from the seed of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recipes.datasets import DataFiles, limit_file, prepare_dataset
from regard.checkpoint.atomic import make_folder, write_file
from regard.data.brackets import generate_brackets
from regard.data.conll import conll_lines
from regard.data.synthetic import generate_pairs
from regard.errors import ConfigError, nearest

ClaimData = DataFiles
DEFAULT_TRAIN_ROWS = 20_000  # of synthetic data
DEFAULT_TEST_ROWS = 500
QUICK_TRAIN_ROWS = 200  # of a short trial
QUICK_TEST_ROWS = 40
BRACKETS = "brackets"  # a kind of synthetic data: text, and words with their depths
SYNTHETIC_SETTINGS = ("kind", "train_rows", "test_rows", "lengths", "distances")
NAMED_SETTINGS = ("name", "train_rows", "test_rows")


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
    train_rows = int(settings.get("train_rows", 0))
    test_rows = int(settings.get("test_rows", 0))
    is_stories = settings["name"].startswith("babi")  # a story has several lines
    if is_quick and not is_stories:
        train_rows = min(train_rows or QUICK_TRAIN_ROWS, QUICK_TRAIN_ROWS)
        test_rows = QUICK_TEST_ROWS
    folder = out / f"{settings['name']}-limited"
    valid_rows = test_rows if is_quick else 0
    return DataFiles(
        train=_limit(files.train, train_rows, folder),
        test=_limit(files.test, test_rows, folder),
        valid=_limit(files.valid, valid_rows, folder),
    )


def _limit(files: tuple[str, ...], count: int, folder: Path) -> tuple[str, ...]:
    if not count:
        return files
    return tuple(str(limit_file(Path(file), count, folder / Path(file).suffix[1:])) for file in files)


def _synthetic_data(settings: Mapping[str, Any], out: Path, seed: int, is_quick: bool) -> ClaimData:
    """Generate training and test pairs; the same settings and seed always give the same files."""
    ranges = {name: tuple(settings[name]) for name in ("lengths", "distances") if name in settings}
    num_rows = {
        "train": settings.get("train_rows", DEFAULT_TRAIN_ROWS),
        "test": settings.get("test_rows", DEFAULT_TEST_ROWS),
    }
    if is_quick:
        num_rows = {"train": QUICK_TRAIN_ROWS, "test": QUICK_TEST_ROWS}
    kind = settings["kind"]
    folder = out / "-".join(map(str, (kind, *sum(ranges.values(), ()), *num_rows.values(), f"seed{seed}")))
    make_folder(folder)
    suffixes = {"train": "txt", "test": "conll"} if kind == BRACKETS else dict.fromkeys(num_rows, "tsv")
    files = {split: folder / f"{split}.{suffix}" for split, suffix in suffixes.items()}
    for split, file in files.items():
        if not file.exists():
            lines = _generate_lines(kind, num_rows[split], seed, split=split, ranges=ranges)
            write_file(file, "".join(f"{line}\n" for line in lines).encode())
    return DataFiles(train=(str(files["train"]),), test=(str(files["test"]),))


def _generate_lines(kind: str, num_rows: int, seed: int, *, split: str, ranges: Mapping[str, Any]) -> Iterable[str]:
    """Lines of a file: pairs; of brackets, text to train on, and words with their depths to test on."""
    if kind != BRACKETS:
        pairs = generate_pairs(kind, num_rows, seed, split=split, **ranges)
        return (f"{source}\t{target}" for source, target in pairs)
    rows = generate_brackets(num_rows, seed, split=split, **ranges)
    return (" ".join(row.words) for row in rows) if split == "train" else conll_lines(rows)
