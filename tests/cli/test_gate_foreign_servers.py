"""``jetspec gate`` against servers that are not ours: what can be compared is, and the rest is said (R53)."""

import pytest

from support.mock_server import Script, mock_server


@pytest.mark.parametrize("kind", ["sglang", "openai"])
def test_R53_two_foreign_servers_are_compared(jetspec, prompts, tmp_path, kind):
    text_only = tmp_path / "p.jsonl"
    text_only.write_text("".join(line + "\n" for line in prompts.read_text().splitlines() if "input_ids" not in line))
    with mock_server(Script(kind=kind)) as (url, _), mock_server(Script(kind=kind)) as (oracle_url, _):
        result = jetspec("gate", "--prompts", text_only, "--url", url, "--oracle-url", oracle_url, "--format", "json")
    assert result.code == 0
    compared = {row["prompt_id"]: row["compared"] for row in result.document["comparisons"]}
    assert compared["text-1"] == ("token_ids" if kind == "sglang" else "text")
    assert compared["chat-1"] == "text"
    assert {row["cell"] for row in result.document["comparisons"]} == {"as started"}


def test_R53_a_difference_in_text_is_found(jetspec, prompts):
    def change(call, tokens):
        return [*tokens[:-1], tokens[-1] + 1]

    with mock_server(Script(kind="openai", change=change)) as (url, _), mock_server() as (oracle_url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--oracle-url", oracle_url, "--format", "json")
    rows = {row["prompt_id"]: row for row in result.document["comparisons"]}
    assert result.code == 1
    assert rows["text-1"]["mismatch"]["unit"] == "text"
    assert rows["text-1"]["mismatch"]["verdict"] == "unclassified"


def test_R53_missing_ids_and_flushes_are_said(jetspec, prompts):
    script = Script(has_token_ids=False, can_flush=False)
    with mock_server(script) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url)
    assert result.code == 0
    assert "no token ids, so texts are compared" in result.out
    assert "the cache state is unknown" in result.out


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_servers_of_two_dtypes_are_named(jetspec, prompts, dtype):
    with mock_server() as (url, _), mock_server(Script(info={"dtype": dtype})) as (oracle_url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--oracle-url", oracle_url)
    said = f"{oracle_url}: runs float32, the other bfloat16: tokens may differ by that alone"
    assert (said in result.out) == (dtype == "float32")


def test_R53_our_server_can_be_the_oracle_of_another(jetspec, prompts):
    with mock_server(Script(kind="sglang")) as (url, candidate), mock_server() as (oracle_url, oracle):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--oracle-url", oracle_url, "--format", "json")
    assert result.code == 0
    # Our side's token ids are sent to both, so that chats are compared by ids too.
    assert {row["compared"] for row in result.document["comparisons"]} == {"token_ids"}
    assert "/v1/chat/completions" not in candidate.paths()
    assert oracle.tree["width"] == 4
    assert not [path for path in candidate.paths() if path.startswith("/jetspec")]


REFUSALS = {
    "no oracle": (["--tree-width", "4"], "cannot switch trees, so it cannot be its own oracle"),
    "trees on a fixed server": (["--tree-width", "4", "--oracle-url", "URL"], "cannot switch trees"),
    "two oracles on a fixed server": (["--oracle", "linear,greedy", "--oracle-url", "URL"], "so it is only one"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_R53_what_a_foreign_server_cannot_do_is_refused(jetspec, prompts, name):
    flags, reason = REFUSALS[name]
    with mock_server(Script(kind="sglang")) as (url, _):
        flags = [url if flag == "URL" else flag for flag in flags]
        result = jetspec("gate", "--prompts", prompts, "--url", url, *flags)
    assert result.code == 2
    assert reason in result.err


def test_options_of_a_server_to_start_do_not_go_with_a_url(jetspec, prompts):
    with mock_server() as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url, "--target", "x")
    assert result.code == 2
    assert "together with --url" in result.err


def test_a_dtype_is_checked_against_what_the_server_runs(jetspec, prompts):
    with mock_server() as (url, _):
        right = jetspec("gate", "--prompts", prompts, "--url", url, "--dtype", "bfloat16")
        wrong = jetspec("gate", "--prompts", prompts, "--url", url, "--dtype", "float32")
    assert (right.code, wrong.code) == (0, 2)
    assert "dtypes: float32, the server at" in wrong.err


def test_a_tree_larger_than_the_server_reserves_is_refused_before_the_run(jetspec, prompts):
    with mock_server() as (url, state):
        wide = jetspec("gate", "--prompts", prompts, "--url", url, "--tree-width", "9")
        large = jetspec("gate", "--prompts", prompts, "--url", url, "--budget", "256")
    assert (wide.code, large.code) == (2, 2)
    assert "/generate" not in state.paths()


def test_a_key_is_asked_for(jetspec, prompts):
    with mock_server(Script(status=lambda path, number: 401)) as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url)
    assert result.code == 6
    assert "401" in result.err
