"""What vLLM wrote down of a model that it compiled: the factor that differs is named."""

from __future__ import annotations

import json

import pytest

from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import models
from kcachefs.insight.causes import Kind

FACTORS = {
    "env": {"VLLM_USE_V1": "1", "VLLM_PP_LAYER_PARTITION": None},
    "config_hash": "aaaa",
    "compiler_hash": "2.13.0",
    "code_hash": "cccc",
}


def model(path: str, created: float, **changed: object) -> models.Model:
    return models.read(path, created, json.dumps({**FACTORS, **changed}).encode())


def test_the_factor_that_differs_is_named() -> None:
    older = [model("vllm/a", 1.0), model("vllm/b", 2.0, code_hash="dddd", config_hash="bbbb")]
    nearest, causes = models.explain(model("vllm/c", 3.0, env={"VLLM_USE_V1": "0"}), older)
    assert nearest is older[0]
    assert causes[0].kind is Kind.ENVIRONMENT
    assert "env.VLLM_USE_V1 is 0, was 1" in causes[0].words
    _, causes = models.explain(model("vllm/d", 3.0, compiler_hash="2.14.0", code_hash="eeee"), older[:1])
    assert [one.kind for one in causes] == [Kind.VERSION, Kind.SOURCE]
    assert models.explain(older[0], []) == (None, [models.IS_NEW])


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"a":' * 10_000, json.dumps(dict.fromkeys(map(str, range(30_000)))).encode()]
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ArtefactGarbled):
        models.read("vllm/a", 0.0, data)
