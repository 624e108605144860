"""Hidden states by layer: the first are embeddings, the last the model's output, the same alone and in a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from regard.config.models import BertConfig
from regard.config.rnn_models import ElmoConfig, RnnTaggerConfig, RnnTextConfig
from regard.models.text_classifier import TextBatch
from regard.packed_tokens import Tokens
from tests.families import SOURCE, STACK, VOCAB_SIZE, classifier, encoder, gpt, made, seq2seq, transformer


def tagger(**settings: Any) -> Any:
    config = RnnTextConfig(vocab_size=VOCAB_SIZE, embedding_size=5, hidden_size=7, num_layers=2)
    return made(RnnTaggerConfig(num_labels=3, encoder=config.override(settings)))


def pre_norm_encoder() -> Any:
    return made(BertConfig(vocab_size=VOCAB_SIZE, hidden_size=8, stack=STACK, norm_placement="pre", causal=True))


@pytest.mark.parametrize(
    ("model", "widths"),
    [
        (encoder(), [8, 8, 8]),
        (pre_norm_encoder(), [8, 8, 8]),
        (gpt(), [8, 8, 8]),
        (transformer(), [8, 8, 8]),
        (seq2seq(num_layers=2), [7, 18, 18]),
        (made(ElmoConfig(vocab_size=VOCAB_SIZE, hidden_size=6, num_layers=2)), [12, 12, 12]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_layer_reads_each_text_by_itself(model: Any, widths: list[int]) -> None:
    together = model.layer_states(SOURCE)
    assert [states.shape for states in together] == [(len(SOURCE.ids), width) for width in widths]
    alone = [model.layer_states(Tokens.from_rows([row])) for row in SOURCE]
    for layer, states in enumerate(together):
        np.testing.assert_allclose(states, np.concatenate([rows[layer] for rows in alone]), atol=1e-5)


def test_the_last_states_are_the_output() -> None:
    model: Any
    for model in (encoder(), pre_norm_encoder()):
        np.testing.assert_allclose(model.layer_states(SOURCE)[-1], model.encode(SOURCE), atol=1e-5)
    model = gpt()
    np.testing.assert_allclose(model.layer_states(SOURCE)[-1], model(SOURCE).detach().numpy(), atol=1e-5)
    for model in (transformer(), seq2seq()):
        ids, batch = model.to_tensors(SOURCE)
        output = model.encode(SOURCE)[0] if model.config.family == "transformer" else None
        if output is None:
            output, _ = model.encoder(model._embed(ids, "source", None), batch, None)
        np.testing.assert_allclose(model.layer_states(SOURCE)[-1], output.detach().numpy(), atol=1e-5)
    tagging: Any
    for tagging in (tagger(), classifier()):
        hidden, _ = tagging.hidden_states(TextBatch(SOURCE), None)
        np.testing.assert_allclose(tagging.layer_states(TextBatch(SOURCE))[-1], hidden.detach().numpy(), atol=1e-6)


def test_the_first_states_are_embeddings() -> None:
    model: Any = tagger(num_feature_layers=3, feature_size=4)
    features = np.random.default_rng(1).normal(size=(len(SOURCE.ids), 3, 4)).astype(np.float16)
    embedded, *_ = model.layer_states(TextBatch(SOURCE, features))
    words = model.encoder.token_embedding.weight[torch.from_numpy(SOURCE.ids).long()].detach().numpy()
    np.testing.assert_allclose(embedded[:, :5], words)
    mix = model.encoder.scalar_mix(torch.from_numpy(features).float())
    np.testing.assert_allclose(embedded[:, 5:], mix.detach().numpy(), rtol=1e-5)
    no_positions: Any = encoder(positions="none", num_token_types=0, embedding_norm=False)
    words = no_positions.token_embedding.weight[torch.from_numpy(SOURCE.ids).long()].detach().numpy()
    np.testing.assert_allclose(no_positions.layer_states(SOURCE)[0], words, atol=1e-6)


def test_a_decoder_reads_its_own_tokens_and_the_source() -> None:
    model: Any = transformer()
    layers = model.decoder_layer_states(SOURCE, SOURCE)
    decoder_input, _ = model.shift_targets(SOURCE)
    assert [states.shape for states in layers] == [(len(decoder_input.ids), 8)] * 3
    np.testing.assert_allclose(layers[-1], model(SOURCE, decoder_input).detach().numpy(), atol=1e-5)
