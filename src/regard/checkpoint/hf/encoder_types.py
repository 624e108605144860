"""A row for each type of Hugging Face's encoders: what it calls config fields and weights, and its table of heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Fields = tuple[tuple[str, str, Any], ...]  # their config field, ours, what an absent one means
Names = tuple[tuple[str, str], ...]  # our module or weight, theirs; one that begins with a dot is in the backbone
_POOLER: Names = (("pooler", ".pooler.dense"),)
_BERT_WORDS: Names = (
    ("masked.dense", "cls.predictions.transform.dense"),
    ("masked.norm", "cls.predictions.transform.LayerNorm"),
    ("masked_bias", "cls.predictions.bias"),
    ("masked_output.weight", "cls.predictions.decoder.weight"),
)
_BERT_NEXT: Names = (*_POOLER, ("next", "cls.seq_relationship"))
_ROBERTA_WORDS: Names = (
    ("masked.dense", "lm_head.dense"),
    ("masked.norm", "lm_head.layer_norm"),
    ("masked_bias", "lm_head.bias"),
    ("masked_output.weight", "lm_head.decoder.weight"),
)
_DISTIL_WORDS: Names = (
    ("masked.dense", "vocab_transform"),
    ("masked.norm", "vocab_layer_norm"),
    ("masked_bias", "vocab_projector.bias"),
    ("masked_output.weight", "vocab_projector.weight"),
)


@dataclass(frozen=True)
class HeadNames:
    """A head as one of their types has it."""

    architecture: str  # the name of their class
    names: Names = ()
    dropout: str = ""  # their field for the dropout on what is scored; none: it has no such dropout
    idle: tuple[str, ...] = ()  # layers of width × width in the backbone that their class has but does not use


@dataclass(frozen=True)
class EncoderType:
    """What one of their types calls things."""

    prefix: str  # of the backbone's weights; optional when read
    fields: Fields
    trunk: Names
    layer: str  # before a block's weights, with the layer's number
    block: tuple[tuple[str, tuple[str, ...]], ...]  # ours, theirs: several of theirs are rows of one of ours
    heads: Mapping[str, HeadNames]
    copies: Mapping[str, str]  # our weight → their name of a second, tied copy
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings of ours that the type decides
    written: Mapping[str, Any] = field(default_factory=dict)  # fields of theirs that new folders have besides
    places_after_pad: bool = False  # whether places are counted from the number of the pad token
    always_widened: bool = False  # whether words are widened even where they are as wide as the states
    pooler_drops: bool = False  # whether a label head drops before its pooler too
    label_pooling: Mapping[str, Any] = field(default_factory=dict)  # of ours for a label head: values, or settings
    layered: bool = False  # whether layers differ, as `hf_modernbert` reads and writes it
    template: tuple[str, str, bool] = ("[CLS]", "[SEP]", False)  # start, end, two ends between texts and no types


_BLOCK = (
    ("attention.qkv", ("attention.self.query", "attention.self.key", "attention.self.value")),
    ("attention.out", ("attention.output.dense",)),
    ("attention_norm", ("attention.output.LayerNorm",)),
    ("feedforward.inner", ("intermediate.dense",)),
    ("feedforward.outer", ("output.dense",)),
    ("feedforward_norm", ("output.LayerNorm",)),
)
_DISTIL_BLOCK = (
    ("attention.qkv", ("attention.q_lin", "attention.k_lin", "attention.v_lin")),
    ("attention.out", ("attention.out_lin",)),
    ("attention_norm", ("sa_layer_norm",)),
    ("feedforward.inner", ("ffn.lin1",)),
    ("feedforward.outer", ("ffn.lin2",)),
    ("feedforward_norm", ("output_layer_norm",)),
)
_DISTIL_TRUNK: Names = (
    ("words.weight", "embeddings.word_embeddings.weight"),
    ("places.weight", "embeddings.position_embeddings.weight"),
    ("norm", "embeddings.LayerNorm"),
)
_TRUNK: Names = (*_DISTIL_TRUNK, ("types.weight", "embeddings.token_type_embeddings.weight"))


def _fields(vocabulary: int, pad: int) -> Fields:
    return (
        ("vocab_size", "vocab_size", vocabulary),
        ("hidden_size", "hidden_size", 768),
        ("num_hidden_layers", "stack.num_layers", 12),
        ("num_attention_heads", "stack.num_heads", 12),
        ("intermediate_size", "stack.feed_forward_size", 3072),
        ("hidden_act", "activation", "gelu"),
        ("hidden_dropout_prob", "dropout", 0.1),
        ("attention_probs_dropout_prob", "attention_dropout", 0.1),
        ("max_position_embeddings", "max_positions", 512),
        ("type_vocab_size", "num_token_types", 2),
        ("layer_norm_eps", "norm_eps", 1e-12),
        ("pad_token_id", "pad_id", pad),
        ("tie_word_embeddings", "tie_embeddings", True),
    )


_DISTIL_FIELDS = (
    ("vocab_size", "vocab_size", 30522),
    ("dim", "hidden_size", 768),
    ("n_layers", "stack.num_layers", 6),
    ("n_heads", "stack.num_heads", 12),
    ("hidden_dim", "stack.feed_forward_size", 3072),
    ("activation", "activation", "gelu"),
    ("dropout", "dropout", 0.1),
    ("attention_dropout", "attention_dropout", 0.1),
    ("max_position_embeddings", "max_positions", 512),
    ("pad_token_id", "pad_id", 0),
    ("tie_word_embeddings", "tie_embeddings", True),
)


def _roberta(name: str, vocabulary: int) -> EncoderType:
    return EncoderType(
        prefix="roberta.",
        fields=_fields(vocabulary, pad=1),
        trunk=_TRUNK,
        layer="encoder.layer.{}.",
        block=_BLOCK,
        heads={
            "plain": HeadNames(f"{name}Model", _POOLER),
            "masked": HeadNames(f"{name}ForMaskedLM", _ROBERTA_WORDS),
            "label": HeadNames(
                f"{name}ForSequenceClassification",
                (("pooler", "classifier.dense"), ("output", "classifier.out_proj")),
                "classifier_dropout",
            ),
            "token": HeadNames(f"{name}ForTokenClassification", (("output", "classifier"),), "classifier_dropout"),
            "span": HeadNames(f"{name}ForQuestionAnswering", (("output", "qa_outputs"),)),
        },
        copies={"words.weight": "lm_head.decoder.weight", "masked_bias": "lm_head.decoder.bias"},
        written={"bos_token_id": 0, "eos_token_id": 2},
        places_after_pad=True,
        pooler_drops=True,
        template=("<s>", "</s>", True),
    )


def _big_bird() -> EncoderType:
    usual = {"hidden_act": "gelu_new", "max_position_embeddings": 4096}
    label, token = (("pooler", "classifier.dense"), ("output", "classifier.out_proj")), (("output", "classifier"),)
    span = (
        ("span.inner", "qa_classifier.intermediate.dense"),
        ("span.outer", "qa_classifier.output.dense"),
        ("span_norm", "qa_classifier.output.LayerNorm"),
        ("output", "qa_classifier.qa_outputs"),
    )
    pooler: Names = (("pooler", ".pooler"),)
    words, idle = _BERT_WORDS, ("pooler",)
    return EncoderType(
        prefix="bert.",
        fields=(
            *_with_usual(_fields(50358, pad=0), usual),
            ("attention_type", "attention", "block_sparse"),
            ("block_size", "block_size", 64),
            ("num_random_blocks", "num_random_blocks", 3),
            ("rescale_embeddings", "scale_embedding", False),
        ),
        trunk=_TRUNK,
        layer="encoder.layer.{}.",
        block=_BLOCK,
        heads={
            "plain": HeadNames("BigBirdModel", pooler),
            "masked": HeadNames("BigBirdForMaskedLM", words, idle=idle),
            "pretraining": HeadNames("BigBirdForPreTraining", (*words, *pooler, ("next", "cls.seq_relationship"))),
            "label": HeadNames("BigBirdForSequenceClassification", label, "classifier_dropout", idle),
            "token": HeadNames("BigBirdForTokenClassification", token, "classifier_dropout", idle),
            "span": HeadNames("BigBirdForQuestionAnswering", span),
        },
        copies={"words.weight": "cls.predictions.decoder.weight", "masked_bias": "cls.predictions.decoder.bias"},
        fixed={"random_once": False, "dropout_before_norm": True, "span_feed_forward": True},
        written={"use_bias": True},
        label_pooling={"pooler_activation": "activation"},
    )


def _with_usual(fields: Fields, usual: Mapping[str, Any], *more: tuple[str, str, Any]) -> Fields:
    """Return fields with other meanings of absent ones, and further fields."""
    return (*((theirs, ours, usual.get(theirs, default)) for theirs, ours, default in fields), *more)


def _electra() -> EncoderType:
    words: Names = (
        ("masked.dense", "generator_predictions.dense"),
        ("masked.norm", "generator_predictions.LayerNorm"),
        ("masked_bias", "generator_lm_head.bias"),
        ("masked_output.weight", "generator_lm_head.weight"),
    )
    label: Names = (("pooler", "classifier.dense"), ("output", "classifier.out_proj"))
    usual = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    return EncoderType(
        prefix="electra.",
        fields=_with_usual(_fields(30522, pad=0), usual, ("embedding_size", "embedding_size", 128)),
        trunk=(*_TRUNK, ("widening", "embeddings_project")),
        layer="encoder.layer.{}.",
        block=_BLOCK,
        heads={
            "plain": HeadNames("ElectraModel"),
            "masked": HeadNames("ElectraForMaskedLM", words),
            "label": HeadNames("ElectraForSequenceClassification", label, "classifier_dropout"),
            "token": HeadNames("ElectraForTokenClassification", (("output", "classifier"),), "classifier_dropout"),
            "span": HeadNames("ElectraForQuestionAnswering", (("output", "qa_outputs"),)),
        },
        copies={"words.weight": "generator_lm_head.weight"},
        label_pooling={"pooler_activation": "gelu"},
        pooler_drops=True,
    )


def _albert() -> EncoderType:
    words: Names = (
        ("masked.dense", "predictions.dense"),
        ("masked.norm", "predictions.LayerNorm"),
        ("masked_bias", "predictions.bias"),
        ("masked_output.weight", "predictions.decoder.weight"),
    )
    pooler: Names = (("pooler", ".pooler"),)
    output: Names = (("output", "classifier"),)
    usual = {"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384, "hidden_act": "gelu_new"}
    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    own = (("embedding_size", "embedding_size", 128), ("num_hidden_groups", "layer_groups", 1))
    return EncoderType(
        prefix="albert.",
        fields=_with_usual(_fields(30000, pad=0), {**usual, **dropouts}, *own),
        trunk=(*_TRUNK, ("widening", "encoder.embedding_hidden_mapping_in")),
        layer="encoder.albert_layer_groups.{}.albert_layers.0.",
        block=(
            ("attention.qkv", ("attention.query", "attention.key", "attention.value")),
            ("attention.out", ("attention.dense",)),
            ("attention_norm", ("attention.LayerNorm",)),
            ("feedforward.inner", ("ffn",)),
            ("feedforward.outer", ("ffn_output",)),
            ("feedforward_norm", ("full_layer_layer_norm",)),
        ),
        heads={
            "plain": HeadNames("AlbertModel", pooler),
            "masked": HeadNames("AlbertForMaskedLM", words),
            "pretraining": HeadNames("AlbertForPreTraining", (*words, *pooler, ("next", "sop_classifier.classifier"))),
            "label": HeadNames("AlbertForSequenceClassification", (*pooler, *output), "classifier_dropout_prob"),
            "token": HeadNames("AlbertForTokenClassification", output, "classifier_dropout_prob"),
            "span": HeadNames("AlbertForQuestionAnswering", (("output", "qa_outputs"),)),
        },
        copies={"words.weight": "predictions.decoder.weight", "masked_bias": "predictions.decoder.bias"},
        written={"bos_token_id": 2, "eos_token_id": 3, "inner_group_num": 1},
        always_widened=True,
    )


_MODERN_FIELDS = (
    ("vocab_size", "vocab_size", 50368),
    ("hidden_size", "hidden_size", 768),
    ("num_hidden_layers", "stack.num_layers", 22),
    ("num_attention_heads", "stack.num_heads", 12),
    ("intermediate_size", "stack.feed_forward_size", 1152),
    ("hidden_activation", "activation", "gelu"),
    ("embedding_dropout", "dropout", 0.0),
    ("attention_dropout", "attention_dropout", 0.0),
    ("max_position_embeddings", "max_positions", 8192),
    ("norm_eps", "norm_eps", 1e-5),
    ("pad_token_id", "pad_id", 50283),
    ("tie_word_embeddings", "tie_embeddings", True),
)


def _modern() -> EncoderType:
    transform: Names = (("masked.dense", "head.dense"), ("masked.norm", "head.norm"))
    words: Names = (*transform, ("masked_bias", "decoder.bias"), ("masked_output.weight", "decoder.weight"))
    scored: Names = (*transform, ("output", "classifier"))
    return EncoderType(
        prefix="model.",
        fields=_MODERN_FIELDS,
        trunk=(
            ("words.weight", "embeddings.tok_embeddings.weight"),
            ("norm", "embeddings.norm"),
            ("stack.norm", "final_norm"),
        ),
        layer="layers.{}.",
        block=(
            ("attention.qkv", ("attn.Wqkv",)),
            ("attention.out", ("attn.Wo",)),
            ("attention_norm", ("attn_norm",)),
            ("feedforward.inner", ("mlp.Wi",)),
            ("feedforward.outer", ("mlp.Wo",)),
            ("feedforward_norm", ("mlp_norm",)),
        ),
        heads={
            "plain": HeadNames("ModernBertModel"),
            "masked": HeadNames("ModernBertForMaskedLM", words),
            "label": HeadNames("ModernBertForSequenceClassification", scored, "classifier_dropout"),
            "token": HeadNames("ModernBertForTokenClassification", scored, "classifier_dropout"),
            "span": HeadNames("ModernBertForQuestionAnswering", scored, "classifier_dropout"),
        },
        copies={"words.weight": "decoder.weight"},
        fixed={
            "num_token_types": 0,
            "norm": "before",
            "first_attention_norm": False,
            "gated": True,
            "positions": "rotary",
            "head_transform": True,
        },
        written=dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),  # else its own ones
        layered=True,
    )


KINDS: dict[str, EncoderType] = {
    "bert": EncoderType(
        prefix="bert.",
        fields=_fields(30522, pad=0),
        trunk=_TRUNK,
        layer="encoder.layer.{}.",
        block=_BLOCK,
        heads={
            "plain": HeadNames("BertModel", _POOLER),
            "masked": HeadNames("BertForMaskedLM", _BERT_WORDS),
            "next": HeadNames("BertForNextSentencePrediction", _BERT_NEXT),
            "pretraining": HeadNames("BertForPreTraining", _BERT_WORDS + _BERT_NEXT),
            "label": HeadNames(
                "BertForSequenceClassification", (*_POOLER, ("output", "classifier")), "classifier_dropout"
            ),
            "token": HeadNames("BertForTokenClassification", (("output", "classifier"),), "classifier_dropout"),
            "span": HeadNames("BertForQuestionAnswering", (("output", "qa_outputs"),)),
        },
        copies={"words.weight": "cls.predictions.decoder.weight", "masked_bias": "cls.predictions.decoder.bias"},
    ),
    "distilbert": EncoderType(
        prefix="distilbert.",
        fields=_DISTIL_FIELDS,
        trunk=_DISTIL_TRUNK,
        layer="transformer.layer.{}.",
        block=_DISTIL_BLOCK,
        heads={
            "plain": HeadNames("DistilBertModel"),
            "masked": HeadNames("DistilBertForMaskedLM", _DISTIL_WORDS),
            "label": HeadNames(
                "DistilBertForSequenceClassification",
                (("pooler", "pre_classifier"), ("output", "classifier")),
                "seq_classif_dropout",
            ),
            "token": HeadNames("DistilBertForTokenClassification", (("output", "classifier"),), "dropout"),
            "span": HeadNames("DistilBertForQuestionAnswering", (("output", "qa_outputs"),), "qa_dropout"),
        },
        copies={"words.weight": "vocab_projector.weight"},
        fixed={"norm_eps": 1e-12, "num_token_types": 0},
        label_pooling={"pooler_activation": "relu"},
    ),
    "roberta": _roberta("Roberta", 50265),
    "xlm-roberta": _roberta("XLMRoberta", 30522),
    "big_bird": _big_bird(),
    "electra": _electra(),
    "albert": _albert(),
    "modernbert": _modern(),
}
