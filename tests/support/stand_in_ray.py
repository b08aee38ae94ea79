"""As much of Ray as a sweep uses, in this process: calls run when their result is asked for, in the order of asking."""

import types
from collections.abc import Callable
from typing import Any


class RayError(Exception):
    """Ray's own failures."""


class RayTaskError(RayError):
    """A remote call that raised."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Method:
    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def remote(self, *given: Any) -> Any:
        return lambda: self._call(*given)


class _Actor:
    def __init__(self, made: Any) -> None:
        self._made = made

    def __getattr__(self, name: str) -> _Method:
        return _Method(getattr(self._made, name))


def stand_in_ray(**free: float) -> types.ModuleType:
    """Return a module with a cluster of so many free GPUs and cores; ``actors`` lists the workers that were made."""
    ray = types.ModuleType("ray")
    ray.actors = []
    ray.exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    ray.init = lambda **_: None
    ray.shutdown = lambda: None
    ray.available_resources = lambda: free

    def remote(**kind: float) -> Callable[[type], Any]:
        def make(*given: Any) -> _Actor:
            ray.actors.append(kind)
            return _Actor(cls(*given))

        def wrap(made: type) -> Any:
            nonlocal cls
            cls = made
            return types.SimpleNamespace(remote=make)

        cls: type = object
        return wrap

    def get(ref: Any) -> Any:
        try:
            return ref()
        except RayError:
            raise
        except Exception as error:
            raise RayTaskError(error) from error

    def wait(refs: list[Any], *, num_returns: int, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        if num_returns == len(refs) and timeout is not None:
            for ref in refs:  # the calls nobody asks a result of
                ref()
        return refs[-num_returns:], refs[:-num_returns]

    ray.remote, ray.get, ray.wait = remote, get, wait
    return ray
