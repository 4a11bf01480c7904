"""Modules of torch: parameters and buffers that are one tensor in two places."""

from __future__ import annotations

from tests.keys.cases.case import Case, mutations, values

SHARING = """
import types
import torch
from torch import nn
def ones(**attributes):
    made = nn.Parameter(torch.ones(2))
    vars(made).update(attributes)
    return made
class Part(nn.Module):
    def __init__(self, *parameters, buffers=()):
        super().__init__()
        for number, parameter in enumerate(parameters):
            self.register_parameter(f"p{number}", parameter)
        for number, buffer in enumerate(buffers):
            self.register_buffer(f"b{number}", buffer)
def inside(is_shared):
    one = ones()
    return Part(one, one if is_shared else ones())
def buffers(is_shared):
    one = torch.zeros(2)
    return Part(buffers=(one, one if is_shared else torch.zeros(2)))
def across(is_shared):
    one = ones()
    return nn.Sequential(Part(one), nn.Sequential(Part(one if is_shared else ones())))
def of_three(*numbers):
    tensors = [ones(), ones()]
    return nn.Sequential(*(Part(tensors[number]) for number in numbers), Part(None))
def pair(is_shared):
    one = ones()
    return Part(one), Part(one if is_shared else ones())
def member(is_shared):
    one = ones()
    return [Part(one), types.SimpleNamespace(parts={Part(one if is_shared else ones())})]
def between(is_shared):
    one, two = pair(is_shared)
    def kernel(x):
        return one, two
    return kernel
def marked(is_shared):
    one = ones(tile=1)
    return Part(one, one if is_shared else ones(tile=1))
module = across(False)
def kernel(x):
    return module(x)
"""

CASES: list[Case] = [
    *values(
        "torch shared",
        "change",
        SHARING,
        """
        inside(True) || inside(False)
        buffers(True) || buffers(False)
        across(True) || across(False)
        of_three(0, 0, 1) || of_three(0, 1, 1)
        of_three(0, 0, 1) || of_three(0, 1, 0)
        of_three(0, 0, 1) || of_three(0, 0, 0)
        pair(True) || pair(False)
        member(True) || member(False)
        marked(True) || marked(False)
        hash_function(between(True)) || hash_function(between(False))
        """,
        "torch",
    ),
    *values(
        "torch shared alike",
        "same",
        SHARING,
        """
        inside(True) || inside(True)
        across(True) || across(True)
        of_three(0, 0, 1) || of_three(1, 1, 0)
        member(True) || member(True)
        [across(False)] || [across(False)]
        """,
        "torch",
    ),
    *mutations("torch shared later", "change", SHARING, "module[1][0].p0 = module[0].p0", needs="torch"),
]
