"""Reads the bytes of a safetensors file with the standard library: names, shapes, rows as bytes and as numbers.

Knows nothing of what the tensors mean. Needs no torch, so that a gate can look at evidence anywhere.
Source: the safetensors format (an 8-byte little-endian length, a JSON header, the data).
"""

import array
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

from jetspec_cli.json_text import parse_json
from jetspec_engine.errors import EngineError

ITEM_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "BOOL": 1, "U8": 1}
NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: its dtype as the format spells it, its shape and its bytes, row-major."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def part(self, *index: int) -> memoryview:
        """Return the bytes of the sub-tensor at the leading indices."""
        rest = self.shape[len(index) :]
        size = prod(rest) * ITEM_BYTES[self.dtype]
        place = 0
        for one, length in zip(index, self.shape, strict=False):
            place = place * length + one
        return self.data[place * size : (place + 1) * size]

    def numbers(self, part: memoryview) -> Sequence[float]:
        """Return bytes of this tensor's dtype as numbers."""
        raw = part.tobytes()
        if self.dtype == "BF16":
            halves = array.array("H", raw)
            return array.array("f", b"".join(struct.pack("<I", half << 16) for half in halves))
        if self.dtype == "F16":
            return struct.unpack(f"<{len(raw) // 2}e", raw)
        code = {"F64": "d", "F32": "f", "I64": "q", "I32": "i", "BOOL": "b", "U8": "B"}[self.dtype]
        return array.array(code, raw)


@dataclass(frozen=True)
class TensorFile:
    """A file's metadata and tensors by name."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, Tensor]

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read a file.

        Raises:
            EngineError: not a safetensors file.
        """
        try:
            (length,) = struct.unpack_from("<Q", raw)
            header: dict[str, Any] = parse_json(raw[8 : 8 + length])
            data = memoryview(raw)[8 + length :]
            metadata = header.pop("__metadata__", {})
            tensors = {
                name: Tensor(
                    entry["dtype"], tuple(entry["shape"]), data[slice(*(int(x) for x in entry["data_offsets"]))]
                )
                for name, entry in header.items()
            }
        except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(f"the evidence is not a safetensors file: {error}") from error
        return cls(metadata, tensors)

    def report(self) -> dict[str, Any]:
        """Return the JSON document under ``report`` in the metadata. Raises EngineError."""
        try:
            found: dict[str, Any] = parse_json(self.metadata["report"])
        except (KeyError, ValueError, TypeError) as error:
            raise EngineError("the evidence holds no report") from error
        return found
