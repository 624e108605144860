"""Hugging Face's encoders and ours, both ways: config fields and weights by the rows of `hf_encoder_kinds`.

What no row can express keeps our own names under a type of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.checkpoint.hf.adapter import ACTIVATIONS, field_value, with_float32_dtype
from regard.checkpoint.hf.encoder_types import KINDS, EncoderType
from regard.checkpoint.hf.modernbert import read_layers, write_layers
from regard.checkpoint.weights import WeightReport
from regard.config.models import ENCODER_HEADS, BertConfig
from regard.errors import CheckpointError, ConfigError

OWN = "regard-bert"
TASKS = {  # head → what it is for
    "plain": "embed",
    "masked": "fill",
    "next": "embed",
    "pretraining": "fill",
    "label": "classify",
    "token": "tag",
    "span": "answer",
}
_LARGEST = 2**24  # of any size
_SIGHTS = {"block_sparse": "blocks", "original_full": "full"}  # their name of who looks at whom, ours
# what an absent field means; else as in the backbone
_HEAD_DROPOUT = {"seq_classif_dropout": 0.2, "qa_dropout": 0.1, "classifier_dropout_prob": 0.1}


def is_encoder(fields: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is of a type that is read here."""
    kind = fields.get("model_type")
    return isinstance(kind, str) and (kind in KINDS or kind == OWN)


@dataclass(frozen=True)
class LabelNames:
    """The names of a head's labels, and how they are meant."""

    names: tuple[str, ...] = ()
    problem_type: str = ""  # single_label_classification, multi_label_classification, regression; nothing where unsaid


def read_labels(fields: Mapping[str, Any], where: str) -> LabelNames:
    """Return the labels that a `config.json` names; two without names where it has none.

    >>> read_labels({"id2label": {"1": "good", "0": "bad"}}, "config.json").names
    ('bad', 'good')
    """
    named = fields.get("id2label")
    if named is None:
        count = fields.get("num_labels", fields.get("_num_labels", 2))
        if type(count) is not int or not 1 <= count <= _LARGEST:
            raise CheckpointError(f"{where}: num_labels must be a whole number from 1, not {count!r:.60}")
        named = {str(number): f"LABEL_{number}" for number in range(count)}
    problem = fields.get("problem_type") or ""
    try:
        numbered = {int(number): name for number, name in named.items()}
        names = tuple(numbered[number] for number in range(len(numbered)))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{where}: id2label must name the labels 0, 1, 2, …, not {named!r:.60}") from None
    if not names or not all(isinstance(name, str) for name in names) or not isinstance(problem, str):
        raise CheckpointError(f"{where}: id2label and problem_type must be texts, not {named!r:.60}")
    return LabelNames(names, problem)


