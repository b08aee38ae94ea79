"""Every option given nonsense: one line, a hint, the right exit code, and nothing left behind. No server is started."""

import json
import sys
from pathlib import Path

import pytest
from tests.support.tiny_models import make_tiny_target

from jetspec_cli import app, hints
from jetspec_cli.reporting import json_doc

NOT_UTF8 = b"bad\xff".decode("utf-8", "surrogateescape")
BAD_CONFIG = {
    "serve": [
        ("--tree-width", "0"), ("--tree-width", "9" * 20), ("--max-tree-width", "-1"), ("--max-budget", "0"),
        ("--budget", "0"), ("--budget", "nan"), ("--budget", "16,32"), ("--beta", "nan"), ("--g0", "inf"),
        ("--port", "-1"), ("--page-size", "0"), ("--max-seq-len", "1"), ("--max-running", "0"), ("--threads", "0"),
        ("--engine", ""), ("--engine", NOT_UTF8), ("--dtype", "fp8"), ("--device", "x"), ("--device", "cuda:-1"),
        ("--api-key", "ключ"), ("--api-key", "a b"), ("--drafter", "x"), ("--tree-rule", "a" * 3000), ("--format", ""),
    ],
    "gate": [
        ("--tree-width", ","), ("--budget", "1,"), ("--max-new-tokens", "0"), ("--repeat", "-1"), ("--oracle", ""),
        ("--oracle", "linear,linear"), ("--dtype", "x"), ("--timeout-s", "nan"), ("--timeout-s", "inf"),
        ("--timeout-s", "0"), ("--url", ""), ("--url", "http://"), ("--oracle-url", "ftp://x"), ("--out", ""),
        ("--out", "FOLDER"), ("--junit", "FOLDER"), ("--summary", "FOLDER"), ("--out", "FILE/x"),
        ("--out", "a" * 3000), ("--out", "/proc/x"), ("--gate", "FOLDER"), ("--gate", "BYTES"), ("--gate", "none.toml"),
        ("--api-key", "ключ"), ("--api-key", NOT_UTF8),
    ],
    "bench": [
        ("--concurrency", "0"), ("--request-rate", "nan"), ("--repeat", "0"), ("--compare", ""), ("--out", ""),
        ("--out", "FOLDER"), ("--out", "/proc/x"), ("--timeout-s", "nan"), ("--max-new-tokens", "0"),
    ],
    "sweep": [
        ("--tree-width", ""), ("--beta", "x"), ("--rule", "x"), ("--out", "FILE"), ("--out", "FILE/x"),
        ("--out", "/proc/x"), ("--timeout-s", "inf"),
    ],
    "train-head": [
        ("--set", ""), ("--set", "x"), ("--set", "write=1"), ("--set", "x.y=1"), ("--set", "write.seconds=nan"),
        ("--set", "train.max_steps=-1"), ("--set", "block_size=1"), ("--set", "mask_token_id=-1"),
        ("--set", "tree_width=0"), ("--layers", "0"), ("--target-layers", "-1"),
        ("--anchors", "-1"), ("--lr", "nan"), ("--train-s", "0"), ("--part-s", "-1"), ("--generate-s", "inf"),
        ("--seed", "-1"), ("--device", "x"), ("--out", "FILE"), ("--out", "/proc/x"),
    ],
    "matrix": [("--format", "x"), ("--out", "FOLDER"), ("--out", "none/x.html")],
}  # fmt: skip
BAD_ARTIFACT = {
    "serve": [
        ("--target", ""), ("--target", "/none"), ("--target", "FILE"), ("--target", "FOLDER"), ("--target", NOT_UTF8),
        ("--target", "a" * 3000), ("--target", "no/such/model"), ("--target", "smollm"),
    ],
    "gate": [("--prompts", "FOLDER"), ("--prompts", "BYTES"), ("--prompts", "none"), ("--prompts", "a" * 3000)],
    "sweep": [("--prompts", "FILE,FILE"), ("--prompts", ",")],
    "train-head": [("--held-out", "FOLDER"), ("--target", "FOLDER")],
    "models pull": [("", "FOLDER"), ("", "FILE"), ("", ""), ("", "a" * 3000)],
    "models inspect": [("--target", "FOLDER"), ("--head", "FOLDER"), ("--head", "FILE"), ("--head", "/none")],
    "matrix": [("", "BYTES"), ("", "FOLDER"), ("", "none")],
}  # fmt: skip
PROC_IS_HERE = sys.platform == "linux"


