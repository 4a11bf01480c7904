"""Keys of graphs and of tensor arguments: equal spellings meet, anything that changes the compiled result does not."""

from __future__ import annotations

import re
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcachefs.errors import Unkeyable, UsageError
from kcachefs.keys import CacheKey, DeviceClass, Dim, InputSpec, TensorSpec, hash_tensor_signature
from tests.keys.strategies import meaning, plain

dimensions = st.integers(0, 2**40) | st.builds(Dim, st.text(min_size=1, max_size=3), st.integers(0, 4))
dtypes = st.sampled_from(["float16", "float32", "bfloat16", "int8", "bool", "float8_e4m3fn"])
inputs = st.builds(InputSpec, st.lists(dimensions, max_size=3), dtypes)
devices = (
    st.just(DeviceClass.any_cuda())
    | st.just(DeviceClass.cpu())
    | st.builds(DeviceClass.cuda, st.integers(5, 12), st.integers(0, 9), st.sampled_from(["", "a", "f"]))
)
keys = st.builds(CacheKey, st.text(min_size=1), st.lists(inputs, max_size=3), devices, plain)


def fields(key: CacheKey) -> Any:
    return (key.graph_hash, key.inputs, key.device, meaning(key.extra))


@given(keys, keys)
def test_keys_meet_only_where_everything_is_equal(one: CacheKey, two: CacheKey) -> None:
    assert (one.to_storage_key() == two.to_storage_key()) == (fields(one) == fields(two))


@given(keys)
def test_a_storage_key_is_a_file_name(key: CacheKey) -> None:
    assert re.fullmatch(r"k6-[a-z0-9-]+-[0-9a-f]{64}", key.to_storage_key())


@given(st.lists(inputs, min_size=2, max_size=4, unique_by=lambda spec: repr(spec)), st.data())
def test_the_order_of_inputs_counts(specs: list[InputSpec], data: st.DataObject) -> None:
    other = data.draw(st.permutations(specs))
    same = CacheKey("g", specs).digest() == CacheKey("g", other).digest()
    assert same == (other == specs)


@pytest.mark.parametrize(
    "spellings",
    [
        ["float16", "fp16", "half", numpy.float16, numpy.dtype("float16"), "torch.float16"],
        ["bfloat16", "bf16"],
        ["int32", "i32", numpy.dtype("<i4")],
        ["bool", "i1", numpy.bool_],
    ],
    ids=lambda spellings: spellings[0],
)
def test_spellings_of_an_element_type_meet(spellings: list[Any]) -> None:
    import torch  # not above: it takes two seconds, and every process of tests collects them all

    told = [*spellings, getattr(torch, spellings[0])]
    assert len({CacheKey("g", [InputSpec((1,), dtype)]).digest() for dtype in told}) == 1


def test_byte_order_and_records_count() -> None:
    told = [numpy.dtype(text) for text in ("<f4", ">f4", "i4,f4", "f4,i4")]
    assert len({InputSpec((1,), dtype).dtype for dtype in told}) == 4


def test_a_symbol_is_not_the_text_of_a_size() -> None:
    assert CacheKey("g", [InputSpec(("4",), "i8")]).digest() != CacheKey("g", [InputSpec((4,), "i8")]).digest()


def test_swapped_symbols_are_two_graphs() -> None:
    one = CacheKey("g", [InputSpec(("n", "m"), "i8")])
    assert one.digest() != CacheKey("g", [InputSpec(("m", "n"), "i8")]).digest()


@pytest.mark.parametrize("text", ["cpu", "cuda", "sm_90a", "9.0", "compute_80", "sm_120f", "cpu:x86-64-v4"])
def test_device_classes_are_parsed(text: str) -> None:
    assert DeviceClass.parse(text) == DeviceClass.parse(text)
    assert len({DeviceClass.parse(other).fields() for other in ("cpu", "cuda", "sm_90", "sm_90a", "sm_80")}) == 5


@pytest.mark.parametrize("text", ["", "gpu", "sm_9x", "sm_", "rocm"])
def test_other_devices_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="device class"):
        DeviceClass.parse(text)


def test_a_key_without_a_graph_is_refused() -> None:
    with pytest.raises(UsageError, match="hash of its graph"):
        CacheKey("")


specs = st.builds(
    TensorSpec,
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    dtypes,
    st.none(),
    st.none() | st.sampled_from(["channels_last", "sparse"]),
    st.none() | st.floats() | st.integers(),
)


@given(specs, specs, st.dictionaries(st.text(max_size=2), plain, max_size=2))
def test_signatures_meet_only_where_everything_is_equal(one: TensorSpec, two: TensorSpec, constants: Any) -> None:
    def told(spec: TensorSpec) -> Any:
        return (spec.shape, spec.dtype, spec.layout, meaning(spec.padding))

    same = hash_tensor_signature(one, constexprs=constants) == hash_tensor_signature(two, constexprs=constants)
    assert same == (told(one) == told(two))
    assert hash_tensor_signature(one, constexprs=constants) != hash_tensor_signature(one, one, constexprs=constants)


@given(st.dictionaries(st.text(max_size=2), plain, max_size=2), st.dictionaries(st.text(max_size=2), plain, max_size=2))
def test_constants_count(one: Any, two: Any) -> None:
    spec = TensorSpec((4,), "i8")
    same = hash_tensor_signature(spec, constexprs=one) == hash_tensor_signature(spec, constexprs=two)
    assert same == (meaning(one) == meaning(two))


def test_tensors_of_torch_and_numpy_and_their_specs_meet() -> None:
    import torch

    told = [
        torch.zeros(4, 6),
        numpy.zeros((4, 6), numpy.float32),
        TensorSpec([4, 6], "f32"),
        TensorSpec((4, 6), "fp32", strides=(6, 1)),
    ]
    assert len({hash_tensor_signature(tensor) for tensor in told}) == 1
    turned = [torch.zeros(6, 4).t(), numpy.zeros((6, 4), numpy.float32).T, TensorSpec((4, 6), "f32", strides=(1, 4))]
    assert len({hash_tensor_signature(tensor) for tensor in [*turned, told[0]]}) == 2


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(Unkeyable, match="is not a tensor"):
        hash_tensor_signature("float32")
