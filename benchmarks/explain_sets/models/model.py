"""A block of a transformer, small enough to compile in a moment."""

import torch
from parts import activate, gate
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.norm(x)
        y = activate(self.up(y))
        y = self.down(y)
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        return x + gate(y, 0.5)


def score(x: torch.Tensor, y: torch.Tensor, power: float = 2.0) -> torch.Tensor:
    apart = (x - y).abs()
    weight = torch.softmax(apart, dim=-1)
    return (weight * apart**power).sum(-1).sqrt()


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, y.t())
