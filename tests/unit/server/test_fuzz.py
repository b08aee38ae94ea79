"""Bodies made of real field names and arbitrary JSON never bring out a 5xx, and never the server down (case 24)."""

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetspec_engine.server.decoding_rules import REFUSED_FIELDS
from jetspec_engine.server.schema_jetspec import DetokenizeBody, RenderBody, ScoreBody, TreeBody
from jetspec_engine.server.schema_native import AbortBody, GenerateBody, NativeSampling
from jetspec_engine.server.schema_openai import ChatBody, CompletionBody

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "best_first", "text", "<|im_end|>", "a", 0, 1])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "n", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(st.fixed_dictionaries({"role": SCALARS, "content": VALUES}), max_size=3)


def bodies(names: list[str], **likely: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return bodies that often hold what the route needs, and some other fields with any value."""
    return st.fixed_dictionaries({}, optional={**dict.fromkeys(names, VALUES), "novel": VALUES, **likely})


SAMPLING = bodies(["max_new_tokens", *NativeSampling.model_fields, *sorted(REFUSED_FIELDS)])
CASES = {
    "/generate": bodies(list(GenerateBody.model_fields), text=SCALARS, sampling_params=SAMPLING | VALUES),
    "/v1/completions": bodies(list(CompletionBody.model_fields), prompt=VALUES),
    "/v1/chat/completions": bodies(list(ChatBody.model_fields), messages=MESSAGES),
    "/jetspec/tree": bodies(list(TreeBody.model_fields)),
    "/jetspec/score": bodies(list(ScoreBody.model_fields), input_ids=st.lists(st.integers(0, 300), max_size=5)),
    "/jetspec/render": bodies(list(RenderBody.model_fields), messages=MESSAGES),
    "/jetspec/detokenize": bodies(list(DetokenizeBody.model_fields), ids=st.lists(st.integers(0, 300), max_size=5)),
    "/abort_request": bodies(list(AbortBody.model_fields)),
}


@pytest.mark.parametrize("path", sorted(CASES))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_case_24_any_json_is_answered_or_refused(client: httpx.Client, path: str, data: st.DataObject) -> None:
    answer = client.post(path, json=data.draw(CASES[path]))
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.json()["error"]["message"]


def test_the_server_still_decodes(client: httpx.Client) -> None:
    assert client.get("/health_generate").status_code == 200
