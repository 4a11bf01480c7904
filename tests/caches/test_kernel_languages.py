"""`cached` in the hands of a kernel language: its `make` runs once, and again as soon as anything in it has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tile_kernels
from kcachefs import Cache, cached

pytest.importorskip("cuda.core")

Make = Callable[..., Any]


@pytest.fixture
def annotated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what `make` writes into the annotations of the function that it is given."""
    monkeypatch.setattr(tile_kernels.application, "__annotations__", {})


def kept(folder: Path, **how: Any) -> Any:
    from cuda.core import ObjectCode

    return cached(cache=Cache(folder), encode=lambda made: bytes(made.code), decode=ObjectCode.from_cubin, **how)(
        tile_kernels.make
    )


def call(make: Make, dtype: str = "float") -> Any:
    tensors = tuple(tile_kernels.Tensor(1, dtype) for _ in range(3))
    return make(tile_kernels.arrangement, tile_kernels.application, tensors)


@pytest.mark.usefixtures("annotated")
def test_make_compiles_once_for_fresh_tensors_and_anew_for_every_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = kept(tmp_path, annotations=False)
    first = call(make)
    assert [call(make) is first for _ in range(3)] == [True] * 3
    assert make.cache_info().misses == 1
    assert bytes(call(make, "double").code) != bytes(first.code)
    assert make.cache_info().misses == 2
    monkeypatch.setattr(tile_kernels, "BLOCK", 64)  # which the arrangement reads
    assert bytes(call(make).code) != bytes(first.code)
    assert make.cache_info().misses == 3
    monkeypatch.setattr(tile_kernels.application, "__defaults__", (None,))
    call(make)
    assert make.cache_info().misses == 4
    monkeypatch.undo()
    monkeypatch.setattr(tile_kernels.application, "__annotations__", {})
    assert call(make) is first
    assert call(kept(tmp_path, annotations=False)).code == first.code


@pytest.mark.usefixtures("annotated")
def test_annotations_that_make_writes_are_noticed_unless_they_do_not_count(tmp_path: Path) -> None:
    make = kept(tmp_path)
    call(make)
    call(make)  # the first call has written them
    assert make.cache_info().misses == 2
    call(make)
    assert make.cache_info().misses == 2


def test_tensors_without_data_are_told_apart_by_their_shapes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    @cached(cache=Cache(tmp_path))
    def shape(tensor: Any) -> bytes:
        return str(tuple(tensor.shape)).encode()

    sizes = [(2,), (3,), (2, 3), (3, 2)]
    assert [shape(torch.empty(*size, device="meta")) for size in sizes] == [str(size).encode() for size in sizes]
    assert shape(torch.empty(2, device="meta")) == b"(2,)"
    assert shape.cache_info().misses == len(sizes)
