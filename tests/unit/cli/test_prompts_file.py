"""Prompts files: what is accepted, and file, line and reason for what is not (case 30, R2)."""

import json

import pytest

from jetspec_cli.prompts import MAX_LINE_BYTES, Prompt, find_repeats, read_prompts, warm_up_prompt
from jetspec_engine.errors import ArtifactError


def write(tmp_path, content: bytes | str):
    path = tmp_path / "p.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_R02_the_three_kinds_of_content(tmp_path):
    lines = [
        {"id": "a", "prompt": "Hi", "class": "chat", "max_new_tokens": 16},
        {"id": "b", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
        {"id": "c", "input_ids": [1, 2, 0]},
    ]
    found = read_prompts(write(tmp_path, "\n".join(map(json.dumps, lines)) + "\n"))
    assert found == [
        Prompt(prompt_id="a", text="Hi", text_class="chat", max_new_tokens=16),
        Prompt(prompt_id="b", messages=(("system", "s"), ("user", "u"))),
        Prompt(prompt_id="c", input_ids=(1, 2, 0)),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"id": "a", "prompt": "x"}\n{"id": "b", "prompt": "y"}\n',
        b'{"id": "a", "prompt": "x"}\r\n{"id": "b", "prompt": "y"}\r\n',
        b'\n\n{"id": "a", "prompt": "x"}\n   \n\t\n{"id": "b", "prompt": "y"}',
    ],
    ids=["byte order mark", "CRLF", "blank lines"],
)
def test_case_30_harmless_oddities_are_accepted(tmp_path, content):
    assert [(prompt.prompt_id, prompt.text) for prompt in read_prompts(write(tmp_path, content))] == [
        ("a", "x"),
        ("b", "y"),
    ]


GOOD = '{"id": "good", "prompt": "x"}\n'
BAD_LINES = {
    "trailing comma": ('{"id": "a", "prompt": "x",}', "not JSON"),
    "not an object": ('["a"]', "expected a JSON object, found a list"),
    "two documents": ('{"id": "a", "prompt": "x"} {"id": "b", "prompt": "y"}', "not JSON"),
    "missing id": ('{"prompt": "x"}', "id is missing"),
    "missing content": ('{"id": "a"}', "exactly one of prompt, messages, input_ids, found none"),
    "two contents": ('{"id": "a", "prompt": "x", "input_ids": [1]}', "found prompt and input_ids"),
    "non-string prompt": ('{"id": "a", "prompt": 5}', "prompt: expected a string, found a number"),
    "non-string id": ('{"id": null, "prompt": "x"}', "id: expected a string, found null"),
    "empty id": ('{"id": "", "prompt": "x"}', "id is empty"),
    "empty prompt": ('{"id": "a", "prompt": ""}', "prompt is empty"),
    "unknown key": ('{"id": "a", "promt": "x"}', "unknown key 'promt'; did you mean prompt?"),
    "repeated key": ('{"id": "a", "prompt": "x", "prompt": "y"}', "key 'prompt' appears twice"),
    "duplicate id": ('{"id": "good", "prompt": "y"}', "id 'good' was used on line 1"),
    "empty messages": ('{"id": "a", "messages": []}', "at least one message"),
    "message without content": ('{"id": "a", "messages": [{"role": "user"}]}', "messages[0]: expected an object"),
    "message of a number": (
        '{"id": "a", "messages": [{"role": "user", "content": 1}]}',
        "messages[0].content: expected a string",
    ),
    "empty ids": ('{"id": "a", "input_ids": []}', "at least one token id"),
    "negative token": ('{"id": "a", "input_ids": [1, -1]}', "input_ids[1]: -1"),
    "true as a token": ('{"id": "a", "input_ids": [true]}', "input_ids[0]: True"),
    "cap of zero": ('{"id": "a", "prompt": "x", "max_new_tokens": 0}', "max_new_tokens: 0"),
    "cap as text": ('{"id": "a", "prompt": "x", "max_new_tokens": "9"}', "max_new_tokens: '9'"),
    "NaN": ('{"id": "a", "prompt": "x", "max_new_tokens": NaN}', "NaN is not a JSON value"),
    "a line break in an id": ('{"id": "a\\nb", "prompt": "x"}', "id: 'a\\nb', expected no control characters"),
    "an escape sequence in a class": ('{"id": "a", "prompt": "x", "class": "\\u001b[2J"}', "class: '\\x1b[2J'"),
    "a turned direction in an id": ('{"id": "a\\u202eb", "prompt": "x"}', "id: 'a\\u202eb'"),
    "half a surrogate pair": ('{"id": "a", "prompt": "\\ud83d"}', "half of a surrogate pair"),
    "a very long integer": ('{"id": "a", "input_ids": [' + "9" * 5000 + "]}", "not a prompt"),
    "deep nesting": ("[" * 100_000, "not a prompt: nested too deeply"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_case_30_bad_lines_name_file_line_and_reason(tmp_path, name):
    line, reason = BAD_LINES[name]
    path = write(tmp_path, GOOD + "\n" + line + "\n")
    with pytest.raises(ArtifactError) as caught:
        read_prompts(path)
    assert caught.value.what.startswith(f"{path}:3: ")
    assert reason in caught.value.what
    assert "\n" not in caught.value.what


def test_case_30_latin_1_bytes(tmp_path):
    path = write(tmp_path, '{"id": "a", "prompt": "café"}'.encode("latin-1"))
    with pytest.raises(ArtifactError, match=r"p\.jsonl:1: byte 27 is 0xe9, not UTF-8"):
        read_prompts(path)


def test_case_30_a_line_over_a_megabyte(tmp_path):
    path = write(tmp_path, GOOD + json.dumps({"id": "a", "prompt": "x" * MAX_LINE_BYTES}))
    with pytest.raises(ArtifactError, match=rf"p\.jsonl:2: a line of \d+ bytes, at most {MAX_LINE_BYTES}"):
        read_prompts(path)


def test_case_30_a_line_just_below_a_megabyte_is_fine(tmp_path):
    line = json.dumps({"id": "a", "prompt": "x" * (MAX_LINE_BYTES - 30)})
    assert len(read_prompts(write(tmp_path, line))) == 1


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_case_30_an_empty_file(tmp_path, content):
    with pytest.raises(ArtifactError, match=r"p\.jsonl:1: no prompts in this file"):
        read_prompts(write(tmp_path, content))


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(ArtifactError, match="No such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(ArtifactError, match="prompts file"):
        read_prompts(tmp_path)


def test_case_33_repeats_are_found_by_content_not_by_id():
    prompts = [Prompt(prompt_id=name, text=text) for name, text in (("a", "x"), ("b", "y"), ("c", "x"))]
    chats = [Prompt(prompt_id="d", messages=(("user", "x"),)), Prompt(prompt_id="e", input_ids=(1,))]
    assert find_repeats([*prompts, *chats]) == [("a", "c")]


def test_R24_the_warm_up_prompt_is_never_one_of_the_set():
    first = warm_up_prompt([])
    second = warm_up_prompt([Prompt(prompt_id="a", text=first.text)])
    assert second.text != first.text
