"""What torch's autograd entries reveal: the graphs that an entry leads to, and the program's names for their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import pickle_walk
from kcachefs.insight.pickle_walk import Described

_DEPTH_MAX = 30
_INPUTS_MAX = 10_000
_NOT_SAID = ("_modules", "_parameters", "_buffers", "__dict__")


@dataclass(slots=True)
class Autograd:
    path: str
    created: float
    forward: str = ""
    """The key of the forward graph, or of the only one."""
    backward: str = ""
    inputs: list[str] = field(default_factory=list)
    seconds: float | None = None
    """How long tracing and compiling the forward graph took, as torch measured it."""
    is_eager: bool = False
    """Whether these seconds include the backward graph: where sizes vary, torch compiles both at once."""

    def beyond(self, graph_seconds: Mapping[str, float | None]) -> float | None:
        """What it cost beyond its graphs; None if unknown.

        >>> trained = Autograd("", 0.0, forward="f", backward="b", seconds=5.0)
        >>> trained.beyond({"f": 3.0, "b": 1.5}), trained.beyond({"b": 1.5})
        (2.0, None)

        A graph that took longer than the entry was not compiled then but found in the cache:

        >>> trained.beyond({"f": 30.0, "b": 1.5})
        """
        graphs = [self.forward, self.backward] if self.is_eager else [self.forward]
        known = [graph_seconds.get(key) for key in graphs]
        if self.seconds is None or None in known:
            return None
        more = self.seconds - sum(one for one in known if one is not None)
        return more if more >= 0 else None


def read(path: str, created: float, data: bytes) -> Autograd:
    """The entry in a file of `aotautograd`; `ArtefactGarbled` if the file holds none."""
    made = pickle_walk.read(data)
    if not isinstance(made, Described) or "AOTAutograd" not in made.name:
        raise ArtefactGarbled("it holds no autograd entry")
    entry = Autograd(path, created)
    entry.forward, entry.backward = (_graph_key(made.state.get(name)) for name in ("compiled_fw", "compiled_bw"))
    config = made.state.get("sanitized_aot_config")
    sources = config.state.get("aot_autograd_arg_pos_to_source") if isinstance(config, Described) else None
    if isinstance(sources, list):
        entry.inputs = [_source_name(one) for one in sources[:_INPUTS_MAX]]
    taken, backward = made.state.get("forward_time_taken_ns"), made.state.get("compiled_bw")
    entry.seconds = taken / 1e9 if isinstance(taken, int) and 0 < taken < 1 << 62 else None
    sizes = backward.state.get("num_symints_saved_for_bw_") if isinstance(backward, Described) else None
    entry.is_eager = isinstance(sizes, int) and sizes > 0
    return entry


def _graph_key(compiled: Any) -> str:
    if not isinstance(compiled, Described):
        return ""
    info = compiled.state.get("fx_graph_cache_info") or compiled.state.get("fx_graph_cache_key")
    first = info[0] if isinstance(info, tuple | list) and info else info
    return first[:100] if isinstance(first, str) else ""


def _source_name(source: Any) -> str:
    """What a program would write for the source, such as `self.up.weight`."""
    parts: list[str] = []
    for _ in range(_DEPTH_MAX):
        if not isinstance(source, Described):
            break
        values = [*source.state.values(), *(source.args if isinstance(source.args, tuple) else ())]
        flat = [one for value in values for one in (value[:8] if isinstance(value, list | tuple) else (value,))]
        member = next((one for one in flat if isinstance(one, str | int) and not isinstance(one, bool)), "")
        if member != "" and member not in _NOT_SAID:
            parts.append(str(member)[:80])
        if source.short_name == "LocalSource":
            break
        source = next((one for one in flat if isinstance(one, Described)), None)
    return ".".join(reversed(parts))
