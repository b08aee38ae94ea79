"""What an investigation of a mismatch found, in words: a line a fact. Reads the mismatch report only."""

from collections.abc import Iterator, Mapping
from typing import Any


def forensics_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the findings of both sides and between them; nothing for a report without an investigation."""
    found = report.get("forensics") or {}
    for side, name in (("candidate", "tree side"), ("oracle", "oracle side")):
        if side in found:
            yield from (f"{name}: {line}" for line in _side_lines(found[side]))
    if "between_sides" in found:
        other = found["between_sides"]
        where = "none: the same bits everywhere" if other is None else _place(other)
        yield f"first tensor that differs between the sides: {where}"
    if found.get("folder"):
        yield f"to attach to a bug report: {found['folder']}"


def _side_lines(side: Mapping[str, Any]) -> Iterator[str]:
    finding = side.get("finding")
    if finding:
        where = f"round {finding['round']}, {_place(finding)}"
        yield f"first tensor that differs from the reference: {where}: {finding['detail']}"
    elif side.get("incomplete"):
        yield str(side["incomplete"])
    else:
        yield f"every step is right within its rounding ({side.get('num_checked_rows', 0)} rows checked)"
    if side.get("repeats") is False:
        yield "decodes other tokens when it is alone"
    if side.get("reference"):
        reference = side["reference"]
        yield f"the float64 reference chooses token {reference['top'][0][0]}, {reference['gap']:.4g} above the next"


def _place(finding: Mapping[str, Any]) -> str:
    layer = "" if finding["layer"] is None else f", layer {finding['layer']}"
    ulps = "" if finding["ulps"] is None else f", {finding['ulps']:.3g} ULP"
    return f"{finding['tensor']}{layer}, row {finding['row']}{ulps}"
