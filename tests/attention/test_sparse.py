"""Block-sparse attention: equal to dense attention with its mask, forwards and backwards, alone and in company."""

from __future__ import annotations

import math

import pytest
import torch

from regard.attention.attend import attend
from regard.attention.masks import BoundMask
from regard.attention.sparse import BlockSparseMask, LocalMask, big_bird
from regard.attention.trace import trace


def heads(longest: int, count: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(longest)
    return [torch.randn(count, 2, longest, 6, generator=generator, dtype=torch.float64) * 2 for _ in range(3)]


def plainly(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: BlockSparseMask) -> torch.Tensor:
    """Full attention with what the mask adds; places after a row's end are zero."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + mask.additive(query.dtype)
    mixed = torch.softmax(scores, dim=-1) @ value
    for row, length in enumerate(mask.lengths):
        mixed[row, :, length:] = 0
    return mixed


@pytest.mark.parametrize("length", [1, 4, 7, 8, 23, 24, 61])
@pytest.mark.parametrize(("drawn", "repeats"), [(0, 0), (2, 0), (0, 3)])
def test_it_is_dense_attention_with_its_mask(length: int, drawn: int, repeats: int) -> None:
    mask = BlockSparseMask(big_bird(drawn, seed=3), 4, torch.tensor([length]), repeats=repeats)
    given = heads(length)
    torch.testing.assert_close(attend(*given, mask=mask), plainly(*given, mask), rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_dense_attention() -> None:
    mask = BlockSparseMask(big_bird(1, seed=2), 4, torch.tensor([30, 9]), longest_full=12, repeats=2)
    found, wanted = ([part.clone().requires_grad_() for part in heads(30, 2)] for _ in range(2))
    weight = torch.randn(2, 2, 30, 6, dtype=torch.float64)
    (attend(*found, mask=mask) * weight).sum().backward()
    (plainly(*wanted, mask) * weight).sum().backward()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-8, atol=1e-8)


def test_a_row_in_company_is_the_same_as_alone() -> None:
    lengths = [30, 9, 17]
    given = heads(30, 3)
    together = attend(*given, mask=BlockSparseMask(big_bird(0), 4, torch.tensor(lengths), longest_full=12, repeats=3))
    for row, length in enumerate(lengths):
        mask = BlockSparseMask(big_bird(0), 4, torch.tensor([length]), longest_full=12, repeats=3)
        alone = attend(*(part[row : row + 1, :, :length] for part in given), mask=mask)
        assert torch.equal(together[row : row + 1, :, :length], alone)
        assert not together[row, :, length:].any()


def test_the_pattern_is_the_published_one() -> None:
    layout = BlockSparseMask(big_bird(0), 2, torch.tensor([16]), repeats=3).block_bias(16)
    assert layout is not None
    seen = [[key for key in range(8) if layout[query, key] > -torch.inf] for query in range(8)]
    everything = list(range(8))
    assert seen[0] == seen[7] == everything
    assert seen[1] == [0, 1, 2, 7] and seen[6] == [0, 5, 6, 7] and seen[3] == [0, 2, 3, 4, 7]
    assert layout[3, 0].item() == pytest.approx(math.log(4)) and layout[0, 0] == layout[3, 7] == 0


def test_short_rows_look_everywhere() -> None:
    mask = BlockSparseMask(big_bird(0), 4, torch.tensor([20]), longest_full=20)
    given = heads(20)
    torch.testing.assert_close(attend(*given, mask=mask), attend(*given), rtol=1e-9, atol=1e-9)
    assert mask.block_bias(20) is None and mask.block_bias(21) is not None


def test_watching_shows_its_weights_and_changes_nothing() -> None:
    mask, given = BlockSparseMask(big_bird(0), 4, torch.tensor([30]), repeats=3), heads(30)
    plain = attend(*given, mask=mask, site="here")
    with trace("here", full_precision=True) as seen:
        watched = attend(*given, mask=mask, site="here")
    assert torch.equal(plain, watched)
    weights = torch.from_numpy(seen["here"].weights)
    torch.testing.assert_close((weights.double() @ given[2]), plain, rtol=1e-4, atol=1e-4)
    assert str(mask) == "blocks(window(1) | global_tokens(0, -1), size=4) & padding()"


def test_no_weights_of_all_pairs_are_ever_made() -> None:
    """Memory is counted in numbers: the largest tensor grows with the length, not with its square."""

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.most = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
            made = function(*arguments, **(options or {}))
            for one in made if isinstance(made, tuple | list) else (made,):
                if isinstance(one, torch.Tensor):
                    self.most = max(self.most, one.untyped_storage().nbytes())
            return made

    sizes = []
    for length in (512, 2048):
        given = [part.float() for part in heads(length)]
        with Largest() as counted:
            attend(*given, mask=BlockSparseMask(big_bird(0), 16, torch.tensor([length]), repeats=3))
        sizes.append(counted.most)
    assert sizes[1] <= 4.5 * sizes[0]


@pytest.mark.parametrize("reach", [1, 5, 40])
@pytest.mark.parametrize("learns", [False, True])
def test_near_attention_is_dense_attention_with_its_mask(reach: int, learns: bool) -> None:
    lengths = torch.tensor([300, 7, 131])
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(3, 2, 300, 8, generator=generator, requires_grad=learns) for _ in range(3))
    near = LocalMask(reach, lengths, 300)
    dense = BoundMask(near.mask, near.query, near.key)
    assert not near.is_full
    real = (torch.arange(300) < lengths[:, None])[:, None, :, None]  # places after a row's end are nobody's
    with torch.set_grad_enabled(learns):
        found, wanted = (attend(query, key, value, mask=mask) * real for mask in (near, dense))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    if learns:
        gradients = [torch.autograd.grad(mixed.square().sum(), [query, key, value]) for mixed in (found, wanted)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_near_attention_makes_nothing_as_large_as_the_row_is_long_squared() -> None:
    near = LocalMask(64, torch.tensor([8192]), 8192)
    assert max(part.dense.numel() for _, _, part in near.chunks) == 128 * 256
    assert "dense" not in vars(near)
    assert LocalMask(64, torch.tensor([40, 40]), 40).is_full
    assert not LocalMask(64, torch.tensor([40, 20]), 40).is_full
