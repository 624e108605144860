"""Foreign tokenizer files: read if sound, otherwise refused in one line that names file and field."""

import base64
import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import BertWordPieceTokenizer, decoders

from regard.config.data import TOKENIZER_KINDS, TokenizerConfig
from regard.errors import CheckpointError
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_json import WORD_PATTERN, validate_tokenizer_json
from regard.text.train import train_tokenizer

CORPUS = ["Ein Hund läuft, zwei Hunde laufen!", "A dog (runs) in 2017"] * 9
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "naive", "dog", "run", "##s", "##ning"]
VOCABULARY += [".", ",", "'", "don", "t"]


def train(kind: str) -> dict[str, Any]:
    size = 300 if kind == "bpe" else 60
    return json.loads(train_tokenizer(CORPUS, TokenizerConfig(kind=kind, vocab_size=size)).to_json())  # type: ignore[no-any-return]


FILES = {kind: train(kind) for kind in TOKENIZER_KINDS}


def bert_tokenizer() -> BertWordPieceTokenizer:
    return BertWordPieceTokenizer({token: token_id for token_id, token in enumerate(VOCABULARY)})


def test_padding_and_truncation_of_a_bert_file_are_ignored() -> None:
    backend = bert_tokenizer()
    backend.enable_padding(length=128, pad_id=0, pad_token="[PAD]")
    backend.enable_truncation(3)
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.bos_id) == (0, 3, 1, 2)
    encoding = tokenizer.encode("Naïve dogs DON'T run, [SEP]")
    assert encoding.subwords == ["naive", "dog", "##s", "don", "'", "t", "run", ",", "[UNK]", "[UNK]", "[UNK]"]
    assert encoding.spans[:4] == [(0, 5), (6, 9), (9, 10), (11, 14)]
    assert encoding.word_ids == [0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4]
    assert tokenizer.decode(encoding.ids[:3]) == "naive dogs"
    assert "128" not in tokenizer.to_json()
    assert tokenizer.encode("x" * 101).ids == [1]


def test_padding_of_a_backend_is_switched_off() -> None:
    backend = bert_tokenizer()
    backend.enable_padding(length=128, pad_id=0, pad_token="[PAD]")
    assert Tokenizer(backend._tokenizer).encode("dogs").ids == [6, 8]


def test_dropout_of_a_file_is_removed() -> None:
    data = copy.deepcopy(FILES["bpe"])
    data["model"]["dropout"] = 0.9
    tokenizer = Tokenizer.from_json(json.dumps(data))
    assert tokenizer.to_json() == json.dumps(FILES["bpe"], ensure_ascii=False, indent=1)


def test_an_old_file_without_a_model_type_is_read() -> None:
    for kind in ("bpe", "unigram", "wordpiece", "words"):
        data = copy.deepcopy(FILES[kind])
        del data["model"]["type"]
        expected = Tokenizer.from_json(json.dumps(FILES[kind])).encode(CORPUS[0])
        assert Tokenizer.from_json(json.dumps(data)).encode(CORPUS[0]) == expected


def test_a_real_vocabulary_is_read() -> None:
    path = Path(__file__).parents[2].parent / "shared" / "data" / "vocab" / "bert-base-uncased" / "vocab.txt"
    if not path.is_file():
        pytest.skip("shared/data/vocab is not there")
    tokens = path.read_text("utf-8").split("\n")[:30522]
    backend = BertWordPieceTokenizer({token: token_id for token_id, token in enumerate(tokens)})
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert tokenizer.vocab_size == 30522
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 100, 101, 102)
    assert tokenizer.encode("Hello, world!").ids == [7592, 1010, 2088, 999]


Change = Callable[[dict[str, Any]], object]


def put(*path: str | int, value: object) -> Change:
    def change(data: dict[str, Any]) -> None:
        inner: Any = data
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value

    return change


def nested(depth: int) -> dict[str, Any]:
    inner = nested(depth - 1) if depth else {"type": "NFC"}
    return {"type": "Sequence", "normalizers": [inner]}