def read_config(fields: Mapping[str, Any], head: str, labels: int, where: str) -> BertConfig:
    """Return our config of a `config.json`, with a head.

    >>> read_config({"model_type": "roberta", "max_position_embeddings": 514}, "plain", 0, "config.json").max_positions
    512
    """
    name = str(fields.get("model_type"))
    if name not in KINDS:
        known = ", ".join(KINDS)
        raise CheckpointError(f"{where}: a model of type {name!r:.60}, which is not read as an encoder: {known} are")
    kind = KINDS[name]
    for refused in ("is_decoder", "add_cross_attention"):
        if fields.get(refused):
            raise CheckpointError(f"{where}: {refused} is true: only encoders are read")
    if fields.get("use_bias") is False:
        raise CheckpointError(f"{where}: use_bias is false: models without biases of query, key and value are not read")
    scheme = fields.get("position_embedding_type", "absolute")
    if scheme != "absolute":
        raise CheckpointError(f"{where}: position_embedding_type is {scheme!r:.60}: only 'absolute' is read")
    if fields.get("inner_group_num", 1) != 1:
        raise CheckpointError(f"{where}: inner_group_num is {fields['inner_group_num']!r:.60}: only 1 is read")
    if fields.get("num_hidden_groups") == 0:
        raise CheckpointError(f"{where}: num_hidden_groups is 0: layers need at least one group of weights")
    if head not in kind.heads:
        raise CheckpointError(f"{where}: {name} models have no {head} head; they have {', '.join(kind.heads)}")
    changes: dict[str, Any] = {
        ours: field_value(fields, theirs, default, where) for theirs, ours, default in kind.fields
    }
    changes |= read_layers(fields, where) if kind.layered else {}
    changes |= {**kind.fixed, "head": head, "num_labels": labels if head in ("label", "token") else 0}
    changes["activation"] = dict(ACTIVATIONS).get(changes["activation"], changes["activation"])
    if "attention" in changes:
        changes["attention"] = _SIGHTS.get(changes["attention"], changes["attention"])
    if kind.places_after_pad:
        changes["position_offset"] = changes["pad_id"] + 1
        changes["max_positions"] -= changes["position_offset"]
    if changes.get("embedding_size") == changes["hidden_size"] and not kind.always_widened:
        changes["embedding_size"] = 0
    if name == "electra" and head == "masked" and changes["activation"] != "gelu":
        raise CheckpointError(f"{where}: hidden_act is not 'gelu', with which alone electra scores words")
    changes["pooler"] = any(ours == "pooler" for ours, _ in kind.heads["plain"].names)
    changes["classifier_dropout"] = _head_dropout(fields, kind, head, changes["dropout"], where)
    if head == "label":
        changes |= {ours: changes.get(value, value) for ours, value in kind.label_pooling.items()}
        changes["pooler_dropout"] = changes["classifier_dropout"] if kind.pooler_drops else 0.0
    try:
        config = BertConfig().override(changes)
    except (ConfigError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: {error}") from None
    sizes = (
        config.vocab_size,
        config.hidden_size,
        config.max_positions,
        config.stack.feed_forward_size,
        config.num_token_types,
    )
    if max(sizes) > _LARGEST or config.vocab_size < 1:
        raise CheckpointError(f"{where}: sizes beyond any model's: {sizes}")
    return config


def _head_dropout(fields: Mapping[str, Any], kind: EncoderType, head: str, usual: float, where: str) -> float:
    name = kind.heads[head].dropout
    return float(field_value(fields, name, _HEAD_DROPOUT.get(name, usual), where)) if name else 0.0


def write_config(
    config: BertConfig, name: str, labels: LabelNames, kept: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of `config.json`; `kept` is that of the folder that the model came from, written back."""
    if name == OWN:
        own: dict[str, Any] = {"model_type": OWN, "architectures": ["RegardEncoder"], "regard": config.to_dict()}
        return own | _told_labels(config, labels)
    kind = KINDS[name]
    values = _flat(config)
    values["max_positions"] += values["position_offset"]
    values["embedding_size"], values["layer_groups"] = (
        config.embedding_dim,
        config.layer_groups or config.stack.num_layers,
    )
    values["activation"] = next(theirs for theirs, ours in ACTIVATIONS if ours == values["activation"])
    values["attention"] = next(theirs for theirs, ours in _SIGHTS.items() if ours == values["attention"])
    before = dict(kept or {}) if (kept or {}).get("model_type") == name else {}
    made = {**(before or kind.written), "model_type": name, "architectures": [kind.heads[config.head].architecture]}
    for theirs, ours, default in kind.fields:
        if not before or _differs(before, theirs, default, values[ours]):
            made[theirs] = values[ours]
    told = write_layers(config, values["activation"]) if kind.layered else {}
    if told and (not before or _layers(before) != _layers(told | {"num_hidden_layers": config.stack.num_layers})):
        made |= told
    own_dropout = kind.heads[config.head].dropout
    if own_dropout and _head_dropout(made, kind, config.head, config.dropout, "") != config.classifier_dropout:
        made[own_dropout] = config.classifier_dropout
    return with_float32_dtype(made | _told_labels(config, labels, before))


def _layers(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    return (fields.get("num_hidden_layers"), *read_layers(fields, "").values())


def _differs(before: Mapping[str, Any], theirs: str, default: Any, value: Any) -> bool:
    found = field_value(before, theirs, default, "")
    spelled = dict(ACTIVATIONS)
    return bool(found != value and (type(found) is not str or spelled.get(found) != spelled.get(value)))


def _told_labels(config: BertConfig, labels: LabelNames, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    if config.head not in ("label", "token"):
        return {}
    if before and read_labels(before, "") == labels:
        return {}
    names = labels.names or tuple(f"LABEL_{number}" for number in range(config.num_labels))
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        **({"problem_type": labels.problem_type} if labels.problem_type else {}),
    }


def _flat(config: BertConfig) -> dict[str, Any]:
    values = config.to_dict()
    stack = values.pop("stack")
    return values | {f"stack.{name}": value for name, value in stack.items()}


def hf_model_type(config: BertConfig, preferred: str = "bert") -> tuple[str, str]:
    """Return the type that a model has in `config.json`, and why if it is our own.

    >>> hf_model_type(BertConfig(vocab_size=9))
    ('bert', '')
    >>> hf_model_type(BertConfig(vocab_size=9, norm="before"))
    ('regard-bert', "no type of theirs has norm 'before'")
    """
    first = ""
    for name in dict.fromkeys((preferred, *KINDS)):
        if name not in KINDS or config.head not in KINDS[name].heads:
            continue
        if KINDS[name].layered and config.positions != KINDS[name].fixed["positions"]:
            continue  # its fields cannot even be read with other sizes of heads
        told = write_config(config, name, LabelNames())
        back = read_config(told, config.head, config.num_labels, "")
        pooler = back.pooler if config.head == "plain" and config.pooler else config.pooler
        idle: dict[str, Any] = {
            "pooler_dropout": config.pooler_dropout,
            "classifier_dropout": config.classifier_dropout,
            "pooler": pooler,
        }
        if config.head != "label":
            idle["pooler_activation"] = config.pooler_activation if not config.has_pooler else back.pooler_activation
        back = back.override(idle)
        if back == config:
            return name, ""
        ours, theirs = _flat(config), _flat(back)
        different = [f"{one} {ours[one]!r}" for one in ours if ours[one] != theirs[one]]
        first = first or f"no type of theirs has {' and '.join(different)}"
    return OWN, first


def detect_head(hf_config: Mapping[str, Any], names: Iterable[str], where: str) -> tuple[str, str]:
    """Return the head that a folder's weights hold, and a note where `config.json` names another one.

    What the weights hold decides; among several heads the one that `architectures` names.
    """
    name = str(hf_config.get("model_type"))
    if name not in KINDS:
        known = ", ".join(KINDS)
        raise CheckpointError(f"{where}: a model of type {name!r:.60}, which is not read as an encoder: {known} are")
    kind = KINDS[name]
    plain = set(_plain(names, kind))
    held = [head for head in ENCODER_HEADS if head in kind.heads and _holds(plain, kind, head)]
    listed = hf_config.get("architectures")
    said = str(listed[0]) if isinstance(listed, list) and listed else ""
    by_class = {row.architecture: head for head, row in kind.heads.items()}
    if said in by_class and by_class[said] in held:
        return by_class[said], ""
    if "label" in held and by_class.get(said) != "label" and "token" in held:
        held.remove("token")  # one output on a pooled state
    found = next(
        (head for head in ("pretraining", "masked", "next", "label", "token", "span") if head in held), "plain"
    )
    if not said:
        return found, ""
    what = "a model without a head" if found == "plain" else f"one with a {found} head"
    if said in by_class:
        return found, f"{where} names {said}, but the weights are those of {what}: it is read as such"
    known = ", ".join(row.architecture for row in kind.heads.values())
    return found, f"{where} names {said}, which is not known here ({known} are): read as {what}"


def _holds(plain: set[str], kind: EncoderType, head: str) -> bool:
    if head == "plain":
        return True
    needed = [name for ours, name in kind.heads[head].names if ours != "masked_output.weight"]
    return all(
        any(one == name.lstrip(".") or one.startswith(f"{name.lstrip('.')}.") for one in plain) for name in needed
    )


def _plain(names: Iterable[str], kind: EncoderType) -> dict[str, str]:
    """Return names in a file without what may vary (the prefix, old spellings of norms), each with the one there."""
    made = {}
    for stored in names:
        plain = stored.removeprefix(kind.prefix)
        for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
            if plain.endswith(old):
                plain = plain.removesuffix(old) + new
        made[plain] = stored
    return made


def weight_names(config: BertConfig, name: str, ours: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return our weight names, each with theirs as new folders have them."""
    if name == OWN:
        return {one: (one,) for one in ours}
    kind = KINDS[name]
    alone = config.head == "plain"  # a bare backbone is saved without its prefix
    prefix = "" if alone else kind.prefix
    modules: dict[str, tuple[str, ...]] = {one: (f"{prefix}{theirs}",) for one, theirs in kind.trunk}
    for layer in range(config.layer_groups or config.stack.num_layers):
        before = f"{prefix}{kind.layer.format(layer)}"
        modules |= {f"stack.blocks.{layer}.{one}": tuple(before + part for part in parts) for one, parts in kind.block}
    for one, theirs in kind.heads[config.head].names:
        modules[one] = (f"{prefix}{theirs[1:]}" if theirs.startswith(".") else theirs,)
    table = {}
    for one in ours:
        module, _, leaf = one.rpartition(".")
        table[one] = modules[one] if one in modules else tuple(f"{part}.{leaf}" for part in modules[module])
    return table


def to_hf_weights(config: BertConfig, model_type: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under their names; fused matrices are split, tied copies left out."""
    written: dict[str, Tensor] = {}
    for ours, theirs in weight_names(config, model_type, weights).items():
        parts = weights[ours].chunk(len(theirs))
        written |= {part_name: part.clone() for part_name, part in zip(theirs, parts, strict=True)}
    if (
        model_type in KINDS
        and not config.tie_embeddings
        and (copy := KINDS[model_type].copies.get("masked_bias"))
        and "masked_bias" in weights
    ):
        written[copy] = weights["masked_bias"].clone()  # of the two, an untied model of theirs uses this one
    for idle in KINDS[model_type].heads[config.head].idle if model_type in KINDS else ():
        layer = f"{KINDS[model_type].prefix}{idle}"
        written[f"{layer}.weight"] = torch.zeros(config.hidden_size, config.hidden_size)
        written[f"{layer}.bias"] = torch.zeros(config.hidden_size)
    return written


class EncoderWeightMatcher:
    """Which of a folder's tensors make up our weights: found by name and shape before any is read."""

    def __init__(
        self,
        config: BertConfig,
        name: str,
        shapes: Mapping[str, tuple[int, ...]],
        expected: Mapping[str, tuple[int, ...]],
        optional: Sequence[str] = (),
        anew: Sequence[str] = (),
    ) -> None:
        """Match the file's `shapes` with the `expected` ones of our weights, or raise `CheckpointError`.

        Weights whose names begin with one of `optional` are made anew where they are missing, those with one of `anew`
        in any case.
        """
        self.config, self.report = config, WeightReport()
        self._written = weight_names(config, name, expected)
        kind = KINDS.get(name)
        self._stored = {one: one for one in shapes} if kind is None else _plain(shapes, kind)
        prefix = "" if kind is None else kind.prefix
        self._table = {
            ours: tuple(part.removeprefix(prefix) for part in theirs) for ours, theirs in self._written.items()
        }
        self._copies = {
            ours: copy
            for ours, copy in ({} if kind is None else kind.copies).items()
            if copy in self._stored and (config.tie_embeddings or ours != "words.weight")
        }
        self._read_copies(expected)
        self.fresh: list[str] = []
        self._compare(shapes, expected, tuple(optional), tuple(anew))
        self._sort(kind)

    def _read_copies(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Let a tied copy stand for a weight that is not there itself; an untied bias is the one beside its matrix."""
        for ours, copy in self._copies.items():
            if ours in expected and (self._table[ours][0] not in self._stored or not self.config.tie_embeddings):
                self._table[ours] = (copy,)

    def _compare(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        expected: Mapping[str, tuple[int, ...]],
        optional: tuple[str, ...],
        anew: tuple[str, ...],
    ) -> None:
        lost = []
        for ours, (rows, *rest) in expected.items():
            theirs = self._table[ours]
            part = (rows // len(theirs), *rest)
            missing = [one for one in theirs if one not in self._stored]
            if ours.startswith(anew) or (missing and ours.startswith(optional)):
                self.fresh.append(ours)
                self.report.missing += self._written[ours]
                continue
            lost += [written for written, one in zip(self._written[ours], theirs, strict=True) if one in missing]
            wrong = [one for one in theirs if one in self._stored and shapes[self._stored[one]] != part]
            if wrong:
                named = self._stored[wrong[0]]
                raise CheckpointError(f"{named} has shape {list(shapes[named])}, config.json asks for {list(part)}")
        if lost:
            raise CheckpointError(f"{len(lost)} weights are missing, {', '.join(lost[:5])} among them")

    def _sort(self, kind: EncoderType | None) -> None:
        """Fill the report's lists."""
        meant = {
            plain: written
            for ours, theirs in self._table.items()
            if ours not in self.fresh
            for plain, written in zip(theirs, self._written[ours], strict=True)
        }
        for plain, stored in self._stored.items():
            if plain in meant and stored == meant[plain]:
                self.report.loaded.append(stored)
            elif plain in meant:
                self.report.renamed[stored] = meant[plain]
            else:
                self.report.ignored.append(stored)
                self.report.reasons[stored] = self._reason(plain, kind)

    def _reason(self, plain: str, kind: EncoderType | None) -> str:
        """Say why a tensor of the file is not used."""
        if plain.endswith(("position_ids", "token_type_ids")):
            return "a buffer, not a weight"
        if plain in self._copies.values():
            return "a tied copy"
        for head, row in ({} if kind is None else kind.heads).items():
            if any(plain == name.lstrip(".") or plain.startswith(f"{name.lstrip('.')}.") for _, name in row.names):
                return f"of the {row.architecture} head" if head != "plain" else "the pooler, which this head lacks"
        return "not a weight that this type of model has"

    @property
    def tensors_to_read(self) -> list[str]:
        """The names, as in the file, of the tensors to read."""
        parts = [part for ours, theirs in self._table.items() if ours not in self.fresh for part in theirs]
        return [self._stored[name] for name in dict.fromkeys([*parts, *self._copies.values()])]

    def assemble(self, tensors: Mapping[str, Tensor], fresh: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our weights, in float32, from the tensors read under their names and fresh ones for the rest."""
        plain = {name: tensors[stored].float() for name, stored in self._stored.items() if stored in tensors}
        made = {
            ours: fresh[ours] if ours in self.fresh else torch.cat([plain[part] for part in theirs])
            for ours, theirs in self._table.items()
        }
        for ours, copy in self._copies.items():
            if ours in made and not torch.equal(plain[copy], made[ours]):
                kept = self._written[ours][0]
                self.report.notes.append(f"{copy} differs from {kept} although they are tied: {kept} is used")
        return made
