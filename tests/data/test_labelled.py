"""Labelled texts: columns of three formats, read strictly; labels; the held-out split."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from regard.config.data import ReadConfig
from regard.data.labelled import LabelledTexts, check_labels, hold_out_texts, label_counts, read_labelled
from regard.errors import DataError, UsageError

EXPECTED = (["a quiet triumph", "dull"], ["good", "bad"])


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("x.csv", "text,label\na quiet triumph,good\ndull,bad\n", {}),
        ("x.csv", 'label,id,text\n good ,1,"a quiet triumph"\nbad,2,dull\n', {}),
        ("x.csv", "review,mood\na quiet triumph,good\ndull,bad\n", {}),
        ("x.csv", "id,review,mood\n1,a quiet triumph,good\n2,dull,bad\n", {"text": "review", "label": "mood"}),
        ("x.csv", "id,text,mood\n1,a quiet triumph,good\n2,dull,bad\n", {"label": "mood"}),
        ("x.csv", "good,a quiet triumph\nbad,dull\n", {"header": "no", "text": "2", "label": "1"}),
        ("x.tsv", "a quiet triumph\tgood\ndull\tbad", {}),
        ("x.tsv", "sentence\tlabel\na quiet triumph\tgood\ndull\tbad\n", {}),
        ("x.tsv", "label\ttext\tid\ngood\ta quiet triumph\t1\nbad\tdull\t2\n", {}),
        ("x.tsv", "good\ta quiet triumph\nbad\tdull\n", {"text": "2", "label": "1"}),
        ("x.jsonl", '{"text": "a quiet triumph", "label": "good"}\n{"label": "bad", "text": "dull"}\n', {}),
        ("x.txt", "a quiet triumph\tgood\ndull\tbad\n", {"format": "tsv"}),
    ],
)
def test_columns_are_detected_in_every_format(
    tmp_path: Path, name: str, content: str, settings: dict[str, object]
) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    labelled = read_labelled([tmp_path / name], ReadConfig(**settings))  # type: ignore[arg-type]
    assert (labelled.texts, labelled.labels) == EXPECTED
    assert labelled.digest == LabelledTexts.from_texts(*EXPECTED).digest


@pytest.mark.parametrize(
    ("first", "is_data"),
    [
        ("a quiet triumph,good", True),  # a label that recurs
        ("A quiet triumph of a film by all,great", True),  # a long text
        ("Rather dull.,poor", True),  # a sentence
        ("review,mood", False),
        ("0,1", False),  # names that pandas gives
    ],
)
def test_the_first_row_of_a_csv_is_data_if_it_looks_like_it_and_a_note_says_so(
    tmp_path: Path, first: str, is_data: bool
) -> None:
    rows = [f"text {index},{('good', 'bad')[index % 2]}" for index in range(39)]
    path = tmp_path / "x.csv"
    path.write_text("\n".join([first, *rows]))
    labelled = read_labelled([path])
    assert len(labelled) == 39 + is_data
    (text,) = labelled.notes
    assert text.startswith(f"{path}:1: the first row (") and ("--header" if is_data else "--no-header") in text
    for header, count in (("yes", 39), ("no", 40)):
        assert len(read_labelled([path], ReadConfig(header=header))) == count
        assert read_labelled([path], ReadConfig(header=header)).notes == ()


def test_numbers_among_numbers_are_data_and_names_of_columns_need_no_note(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("4.5,fine\n1,bad\n2,worse\n")
    assert len(read_labelled([path], ReadConfig(text="2", label="1"))) == 3
    path.write_text("label,text\n1,bad\n2,worse\n")
    named = read_labelled([path])
    assert (len(named), named.notes) == (2, ())


@pytest.mark.parametrize(("header", "count"), [("auto", 2), ("yes", 1), ("no", 2)])
def test_a_tsv_has_a_header_if_it_is_asked_for_or_names_the_columns(tmp_path: Path, header: str, count: int) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("a quiet triumph\tgood\ndull\tbad\n")
    assert len(read_labelled([path], ReadConfig(header=header))) == count
    path.write_text("text\tlabel\ndull\tbad\n")
    assert len(read_labelled([path], ReadConfig(header=header))) == 2 - (header != "no")


@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize("names", [("label", "sentence"), ("mood", "text"), ("label", "text"), ("Label", "TEXT")])
def test_a_column_named_label_or_text_is_that_one_wherever_it_stands(
    tmp_path: Path, names: tuple[str, str], separator: str
) -> None:
    path = tmp_path / ("x.csv" if separator == "," else "x.tsv")
    path.write_text("".join(separator.join(cells) + "\n" for cells in (names, ("good", "nice film"), ("bad", "dull"))))
    labelled = read_labelled([path])
    assert (labelled.texts, labelled.labels) == (["nice film", "dull"], ["good", "bad"])


def test_labels_of_json_may_be_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b", "label": false}\n')
    assert read_labelled([tmp_path / "x.jsonl"]).labels == ["1", "false"]


@pytest.mark.parametrize(
    ("name", "content", "settings", "location", "what"),
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
def test_a_fault_is_reported_with_its_location(
    tmp_path: Path, name: str, content: str, settings: dict[str, object], location: str, what: str
) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(DataError) as error:
        read_labelled([tmp_path / name], ReadConfig(**settings))  # type: ignore[arg-type]
    assert str(error.value).startswith(str(tmp_path / location))
    assert what in str(error.value)


def test_an_unknown_label_is_reported_with_its_location_and_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a\tgood\nb\tbad\nc\tgod\n")
    rows = read_labelled([tmp_path / "x.tsv"])
    assert rows.label_ids(["bad", "god", "good"]).tolist() == [2, 0, 1]
    with pytest.raises(DataError, match=r"x\.tsv:3: the label 'god' .* \(did you mean good\?\) — there are bad, good"):
        rows.label_ids(["bad", "good"])


def test_one_label_is_not_enough() -> None:
    with pytest.raises(DataError, match=r"x\.csv: all 2 texts have the label 'good'"):
        check_labels(LabelledTexts.from_texts(["a", "b"], ["good", "good"]), "x.csv")
    assert check_labels(LabelledTexts.from_texts(["a", "b", "c"], ["10", "2", "x"]), "") == ["10", "2", "x"]


def labelled_texts(counts: dict[str, int]) -> LabelledTexts:
    """Distinct texts, so many of each label."""
    labels = [label for label, count in counts.items() for _ in range(count)]
    texts = [f"{label} {index}" for label, count in counts.items() for index in range(count)]
    return LabelledTexts.from_texts(texts, labels)


def test_the_same_share_of_each_label_is_held_out() -> None:
    labelled = labelled_texts({"a": 300, "b": 100, "c": 2, "d": 1})
    train, valid = hold_out_texts(labelled)
    assert label_counts(valid) == {"a": 30, "b": 10}
    assert label_counts(train) == {"a": 270, "b": 90, "c": 2, "d": 1}
    assert Counter(train.texts + valid.texts) == Counter(labelled.texts)
    assert hold_out_texts(labelled)[1].digest == valid.digest
    assert set(hold_out_texts(labelled_texts({"a": 301, "b": 100}))[1].texts) != set(valid.texts)


def test_equal_texts_are_held_out_together() -> None:
    distinct = labelled_texts({"a": 40, "b": 40})
    repeated = LabelledTexts.from_texts(distinct.texts * 2, distinct.labels * 2)
    train, valid = hold_out_texts(repeated)
    assert not set(train.texts) & set(valid.texts)
    assert len(valid) == 16


def test_too_few_texts_cannot_be_split() -> None:
    with pytest.raises(UsageError, match="--valid"):
        hold_out_texts(labelled_texts({"a": 2, "b": 2}))


def test_a_text_may_have_several_labels_or_none(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text,label\na,warm; old\nb,\nc,old\n")
    labelled = read_labelled([tmp_path / "x.csv"], ReadConfig(label_separator=";"))
    assert (labelled.label_sets, labelled.label_names) == ([("warm", "old"), (), ("old",)], ["old", "warm"])
    assert labelled.label_matrix(["old", "warm"]).tolist() == [[1, 1], [0, 0], [1, 0]]
    with pytest.raises(DataError, match=r"x\.csv:2: the label 'warm' is not one"):
        labelled.label_matrix(["old"])
    (tmp_path / "x.jsonl").write_text('{"text": "a", "label": ["warm", "old"]}\n')
    assert read_labelled([tmp_path / "x.jsonl"], ReadConfig(label_separator=";")).label_sets == [("warm", "old")]


def test_texts_may_come_in_pairs(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("first,second,label\na,b,yes\nc, ,no\n")
    columns = {"text": "first", "pair": "second", "label": "label"}
    with pytest.raises(DataError, match=r"x\.csv:3: the second text is blank"):
        read_labelled([tmp_path / "x.csv"], ReadConfig(**columns))
    labelled = read_labelled([tmp_path / "x.csv"], ReadConfig(**columns, lenient=True, max_reject=60))
    assert (labelled.texts, labelled.pairs, labelled.labels) == (["a"], ["b"], ["yes"])
    second_texts = [f"b{index}" for index in range(40)]
    train, valid = hold_out_texts(LabelledTexts.from_texts(["a"] * 40, ["yes", "no"] * 20, pairs=second_texts))
    assert (len(train), len(valid)) == (36, 4)
