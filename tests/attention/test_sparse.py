"""Block-sparse and local attention equal dense attention with the same mask, forwards and backwards."""

from __future__ import annotations

import math

import pytest
import torch

from regard.attention.attend import attend
from regard.attention.dropout import Noise
from regard.attention.masks import BoundMask
from regard.attention.sparse import BlockSparseMask, LocalMask, big_bird
from regard.attention.trace import trace


def random_qkv(max_length: int, rows: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(max_length)
    return [torch.randn(rows, 2, max_length, 6, generator=generator, dtype=torch.float64) * 2 for _ in range(3)]


def attend_dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: BlockSparseMask) -> torch.Tensor:
    """Full attention with the additive mask; padding is zero."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + mask.additive(query.dtype)
    context = torch.softmax(scores, dim=-1) @ value
    for row, length in enumerate(mask.lengths):
        context[row, :, length:] = 0
    return context


@pytest.mark.parametrize("length", [1, 4, 7, 8, 23, 24, 61])
@pytest.mark.parametrize(("random_blocks", "extra"), [(0, 0), (2, 0), (0, 3)])
def test_it_is_dense_attention_with_its_mask(length: int, random_blocks: int, extra: int) -> None:
    mask = BlockSparseMask(big_bird(random_blocks, seed=3), 4, torch.tensor([length]), extra_first_block=extra)
    qkv = random_qkv(length)
    torch.testing.assert_close(attend(*qkv, mask=mask), attend_dense(*qkv, mask), rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_dense_attention() -> None:
    lengths = torch.tensor([30, 9])
    mask = BlockSparseMask(big_bird(1, seed=2), 4, lengths, max_full_length=12, extra_first_block=2)
    sparse_qkv = [tensor.clone().requires_grad_() for tensor in random_qkv(30, 2)]
    dense_qkv = [tensor.clone().requires_grad_() for tensor in random_qkv(30, 2)]
    weight = torch.randn(2, 2, 30, 6, dtype=torch.float64)
    (attend(*sparse_qkv, mask=mask) * weight).sum().backward()
    (attend_dense(*dense_qkv, mask) * weight).sum().backward()
    for sparse, dense in zip(sparse_qkv, dense_qkv, strict=True):
        torch.testing.assert_close(sparse.grad, dense.grad, rtol=1e-8, atol=1e-8)


def test_a_sequence_in_a_batch_is_the_same_as_alone() -> None:
    lengths = [30, 9, 17]
    qkv = random_qkv(30, 3)
    batch_mask = BlockSparseMask(big_bird(0), 4, torch.tensor(lengths), max_full_length=12, extra_first_block=3)
    together = attend(*qkv, mask=batch_mask)
    for row, length in enumerate(lengths):
        mask = BlockSparseMask(big_bird(0), 4, torch.tensor([length]), max_full_length=12, extra_first_block=3)
        alone = attend(*(tensor[row : row + 1, :, :length] for tensor in qkv), mask=mask)
        assert torch.equal(together[row : row + 1, :, :length], alone)
        assert not together[row, :, length:].any()


def test_dropout_drops_the_weights_of_long_and_of_short_sequences() -> None:
    lengths = torch.tensor([200, 40])
    mask = BlockSparseMask(big_bird(1, seed=2), 8, lengths, max_full_length=48, extra_first_block=1)
    query, key, _ = random_qkv(200, 2)
    value = torch.ones(2, 2, 200, 1, dtype=torch.float64)  # the context is the sum of the weights that remain

    def sums(rate: float, noise: Noise | None) -> torch.Tensor:
        return attend(0 * query, key, value, mask=mask, dropout=rate, noise=noise, site="s")

    plain = sums(0.5, None)
    assert torch.equal(plain, sums(0.0, Noise(1, 1)))
    dropped = sums(0.5, Noise(1, 1))
    assert torch.equal(dropped, sums(0.5, Noise(1, 1)))
    assert not torch.equal(dropped, sums(0.5, Noise(1, 2)))
    for row, length in enumerate(lengths.tolist()):
        row_sums = dropped[row, :, :length]
        assert abs(row_sums.mean() - 1) < 0.03
        assert row_sums.std() > 0.05
        assert not torch.equal(row_sums[0], row_sums[1]), "heads are dropped alike"
        assert not dropped[row, :, length:].any()
    rows = torch.unique(dropped[0, 0, 8:-8, 0].view(-1, 8), dim=0)
    assert len(rows) == 23, "groups of blocks are dropped alike"


def test_the_pattern_is_the_published_one() -> None:
    bias = BlockSparseMask(big_bird(0), 2, torch.tensor([16]), extra_first_block=3).block_bias(16)
    assert bias is not None
    key_blocks = [[key for key in range(8) if bias[query, key] > -torch.inf] for query in range(8)]
    all_blocks = list(range(8))
    assert key_blocks[0] == key_blocks[7] == all_blocks
    assert key_blocks[1] == [0, 1, 2, 7] and key_blocks[6] == [0, 5, 6, 7] and key_blocks[3] == [0, 2, 3, 4, 7]
    assert bias[3, 0].item() == pytest.approx(math.log(4)) and bias[0, 0] == bias[3, 7] == 0


def test_short_sequences_have_full_attention() -> None:
    mask = BlockSparseMask(big_bird(0), 4, torch.tensor([20]), max_full_length=20)
    qkv = random_qkv(20)
    torch.testing.assert_close(attend(*qkv, mask=mask), attend(*qkv), rtol=1e-9, atol=1e-9)
    assert mask.block_bias(20) is None and mask.block_bias(21) is not None


def test_a_trace_captures_its_weights_and_changes_nothing() -> None:
    mask = BlockSparseMask(big_bird(0), 4, torch.tensor([30]), extra_first_block=3)
    qkv = random_qkv(30)
    untraced = attend(*qkv, mask=mask, site="site")
    with trace("site", full_precision=True) as captured:
        traced = attend(*qkv, mask=mask, site="site")
    assert torch.equal(untraced, traced)
    weights = torch.from_numpy(captured["site"].weights)
    torch.testing.assert_close((weights.double() @ qkv[2]), untraced, rtol=1e-4, atol=1e-4)
    assert str(mask) == "blocks(window(1) | global_tokens(0, -1), size=4) & padding()"


def test_the_weights_of_all_pairs_never_exist() -> None:
    """The largest tensor in bytes grows with the length, not with its square."""

    class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.num_bytes = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
            outputs = function(*arguments, **(options or {}))
            for output in outputs if isinstance(outputs, tuple | list) else (outputs,):
                if isinstance(output, torch.Tensor):
                    self.num_bytes = max(self.num_bytes, output.untyped_storage().nbytes())
            return outputs

    sizes = []
    for length in (512, 2048):
        qkv = [tensor.float() for tensor in random_qkv(length)]
        with LargestTensor() as largest:
            attend(*qkv, mask=BlockSparseMask(big_bird(0), 16, torch.tensor([length]), extra_first_block=3))
        sizes.append(largest.num_bytes)
    assert sizes[1] <= 4.5 * sizes[0]


@pytest.mark.parametrize("window_size", [1, 5, 40])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_local_attention_is_dense_attention_with_its_mask(window_size: int, requires_grad: bool) -> None:
    lengths = torch.tensor([300, 7, 131])
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(3, 2, 300, 8, generator=generator, requires_grad=requires_grad) for _ in range(3))
    local = LocalMask(window_size, lengths, 300)
    dense = BoundMask(local.mask, local.query, local.key)
    assert not local.is_full
    is_token = (torch.arange(300) < lengths[:, None])[:, None, :, None]  # padding may differ
    with torch.set_grad_enabled(requires_grad):
        local_context, dense_context = (attend(query, key, value, mask=mask) * is_token for mask in (local, dense))
    torch.testing.assert_close(local_context, dense_context, atol=1e-5, rtol=1e-5)
    if requires_grad:
        local_gradients = torch.autograd.grad(local_context.square().sum(), [query, key, value])
        dense_gradients = torch.autograd.grad(dense_context.square().sum(), [query, key, value])
        for local_gradient, dense_gradient in zip(local_gradients, dense_gradients, strict=True):
            torch.testing.assert_close(local_gradient, dense_gradient, atol=1e-4, rtol=1e-4)


def test_local_attention_needs_no_mask_of_all_pairs() -> None:
    mask = LocalMask(64, torch.tensor([8192]), 8192)
    assert max(chunk_mask.dense.numel() for _, _, chunk_mask in mask.chunks) == 128 * 256
    assert "dense" not in vars(mask)
    assert LocalMask(64, torch.tensor([40, 40]), 40).is_full
    assert not LocalMask(64, torch.tensor([40, 20]), 40).is_full