@pytest.fixture
def words_of(tmp_path: Path, prompts: Path, monkeypatch):
    """Return a whole command line around one option; a target that is not there ends whatever goes on."""
    monkeypatch.setenv("JETSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    places = {"FOLDER": tmp_path / "folder", "FILE": prompts, "BYTES": tmp_path / "bytes"}
    places["FOLDER"].mkdir()
    places["BYTES"].write_bytes(b"\xff\xfe\x00bad")

    def words(command: str, option: str, value: str) -> list[str]:
        for name, path in places.items():
            value = value.replace(name, str(path))
        common: dict[str, list[str]] = {
            "serve": ["--target", "/none", "--no-pull"],
            "gate": ["--prompts", str(prompts), "--target", "/none"],
            "bench": ["--prompts", str(prompts), "--target", "/none"],
            "sweep": ["--prompts", str(prompts), "--target", "/none"],
            "train-head": ["--target", "/none", "--out", str(tmp_path / "head")],
            "matrix": [] if not option else [str(tmp_path)],
            "models inspect": ["--target", str(make_tiny_target(tmp_path / "t"))] if option == "--head" else [],
        }
        return [*command.split(), *common.get(command, []), *([option] if option else []), value]

    return words


CASES = [
    (command, option, value, code)
    for table, code in ((BAD_CONFIG, 2), (BAD_ARTIFACT, 4))
    for command, options in table.items()
    for option, value in options
    if PROC_IS_HERE or "/proc" not in value
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(" ".join(case[:3]))[:50])
def test_nonsense_is_one_line_a_hint_and_the_right_code(jetspec, words_of, case):
    command, option, value, code = case
    result = jetspec(*words_of(command, option, value))
    assert result.code == code, result.err
    assert result.out == ""
    lines = result.err.strip().split("\n")
    assert len(lines) == 3, result.err
    assert lines[0].startswith("error: ")
    assert lines[2].startswith("hint: ")
    assert len(lines[2]) > len("hint: ")


def test_a_wrong_flag_of_a_sweep_leaves_no_folder_behind(jetspec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert jetspec("sweep", "--prompts", "none.jsonl", "--out", "results/mine").code == 4
    assert not (tmp_path / "results").exists()


def test_a_result_goes_through_a_link_and_into_a_device(tmp_path):
    real, link, full = tmp_path / "real.json", tmp_path / "link.json", Path("/dev/null")
    real.write_text("old")
    link.symlink_to(real)
    json_doc.write_whole(link, "new")
    assert (real.read_text(), link.is_symlink()) == ("new", True)
    json_doc.write_whole(full, "gone")
    assert full.is_char_device()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_3_and_no_bug_of_ours(jetspec, monkeypatch):
    def write(*_, **__):
        json_doc.write_whole(Path("/dev/full"), "x")

    monkeypatch.setattr("jetspec_cli.serving.checkup.examine", write)
    result = jetspec("doctor")
    assert (result.code, result.err) == (3, f"error: /dev/full: No space left on device\n\nhint: {hints.DISK}\n")


def test_errors_in_json_have_their_hint_too(jetspec):
    result = jetspec("serve", "--max-running", "0", "--format", "json")
    assert json.loads(result.out)["error"]["hint"] == "jetspec serve --help"


def test_case_32_a_key_that_cannot_be_sent_is_refused_without_being_shown(jetspec, prompts):
    result = jetspec("gate", "--prompts", prompts, "--url", "http://127.0.0.1:1", "--api-key", "my secret")
    assert result.code == 2
    assert "secret" not in result.err


def test_the_fallback_names_the_command():
    assert hints.fallback(2, ["models", "pull", "x"]) == "jetspec models pull --help"
    assert hints.fallback(4, ["gate", "--prompts", "x"]) == "jetspec gate --help"
    assert hints.fallback(2, ["--nope"]) == "jetspec --help"
    assert hints.fallback(3, ["serve"]) == "jetspec doctor"
    assert hints.fallback(6, ["gate"]) == ""
    # A child's words are not the user's.
    assert hints.fallback(4, ["serve", "--port", "0", "--stop-with-stdin"]) == ""
    assert app.run(["models", "inspect", "--format", "x"]) == 2
