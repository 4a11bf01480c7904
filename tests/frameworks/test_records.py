"""The registry of frameworks is complete and agrees with the namespaces and layouts of a mount."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from kcachefs.core.layouts import NAMESPACES, Kind, place
from kcachefs.errors import UsageError
from kcachefs.frameworks import FRAMEWORKS, environment
from kcachefs.frameworks.adoption import namespace_of
from kcachefs.frameworks.environment import select, where_now
from tests.frameworks.commands import kcachefs


def test_every_namespace_of_a_mount_has_its_framework() -> None:
    ours = {"nvrtc", "library"}
    assert {one.namespace for one in FRAMEWORKS if one.namespace} == set(NAMESPACES) - ours


def test_no_two_frameworks_share_a_variable_or_a_name() -> None:
    variables = Counter(variable for one in FRAMEWORKS for variable in (*one.variables, *one.settings))
    assert max(variables.values()) == 1
    assert max(Counter(one.name for one in FRAMEWORKS).values()) == 1


def test_a_variable_names_a_folder_that_holds_entries_and_is_none() -> None:
    for one in FRAMEWORKS:
        for folder in one.variables.values():
            namespace, *below = folder.split("/")
            assert namespace == one.namespace
            for depth in range(1, len(below) + 1):
                path = tuple(part.encode() for part in below[:depth])
                assert place(namespace.encode(), path, True).kind is Kind.STRUCTURE, folder


def test_the_folder_of_extensions_holds_entries_and_is_none() -> None:
    values = environment(Path("/m"), ["torch_extensions"])
    _, _, below = values["TORCH_EXTENSIONS_DIR"].partition("/m/torch_extensions/")
    assert below.startswith("py3")
    assert place(b"torch_extensions", (below.encode(),), True).kind is Kind.STRUCTURE
    assert place(b"torch_extensions", (below.encode(), b"my_ops"), True).kind is Kind.TREE


def test_a_framework_that_cannot_be_moved_says_what_to_do() -> None:
    deaf = [one for one in FRAMEWORKS if not one.obeys]
    assert {"cuda.core", "ninetoothed"} < {one.name for one in deaf}
    assert all(one.note for one in deaf)


@pytest.mark.parametrize("name", ["triton", "Triton", "deep_gemm", "DeepGEMM", "cute-dsl"])
def test_a_framework_is_found_by_name_or_namespace(name: str) -> None:
    [found] = select([name])
    assert name.lower().replace("-", "_") in (found.name.lower(), found.namespace)


def test_several_can_be_chosen_and_none_unknown() -> None:
    assert [one.name for one in select(["triton,inductor", "cuda"])] == ["Triton", "TorchInductor", "CUDA driver"]
    with pytest.raises(UsageError, match="trition"):
        select(["trition"])


def test_where_a_cache_is_now_follows_the_environment() -> None:
    [triton] = select(["triton"])
    assert where_now(triton, {"TRITON_CACHE_DIR": "/x"}) == "/x"
    assert where_now(triton, {}).endswith("/.triton/cache")


def test_the_list_tells_what_is_installed_and_what_obeys() -> None:
    told = {one["name"]: one for one in json.loads(kcachefs("frameworks", "--json").stdout)["frameworks"]}
    assert told["Triton"]["installed"]
    assert told["Triton"]["variables"] == {"TRITON_CACHE_DIR": "triton"}
    assert told["cuda.core"]["obeys"] is False
    assert all(one["source"] and one["layout"] and one["needs"] for one in told.values())
    text = kcachefs("frameworks").stdout
    assert "TRITON_CACHE_DIR" in text
    assert "ninetoothed: " in text
    assert "vLLM" not in kcachefs("frameworks", "--installed").stdout


def test_compiler_caches_are_moved_on_request_only() -> None:
    everything = environment(Path("/m"))
    assert not {"CCACHE_DIR", "SCCACHE_DIR"} & everything.keys()
    assert environment(Path("/m"), ["ccache,sccache"]) == {
        "KCACHEFS_MOUNT": "/m",
        "CCACHE_DIR": "/m/ccache",
        "SCCACHE_DIR": "/m/sccache",
    }


def test_nothing_that_an_installed_package_ships_is_hidden() -> None:
    everything = environment(Path("/m"))
    assert "FLASHINFER_CUBIN_DIR" not in everything
    assert not [name for name in everything if name.startswith(("AITER_", "FLYDSL_"))]
    assert environment(Path("/m"), ["aiter,flydsl"]) == {
        "KCACHEFS_MOUNT": "/m",
        "AITER_JIT_DIR": "/m/aiter",
        "AITER_ROOT_DIR": "/m/aiter/root",
        "FLYDSL_RUNTIME_CACHE_DIR": "/m/flydsl",
        "FLYDSL_AUTOTUNE_CACHE_DIR": "/m/flydsl/autotune",
    }


def test_flash_attention_is_not_made_to_keep_kernels_on_disk() -> None:
    # Some of its keys do not name the GPU.
    assert environment(Path("/m"), ["flash_attn_cute"]) == {
        "KCACHEFS_MOUNT": "/m",
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "/m/flash_attn_cute",
    }


@pytest.mark.parametrize(("folder", "namespace"), [(".flydsl/cache", "flydsl"), (".aiter/jit", "aiter")])
def test_a_cache_is_known_by_its_default_folder(
    folder: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / folder).mkdir(parents=True)
    assert namespace_of(tmp_path / folder, {}) == namespace
    with pytest.raises(UsageError):
        namespace_of((tmp_path / folder).parent, {})
