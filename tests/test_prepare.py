"""The scripts that prepare public data sets: they run, lose no row, and write what the readers take."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.data.sources import read_lines, read_pairs

ROOT = Path(__file__).parents[1]
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


def prepared(script: str, folder: str, target: Path) -> Path:
    if not (DATA / folder).is_dir():
        pytest.skip(f"shared/data/{folder} is not there")
    done = run(script, DATA / folder, target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("script", sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "folders"))
def test_every_script_has_help(script: str) -> None:
    """Only one is really run, the others are read: starting Python takes long."""
    text = (SCRIPTS / f"{script}.py").read_text("utf-8")
    assert "folders(__doc__)" in text
    if script == "sst2":
        assert "Stanford sentiment" in run(script, "--help").stdout
        wrong = run(script, "nowhere", "out")
        assert (wrong.returncode, "nowhere is not a folder" in wrong.stderr) == (2, True)


def test_multi30k(tmp_path: Path) -> None:
    folder = prepared("multi30k", "multi30k", tmp_path)
    for split, count in (("train", 29_000), ("valid", 1014), ("test", 1000)):
        for language in ("de", "fr", "cs"):
            pairs = read_pairs([folder / f"{split}.en", folder / f"{split}.{language}"])
            assert (len(pairs), pairs.rejected) == (count, 0)


@pytest.mark.parametrize(
    ("script", "folder", "count"), [("tatoeba", "tatoeba_en_fr", 142_787), ("cmudict", "cmudict", 133_737)]
)
def test_pairs_are_split_by_their_source(tmp_path: Path, script: str, folder: str, count: int) -> None:
    prepared(script, folder, tmp_path)
    sets = {split: read_pairs([tmp_path / f"{split}.tsv"]) for split in ("train", "valid", "test")}
    assert sum(map(len, sets.values())) == count
    known = set(sets["train"].source)
    assert not known & {*sets["valid"].source, *sets["test"].source}
    assert not set(sets["valid"].source) & set(sets["test"].source)
    assert all(0.04 < len(sets[split]) / count < 0.06 for split in ("valid", "test"))


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
    prepared(script, script, tmp_path)
    splits = [name for name in ("train", "valid", "test") if (tmp_path / f"{name}.tsv").exists()]
    sets = [read_pairs([tmp_path / f"{name}.tsv"]) for name in splits]
    found = [len(pairs) for pairs in sets]
    assert found == list(counts) or [sum(found)] == list(counts)
    assert all(len(set(pairs.target)) == labels for pairs in sets)


@pytest.mark.parametrize(
    ("script", "folder", "counts"),
    [
        ("wnut17", "wnut17", {"train": 3394, "valid": 1009, "test": 1287}),
        ("uner", "uner_en_ewt", {"train": 2001, "test": 2077}),
    ],
)
def test_tagged_sentences(tmp_path: Path, script: str, folder: str, counts: dict[str, int]) -> None:
    prepared(script, folder, tmp_path)
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
    prepared(script, folder, tmp_path)
    for split, count in counts.items():
        data = json.loads((tmp_path / f"{split}.json").read_text("utf-8"))
        questions = 0
        for paragraph in (paragraph for article in data["data"] for paragraph in article["paragraphs"]):
            for question in paragraph["qas"]:
                questions += 1
                for answer in question["answers"]:
                    start = answer["answer_start"]
                    assert paragraph["context"][start : start + len(answer["text"])] == answer["text"]
        assert 0.98 * count <= questions <= count  # QAMR: some have no answer in one piece


def test_stories(tmp_path: Path) -> None:
    prepared("babi", "babi", tmp_path)
    for folder, questions in (("en", 1000), ("en-10k", 10_000)):
        parts = [read_lines(tmp_path / folder / f"qa1.{split}.txt") for split in ("train", "valid")]
        assert all(lines[0].startswith("1 ") for lines in parts)
        assert sum("\t" in line for lines in parts for line in lines) == questions
    assert sum("\t" in line for line in read_lines(tmp_path / "en" / "qa2.test.txt")) == 1000