@pytest.mark.parametrize(
    ("kind", "change", "field"),
    [
        ("bpe", put("modle", value={}), "modle: unknown field (did you mean model?)"),
        ("bpe", put("model", value=[]), "model: an object"),
        ("bpe", put("model", "type", value="Neural"), "model: cannot be opened"),
        ("bpe", put("model", "type", value=[]), "model.type: '[]' is not a text"),
        ("bpe", put("model", "vocab", value={}), "model.vocab"),
        ("bpe", put("model", "vocab", "new", value=5000), "ids must be contiguous"),
        ("bpe", put("model", "vocab", "new", value=7), "two tokens have the same id"),
        ("bpe", put("model", "vocab", "new", value=-1), "the id -1"),
        ("bpe", put("model", "vocab", "new", value=True), "the id True"),
        ("bpe", put("model", "merges", 0, value=["no", "thing"]), "model.merges[0]: 'no' is not in the vocabulary"),
        ("bpe", put("model", "merges", 0, value=["a"]), "model.merges[0]"),
        ("bpe", put("model", "unk_token", value="[?]"), "model.unk_token"),
        ("bpe", put("added_tokens", 0, "id", value=9), "added_tokens[0]: '<pad>' has the id 9 here and 0 elsewhere"),
        ("bpe", put("added_tokens", 0, "special", value="yes"), "added_tokens[0].special"),
        ("bpe", put("added_tokens", 0, "content", value="\ud800"), "a lone surrogate"),
        ("bpe", put("pre_tokenizer", "pretokenizers", 0, "pattern", value={"Regex": "(a"}), "pre_tokenizer: cannot be"),
        ("bpe", put("pre_tokenizer", "pretokenizers", 0, "pattern", value={"Regex": 5}), "pattern.Regex: a text of at"),
        (
            "bpe",
            put("pre_tokenizer", "pretokenizers", 0, "pattern", value={"Regex": "a" * 10_001}),
            "pre_tokenizer.pretokenizers[0].pattern.Regex: a text of at most 10,000 characters",
        ),
        ("bpe", put("pre_tokenizer", "type", value="Python"), "pre_tokenizer: cannot be opened"),
        ("bpe", put("pre_tokenizer", "type", value=None), "pre_tokenizer.type: 'None' is not a text"),
        ("bpe", put("normalizer", value={"type": "Prepend", "prepend": "a" * 10_001}), "normalizer.prepend: a text of"),
        ("bpe", put("pre_tokenizer", value={"type": "FixedLength", "length": 0}), "pre_tokenizer.length: 0"),
        ("bpe", put("normalizer", value=nested(5)), "nested too deeply: at most 4"),
        (
            "bpe",
            put("pre_tokenizer", "pretokenizers", 1, value={"type": "ByteLevel"}),
            "pre_tokenizer: cannot be opened",
        ),
        ("bpe", put("normalizer", value="NFC"), "normalizer: an object"),
        ("bpe", put("decoder", "decoders", 1, "stop", value=2**40), "decoder.decoders[1].stop"),
        ("bpe", put("post_processor", "single", value=[5]), "post_processor: cannot be opened"),
        ("unigram", put("model", "vocab", 5, value=["x", float("nan")]), "model.vocab[5]: the score nan"),
        ("unigram", put("model", "vocab", 5, value=["<pad>", -1.0]), "model.vocab[5]: '<pad>' occurs twice"),
        ("unigram", put("model", "vocab", 5, value="x"), "model.vocab[5]"),
        ("unigram", put("model", "unk_id", value=10**6), "model.unk_id"),
        ("wordpiece", put("model", "max_input_chars_per_word", value=10**9), "model.max_input_chars_per_word"),
        ("wordpiece", put("model", "unk_token", value="none"), "model.unk_token"),
        ("words", put("model", "unk_token", value=None), "model.unk_token"),
    ],
)
def test_a_fault_is_reported_with_file_and_field(kind: str, change: Change, field: str) -> None:
    data = copy.deepcopy(FILES[kind])
    change(data)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_json(json.dumps(data), where="folder/tokenizer.json")
    message = str(caught.value)
    assert message.startswith("folder/tokenizer.json: ")
    assert field in message
    assert "\n" not in message
    assert len(message) < 500


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "[" * 100_000, '{"a": 1}', '{"model": {"vocab": {"a": 0}}}'])
def test_what_is_no_tokenizer_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"^x\.json: "):
        Tokenizer.from_json(text, where="x.json")


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(CheckpointError, match="characters are more than a tokenizer needs"):
        validate_tokenizer_json(" " * (64 * 1024 * 1024 + 1), "x.json")


def test_spaces_only_are_decoded_where_the_library_fails() -> None:
    data = copy.deepcopy(FILES["unigram"])
    decoder = decoders.Sequence(
        [decoders.Metaspace(prepend_scheme="always"), decoders.Fuse(), decoders.Strip(" ", 1, 1)]
    )
    data["decoder"] = json.loads(decoder.__getstate__())
    tokenizer = Tokenizer.from_json(json.dumps(data))
    space = tokenizer.backend.token_to_id("▁")
    for ids in ([], [tokenizer.eos_id], [tokenizer.unk_id], [space], [space, space, tokenizer.eos_id]):
        assert tokenizer.decode(ids) == ""


def compiled_replacements() -> bytes:
    """The table of replacements inside a SentencePiece model."""
    import io

    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=40, hard_vocab_limit=False, minloglevel=2
    )

    def read_field(message: bytes, field_number: int) -> bytes:
        """Bytes field of a protobuf message."""
        offset = 0

        def read_varint() -> int:
            nonlocal offset
            varint = 0
            shift = 0
            while True:
                byte = message[offset]
                offset += 1
                varint |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return varint

        while offset < len(message):
            key = read_varint()
            wire_type = key & 7
            if wire_type == 2:
                size = read_varint()
                offset += size
                if key >> 3 == field_number:
                    return message[offset - size : offset]
            elif wire_type == 5:
                offset += 4
            else:
                read_varint()
        raise AssertionError(field_number)

    return read_field(read_field(model.getvalue(), 3), 2)


