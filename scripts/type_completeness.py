#!/usr/bin/env python3
"""Checks with pyright that every public name of the library has a type that all type checkers agree on.

Needs pyright, for which Python's packages suffice: pip install 'pyright[nodejs]'. Prints what lacks a type, and fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# The library as it is documented. The filesystem's own modules are for itself, and checked by mypy.
LIBRARY = ("kcachefs.caches", "kcachefs.cuda", "kcachefs.event_loops", "kcachefs.keys", "kcachefs.torch")
# Their base classes come from packages without types.
WITHOUT_TYPED_BASE = ("kcachefs.cuda.ProgramCache", "kcachefs.cuda.program.ProgramCache")


def main() -> int:
    command = shutil.which("pyright")
    if command is None:
        print("pyright is not installed: pip install 'pyright[nodejs]'", file=sys.stderr)
        return 2
    missing = incomplete(command)
    for name, why in missing.items():
        print(f"{name}: {why}")
    return 1 if missing else 0


def incomplete(command: str) -> dict[str, str]:
    """Public names without a known type, and what pyright says about each."""
    words = [command, "--pythonpath", sys.executable, "--verifytypes", "kcachefs", "--ignoreexternal", "--outputjson"]
    # Not in the checkout, where pyright would check the sources instead of the package.
    ran = subprocess.run(
        words, cwd="/", env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    symbols = json.loads(ran.stdout)["typeCompleteness"]["symbols"]
    return {symbol["name"]: _reason(symbol) for symbol in symbols if _is_ours(symbol["name"]) and not _is_known(symbol)}


def _is_ours(name: str) -> bool:
    if name in WITHOUT_TYPED_BASE:
        return False
    return any(name.startswith(module + ".") for module in LIBRARY)


def _is_known(symbol: dict[str, Any]) -> bool:
    return bool(symbol["isTypeKnown"]) and not symbol.get("isTypeAmbiguous", False)


def _reason(symbol: dict[str, Any]) -> str:
    messages = [item["message"] for item in symbol["diagnostics"] if "docstring" not in item["message"]]
    return " ".join(" ".join(messages).split()) or "a part of it has no known type"


if __name__ == "__main__":
    sys.exit(main())
