"""`kcachefs warm`: what every start needs is compiled once, and again only when it was evicted.

tests/frameworks/test_inductor.py has that of torch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcachefs.frameworks import bytecode
from kcachefs.session import account
from tests.engines.mounting import Mount
from tests.frameworks.commands import kcachefs
from tests.frameworks.environments import Environment, compiled, plain, warm

pytestmark = pytest.mark.mount


def test_the_bytecode_of_a_distribution_is_compiled_once(base: Path) -> None:
    environment = Environment(base / "venv")
    (environment.site / "rich" / "template.py").write_text("this is {{ no }} Python")
    record = next(environment.site.glob("rich-*.dist-info")) / "RECORD"
    record.write_text(record.read_text() + "rich/template.py,,\n")
    with Mount(base / "mount", base / "store", "direct") as mount:
        command = ("--python", environment.python, "Rich")
        first = warm(mount, *command)
        assert [name.split()[:3] for name in first["compiled"]] == [["bytecode", "of", "rich"]]
        assert warm(mount, *command)["known"] == first["compiled"]
        values = bytecode.variables(
            mount.mountpoint, bytecode.judge_command([str(environment.python)], {**plain(), "PATH": "/usr/bin"})
        )
        code = "import rich.table, rich.progress, rich.markdown, rich.traceback"
        done = environment.run(code, "-v", env=values)
        assert [line for line in compiled(done) if "/rich/" in line] == []
        account.read(mount.mountpoint)
        kcachefs("evict", "--mount", mount.mountpoint, "python/*/rich")
        assert warm(mount, *command)["compiled"] == first["compiled"]


def test_what_cannot_be_warmed_is_one_line(base: Path) -> None:
    environment = Environment(base / "venv")
    with Mount(base / "mount", base / "store", "direct") as mount:
        for arguments, words in (
            (["--python", str(environment.python), "no-such-package"], "no-such-package: is not installed"),
            (["--python", str(environment.python), "--gpu"], "--gpu: needs torch"),
            (["--python", str(base / "nothing" / "python")], "is not there"),
        ):
            done = kcachefs("warm", "--mount", mount.mountpoint, *arguments, check=False)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert words in done.stderr
        told = kcachefs("warm", "--mount", mount.mountpoint, "--python", environment.python).stdout
        assert told.startswith("nothing to do")


def test_where_everybody_may_write_no_bytecode_is_kept_and_none_is_put_beside_the_sources(base: Path) -> None:
    environment = Environment(base / "venv")
    with Mount(base / "mount", base / "store", "direct", "--policy", "publish") as mount:
        command = [str(environment.python)]
        judged = bytecode.judge_command(command, {**plain(), "PATH": "/usr/bin"})
        assert judged.is_used
        assert bytecode.variables(mount.mountpoint, judged) == {}
        told = warm(mount, "--python", environment.python, "rich")
        assert (told["compiled"], told["known"]) == ([], [])
    assert not (environment.site / "rich" / "__pycache__").exists()
