"""Prints the keys of all samples as JSON; run in processes of their own to see that nothing of the process shows."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from kcachefs.keys import (
    CacheKey,
    DeviceClass,
    Dim,
    InputSpec,
    TensorSpec,
    hash_function,
    hash_tensor_signature,
    hash_value,
    program_key,
    project_fingerprint,
)
from tests.keys import samples


def told() -> dict[str, str]:
    keys = {f"function: {name}": hash_function(function) for name, function in samples.functions().items()}
    keys |= {f"value: {name}": hash_value(value) for name, value in samples.values().items()}
    keys |= graphs() | tensors() | programs()
    keys["project"] = project()
    return keys


def graphs() -> dict[str, str]:
    inputs = [InputSpec((Dim("batch", 1, 64), 128), "float16"), InputSpec((), "int32")]
    devices = [DeviceClass.any_cuda(), DeviceClass.cuda(9, 0), DeviceClass.cuda(9, 0, "a"), DeviceClass.cpu()]
    return {f"graph: {device.tag}": CacheKey("8f3a", inputs, device).to_storage_key() for device in devices}


def tensors() -> dict[str, str]:
    return {
        "tensors: none": hash_tensor_signature(),
        "tensors: two": hash_tensor_signature(
            TensorSpec((8, 16), "float32", padding=0.0),
            TensorSpec((16,), "bf16", strides=(2,)),
            constexprs={"BLOCK": 64},
        ),
    }


def programs() -> dict[str, str]:
    plain: dict[str, Any] = {"target": "cubin", "arch": "sm_90", "compiler_version": "nvrtc 13.4"}
    headers = {"scale.h": "#define SCALE 4"}
    return {
        "program: plain": program_key("__global__ void k() {}", **plain),
        "program: options": program_key(
            '#include "scale.h"\n',
            ["-DN=4", "--std=c++17"],
            headers=headers,
            name_expressions=["k<1>", "k<2>"],
            option_order="normalised",
            **plain,
        ),
    }


def project() -> str:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "project")
        (root / "inner").mkdir(parents=True)
        (root / "a.py").write_text("A = 1\n")
        (root / "inner" / "ü.py").write_text("B = 2\n")
        return project_fingerprint(root)


if __name__ == "__main__":
    json.dump(told(), sys.stdout, indent=1, sort_keys=True, ensure_ascii=False)
    print()
