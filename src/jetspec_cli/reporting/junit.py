"""JUnit XML of a gate run: a suite a dtype, cell and oracle, a case a prompt. Standard library only."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

from jetspec_cli.reporting.findings import comparison_lines, title_of
from jetspec_cli.reporting.tables import conclusion

# What XML 1.0 cannot hold, not even escaped.
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
ELEMENT = {"mismatch": "failure", "near_tie": "failure", "unstable_oracle": "error", "failed": "error"}


def render(document: Mapping[str, Any]) -> str:
    """Return a gate document as JUnit XML. Tolerated near-ties are passing cases with a note."""
    can_near_tie = bool(document["configuration"]["allow_near_ties"])
    root = ET.Element("testsuites", name="jetspec gate")
    suites: dict[str, ET.Element] = {}
    for comparison in document["comparisons"]:
        name = f"{comparison['dtype']} {comparison['cell']} against {comparison['oracle']}"
        suite = _suite(root, suites, name, document)
        case = _case(suite, comparison["prompt_id"], comparison["text_class"], comparison["attempt"])
        if comparison["verdict"] != "identical":
            _finding(case, comparison["verdict"], title_of(comparison), comparison_lines(comparison), can_near_tie)
    for check, result in document["summary"]["checks"].items():
        faults = [fault for fault in document["faults"] if fault["check"] == check]
        suite = _suite(root, suites, f"check {check}", document)
        if not faults and result["num_checked"]:
            _case(suite, check, "", 0)
        for fault in faults:
            case = _case(suite, f"{fault['prompt_id']} {fault['label']} {fault['dtype']}", "", 0)
            _finding(case, fault["verdict"], fault["detail"], [fault["detail"]], can_near_tie)
    if document["error"] or not document["comparisons"]:
        case = _case(_suite(root, suites, "run", document), "run", "", 0)
        text = document["error"] or conclusion(document)
        _finding(case, "failed", text, [text], False)
    for suite in [*suites.values(), root]:
        for attribute, path in (("tests", ".//testcase"), ("failures", ".//failure"), ("errors", ".//error")):
            suite.set(attribute, str(len(suite.findall(path))))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, suites: dict[str, ET.Element], name: str, document: Mapping[str, Any]) -> ET.Element:
    if name not in suites:
        suites[name] = ET.SubElement(root, "testsuite", name=clean(name), timestamp=document["started_at"])
    return suites[name]


def _case(suite: ET.Element, name: str, text_class: str, attempt: int) -> ET.Element:
    classname = f"gate.{text_class}" if text_class else "gate"
    shown = f"{name} (repeat {attempt})" if attempt else name
    return ET.SubElement(suite, "testcase", classname=clean(classname), name=clean(shown))


def _finding(case: ET.Element, verdict: str, title: str, lines: Sequence[str], can_near_tie: bool) -> None:
    if verdict == "near_tie" and can_near_tie:
        ET.SubElement(case, "system-out").text = clean("\n".join([title, *lines]))
        return
    element = ET.SubElement(case, ELEMENT.get(verdict, "failure"), message=clean(title), type=verdict)
    element.text = clean("\n".join(lines))


def clean(text: str) -> str:
    """Return text with the characters XML cannot hold spelled as escapes."""
    return NOT_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
