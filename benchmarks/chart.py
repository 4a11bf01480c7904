"""Draws what `scripts/gpu_check --json FILE` measured: python -m benchmarks.chart FILE > chart.svg."""

from __future__ import annotations

import json
import statistics
import sys
from html import escape
from pathlib import Path
from typing import Any

KINDS = (("plain cold", "#b8bcc4"), ("mount cold", "#6f7a8c"), ("plain warm", "#9fd3b0"), ("mount warm", "#1f8a4c"))
WIDTH, LEFT, BAR, GAP, TOP = 720, 110, 14, 18, 44


def chart(machine: str, rounds: dict[str, list[dict[str, Any]]]) -> str:
    """Bars of the seconds until the first result, four for each program."""
    medians = {
        name: {kind: statistics.median(one["runs"][kind]["seconds"] for one in many) for kind, _ in KINDS}
        for name, many in rounds.items()
    }
    scale = (WIDTH - LEFT - 70) / max(max(times.values()) for times in medians.values())
    block = len(KINDS) * BAR + GAP
    height = TOP + block * len(medians) + 28
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="10" y="18" font-size="14" font-weight="bold">Seconds until the first result</text>',
    ]
    for index, (kind, colour) in enumerate(KINDS):
        x = LEFT + 120 * index
        parts.append(f'<rect x="{x}" y="26" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="35">{kind}</text>')
    for row, (name, times) in enumerate(medians.items()):
        top = TOP + row * block + 6
        parts.append(f'<text x="{LEFT - 8}" y="{top + 2 * BAR + 4}" text-anchor="end">{escape(name)}</text>')
        for index, (kind, colour) in enumerate(KINDS):
            y, width = top + index * BAR, max(1.0, times[kind] * scale)
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + width + 5:.1f}" y="{y + BAR - 4}" font-size="11">{times[kind]:.2f}</text>')
    parts.append(f'<text x="10" y="{height - 8}" font-size="11" fill="#555">{escape(machine)}</text></svg>')
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    measured = json.loads(Path(sys.argv[1]).read_text())
    sys.stdout.write(chart(measured["machine"], measured["rounds"]))
