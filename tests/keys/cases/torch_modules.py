"""Modules of torch: parameters and buffers that are one tensor in two places, and modules that keep more than those."""

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

RECURRENT = """
import copy, pickle
import torch
from torch import nn
def filled(kind, *sizes, weight=1.0, **options):
    made = kind(*sizes, **options)
    for parameter in made.parameters():
        nn.init.constant_(parameter, weight)
    return made
lstm = filled(nn.LSTM, 2, 3)
class Own(nn.GRU):
    pass
def kernel(x):
    return lstm(x)
"""

CASES: list[Case] = [
    *values(
        "torch recurrent",
        "change",
        RECURRENT,
        """
        filled(nn.LSTM, 2, 2) || filled(nn.GRU, 2, 2)
        filled(nn.LSTM, 2, 2) || filled(nn.LSTM, 2, 2, weight=2.0)
        filled(nn.GRU, 2, 2) || filled(nn.GRU, 2, 2, bidirectional=True)
        filled(nn.GRU, 2, 2) || filled(Own, 2, 2)
        filled(nn.RNN, 2, 2) || filled(nn.RNN, 2, 2, nonlinearity="relu")
        filled(nn.MultiheadAttention, 4, 2) || filled(nn.MultiheadAttention, 4, 1)
        filled(nn.TransformerEncoderLayer, 4, 2, 8) || filled(nn.TransformerEncoderLayer, 4, 2, 8, norm_first=True)
        filled(nn.Conv2d, 1, 1, 3) || filled(nn.Conv2d, 1, 1, 3, padding=1)
        filled(nn.BatchNorm2d, 2) || filled(nn.BatchNorm2d, 2, momentum=0.2)
        """,
        "torch",
    ),
    *values(
        "torch recurrent alike",
        "same",
        RECURRENT,
        """
        filled(nn.LSTM, 2, 3) || lstm
        lstm || copy.deepcopy(lstm)
        lstm || pickle.loads(pickle.dumps(lstm))
        filled(Own, 2, 2) || filled(Own, 2, 2)
        """,
        "torch",
    ),
    *mutations(
        "torch recurrent used",
        "same",
        RECURRENT,
        """
        lstm(torch.ones(1, 1, 2))
        lstm.flatten_parameters()
        """,
        needs="torch",
    ),
    *mutations("torch recurrent changed", "change", RECURRENT, "lstm.weight_ih_l0.data[0] = 5", needs="torch"),
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
