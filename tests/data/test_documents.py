"""Documents: paragraphs, lines and files, read strictly."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from regard.config.data import ReadConfig
from regard.data.documents import read_documents
from regard.errors import DataError, UsageError

BOOK = "\ufeffA title\r\n\r\nOne line\r\nand more.\r\n \t\r\nThe end.\r\n\r\n\r\n"


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def test_paragraphs_end_at_blank_lines_and_are_joined(tmp_path: Path) -> None:
    book = write(tmp_path / "book.txt", BOOK)
    documents = read_documents([book])
    assert documents.texts == ["A title", "One line and more.", "The end."]
    assert read_documents([book], document="paragraph").digest == documents.digest
    assert read_documents([book], document="line").texts == ["A title", "One line", "and more.", "The end."]


def test_a_file_without_blank_lines_has_one_document_per_line(tmp_path: Path) -> None:
    plain = write(tmp_path / "lines.txt", "\n\none\ntwo\nthree\n\n")  # blank lines around the text separate nothing
    assert read_documents([plain]).texts == ["one", "two", "three"]
    assert read_documents([plain], document="paragraph").texts == ["one two three"]


def test_files_follow_one_another_compressed_or_not(tmp_path: Path) -> None:
    compressed = tmp_path / "compressed.txt.gz"
    compressed.write_bytes(gzip.compress(BOOK.encode()))
    plain = write(tmp_path / "plain.txt", "one\ntwo")
    documents = read_documents([compressed, plain])
    assert documents.texts == ["A title", "One line and more.", "The end.", "one", "two"]
    assert documents.select([4, 0]).texts == ["two", "A title"]
    assert documents.select([4, 0]).digest != documents.select([0, 4]).digest


@pytest.mark.parametrize(
    ("content", "location", "what"),
    [
        (b"", "bad.txt", "has no text"),
        (b" \n\n", "bad.txt", "has no text"),
        (b"fine\nca\xe9 au lait\n", "bad.txt:2:3", "not utf-8"),
        (b"fine\na\x00b\n", "bad.txt:2:2", "NUL"),
        ("one\n".encode("utf-16"), "bad.txt:1:1", "UTF-16"),
    ],
)
def test_a_fault_is_reported_with_its_location(tmp_path: Path, content: bytes, location: str, what: str) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(DataError) as error:
        read_documents([tmp_path / "bad.txt"])
    assert str(error.value).startswith(str(tmp_path / location))
    assert what in str(error.value)
    assert error.value.exit_code == 2


def test_faulty_lines_are_rejected_and_counted_in_lenient_mode(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"one\nca\xe9\n" + b"two\n" * 200)
    documents = read_documents([tmp_path / "bad.txt"], ReadConfig(lenient=True))
    assert (len(documents), documents.num_read, documents.num_rejected) == (201, 202, 1)
    assert Path(documents.reject_file).read_text().count("not utf-8") == 1
    assert read_documents([tmp_path / "bad.txt"], ReadConfig(encoding="latin-1")).texts[1] == "caé"


def test_no_file_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one"):
        read_documents([])
    write(tmp_path / "book.txt", "x")
    with pytest.raises(DataError, match=r"did you mean book\.txt"):
        read_documents([tmp_path / "bok.txt"])
