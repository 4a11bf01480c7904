"""Random generators of numpy and torch: they count by what they will give."""

from __future__ import annotations

from tests.keys.cases.case import Case, mutations, values

NUMPY = """
import copy, pickle
import numpy as np
def drawn(generator, count=1):
    for _ in range(count):
        generator.integers(9)
    return generator
def spawned(made, count=1):
    made.spawn(count)
    return made
def shared(is_one):
    bits = np.random.PCG64(1)
    return [np.random.Generator(bits), np.random.Generator(bits if is_one else np.random.PCG64(1))]
class Own(np.random.PCG64):
    state = None
rng = np.random.default_rng(1)
legacy = np.random.RandomState(1)
def kernel(x):
    return rng.normal(), legacy.rand()
"""
TORCH = """
import torch
def seeded(seed, count=0):
    made = torch.Generator().manual_seed(seed)
    torch.rand(count, generator=made)
    return made
class Own(torch.Generator):
    pass
generator = seeded(1)
def kernel(x):
    return torch.rand(1, generator=generator)
"""

CASES: list[Case] = [
    *values(
        "numpy generator",
        "change",
        NUMPY,
        """
        np.random.default_rng(1) || np.random.default_rng(2)
        np.random.default_rng(1) || drawn(np.random.default_rng(1))
        np.random.default_rng(1) || drawn(np.random.default_rng(1), 2)
        np.random.default_rng(1) || spawned(np.random.default_rng(1))
        np.random.default_rng(1) || np.random.PCG64(1)
        np.random.default_rng(1) || np.random.Generator(np.random.MT19937(1))
        np.random.PCG64(1) || np.random.PCG64DXSM(1)
        np.random.PCG64(1) || Own(1)
        Own(1) || Own(2)
        np.random.MT19937(1) || np.random.MT19937(2)
        np.random.Philox(1) || np.random.Philox(2)
        np.random.SFC64(1) || np.random.SFC64(2)
        np.random.SeedSequence(1) || np.random.SeedSequence(2)
        np.random.SeedSequence(1) || np.random.SeedSequence(1, spawn_key=(1,))
        np.random.SeedSequence(1) || np.random.SeedSequence(1, pool_size=8)
        np.random.SeedSequence(1) || spawned(np.random.SeedSequence(1))
        np.random.RandomState(1) || np.random.RandomState(2)
        np.random.RandomState(1) || np.random.default_rng(1)
        shared(True) || shared(False)
        """,
        "numpy",
    ),
    *values(
        "numpy generator alike",
        "same",
        NUMPY,
        """
        np.random.default_rng(1) || np.random.Generator(np.random.PCG64(1))
        np.random.default_rng(1) || pickle.loads(pickle.dumps(np.random.default_rng(1)))
        drawn(np.random.default_rng(1)) || copy.deepcopy(drawn(np.random.default_rng(1)))
        np.random.SFC64(1) || np.random.SFC64(1)
        np.random.RandomState(1) || np.random.RandomState(1)
        np.random.SeedSequence(1).spawn(2) || np.random.SeedSequence(1).spawn(2)
        """,
        "numpy",
    ),
    *mutations("numpy generator used", "change", NUMPY, "rng.normal()\nlegacy.rand()\nlegacy.randn()", needs="numpy"),
    *values(
        "torch generator",
        "change",
        TORCH,
        """
        seeded(1) || seeded(2)
        seeded(1) || seeded(1, 1)
        seeded(1) || Own().manual_seed(1)
        [generator, generator] || [generator, seeded(1)]
        """,
        "torch",
    ),
    *values(
        "torch generator alike", "same", TORCH, "seeded(1) || seeded(1)\nseeded(1) || seeded(1).clone_state()", "torch"
    ),
    *mutations("torch generator used", "change", TORCH, "kernel(1)\ngenerator.manual_seed(2)", needs="torch"),
]
