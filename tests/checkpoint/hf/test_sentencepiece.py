from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path

import pytest

from regard.checkpoint.hf.sentencepiece import read_sentencepiece
from regard.errors import CheckpointError
from regard.text.tokenizer import Tokenizer
from tests.checkpoint.samples import real_sentences

ODD = [
    "",
    " ",
    "  two   spaces ",
    "tab\there",
    "Ünïcödé ﬁ ½ ２ Ⅷ",
    ">>de<<Hello",
    "日本語",
    "a ß b",
    "naïve café",
    "x\u200by z\u00a0w",
    "don't stop-now … “quoted”",
    "emoji 😀 here",
]


def marian_folder(folder: Path, kind: str, *, drop: int = 0) -> Path:
    """A folder with two small SentencePiece models learned from real text, and one vocabulary for both."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {"</s>": 0, "<unk>": 1, ">>de<<": 2, ">>fr<<": 3}
    for side, language in (("source", "en"), ("target", "de")):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(real_sentences(f"train.{language}.gz", 6000)),
            model_writer=model,
            vocab_size=1500,
            model_type=kind,
            character_coverage=1.0,
            num_threads=1,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        for number in range(3, processor.vocab_size()):
            vocabulary.setdefault(processor.id_to_piece(number), len(vocabulary))
    for name in [name for name in vocabulary if len(name.strip("▁")) > 1][200 : 200 + drop]:
        del vocabulary[name]
    vocabulary = {name: number for number, name in enumerate([*vocabulary, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "config.json").write_text(json.dumps({"model_type": "marian"}))
    return folder


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return marian_folder(tmp_path_factory.mktemp("marian") / request.param, request.param)


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    return read_sentencepiece(folder)


@pytest.mark.filterwarnings("ignore:Recommended")
def test_numbers_are_those_of_transformers(folder: Path, pair: tuple[Tokenizer, Tokenizer]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    source, target = pair
    english = real_sentences("test_2016_flickr.en.gz", 700)
    german = real_sentences("test_2016_flickr.de.gz", 700)
    single = [text for text in german[:200] if not re.search("[äöüß]{2}", text)]  # at most one foreign letter in a row
    texts = [*english[:400], *(f">>de<< {text}" for text in english[400:600]), *single, *ODD]
    assert len(single) > 150
    assert source.encode_batch(texts) == [row[:-1] for row in theirs(texts)["input_ids"]]
    rows = [row[:-1] for row in theirs(text_target=german)["input_ids"]]
    assert target.encode_batch(german) == rows
    assert [target.decode(row) for row in rows] == theirs.batch_decode(rows, skip_special_tokens=True)
    assert source.encode(">>de<< A dog.").ids[0] == 2


def test_special_tokens_spans_and_the_other_sides_pieces(pair: tuple[Tokenizer, Tokenizer]) -> None:
    source, target = pair
    assert (source.eos_id, source.unk_id, source.pad_id) == (0, 1, source.vocab_size - 1)
    assert source.vocab_size == target.vocab_size
    text = "Two  young, White males"
    seen = source.encode(text)
    assert "".join(text[start:stop] for start, stop in seen.spans) == "Twoyoung,Whitemales"
    assert target.decode(seen.ids) == "Two young, White males"
    again = Tokenizer.from_json(source.to_json())
    assert again.encode_batch([text]) == [seen.ids]


def test_a_piece_without_a_number_is_cut_smaller(tmp_path: Path) -> None:
    cut, _ = read_sentencepiece(marian_folder(tmp_path, "unigram", drop=300))
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    assert cut.vocab_size == len(vocabulary)
    rows = cut.encode_batch(real_sentences("test_2016_flickr.en.gz", 200))
    assert max(max(row) for row in rows) < len(vocabulary)
    assert sum(row.count(cut.unk_id) for row in rows) == 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"</s>": 0, "<unk>": 1}, "no token <pad>"),
        ({"</s>": 0, "<unk>": 1, "<pad>": 1}, "same id"),
        ({"</s>": 0, "<unk>": "1", "<pad>": 2}, "'<unk>' has the id '1'"),
        ({"</s>": 0, "<unk>": 1, "<pad>": 10**9}, "'<pad>' has the id"),
        ({"</s>": 0, "<unk>": 1, "<pad>": 2, "": 3}, "'' has the id 3"),
        ([], "object"),
    ],
)
def test_a_wrong_vocabulary_is_refused(tmp_path: Path, content: object, told: str) -> None:
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "vocab.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=told):
        read_sentencepiece(tmp_path)


def test_a_damaged_model_is_read_or_refused_but_never_crashes(folder: Path, tmp_path: Path) -> None:
    data = (folder / "source.spm").read_bytes()
    (tmp_path / "vocab.json").write_bytes((folder / "vocab.json").read_bytes())
    (tmp_path / "target.spm").write_bytes((folder / "target.spm").read_bytes())
    chance = random.Random(1)
    refused = 0
    for number in range(24):
        changed = bytearray(data)
        for _ in range(3):
            changed[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / "source.spm").write_bytes(changed[: len(data) if number % 2 else chance.randrange(len(data))])
        try:
            read_sentencepiece(tmp_path)
        except CheckpointError as error:
            assert "source.spm" in str(error)
            refused += 1
    assert refused >= 6
