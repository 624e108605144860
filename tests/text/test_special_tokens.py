"""Special tokens around texts, compared with transformers; spans, truncation and what is refused."""

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
from regard.text.special_tokens import SpecialTokens, TruncationReport, with_mask_token, with_special_tokens
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
    """Texts that mix scripts: words and characters of the samples in random order."""
    rng = random.Random(11)
    words = [word for sample in SAMPLES for word in [*sample.split(" "), *sample]]
    return [" ".join(rng.choices(words, k=rng.randint(0, 12))) for _ in range(count)]


def save(tokenizer: tokenizers.Tokenizer, folder: Path, **settings: Any) -> None:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend", **settings}))


def assert_same_as_transformers(folder: Path, kind: str) -> None:
    """Compare with transformers' tokenizer of the same folder: single texts and pairs, truncated or not."""
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    special_tokens = SpecialTokens(read_encoder_tokenizer(folder, kind))
    texts = mixed_texts(1000)
    single, report = special_tokens.encode_batch(texts, max_length=40)
    expected = reference(texts, truncation=True, max_length=40)["input_ids"]
    assert [row.tolist() for row in single] == expected
    assert report.truncated_texts == sum(len(row) > 40 for row in reference(texts)["input_ids"])
    pairs, _ = special_tokens.encode_batch(texts[:500], texts[500:], max_length=30)
    expected = reference(
        texts[:500], texts[500:], truncation="longest_first", max_length=30, return_token_type_ids=True
    )
    assert [row.tolist() for row in pairs] == expected["input_ids"]
    assert pairs.token_types is not None
    assert pairs.token_types.tolist() == [token_type for row in expected["token_type_ids"] for token_type in row]
    for text in texts[:100]:
        spans = reference(text, return_offsets_mapping=True)["offset_mapping"]
        encoded = special_tokens.encode(text)
        assert [row.tolist() for row in special_tokens.encode_batch([text], max_length=900)[0]] == [encoded.ids]
        for span, reference_span, side in zip(encoded.spans, spans, encoded.sides, strict=True):
            assert side < 0 or text[slice(*span)].strip()[:1] == text[slice(*reference_span)].strip()[:1]


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
def test_wordpiece_of_a_vocabulary_file_is_read(settings: dict[str, Any], tmp_path: Path) -> None:
    assert_same_as_transformers(bert_folder(tmp_path / "bert", **settings), "bert")


def test_byte_level_bpe_of_two_files_is_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trained = tokenizers.ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(mixed_texts(300), vocab_size=700, special_tokens=specials, show_progress=False)
    trained.save_model(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("a", "b")["input_ids"].count(2) == 3
    assert_same_as_transformers(tmp_path, "roberta")


def test_unigram_of_multilingual_models_is_read(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=specials, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(mixed_texts(300), trainer)
    tokenizer = with_special_tokens(Tokenizer(backend), "<s>", "</s>", double_separator=True)
    save(tokenizer.backend, tmp_path / "xlm", pad_token="<pad>", cls_token="<s>", sep_token="</s>", mask_token="<mask>")
    assert_same_as_transformers(tmp_path / "xlm", "xlm-roberta")


def small_wordpiece() -> SpecialTokens:
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "is", "the", "of", "france", "na", "##ive"]
    return SpecialTokens(wordpiece_tokenizer(lines, {}, "vocab.txt"))


def test_a_pair_has_spans_sides_and_word_ids() -> None:
    encoded = small_wordpiece().encode("Paris  is", "naïve")
    assert encoded.ids == [2, 5, 6, 3, 10, 11, 3]
    assert encoded.token_types == [0, 0, 0, 0, 1, 1, 1]
    assert encoded.spans == [(0, 0), (0, 5), (7, 9), (0, 0), (0, 2), (2, 5), (0, 0)]
    assert encoded.sides == [-1, 0, 0, -1, 1, 1, -1]
    assert encoded.word_ids == [-1, 0, 1, -1, 0, 0, -1]


def test_special_tokens_in_a_text_are_parsed_only_on_request() -> None:
    special_tokens = small_wordpiece()
    assert special_tokens.mask_id == 4
    assert special_tokens.mask_id not in special_tokens.encode("the [MASK] of").ids
    assert special_tokens.encode("the [MASK] of", parse_special=True).ids == [2, 7, 4, 8, 3]
    batch, _ = special_tokens.encode_batch(["the [MASK] of"], max_length=9, parse_special=True)
    assert batch.row(0).tolist() == [2, 7, 4, 8, 3]


def test_truncation_is_reported() -> None:
    special_tokens = small_wordpiece()
    tokens, report = special_tokens.encode_batch(["paris is", "of of of of of of"], max_length=5)
    assert [row.tolist() for row in tokens] == [[2, 5, 6, 3], [2, 8, 8, 8, 3]]
    expected = TruncationReport(texts=2, tokens=8, max_length=5, windows=2, truncated_texts=1, truncated_tokens=3)
    assert report == expected
    assert (report + report).truncated_tokens == 6
    assert report == expected, "a sum leaves its terms as they are"
    pairs, _ = special_tokens.encode_batch(["of of of of"], ["is is is is is is"], max_length=10)
    assert pairs.row(0).tolist() == [2, 8, 8, 8, 3, 6, 6, 6, 6, 3]
    with pytest.raises(UsageError, match="no room"):
        special_tokens.encode_batch(["of"], max_length=2)
    with pytest.raises(UsageError, match="2 texts need as many"):
        special_tokens.encode_batch(["of", "of"], ["is"], max_length=9)


def test_a_trained_tokenizer_gets_a_mask_token_and_a_template() -> None:
    special_tokens = SpecialTokens(with_mask_token(train_tokenizer(["low lower"] * 9, TokenizerConfig(vocab_size=270))))
    assert special_tokens.tokenizer.vocab_size == special_tokens.mask_id + 1
    assert special_tokens.encode("low", "low").token_types[-1] == 1
    assert special_tokens.tokenizer.decode(special_tokens.encode("low lower").ids) == "low lower"


def test_incomplete_vocabularies_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"vocab.txt: no token '\[SEP\]'"):
        wordpiece_tokenizer(["[UNK]", "[CLS]"], {}, "vocab.txt")
    with pytest.raises(CheckpointError, match="1 duplicate lines"):
        wordpiece_tokenizer(["[UNK]", "[CLS]", "[SEP]", "a", "a"], {}, "vocab.txt")
