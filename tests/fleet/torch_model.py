"""Compiles a small function with torch.compile on the CPU and tells what its cache found as JSON."""

from __future__ import annotations

import json

import torch
from torch._dynamo.utils import counters


def main() -> None:
    compiled = torch.compile(lambda x: torch.sin(x) * 2 + x.sum())
    result = compiled(torch.arange(8.0)).tolist()
    found = dict(counters["inductor"])
    told = {"hits": found.get("fxgraph_cache_hit", 0), "misses": found.get("fxgraph_cache_miss", 0), "result": result}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
