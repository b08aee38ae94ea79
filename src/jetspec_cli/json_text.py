"""JSON that comes from outside, in which everything unreadable is one kind of error.

Knows nothing of files and of what the JSON means.
"""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the parsed text.

    Raises:
        ValueError: not JSON, bytes of no Unicode text, an integer of thousands of digits, or nesting without end.
    """
    try:
        return json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is 0x{error.object[error.start]:02x}, not UTF-8") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
