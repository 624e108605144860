"""Scripts that prepare public data sets: they keep every row and write files that Regard reads."""

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


def run_script(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    source_dir = str(Path(regard.__file__).parents[1])
    return subprocess.run(
        [sys.executable, SCRIPTS / f"{script}.py", *arguments],
        env={**os.environ, "PYTHONPATH": source_dir, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def prepare(script: str, dataset: str, output_dir: Path) -> None:
    """Prepare a data set, or skip the test where the data set is missing."""
    if not (DATA / dataset).is_dir():
        pytest.skip(f"shared/data/{dataset} does not exist")
    process = run_script(script, DATA / dataset, output_dir)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("script", sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "dataset_io"))
def test_every_script_has_help(script: str) -> None:
    """Only one script is run, since starting Python takes long; the source of the others is checked."""
    source_code = (SCRIPTS / f"{script}.py").read_text("utf-8")
    assert "parse_folders(__doc__)" in source_code
    if script == "sst2":
        assert "Stanford sentiment" in run_script(script, "--help").stdout
        process = run_script(script, "nowhere", "out")
        assert process.returncode == 2
        assert "nowhere is not a folder" in process.stderr


def test_multi30k_keeps_every_sentence_pair(tmp_path: Path) -> None:
    prepare("multi30k", "multi30k", tmp_path)
    for split, num_pairs in (("train", 29_000), ("valid", 1014), ("test", 1000)):
        for language in ("de", "fr", "cs"):
            pairs = read_pairs([tmp_path / f"{split}.en", tmp_path / f"{split}.{language}"])
            assert len(pairs) == num_pairs
            assert pairs.num_rejected == 0


@pytest.mark.parametrize(
    ("script", "dataset", "num_pairs"), [("tatoeba", "tatoeba_en_fr", 142_787), ("cmudict", "cmudict", 133_737)]
)
def test_pairs_with_the_same_source_are_in_the_same_split(
    tmp_path: Path, script: str, dataset: str, num_pairs: int
) -> None:
    prepare(script, dataset, tmp_path)
    splits = {split: read_pairs([tmp_path / f"{split}.tsv"]) for split in ("train", "valid", "test")}
    assert sum(map(len, splits.values())) == num_pairs
    train_sources = set(splits["train"].source)
    valid_sources = set(splits["valid"].source)
    test_sources = set(splits["test"].source)
    assert not train_sources & (valid_sources | test_sources)
    assert not valid_sources & test_sources
    assert all(0.04 < len(splits[split]) / num_pairs < 0.06 for split in ("valid", "test"))


@pytest.mark.parametrize(
    ("script", "split_sizes", "num_labels"),
    [
        ("sst2", (6920, 872, 1821), 2),
        ("sst5", (8544, 1101, 2210), 5),
        ("trec", (5452, 500), 6),
        ("subj", (10_000,), 2),
        ("ag_news", (7600,), 4),
        ("movie_reviews", (1600, 200, 200), 2),
    ],
)
def test_labelled_texts_keep_every_row_and_label(
    tmp_path: Path, script: str, split_sizes: tuple[int, ...], num_labels: int
) -> None:
    prepare(script, script, tmp_path)
    files = [tmp_path / f"{split}.tsv" for split in ("train", "valid", "test")]
    splits = [read_pairs([file]) for file in files if file.exists()]
    sizes = [len(pairs) for pairs in splits]
    assert sizes == list(split_sizes) or [sum(sizes)] == list(split_sizes)
    assert all(len(set(pairs.target)) == num_labels for pairs in splits)


@pytest.mark.parametrize(
    ("script", "dataset", "split_sizes"),
    [
        ("wnut17", "wnut17", {"train": 3394, "valid": 1009, "test": 1287}),
        ("uner", "uner_en_ewt", {"train": 2001, "test": 2077}),
    ],
)
def test_tagged_sentences_are_rows_of_a_word_and_a_bio_tag(
    tmp_path: Path, script: str, dataset: str, split_sizes: dict[str, int]
) -> None:
    prepare(script, dataset, tmp_path)
    for split, num_sentences in split_sizes.items():
        lines = read_lines(tmp_path / f"{split}.conll")
        assert sum(not line for line in lines) == num_sentences
        rows = [line.split("\t") for line in lines if line]
        assert all(len(row) == 2 and row[0] and row[1][:2] in ("O", "B-", "I-") for row in rows)


@pytest.mark.parametrize(
    ("script", "dataset", "split_sizes"),
    [
        ("qamr", "qamr", {"train": 18_908, "test": 18_770}),
        ("squad", "squad_xquad_en", {"dev": 632}),
        ("squad", "policyqa", {"dev": 3809}),
    ],
)
def test_the_context_holds_each_answer_at_its_start(
    tmp_path: Path, script: str, dataset: str, split_sizes: dict[str, int]
) -> None:
    prepare(script, dataset, tmp_path)
    for split, max_questions in split_sizes.items():
        articles = json.loads((tmp_path / f"{split}.json").read_text("utf-8"))["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        num_questions = 0
        for paragraph in paragraphs:
            for question in paragraph["qas"]:
                num_questions += 1
                for answer in question["answers"]:
                    start = answer["answer_start"]
                    end = start + len(answer["text"])
                    assert paragraph["context"][start:end] == answer["text"]
        assert 0.98 * max_questions <= num_questions <= max_questions  # QAMR: some have no contiguous answer


def count_questions(lines: list[str]) -> int:
    """Number of questions in a bAbI file: their lines have tabs."""
    return sum("\t" in line for line in lines)


def test_stories_keep_every_question(tmp_path: Path) -> None:
    prepare("babi", "babi", tmp_path)
    for folder, num_questions in (("en", 1000), ("en-10k", 10_000)):
        train = read_lines(tmp_path / folder / "qa1.train.txt")
        valid = read_lines(tmp_path / folder / "qa1.valid.txt")
        assert train[0].startswith("1 ")
        assert valid[0].startswith("1 ")
        assert count_questions(train) + count_questions(valid) == num_questions
    assert count_questions(read_lines(tmp_path / "en" / "qa2.test.txt")) == 1000
