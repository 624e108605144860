"""SentencePiece models of Marian folders: token ids equal those of transformers."""

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

UNUSUAL_TEXTS = [
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


def marian_folder(folder: Path, model_type: str, *, drop: int = 0) -> Path:
    """Folder with two small SentencePiece models, trained on real text, and one vocabulary for both."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {"</s>": 0, "<unk>": 1, ">>de<<": 2, ">>fr<<": 3}
    for side, language in (("source", "en"), ("target", "de")):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(real_sentences(f"train.{language}.gz", 6000)),
            model_writer=model,
            vocab_size=1500,
            model_type=model_type,
            character_coverage=1.0,
            num_threads=1,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        for token_id in range(3, processor.vocab_size()):
            vocabulary.setdefault(processor.id_to_piece(token_id), len(vocabulary))
    for subword in [subword for subword in vocabulary if len(subword.strip("▁")) > 1][200 : 200 + drop]:
        del vocabulary[subword]
    vocabulary = {subword: token_id for token_id, subword in enumerate([*vocabulary, "<pad>"])}
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
def test_token_ids_equal_those_of_transformers(folder: Path, pair: tuple[Tokenizer, Tokenizer]) -> None:
    transformers = pytest.importorskip("transformers")
    hf_tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    source, target = pair
    english = real_sentences("test_2016_flickr.en.gz", 700)
    german = real_sentences("test_2016_flickr.de.gz", 700)
    single = [
        text for text in german[:200] if not re.search("[äöüß]{2}", text)
    ]  # at most one character in a row that the other side lacks
    texts = [*english[:400], *(f">>de<< {text}" for text in english[400:600]), *single, *UNUSUAL_TEXTS]
    assert len(single) > 150
    assert source.encode_batch(texts) == [ids[:-1] for ids in hf_tokenizer(texts)["input_ids"]]
    sequences = [ids[:-1] for ids in hf_tokenizer(text_target=german)["input_ids"]]
    assert target.encode_batch(german) == sequences
    assert [target.decode(ids) for ids in sequences] == hf_tokenizer.batch_decode(sequences, skip_special_tokens=True)
    assert source.encode(">>de<< A dog.").ids[0] == 2


def test_special_tokens_spans_and_subwords_of_the_other_side(pair: tuple[Tokenizer, Tokenizer]) -> None:
    source, target = pair
    assert (source.eos_id, source.unk_id, source.pad_id) == (0, 1, source.vocab_size - 1)
    assert source.vocab_size == target.vocab_size
    text = "Two  young, White males"
    encoded = source.encode(text)
    assert "".join(text[start:stop] for start, stop in encoded.spans) == "Twoyoung,Whitemales"
    assert target.decode(encoded.ids) == "Two young, White males"
    reloaded = Tokenizer.from_json(source.to_json())
    assert reloaded.encode_batch([text]) == [encoded.ids]


def test_a_subword_without_an_id_is_split_further(tmp_path: Path) -> None:
    tokenizer, _ = read_sentencepiece(marian_folder(tmp_path, "unigram", drop=300))
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    assert tokenizer.vocab_size == len(vocabulary)
    sequences = tokenizer.encode_batch(real_sentences("test_2016_flickr.en.gz", 200))
    assert max(max(ids) for ids in sequences) < len(vocabulary)
    assert sum(ids.count(tokenizer.unk_id) for ids in sequences) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"</s>": 0, "<unk>": 1}, "no token <pad>"),
        ({"</s>": 0, "<unk>": 1, "<pad>": 1}, "same id"),
        ({"</s>": 0, "<unk>": "1", "<pad>": 2}, "'<unk>' has the id '1'"),
        ({"</s>": 0, "<unk>": 1, "<pad>": 10**9}, "'<pad>' has the id"),
        ({"</s>": 0, "<unk>": 1, "<pad>": 2, "": 3}, "'' has the id 3"),
        ([], "object"),
    ],
)
def test_an_invalid_vocabulary_is_rejected(tmp_path: Path, content: object, message: str) -> None:
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "vocab.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        read_sentencepiece(tmp_path)


def test_a_damaged_model_is_read_or_rejected_without_a_crash(folder: Path, tmp_path: Path) -> None:
    data = (folder / "source.spm").read_bytes()
    (tmp_path / "vocab.json").write_bytes((folder / "vocab.json").read_bytes())
    (tmp_path / "target.spm").write_bytes((folder / "target.spm").read_bytes())
    rng = random.Random(1)
    rejected = 0
    for attempt in range(24):
        changed = bytearray(data)
        for _ in range(3):
            changed[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "source.spm").write_bytes(changed[: len(data) if attempt % 2 else rng.randrange(len(data))])
        try:
            read_sentencepiece(tmp_path)
        except CheckpointError as error:
            assert "source.spm" in str(error)
            rejected += 1
    assert rejected >= 6
