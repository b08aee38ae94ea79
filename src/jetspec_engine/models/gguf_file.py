"""A GGUF file opened for reading: its fields by name and its tensors dequantised.

Knows no model family and writes nothing. Dequantising is the ``gguf`` package's own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from jetspec_engine.errors import ArtifactError


class GgufFile:
    """Fields and tensors of one GGUF file, memory-mapped.

    Raises:
        ArtifactError: the file is missing, truncated or not GGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
            raise ArtifactError(f"{path}: not a readable GGUF file: {error}") from error

    def refuse(self, key: str, value: object, expected: str) -> NoReturn:
        """Raise ArtifactError about one field."""
        raise ArtifactError(f"{self.path.name}: {key}: {str(value)[:100]!r}, expected {expected}")

    def field(self, key: str, *, default: Any = None) -> Any:
        """Return a field's value as plain Python data, or the default when the file has no such field.

        Raises:
            ArtifactError: the field is absent and no default was given.
        """
        found = self._reader.get_field(key)
        if found is None:
            if default is None:
                self.refuse(key, "missing", "a value")
            return default
        return found.contents()

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield (name, shape) of every tensor, outermost dimension first."""
        for tensor in self._reader.tensors:
            yield tensor.name, tuple(int(size) for size in reversed(tensor.shape))

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, float32 tensor) one by one, shapes outermost dimension first as in torch."""
        for tensor in self._reader.tensors:
            try:
                values = dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError:
                self.refuse(tensor.name, tensor.tensor_type.name, "a type the gguf package can dequantise")
            # Unquantised tensors come back as views of the read-only mapping.
            yield tensor.name, torch.from_numpy(values if values.flags.writeable else values.copy())
