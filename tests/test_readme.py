"""The README: every link leads somewhere, on the package index too, and what people need first comes first."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
page = runpy.run_path(str(ROOT / "scripts" / "index_page.py"))["page"]


@pytest.mark.parametrize("name", ["README.md", "docs/usage.md", "docs/performance.md", "docs/live.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    path = ROOT / name
    links = re.findall(r"\]\(([^)]+)\)", path.read_text())
    assert len(links) > 1
    for link in links:
        target, _, heading = link.partition("#")
        assert target.startswith("https:") or (path.parent / target).exists(), link
        if heading:
            titles = re.findall(r"^#+ (.*)$", (path.parent / target).read_text(), flags=re.MULTILINE)
            assert heading in [title.lower().replace(" ", "-") for title in titles], link


def test_the_index_shows_no_link_that_leads_nowhere() -> None:
    shown = page(TEXT)
    assert re.findall(r"\]\((?!https?:)", shown) == []
    assert "docs/usage.md" in shown, "a link becomes its text"
    absolute = page(TEXT, "https://example.org/kcachefs/")
    links = re.findall(r"\]\(([^)]+)\)", absolute)
    assert all(link.startswith("https:") for link in links)
    assert "https://example.org/kcachefs/docs/usage.md" in links
    assert len(links) == len(re.findall(r"\]\(", TEXT))


def test_the_example_runs(tmp_path: Path) -> None:
    [example] = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "usage.md").read_text(), re.MULTILINE | re.DOTALL
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # it leaves a cache
    subprocess.run([sys.executable, "-c", example], check=True, cwd=ROOT, env=environment)


def test_each_example_of_the_library_runs_by_itself(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "library.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        example = tmp_path / f"example{number}.py"
        example.write_text(block)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "KCACHEFS_CACHE_DIR": str(tmp_path / "cache")}
        subprocess.run([sys.executable, example], check=True, env=environment)
    assert "CacheInfo(hits=1, misses=1, objects=1)" in blocks[-1]
    example.write_text(f"{blocks[-1].partition('build.cache_info()')[0]}print(build.cache_info())")
    environment["KCACHEFS_CACHE_DIR"] = str(tmp_path / "another")
    shown = subprocess.run([sys.executable, example], check=True, env=environment, capture_output=True, text=True)
    assert shown.stdout == "CacheInfo(hits=1, misses=1, objects=1)\n"


@pytest.mark.parametrize("name", ["README.md", "docs/usage.md", "docs/performance.md", "docs/live.md"])
def test_every_block_is_closed(name: str) -> None:
    assert len(re.findall(r"^```", (ROOT / name).read_text(), flags=re.MULTILINE)) % 2 == 0


def test_installing_comes_first_and_success_after_three_lines() -> None:
    headings = re.findall(r"^## (.*)$", TEXT, flags=re.MULTILINE)
    assert headings[:3] == ["Install", "First success", "Why"]
    blocks = re.findall(r"^```sh\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert blocks[0].startswith("pip install kcachefs")
    assert [line.split()[0] for line in blocks[1].splitlines()] == ["kcachefs", "eval", "python"]
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", TEXT)
    assert pictures[0] == "benchmarks/results/h200.svg"
    assert len(pictures) <= 3, "one chart, and one picture of each live view"
