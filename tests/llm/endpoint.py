"""A chat endpoint on loopback that says what a test tells it to: texts, faults, pauses. Speaks enough of OpenAI's protocol for the real litellm client."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-test-0123456789abcdef"  # what the tests give as a key, to see that it goes nowhere else


@dataclass(frozen=True)
class Say:
    """One reply: a text, or an HTTP status with a message; after a pause."""

    text: str = ""
    status: int = 200
    pause_s: float = 0.0
    finish: str = "stop"
    tokens: tuple[int, int] = (1000, 200)
    content: bool = True


Reply = Say | Callable[[dict[str, Any]], Say]


@dataclass
class Endpoint:
    """`script`: replies in order, the last one again and again. `requests`: bodies as they came; `keys`: their Authorization headers."""

    script: list[Reply]
    address: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, body: dict[str, Any], key: str) -> Say:
        with self.lock:
            self.requests.append(body)
            self.keys.append(key)
            reply = self.script[min(len(self.requests), len(self.script)) - 1]
        return reply if isinstance(reply, Say) else reply(body)


@contextmanager
def endpoint(*script: Reply) -> Iterator[Endpoint]:
    """An endpoint that runs as long as the block."""
    state = Endpoint(list(script))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            text = state.next(body, self.headers.get("Authorization", ""))
            time.sleep(text.pause_s)
            payload: dict[str, Any] = {"error": {"message": text.text, "type": "test", "code": text.status}}
            if text.status == 200:
                message = {"role": "assistant", "content": text.text if text.content else None}
                requests, description = text.tokens
                payload = {
                    "id": "reply",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [{"index": 0, "finish_reason": text.finish, "message": message}],
                    "usage": {"prompt_tokens": requests, "completion_tokens": description, "total_tokens": requests + description},
                }
            data = json.dumps(payload).encode()
            try:
                self.send_response(text.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client gave up waiting

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
