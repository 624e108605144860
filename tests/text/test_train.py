"""Trained tokenizers: the same from the same text, of a size that suits it, readable by other tools."""

import json
import os
import subprocess
import sys
import unicodedata
from itertools import product
from pathlib import Path
from string import ascii_lowercase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.config.data import TOKENIZER_KINDS, TokenizerConfig
from regard.data.ledger import read_lines
from regard.errors import ConfigError, DataError
from regard.text.tokenizer import SPECIAL_TOKENS, Tokenizer
from regard.text.train import choose_vocabulary_size, train_tokenizer
from regard.text.unigram import train_unigram

DATA = Path(__file__).parents[2].parent / "shared" / "data"

CORPUS = [
    f"{article} {noun} {verb}, {number}!"
    for number, (article, noun, verb) in enumerate(
        product(
            ("Ein", "Der", "Jeder"),
            ("Hund", "größere", "Hunden", "hundert"),
            ("läuft", "laufen", "laufend (schnell)", "wandert"),
        )
    )
]


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_training_again_gives_the_same_also_in_another_process(kind: str) -> None:
    config = TokenizerConfig(kind=kind, vocab_size=300 if kind == "bpe" else 80)
    tokenizer = train_tokenizer(CORPUS, config)
    assert train_tokenizer(iter(CORPUS), config).to_json() == tokenizer.to_json()
    program = (
        "import json, sys\nfrom regard.config.data import TokenizerConfig\n"
        "from regard.text.train import train_tokenizer\n"
        "texts, config = json.load(sys.stdin)\nprint(train_tokenizer(texts, TokenizerConfig.from_dict(config)).digest)"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(regard.__file__).parents[1]),
        "PYTHONHASHSEED": "7",
        "RAYON_NUM_THREADS": "1",
    }
    process = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([CORPUS, config.to_dict()]),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == tokenizer.digest


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_every_kind_decodes_known_text_exactly(kind: str) -> None:
    tokenizer = train_tokenizer(CORPUS, TokenizerConfig(kind=kind))
    assert tokenizer.subwords(range(4)) == list(SPECIAL_TOKENS)
    for text in CORPUS:
        encoding = tokenizer.encode(text)
        assert tokenizer.decode(encoding.ids) == text
        assert tokenizer.unk_id not in encoding.ids
        for (start, end), word_id in zip(encoding.spans, encoding.word_ids, strict=True):
            if text[start:end].strip():
                assert len(text[: start + 1].split()) - 1 == word_id
    assert Tokenizer.from_json(tokenizer.to_json()).to_json() == tokenizer.to_json()


@settings(max_examples=60, deadline=None)
@given(text=st.text("Eindr HuläftgößJ,(!)123 ", max_size=40))
@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "characters"])
def test_known_letters_are_decoded_in_any_order(kind: str, text: str) -> None:
    tokenizer = _TRAINED.setdefault(kind, train_tokenizer(CORPUS, TokenizerConfig(kind=kind)))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


_TRAINED: dict[str, Tokenizer] = {}


def test_rare_words_are_unknown() -> None:
    texts = ["common words here, common"] * 1000 + ["rare"]
    tokenizer = train_tokenizer(texts, TokenizerConfig(kind="words"))
    assert tokenizer.subwords(tokenizer.encode("common words rare").ids) == ["▁common", "▁words", "<unk>"]
    small = train_tokenizer(texts, TokenizerConfig(kind="words", vocab_size=6))
    assert small.vocab_size == 6


def test_characters_are_single_tokens() -> None:
    tokenizer = train_tokenizer(["añb c"], TokenizerConfig(kind="characters"))
    assert tokenizer.encode("b añ").subwords == ["b", "▁", "a", "ñ"]
    assert tokenizer.encode("bz").ids[-1] == tokenizer.unk_id


