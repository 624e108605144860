"""Model folders of Hugging Face: small models of `transformers` with random weights, saved by that library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tools.behaviour import tokenizer_files

LABELS = ("bad", "so so", "good")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
HEAD_CLASSES = {
    "none": "Model",
    "masked_lm": "ForMaskedLM",
    "pretraining": "ForPreTraining",
    "sequence": "ForSequenceClassification",
    "token": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
GENERATORS = ("LMHeadModel", "ForCausalLM", "MTModel", "ForConditionalGeneration")
BERT_SIZES: dict[str, Any] = {
    "hidden_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 72,
    "max_position_embeddings": 64,
}
ROBERTA_SIZES = {**BERT_SIZES, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": 66}
ROBERTA_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
DISTILBERT_SIZES = {"dim": 40, "n_layers": 2, "n_heads": 4, "hidden_dim": 72, "max_position_embeddings": 64}
MODERNBERT_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {  # name → class prefix, tokenizer, config
    "bert": ("Bert", "wordpiece", BERT_SIZES),
    "distilbert": ("DistilBert", "wordpiece", DISTILBERT_SIZES),
    "roberta": ("Roberta", "byte_level_bpe", {**ROBERTA_SIZES, **ROBERTA_IDS}),
    "xlm-roberta": ("XLMRoberta", "xlm_unigram", {**ROBERTA_SIZES, **ROBERTA_IDS}),
    "electra": ("Electra", "wordpiece", {**BERT_SIZES, "embedding_size": 20}),
    "electra-wide": ("Electra", "wordpiece", {**BERT_SIZES, "embedding_size": 40}),
    "albert": (
        "Albert",
        "albert_unigram",
        {**BERT_SIZES, "num_hidden_layers": 5, "embedding_size": 20, "num_hidden_groups": 2},
    ),
    "modernbert": (
        "ModernBert",
        "wordpiece",
        {**BERT_SIZES, "num_hidden_layers": 4, "local_attention": 12, **MODERNBERT_IDS},
    ),
    "big_bird": (
        "BigBird",
        "wordpiece",
        {**BERT_SIZES, "max_position_embeddings": 256, "block_size": 4, "num_random_blocks": 1, "sep_token_id": 3},
    ),
}


def build_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model type."""
    if name == "wordpiece":
        return tokenizer_files.build_wordpiece()
    if name == "byte_level_bpe":
        return tokenizer_files.build_byte_level_bpe()
    if name == "gpt_bpe":
        return tokenizer_files.build_byte_level_bpe(tokenizer_files.GPT_SPECIALS)
    if name == "xlm_unigram":
        specials = tokenizer_files.ROBERTA_SPECIALS
        return tokenizer_files.build_unigram(specials, start="<s>", end="</s>", separators=2)
    if name == "albert_unigram":
        return tokenizer_files.build_unigram(tokenizer_files.ALBERT_SPECIALS, start="[CLS]", end="[SEP]")
    if name == "marian_unigram":
        return tokenizer_files.build_unigram(tokenizer_files.MARIAN_SPECIALS, end="</s>")
    return tokenizer_files.build_unigram(tokenizer_files.SEQ2SEQ_SPECIALS, end="</s>")


def build_encoder(folder: Path, name: str, head: str, **changes: Any) -> Path:
    """Write an encoder of one model type with one head."""
    prefix, tokenizer_name, sizes = ENCODERS[name]
    labels = {"sequence": LABELS, "token": TAGS}.get(head, ())
    named = {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}
    config = {**sizes, **(named if labels else {}), **changes}
    return _build(folder, prefix, HEAD_CLASSES[head], tokenizer_name, config)


def build_causal_lm(folder: Path, name: str) -> Path:
    """Write a causal language model: gpt2 or gpt_neox."""
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    if name == "gpt2":
        config = {"n_positions": 48, "n_embd": 40, "n_layer": 2, "n_head": 4, "n_inner": 72, **tokens}
        return _build(folder, "GPT2", "LMHeadModel", "gpt_bpe", config)
    sizes = {**BERT_SIZES, "max_position_embeddings": 48, "use_parallel_residual": False, "rotary_pct": 1.0}
    return _build(folder, "GPTNeoX", "ForCausalLM", "gpt_bpe", {**sizes, **tokens})


def build_translator(folder: Path, name: str) -> Path:
    """Write an encoder–decoder: marian (post-norm) or pegasus (pre-norm)."""
    sizes = {"layers": 2, "attention_heads": 4, "ffn_dim": 72}
    config: dict[str, Any] = {f"{side}_{key}": size for side in ("encoder", "decoder") for key, size in sizes.items()}
    config |= {"d_model": 40, "max_position_embeddings": 96, "scale_embedding": True}
    if name == "marian":
        tokens = {"pad_token_id": 2, "decoder_start_token_id": 2, "eos_token_id": 0, "forced_eos_token_id": None}
        config |= {"activation_function": "swish", **tokens}
        return _build(folder, "Marian", "MTModel", "marian_unigram", config)
    tokens = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": None}
    config |= {"activation_function": "relu", **tokens}
    return _build(folder, "Pegasus", "ForConditionalGeneration", "seq2seq_unigram", config)


def _build(folder: Path, prefix: str, suffix: str, tokenizer_name: str, config: dict[str, Any]) -> Path:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    tokenizer = build_tokenizer(tokenizer_name)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    torch.manual_seed(7)
    settings = getattr(transformers, f"{prefix}Config")(vocab_size=size, **config)
    model = getattr(transformers, f"{prefix}{suffix}")(settings).eval()
    _draw_weights(model, seed=11)
    if suffix in GENERATORS:
        with torch.no_grad():
            model.get_output_embeddings().weight[settings.eos_token_id] *= 4  # some hypotheses must be finished
    model.save_pretrained(folder)
    tokenizer_files.save_tokenizer(tokenizer, folder)
    return folder


def _draw_weights(model: Any, seed: int) -> None:
    """Draw weights that are large enough for answers to differ from text to text; fixed sinusoids stay."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    bias = [(name, buffer) for name, buffer in model.named_buffers() if name == "final_logits_bias"]
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *bias]:
            if name.endswith("embed_positions.weight"):
                continue
            noise = torch.empty_like(tensor).normal_(generator=generator)
            if tensor.dim() > 1 and name != "final_logits_bias":
                tensor.copy_(noise * 2.0 * tensor.shape[-1] ** -0.5)
            elif name.endswith("weight"):
                tensor.copy_(1 + 0.2 * noise)
            else:
                tensor.copy_(0.1 * noise)
