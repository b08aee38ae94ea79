"""A tokenizer that needs no files: token ids are UTF-8 bytes, and there are three special tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from jetspec_engine.errors import RequestError

IM_START, IM_END, MASK = 256, 257, 258
SPECIAL = {"<|im_start|>": IM_START, "<|im_end|>": IM_END, "<|mask|>": MASK}


class ByteTokenizer:
    """Token ids are bytes; special tokens typed into any text are special tokens."""

    vocab_size = 259
    eos_token_ids = (IM_END,)
    bos_token_id = None

    def encode(self, text: str) -> list[int]:
        """Encode text."""
        ids: list[int] = []
        while text:
            for name, token in SPECIAL.items():
                if text.startswith(name):
                    ids.append(token)
                    text = text[len(name) :]
                    break
            else:
                ids += text[0].encode()
                text = text[1:]
        return ids

    def encode_rendered(self, text: str) -> list[int]:
        """Encode a rendered chat."""
        return self.encode(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Decode ids."""
        names = {token: "" if skip_special_tokens else name for name, token in SPECIAL.items()}
        data = b"".join(names[one].encode() if one in names else bytes([one]) for one in token_ids)
        return data.decode("utf-8", "replace")

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Render ChatML; refuses a conversation that does not end with the user."""
        if messages[-1]["role"] == "assistant":
            raise RequestError("messages: the last one is the assistant's")
        turns = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)
        return turns + "<|im_start|>assistant\n"
