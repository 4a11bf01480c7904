"""A model that vLLM compiled, as its cache_key_factors.json shows it: environment, configuration, compiler and code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kcachefs.errors import ArtefactGarbled
from kcachefs.insight.causes import Cause, Kind, clipped, in_order
from kcachefs.insight.json_objects import json_object

FILE = "cache_key_factors.json"
FILES = (FILE,)
IS_NEW = Cause(Kind.NEW, "new: no model was compiled here before")
_SIZE_MAX = 8 << 20
_FACTORS_MAX = 20_000
_DEPTH_MAX = 12
_SHOWN = 3
_KINDS = (
    ("env", Kind.ENVIRONMENT),
    ("compiler", Kind.VERSION),
    ("code", Kind.SOURCE),
    ("config", Kind.ENVIRONMENT),
)
"""The kind of a factor, by how its name begins; a configuration counts as a setting."""


@dataclass(slots=True)
class Model:
    path: str
    created: float
    factors: dict[str, str] = field(default_factory=dict)
    """By their path in the file, with dots."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def read(path: str, created: float, data: bytes) -> Model:
    """The model in this file; `ArtefactGarbled` if the file does not describe one."""
    found = json_object(data, FILE, _SIZE_MAX)
    model = Model(path, created)
    for name, value in _flat("", found, 0):
        if len(model.factors) >= _FACTORS_MAX:
            raise ArtefactGarbled(f"{FILE} has too many factors")
        model.factors[name] = value
    return model


def _flat(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth < _DEPTH_MAX:
        for key, one in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), one, depth + 1)
    else:
        yield name[:300], value if isinstance(value, str) else json.dumps(value)[:2000]


def explain(new: Model, older: Sequence[Model]) -> tuple[Model | None, list[Cause]]:
    """The nearest of `older` and what differs; None if there is no older model."""
    nearest = min(older, key=lambda one: (len(_differing(new, one)), -one.created), default=None)
    return nearest, [IS_NEW] if nearest is None else differences(new, nearest)


def differences(new: Model, old: Model) -> list[Cause]:
    by_kind: dict[Kind, list[str]] = {}
    for name in _differing(new, old):
        kind = next((kind for start, kind in _KINDS if name.startswith(start)), Kind.ENVIRONMENT)
        now, was = (clipped(one.factors.get(name), 60) for one in (new, old))
        by_kind.setdefault(kind, []).append(f"{name} is {now}, was {was}")
    found = []
    for kind, told in by_kind.items():
        more = f" (and {len(told) - _SHOWN} more)" if len(told) > _SHOWN else ""
        found.append(Cause(kind, ", ".join(told[:_SHOWN]) + more))
    return in_order(found) or [Cause(Kind.UNKNOWN, "all that vLLM wrote down is the same", certain=False)]


def _differing(new: Model, old: Model) -> list[str]:
    every = dict.fromkeys((*new.factors, *old.factors))
    return [name for name in every if new.factors.get(name) != old.factors.get(name)]
