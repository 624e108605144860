"""Small random encoders of transformers, with large weights: small ones hide errors."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.packed_tokens import Tokens

VOCAB_SIZE = 61
SUBWORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", *(f"w{index}" for index in range(54))]
LABELS = ("bad", "so so", "good")
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 14,
    "num_hidden_layers": 2,
    "num_attention_heads": 7,
    "intermediate_size": 19,
    "max_position_embeddings": 23,
}
DISTILBERT_SIZES = {"vocab_size": VOCAB_SIZE, "dim": 14, "n_layers": 2, "n_heads": 7, "hidden_dim": 19}
ROBERTA_SIZES = {**SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
SPECIAL_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
GPT2_SIZES = {"vocab_size": VOCAB_SIZE, "n_embd": 14, "n_layer": 2, "n_head": 7, "n_inner": 19, "n_positions": 23}
GPT_IDS = {"pad_token_id": 0, "bos_token_id": 6, "eos_token_id": 6}
GPT_NEOX_SIZES = {**SIZES, "hidden_size": 28, "use_parallel_residual": False, "rotary_pct": 1.0, **GPT_IDS}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {  # model type: prefix of its classes, config fields
    "bert": ("Bert", SIZES),
    "distilbert": ("DistilBert", {**DISTILBERT_SIZES, "max_position_embeddings": 23}),
    "roberta": ("Roberta", ROBERTA_SIZES),
    "xlm-roberta": ("XLMRoberta", ROBERTA_SIZES),
    "electra": ("Electra", {**SIZES, "embedding_size": 6}),
    "modernbert": ("ModernBert", {**SIZES, "num_hidden_layers": 5, "local_attention": 6, **SPECIAL_IDS}),
    "gpt2": ("GPT2", {**GPT2_SIZES, **GPT_IDS}),
    "gpt_neox": ("GPTNeoX", GPT_NEOX_SIZES),
    "albert": ("Albert", {**SIZES, "num_hidden_layers": 5, "embedding_size": 6, "num_hidden_groups": 2}),
}
CLASSES = {  # head: suffix of its class
    "plain": "Model",
    "masked": "ForMaskedLM",
    "next": "ForNextSentencePrediction",
    "pretraining": "ForPreTraining",
    "label": "ForSequenceClassification",
    "token": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
UNSUPPORTED = {"next", "pretraining"}  # heads that most model types lack, or that we do not read
CAUSAL_TYPES = ("gpt2", "gpt_neox")
CASES = [
    (model_type, head)
    for model_type, head in itertools.product(CONFIGS, CLASSES)
    if (model_type == "bert" or head not in UNSUPPORTED or (model_type, head) == ("albert", "pretraining"))
    and not (model_type in CAUSAL_TYPES and head == "masked")
]


def save_transformers_model(model_type: str, head: str, folder: Path, **changes: Any) -> Any:
    """Build a model of transformers and save it in a folder with a vocabulary; `changes` replace config fields."""
    import transformers

    name, sizes = CONFIGS[model_type]
    fields = dict(sizes)
    if head in ("label", "token"):
        fields["id2label"] = dict(enumerate(LABELS))
        fields["label2id"] = {label: index for index, label in enumerate(LABELS)}
    config = getattr(transformers, f"{name}Config")(**{**fields, **changes})
    model = getattr(transformers, f"{name}{CLASSES[head]}")(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(SUBWORDS) + "\n")
    return model


def random_tokens(num_token_types: int) -> Tokens:
    """Random sequences of unequal length, with random token types."""
    rng = np.random.default_rng(3)
    tokens = Tokens.from_rows([rng.integers(7, VOCAB_SIZE, length) for length in (7, 3, 13, 1)])
    token_types = rng.integers(0, max(num_token_types, 1), len(tokens.ids)).astype(np.int32)
    return Tokens(tokens.ids, tokens.offsets, token_types)


def transformers_outputs(model: Any, tokens: Tokens, head: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Hidden states of all tokens, and the head's logits (pooler output without a head), from transformers."""
    shape = (len(tokens), int(tokens.lengths.max()))
    is_token = np.arange(shape[1]) < tokens.lengths[:, None]
    ids = np.full(shape, model.config.pad_token_id)
    ids[is_token] = tokens.ids
    inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(is_token.astype(int))}
    if model.config.model_type not in ("distilbert", "modernbert", *CAUSAL_TYPES):
        token_types = np.zeros(shape, int)
        if tokens.token_types is not None:
            token_types[is_token] = tokens.token_types
        inputs["token_type_ids"] = torch.tensor(token_types)
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    hidden = output.hidden_states[-1].numpy()[is_token]
    if head == "plain":
        pooled = getattr(output, "pooler_output", None)
        return hidden, None if pooled is None else pooled.numpy()
    if head == "span":
        start_logits = output.start_logits.numpy()[is_token]
        end_logits = output.end_logits.numpy()[is_token]
        return hidden, np.stack([start_logits, end_logits], axis=1)
    logits = (output.prediction_logits if head == "pretraining" else output.logits).numpy()
    is_per_token = logits.ndim == 3
    return hidden, logits[is_token] if is_per_token else logits
