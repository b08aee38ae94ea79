"""Requests made from the server's own OpenAPI document, right and wrong: never a 5xx, never a traceback (case 24)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error

from jetspec_engine.config import ServeConfig
from jetspec_engine.server.app import create_app
from support.fake_engine import FakeEngine
from support.live_server import LiveServer

TIMEOUT_S = 30
QUICK = {"max_examples": 20, "deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module")
def live_fake() -> Iterator[LiveServer]:
    with LiveServer(FakeEngine()) as live:
        yield live
        # Everything was answered before this; a traceback would be here.
        assert live.logs == []


@pytest.fixture(scope="module")
def live_real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    from support.tiny_pairs import assembled_rig, make_tiny_pair

    folder: Path = tmp_path_factory.mktemp("pair")
    with (
        assembled_rig({**make_tiny_pair(folder), "dtype": "float32", "num_threads": 1}) as rig,
        LiveServer(rig.engine) as live,
    ):
        yield live
        assert live.logs == []


def document() -> dict[str, Any]:
    """Return the server's OpenAPI document; it is the same whatever engine runs."""
    engine = FakeEngine()
    try:
        return create_app(engine, ServeConfig(engine="embedded", target="fake-model", port=0)).openapi()
    finally:
        engine.close()


schema = schemathesis.openapi.from_dict(document())


def answered(case: Any, url: str) -> None:
    """Send the request and look at the answer: no 5xx, and an error is an error document."""
    response = case.call(base_url=url, timeout=TIMEOUT_S)
    # What a route cannot do here is 501, what has no room 503: both are said, with a reason.
    if response.status_code not in (501, 503):
        case.validate_response(response, checks=[not_a_server_error])
    if response.status_code >= 400 and response.status_code not in (404, 405):
        assert response.json()["error"]["message"]


@schema.parametrize()
@settings(**QUICK)
def test_case_24_what_the_schema_can_say_is_answered_or_refused(case: Any, live_fake: LiveServer) -> None:
    answered(case, live_fake.url)


@pytest.mark.slow
@schema.parametrize()
@settings(**{**QUICK, "max_examples": 300, "derandomize": False})
def test_case_24_and_so_it_is_over_the_real_engine(case: Any, live_real: LiveServer) -> None:
    answered(case, live_real.url)


def test_case_24_the_server_lives_and_the_document_names_every_route(live_fake: LiveServer) -> None:
    with httpx.Client(base_url=live_fake.url, trust_env=False) as client:
        paths = set(client.get("/openapi.json").json()["paths"])
        assert client.get("/health_generate").status_code == 200
    wanted = {"/generate", "/v1/completions", "/v1/chat/completions", "/jetspec/tree", "/jetspec/examine", "/metrics"}
    assert wanted <= paths
