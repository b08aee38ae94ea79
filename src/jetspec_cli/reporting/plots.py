"""The report as one picture, SVG or PNG: the Pareto plot and the speedup matrices. Needs matplotlib (extra: report).

Knows plain data only; matplotlib is imported when a picture is drawn.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jetspec_cli.reporting import pareto_svg
from jetspec_cli.reporting.matrix_text import LOWER_IS_BETTER, grid, setting_line
from jetspec_engine.errors import ConfigError, InconclusiveError, UnavailableError

COLOR_OF_VERDICT = {
    "pays": "tab:green",
    "does not pay": "tab:red",
    "predicted to pay": "tab:green",
    "predicted not to pay": "tab:red",
}
# Beyond so many points their names would cover them; then only those on the front are named.
MAX_NAMES = 12
# A picture of more takes minutes and gigabytes, and nobody can look at it.
MAX_PANELS = 120
MAX_NUMBERS = 20_000
SHOWN = ("speedup", "step_cost_ratio", "accept_length", "round_ms", "tok_s_at")


def require_matplotlib() -> None:
    """Raise UnavailableError when matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise UnavailableError("missing package: matplotlib", hint="pip install 'jetspec[report]'") from error
    del matplotlib


def draw(report: Mapping[str, Any], path: Path, kind: str) -> None:
    """Write the picture.

    Args:
        report: at least one group with a matrix or a point.
        path: of the file.
        kind: svg or png.

    Raises:
        UnavailableError: matplotlib is missing.
        InconclusiveError: there is nothing to draw.
        ConfigError: there is too much for one picture.
    """
    require_matplotlib()
    # Not pyplot: no display is asked for and no global state is left.
    from matplotlib.figure import Figure

    panels: list[tuple[str, Any, str]] = []
    for group in report["groups"]:
        points = pareto_svg.points_of(group["cells"])
        panels += [("points", points, setting_line(group["setting"]))] if points else []
        about = f"\n{setting_line(group['setting'])}" if len(report["groups"]) > 1 else ""
        shown = [matrix for matrix in group["matrices"] if matrix["metric"] in SHOWN]
        panels += [("matrix", matrix, matrix["title"] + about) for matrix in shown]
    if not panels:
        hint = "jetspec bench --compare linear --out FILE"
        raise InconclusiveError("nothing to draw: no tree cell was measured beside linear", hint=hint)
    _check_size(panels, kind)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6.4 * columns, 4.4 * rows), layout="constrained")
    for place, (shape, content, title) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place)
        axes.set_title(title, fontsize=9, wrap=True)
        (_draw_points if shape == "points" else _draw_matrix)(axes, content)
    figure.savefig(path, format=kind, dpi=150)


def _check_size(panels: Sequence[tuple[str, Any, str]], kind: str) -> None:
    num_numbers = sum(len(m["rows"]) * len(m["columns"]) if shape == "matrix" else len(m) for shape, m, _ in panels)
    if len(panels) > MAX_PANELS or num_numbers > MAX_NUMBERS:
        raise ConfigError(
            f"--format {kind}: {len(panels)} plots of {num_numbers} numbers in one picture, expected at most "
            f"{MAX_PANELS} of {MAX_NUMBERS}",
            hint="--format html shows them all; or name fewer results",
        )


def _draw_points(axes: Any, points: list[pareto_svg.Point]) -> None:
    low, high = pareto_svg.limits([value for point in points for value in point[1:3]])
    axes.plot([low, high], [low, high], linestyle="--", color="tab:gray", label="break-even")
    best = pareto_svg.front(points)
    axes.plot([point[1] for point in best], [point[2] for point in best], color="tab:blue", linewidth=1, label="front")
    for label, step, accept, verdict in points:
        color = COLOR_OF_VERDICT.get(verdict, "tab:gray")
        face = "none" if verdict.startswith("predicted") else color
        axes.scatter([step], [accept], edgecolors=color, facecolors=face)
        if len(points) <= MAX_NAMES or (label, step, accept, verdict) in best:
            axes.annotate(label, (step, accept), fontsize=6, xytext=(4, 4), textcoords="offset points")
    axes.set(xlim=(low, high), ylim=(low, high), xlabel="step cost ratio to linear", ylabel="accept ratio to linear")
    axes.legend(loc="lower right", fontsize=7)


def _draw_matrix(axes: Any, matrix: Mapping[str, Any]) -> None:
    heading, *lines = grid(matrix)
    nothing = float("nan")
    values = [[nothing if value is None else float(value) for value in line] for line in matrix["values"]]
    axes.imshow(values, aspect="auto", cmap="RdYlGn_r" if matrix["metric"] in LOWER_IS_BETTER else "RdYlGn")
    axes.set_xticks(range(len(matrix["columns"])), heading[1:])
    axes.set_yticks(range(len(matrix["rows"])), [line[0] for line in lines])
    axes.set(xlabel=matrix["column_name"], ylabel=matrix["row_name"])
    for row, line in enumerate(lines):
        for column, text in enumerate(line[1:]):
            axes.text(column, row, text, ha="center", va="center", fontsize=9)
