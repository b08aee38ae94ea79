"""Engine counters in Prometheus' text format.

Knows the counters' names only to tell gauges from totals.
Source: the Prometheus exposition format, version 0.0.4.
"""

from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GAUGES = {
    "running": ("requests_running", "Requests being decoded."),
    "waiting": ("requests_waiting", "Requests in the queue."),
    "pages_total": ("pages", "Cache pages."),
    "pages_free": ("pages_free", "Cache pages that nothing uses."),
    "pages_cached": ("pages_cached", "Cache pages kept for prefix reuse."),
}
_HELP = {
    "requests_finished": "Requests that ended by themselves.",
    "requests_aborted": "Requests that were aborted.",
    "requests_failed": "Requests that ended with an error.",
    "engine_failures": "Times the engine failed and ended all its requests with an error.",
    "prompt_tokens": "Prompt tokens.",
    "cached_tokens": "Prompt tokens reused from the prefix cache.",
    "emitted_tokens": "Tokens delivered.",
    "rounds": "Target verify forwards, counted for each request.",
    "proposed_drafts": "Draft tokens verified.",
    "correct_drafts": "Draft tokens accepted.",
    "target_forwards": "Target forwards: rounds of all requests together, prompt chunks, scoring.",
    "graph_rounds": "Rounds replayed from a captured graph.",
    "eager_rounds": "Rounds run without a graph.",
}


def render_metrics(counters: Mapping[str, float], codes: Mapping[int, int]) -> str:
    """Return the metrics page.

    Args:
        counters: the engine's counters; a name not known here is a total.
        codes: HTTP answers by status code.
    """
    lines: list[str] = []
    for name, value in sorted(counters.items()):
        if name in _GAUGES:
            metric, text = _GAUGES[name]
            lines += _describe(f"jetspec_{metric}", "gauge", text)
            lines.append(f"jetspec_{metric} {_number(value)}")
        else:
            metric = f"jetspec_{name}_total"
            lines += _describe(metric, "counter", _HELP.get(name, name.replace("_", " ")))
            lines.append(f"{metric} {_number(value)}")
    lines += _describe("jetspec_http_requests_total", "counter", "HTTP requests answered, by status code.")
    lines += [f'jetspec_http_requests_total{{code="{code}"}} {count}' for code, count in sorted(codes.items())]
    return "\n".join(lines) + "\n"


def _describe(metric: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]


def _number(value: float) -> str:
    """Spell a whole number without a fraction."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))
