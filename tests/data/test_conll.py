"""Tagged sentences: columns, comments, faults with their location, and the held-out split."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.config.data import ReadConfig
from regard.data.conll import TaggedSentence, TaggedSentences, check_tags, hold_out_sentences, read_tagged, tag_counts
from regard.errors import DataError, UsageError

EXPECTED = [(("in", "New", "York"), ("O", "B-place", "I-place")), (("#", "home"), ("O", "O"))]


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("x.conll", "in\tO\nNew\tB-place\nYork\tI-place\n\n#\tO\nhome\tO\n", {}),
        ("x.conll", "in\tO\nNew\tB-place\nYork\tI-place\n\t\n\n#\tO\nhome\tO", {}),
        ("x.txt", "-DOCSTART- -X- O\n\nin IN O\nNew NNP B-place\nYork NNP I-place\n\n# SYM O\nhome NN O\n", {}),
        ("x.iob2", "# a = b\n1\tin\tO\t-\n2\tNew\tB-place\t-\n3\tYork\tI-place\t-\n\n1\t#\tO\t-\n2\thome\tO\t-", {}),
        ("x.conll", "O\tin\nB-place\tNew\nI-place\tYork\n\nO\t#\nO\thome\n", {"text": "2", "label": "1"}),
    ],
)
def test_columns_are_detected(tmp_path: Path, name: str, content: str, settings: dict[str, object]) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    tagged = read_tagged([tmp_path / name], ReadConfig(**settings))  # type: ignore[arg-type]
    assert [(sentence.words, sentence.tags) for sentence in tagged.sentences] == EXPECTED
    assert tagged.tags == ["O", "B-place", "I-place"]
    assert dict(tag_counts(tagged)) == {"place": 1}


@pytest.mark.parametrize(
    ("content", "location", "what"),
    [
        ("in\tO\nNew\tI-place\n\nRome\tB-place\n", "x.conll:2", "I-place follows O"),
        ("New\tS-place\nYork\tE-place\n\nA\tO\nB\tE-place\n", "x.conll:5", "E-place follows O"),
        ("New\tB-place\nYork\tI-person\n", "x.conll:2", "I-person follows B-place"),
        ("in\tO\nNew\tB-place\nYork\tplace\n", "x.conll:3", "is not a BIO tag"),
        ("in\tO\nNew\n", "x.conll:2", "1 column where 2 are expected"),
        ("in\tO\nNew\t \n", "x.conll:2", "blank"),
        ("in\n", "x.conll:1", "one column"),
        ("", "x.conll", "empty"),
    ],
)
def test_faults_are_reported_with_their_location(tmp_path: Path, content: str, location: str, what: str) -> None:
    (tmp_path / "x.conll").write_text(content)
    with pytest.raises(DataError, match=what) as error:
        read_tagged([tmp_path / "x.conll"])
    assert error.value.location == str(tmp_path / location)


BIO = "in O|New B-place|York I-place|Rome B-place|Ada B-person||at O|Bonn B-place"


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", "in O|New I-place|York I-place|Rome B-place|Ada I-person||at O|Bonn I-place"),
        ("IOBES", "in O|New B-place|York E-place|Rome S-place|Ada S-person||at O|Bonn S-place"),
        ("BILOU", "in O|New B-place|York L-place|Rome U-place|Ada U-person||at O|Bonn U-place"),
    ],
)
def test_other_schemes_are_converted_and_reported(tmp_path: Path, scheme: str, tags: str) -> None:
    path = tmp_path / "x.conll"
    path.write_text(BIO.replace("|", "\n"))
    expected = read_tagged([path])
    assert expected.notes == ()
    other = tmp_path / "y.conll"
    other.write_text(tags.replace("|", "\n"))
    tagged = read_tagged([other])
    assert [sentence.tags for sentence in tagged.sentences] == [sentence.tags for sentence in expected.sentences]
    assert (tagged.digest, tagged.tags) == (expected.digest, expected.tags)
    assert tagged.notes == (f"{other}: the tags are {scheme}; they are converted to BIO (B-x, then I-x)",)
    assert len(read_tagged([path, other])) == 4  # each file has its own scheme


def test_tags_that_only_resemble_a_scheme_are_left_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "x.conll"
    path.write_text("a\tS-bar\nb\tX-bar\nc\tO\n")
    tagged = read_tagged([path])
    assert (tagged.sentences[0].tags, tagged.notes) == (("S-bar", "X-bar", "O"), ())


def test_faulty_sentences_are_rejected_in_lenient_mode(tmp_path: Path) -> None:
    (tmp_path / "x.conll").write_text("in\tO\n\nNew\tI-place\n\nRome\tB-place\n")
    tagged = read_tagged([tmp_path / "x.conll"], ReadConfig(lenient=True, max_reject=50))
    assert ([sentence.words for sentence in tagged.sentences], tagged.num_rejected) == ([("in",), ("Rome",)], 1)


def test_tags_outside_the_bio_scheme_mark_no_entities() -> None:
    rows = TaggedSentences.from_sentences([TaggedSentence(("a", "dog"), ("DET", "NOUN"))])
    assert (rows.has_entities, rows.tags) == (False, ["DET", "NOUN"])


def test_unknown_and_single_tags_are_refused() -> None:
    rows = TaggedSentences.from_sentences([TaggedSentence(("a", "dog"), ("O", "B-beast"), "x:1")])
    with pytest.raises(DataError, match=r"x:1: the tag 'B-beast' is not one that was learned \(did you mean B-beat"):
        rows.tag_ids(["O", "B-beat"])
    with pytest.raises(DataError, match="all words have the tag 'O'"):
        check_tags(TaggedSentences.from_sentences([TaggedSentence(("a",), ("O",))]), "x")


def test_equal_sentences_are_held_out_together() -> None:
    rows = TaggedSentences.from_sentences([TaggedSentence((f"w{index % 20}",), ("O",)) for index in range(60)])
    train, valid = hold_out_sentences(rows)
    assert (len(train) + len(valid), len(valid)) == (60, 6)
    assert not {sentence.words for sentence in train.sentences} & {sentence.words for sentence in valid.sentences}
    with pytest.raises(UsageError, match="too few"):
        hold_out_sentences(TaggedSentences.from_sentences([TaggedSentence(("a",), ("O",))] * 5))


def test_real_files_are_read(request: pytest.FixtureRequest) -> None:
    data = request.config.rootpath.parent / "shared/data"
    if not data.is_dir():
        pytest.skip("no shared data beside the repository")
    assert len(read_tagged([data / "wnut17/train.conll"])) == 3394
    assert len(read_tagged([data / "uner_en_ewt/en_ewt-ud-test.iob2.gz"])) == 2077
