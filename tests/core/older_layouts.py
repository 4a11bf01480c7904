"""The layouts that an older version had, where today's have more entries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kcachefs.core import layouts
from kcachefs.core.layouts import Kind

OLDER = {
    b"sglang": ((Kind.STRUCTURE, "jit/"),),
    b"helion": ((Kind.GROUP, "{stem}.*"),),
    b"flydsl": ((Kind.TREE, "*/"),),
    b"flash_attn_cute": ((Kind.STRUCTURE, "*/"), (Kind.GROUP, "**/{stem}.*")),
}
"""What these namespaces had before their kernels became entries of their own."""
KERNELS = {
    "sglang/jit/sm90a": "sglang/jit/sm90a/{}/build-1f2e/deps-3d4c/kernel.so",
    "helion/triton": "helion/triton/0/{}/kernel.cubin",
    "flash_attn_cute/f1d2/fwd": "flash_attn_cute/f1d2/fwd/{}.o",
}
"""The older entry, and where its kernels lie."""


@contextmanager
def older_layouts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for namespace, rows in OLDER.items():
            patch.setitem(layouts.LAYOUTS, namespace, rows)
        layouts._table.cache_clear()
        yield
    layouts._table.cache_clear()
