"""JetSpec's routes on SGLang's own HTTP server, as the embedded server has them: the tree at run time, text to ids and
back, and what runs. The gate, the bench and the sweep stand on these.

Put before SGLang's own routes when our algorithm runs, so that ``/get_server_info`` and ``/flush_cache`` are ours too.
Knows SGLang's tokenizer manager; nothing of workers. Recordings and profiles are not offered.
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body
from starlette.responses import JSONResponse, Response

from jetspec_engine.config import PLAIN, TreeConfig
from jetspec_engine.errors import ConfigError, JetspecError
from jetspec_engine.sglang_backend.args import ALGORITHM
from jetspec_engine.sglang_backend.compat import block_size_of, settings_of
from jetspec_engine.sglang_backend.counters import TOTALS
from jetspec_engine.sglang_backend.run_time import SCORED_TOKEN, TREE_STATE
from jetspec_engine.sglang_backend.scores import MOST_TOP, NO_TOKEN, SCORES
from jetspec_engine.sglang_backend.tree_switch import captured_rows, check_tree, tree_numbers

FLUSH_PATIENCE_S = 10.0

router = APIRouter()


def serve_with_our_routes(original: Callable[..., Any], server_args: Any, *others: Any, **named: Any) -> Any:
    """Add the routes where our algorithm runs (around ``http_server._setup_and_run_http_server``)."""
    if str(server_args.speculative_algorithm or "").upper() == ALGORITHM:
        from sglang.srt.entrypoints.http_server import app

        app.router.routes[:0] = router.routes
        if not server_args.enable_metrics:
            app.add_api_route("/metrics", metrics)
    return original(server_args, *others, **named)


@router.get("/get_server_info")
async def server_info() -> Any:
    """Answer as SGLang does, with what runs under ``jetspec``."""
    from sglang.srt.entrypoints import http_server

    info = await http_server.server_info()
    tree = _tree_of(info["internal_states"])
    return JSONResponse(_plain({**info, "jetspec": describe(_manager().server_args, info, tree)}))


@router.get("/jetspec/tree")
async def get_tree() -> Response:
    """Answer with the tree that runs now."""
    return JSONResponse(_tree_of(await _manager().get_internal_state()))


@router.post("/jetspec/tree")
async def set_tree(body: Annotated[dict[str, Any], Body()]) -> Response:
    """Switch the tree of an idle server; 409 while requests run, 400 for a tree it was not started for."""
    from sglang.srt.managers.io_struct import SetInternalStateReq

    arguments = _manager().server_args
    depth = block_size_of(arguments) - 1
    try:
        tree = TreeConfig.from_mapping(body)
        if tree == PLAIN:
            raise ConfigError(
                "tree: width 1, budget 1: SGLang decodes without drafts only when started without JETSPEC",
                hint="name such a server with --oracle-url",
            )
        check_tree(tree, settings_of(arguments), depth)
    except JetspecError as failure:
        return JSONResponse({"error": {"message": _message(failure)}}, status_code=400)
    answers = await _manager().set_internal_state(SetInternalStateReq(server_args=tree_numbers(tree)))
    if not all(answers):
        return JSONResponse({"error": {"message": "the server is busy"}}, status_code=409)
    return JSONResponse({**tree.to_mapping(), "budget": tree.resolve_budget(depth)})


@router.api_route("/flush_cache", methods=["GET", "POST"])
async def flush_cache() -> Response:
    """Empty the prefix cache; waits a moment for the last request's end, 409 when others keep the server busy."""
    done = await _manager().flush_cache(timeout_s=FLUSH_PATIENCE_S)
    return JSONResponse({"message": done.message or "flushed"}, status_code=200 if done.success else 409)


