"""One start of a transformer, timed phase by phase: python -m benchmarks.phases_program BEGAN DEVICE.

BEGAN is what the monotonic clock said when the process was started. It prints one line of JSON: the seconds of each
phase until the first compiled result, and a digest of it. It needs only torch; with transformers installed, the model
is a Llama of theirs.
"""

# ruff: noqa: E402 -- what is imported when is what is measured
import sys
import time

READY = time.monotonic()

import importlib.util
from typing import Any


def main(began: float, device: str) -> None:
    phases = {"Python itself": READY - began}
    last = READY

    def passed(name: str) -> None:
        nonlocal last
        now = time.monotonic()
        phases[name] = now - last
        last = now

    import torch

    passed("import torch")
    has_transformers = importlib.util.find_spec("transformers") is not None
    if has_transformers:
        from transformers import LlamaConfig, LlamaForCausalLM  # noqa: F401

        passed("import transformers")
    import torch._dynamo
    import torch._inductor.codecache
    import torch._inductor.compile_fx

    passed("import dynamo and inductor")
    torch.manual_seed(0)
    model, tokens = (_llama if has_transformers else _decoder)(device)
    with torch.no_grad():
        model(tokens)
    if device == "cuda":
        torch.cuda.synchronize()
    passed("CUDA, model, eager run" if device == "cuda" else "model, eager run")
    compiled = torch.compile(model)
    with torch.no_grad():
        result = compiled(tokens)
    bits = (result.logits if has_transformers else result).float().cpu()
    passed("first compiled call")

    import json

    from benchmarks.gpu_programs import _digest, _end

    print(json.dumps({"phases": phases, "seconds": time.monotonic() - began, "digest": _digest([bits])}))
    _end()


def _llama(device: str) -> tuple[Any, Any]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, width = (8, 512) if device == "cuda" else (2, 64)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(device).eval(), torch.randint(0, 1024, (1, 128), device=device)


def _decoder(device: str) -> tuple[Any, Any]:
    """The same in plain torch: norm, attention, gated feed-forward, eight times."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
            self.mix, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
            self.down = nn.Linear(2 * width, width, bias=False)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            parts = self.mix(self.before(x)).view(batch, length, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            y = self.between(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    class Decoder(nn.Module):  # type: ignore[misc]
        def __init__(self, layers: int, width: int) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1024, width)
            self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
            self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 1024, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    layers, width = (8, 512) if device == "cuda" else (2, 64)
    return Decoder(layers, width).to(device).eval(), torch.randint(0, 1024, (1, 128), device=device)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
