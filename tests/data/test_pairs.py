"""Reading pairs: good rows are unchanged, every fault is reported at its location."""

import base64
import gzip
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import regard
from regard.config.data import ReadConfig
from regard.data.ledger import digest_columns, iter_lines, read_lines
from regard.data.pairs import ParallelTexts, read_pairs
from regard.errors import ConfigError, DataError, DiskError, UsageError
from tests.scale import HANG_GUARD

WORDS = [
    *("ein", "Hund", "läuft", "über", "die", "Straße,", "naïve", "日本", "Καλημέρα", "“so”", "l'été", "3.5"),
    *("x\u2028y", "z\u0085w", "\ufeffmark", "a\u00a0b"),
]


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))


def write(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read_error(paths: list[Path], config: ReadConfig | None = None) -> str:
    """Message of the error that reading raises."""
    with pytest.raises(DataError) as caught:
        read_pairs(paths, config)
    return str(caught.value)


# Good files


def test_parallel_lines_keep_everything_but_line_endings(tmp_path: Path) -> None:
    source = write(tmp_path, "a.en", "\ufeffone\u2028two\r\nthree \u0085four\n five\tsix")
    target = write(tmp_path, "a.de", "eins\nzwei\ndrei\n")
    pairs = read_pairs([source, target])
    assert pairs.source == ["one\u2028two", "three \u0085four", " five\tsix"]
    assert pairs.target == ["eins", "zwei", "drei"]
    assert (len(pairs), pairs.num_read, pairs.num_rejected, pairs.locations.tolist()) == (3, 3, 0, [1, 2, 3])


def test_a_long_cell_of_doubled_quotes_is_read(tmp_path: Path) -> None:
    quotes = 300_000
    path = write(tmp_path, "p.csv", 'source,target\n"{}",b\n'.format('""' * quotes))
    assert read_pairs([path]).source == ['"' * quotes]


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("p.tsv", "one\teins\ntwo\tzwei\n", {}),
        ("p.tsv", "id\ttgt\tsrc\n1\teins\tone\n2\tzwei\ttwo\n", {"source": "src", "target": "tgt"}),
        ("p.tsv", "1\teins\tone\n2\tzwei\ttwo\n", {"source": "3", "target": "2"}),
        ("p.csv", 'en,de\none,eins\n"two",zwei\n', {}),
        ("p.csv", "target,note,source\neins,x,one\nzwei,,two\n", {}),
        ("p.csv", "one;eins\ntwo;zwei\n", {"header": "no", "delimiter": ";"}),
        ("p.dat", "one\teins\ntwo\tzwei\n", {"format": "csv", "header": "no", "delimiter": "tab"}),
        ("p.jsonl", '{"source": "one", "target": "eins"}\n{"target": "zwei", "source": "two"}\n', {}),
        ("p.jsonl", '{"translation": {"en": "one", "de": "eins"}}\n{"translation": {"en": "two", "de": "zwei"}}\n', {}),
        (
            "p.jsonl",
            '{"translation": {"de": "eins", "en": "one"}}\n{"en": "two", "de": "zwei"}\n',
            {"source": "en", "target": "de"},
        ),
    ],
)
def test_two_columns_are_read_from_every_format(
    tmp_path: Path, name: str, content: str, settings: dict[str, object]
) -> None:
    config = ReadConfig(**settings)  # type: ignore[arg-type]
    pairs = read_pairs([write(tmp_path, name, content)], config)
    assert list(zip(pairs.source, pairs.target, strict=True)) == [("one", "eins"), ("two", "zwei")]
    compressed = write(tmp_path, name + ".gz", gzip.compress(content.encode()))
    assert read_pairs([compressed], config).digest == pairs.digest


def test_csv_quotes_may_contain_delimiters_quotes_and_line_breaks(tmp_path: Path) -> None:
    path = write(tmp_path, "p.csv", 'a,b\r\n"x, ""y""","1\r\n2"\r\n"",""\r\nlast,"z"')
    pairs = read_pairs([path], ReadConfig(lenient=True, max_reject=50))
    assert (pairs.source, pairs.target) == (['x, "y"', "last"], ["1\n2", "z"])
    assert (pairs.locations.tolist(), pairs.num_rejected) == ([2, 5], 1)


