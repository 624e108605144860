"""Gradients of predictions by their input embeddings, in torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.interpret.explainable import Explainable
from regard.packed_tokens import Ids, Tokens

Floats = NDArray[np.float64]
BATCH_TOKENS = 4096  # computed together


@torch.no_grad()
def torch_scores(prediction: Explainable, rows: Sequence[Ids]) -> Floats:
    """Log-probability of a prediction for each row of tokens, by the torch model."""
    return prediction.logprobs(Tokens.from_rows(list(rows))).double().cpu().numpy()


@contextmanager
def replace_embeddings(embedding: nn.Embedding, vectors: Tensor) -> Iterator[None]:
    """Let the next call of an embedding, by this thread, return these vectors."""
    pending = [vectors]
    thread = threading.get_ident()

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        is_awaited = pending and threading.get_ident() == thread
        return pending.pop().to(output.dtype) if is_awaited else None

    handle = embedding.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def path_gradients(
    prediction: Explainable, fractions: Sequence[float], baseline_ids: Ids, *, times_input: bool = False
) -> Floats:
    """Gradient at these fractions of the path from baseline to input, averaged, times the path; summed per token.

    With `times_input`, it is multiplied by the input embedding instead.
    """
    weight = prediction.embedding.weight
    device = weight.device

    def embed(ids: Ids) -> Tensor:
        return weight.detach()[torch.from_numpy(ids.astype(np.int64)).to(device)].float()

    inputs = embed(prediction.input_ids)  # [tokens, embedding]
    baseline = embed(baseline_ids)
    path = inputs if times_input else inputs - baseline
    num_tokens = len(prediction.input_ids)
    totals = torch.zeros(num_tokens, device=device)
    batch_size = max(1, BATCH_TOKENS // num_tokens)
    for start in range(0, len(fractions), batch_size):
        batch = torch.tensor(fractions[start : start + batch_size], device=device)[:, None, None]
        vectors = (baseline + batch * (inputs - baseline)).flatten(0, 1).requires_grad_()  # [batch · tokens, embedding]
        tokens = Tokens.from_rows([prediction.input_ids] * len(batch))
        with torch.enable_grad(), replace_embeddings(prediction.embedding, vectors):
            logprobs = prediction.logprobs(tokens)
            (gradient,) = torch.autograd.grad(logprobs.sum(), vectors)
        totals += (gradient.view(len(batch), *path.shape) * path).sum(-1).sum(0)
    return (totals / len(fractions)).double().cpu().numpy()
