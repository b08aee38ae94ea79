"""The checks a run must pass by itself: its counters, and the target's argmax at every emitted token."""

from jetspec_cli.gating import records
from jetspec_cli.gating.checks import RunChecks
from jetspec_cli.gating.records import Fault, Record, Run
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import Score
from jetspec_cli.serving.generation import Generation
from jetspec_engine.errors import EngineError

PROMPT = Prompt(prompt_id="p", input_ids=(1, 2))
BEST, NEAR, FAR = 20.0, 19.875, 15.0  # one ULP of bfloat16 is 0.125 there


class Scorer:
    """A server that scores: the emitted token's logit at every position is scripted, the argmax is token 0."""

    url = "http://scorer"

    def __init__(self, *logits: float) -> None:
        self.logits = logits
        self.asked: list[tuple[list[int], int]] = []

    def render(self, prompt: Prompt) -> tuple[int, ...]:
        return prompt.input_ids or ()

    def score(self, ids: list[int], start: int, top_k: int) -> tuple[str, list[Score]]:
        self.asked.append((ids, start))
        return "bfloat16", [self._score(start + n, logit) for n, logit in enumerate(self.logits)]

    def _score(self, position: int, logit: float) -> Score:
        token = 0 if logit == BEST else 9
        return Score(position=position, token_id=token, logit=logit, logprob=logit - 20.1, top=((0, BEST, -0.1),))


class Broken(Scorer):
    def score(self, ids: list[int], start: int, top_k: int) -> tuple[str, list[Score]]:
        raise EngineError("status 500")


def faults_of(client: Scorer, *, role: str = "candidate", times: int = 1) -> list[Fault]:
    record = Record()
    checks = RunChecks(record)
    made = Generation(text="", token_ids=(7, 8, 9), finish="length", num_emitted_tokens=3)
    for attempt in range(times):
        run = Run(
            dtype="bfloat16", prompt_id="p", text_class="", role=role, label="W4 B16", tree=None, attempt=attempt,
            is_cache_flushed=True, generation=made,
        )  # fmt: skip
        checks.check(PROMPT, run, client)
    return record.faults


def test_R52_every_emitted_token_is_scored_given_the_prompt_and_those_before_it():
    client = Scorer(BEST, BEST, BEST)
    assert faults_of(client, times=2) == []
    assert client.asked == [([1, 2, 7, 8, 9], 2)], "once for the same tokens, and whole"
    assert faults_of(oracle := Scorer(FAR), role="oracle") == []
    assert oracle.asked == []


def test_R52_the_check_goes_on_after_a_near_tie_and_one_token_of_logic_decides():
    (fault,) = faults_of(Scorer(NEAR, BEST, FAR))
    assert fault.verdict == records.MISMATCH
    assert [one["position"] for one in fault.report] == [0, 2]
    assert fault.detail.startswith("token 2: 9 was emitted, the argmax is 0, 5 nats or 40 ULP above it")
    (near,) = faults_of(Scorer(NEAR, BEST, NEAR))
    assert near.verdict == records.NEAR_TIE


def test_R52_a_check_that_cannot_be_made_is_a_failure_and_no_pass():
    (fault,) = faults_of(Broken())
    assert (fault.verdict, fault.detail) == (records.FAILED, "scoring failed: status 500")