def test_other_encodings_are_read_if_they_extend_ascii(tmp_path: Path) -> None:
    path = write(tmp_path, "p.tsv", "é\tß\n".encode("latin-1"))
    assert read_pairs([path], ReadConfig(encoding="latin-1")).target == ["ß"]
    assert ":1:1: not utf-8: the bytes \\xe9" in read_error([path])
    with pytest.raises(ConfigError, match="did you mean utf-8"):
        read_pairs([path], ReadConfig(encoding="utf-9"))
    with pytest.raises(ConfigError, match="convert the file to UTF-8"):
        read_pairs([path], ReadConfig(encoding="utf-16"))
    with pytest.raises(ConfigError):
        read_pairs([path], ReadConfig(encoding="rot13"))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.lists(st.tuples(*[st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1)] * 2), min_size=1))
def test_what_is_written_is_read_back_in_every_format(tmp_path: Path, data: list[tuple[str, str]]) -> None:
    data = [pair for pair in data if all(text.strip() for text in pair)] or [("a", "b")]
    mark = "\ufeff" if data[0][0].startswith("\ufeff") else ""  # the first mark of a file is not its text

    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    files = [
        ("p.tsv", mark + "".join(f"{s}\t{t}\n" for s, t in data)),
        ("p.csv", "source,target\n" + "".join(f"{quoted(s)},{quoted(t)}\n" for s, t in data)),
        ("p.jsonl", "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in data)),
    ]
    for name, content in files:
        pairs = read_pairs([write(tmp_path, name, content)])
        assert list(zip(pairs.source, pairs.target, strict=True)) == data


# Faults


Breaker = Callable[[random.Random, str, str], bytes]


def _insert_into_first_field(*sequences: bytes) -> Breaker:
    """Breaker that inserts one of these byte sequences into a row's first field."""

    def breaker(rng: random.Random, source: str, target: str) -> bytes:
        raw = (source + "x\tx" + target).encode()
        return (
            rng.choice(sequences).join([raw[:0], raw])
            if rng.random() < 0.5
            else raw.replace(b"x\t", rng.choice(sequences) + b"\t", 1)
        )

    return breaker


BYTES = _insert_into_first_field(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80")
CONTROLS = _insert_into_first_field(b"\0", b"\x07", b"\x1b", b"\r", b"\x1f")


def _json(source: object, target: object, **extra: object) -> bytes:
    return json.dumps({"source": source, "target": target, **extra}, ensure_ascii=False).encode()


FAULTS: dict[str, list[Breaker]] = {
    "tsv": [
        BYTES,
        CONTROLS,
        lambda rng, s, t: s.encode(),
        lambda rng, s, t: f"{s}\t{t}\t{s}".encode(),
        lambda rng, s, t: f"{s}\t \u3000".encode(),
        lambda rng, s, t: f"\t{t}".encode(),
        lambda rng, s, t: b"",
    ],
    "csv": [
        lambda rng, s, t: BYTES(rng, s, t).replace(b"\t", b";"),
        lambda rng, s, t: CONTROLS(rng, s, t).replace(b"\t", b";"),
        lambda rng, s, t: s.encode(),
        lambda rng, s, t: f"{s};{t};{s}".encode(),
        lambda rng, s, t: f'x"{s}";{t}'.encode(),
        lambda rng, s, t: f'"{s}"x;{t}'.encode(),
        lambda rng, s, t: f'"{s};{t}'.encode(),
        lambda rng, s, t: f'{s};"{t}'.encode(),
        lambda rng, s, t: f'"{s}";" "'.encode(),
        lambda rng, s, t: b"",
    ],
    "jsonl": [
        lambda rng, s, t: _json(s, t)[:-1],
        lambda rng, s, t: _json(s, t).replace(b":", b"", 1),
        lambda rng, s, t: b"[1, 2]",
        lambda rng, s, t: json.dumps({"source": s}).encode(),
        lambda rng, s, t: _json(s, 5),
        lambda rng, s, t: _json(s, None),
        lambda rng, s, t: b'{"source": "a\\ud800b", "target": "x"}',
        lambda rng, s, t: b'{"source": "a\\u0000b", "target": "x"}',
        lambda rng, s, t: _json(s, t).replace(b'"', b'"\xff', 1),
        lambda rng, s, t: _json("  ", t),
        lambda rng, s, t: b"[" * 5000,
        lambda rng, s, t: b"",
    ],
}


def _good_row(format: str, rng: random.Random, source: str, target: str) -> bytes:
    if format == "tsv":
        return f"{source}\t{target}".encode()
    if format == "jsonl":
        return _json(source, target, more=[1, {"a": None}])
    cells = [f'"{text}"' if rng.random() < 0.5 else text for text in (source, target)]
    return ";".join(cells).encode()


@pytest.mark.parametrize("format", ["tsv", "csv", "jsonl"])
@pytest.mark.parametrize("seed", range(8))
def test_every_fault_is_reported_at_its_line(tmp_path: Path, format: str, seed: int) -> None:
    rng = random.Random(f"{format} {seed}")
    rows = [_good_row(format, rng, "the", "start")]
    expected = [("the", "start")]
    bad: dict[int, bytes] = {}
    for line_number in range(2, 301):
        source = sentence(rng)
        target = sentence(rng)
        if rng.random() < 0.28:
            bad[line_number] = rng.choice(FAULTS[format])(rng, source, target)
            rows.append(bad[line_number])
        else:
            expected.append((source, target))
            rows.append(_good_row(format, rng, source, target))
    rows.append(_good_row(format, rng, "the", "end"))  # an unclosed quote must not swallow it
    path = write(tmp_path, f"p.{format}", b"\n".join(rows) + b"\n")
    options = {"header": "no", "delimiter": ";"} if format == "csv" else {}

    pairs = read_pairs([path], ReadConfig(lenient=True, max_reject=100, **options))  # type: ignore[arg-type]
    rejects = [json.loads(line) for line in (tmp_path / f"p.{format}.rejected.jsonl").read_text("utf-8").splitlines()]
    assert [reject["line"] for reject in rejects] == sorted(bad)
    assert [base64.b64decode(reject["raw"]).rstrip(b"\r") for reject in rejects] == [
        bad[line].rstrip(b"\r") for line in sorted(bad)
    ]
    assert list(zip(pairs.source, pairs.target, strict=True)) == [*expected, ("the", "end")]
    assert len(pairs) + pairs.num_rejected == pairs.num_read == len(rows)

    message_lines = read_error([path], ReadConfig(**options)).splitlines()  # type: ignore[arg-type]
    assert [int(re.match(rf"{re.escape(str(path))}:(\d+)", line)[1]) for line in message_lines[:20]] == sorted(bad)[:20]
    assert all(" — " in line for line in message_lines[:20])
    assert f"… and {len(bad) - 20} more" in message_lines
    assert f"{len(bad)} of {len(rows)} rows rejected" in message_lines[-2]
    counts = [int(count) for count in re.findall(r"(\d+) × ", message_lines[-2])]
    assert sum(counts) == len(bad)
    assert sorted(counts) == sorted(pairs.fault_counts.values())
    assert pairs.reject_file == f"{path}.rejected.jsonl"


def test_faults_of_parallel_files_name_the_right_file(tmp_path: Path) -> None:
    rng = random.Random(7)
    sides = [[sentence(rng).encode() for _ in range(400)] for _ in range(2)]
    faulty = rng.sample(range(400), 60)
    expected = {}
    for index in faulty:
        side = rng.randrange(2)
        raw, reason = rng.choice(
            [(b"", "blank"), (b"  ", "blank"), (b"a\xffb", "not utf-8"), (b"a\0b", "NUL"), (b"a\rb", "carriage return")]
        )
        sides[side][index] = raw
        expected[index + 1] = (str(tmp_path / f"p.{side}"), reason)
    paths = [write(tmp_path, f"p.{side}", b"\n".join(rows)) for side, rows in enumerate(sides)]
    pairs = read_pairs(paths, ReadConfig(lenient=True, max_reject=20))
    rejects = [json.loads(line) for line in (tmp_path / "p.0.rejected.jsonl").read_text("utf-8").splitlines()]
    assert {reject["line"]: reject["file"] for reject in rejects} == {
        line: file for line, (file, _) in expected.items()
    }
    assert all(expected[reject["line"]][1] in reject["reason"] for reject in rejects)
    assert (pairs.num_read, pairs.num_rejected, len(pairs)) == (400, 60, 340)
    accepted = [index for index in range(400) if index not in faulty]
    assert [text.encode() for text in pairs.target] == [sides[1][index] for index in accepted]
    assert pairs.locations.tolist() == [index + 1 for index in accepted]


def test_columns_are_counted_in_characters(tmp_path: Path) -> None:
    source = write(tmp_path, "a", "gut\nüü\xffx\n".encode("latin-1").replace("üü".encode("latin-1"), "üü".encode()))
    text = read_error([source, write(tmp_path, "b", "a\nb\n")])
    assert text.startswith(f"{source}:2:3: not utf-8: the bytes \\xff")
    with pytest.raises(DataError) as caught:
        read_pairs([source, tmp_path / "b"])
    assert caught.value.location == f"{source}:2:3"
    assert "use --lenient" in text


@pytest.mark.parametrize("content", [b'a,b\nc,d\ne,"open\nf,g\nh,i\n', b'a,b\nc,d\ne,"open' + b"\nf,g" * 60])
def test_an_unclosed_quote_is_reported_where_it_opens(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, "p.csv", content)
    assert f"{path}:3:3: the quote opened here is not closed" in read_error([path])
    pairs = read_pairs([path], ReadConfig(lenient=True, max_reject=50))
    assert pairs.num_rejected == 1
    assert pairs.source == [row[:1].decode() for row in content.split(b"\n")[1:] if row and b'"' not in row]


@pytest.mark.parametrize("missing", [3, 150, 399])
@pytest.mark.parametrize("side", [0, 1])
def test_unequal_counts_are_reported_with_the_likely_line(tmp_path: Path, missing: int, side: int) -> None:
    rng = random.Random(missing)
    source = [" ".join(rng.choices(WORDS, k=rng.randint(2, 30))) for _ in range(400)]
    target = [" ".join(rng.choices(WORDS, k=max(1, len(text.split()) + rng.randint(-1, 1)))) for text in source]
    del (source, target)[side][missing]
    paths = [write(tmp_path, name, "\n".join(rows)) for name, rows in (("a", source), ("b", target))]
    text = read_error(paths)
    counts = ["400", "400"]
    counts[side] = "399"
    assert f"{paths[0]} has {counts[0]} lines, {paths[1]} has {counts[1]}" in text
    assert abs(int(re.search(r"at about line (\d+)", text)[1]) - (missing + 1)) <= 3
    assert read_error(paths, ReadConfig(lenient=True)) == text


def test_lenient_reading_stops_above_max_reject(tmp_path: Path) -> None:
    path = write(tmp_path, "p.tsv", "a\tb\n" * 98 + "bad\n" * 2)
    assert "2 of 100 rows rejected: 2 × wrong number of columns, more than 1 %" in read_error(
        [path], ReadConfig(lenient=True)
    )
    assert len(read_pairs([path], ReadConfig(lenient=True, max_reject=2))) == 98
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    read_pairs([path], ReadConfig(lenient=True, max_reject=2), reject_folder=folder)
    assert (folder / "p.tsv.rejected.jsonl").exists()
    with pytest.raises(DiskError, match="cannot be written"):
        read_pairs([path], ReadConfig(lenient=True, max_reject=2), reject_folder=tmp_path / "missing")


def test_inputs_that_are_no_data_are_refused(tmp_path: Path) -> None:
    good = write(tmp_path, "train.en", "a\n")
    assert "no such file (did you mean train.en?)" in read_error([tmp_path / "trian.en", good])
    assert "is a folder" in read_error([tmp_path, good])
    empty = write(tmp_path, "empty", "")
    assert f"{empty}: the file is empty" in read_error([empty, empty])
    assert f"{good} has 1 lines, {empty} has 0;" in read_error([good, empty])
    assert "the file is empty" in read_error([write(tmp_path, "e.csv", "a,b\n")])
    assert "the file is UTF-16" in read_error([write(tmp_path, "u.tsv", "a\tb\n".encode("utf-16"))])
    assert "the file is UTF-32" in read_error([write(tmp_path, "u.tsv", "a\tb\n".encode("utf-32"))])
    assert "compressed with gzip" in read_error([write(tmp_path, "g.tsv", gzip.compress(b"a\tb\n"))])
    assert "gzip file is damaged" in read_error([write(tmp_path, "g.tsv.gz", b"a\tb\n")])
    compressed = gzip.compress(b"a\tb\n" * 9999)
    assert "gzip file is damaged" in read_error([write(tmp_path, "g.tsv.gz", compressed[:-20])])
    assert "gzip file is damaged" in read_error(
        [write(tmp_path, "g.tsv.gz", compressed[:40] + b"\0\0\0\0" + compressed[44:])]
    )
    assert "--format tsv" in read_error([good])
    with pytest.raises(UsageError, match="3 files"):
        read_pairs([good] * 3)
    with pytest.raises(UsageError, match="parallel lines"):
        read_pairs([good] * 2, ReadConfig(format="csv"))
    assert "no column 'sorce' (did you mean source?)" in read_error(
        [write(tmp_path, "h.csv", "source,target\na,b\n")], ReadConfig(source="sorce", target="target")
    )
    assert "--source and --target" in read_error([write(tmp_path, "h.csv", "a,b,c\n1,2,3\n")])
    assert "there are 2" in read_error([write(tmp_path, "h.tsv", "a\tb\n")], ReadConfig(source="1", target="3"))
    with pytest.raises(ConfigError, match="delimiter"):
        read_pairs([write(tmp_path, "h.csv", "a,b\n")], ReadConfig(delimiter="::"))


def test_lines_that_are_too_long_are_rejected(tmp_path: Path) -> None:
    too_long = b"x" * (5 << 20)
    path = write(tmp_path, "a", b"good\n" + too_long + b"\ngood\n")
    other = write(tmp_path, "b", b"gut\n" * 3)
    assert f"{path}:2: the line is longer than 1,048,576 bytes" in read_error([path, other])
    assert read_pairs([path, other], ReadConfig(lenient=True, max_reject=50)).locations.tolist() == [1, 3]
    longest = b"x" * (1 << 20)
    path = write(tmp_path, "a", longest + b"\r\n" + longest + b"\n" + longest)
    assert len(read_pairs([path, other])) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_line_of_four_gigabytes_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "giant.tsv"
    with path.open("wb") as file:
        file.truncate(4 << 30)
    program = (
        "import sys\n"
        "from regard.data.pairs import read_pairs\n"
        "from regard.errors import DataError\n"
        "try:\n    read_pairs([sys.argv[1]])\n"
        "except DataError as error:\n    print(error)\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, path],
        env={**os.environ, "PYTHONPATH": str(Path(regard.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
        check=True,
    )
    error, peak_memory = process.stdout.splitlines()
    assert "giant.tsv:1: the line is longer than" in error
    assert int(peak_memory) <= 100 * 1024


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    data=st.binary(max_size=300) | st.text('ab,"\t\n\r{}[]:é\0', max_size=80).map(str.encode),
    format=st.sampled_from(["tsv", "csv", "jsonl"]),
    lenient=st.booleans(),
)
def test_any_bytes_are_read_or_refused_with_a_location(tmp_path: Path, data: bytes, format: str, lenient: bool) -> None:
    path = write(tmp_path, f"any.{format}", data)
    try:
        pairs = read_pairs([path], ReadConfig(lenient=lenient, max_reject=100))
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert len(pairs) + pairs.num_rejected == pairs.num_read


# Lines and digests


def test_lines_stream_and_may_be_blank(tmp_path: Path) -> None:
    path = write(tmp_path, "in.txt", "one\n\n  \ntwo")
    assert read_lines(path) == ["one", "", "  ", "two"]
    stream = BytesIO(b"one\n\nbad\xff\nnever\n")
    lines = iter_lines(stream)
    assert [next(lines), next(lines)] == ["one", ""]
    with pytest.raises(DataError, match="standard input:3:4: not utf-8"):
        next(lines)
    assert stream.read() == b"never\n"


def test_different_pairs_have_different_digests() -> None:
    pairs = ParallelTexts.from_texts(["a", "b"], ["c", "d"])
    assert pairs.digest == digest_columns(["a", "b"], ["c", "d"])
    reordered = ParallelTexts.from_texts(["b", "a"], ["d", "c"])
    moved_boundary = ParallelTexts.from_texts(["ac", "b"], ["", "d"])
    assert len({pairs.digest, reordered.digest, moved_boundary.digest}) == 3
    assert pairs.select([1]).source == ["b"]
    assert pairs.select([1]).digest == digest_columns(["b"], ["d"])
