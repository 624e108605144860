"""Sentences with a pronoun: pairs that are balanced and belong to one split; faults of files with their location."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from regard.cli import run
from regard.data.coreference import CoreferenceRow, CoreferenceSentence, group_pairs, read_coreference
from regard.data.coreference_templates import SCENARIOS, generate_coreference
from regard.errors import DataError, UsageError

SPLITS = ("train", "valid", "test")


def sentences_of(rows: list[CoreferenceRow]) -> list[CoreferenceSentence]:
    return [CoreferenceSentence.from_row(row) for row in rows]


@pytest.mark.parametrize("split", SPLITS)
def test_pairs_are_balanced(split: str) -> None:
    rows = list(generate_coreference(300, seed=5, split=split))
    sentences = sentences_of(rows)
    assert len(rows) == 600
    assert len({row.sentence for row in rows}) == 600
    assert sum(sentence.nearest_score for sentence in sentences) == 300  # right in one sentence of each pair
    assert sum(sentence.right[0] < sentence.wrong[0] for sentence in sentences) == 300
    assert group_pairs(sentences) == [[index, index + 1] for index in range(0, 600, 2)]
    assert all(sentence.pronoun_is_last for sentence in sentences)
    assert all(sentence.text[slice(*sentence.pronoun)] == "it" for sentence in sentences)
    assert all(row.sentence.replace(",", "").split().count("it") == 1 for row in rows)
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        (change,) = [
            pair for pair in zip(first.sentence.split(), second.sentence.split(), strict=True) if pair[0] != pair[1]
        ]
        assert change[0] != change[1]
        assert (first.right, first.wrong, first.pronoun) == (second.wrong, second.right, second.pronoun)
    for order in (1, -1):  # either noun of a scenario comes first, and the adjective stands on either side
        nouns_in_order = [
            sentence for sentence in sentences[::2] if order * (sentence.right[0] - sentence.wrong[0]) < 0
        ]
        assert len(nouns_in_order) > 50
    adjective_is_last = Counter(row.sentence.endswith("the reason.") for row in rows)
    assert min(adjective_is_last.values()) > 200


def test_no_sentence_is_in_two_splits() -> None:
    by_split = {
        split: {
            pair[side].sentence for scenario in SCENARIOS for pair in scenario.split_pairs(split) for side in (0, 1)
        }
        for split in (*SPLITS, "all")
    }
    assert sum(len(by_split[split]) for split in SPLITS) == len(by_split["all"])
    assert set.union(*(by_split[split] for split in SPLITS)) == by_split["all"]
    assert list(generate_coreference(20, seed=1)) == list(generate_coreference(20, seed=1))
    assert list(generate_coreference(20, seed=1)) != list(generate_coreference(20, seed=2))
    with pytest.raises(UsageError, match="the split test has 384 pairs of coreference: --count 9999 is more"):
        list(generate_coreference(9999, split="test"))


def test_nouns_of_a_scenario_differ() -> None:
    for scenario in SCENARIOS:
        assert not {*scenario.agents.split()} & {*scenario.others.split()}
        assert not {*scenario.agent_adjectives.split()} & {*scenario.other_adjectives.split()}


def test_a_generated_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    assert run(["data", "make", "coreference", "--count", "24", "--seed", "3", "--out", str(path)]) == 0
    assert path.read_text().splitlines()[0] == "sentence\tpronoun\tright\twrong\tscenario"
    sentences = read_coreference([path])
    assert [sentence.row for sentence in sentences] == list(generate_coreference(24, seed=3))
    assert sentences[2].location == f"{path}:4"


@pytest.mark.parametrize(
    ("name", "text", "scenario"),
    [
        ("pairs.tsv", "A cat or dog: it\t4\tcat\tdog\n", ""),
        ("pairs.csv", "Scenario,wrong,right,pronoun,sentence\nchase,dog,cat,4,A cat or dog: it\n", "chase"),
        (
            "pairs.jsonl",
            '{"sentence": "A cat or dog: it", "pronoun": "4", "right": "cat", "wrong": "dog"}',
            "",
        ),
        (
            "0.jsonl",
            '{"scenario": 0, "sentence": "A cat or dog: it", "pronoun": "4", "right": "cat", "wrong": "dog"}',
            "0",
        ),
    ],
)
def test_a_file_may_name_the_scenario_of_its_sentences(name: str, text: str, scenario: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert [sentence.row.scenario for sentence in read_coreference([path])] == [scenario]


def test_the_nearest_noun_is_the_one_with_fewer_characters_between() -> None:
    row = CoreferenceRow("The cup, it seems, hit the jar.", 2, right="cup", wrong="jar")
    sentence = CoreferenceSentence.from_row(row)
    assert (sentence.nearest_score, sentence.pronoun_is_last) == (1.0, False)
    assert sentence.text[slice(*sentence.wrong)] == "jar"
    tie = CoreferenceSentence.from_row(CoreferenceRow("cup it jar", 1, right="cup", wrong="jar"))
    assert tie.nearest_score == 0.5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("The cat saw it.\tthree\tcat\tdog", "the pronoun 'three' is not an index"),
        ("The cat saw it.\t4\tcat\tsaw", "no word 4: the words of the sentence are 0 to 3"),
        ("The cat saw it.\t3\tcat\tdog", "the noun 'dog' occurs 0 times in the sentence"),
        ("The cat saw the cat and it.\t6\tcat\tsaw", "the noun 'cat' occurs 2 times in the sentence"),
        ("The cat saw it.\t3\tcat\tcat", "must be three words"),
        ("The cat saw it.\t3\tcat", "3 columns where 4 are expected"),
    ],
)
def test_faults_have_their_location(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(f"The cat saw the dog and it ran.\t6\tcat\tdog\n{line}\n")
    with pytest.raises(DataError) as error:
        read_coreference([path])
    assert message in str(error.value)
    assert f"{path}:2" in str(error.value)


def test_a_file_without_columns_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("The cat saw it.\n")
    with pytest.raises(DataError, match="regard data make coreference"):
        read_coreference([path])


def test_a_pair_differs_in_one_word_and_swaps_its_nouns() -> None:
    sentences = [
        CoreferenceSentence.from_row(CoreferenceRow(text, 6, right=right, wrong=wrong))
        for text, right, wrong in (
            ("The cat saw the dog and it ran.", "cat", "dog"),
            ("The cat saw the dog and it slept.", "dog", "cat"),  # the partner of the first
            ("The cat saw the dog and it sat.", "cat", "dog"),  # the pair is complete
            ("A cat saw the dog and it ate.", "dog", "cat"),  # two other words
            ("A cat saw the dog and it ran.", "dog", "cat"),  # the same nouns
            ("A cat saw the dog and it ran home.", "cat", "dog"),  # one more word
        )
    ]
    assert group_pairs(sentences) == [[0, 1], [2], [3], [4], [5]]
