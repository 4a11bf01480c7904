"""A graph that TorchInductor compiled, as its pickle shows it: the ingredients of its key, and the result.

torch writes every ingredient with its hash into the pickle, for its own debugging. Where it does not, most of the
ingredients can be read from the script that reproduces the graph, which torch stores as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import pickle_walk
from kcachefs.insight.pickle_walk import Described
from kcachefs.insight.triton_ir import Place

_DEBUG_LINE = re.compile(r"\[(\w{1,80})\] ([\w.]{1,200}(?:\[[^\]]{0,200}\])?): (.*)", re.S)
_ADDRESS = re.compile(r" at 0x[0-9a-f]{1,16}")
_VARIABLE = re.compile(r"^os\.environ\['(\w{1,200})'\] = '(.{0,1000})'$", re.M)
_VERSION = re.compile(r"^# (torch version|torch cuda version|torch git version): (.{0,200})$", re.M)
_GPU = re.compile(r"^# (NVIDIA .{1,80}|AMD .{1,80}) : \d+", re.M)
_SETTING = re.compile(
    r"^(torch\.(?:_inductor\.|_functorch\.|_dynamo\.|fx\.experimental\._)config\.\S{1,200}) = (.{0,2000})$",
    re.M,
)
_FILE = re.compile(r"# File: (\S{1,1000}):(\d{1,9}) in (\S{1,300}), code: (.{0,500})")
_NODE = re.compile(r"^\s*(\w+)(?:: \"[^\"]*\")? = ([\w.]+)(.*)$")
_FREED = re.compile(r";  [\w =]+= None$")
_INPUT = re.compile(r'(\w+): "(Sym\([^)"]{1,60}\)|(\w+)\[([^\]"]*)\](?:\[([^\]"]*)\])?(\w+(?::\d+)?)?)"')
_AOT_ID = re.compile(r"AOT ID: \['(\d+)_(\w+)'\]")
_KERNEL_PATH = re.compile(r"^# kernel path: \S*?(\w\w/\w+)\.py$", re.M)
_THREADS = re.compile(r"num_threads\((\d+)\)")
_DTYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "b8": "bool",
}
_NOT_IN_THE_KEY = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_TRACE", "TORCHINDUCTOR_COMPILE_THREADS")
_HEAD = 40_000
_TEXT_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a graph."""

    name: str
    operation: str
    arguments: str


@dataclass(slots=True)
class Graph:
    """One compiled graph."""

    path: str
    created: float
    key: str = ""
    kind: str = ""
    """inference, forward or backward."""
    number: int = 0
    version: str = ""
    build: str = ""
    """The commit of torch."""
    cuda: str = ""
    gpu: str = ""
    ingredients: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By torch's name for each ingredient: its hash and its printed form."""
    told_by_torch: bool = False
    """Whether the ingredients are torch's own list, which is complete."""
    environment: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    places: dict[str, tuple[Place, str]] = field(default_factory=dict)
    """By the name of a node: the line of the model that it comes from, and the text of that line."""
    seconds: float | None = None
    """How long compiling took, as torch measured it."""
    kernels: list[str] = field(default_factory=list)
    """Keys or paths of the kernels that it runs."""
    guards: str = ""
    forward_key: str = ""
    """For a backward graph: the key of its forward graph, if an autograd entry reveals it."""
    input_names: list[str] = field(default_factory=list)
    """The program's names for its inputs, if an autograd entry reveals them."""

    @property
    def name(self) -> str:
        return f"{self.kind or 'compiled'} graph {self.number}"

    @property
    def inputs(self) -> list[str]:
        return [text for name, (_, text) in self.ingredients.items() if name.startswith("example_inputs[")]

    def operations(self) -> Counter[str]:
        return Counter(node.operation for node in self.nodes)


def read(path: str, created: float, data: bytes, *, use_debug_lines: bool = True) -> Graph:
    """The graph in a file of `fxgraph`; `ArtefactGarbled` if the file holds none."""
    made = pickle_walk.read(data)
    if not isinstance(made, Described) or made.short_name != "CompiledFxGraph":
        raise ArtefactGarbled("it holds no compiled graph")
    state = made.state
    graph = Graph(path, created, key=_text(state.get("_fx_graph_cache_key"))[:100])
    if use_debug_lines:
        _take_debug_lines(graph, state.get("_fx_graph_cache_debug_lines"))
    script = _text(state.get("runnable_graph_str"))
    _take_head(graph, script[:_HEAD])
    after_passes = _text(state.get("inductor_post_grad_graph_str"))
    source = _text(state.get("source_code"))
    if not graph.told_by_torch:
        _take_script(graph, script, after_passes, source, state.get("fx_kwargs"))
    graph.nodes = nodes_of(graph.ingredients.get("gm", ("", ""))[1])
    graph.places = _places(after_passes)
    identity = _AOT_ID.search(source[:4000])
    if identity:
        graph.number, graph.kind = int(identity[1][:9]), identity[2]
    taken = state.get("_time_taken_ns")
    graph.seconds = taken / 1e9 if isinstance(taken, int) and 0 < taken < 1 << 62 else None
    graph.guards = _text(state.get("guards_expr"))[:4000]
    graph.kernels = list(dict.fromkeys((*_bundled(state.get("_triton_bundle")), *_KERNEL_PATH.findall(source))))
    return graph


