"""Drive SGLang's real scheduler in this process: requests in, token ids out, no sockets and no HTTP.

    python drive_scheduler.py JOBS.json OUT.json [NAME]

SGLang is imported once and each job runs in a fork, as its configuration is global; with a NAME that job alone runs,
in this process (a process that has met CUDA cannot fork). A job: ``words`` (command line) and ``steps``, a list of
{prompts, max_new_tokens, tree?, script?, abort?}, each step on an idle server.
"""

import array
import json
import os
import shutil
import sys
import time
import traceback

from jetspec_engine.sglang_backend.counters import MARKS, counters

ROUNDS_LIMIT = 4000


class Done(Exception):  # noqa: N818 no error
    """All steps of a job are over."""


class Feeder:
    """Stands in for the scheduler's request receiver and for what it sends results to."""

    def __init__(self, scheduler, steps):
        self.scheduler, self.steps, self.step = scheduler, list(steps), -1
        self.results, self.open, self.polls, self.closed_at = [], set(), 0, 0
        self.aborts, self.pieces = {}, {}

    def recv_requests(self, *_, **__):
        self.polls += 1
        assert self.polls < ROUNDS_LIMIT, "too many rounds"
        if self.open:
            aborts = [rid for rid, after in self.aborts.items() if after <= self.polls]
            return [self._abort(self.aborts.pop(rid) and rid) for rid in aborts]
        if self.polls - self.closed_at < 4 and self.step >= 0:
            return []  # lets the scheduler see an idle server
        if self.step >= 0:
            self.results[-1]["free"] = self.scheduler.token_to_kv_pool_allocator.available_size()
        self.step += 1
        if self.step == len(self.steps):
            raise Done
        return self._begin(self.steps[self.step])

    def _abort(self, rid):
        from sglang.srt.managers.io_struct import AbortReq

        self.open.discard(rid)
        self.closed_at = self.polls
        return AbortReq(rid=rid)

    def _begin(self, step):
        from sglang.srt.managers.io_struct import SetInternalStateReq, TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        answer = None
        if "script" in step:
            shutil.copyfile(step["script"], self.script)
            asked = SetInternalStateReq(server_args={"jetspec_reload_script": 1})
            assert self.scheduler.set_internal_state(asked).updated
        if "tree" in step:
            answer = self.scheduler.set_internal_state(SetInternalStateReq(server_args=step["tree"])).updated
        requests, self.aborts = [], {}
        for number, prompt in enumerate(step["prompts"]):
            rid = f"{self.step}-{number}"
            params = SamplingParams(
                max_new_tokens=step["max_new_tokens"], temperature=step.get("temperature", 0.0), ignore_eos=True,
                **step.get("sampling", {}),
            )  # fmt: skip
            params.normalize(None)
            params.verify(1 << 30)
            requests.append(
                TokenizedGenerateReqInput(
                    rid=rid,
                    input_text=None,
                    input_ids=array.array("q", prompt),
                    input_embeds=None,
                    mm_inputs=None,
                    token_type_ids=None,
                    sampling_params=params,
                    return_logprob=False,
                    logprob_start_len=-1,
                    top_logprobs_num=0,
                    token_ids_logprob=None,
                    stream=False,
                )
            )
            if number in step.get("abort", []):
                self.aborts[rid] = self.polls + 6
        self.open = {request.rid for request in requests}
        self.results.append({"switched": answer, "requests": {}})
        return requests

    def send_output(self, payload, *_):
        from sglang.srt.managers.io_struct import unwrap_from_pickle

        for place, rid in enumerate(getattr(payload, "rids", None) or []):
            if rid not in self.open:
                continue
            # A long answer comes in pieces, streamed or not.
            ids, marks = self.pieces.setdefault(rid, ([], []))
            ids += payload.output_ids[place]
            marks += (unwrap_from_pickle(payload.customized_info) or {}).get(MARKS, {place: []})[place]
            if payload.finished_reasons[place] is None:
                continue
            self.results[-1]["requests"][rid.split("-")[1]] = {"ids": ids, **counters(marks, len(ids))}
            self.open.discard(rid)
            self.closed_at = self.polls


def run(job):
    """Run one job; returns its result as plain data."""
    from sglang.srt.managers.scheduler import Scheduler, configure_scheduler_process
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import PortArgs, prepare_server_args

    for name, value in job.get("env", {}).items():
        os.environ[name] = value
    args = prepare_server_args(job["words"])
    ports = PortArgs.init_new(args)
    configure_scheduler_process(args, 0, 0, 0, 0, 0, 0, None)
    publish(args, role="scheduler")
    scheduler = Scheduler(args, ports, 0, 0, 0, 0, 0, 0, None)
    feeder = Feeder(scheduler, job["steps"])
    feeder.script = job.get("script")
    scheduler.request_receiver = feeder
    scheduler.output_streamer.send_to_detokenizer = feeder
    try:
        scheduler.run_event_loop()
    except Done:
        return feeder.results
    raise AssertionError("the loop ended by itself")


def main():
    """Run the jobs."""
    jobs_path, out_path, name = (*sys.argv[1:], None)[:3]
    with open(jobs_path) as file:
        jobs = json.load(file)
    from sglang.srt.plugins import load_plugins

    load_plugins()
    if name is not None:
        start = time.time()
        try:
            result = {"steps": run(jobs[name])}
        except BaseException:
            result = {"error": traceback.format_exc()}
            traceback.print_exc()
        with open(out_path, "w") as file:
            json.dump({name: {**result, "seconds": time.time() - start}}, file)
        sys.stdout.flush()
        os._exit(0)
    import sglang.srt.managers.scheduler
    import sglang.srt.models.dflash
    import sglang.srt.models.qwen3  # noqa: F401

    results = {}
    for each, job in jobs.items():
        start = time.time()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            try:
                answer = {"steps": run(job)}
            except BaseException:
                answer = {"error": traceback.format_exc()}
            with os.fdopen(write, "w") as pipe:
                json.dump(answer, pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            results[each] = json.loads(pipe.read() or "{}")
        os.waitpid(pid, 0)
        took = f"{time.time() - start:.1f} s"
        print(each, took, "error" if "error" in results[each] else "ok", flush=True)  # noqa: T201
        with open(out_path, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
