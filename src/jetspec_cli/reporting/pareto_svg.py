"""The Pareto plot as inline SVG: accept ratio against step cost ratio, and the line where a tree breaks even.

Points above the line pay. Colours come from the page's own style, so that it follows light and dark. Knows plain
data only.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 400, 56, 48, 16, 16
CLASS_OF_VERDICT = {
    "pays": "pays",
    "does not pay": "loses",
    "unclear": "unclear",
    "predicted to pay": "pays predicted",
    "predicted not to pay": "loses predicted",
}
Point = tuple[str, float, float, str]


def points_of(cells: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Return (label, step cost ratio, accept ratio, verdict) of the tree cells that have both."""
    found = []
    for cell in cells:
        against = cell["against"].get("linear") or {}
        step, accept = against.get("step_cost_ratio"), against.get("accept_ratio")
        if cell["role"] == "tree" and step is not None and accept is not None:
            found.append((cell["label"], step, accept, against["verdict"]))
    return found


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other one beats in both ratios, by rising step cost."""
    best, found = float("-inf"), []
    for point in sorted(points, key=lambda one: (one[1], -one[2])):
        if point[2] > best:
            found.append(point)
            best = point[2]
    return found


def render(points: Sequence[Point], name: str) -> str:
    """Return the SVG element; empty without points."""
    if not points:
        return ""
    low, high = limits([value for point in points for value in point[1:3]])

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-t {name}-d">',
        f'<title id="{name}-t">Accept ratio against step cost ratio</title>',
        f'<desc id="{name}-d">{escape(_in_words(points))}</desc>',
    ]
    for tick in range(6):
        value = low + (high - low) * tick / 5
        parts.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:.2f}</text>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    parts.append(f'<line class="even" x1="{x(low)}" y1="{y(low)}" x2="{x(high)}" y2="{y(high)}"/>')
    parts.append(f'<text class="hint" x="{LEFT + 10}" y="{TOP + 16}">above the line: the tree pays</text>')
    line = " ".join(f"{x(step):.1f},{y(accept):.1f}" for _, step, accept, _ in front(points))
    parts.append(f'<polyline class="front" points="{line}"/>')
    for label, step, accept, verdict in points:
        shown = escape(f"{label}: accept ratio {accept:.3f}, step cost ratio {step:.3f}, {verdict}")
        kind = CLASS_OF_VERDICT.get(verdict, "unclear")
        parts.append(
            f'<circle class="{kind}" cx="{x(step):.1f}" cy="{y(accept):.1f}" r="6"><title>{shown}</title></circle>'
        )
    middle = (WIDTH + LEFT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">step cost ratio to linear</text>')
    turn = f"rotate(-90 14 {HEIGHT / 2})"
    parts.append(f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" transform="{turn}">accept ratio to linear</text>')
    return "\n".join([*parts, "</svg>"])


def limits(values: Sequence[float]) -> tuple[float, float]:
    """Return one range for both axes that holds every value and 1.0, with a margin."""
    low, high = min(*values, 1.0), max(*values, 1.0)
    margin = max(0.02, (high - low) * 0.08)
    return low - margin, high + margin


def _in_words(points: Sequence[Point]) -> str:
    above = sum(1 for point in points if point[2] > point[1])
    return f"{len(points)} tree settings, {above} above the break-even line where both ratios are equal."