def _text(value: Any) -> str:
    return value[:_TEXT_MAX] if isinstance(value, str) else ""


def _take_debug_lines(graph: Graph, lines: Any) -> None:
    for line in lines if isinstance(lines, list) else ():
        found = _DEBUG_LINE.fullmatch(line) if isinstance(line, str) else None
        if found:
            graph.ingredients[found[2]] = (found[1], _ADDRESS.sub("", found[3]))
    graph.told_by_torch = bool(graph.ingredients)


def _take_head(graph: Graph, head: str) -> None:
    """Take the facts about the host from the script's first lines."""
    graph.environment = {
        name: value
        for name, value in _VARIABLE.findall(head)
        if name not in _NOT_IN_THE_KEY and not name.startswith("_")
    }
    versions = dict(_VERSION.findall(head))
    graph.version = versions.get("torch version", "")
    graph.build = versions.get("torch git version", "")
    cuda = versions.get("torch cuda version", "")
    graph.cuda = "" if cuda == "None" else cuda
    gpu = _GPU.search(head)
    graph.gpu = gpu[1] if gpu else ""


def _take_script(graph: Graph, script: str, after_passes: str, source: str, kwargs: Any) -> None:
    """Take the ingredients from the script, without torch's own list."""
    found: dict[str, str] = {}
    for name, value in _SETTING.findall(script[:_HEAD]):
        short = name.removeprefix("torch._inductor.config.")
        found[f"inductor_config[{short}]" if short != name else name] = value
    start = script.find("def forward(self")
    if start >= 0:
        found["gm"] = script[start:].partition("\ndef load_args")[0].partition("\nmod = Repro")[0]
    header = after_passes.partition("def forward(")[2].partition("):\n")[0]
    for number, (_, whole, kind, shape, stride, device) in enumerate(_INPUT.findall(header)):
        if whole.startswith("Sym("):
            found[f"example_inputs[{number}]"] = f"('{whole[4:-1]}',)"
            continue
        place, _, index = device.partition(":")
        found[f"example_inputs[{number}]"] = (
            f"TensorMetadata(dtype=torch.{_DTYPES.get(kind, kind)}, shape=torch.Size([{shape}]), stride=({stride}), "
            f"device=device(type='{place}'" + (f", index={index}))" if index else "))")
        )
    for name, value in kwargs.items() if isinstance(kwargs, dict) else ():
        if isinstance(value, bool | int | str) and name != "graph_id":
            found[f"fx_kwargs[{name}]"] = str(value)[:500]
    threads = _THREADS.search(source)
    if threads:
        found["cpp_runtime_thread_count"] = threads[1]
    graph.ingredients = {name: (text, text) for name, text in found.items()}


def nodes_of(text: str) -> list[Node]:
    """The operations of a graph that torch printed."""
    found = []
    for line in text.splitlines():
        if line.lstrip().startswith("return"):
            found.append(Node("return", "return", line.strip().removeprefix("return")))
        elif node := _NODE.match(line[:20_000]):
            found.append(Node(node[1], node[2].removeprefix("torch.ops."), _FREED.sub("", node[3])))
    return found


def _places(text: str) -> dict[str, tuple[Place, str]]:
    found: dict[str, tuple[Place, str]] = {}
    here: tuple[Place, str] | None = None
    for line in text.splitlines():
        if "# File:" in line and (file := _FILE.search(line[:3000])):
            here = (Place(file[1], int(file[2])), file[4].strip())
        elif here is not None and (node := _NODE.match(line[:20_000])):
            found[node[1]] = here
    return found


def _bundled(bundle: Any) -> Iterable[str]:
    """The keys of the Triton kernels that are stored with the graph."""
    artefacts = bundle.state.get("kernel_artifacts") if isinstance(bundle, Described) else None
    for one in artefacts if isinstance(artefacts, list) else ():
        key = one.state.get("kernel_hash") if isinstance(one, Described) else None
        if isinstance(key, str):
            yield key[:100]
