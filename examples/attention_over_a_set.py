"""Attention over a set of vectors in several hops: a controller attends, updates its state and attends again.

The vectors can be anything: sentences, regions of an image, rows of a table.
"""

import torch

from regard import attend, trace
from regard.attention.scores import Dot

NUM_HOPS = 2


def attend_in_hops(
    vectors: torch.Tensor, query: torch.Tensor, controller: torch.nn.GRUCell, num_hops: int
) -> torch.Tensor:
    """Attend to `vectors` [n, d], first with `query` [d], then with the controller's state; return the last state."""
    memory = vectors[None, None]  # [1 set, 1 head, n, d]
    state = query
    for hop in range(num_hops):
        context = attend(state.view(1, 1, 1, -1), memory, memory, score=Dot(), site=f"hop.{hop}")
        state = controller(context.view(1, -1), state.view(1, -1)).view(-1)
    return state


def format_vector(vector: torch.Tensor) -> str:
    """Format with three decimals, separated by spaces."""
    return " ".join(f"{component:.3f}" for component in vector.flatten().tolist())


if __name__ == "__main__":
    torch.manual_seed(1)
    vectors = torch.randn(6, 4)
    query = torch.randn(4)
    controller = torch.nn.GRUCell(4, 4)
    print("softmax(vectors·query):", format_vector(torch.softmax(vectors @ query, dim=0)))
    with torch.no_grad(), trace("hop.*", full_precision=True) as attention_maps:
        state = attend_in_hops(vectors, query, controller, NUM_HOPS)
    for hop in range(NUM_HOPS):
        print(f"attention of hop {hop}:    ", format_vector(torch.from_numpy(attention_maps[f"hop.{hop}"].weights)))
    print("final state:           ", format_vector(state))
