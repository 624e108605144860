"""Parts for custom models and training loops: attention, blocks, masks, positions, packed batches, noise, loss.

    attend               one function for all attention; traces and ablations apply to every model that calls it
    MultiHeadAttention   padded tensors, with the interface and the weights of torch.nn.MultiheadAttention
    TransformerBlock     packed hidden states, as in Regard's own models; FeedForward is its second half
    causal, padding, window   masks, combined by `&`, `|` and `~`; subclass Mask for others
    build_positions      positions by name: learned, sinusoidal, rotary, alibi, relative; subclass Positions for others
    pack_sequences       token ids or vectors of any lengths, end to end, with their PackedBatch
    Noise                dropout as a function of seed, step and site
    vocabulary_loss      cross-entropy without the logits of all tokens at once
    TrainingLoop         noise, learning-rate schedule, clipping and AdamW for a loop of your own
    name_sites           names for traces: the places of modules in the model

These names are stable; the modules they come from are not. `regard.search` generates with custom models.
"""

from __future__ import annotations

from regard.attention.attend import attend
from regard.attention.dropout import Noise
from regard.attention.masks import Mask, causal, padding, window
from regard.attention.packed_batch import PackedBatch
from regard.attention.positions import Positions, build_positions
from regard.models.layers.losses import vocabulary_loss
from regard.nn.block import FeedForward, TransformerBlock
from regard.nn.multihead import MultiHeadAttention
from regard.nn.packing import pack_sequences
from regard.nn.sites import name_sites
from regard.nn.training_loop import TrainingLoop

__all__ = [
    "FeedForward",
    "Mask",
    "MultiHeadAttention",
    "Noise",
    "PackedBatch",
    "Positions",
    "TrainingLoop",
    "TransformerBlock",
    "attend",
    "build_positions",
    "causal",
    "name_sites",
    "pack_sequences",
    "padding",
    "vocabulary_loss",
    "window",
]
