"""SentencePiece models of Marian folders: token ids equal those of transformers."""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import shutil
from pathlib import Path

import pytest

from regard.checkpoint.hf.sentencepiece import read_sentencepiece
from regard.errors import CheckpointError
from regard.text.tokenizer import Tokenizer
from tests.checkpoint.samples import read_multi30k

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


def save_marian_tokenizers(folder: Path, model_type: str, *, num_dropped: int = 0) -> None:
    """Train small SentencePiece models of both languages and save them with their joint vocabulary.

    `num_dropped` subwords of the models are left out of the vocabulary.
    """
    sentencepiece = pytest.importorskip("sentencepiece")
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {"</s>": 0, "<unk>": 1, ">>de<<": 2, ">>fr<<": 3}
    for side, language in (("source", "en"), ("target", "de")):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(read_multi30k(f"train.{language}.gz", 6000)),
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
    long_subwords = [subword for subword in vocabulary if len(subword.strip("▁")) > 1]
    for subword in long_subwords[200 : 200 + num_dropped]:
        del vocabulary[subword]
    vocabulary = {subword: token_id for token_id, subword in enumerate([*vocabulary, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "config.json").write_text(json.dumps({"model_type": "marian"}))


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("marian")
    save_marian_tokenizers(path, request.param)
    return path


@pytest.fixture(scope="module")
def tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """Source and target tokenizer."""
    return read_sentencepiece(folder)


@pytest.mark.filterwarnings("ignore:Recommended")
def test_token_ids_equal_those_of_transformers(folder: Path, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    transformers = pytest.importorskip("transformers")
    hf_tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    source, target = tokenizers
    english = read_multi30k("test_2016_flickr.en.gz", 700)
    german = read_multi30k("test_2016_flickr.de.gz", 700)
    # at most one character in a row that the English side lacks
    readable_german = [text for text in german[:200] if not re.search("[äöüß]{2}", text)]
    assert len(readable_german) > 150
    with_language_code = [f">>de<< {text}" for text in english[400:600]]
    texts = [*english[:400], *with_language_code, *readable_german, *UNUSUAL_TEXTS]
    assert source.encode_batch(texts) == [ids[:-1] for ids in hf_tokenizer(texts)["input_ids"]]
    sequences = [ids[:-1] for ids in hf_tokenizer(text_target=german)["input_ids"]]
    assert target.encode_batch(german) == sequences
    assert [target.decode(ids) for ids in sequences] == hf_tokenizer.batch_decode(sequences, skip_special_tokens=True)
    assert source.encode(">>de<< A dog.").ids[0] == 2


def test_both_sides_share_special_tokens_and_vocabulary_and_spans_cover_the_text(
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> None:
    source, target = tokenizers
    assert source.eos_id == 0
    assert source.unk_id == 1
    assert source.pad_id == source.vocab_size - 1
    assert source.vocab_size == target.vocab_size
    text = "Two  young, White males"
    encoded = source.encode(text)
    assert "".join(text[start:stop] for start, stop in encoded.spans) == "Twoyoung,Whitemales"
    assert target.decode(encoded.ids) == "Two young, White males"
    reloaded = Tokenizer.from_json(source.to_json())
    assert reloaded.encode_batch([text]) == [encoded.ids]


def test_a_subword_without_an_id_is_split_further(tmp_path: Path) -> None:
    save_marian_tokenizers(tmp_path, "unigram", num_dropped=300)
    tokenizer, _ = read_sentencepiece(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    assert tokenizer.vocab_size == len(vocabulary)
    sequences = tokenizer.encode_batch(read_multi30k("test_2016_flickr.en.gz", 200))
    used_ids = set(itertools.chain.from_iterable(sequences))
    assert max(used_ids) < len(vocabulary)
    assert tokenizer.unk_id not in used_ids


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"</s>": 0, "<unk>": 1}, "no token <pad>"),
        ({"</s>": 0, "<unk>": 1, "<pad>": 1}, "same id"),
        ({"</s>": 0, "<unk>": "1", "<pad>": 2}, "'<unk>' has the id '1'"),
        ({"</s>": 0, "<unk>": 1, "<pad>": 10**9}, "'<pad>' has the id"),
        ({"</s>": 0, "<unk>": 1, "<pad>": 2, "": 3}, "'' has the id 3"),
        ([], "object"),
    ],
)
def test_an_invalid_vocabulary_is_rejected(tmp_path: Path, vocabulary: object, message: str) -> None:
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(CheckpointError, match=message):
        read_sentencepiece(tmp_path)


def test_a_damaged_model_is_read_or_rejected_without_a_crash(folder: Path, tmp_path: Path) -> None:
    for name in ("vocab.json", "target.spm"):
        shutil.copy(folder / name, tmp_path)
    intact = (folder / "source.spm").read_bytes()
    rng = random.Random(1)
    num_rejected = 0
    for attempt in range(24):
        damaged = bytearray(intact)
        for _ in range(3):
            damaged[rng.randrange(len(intact))] = rng.randrange(256)
        is_truncated = attempt % 2 == 0
        length = rng.randrange(len(intact)) if is_truncated else len(intact)
        (tmp_path / "source.spm").write_bytes(damaged[:length])
        try:
            read_sentencepiece(tmp_path)
        except CheckpointError as error:
            assert "source.spm" in str(error)
            num_rejected += 1
    assert num_rejected >= 6
