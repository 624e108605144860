"""Small random encoders of transformers, with lively weights: small ones hide mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.tokens import Tokens

VOCABULARY = 61
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", *(f"w{number}" for number in range(54))]
LABELS = ("bad", "so so", "good")
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 14,
    "num_hidden_layers": 2,
    "num_attention_heads": 7,
    "intermediate_size": 19,
    "max_position_embeddings": 23,
}
DISTILLED = {"vocab_size": VOCABULARY, "dim": 14, "n_layers": 2, "n_heads": 7, "hidden_dim": 19}
LATER = {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
MARKS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
NAMES = {
    "bert": ("Bert", SIZES),
    "distilbert": ("DistilBert", {**DISTILLED, "max_position_embeddings": 23}),
    "roberta": ("Roberta", LATER),
    "xlm-roberta": ("XLMRoberta", LATER),
    "electra": ("Electra", {**SIZES, "embedding_size": 6}),
    "modernbert": ("ModernBert", {**SIZES, "num_hidden_layers": 5, "local_attention": 6, **MARKS}),
    "albert": ("Albert", {**SIZES, "num_hidden_layers": 5, "embedding_size": 6, "num_hidden_groups": 2}),
}
CLASSES = {
    "plain": "Model",
    "masked": "ForMaskedLM",
    "next": "ForNextSentencePrediction",
    "pretraining": "ForPreTraining",
    "label": "ForSequenceClassification",
    "token": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
CASES = [
    (kind, head)
    for kind in NAMES
    for head in CLASSES
    if kind == "bert" or head not in ("next", "pretraining") or (kind, head) == ("albert", "pretraining")
]


def made(kind: str, head: str, folder: Path, **changes: Any) -> Any:
    """Return a model of transformers, saved in a folder with a vocabulary."""
    import transformers

    name, sizes = NAMES[kind]
    named = {"id2label": dict(enumerate(LABELS)), "label2id": {label: n for n, label in enumerate(LABELS)}}
    settings = {**sizes, **(named if head in ("label", "token") else {}), **changes}
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}{CLASSES[head]}")(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    return model


def texts(types: int) -> Tokens:
    """Return rows of unequal length, with types if there are several."""
    chance = np.random.default_rng(3)
    packed = Tokens.from_rows([chance.integers(7, VOCABULARY, length) for length in (7, 3, 13, 1)])
    return Tokens(packed.ids, packed.offsets, chance.integers(0, max(types, 1), len(packed.ids)).astype(np.int32))


def outputs(model: Any, tokens: Tokens, head: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the states of all tokens and the head's scores, from transformers with padding."""
    shape = (len(tokens), int(tokens.lengths.max()))
    ids, real, types = np.full(shape, model.config.pad_token_id), np.zeros(shape, bool), np.zeros(shape, int)
    for number, (start, stop) in enumerate(zip(tokens.offsets, tokens.offsets[1:], strict=False)):
        ids[number, : stop - start], real[number, : stop - start] = tokens.ids[start:stop], True
        types[number, : stop - start] = 0 if tokens.token_types is None else tokens.token_types[start:stop]
    given = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(real.astype(int))}
    if model.config.model_type not in ("distilbert", "modernbert"):
        given["token_type_ids"] = torch.tensor(types)
    with torch.no_grad():
        found = model(**given, output_hidden_states=True)
    states = found.hidden_states[-1].numpy()[real]
    if head == "plain":
        pooled = getattr(found, "pooler_output", None)
        return states, None if pooled is None else pooled.numpy()
    if head == "span":
        return states, np.stack([found.start_logits.numpy()[real], found.end_logits.numpy()[real]], axis=1)
    scores = (found.prediction_logits if head == "pretraining" else found.logits).numpy()
    return states, scores[real] if scores.ndim == 3 else scores
