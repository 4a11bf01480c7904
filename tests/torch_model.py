"""Compiles a small function with torch.compile on the CPU, around an ArtifactStore, and tells what happened as JSON."""

from __future__ import annotations

import json
import sys

import torch
from torch._dynamo.utils import counters

from kcachefs.torch import ArtifactStore


def main(folder: str) -> None:
    with ArtifactStore(folder) as store, store.session("small") as loaded:
        compiled = torch.compile(lambda x: torch.sin(x) * 2 + x.sum())
        result = compiled(torch.arange(8.0)).tolist()
    found = dict(counters["inductor"])
    told = {
        "loaded": loaded,
        "hits": found.get("fxgraph_cache_hit", 0),
        "misses": found.get("fxgraph_cache_miss", 0),
        "result": result,
        "size": ArtifactStore(folder).save("again"),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
