"""A live server over the fake engine, shared by the tests of one file."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from support.fake_engine import FakeEngine
from support.live_server import LiveServer


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with LiveServer(FakeEngine()) as live:
        yield live
        assert live.logs == []


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


@pytest.fixture(scope="module")
def openai_client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made
