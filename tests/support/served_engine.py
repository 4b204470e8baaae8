"""A server that keeps to the rules of `vllm serve` 0.32 as far as the probe uses it, for what a real engine cannot be made to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "tiny"
LONGEST = 64


class ServedEngine:
    """State of the server: what a test changes, and what it was asked."""

    def __init__(self) -> None:
        self.running = self.waiting = 0
        self.key: str | None = None
        self.scored: list[dict[str, Any]] = []
        self.logprob: Callable[[list[int], int], float] = lambda tokens, place: -float(place)
        self.before: Callable[[], None] = lambda: None
        self.answer: bytes | None = None  # instead of what a request is for
        self.url = ""

    def metrics(self) -> str:
        labels = f'{{engine="0",model_name="{MODEL}"}}'
        return (
            "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{labels} {float(self.running)}\n"
            "# TYPE vllm:num_requests_waiting gauge\n"
            f"vllm:num_requests_waiting{labels} {float(self.waiting)}\n"
            f'vllm:num_requests_waiting_by_reason{{engine="0",reason="capacity"}} 7.0\n'
        )

    def complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and answer of ``POST /v1/completions``."""
        prompt = body["prompt"]
        if body["model"] != MODEL:
            return 404, _error(f"The model `{body['model']}` does not exist.")
        if not isinstance(prompt, list) or not all(isinstance(token, int) for token in prompt):
            return 400, _error("prompt is not a list of token ids")
        if body["max_tokens"] < 1 or body["prompt_logprobs"] < -1 or not body.get("cache_salt", "x"):
            return 400, _error("a parameter is out of range")
        if len(prompt) + body["max_tokens"] > LONGEST:
            return 400, _error(f"This model's maximum context length is {LONGEST} tokens.")
        self.before()
        self.scored.append(body)
        rows = [None, *({str(prompt[at]): self._entry(prompt, at)} for at in range(1, len(prompt)))]
        return 200, {"choices": [{"index": 0, "text": "w5", "prompt_logprobs": rows}]}

    def _entry(self, prompt: list[int], place: int) -> dict[str, Any]:
        return {"logprob": max(self.logprob(prompt, place), -9999.0), "rank": 1, "decoded_token": "w"}


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "code": 400}}


@contextmanager
def served_engine() -> Iterator[ServedEngine]:
    """On a free port."""
    engine = ServedEngine()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._send(200, engine.metrics().encode())
            elif self._allowed():
                self._send(200, json.dumps({"data": [{"id": MODEL, "max_model_len": LONGEST}]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._allowed():
                status, answer = engine.complete(body)
                self._send(status, json.dumps(answer).encode() if engine.answer is None else engine.answer)

        def _allowed(self) -> bool:
            if engine.key is not None and self.headers["Authorization"] != f"Bearer {engine.key}":
                self._send(401, b'{"error": "Unauthorized"}')
                return False
            return True

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    engine.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
