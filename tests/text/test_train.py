"""Learned tokenizers: the same from the same text, of a size that suits it, readable by others."""

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.config.data import TOKENIZER_KINDS, TokenizerConfig
from regard.data.ledger import read_lines
from regard.errors import ConfigError, DataError
from regard.text.tokenizer import SPECIALS, Tokenizer
from regard.text.train import choose_vocabulary_size, train_tokenizer
from regard.text.unigram import train_unigram

DATA = Path(__file__).parents[2].parent / "shared" / "data"

CORPUS = [
    f"{first} {second} {third}, {number}!"
    for number, (first, second, third) in enumerate(
        (a, b, c)
        for a in ("Ein", "Der", "Jeder")
        for b in ("Hund", "größere", "Hunden", "hundert")
        for c in ("läuft", "laufen", "laufend (schnell)", "wandert")
    )
]


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_learning_twice_gives_the_same_in_another_process_too(kind: str) -> None:
    config = TokenizerConfig(kind=kind, vocab_size=300 if kind == "bpe" else 80)
    one = train_tokenizer(CORPUS, config)
    assert train_tokenizer(iter(CORPUS), config).to_json() == one.to_json()
    program = (
        "import json, sys\nfrom regard.config.data import TokenizerConfig\nfrom regard.text.train import train_tokenizer\n"
        "texts, config = json.load(sys.stdin)\nprint(train_tokenizer(texts, TokenizerConfig.from_dict(config)).digest)"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(regard.__file__).parents[1]),
        "PYTHONHASHSEED": "7",
        "RAYON_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([CORPUS, config.to_dict()]),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == one.digest


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_every_kind_gives_known_text_back(kind: str) -> None:
    tokenizer = train_tokenizer(CORPUS, TokenizerConfig(kind=kind))
    assert tokenizer.subwords(range(4)) == list(SPECIALS)
    for text in CORPUS:
        seen = tokenizer.encode(text)
        assert tokenizer.decode(seen.ids) == text
        assert tokenizer.unk_id not in seen.ids
        visible = [
            (start, word)
            for (start, stop), word in zip(seen.spans, seen.word_ids, strict=True)
            if text[start:stop].strip()
        ]
        assert [len(text[: start + 1].split()) - 1 for start, _ in visible] == [word for _, word in visible]
    assert Tokenizer.from_json(tokenizer.to_json()).to_json() == tokenizer.to_json()


@settings(max_examples=60, deadline=None)
@given(text=st.text("Eindr HuläftgößJ,(!)123 ", max_size=40))
@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "characters"])
def test_known_letters_come_back_in_any_order(kind: str, text: str) -> None:
    tokenizer = _LEARNED.setdefault(kind, train_tokenizer(CORPUS, TokenizerConfig(kind=kind)))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


_LEARNED: dict[str, Tokenizer] = {}


def test_words_are_cut_by_frequency() -> None:
    texts = ["common words here, common"] * 1000 + ["rare"]
    tokenizer = train_tokenizer(texts, TokenizerConfig(kind="words"))
    assert tokenizer.subwords(tokenizer.encode("common words rare").ids) == ["▁common", "▁words", "<unk>"]
    small = train_tokenizer(texts, TokenizerConfig(kind="words", vocab_size=6))
    assert small.vocab_size == 6


def test_characters_are_single() -> None:
    tokenizer = train_tokenizer(["añb c"], TokenizerConfig(kind="characters"))
    assert tokenizer.encode("b añ").subwords == ["b", "▁", "a", "ñ"]
    assert tokenizer.encode("bz").ids[-1] == tokenizer.unk_id


def test_normal_forms_and_case() -> None:
    text = "Ｆｕｌｌ ﬁ e\u0301"
    forms = {form: train_tokenizer(["x"], TokenizerConfig(normalization=form)) for form in ("NFC", "NFKC", "none")}
    for form, tokenizer in forms.items():
        want = text if form == "none" else unicodedata.normalize(form, text)  # type: ignore[arg-type]
        assert tokenizer.decode(tokenizer.encode(text).ids) == want
    lower = train_tokenizer(["x"], TokenizerConfig(lowercase=True))
    assert lower.decode(lower.encode("ÄRGER Nie").ids) == "ärger nie"


def test_digits_stand_alone() -> None:
    tokenizer = train_tokenizer(["in 2017 2017 2017"] * 20, TokenizerConfig())
    assert tokenizer.encode("in 2017").subwords == ["▁in", "▁2", "0", "1", "7"]


def test_sizes_follow_the_corpus() -> None:
    letters = [" ".join("abcdefghijklmnop"[(3 * place + row) % 16] for place in range(9)) for row in range(500)]
    assert choose_vocabulary_size(letters) == 280
    assert (
        train_tokenizer(letters, TokenizerConfig()).vocab_size == 276
    )  # 256 bytes, 16 letters after a space, 4 special
    words = [f"word{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n // 676)}" for n in range(17_576)]
    small, large = choose_vocabulary_size(words), choose_vocabulary_size([" ".join(words)] * 90)
    assert 800 < small < 1600  # far fewer pieces than words: each word stands here once
    assert large - 260 == pytest.approx(90**0.5 * (small - 260), rel=0.03)
    assert choose_vocabulary_size([" ".join(words)] * 90, "words") == 32_000


def test_multi30k_gets_some_thousands() -> None:
    folder = DATA / "multi30k"
    if not folder.is_dir():
        pytest.skip("shared/data/multi30k is not there")
    texts = [line for side in ("en", "de") for line in read_lines(folder / f"train.{side}.gz")]
    assert 5000 <= choose_vocabulary_size(texts) <= 6000


def test_what_cannot_be_learned() -> None:
    with pytest.raises(DataError, match="no text"):
        train_tokenizer(["", "  "], TokenizerConfig())
    with pytest.raises(ConfigError, match="at least 260"):
        train_tokenizer(["a"], TokenizerConfig(vocab_size=100))


def test_unigram_pieces_are_a_distribution_and_hold_every_character() -> None:
    words = {"▁ab": 50, "▁abc": 30, "▁cab": 20, "▁x": 1}
    pieces = dict(train_unigram(words, 9))
    assert set("▁abcx") <= set(pieces)
    assert len(pieces) <= 9
    assert max(pieces, key=pieces.__getitem__) in ("▁ab", "ab")
    assert list(pieces.values()) == sorted(pieces.values(), reverse=True)


def test_unigram_is_as_short_as_the_librarys_own() -> None:
    folder = DATA / "multi30k"
    if not folder.is_dir():
        pytest.skip("shared/data/multi30k is not there")
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, trainers

    texts = read_lines(folder / "val.de.gz")
    ours = train_tokenizer(texts, TokenizerConfig(kind="unigram", vocab_size=1200))
    theirs = Backend(models.Unigram())
    theirs.normalizer, theirs.pre_tokenizer = ours.backend.normalizer, ours.backend.pre_tokenizer
    trainer = trainers.UnigramTrainer(
        vocab_size=1200, special_tokens=list(SPECIALS), unk_token="<unk>", show_progress=False
    )
    theirs.train_from_iterator(texts, trainer)
    lengths = [sum(map(len, rows)) for rows in (ours.encode_batch(texts), [e.ids for e in theirs.encode_batch(texts)])]
    assert ours.vocab_size <= 1200
    assert lengths[0] <= 1.02 * lengths[1]


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_transformers_reads_it_and_adds_the_end(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer(CORPUS, TokenizerConfig(kind=kind))
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in CORPUS[:9]:
        assert theirs(text)["input_ids"] == [*tokenizer.encode(text).ids, tokenizer.eos_id]
        assert theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True) == text
