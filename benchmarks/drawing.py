"""SVG, drawn by hand: shapes, texts and axes that read well on a light and on a dark page."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 } .small { font-size: 11px } .dim { fill: #656d76 }
.grid { stroke: #d0d7de; stroke-width: 1 } .axis { stroke: #8c959f; stroke-width: 1 }
.paper { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .dim { fill: #9198a1 } .grid { stroke: #30363d } .axis { stroke: #6e7681 }
  .paper { fill: #0d1117 }
}
"""


@dataclass
class Drawing:
    """A picture of that size; the shapes in the order in which they are drawn."""

    width: float
    height: float
    shapes: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start", colour: str = "") -> None:
        style = f' style="fill:{colour}"' if colour else ""
        self.shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"{style}>{escape(text)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        self.shapes.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def stroke(self, points: list[tuple[float, float]], colour: str, width: float = 2, dash: str = "") -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}'
            ' stroke-linejoin="round" stroke-linecap="round"/>'
        )

    def dot(self, x: float, y: float, radius: float, colour: str, hollow: bool = False) -> None:
        if hollow:
            ring = f'class="paper" stroke="{colour}" stroke-width="2"'
        else:
            ring = f'fill="{colour}"'
        self.shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" {ring}/>')

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="2" fill="{colour}"/>'
        )

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} {self.height:.0f}" '
            f'width="{self.width:.0f}" height="{self.height:.0f}">\n<style>{STYLE}</style>\n'
            '<rect width="100%" height="100%" class="paper"/>\n'
        )
        return head + "\n".join(self.shapes) + "\n</svg>\n"


@dataclass(frozen=True)
class Log:
    """An axis on which equal steps are equal factors, from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """The powers of ten, or where there is but one of them also twice and five times those."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1,), (1, 2, 5)):
            found = [step * 10.0**power for power in powers for step in steps]
            found = [tick for tick in found if self.low <= tick <= self.high]
            if len(found) > 1:
                break
        return found


def around(values: list[float], room: float = 1.4) -> tuple[float, float]:
    """The ends of a logarithmic axis that shows all of them, with at least a factor of ten between."""
    low, high = min(values) / room, max(values) * room
    if high / low < 10:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(10), middle * math.sqrt(10)
    return low, high


def short(value: float) -> str:
    """For an axis: 10, 1k, 1M."""
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{letter}"
    return f"{value:g}"
