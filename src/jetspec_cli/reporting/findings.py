"""The findings of a gate document in words: one block a mismatch, an unstable oracle, a failed request, a fault.

Every rendering (terminal, Markdown, JUnit) shows these lines. Reads the document only.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jetspec_cli.reporting.forensics_text import forensics_lines

TITLES = {
    "mismatch": "mismatch",
    "near_tie": "near-tie",
    "unstable_oracle": "unstable oracle",
    "failed": "failed request",
}
CHECKS = {"accounting": "counters", "teacher_forced": "not the argmax"}


def findings(document: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield (title, lines) for everything that is not identical, in the order it happened."""
    for comparison in document["comparisons"]:
        if comparison["verdict"] != "identical":
            yield title_of(comparison), comparison_lines(comparison)
    for fault in document["faults"]:
        check = CHECKS.get(fault["check"], f"probe {fault['check']}")
        where = f"{fault['prompt_id']}, {fault['label']}, {fault['dtype']}"
        yield f"{check} ({TITLES.get(fault['verdict'], fault['verdict'])}): {where}", [fault["detail"]]


def title_of(comparison: Mapping[str, Any]) -> str:
    """Return the first line of a comparison's block."""
    title = TITLES.get(comparison["verdict"], comparison["verdict"])
    sides = f"{comparison['cell']} against {comparison['oracle']}"
    again = f", repeat {comparison['attempt']}" if comparison["attempt"] else ""
    return f"{title}: prompt {comparison['prompt_id']}, {sides}, {comparison['dtype']}{again}"


def comparison_lines(comparison: Mapping[str, Any]) -> list[str]:
    """Return the block below a comparison's title."""
    report = comparison.get("mismatch")
    if not report:
        return [comparison["detail"]]
    lines = []
    if report["unit"] == "token_ids" and report["oracle"] != report["candidate"]:
        sides = f"oracle {_token(report['oracle'])}, tree {_token(report['candidate'])}"
        lines.append(f"token {report['position']}: {sides}")
    else:
        lines.append(comparison["detail"])
    lines += [_gap(report), *_logits(report), *_round(report), *forensics_lines(report)]
    if report.get("incomplete"):
        lines.append(f"the report is incomplete: {report['incomplete']}")
    return lines


def _token(side: Mapping[str, Any]) -> str:
    if side["token_id"] is None:
        return "the end"
    return f"{side['token_id']}" + (f" {side['text']!r}" if side.get("text") is not None else "")


def _gap(report: Mapping[str, Any]) -> str:
    if "gap_nats" not in report:
        reason = "one side had ended" if report["verdict"] == "logic" else "no logits to be had"
        return f"verdict: {report['verdict']} ({reason})"
    unit = f"one ULP of {report['dtype']} is {_number(report['ulp'])} there"
    gap = f"gap {_number(report['gap_nats'])} nats, {_number(report['gap_ulp'])} ULP; {unit}"
    return f"verdict: {report['verdict'].replace('_', '-')} ({gap})"


def _logits(report: Mapping[str, Any]) -> Iterator[str]:
    sides = report.get("logits", {})
    for name, side in sides.items():
        top = ", ".join(f"{_token(row)} {_number(row['logit'])}" for row in side["top"])
        which = f"of the {name}'s server" if len(sides) > 1 else "given the common prefix"
        yield f"top logits {which}: {top}"
        emitted = ", ".join(f"{token}: {_number(row['logit'])}" for token, row in side["emitted"].items())
        yield f"logits of the two tokens: {emitted}"


def _round(report: Mapping[str, Any]) -> Iterator[str]:
    found = report.get("round")
    if found:
        of = f" of {found['num_tokens']}" if "num_tokens" in found else ""
        node = f", node {found['node']}" if found.get("node") is not None else ""
        yield f"round {found['index']}, depth {found['depth']}{of}{node}: {found['source']}"
    if report.get("replay") and report["replay"] != "same tokens":
        yield f"replay: {report['replay']}"


def _number(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.4g}"
