from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from regard.checkpoint.encoder_dir import read_encoder_tokenizer
from regard.checkpoint.tokenizer_files import wordpiece_tokenizer
from regard.config.data import TokenizerConfig
from regard.errors import CheckpointError, UsageError
from regard.text.special_tokens import SpecialTokens, Truncation, with_mask_token, with_special_tokens
from regard.text.tokenizer import Tokenizer
from regard.text.train import train_tokenizer

VOCABULARY = Path(__file__).parents[3] / "shared/data/vocab/bert-base-uncased/vocab.txt"
SAMPLES = (
    "Two dogs run in the snow; don't they?",
    "Älter naïve façade Straße İstanbul",
    "日本語の文章です。中文也可以",
    "Привет, мир! Ёлка",
    "مرحبا بالعالم",
    "שלום עולם",
    "한국어 문장",
    "emoji 😀👩‍👩‍👧 and e\u0301 combining",
    "numbers 3.14, 1,000,000 and x=2**8",
    "tabs\tand\u00a0no-break\u200bspaces\r\nlines",
    "a" * 101,
    "हिन्दी में पाठ",
)


def mixed_texts(count: int) -> list[str]:
    """Return texts that mix scripts: pieces of the samples in all orders."""
    chance = random.Random(11)
    words = [word for sample in SAMPLES for word in [*sample.split(" "), *sample]]
    return [" ".join(chance.choices(words, k=chance.randint(0, 12))) for _ in range(count)]


def saved(tokenizer: tokenizers.Tokenizer, folder: Path, **settings: Any) -> None:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend", **settings}))


def assert_alike(folder: Path, kind: str, tmp_path: Path) -> None:
    """Compare with transformers' tokenizer of the same folder: alone and in pairs, cut and whole."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    framing = SpecialTokens(read_encoder_tokenizer(folder, kind))
    texts = mixed_texts(1000)
    alone, account = framing.encode_batch(texts, max_length=40)
    expected = theirs(texts, truncation=True, max_length=40)["input_ids"]
    assert [row.tolist() for row in alone] == expected
    assert account.cut_texts == sum(len(row) > 40 for row in theirs(texts)["input_ids"])
    pairs, _ = framing.encode_batch(texts[:500], texts[500:], max_length=30)
    expected = theirs(texts[:500], texts[500:], truncation="longest_first", max_length=30, return_token_type_ids=True)
    assert [row.tolist() for row in pairs] == expected["input_ids"]
    assert pairs.token_types is not None
    assert pairs.token_types.tolist() == [kind for row in expected["token_type_ids"] for kind in row]
    for text in texts[:100]:
        spans = theirs(text, return_offsets_mapping=True)["offset_mapping"]
        read = framing.encode(text)
        assert [row.tolist() for row in framing.encode_batch([text], max_length=900)[0]] == [read.ids]
        for (start, stop), (begin, end), side in zip(read.spans, spans, read.sides, strict=True):
            assert side < 0 or text[start:stop].strip()[:1] == text[begin:end].strip()[:1]


def bert_folder(folder: Path, **settings: Any) -> Path:
    if not VOCABULARY.exists():
        pytest.skip("shared/data/vocab is not there: no real vocabulary to compare with")
    folder.mkdir()
    (folder / "vocab.txt").write_bytes(VOCABULARY.read_bytes())
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **settings}))
    return folder


@pytest.mark.parametrize(
    "settings", [{"do_lower_case": True}, {"do_lower_case": False}, {"strip_accents": False, "do_lower_case": True}]
)
def test_word_pieces_of_a_vocabulary_file(settings: dict[str, Any], tmp_path: Path) -> None:
    assert_alike(bert_folder(tmp_path / "bert", **settings), "bert", tmp_path)


def test_byte_level_pairs_of_two_files(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    learned = tokenizers.ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    learned.train_from_iterator(mixed_texts(300), vocab_size=700, special_tokens=specials, show_progress=False)
    learned.save_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("a", "b")["input_ids"].count(2) == 3
    assert_alike(tmp_path, "roberta", tmp_path)


def test_unigram_pieces_as_multilingual_models_have_them(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=specials, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(mixed_texts(300), trainer)
    whole = with_special_tokens(Tokenizer(backend), "<s>", "</s>", double=True)
    saved(whole.backend, tmp_path / "xlm", pad_token="<pad>", cls_token="<s>", sep_token="</s>", mask_token="<mask>")
    assert_alike(tmp_path / "xlm", "xlm-roberta", tmp_path)


def small() -> SpecialTokens:
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "is", "the", "of", "france", "na", "##ive"]
    return SpecialTokens(wordpiece_tokenizer(lines, {}, "vocab.txt"))


def test_places_of_a_pair_and_of_special_tokens() -> None:
    read = small().encode("Paris  is", "naïve")
    assert read.ids == [2, 5, 6, 3, 10, 11, 3]
    assert read.token_types == [0, 0, 0, 0, 1, 1, 1]
    assert read.spans == [(0, 0), (0, 5), (7, 9), (0, 0), (0, 2), (2, 5), (0, 0)]
    assert read.sides == [-1, 0, 0, -1, 1, 1, -1]
    assert read.word_ids == [-1, 0, 1, -1, 0, 0, -1]


def test_special_tokens_in_a_text_count_only_where_asked_for() -> None:
    framing = small()
    assert framing.mask == 4
    assert framing.mask not in framing.encode("the [MASK] of").ids
    assert framing.encode("the [MASK] of", parse_special=True).ids == [2, 7, 4, 8, 3]
    assert framing.encode_batch(["the [MASK] of"], max_length=9, parse_special=True)[0].row(0).tolist() == [
        2,
        7,
        4,
        8,
        3,
    ]


def test_what_is_cut_is_told() -> None:
    framing = small()
    tokens, account = framing.encode_batch(["paris is", "of of of of of of"], max_length=5)
    assert [row.tolist() for row in tokens] == [[2, 5, 6, 3], [2, 8, 8, 8, 3]]
    assert account == Truncation(texts=2, tokens=8, cut_texts=1, cut_tokens=3, max_length=5)
    assert (account + account).cut_tokens == 6
    pairs, _ = framing.encode_batch(["of of of of"], ["is is is is is is"], max_length=10)
    assert pairs.row(0).tolist() == [2, 8, 8, 8, 3, 6, 6, 6, 6, 3]
    with pytest.raises(UsageError, match="no room"):
        framing.encode_batch(["of"], max_length=2)
    with pytest.raises(UsageError, match="2 texts need as many"):
        framing.encode_batch(["of", "of"], ["is"], max_length=9)


def test_a_tokenizer_learned_here_becomes_an_encoders() -> None:
    framing = SpecialTokens(with_mask_token(train_tokenizer(["low lower"] * 9, TokenizerConfig(vocab_size=270))))
    assert framing.tokenizer.vocab_size == framing.mask + 1
    assert framing.encode("low", "low").token_types[-1] == 1
    assert framing.tokenizer.decode(framing.encode("low lower").ids) == "low lower"


def test_vocabularies_without_what_they_need_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"vocab.txt: no token '\[SEP\]'"):
        wordpiece_tokenizer(["[UNK]", "[CLS]"], {}, "vocab.txt")
    with pytest.raises(CheckpointError, match="1 duplicate lines"):
        wordpiece_tokenizer(["[UNK]", "[CLS]", "[SEP]", "a", "a"], {}, "vocab.txt")