def test_normal_form_and_case_follow_the_config() -> None:
    text = "Ｆｕｌｌ ﬁ e\u0301"
    forms = {form: train_tokenizer(["x"], TokenizerConfig(normalization=form)) for form in ("NFC", "NFKC", "none")}
    for form, tokenizer in forms.items():
        expected = text if form == "none" else unicodedata.normalize(form, text)  # type: ignore[arg-type]
        assert tokenizer.decode(tokenizer.encode(text).ids) == expected
    lower = train_tokenizer(["x"], TokenizerConfig(lowercase=True))
    assert lower.decode(lower.encode("ÄRGER Nie").ids) == "ärger nie"


def test_digits_are_single_tokens() -> None:
    tokenizer = train_tokenizer(["in 2017 2017 2017"] * 20, TokenizerConfig())
    assert tokenizer.encode("in 2017").subwords == ["▁in", "▁2", "0", "1", "7"]


def test_the_chosen_size_follows_the_corpus() -> None:
    letters = [" ".join("abcdefghijklmnop"[(3 * column + row) % 16] for column in range(9)) for row in range(500)]
    assert choose_vocabulary_size(letters) == 280
    # 256 bytes, 16 letters after a space, 4 special tokens
    assert train_tokenizer(letters, TokenizerConfig()).vocab_size == 276
    words = [f"word{''.join(letters)}" for letters in product(ascii_lowercase, repeat=3)]
    small = choose_vocabulary_size(words)
    large = choose_vocabulary_size([" ".join(words)] * 90)
    assert 800 < small < 1600  # far fewer subwords than words, as each word occurs once
    assert large - 260 == pytest.approx(90**0.5 * (small - 260), rel=0.03)
    assert choose_vocabulary_size([" ".join(words)] * 90, "words") == 32_000


def test_multi30k_gets_a_few_thousand_tokens() -> None:
    folder = DATA / "multi30k"
    if not folder.is_dir():
        pytest.skip("shared/data/multi30k is not there")
    texts = [line for side in ("en", "de") for line in read_lines(folder / f"train.{side}.gz")]
    assert 5000 <= choose_vocabulary_size(texts) <= 6000


def test_blank_texts_and_small_sizes_are_refused() -> None:
    with pytest.raises(DataError, match="no text"):
        train_tokenizer(["", "  "], TokenizerConfig())
    with pytest.raises(ConfigError, match="at least 260"):
        train_tokenizer(["a"], TokenizerConfig(vocab_size=100))


def test_unigram_subwords_are_sorted_and_include_every_character() -> None:
    words = {"▁ab": 50, "▁abc": 30, "▁cab": 20, "▁x": 1}
    logprobs = dict(train_unigram(words, 9))
    assert set("▁abcx") <= set(logprobs)
    assert len(logprobs) <= 9
    assert max(logprobs, key=logprobs.__getitem__) in ("▁ab", "ab")
    assert list(logprobs.values()) == sorted(logprobs.values(), reverse=True)


def test_unigram_segments_texts_as_briefly_as_the_librarys_own() -> None:
    folder = DATA / "multi30k"
    if not folder.is_dir():
        pytest.skip("shared/data/multi30k is not there")
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, trainers

    texts = read_lines(folder / "val.de.gz")
    tokenizer = train_tokenizer(texts, TokenizerConfig(kind="unigram", vocab_size=1200))
    reference = Backend(models.Unigram())
    reference.normalizer = tokenizer.backend.normalizer
    reference.pre_tokenizer = tokenizer.backend.pre_tokenizer
    trainer = trainers.UnigramTrainer(
        vocab_size=1200, special_tokens=list(SPECIAL_TOKENS), unk_token="<unk>", show_progress=False
    )
    reference.train_from_iterator(texts, trainer)
    num_tokens = sum(len(ids) for ids in tokenizer.encode_batch(texts))
    reference_tokens = sum(len(encoding.ids) for encoding in reference.encode_batch(texts))
    assert tokenizer.vocab_size <= 1200
    assert num_tokens <= 1.02 * reference_tokens


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_transformers_reads_the_file_and_adds_the_eos_token(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer(CORPUS, TokenizerConfig(kind=kind))
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in CORPUS[:9]:
        assert reference(text)["input_ids"] == [*tokenizer.encode(text).ids, tokenizer.eos_id]
        assert reference.decode(reference(text)["input_ids"], skip_special_tokens=True) == text
