"""Labelled texts: columns of three forms, strictly read; classes; what is held out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from regard.config.data import ReadConfig
from regard.data.labelled import LabelledTexts, check_labels, hold_out_texts, label_counts, read_labelled
from regard.errors import DataError, UsageError

GOOD = (["a quiet triumph", "dull"], ["good", "bad"])


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("x.csv", "text,label\na quiet triumph,good\ndull,bad\n", {}),
        ("x.csv", 'label,id,text\n good ,1,"a quiet triumph"\nbad,2,dull\n', {}),
        ("x.csv", "review,mood\na quiet triumph,good\ndull,bad\n", {}),
        ("x.csv", "id,review,mood\n1,a quiet triumph,good\n2,dull,bad\n", {"text": "review", "label": "mood"}),
        ("x.csv", "id,text,mood\n1,a quiet triumph,good\n2,dull,bad\n", {"label": "mood"}),
        ("x.csv", "good,a quiet triumph\nbad,dull\n", {"no_header": True, "text": "2", "label": "1"}),
        ("x.tsv", "a quiet triumph\tgood\ndull\tbad", {}),
        ("x.tsv", "sentence\tlabel\na quiet triumph\tgood\ndull\tbad\n", {}),
        ("x.tsv", "label\ttext\tid\ngood\ta quiet triumph\t1\nbad\tdull\t2\n", {}),
        ("x.tsv", "good\ta quiet triumph\nbad\tdull\n", {"text": "2", "label": "1"}),
        ("x.jsonl", '{"text": "a quiet triumph", "label": "good"}\n{"label": "bad", "text": "dull"}\n', {}),
        ("x.txt", "a quiet triumph\tgood\ndull\tbad\n", {"format": "tsv"}),
    ],
)
def test_columns_are_found_in_every_form(tmp_path: Path, name: str, content: str, settings: dict[str, object]) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    found = read_labelled([tmp_path / name], ReadConfig(**settings))  # type: ignore[arg-type]
    assert (found.texts, found.labels) == GOOD
    assert found.digest == LabelledTexts.from_texts(*GOOD).digest


def test_labels_of_json_may_be_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b", "label": false}\n')
    assert read_labelled([tmp_path / "x.jsonl"]).labels == ["1", "false"]


@pytest.mark.parametrize(
    ("name", "content", "settings", "place", "what"),
    [
        ("x.csv", "text,mood,id\na,b,c\n", {}, "x.csv:1", "none is named label"),
        ("x.csv", "text,mood\na,b\n", {"label": "mod", "text": "text"}, "x.csv:1", "did you mean mood?"),
        ("x.csv", "text\na\n", {}, "x.csv:1", "none is named label"),
        ("x.tsv", "a\tgood\nb\n", {}, "x.tsv:2", "1 column where 2 are expected"),
        ("x.tsv", "a\tgood\nb\t \n", {}, "x.tsv:2", "the label is blank"),
        ("x.tsv", " \tgood\nb\tbad\n", {}, "x.tsv:1", "the text is blank"),
        ("x.jsonl", '{"text": "a"}\n', {}, "x.jsonl:1", "no field 'label'"),
        ("x.jsonl", '{"text": "a", "label": ["b"]}\n', {}, "x.jsonl:1", "not a text"),
        ("x.txt", "a\tb\n", {}, "x.txt", "--format"),
        ("x.csv", "", {}, "x.csv", "empty"),
    ],
)
def test_a_fault_is_told_with_its_place(
    tmp_path: Path, name: str, content: str, settings: dict[str, object], place: str, what: str
) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(DataError) as error:
        read_labelled([tmp_path / name], ReadConfig(**settings))  # type: ignore[arg-type]
    assert str(error.value).startswith(str(tmp_path / place))
    assert what in str(error.value)


def test_an_unknown_label_is_named_with_its_place_and_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a\tgood\nb\tbad\nc\tgod\n")
    rows = read_labelled([tmp_path / "x.tsv"])
    assert rows.label_ids(["bad", "god", "good"]).tolist() == [2, 0, 1]
    with pytest.raises(DataError, match=r"x\.tsv:3: the label 'god' .* \(did you mean good\?\) — there are bad, good"):
        rows.label_ids(["bad", "good"])


def test_one_class_is_not_enough() -> None:
    with pytest.raises(DataError, match=r"x\.csv: all 2 texts have the label 'good'"):
        check_labels(LabelledTexts.from_texts(["a", "b"], ["good", "good"]), "x.csv")
    assert check_labels(LabelledTexts.from_texts(["a", "b", "c"], ["10", "2", "x"]), "") == ["10", "2", "x"]


def rows(sizes: dict[str, int]) -> LabelledTexts:
    made = [(f"{label} {number}", label) for label, size in sizes.items() for number in range(size)]
    return LabelledTexts.from_texts([text for text, _ in made], [label for _, label in made])


def test_as_much_of_each_label_is_held_out() -> None:
    given = rows({"a": 300, "b": 100, "c": 2, "d": 1})
    kept, away = hold_out_texts(given)
    assert label_counts(away) == {"a": 30, "b": 10}
    assert label_counts(kept) == {"a": 270, "b": 90, "c": 2, "d": 1}
    assert Counter(kept.texts + away.texts) == Counter(given.texts)
    assert hold_out_texts(given)[1].digest == away.digest
    assert set(hold_out_texts(rows({"a": 301, "b": 100}))[1].texts) != set(away.texts)


def test_equal_texts_are_held_out_together() -> None:
    given = rows({"a": 40, "b": 40})
    twice = LabelledTexts.from_texts(given.texts * 2, given.labels * 2)
    kept, away = hold_out_texts(twice)
    assert not set(kept.texts) & set(away.texts)
    assert len(away) == 16


def test_too_few_texts_cannot_be_split() -> None:
    with pytest.raises(UsageError, match="--valid"):
        hold_out_texts(rows({"a": 2, "b": 2}))


def test_a_text_may_have_several_labels_or_none(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text,label\na,warm; old\nb,\nc,old\n")
    found = read_labelled([tmp_path / "x.csv"], ReadConfig(label_separator=";"))
    assert (found.label_sets, found.label_names) == ([("warm", "old"), (), ("old",)], ["old", "warm"])
    assert found.label_matrix(["old", "warm"]).tolist() == [[1, 1], [0, 0], [1, 0]]
    with pytest.raises(DataError, match=r"x\.csv:2: the label 'warm' is not one"):
        found.label_matrix(["old"])
    (tmp_path / "x.jsonl").write_text('{"text": "a", "label": ["warm", "old"]}\n')
    assert read_labelled([tmp_path / "x.jsonl"], ReadConfig(label_separator=";")).label_sets == [("warm", "old")]


def test_texts_may_come_in_pairs(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("first,second,label\na,b,yes\nc, ,no\n")
    columns = {"text": "first", "pair": "second", "label": "label"}
    with pytest.raises(DataError, match=r"x\.csv:3: the second text is blank"):
        read_labelled([tmp_path / "x.csv"], ReadConfig(**columns))
    found = read_labelled([tmp_path / "x.csv"], ReadConfig(**columns, lenient=True, max_reject=60))
    assert (found.texts, found.pairs, found.labels) == (["a"], ["b"], ["yes"])
    twins = LabelledTexts.from_texts(["a"] * 40, ["yes", "no"] * 20, pairs=[f"b{number}" for number in range(40)])
    kept, held = hold_out_texts(twins)
    assert (len(kept), len(held)) == (36, 4)
