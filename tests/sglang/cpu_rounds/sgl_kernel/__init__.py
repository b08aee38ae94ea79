"""A stand-in for SGLang's own CPU kernels: the few that a speculative server calls, in plain torch."""

import torch

__version__ = "0"


def assign_req_to_token_pool_cpu(rows, table, starts, ends, slots, *_):
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        assert end <= table.shape[1], f"row of {table.shape[1]} slots, reserve ends at {end}"
        table[row, start:end] = slots[at : at + end - start].to(table.dtype)
        at += end - start


def assign_extend_cache_locs_cpu(rows, table, starts, ends, out, *_):
    parts = [
        table[row, start:end] for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
    out.copy_(torch.cat(parts).to(out.dtype))


def copy_all_layer_kv_cache_cpu(*_):
    """SGLang warms its copy kernel up with this; moves themselves go through its native path."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_, **__):
        raise NotImplementedError(f"sgl_kernel stand-in: {name}")

    return missing
