"""Projects of several files: what a function imports, at the top of its file or as it runs, and how it reaches it."""

from __future__ import annotations

from tests.keys.cases.case import Case, Expectation

FILES = {
    "pack/__init__.py": "LEVEL = 1\n",
    "pack/lower.py": "from pack import passes\ndef lower(x):\n    return passes.simplify(x) + 1\n",
    "pack/passes.py": "RATE = 2\ndef simplify(x):\n    return x * RATE\n",
    "pack/inner/__init__.py": "",
    "pack/inner/deep.py": "from ..passes import simplify\nDEPTH = 3\n",
    "pack/lazy.py": "import pack.passes\ndef __getattr__(name):\n    return pack.passes.RATE if name else 0\n",
    "space/part.py": "N = 4\n",
    "other.py": "M = 5\ndef helper(x):\n    return x + M\n",
    "unrelated.py": "Z = 1\n",
}


def projects(section: str, expect: Expectation, bodies: str, edited: str, top: str = "") -> list[Case]:
    """For each body of `kernel`, one case for each edit `file: old || new`."""
    cases = []
    for body in filter(None, map(str.strip, bodies.splitlines())):
        lines = "\n    ".join(body.split("; "))
        sources = {**FILES, "main.py": f"{top}\ndef kernel(x):\n    {lines}\n"}
        for edit in filter(None, map(str.strip, edited.splitlines())):
            name, _, change = edit.partition(": ")
            old, new = (part.strip().replace("\\n", "\n") for part in change.split("||"))
            assert old in FILES[name]
            changed = {name: FILES[name].replace(old, new)}
            key = "hash_function(kernel)"
            cases.append(Case(f"{section}: {top} {body} [{edit}]", expect, sources, key, key, changed))
    return cases


LOWERED = """
    pack/lower.py: + 1 || + 2
    pack/passes.py: RATE = 2 || RATE = 3
    pack/passes.py: x * RATE || x - RATE
"""

CASES: list[Case] = [
    *projects(
        "imported as it runs",
        "change",
        """
        from pack.lower import lower; return lower(x)
        from pack import lower; return lower.lower(x)
        import pack.lower as low; return low.lower(x)
        import pack; return pack.lower.lower(x)
        import importlib; return importlib.import_module("pack.lower").lower(x)
        from importlib import import_module; return import_module("pack.lower").lower(x)
        return __import__("pack.lower").lower.lower(x)
        return __import__("pack.lower", fromlist=["lower"]).lower(x)
        import importlib; return importlib.import_module(".lower", "pack").lower(x)
        """,
        LOWERED + "pack/__init__.py: LEVEL = 1 || LEVEL = 2",
    ),
    *projects(
        "imported through an alias",
        "change",
        """
        return load("pack.lower").lower(x)
        """,
        LOWERED,
        top="from importlib import import_module as load",
    ),
    *projects(
        "imported deeper",
        "change",
        """
        from pack.inner import deep; return deep.DEPTH
        from pack.inner.deep import DEPTH; return DEPTH
        """,
        """
        pack/inner/deep.py: DEPTH = 3 || DEPTH = 4
        pack/passes.py: RATE = 2 || RATE = 3
        pack/inner/__init__.py:  || X = 1
        """,
    ),
    *projects("namespace", "change", "import space.part; return space.part.N", "space/part.py: N = 4 || N = 5"),
    *projects(
        "module at the top",
        "change",
        """
        return other.helper(x)
        return [f(x) for f in (other.helper,)]
        return getattr(other, "helper")(x)
        return vars(other)["helper"](x)
        """,
        """
        other.py: x + M || x - M
        other.py: M = 5 || M = 6
        """,
        top="import other",
    ),
    *projects(
        "package passed around",
        "change",
        """
        return run(pack, x)
        """,
        LOWERED + "pack/inner/deep.py: DEPTH = 3 || DEPTH = 4\n pack/__init__.py: LEVEL = 1 || LEVEL = 2",
        top="import pack.lower\ndef run(module, x): return module.lower.lower(x)",
    ),
    *projects(
        "attribute of a module that is made on demand",
        "change",
        """
        return lazy.rate
        """,
        """
        pack/lazy.py: else 0 || else 1
        pack/passes.py: RATE = 2 || RATE = 3
        """,
        top="from pack import lazy",
    ),
    *(
        Case(
            f"module put in the place of another: {change}",
            "change",
            {**FILES, "main.py": "import types, pack.inner.deep\ndef kernel(x):\n    return pack.inner.deep.DEPTH\n"},
            "hash_function(kernel)",
            "hash_function(kernel)",
            then=change,
        )
        for change in (
            "pack.inner.deep = types.SimpleNamespace(DEPTH=4)",
            "pack.inner = types.SimpleNamespace(deep=types.SimpleNamespace(DEPTH=4))",
            "pack.inner.deep.DEPTH = 4",
        )
    ),
    *projects(
        "not imported",
        "same",
        """
        from pack.lower import lower; return lower(x)
        import importlib; return importlib.import_module("pack.lower").lower(x)
        return x
        """,
        """
        unrelated.py: Z = 1 || Z = 2
        other.py: M = 5 || M = 6
        pack/inner/deep.py: DEPTH = 3 || DEPTH = 4
        """,
        top="import unrelated",
    ),
    *projects(
        "not used of a module",
        "same",
        """
        return other.M
        """,
        """
        other.py: x + M || x - M
        """,
        top="import other",
    ),
    *projects(
        "module by a name that is not written",
        "refused",
        """
        import importlib; return importlib.import_module("pack." + x)
        return __import__(x)
        return list(map(__import__, [x]))
        """,
        "unrelated.py: Z = 1 || Z = 2",
    ),
]
