"""The scripts that prepare public data sets: they run, lose no row, and write files that Regard reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.data.ledger import read_lines
from regard.data.pairs import read_pairs

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "recipes" / "prepare"
DATA = ROOT.parent / "shared" / "data"


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPTS / f"{script}.py", *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(regard.__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def prepare(script: str, folder: str, target: Path) -> Path:
    if not (DATA / folder).is_dir():
        pytest.skip(f"shared/data/{folder} is not there")
    process = run(script, DATA / folder, target)
    assert process.returncode == 0, process.stderr
    return target


@pytest.mark.parametrize("script", sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "dataset_io"))
def test_every_script_has_help(script: str) -> None:
    """Run one script and read the others: starting Python takes long."""
    text = (SCRIPTS / f"{script}.py").read_text("utf-8")
    assert "parse_folders(__doc__)" in text
    if script == "sst2":
        assert "Stanford sentiment" in run(script, "--help").stdout
        process = run(script, "nowhere", "out")
        assert (process.returncode, "nowhere is not a folder" in process.stderr) == (2, True)


def test_multi30k(tmp_path: Path) -> None:
    folder = prepare("multi30k", "multi30k", tmp_path)
    for split, count in (("train", 29_000), ("valid", 1014), ("test", 1000)):
        for language in ("de", "fr", "cs"):
            pairs = read_pairs([folder / f"{split}.en", folder / f"{split}.{language}"])
            assert (len(pairs), pairs.rejected) == (count, 0)


@pytest.mark.parametrize(
    ("script", "folder", "count"), [("tatoeba", "tatoeba_en_fr", 142_787), ("cmudict", "cmudict", 133_737)]
)
def test_pairs_are_split_by_their_source(tmp_path: Path, script: str, folder: str, count: int) -> None:
    prepare(script, folder, tmp_path)
    pairs = {split: read_pairs([tmp_path / f"{split}.tsv"]) for split in ("train", "valid", "test")}
    assert sum(map(len, pairs.values())) == count
    train_sources = set(pairs["train"].source)
    assert not train_sources & {*pairs["valid"].source, *pairs["test"].source}
    assert not set(pairs["valid"].source) & set(pairs["test"].source)
    assert all(0.04 < len(pairs[split]) / count < 0.06 for split in ("valid", "test"))


@pytest.mark.parametrize(
    ("script", "counts", "labels"),
    [
        ("sst2", (6920, 872, 1821), 2),
        ("sst5", (8544, 1101, 2210), 5),
        ("trec", (5452, 500), 6),
        ("subj", (10_000,), 2),
        ("ag_news", (7600,), 4),
        ("movie_reviews", (1600, 200, 200), 2),
    ],
)
def test_labelled_texts(tmp_path: Path, script: str, counts: tuple[int, ...], labels: int) -> None:
    prepare(script, script, tmp_path)
    files = [tmp_path / f"{split}.tsv" for split in ("train", "valid", "test")]
    splits = [read_pairs([file]) for file in files if file.exists()]
    sizes = [len(pairs) for pairs in splits]
    assert sizes == list(counts) or [sum(sizes)] == list(counts)
    assert all(len(set(pairs.target)) == labels for pairs in splits)


@pytest.mark.parametrize(
    ("script", "folder", "counts"),
    [
        ("wnut17", "wnut17", {"train": 3394, "valid": 1009, "test": 1287}),
        ("uner", "uner_en_ewt", {"train": 2001, "test": 2077}),
    ],
)
def test_tagged_sentences(tmp_path: Path, script: str, folder: str, counts: dict[str, int]) -> None:
    prepare(script, folder, tmp_path)
    for split, count in counts.items():
        lines = read_lines(tmp_path / f"{split}.conll")
        assert sum(not line for line in lines) == count
        rows = [line.split("\t") for line in lines if line]
        assert all(len(row) == 2 and row[0] and row[1][:2] in ("O", "B-", "I-") for row in rows)


@pytest.mark.parametrize(
    ("script", "folder", "counts"),
    [
        ("qamr", "qamr", {"train": 18_908, "test": 18_770}),
        ("squad", "squad_xquad_en", {"dev": 632}),
        ("squad", "policyqa", {"dev": 3809}),
    ],
)
def test_answers_stand_where_they_say(tmp_path: Path, script: str, folder: str, counts: dict[str, int]) -> None:
    prepare(script, folder, tmp_path)
    for split, count in counts.items():
        data = json.loads((tmp_path / f"{split}.json").read_text("utf-8"))
        questions = 0
        for paragraph in (paragraph for article in data["data"] for paragraph in article["paragraphs"]):
            for question in paragraph["qas"]:
                questions += 1
                for answer in question["answers"]:
                    start = answer["answer_start"]
                    assert paragraph["context"][start : start + len(answer["text"])] == answer["text"]
        assert 0.98 * count <= questions <= count  # QAMR: some have no contiguous answer


def test_stories(tmp_path: Path) -> None:
    prepare("babi", "babi", tmp_path)
    for folder, questions in (("en", 1000), ("en-10k", 10_000)):
        splits = [read_lines(tmp_path / folder / f"qa1.{split}.txt") for split in ("train", "valid")]
        assert all(lines[0].startswith("1 ") for lines in splits)
        assert sum("\t" in line for lines in splits for line in lines) == questions
    assert sum("\t" in line for line in read_lines(tmp_path / "en" / "qa2.test.txt")) == 1000
