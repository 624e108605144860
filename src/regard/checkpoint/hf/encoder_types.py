"""Table of Hugging Face's encoder types: config fields, weight names and heads of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.checkpoint.hf.causal_encoders import CAUSAL_ENCODER_TYPES
from regard.checkpoint.hf.encoder_schema import EncoderType, Fields, HeadNames, Names

NATIVE_TYPE = "regard-bert"  # of encoders that no type below can express
_POOLER: Names = (("pooler", ".pooler.dense"),)
_BERT_MASKED_LM: Names = (
    ("mlm_head.dense", "cls.predictions.transform.dense"),
    ("mlm_head.norm", "cls.predictions.transform.LayerNorm"),
    ("mlm_head_bias", "cls.predictions.bias"),
    ("mlm_head_output.weight", "cls.predictions.decoder.weight"),
)
_BERT_NEXT: Names = (*_POOLER, ("next_sentence", "cls.seq_relationship"))
_ROBERTA_MASKED_LM: Names = (
    ("mlm_head.dense", "lm_head.dense"),
    ("mlm_head.norm", "lm_head.layer_norm"),
    ("mlm_head_bias", "lm_head.bias"),
    ("mlm_head_output.weight", "lm_head.decoder.weight"),
)
_DISTIL_MASKED_LM: Names = (
    ("mlm_head.dense", "vocab_transform"),
    ("mlm_head.norm", "vocab_layer_norm"),
    ("mlm_head_bias", "vocab_projector.bias"),
    ("mlm_head_output.weight", "vocab_projector.weight"),
)
_BLOCK = (
    ("attention.qkv", ("attention.self.query", "attention.self.key", "attention.self.value")),
    ("attention.out", ("attention.output.dense",)),
    ("attention_norm", ("attention.output.LayerNorm",)),
    ("feed_forward.up", ("intermediate.dense",)),
    ("feed_forward.down", ("output.dense",)),
    ("feed_forward_norm", ("output.LayerNorm",)),
)
_DISTIL_BLOCK = (
    ("attention.qkv", ("attention.q_lin", "attention.k_lin", "attention.v_lin")),
    ("attention.out", ("attention.out_lin",)),
    ("attention_norm", ("sa_layer_norm",)),
    ("feed_forward.up", ("ffn.lin1",)),
    ("feed_forward.down", ("ffn.lin2",)),
    ("feed_forward_norm", ("output_layer_norm",)),
)
_DISTIL_BACKBONE: Names = (
    ("token_embedding.weight", "embeddings.word_embeddings.weight"),
    ("position_embedding.weight", "embeddings.position_embeddings.weight"),
    ("embedding_norm", "embeddings.LayerNorm"),
)
_BACKBONE: Names = (*_DISTIL_BACKBONE, ("token_type_embedding.weight", "embeddings.token_type_embeddings.weight"))


def _bert_fields(vocab_size: int, pad_id: int) -> Fields:
    return (
        ("vocab_size", "vocab_size", vocab_size),
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
        ("pad_token_id", "pad_id", pad_id),
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


def _roberta(class_prefix: str, vocab_size: int) -> EncoderType:
    return EncoderType(
        prefix="roberta.",
        fields=_bert_fields(vocab_size, pad_id=1),
        backbone=_BACKBONE,
        layer_prefix="encoder.layer.{}.",
        block=_BLOCK,
        heads={
            "plain": HeadNames(f"{class_prefix}Model", _POOLER),
            "masked": HeadNames(f"{class_prefix}ForMaskedLM", _ROBERTA_MASKED_LM),
            "label": HeadNames(
                f"{class_prefix}ForSequenceClassification",
                (("pooler", "classifier.dense"), ("classifier", "classifier.out_proj")),
                dropout_field="classifier_dropout",
            ),
            "token": HeadNames(
                f"{class_prefix}ForTokenClassification",
                (("classifier", "classifier"),),
                dropout_field="classifier_dropout",
            ),
            "span": HeadNames(f"{class_prefix}ForQuestionAnswering", (("classifier", "qa_outputs"),)),
        },
        tied_copies={"token_embedding.weight": "lm_head.decoder.weight", "mlm_head_bias": "lm_head.decoder.bias"},
        extra_fields={"bos_token_id": 0, "eos_token_id": 2},
        has_positions_after_pad=True,
        has_pooler_dropout=True,
        template=("<s>", "</s>", True),
    )


def _big_bird() -> EncoderType:
    defaults = {"hidden_act": "gelu_new", "max_position_embeddings": 4096}
    label: Names = (("pooler", "classifier.dense"), ("classifier", "classifier.out_proj"))
    token: Names = (("classifier", "classifier"),)
    span: Names = (
        ("span_feed_forward.up", "qa_classifier.intermediate.dense"),
        ("span_feed_forward.down", "qa_classifier.output.dense"),
        ("span_norm", "qa_classifier.output.LayerNorm"),
        ("classifier", "qa_classifier.qa_outputs"),
    )
    pooler: Names = (("pooler", ".pooler"),)
    pretraining: Names = (*_BERT_MASKED_LM, *pooler, ("next_sentence", "cls.seq_relationship"))
    return EncoderType(
        prefix="bert.",
        fields=(
            *_with_defaults(_bert_fields(50358, pad_id=0), defaults),
            ("attention_type", "attention", "block_sparse"),
            ("block_size", "block_size", 64),
            ("num_random_blocks", "num_random_blocks", 3),
            ("rescale_embeddings", "scale_embedding", False),
        ),
        backbone=_BACKBONE,
        layer_prefix="encoder.layer.{}.",
        block=_BLOCK,
        heads={
            "plain": HeadNames("BigBirdModel", pooler),
            "masked": HeadNames("BigBirdForMaskedLM", _BERT_MASKED_LM, unused_layers=("pooler",)),
            "pretraining": HeadNames("BigBirdForPreTraining", pretraining),
            "label": HeadNames(
                "BigBirdForSequenceClassification",
                label,
                dropout_field="classifier_dropout",
                unused_layers=("pooler",),
            ),
            "token": HeadNames(
                "BigBirdForTokenClassification",
                token,
                dropout_field="classifier_dropout",
                unused_layers=("pooler",),
            ),
            "span": HeadNames("BigBirdForQuestionAnswering", span),
        },
        tied_copies={
            "token_embedding.weight": "cls.predictions.decoder.weight",
            "mlm_head_bias": "cls.predictions.decoder.bias",
        },
        fixed_settings={"random_once": False, "dropout_before_norm": True, "span_feed_forward": True},
        extra_fields={"use_bias": True},
        label_settings={"pooler_activation": "activation"},
    )


def _with_defaults(fields: Fields, defaults: Mapping[str, Any]) -> Fields:
    """Fields with other defaults of absent ones."""
    return tuple((hf_name, name, defaults.get(hf_name, default)) for hf_name, name, default in fields)


def _electra() -> EncoderType:
    masked_lm: Names = (
        ("mlm_head.dense", "generator_predictions.dense"),
        ("mlm_head.norm", "generator_predictions.LayerNorm"),
        ("mlm_head_bias", "generator_lm_head.bias"),
        ("mlm_head_output.weight", "generator_lm_head.weight"),
    )
    label: Names = (("pooler", "classifier.dense"), ("classifier", "classifier.out_proj"))
    defaults = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    return EncoderType(
        prefix="electra.",
        fields=(
            *_with_defaults(_bert_fields(30522, pad_id=0), defaults),
            ("embedding_size", "embedding_size", 128),
        ),
        backbone=(*_BACKBONE, ("embedding_projection", "embeddings_project")),
        layer_prefix="encoder.layer.{}.",
        block=_BLOCK,
        heads={
            "plain": HeadNames("ElectraModel"),
            "masked": HeadNames("ElectraForMaskedLM", masked_lm),
            "label": HeadNames("ElectraForSequenceClassification", label, dropout_field="classifier_dropout"),
            "token": HeadNames(
                "ElectraForTokenClassification", (("classifier", "classifier"),), dropout_field="classifier_dropout"
            ),
            "span": HeadNames("ElectraForQuestionAnswering", (("classifier", "qa_outputs"),)),
        },
        tied_copies={"token_embedding.weight": "generator_lm_head.weight"},
        label_settings={"pooler_activation": "gelu"},
        has_pooler_dropout=True,
    )


def _albert() -> EncoderType:
    masked_lm: Names = (
        ("mlm_head.dense", "predictions.dense"),
        ("mlm_head.norm", "predictions.LayerNorm"),
        ("mlm_head_bias", "predictions.bias"),
        ("mlm_head_output.weight", "predictions.decoder.weight"),
    )
    pooler: Names = (("pooler", ".pooler"),)
    output: Names = (("classifier", "classifier"),)
    dropout = ("classifier_dropout_prob", 0.1)
    defaults = {
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return EncoderType(
        prefix="albert.",
        fields=(
            *_with_defaults(_bert_fields(30000, pad_id=0), defaults),
            ("embedding_size", "embedding_size", 128),
            ("num_hidden_groups", "layer_groups", 1),
        ),
        backbone=(*_BACKBONE, ("embedding_projection", "encoder.embedding_hidden_mapping_in")),
        layer_prefix="encoder.albert_layer_groups.{}.albert_layers.0.",
        block=(
            ("attention.qkv", ("attention.query", "attention.key", "attention.value")),
            ("attention.out", ("attention.dense",)),
            ("attention_norm", ("attention.LayerNorm",)),
            ("feed_forward.up", ("ffn",)),
            ("feed_forward.down", ("ffn_output",)),
            ("feed_forward_norm", ("full_layer_layer_norm",)),
        ),
        heads={
            "plain": HeadNames("AlbertModel", pooler),
            "masked": HeadNames("AlbertForMaskedLM", masked_lm),
            "pretraining": HeadNames(
                "AlbertForPreTraining", (*masked_lm, *pooler, ("next_sentence", "sop_classifier.classifier"))
            ),
            "label": HeadNames("AlbertForSequenceClassification", (*pooler, *output), *dropout),
            "token": HeadNames("AlbertForTokenClassification", output, *dropout),
            "span": HeadNames("AlbertForQuestionAnswering", (("classifier", "qa_outputs"),)),
        },
        tied_copies={
            "token_embedding.weight": "predictions.decoder.weight",
            "mlm_head_bias": "predictions.decoder.bias",
        },
        extra_fields={"bos_token_id": 2, "eos_token_id": 3, "inner_group_num": 1},
        has_mandatory_projection=True,
    )


_MODERNBERT_FIELDS = (
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


def _modernbert() -> EncoderType:
    transform: Names = (("mlm_head.dense", "head.dense"), ("mlm_head.norm", "head.norm"))
    masked_lm: Names = (*transform, ("mlm_head_bias", "decoder.bias"), ("mlm_head_output.weight", "decoder.weight"))
    classifier: Names = (*transform, ("classifier", "classifier"))
    return EncoderType(
        prefix="model.",
        fields=_MODERNBERT_FIELDS,
        backbone=(
            ("token_embedding.weight", "embeddings.tok_embeddings.weight"),
            ("embedding_norm", "embeddings.norm"),
            ("encoder.final_norm", "final_norm"),
        ),
        layer_prefix="layers.{}.",
        block=(
            ("attention.qkv", ("attn.Wqkv",)),
            ("attention.out", ("attn.Wo",)),
            ("attention_norm", ("attn_norm",)),
            ("feed_forward.up", ("mlp.Wi",)),
            ("feed_forward.down", ("mlp.Wo",)),
            ("feed_forward_norm", ("mlp_norm",)),
        ),
        heads={
            "plain": HeadNames("ModernBertModel"),
            "masked": HeadNames("ModernBertForMaskedLM", masked_lm),
            "label": HeadNames("ModernBertForSequenceClassification", classifier, dropout_field="classifier_dropout"),
            "token": HeadNames("ModernBertForTokenClassification", classifier, dropout_field="classifier_dropout"),
            "span": HeadNames("ModernBertForQuestionAnswering", classifier, dropout_field="classifier_dropout"),
        },
        tied_copies={"token_embedding.weight": "decoder.weight"},
        fixed_settings={
            "num_token_types": 0,
            "norm_placement": "pre",
            "first_attention_norm": False,
            "gated": True,
            "positions": "rotary",
            "head_transform": True,
        },
        extra_fields=dict.fromkeys(
            ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
        ),  # null, else its defaults apply
        has_layer_types=True,
    )


ENCODER_TYPES: dict[str, EncoderType] = {
    "bert": EncoderType(
        prefix="bert.",
        fields=_bert_fields(30522, pad_id=0),
        backbone=_BACKBONE,
        layer_prefix="encoder.layer.{}.",
        block=_BLOCK,
        heads={
            "plain": HeadNames("BertModel", _POOLER),
            "masked": HeadNames("BertForMaskedLM", _BERT_MASKED_LM),
            "next": HeadNames("BertForNextSentencePrediction", _BERT_NEXT),
            "pretraining": HeadNames("BertForPreTraining", _BERT_MASKED_LM + _BERT_NEXT),
            "label": HeadNames(
                "BertForSequenceClassification",
                (*_POOLER, ("classifier", "classifier")),
                dropout_field="classifier_dropout",
            ),
            "token": HeadNames(
                "BertForTokenClassification", (("classifier", "classifier"),), dropout_field="classifier_dropout"
            ),
            "span": HeadNames("BertForQuestionAnswering", (("classifier", "qa_outputs"),)),
        },
        tied_copies={
            "token_embedding.weight": "cls.predictions.decoder.weight",
            "mlm_head_bias": "cls.predictions.decoder.bias",
        },
    ),
    "distilbert": EncoderType(
        prefix="distilbert.",
        fields=_DISTIL_FIELDS,
        backbone=_DISTIL_BACKBONE,
        layer_prefix="transformer.layer.{}.",
        block=_DISTIL_BLOCK,
        heads={
            "plain": HeadNames("DistilBertModel"),
            "masked": HeadNames("DistilBertForMaskedLM", _DISTIL_MASKED_LM),
            "label": HeadNames(
                "DistilBertForSequenceClassification",
                (("pooler", "pre_classifier"), ("classifier", "classifier")),
                dropout_field="seq_classif_dropout",
                default_dropout=0.2,
            ),
            "token": HeadNames(
                "DistilBertForTokenClassification", (("classifier", "classifier"),), dropout_field="dropout"
            ),
            "span": HeadNames(
                "DistilBertForQuestionAnswering",
                (("classifier", "qa_outputs"),),
                dropout_field="qa_dropout",
                default_dropout=0.1,
            ),
        },
        tied_copies={"token_embedding.weight": "vocab_projector.weight"},
        fixed_settings={"norm_eps": 1e-12, "num_token_types": 0},
        label_settings={"pooler_activation": "relu"},
    ),
    "roberta": _roberta("Roberta", 50265),
    "xlm-roberta": _roberta("XLMRoberta", 30522),
    "big_bird": _big_bird(),
    "electra": _electra(),
    "albert": _albert(),
    "modernbert": _modernbert(),
    **CAUSAL_ENCODER_TYPES,
}
