"""An OpenAI-compatible embeddings server for tests that misbehaves as told and counts what it is sent.

A fault is a word: 429, 429-after, 429-date, 500, 503, hang, drip, cut, cut-early, truncated, not-json, count, shuffled,
unnumbered, size, nan, infinity, zeros, text, raw, refuse, 401, 404, quota, 301 to 308. Faults come from a list used up request by request
(`faults`), or from the texts of the request (`poison`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import numpy as np


@cache
def vector_of(text: str, dim: int = 768, model: str = "") -> tuple[float, ...]:
    """The vector this server gives a text: pseudo-random, of length 1, of float32 numbers, the same every time."""
    seed = int.from_bytes(hashlib.sha256(f"{model}\0{text}".encode()).digest()[:8])
    numbers = np.random.default_rng(seed).standard_normal(dim)
    return tuple((numbers / np.linalg.norm(numbers)).astype(np.float32).tolist())


class MisbehavingServer:
    """Use as a context manager; `url` is the base URL. `fast` gives every text the same vector, made once."""

    def __init__(self, dim: int = 768, *, fast: bool = False) -> None:
        self.dim = dim
        self.fast = fast
        self.model = ""  # change it, and every vector changes
        self.faults: list[str] = []
        self.poison: Callable[[str], str | None] = lambda text: None
        self.always: str | None = None
        self.hang_s = 5.0
        self.refusal: bytes | None = None  # body of an answer that is no success
        self.raw = b""  # whole body of the fault raw
        self.texts: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()  # sent in an answer without a fault
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()  # set at the end, so that no handler hangs on
        self.lock = threading.Lock()
        self._constant = base64.b64encode(struct.pack(f"<{dim}f", *([1.0] * dim))).decode()
        outer = self

        class Handler(_Handler):
            server_state = outer

        self._http = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def __enter__(self) -> MisbehavingServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def take_fault(self, texts: list[str]) -> str | None:
        with self.lock:
            if self.faults:
                return self.faults.pop(0) or None
        for text in texts:
            fault = self.poison(text)
            if fault:
                return fault
        return self.always

    def encode(self, text: str, as_base64: bool, dim: int | None = None) -> Any:
        dim = dim or self.dim
        if self.fast and as_base64 and dim == self.dim:
            return self._constant
        vector = [1.0] * dim if self.fast else list(vector_of(text, dim, self.model))
        return base64.b64encode(struct.pack(f"<{dim}f", *vector)).decode() if as_base64 else vector


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed in the middle of a request is no news."""


class _Handler(BaseHTTPRequestHandler):
    server_state: MisbehavingServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        state = self.server_state
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            with state.lock:
                state.texts.update(texts)
                state.requests.append(body)
                state.headers.append({name.lower(): value for name, value in self.headers.items()})
            self._answer(state, state.take_fault(texts), body, texts)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(  # noqa: PLR0912
        self, state: MisbehavingServer, fault: str | None, body: dict[str, Any], texts: list[str]
    ) -> None:
        as_base64 = body.get("encoding_format") == "base64"
        errors = {
            "429": 429,
            "429-after": 429,
            "429-date": 429,
            "500": 500,
            "503": 503,
            "refuse": 400,
            "401": 401,
            "404": 404,
            "quota": 429,
        } | {str(status): status for status in (301, 302, 303, 307, 308)}
        if fault in errors:
            extra = {}
            if fault == "429-after":
                extra["Retry-After"] = "1"
            if fault.startswith("30"):
                extra["Location"] = f"{state.url}/embeddings"
            if fault == "429-date":
                extra["Retry-After"] = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
            error = {
                "message": f"fault {fault}, key {self.headers.get('Authorization', '')}",
                "code": "insufficient_quota" if fault == "quota" else None,
            }
            answer = (
                state.refusal
                if fault == "refuse" and state.refusal
                else json.dumps({"error": error}).encode()
            )
            self._send(errors[fault], answer, extra)
            return
        if fault == "hang":
            state.released.wait(state.hang_s)
        if fault == "cut-early":
            self.close_connection = True
            return
        dim = state.dim + 1 if fault == "size" else state.dim
        rows = [
            {"object": "embedding", "index": i, "embedding": state.encode(t, as_base64, dim)}
            for i, t in enumerate(texts)
        ]
        if fault in ("nan", "infinity", "zeros", "text", "digits", "true", "null"):
            bad: Any = {
                **{"nan": math.nan, "infinity": math.inf, "zeros": 0.0},
                **{"text": "x", "digits": "0.5", "true": True, "null": None},
            }[fault]
            rows[-1]["embedding"] = [bad] * dim
            if fault in ("nan", "infinity"):
                rows[-1]["embedding"] = [1.0] * (dim - 1) + [bad]
        if fault == "count":
            rows = rows[:-1] if len(rows) > 1 else rows * 2
        if fault == "shuffled":
            rows = rows[1:] + rows[:1]
        if fault == "unnumbered":
            rows = [row | {"index": 0} for row in rows] if len(rows) > 1 else [rows[0] | {"index": 7}]
        answer = json.dumps({"object": "list", "data": rows, "model": body["model"]}).encode()
        if fault == "truncated":
            answer = answer[: len(answer) // 2]
        if fault == "raw":
            answer = state.raw
        if fault == "not-json":
            answer = b"<html>busy</html>"
        if fault is None or fault == "shuffled":
            with state.lock:
                state.answered.update(texts)
        if fault in ("cut", "drip"):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if fault == "cut":
                self.wfile.write(answer[: len(answer) // 2])
            else:
                end = time.monotonic() + state.hang_s
                for byte in answer:
                    if state.released.wait(0.05) or time.monotonic() > end:
                        break
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
            self.close_connection = True
            return
        self._send(200, answer, {})

    def _send(self, status: int, answer: bytes, extra: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        for name, value in extra.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)
