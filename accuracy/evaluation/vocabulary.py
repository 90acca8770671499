"""Vocabulary: encode text into the tokens of a model, and format a conversation as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..models.task import CHARACTERS, decoded, encoded

Message = Mapping[str, str]
"""`role` and `content`."""


class Vocabulary(Protocol):
    """`name`: of the vocabulary and its template. `end_token`: ends a text, and precedes a text without context."""

    name: str
    end_token: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def chat(self, messages: Sequence[Message], *, asks: bool) -> str:
        """A conversation as text. `asks`: whether it ends with the beginning of the model's turn."""
        ...

    def template(self, name: bool | str) -> str | None:
        """The template that formats conversations; None if `name` is false."""
        ...


class AlphabetVocabulary:
    """The characters of the trained models. A conversation is the concatenation of its contents."""

    name = "alphabet"
    end_token = CHARACTERS.index("\n")

    def encode(self, text: str) -> list[int]:
        return encoded(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return decoded(tokens)

    def chat(self, messages: Sequence[Message], *, asks: bool) -> str:
        return "".join(message["content"] for message in messages)

    def template(self, name: bool | str) -> str | None:
        return "{% for message in messages %}{{ message.content }}{% endfor %}" if name else None


class TokenizerVocabulary:
    """A tokenizer of transformers. Raises ValueError for one without an end-of-text token."""

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError(f"tokenizer {tokenizer.name_or_path!r} has no end-of-text token")
        self.name: str = tokenizer.name_or_path
        self.end_token: int = tokenizer.eos_token_id
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        # A formatted conversation already begins with the token.
        begun = self._tokenizer.bos_token is not None and text.startswith(self._tokenizer.bos_token)
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=not begun)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    def chat(self, messages: Sequence[Message], *, asks: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=asks, continue_final_message=not asks
        )
        return text

    def template(self, name: bool | str) -> str | None:
        chosen: str | None = self._tokenizer.get_chat_template(name if isinstance(name, str) else None)
        return chosen if name else None