@router.get("/jetspec/metrics")
async def metrics() -> Response:
    """Answer with our counters for Prometheus; also ``/metrics``, unless SGLang's own are asked for."""
    lines = [f"# TYPE jetspec_{name}_total counter\njetspec_{name}_total {count}" for name, count in TOTALS.items()]
    return Response("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.post("/jetspec/render")
async def render(body: Annotated[dict[str, Any], Body()]) -> Response:
    """Answer with the text after the chat template and its token ids."""
    tokenizer = _manager().tokenizer
    if (body.get("text") is None) == (body.get("messages") is None):
        return JSONResponse({"error": {"message": "text, messages: expected exactly one of them"}}, status_code=400)
    text = body.get("text")
    if text is not None:
        return JSONResponse({"text": text, "input_ids": list(tokenizer.encode(text))})
    try:
        text = tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
    except Exception as failure:  # a template is a program, and refuses in any way it likes
        return JSONResponse({"error": {"message": f"messages: {failure}"}}, status_code=400)
    return JSONResponse({"text": text, "input_ids": list(tokenizer.encode(text, add_special_tokens=False))})


@router.post("/jetspec/detokenize")
async def detokenize(body: Annotated[dict[str, Any], Body()]) -> Response:
    """Answer with the text of token ids."""
    skip = bool(body.get("skip_special_tokens", True))
    return JSONResponse({"text": _manager().tokenizer.decode(body["ids"], skip_special_tokens=skip)})


@router.post("/jetspec/score")
async def score(body: Annotated[dict[str, Any], Body()]) -> Response:
    """Answer with the target's logits at the last position; 501 for more positions.

    SGLang's prefill is another kernel than its verify, so that an argmax here does not judge a whole text to the last
    bit. One position is enough to tell a near-tie from a fault.
    """
    ids, start, top_k = list(body["input_ids"]), int(body["start"]), int(body["top_k"])
    if start != len(ids) - 1 or start < 1 or top_k > MOST_TOP:
        return JSONResponse({"error": {"message": "only the last position is scored"}}, status_code=501)
    found = await _scores_after(ids[:-1], ids[-1])
    if found is None:
        return JSONResponse({"error": {"message": "a server of width 1 scores nothing"}}, status_code=501)
    token, logit, logprob = found["token"]
    row = {"position": start, "token_id": token, "logit": logit, "logprob": logprob, "top": found["top"][:top_k]}
    return JSONResponse({"dtype": _dtype(), "positions": [row]})


async def _scores_after(ids: list[int], token: int) -> dict[str, Any] | None:
    from sglang.srt.managers.io_struct import GenerateReqInput, SetInternalStateReq

    manager = _manager()
    await manager.set_internal_state(SetInternalStateReq(server_args={SCORED_TOKEN: token}))
    try:
        request = GenerateReqInput(input_ids=ids, sampling_params={"max_new_tokens": 1, "temperature": 0})
        meta = (await anext(manager.generate_request(request, None)))["meta_info"]
    finally:
        await manager.set_internal_state(SetInternalStateReq(server_args={SCORED_TOKEN: NO_TOKEN}))
    found: list[dict[str, Any]] = meta.get(SCORES) or []
    return found[0] if found else None


def describe(arguments: Any, info: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Return what runs under the names the embedded engine uses."""
    settings, depth = settings_of(arguments), block_size_of(arguments) - 1
    return {
        "engine": "sglang",
        "version": info.get("version"),
        "target": arguments.model_path,
        "head": arguments.speculative_draft_model_path,
        "drafter": "head",
        "draft_depth": depth,
        "dtype": _dtype(),
        "device": "cuda",
        "attention": info.get("decode_attention_backend") or info.get("attention_backend"),
        "is_deterministic": bool(arguments.enable_deterministic_inference),
        "is_graph": not arguments.disable_cuda_graph,
        "tree": tree,
        "max_tree": {"width": settings.max_width, "budget": captured_rows(settings, depth)[-1]},
        "graph_rows": list(captured_rows(settings, depth)),
        "page_size": info.get("page_size"),
        "max_seq_len": _manager().model_config.context_len,
        "tp_size": arguments.tp_size,
        "can_decode_plainly": False,
        "offers": [],
    }


def _tree_of(states: list[dict[str, Any]]) -> dict[str, Any]:
    tree = dict(states[0][TREE_STATE])
    depth = block_size_of(_manager().server_args) - 1
    return {**tree, "budget": TreeConfig.from_mapping(tree).resolve_budget(depth)}


def _manager() -> Any:
    from sglang.srt.entrypoints.http_server import get_global_state

    return get_global_state().tokenizer_manager


def _dtype() -> str:
    return str(_manager().model_config.dtype).removeprefix("torch.")


def _message(failure: JetspecError) -> str:
    return f"{failure.what}; {failure.hint}" if failure.hint else failure.what


def _plain(value: Any) -> Any:
    """Return a document with everything JSON has no name for as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    is_odd = isinstance(value, float) and value - value != 0
    return value if isinstance(value, (str, int, float, bool, type(None))) and not is_odd else str(value)