def test_compiled_replacements_are_checked_before_they_run() -> None:
    table = compiled_replacements()
    data = copy.deepcopy(FILES["unigram"])
    normalizer = {"type": "Precompiled", "precompiled_charsmap": ""}
    data["normalizer"] = {"type": "Sequence", "normalizers": [normalizer, data["normalizer"]]}

    def load(raw: bytes) -> Tokenizer:
        normalizer["precompiled_charsmap"] = base64.b64encode(raw).decode()
        return Tokenizer.from_json(json.dumps(data))

    tokenizer = load(table)
    assert tokenizer.decode(tokenizer.encode("Ｈｕｎｄ").ids) == "Hund"
    rng = random.Random(3)
    size = int.from_bytes(table[:4], "little")
    num_refused = 0
    for _ in range(60):
        raw = np.frombuffer(table, dtype=np.uint8).copy()
        offsets = [rng.randrange(4 + size) for _ in range(200)]
        raw[offsets] = [rng.randrange(256) for _ in offsets]
        try:
            load(raw.tobytes()).encode_batch(["".join(map(chr, range(32, 0x3000))), "Ｈｕｎｄ ﬁ ½"])
        except CheckpointError as error:
            assert "precompiled_charsmap: the table is damaged" in str(error)
            num_refused += 1
    assert num_refused > 10
    for raw in (b"", b"\0", b"\xff" * 100, table[:1000], (2**32 - 4).to_bytes(4, "little") + table[4:]):
        with pytest.raises(CheckpointError, match="damaged"):
            load(raw)


def test_any_change_to_a_file_is_read_or_refused_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Random changes of structure: never another exception, never a panic of the library."""
    rng = random.Random(11)
    values = [None, True, -1, 0, 2**31, 2**70, 1.5, float("nan"), "", "a", "</s>", [], {}, [[]], {"type": "Sequence"}]

    def list_paths(data: object, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        children = data.items() if isinstance(data, dict) else enumerate(data[:5]) if isinstance(data, list) else ()
        return [prefix, *(path for name, child in children for path in list_paths(child, (*prefix, name)))]

    files = [*FILES.values(), json.loads(bert_tokenizer().to_str())]
    paths = [[path for path in list_paths(data) if path and len(path) < 5] for data in files]
    outside_vocabulary = [[path for path in file_paths if path[:2] != ("model", "vocab")] for file_paths in paths]
    was_read = []
    for _ in range(700):
        index = rng.randrange(len(files))
        data = copy.deepcopy(files[index])
        *parents, last = rng.choice(rng.choice([paths, outside_vocabulary, outside_vocabulary])[index])
        inner: Any = data
        for name in parents:
            inner = inner[name]
        if rng.random() < 0.3:
            del inner[last]
        else:
            inner[last] = rng.choice(values)
        try:
            tokenizer = Tokenizer.from_json(json.dumps(data), where="t.json")
            tokenizer.decode(tokenizer.encode("Ein é dog").ids)
            was_read.append(True)
        except CheckpointError as error:
            assert str(error).startswith("t.json: ")
            assert "\n" not in str(error)
            was_read.append(False)
    assert 100 < sum(was_read) < 600
    assert "panicked" not in capfd.readouterr().err


def split_by(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("pre_tokenizer", "subwords"),
    [
        (split_by(r"\p{Lu}?\p{Ll}+|\p{N}{1,2}|\s+|."), ["dog", "##s", "[UNK]", "run", "."]),
        ({"type": "Whitespace"}, ["dog", "##s", "run", "."]),
        ({"type": "FixedLength", "length": 3}, ["dog", "[UNK]", "[UNK]"]),
        (
            {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, split_by(r"\.")]},
            ["dog", "##s", "run", "."],
        ),
    ],
)
def test_components_and_patterns_are_left_to_the_library(pre_tokenizer: dict[str, Any], subwords: list[str]) -> None:
    data = json.loads(bert_tokenizer().to_str())
    data["pre_tokenizer"] = pre_tokenizer
    assert Tokenizer.from_json(json.dumps(data)).encode("dogs run.").subwords == subwords


def test_a_pattern_that_needs_too_many_steps_ends_with_a_message() -> None:
    data = json.loads(bert_tokenizer().to_str())
    data["pre_tokenizer"] = split_by("(a+)+$")
    tokenizer = Tokenizer.from_json(json.dumps(data))
    with pytest.raises(CheckpointError, match="the tokenizer failed on a text: .*limit"):
        tokenizer.encode("a" * 40 + "!")
    with pytest.raises(CheckpointError, match="the tokenizer failed on a text: .*limit"):
        tokenizer.encode_batch(["a" * 40 + "!"])


def test_trained_files_split_by_the_word_pattern() -> None:
    assert FILES["bpe"]["pre_tokenizer"]["pretokenizers"][0]["pattern"] == {"Regex": WORD_PATTERN}
