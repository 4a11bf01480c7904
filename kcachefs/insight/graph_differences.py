"""Why one compiled graph does not match another: every ingredient of the key that differs, the most telling first.

torch's own hashes are compared, so a difference in an ingredient is certain. Where only the reproducing script is
available, the differences found are certain too, but some may be missing.
"""

from __future__ import annotations

from collections.abc import Callable

from kcachefs.insight.causes import Cause, Kind, clipped, in_order
from kcachefs.insight.graph_code import code_causes
from kcachefs.insight.graph_inputs import input_causes, is_about_number
from kcachefs.insight.graphs import Graph

_CONFIGS = ("inductor_config[", "inductor_config_comms[")
_OF_TORCH_ITSELF = ("_cache_config", "_save_config_ignore", "TYPE_CHECKING")
_SHOWN = 3
_SETTINGS = {
    "cpp_runtime_thread_count": "the number of CPU threads",
    "deterministic_algorithms_settings": "torch.use_deterministic_algorithms (on, warn only, fill memory)",
    "cuda_matmul_settings": "torch.backends.cuda.matmul (fp32 precision, fp16 and bf16 reductions)",
    "default_dtype": "torch.get_default_dtype()",
    "cache_key_tag": "torch.compiler.config.cache_key_tag",
    "precompile_enabled": "bundled_autograd_cache",
}
_MODES = {
    "is_inference": "inference mode (no gradients needed)",
    "is_backward": "being a backward graph",
    "cudagraphs": "CUDA graphs",
    "cpp_wrapper": "cpp_wrapper",
    "static_input_idxs": "which inputs stay at one address",
    "layout_opt": "layout optimization",
}
_FOLLOWING = ("static_input_idxs", "boxed_forward_device_index", "extern_node_serializer", "get_decomp_fn")
"""Arguments that follow from the graph: a difference in them matters only if there is no other cause."""


class Compared:
    """The ingredients of two graphs side by side."""

    def __init__(self, new: Graph, old: Graph) -> None:
        self.now, self.was = new.ingredients, old.ingredients

    def changed(self, chosen: Callable[[str], bool]) -> list[str]:
        return [name for name in self.now if chosen(name) and self.is_changed(name)]

    def is_changed(self, name: str) -> bool:
        return name in self.was and name in self.now and self.was[name][0] != self.now[name][0]

    def only_one_has(self, chosen: Callable[[str], bool]) -> list[str]:
        return [name for name in (*self.now, *self.was) if chosen(name) and (name in self.now) != (name in self.was)]

    def values(self, name: str, absent: str = "the default") -> str:
        now = self.now[name][1] if name in self.now else absent
        was = self.was[name][1] if name in self.was else absent
        return f"is {clipped(now)}, was {clipped(was)}"


def differences(new: Graph, old: Graph) -> list[Cause]:
    """All differences; never empty."""
    compared = Compared(new, old)
    causes = _versions(new, old, compared)
    other_torch = bool(causes)
    causes += _system(new, old, compared)
    complete = new.told_by_torch and old.told_by_torch
    causes += _configuration(compared, other_torch=other_torch, certain=complete)
    causes += _settings(compared)
    causes += [] if complete else _environment(new, old)
    inputs = input_causes(new, old)
    modes = _modes(compared)
    causes += [cause for name, cause in modes if name not in _FOLLOWING]
    if compared.is_changed("gm"):
        inputs = _with_code(inputs, code_causes(new, old, resized=bool(inputs)))
    causes += inputs
    if not causes:
        causes = [cause for _, cause in modes]
    return in_order(causes) or [_unexplained(new, old)]


def _with_code(inputs: list[Cause], code: list[Cause]) -> list[Cause]:
    """Put the code's causes before a changed number of inputs, which follows from the code if that differs as well."""
    if code and inputs and is_about_number(inputs[0]):
        return [*code, *(Cause(Kind.SOURCE, one.words, one.certain) for one in inputs)]
    return [*inputs, *code]


