"""docs/configuration.md lists the options that there are, with their defaults, and its example is valid."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from kcachefs.cli.mount_helper import parse_options
from kcachefs.daemon.options import OPTIONS
from kcachefs.mounts.config_files import checked

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "configuration.md").read_text()


def test_the_table_has_every_option_in_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| (\S+) \|", PAGE, re.MULTILINE)
    assert [(name, live == "yes") for name, live, _ in rows] == [(one.name, one.is_live) for one in OPTIONS]
    for option, (_, _, default) in zip(OPTIONS, rows, strict=True):
        if default == "none":
            assert option.default in (None, {}, [])
        elif option.name not in ("policy", "allow_other"):
            told = default.strip("`")
            given = {"true": True, "false": False}.get(told, told)
            assert option.value(given) == option.value(option.default), option.name


def test_the_examples_are_valid() -> None:
    [example] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert set(checked(tomllib.loads(example))) >= {"max_size", "floor"}
    [line] = re.findall(r"^/\S+ +/\S+ +kcachefs +(\S+) ", PAGE, re.MULTILINE)
    assert parse_options(line)["floor"] == ["triton=10GiB", "inductor=5GiB"]
