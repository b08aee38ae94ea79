"""The self-test's seeded faults, put in force for a test of its own."""

import pytest

from jetspec_engine import registry


def put_in_force(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the engine until the test ends."""
    (mutant,) = (one for one in registry.self_test().mutants if one.name == name)
    for owner, attribute, replacement in mutant.patches():
        monkeypatch.setattr(owner, attribute, replacement)
