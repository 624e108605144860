"""Attention over a set, by hand: vectors U, a query q, softmax(U·q), in several hops with a state that goes along.

A controller asks, takes the mix that it sees, and asks again from what it has become. Any vectors will do: sentences,
regions of a picture, rows of a table.
"""

import torch

from regard import attend, trace
from regard.attention.scores import Dot


def hops(vectors: torch.Tensor, query: torch.Tensor, controller: torch.nn.GRUCell, count: int) -> torch.Tensor:
    """Return the state after `count` looks at a set [n, d], starting from a query [d]."""
    state, memory = query, vectors[None, None]  # one set, one head
    for hop in range(count):
        seen = attend(state.view(1, 1, 1, -1), memory, memory, score=Dot(), site=f"hop.{hop}")
        state = controller(seen.view(1, -1), state.view(1, -1)).view(-1)
    return state


def shown(weights: torch.Tensor) -> str:
    """Return weights as people read them."""
    return " ".join(f"{weight:.3f}" for weight in weights.flatten().tolist())


if __name__ == "__main__":
    torch.manual_seed(1)
    U, q, controller = torch.randn(6, 4), torch.randn(4), torch.nn.GRUCell(4, 4)
    print("softmax(U·q):   ", shown(torch.softmax(U @ q, dim=0)))
    with torch.no_grad(), trace("hop.*", exact=True) as seen:
        state = hops(U, q, controller, 2)
    for hop in range(2):
        print(f"hop {hop} looks at: ", shown(torch.from_numpy(seen[f"hop.{hop}"].weights)))
    print("state after that:", shown(state))
