"""`TrainingLoop`: what a custom training loop shares with `regard train`: noise, schedule, clipping, AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.attention.dropout import Noise
from regard.config.training import TrainingConfig
from regard.errors import TrainingError, UsageError
from regard.nn.sites import name_sites
from regard.training.schedule import learning_rate


class TrainingLoop:
    """Iterates over the updates of a training; each update has its noise and its learning rate.

    The rate warms up and falls by the schedule, gradients are clipped. `optimizer` replaces AdamW: the loop sets its
    learning rate alone. Iterating names the model's sites by their places (`name_sites`); the model is in training mode
    meanwhile, and in evaluation mode at the end.

    >>> model = torch.nn.Linear(1, 1)
    >>> loop = TrainingLoop(model, steps=200, learning_rate=0.1)
    >>> for noise in loop:
    ...     values = torch.rand(8, 1, generator=torch.Generator().manual_seed(noise.step))
    ...     loop.update((model(values) - 3 * values).square().mean())
    >>> loop.step, model(torch.tensor([[2.0]])).item() > 5
    (200, True)
    """

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        *,
        learning_rate: float = 1e-3,
        schedule: str = "cosine",
        warmup_steps: int = 0,
        max_gradient_norm: float = 1.0,
        seed: int = 1,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """`schedule`: cosine, root, inverse_sqrt or constant. `warmup_steps` 0: 5 % of the steps."""
        self.model = model
        self.config = TrainingConfig(
            steps=steps,
            optimizer="adamw",
            learning_rate=learning_rate,
            schedule=schedule,
            warmup_steps=warmup_steps,
            max_gradient_norm=max_gradient_norm,
            seed=seed,
        )
        self.optimizer = _build_adamw(model, self.config) if optimizer is None else optimizer
        self.step = 0  # updates so far

    def __iter__(self) -> Iterator[Noise]:
        """Yield the noise of each update that is left."""
        name_sites(self.model)
        self.model.train()
        while self.step < self.config.steps:
            step = self.step
            yield Noise(self.config.seed, step)
            if self.step == step:
                raise UsageError(
                    f"step {step} of the training loop made no update: call update(loss) once in each step"
                )
        self.model.eval()

    def update(self, loss: Tensor) -> None:
        """Differentiate the loss, a mean over predictions or rows, and update the weights."""
        loss.backward()
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.config.max_gradient_norm or math.inf)
        if not (math.isfinite(loss.item()) and math.isfinite(norm.item())):
            self.optimizer.zero_grad()
            raise TrainingError(
                f"step {self.step}: the loss ({loss.item():g}) or the gradient norm ({norm.item():g}) is not finite; "
                "the weights were not changed. Lower the learning rate, or look at the batch"
            )
        progress = self.step / self.config.steps
        rate = learning_rate(self.config, self.config.learning_rate, self.step, progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1


def _build_adamw(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices alone."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trainable if parameter.dim() >= 2]
    vectors = [parameter for parameter in trainable if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.adam_beta1, config.adam_beta2))