def _versions(new: Graph, old: Graph, compared: Compared) -> list[Cause]:
    if new.version != old.version and new.version and old.version:
        return [Cause(Kind.VERSION, f"torch {old.version} → {new.version}")]
    if new.build != old.build and new.build and old.build:
        return [
            Cause(Kind.VERSION, f"another build of torch {new.version}: commit {old.build[:10]} → {new.build[:10]}")
        ]
    if compared.is_changed("torch_version"):
        return [Cause(Kind.VERSION, f"the files of torch {new.version} itself differ: they are part of the key")]
    return []


def _system(new: Graph, old: Graph, compared: Compared) -> list[Cause]:
    def of_system(name: str) -> bool:
        return name.startswith("system_info[") and name != "system_info[hash]"

    names = [*compared.changed(of_system), *compared.only_one_has(of_system)]
    if not names and not compared.is_changed("system_info[hash]"):
        if new.gpu != old.gpu and new.gpu and old.gpu and not new.told_by_torch:
            return [Cause(Kind.ARCHITECTURE, f"GPU {old.gpu} → {new.gpu}")]
        return []
    was, now = (
        "; ".join(f"{name[12:-1]} {clipped(side[name][1], 60)}" for name in names if name in side) or fallback or "none"
        for side, fallback in ((compared.was, old.gpu), (compared.now, new.gpu))
    )
    return [Cause(Kind.ARCHITECTURE, f"another GPU or driver: {was} → {now}")]


def _configuration(compared: Compared, *, other_torch: bool, certain: bool) -> list[Cause]:
    """Settings of Inductor. The script that reproduces a graph also has settings that are not part of the key."""

    def of_config(name: str) -> bool:
        short = name.partition("[")[2].rstrip("]")
        return name.startswith(_CONFIGS) and not short.startswith(_OF_TORCH_ITSELF)

    told = [
        f"torch._inductor.config.{name.partition('[')[2].rstrip(']')} {compared.values(name)}"
        for name in compared.changed(of_config)
    ]
    if not other_torch:
        for name in compared.only_one_has(lambda name: of_config(name) or name.startswith("torch._functorch.")):
            value = (compared.now.get(name) or compared.was[name])[1]
            if value not in ("False", "None"):  # mostly the default, spelt out
                short = name.partition("[")[2].rstrip("]")
                full = f"torch._inductor.config.{short}" if of_config(name) else name
                told.append(f"{full} {compared.values(name)}")
    if not told:
        return []
    more = f" (and {len(told) - _SHOWN} more)" if len(told) > _SHOWN else ""
    return [Cause(Kind.ENVIRONMENT, ", ".join(told[:_SHOWN]) + more, certain)]


def _settings(compared: Compared) -> list[Cause]:
    known = (*_CONFIGS, "example_inputs[", "fx_kwargs[", "system_info[", "torch_version", "gm")
    return [
        Cause(Kind.ENVIRONMENT, f"{_SETTINGS.get(name, name)} {compared.values(name)}")
        for name in compared.changed(lambda name: not name.startswith(known))
    ]


def _environment(new: Graph, old: Graph) -> list[Cause]:
    return [
        Cause(
            Kind.ENVIRONMENT,
            f"{name} is {clipped(new.environment.get(name))}, was {clipped(old.environment.get(name))}",
            certain=False,
        )
        for name in sorted(new.environment.keys() | old.environment.keys())
        if new.environment.get(name) != old.environment.get(name)
    ]


def _modes(compared: Compared) -> list[tuple[str, Cause]]:
    found = []
    for name in compared.changed(lambda name: name.startswith("fx_kwargs[")):
        short = name[len("fx_kwargs[") : -1]
        found.append((short, Cause(Kind.OPTION, f"{_MODES.get(short, short)} {compared.values(name)}")))
    return found


def _unexplained(new: Graph, old: Graph) -> Cause:
    if new.key and new.key == old.key:
        was, now = (clipped(one.guards or "any size", 120) for one in (old, new))
        return Cause(Kind.TYPE, f"the same graph for other sizes: this one holds for `{now}`, that one for `{was}`")
    words = f"all that torch {new.version or 'of an unknown version'} wrote down is the same"
    return Cause(Kind.UNKNOWN, words, certain=False)
