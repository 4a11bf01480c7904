"""Functions that the model calls."""

import torch
from torch.nn import functional


def activate(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x)


def gate(x: torch.Tensor, share: float) -> torch.Tensor:
    return x * torch.tanh(x) * share
