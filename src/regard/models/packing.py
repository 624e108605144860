"""Weights laid out for use on this processor: made once, forgotten as soon as the weights change."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from regard.blocks.heads import CHUNK
from regard.blocks.packed import Product, can_pack
from regard.models.base import Model


class Packable(Model):
    """A model whose parts can be laid out for fast use."""

    def in_use(self, pack: bool) -> Any:
        """Return the parts that decoding uses; packed, they keep the weights of the moment."""
        raise NotImplementedError

    def pack(self) -> Self:
        """Lay out the weights for fast decoding on this processor; they must not change by hand from now on."""
        with torch.inference_mode(False), torch.no_grad():
            self.__dict__["packed"] = self.in_use(pack=True)
        return self

    def used(self) -> Any:
        """Return the packed parts, or parts that follow the weights."""
        return self.__dict__.get("packed") or self.in_use(pack=False)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Take other weights; what was packed is forgotten."""
        self.__dict__.pop("packed", None)
        return super().load_state_dict(*arguments, **options)

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        self.__dict__.pop("packed", None)
        return super()._apply(*arguments, **options)


def output_product(weight: Tensor, bias: Tensor | None, pack: bool) -> Product:
    """Return the way from hidden states to logits; packed, in whole chunks: what is added is never likely."""
    spare = -len(weight) % CHUNK if pack and can_pack(weight) else 0
    if spare:
        weight = torch.cat([weight, weight.new_zeros(spare, weight.shape[1])])
        given = weight.new_zeros(len(weight) - spare) if bias is None else bias
        bias = torch.cat([given, weight.new_full((spare,), -torch.inf)])
    return Product(weight, bias, pack)
