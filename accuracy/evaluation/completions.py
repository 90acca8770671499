"""CompletionsServer: an engine behind HTTP, with the part of OpenAI's completions that lm-eval asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import numpy as np
import torch

from .evaluate import CachedModel
from .recorder import Prompt, RequestRecorder

HOST = "127.0.0.1"

TASK = "http"
"""The task of every request: a client does not tell it."""


class CompletionsServer:
    """Answers `POST url` one request at a time, from its construction until `close`, on a free port of 127.0.0.1.

    A prompt is a list of lists of tokens. With `echo` the answer has the log-probability of the last `scored_tokens`
    tokens of each prompt, and null for those before: what is read from the cache has no logits.
    """

    def __init__(self, model: CachedModel, recorder: RequestRecorder, *, scored_tokens: int) -> None:
        self._model = model
        self._recorder = recorder
        self._scored_tokens = scored_tokens
        self._server = HTTPServer((HOST, 0), self._handler())
        self._thread = Thread(target=self._server.serve_forever, name="completions")
        self._thread.start()

    @property
    def url(self) -> str:
        """Where completions are asked for."""
        return f"http://{HOST}:{self._server.server_port}/v1/completions"

    def close(self) -> None:
        """End the server and its thread."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request, both as OpenAI has them. Raises KeyError for a field that is missing."""
        prompts: Sequence[Sequence[int]] = asked["prompt"]
        choices: list[dict[str, Any]]
        if asked.get("echo"):
            choices = [{"logprobs": self._scored(tokens)} for tokens in prompts]
        else:
            options = {"max_gen_toks": asked["max_tokens"], "until": asked["stop"]}
            texts = self._model.generate([(TASK, tokens, options) for tokens in prompts])
            choices = [{"text": text} for text in texts]
        return {"choices": [{"index": number, **choice} for number, choice in enumerate(choices)]}

    def _scored(self, tokens: Sequence[int]) -> dict[str, list[Any]]:
        """The log-probabilities of the last tokens, and of the likeliest token after them."""
        inputs = np.array(tokens, dtype=np.int32)
        prompt = Prompt(TASK, inputs, max(0, len(inputs) - 1 - self._scored_tokens), is_enough=None)
        ((_, logits),) = self._recorder.answer([prompt])
        chances = logits.log_softmax(-1)
        best, best_tokens = chances.max(-1)
        given = [*tokens[len(tokens) - len(logits) + 1 :], int(best_tokens[-1])]
        own = chances.gather(-1, torch.tensor(given, device=chances.device)[:, None])[:, 0].tolist()
        top = [{str(token): chance} for token, chance in zip(best_tokens.tolist(), best.tolist(), strict=True)]
        unknown = [None] * (len(tokens) + 1 - len(given))
        return {"token_logprobs": [*unknown, *own], "top_logprobs": [*unknown, *top]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    status, body = 200, json.dumps(answer(asked))
                except Exception as error:  # noqa: BLE001 - the client gets the error, and the server goes on
                    status, body = 500, repr(error)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                """Log nothing: the recorder has every request."""

        return Handler
