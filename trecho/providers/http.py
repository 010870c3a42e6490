"""OpenAI-compatible embedding servers, over httpx2; checks, waits and isolation of bad texts are ours."""

from __future__ import annotations

import base64
import binascii
import json
import os
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from trecho import __version__
from trecho.providers.base import (
    PROBE_TEXT,
    ModelMoved,
    Outcome,
    ProviderConfigError,
    ProviderDown,
    TextRejected,
    Vector,
    VectorArray,
    fit,
    recipe_dim,
    stack,
)
from trecho.providers.pace import Pace
from trecho.providers.presets import PRESETS, TRUNCATABLE, Preset

if TYPE_CHECKING:
    import httpx2

URL_VARIABLE = "TRECHO_EMBEDDING_URL"
KEY_VARIABLE = "TRECHO_EMBEDDING_KEY"
KEY_FILE_VARIABLE = "TRECHO_EMBEDDING_KEY_FILE"
TIMEOUT_VARIABLE = "TRECHO_EMBEDDING_TIMEOUT"  # seconds for one answer
TRUNCATE_VARIABLE = (
    "TRECHO_EMBEDDING_TRUNCATE"  # yes: the model may be cut to 768 though its name is not known here
)

# A list of floats takes up to 25 bytes a number, base64 six.
_ANSWER_BYTES_PER_NUMBER = 32
_MOST_BESIDE_NUMBERS = 1_000_000


@dataclass(frozen=True)
class Retry:
    """How patiently one request is repeated. All in seconds but tries.

    tries: attempts at a request that fails for a moment (a timeout counts as two). first, cap: waits double from one to
    the other, shortened by chance. rate_limit: how long in all a request may be put off by 429 or Retry-After.
    """

    tries: int = 5
    first: float = 0.5
    cap: float = 30.0
    rate_limit: float = 300.0

    def wait(self, failures: int) -> float:
        """Wait after so many failures in a row."""
        return min(self.cap, self.first * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)


class _Momentary(Exception):
    """The request failed, and the same one may succeed later."""

    def __init__(
        self, reason: str, *, weight: int = 1, limited: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.weight = weight
        self.limited = limited  # the server asks for less, rather than being broken
        self.retry_after = retry_after


class _Refused(Exception):
    """The server does not want these texts (HTTP 4xx)."""


class HttpProvider:
    """One server, one model. Thread-safe."""

    leaves_process = True

    def __init__(self, recipe: Mapping[str, Any], *, retry: Retry | None = None) -> None:
        self.name = str(recipe["provider"])
        self.calls = 0
        self.stopping = threading.Event()
        self._preset: Preset = PRESETS[self.name]
        self.concurrency = self._preset.concurrency
        self.batch_texts = self._preset.batch_texts
        self.batch_bytes = self._preset.batch_bytes
        self._retry = retry or Retry()
        self._pace = Pace(self._preset.concurrency, self.stopping)
        self._lock = threading.Lock()
        self._down: ProviderDown | None = None
        self._last_success = float("-inf")
        self._model = str(recipe.get("model_id") or "")
        self._dim = recipe_dim(recipe)
        self._query_prefix = str(recipe.get("query_prefix") or "")
        self._passage_prefix = str(recipe.get("passage_prefix") or "")
        self._url = os.environ.get(URL_VARIABLE) or self._preset.url
        self._timeout = _timeout()
        self._key = _key()
        self._check()

    def _check(self) -> None:
        if not self._model:
            raise ProviderConfigError(
                f"provider {self.name} needs a model_id", hint="Set it with trecho.configure."
            )
        if not _is_address(self._url):
            raise ProviderConfigError(
                f"provider {self.name} needs the base URL of its server",
                hint=f"Set {URL_VARIABLE}, for example http://127.0.0.1:8080/v1.",
            )
        if self._preset.needs_key and not self._key:
            raise ProviderConfigError(
                f"provider {self.name} needs a key",
                hint=f"Set {KEY_VARIABLE}, or {KEY_FILE_VARIABLE} to a file that holds it.",
            )
        if not (self._key.isascii() and self._key.isprintable()):
            raise ProviderConfigError(
                f"the key for provider {self.name} has characters that no HTTP header may have",
                hint=f"Correct {KEY_VARIABLE}, or the file that {KEY_FILE_VARIABLE} names: one line of ASCII.",
            )
        if self._preset.adds_prefixes and (self._query_prefix or self._passage_prefix):
            raise ProviderConfigError(
                f"provider {self.name} puts its prefixes on by itself",
                hint="Set query_prefix and passage_prefix to empty texts.",
            )
        known = any(part in self._model.lower() for part in TRUNCATABLE)
        if (
            self._dim > 768
            and not known
            and os.environ.get(TRUNCATE_VARIABLE, "").lower() not in ("1", "yes", "true")
        ):
            raise ProviderConfigError(
                f"model {self._model} gives {self._dim} numbers and is not known to bear being cut to 768",
                hint=f"Take another model, or set {TRUNCATE_VARIABLE}=yes if it was trained for it (Matryoshka).",
            )

    @property
    def where(self) -> str:
        """The server as messages name it, without user and password."""
        parts = urlsplit(self._url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    # ---------------------------------------------------------------- what Provider promises

    def embed_passages(self, texts: Sequence[str]) -> list[Outcome]:
        """See Provider."""
        return self._outcomes(list(texts), self._preset.passage, self._retry.tries)

    def embed_query(self, texts: Sequence[str]) -> VectorArray:
        """See Provider."""
        rows: list[Vector] = []
        for outcome in self._outcomes(
            [self._query_prefix + t for t in texts], self._preset.query, self._retry.tries
        ):
            if isinstance(outcome, TextRejected):
                raise outcome
            rows.append(outcome)
        return stack(rows)

    def probe(self) -> Vector:
        """See Provider."""
        with self._lock:
            self._down = None
        try:
            return self._good_probe(self._retry.tries)
        except _Momentary as error:
            raise self._gone(str(error)) from None

    def close(self) -> None:
        """See Provider."""
        self.stopping.set()
        if "_client" in self.__dict__:
            self._client.close()

    # ---------------------------------------------------------------- isolation

    def _outcomes(self, texts: list[str], fields: Mapping[str, Any], tries: int) -> list[Outcome]:
        """Embed; where the request fails although the server is well, halve it until the bad text is alone."""
        if not texts:
            return []
        began = time.monotonic()
        try:
            outcomes = self._request(texts, fields, tries)
            if any(not isinstance(outcome, TextRejected) for outcome in outcomes):
                with self._lock:
                    self._last_success = time.monotonic()
                return outcomes
            self._require_health(began, str(outcomes[0]))
            return outcomes
        except _Refused as error:
            self._require_health(began, str(error))
            reason, permanent = str(error), True
        except _Momentary as error:
            if error.limited:  # nothing is wrong with the texts
                raise self._gone(str(error)) from None
            self._require_health(began, str(error))
            reason, permanent = str(error), False
        if len(texts) == 1:
            return [TextRejected(reason, permanent=permanent)]
        half = len(texts) // 2
        fewer = min(tries, 2)
        return self._outcomes(texts[:half], fields, fewer) + self._outcomes(texts[half:], fields, fewer)

    def _require_health(self, since: float, reason: str) -> None:
        """Return when the server embeds the probe text or has embedded anything since; else raise why it cannot."""
        with self._lock:
            if self._last_success > since:
                return
        try:
            self._good_probe(min(self._retry.tries, 2))
        except _Momentary:
            raise self._gone(reason) from None

    def _good_probe(self, tries: int) -> Vector:
        try:
            outcome = self._request([self._passage_prefix + PROBE_TEXT], self._preset.passage, tries)[0]
        except _Refused as error:
            raise ProviderConfigError(
                f"{self.name} at {self.where} refuses requests for model {self._model}: {error}",
                hint="Compare provider, model_id, dim and the URL with what the server offers.",
            ) from None
        if isinstance(outcome, TextRejected):
            if isinstance(outcome, _WrongSize):
                raise ModelMoved(
                    f"model {self._model} at {self.where} gives {outcome.size} numbers, the recipe says {self._dim}",
                    hint="Configure the dim it gives: a new index version is built beside the old one.",
                )
            raise self._gone(f"of a harmless text, {outcome}")
        with self._lock:
            self._last_success = time.monotonic()
        return outcome

    def _gone(self, reason: str) -> ProviderDown:
        error = ProviderDown(
            f"embedding provider {self.name} at {self.where} cannot be used now: {reason}",
            hint="Start or mend it, then run trecho embed: what is embedded so far is kept.",
        )
        with self._lock:
            self._down = self._down or error
        return error

    # ---------------------------------------------------------------- one request, repeated

    def _request(self, texts: list[str], fields: Mapping[str, Any], tries: int) -> list[Outcome]:
        """One request, tried again while the failure may pass. Raises: _Momentary, _Refused, ProviderConfigError."""
        failures = 0
        limited_until = time.monotonic() + self._retry.rate_limit
        while True:
            with self._lock:
                if self._down is not None:
                    raise self._down
            with self._pace.slot():
                if self.stopping.is_set():
                    raise ProviderDown("stopped while waiting for the embedding provider")
                try:
                    answer = self._call(texts, fields)
                    outcomes = self._read(answer, len(texts))
                    self._pace.went_well()
                    return outcomes
                except _Momentary as error:
                    failure = error
                    self._pace.went_badly()
            failures += failure.weight
            wait = failure.retry_after if failure.retry_after is not None else self._retry.wait(failures)
            if failure.limited:
                if time.monotonic() + wait > limited_until:
                    raise _Momentary(f"{failure}, for longer than {self._retry.rate_limit:g} s", limited=True)
                self._pace.hold(wait)  # every thread, not this one alone
            elif failures >= tries:
                raise failure
            if self.stopping.wait(wait):
                raise ProviderDown("stopped while waiting for the embedding provider")

    def _call(self, texts: list[str], fields: Mapping[str, Any]) -> bytes:
        """Body of the answer to one request. Raises: _Momentary, _Refused, ProviderConfigError, ProviderDown."""
        import httpx2

        with self._lock:
            self.calls += 1
        body = {
            "input": texts,
            "model": self._model,
            "encoding_format": self._preset.encoding_format or "float",
            **fields,
        }
        if self._preset.asks_dim:
            body[self._preset.asks_dim] = self._dim
        most = len(texts) * max(self._dim, 768) * _ANSWER_BYTES_PER_NUMBER + _MOST_BESIDE_NUMBERS
        try:
            with self._client.stream("POST", _endpoint(self._url), json=body) as response:
                if response.is_success:
                    return self._body(response, most)
                failure = self._explain(response, self._body(response, _MOST_BESIDE_NUMBERS))
        except httpx2.TimeoutException:
            raise _Momentary(f"no answer within {self._timeout:g} s", weight=2) from None
        except (httpx2.RequestError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise _Momentary(f"the connection failed ({_reason(error)})") from None
        raise failure  # here, so that it does not carry the request, and with it the key

    def _body(self, response: httpx2.Response, most: int) -> bytes:
        """What the server sends, up to so many bytes and for a time that ends."""
        import httpx2

        deadline = time.monotonic() + 2 * self._timeout
        answer = bytearray()
        try:
            for part in response.iter_bytes():
                answer += part
                if time.monotonic() > deadline:  # a timeout of its own per read never ends a slow drip
                    raise _Momentary(f"no complete answer within {2 * self._timeout:g} s", weight=2)
                if len(answer) > most:
                    if response.is_success:
                        raise _Momentary(f"an answer of more than {most} bytes")
                    break  # its status says enough
        except httpx2.TimeoutException:
            raise _Momentary(f"no complete answer within {self._timeout:g} s", weight=2) from None
        except (httpx2.RequestError, httpx2.StreamError) as error:
            raise _Momentary(f"the connection was cut ({_reason(error)})") from None
        return bytes(answer)

    def _explain(  # noqa: PLR0911 - a table of codes
        self, response: httpx2.Response, answer: bytes
    ) -> Exception:
        """What an answer that is no success means."""
        status = response.status_code
        message, code = _complaint(answer)
        said = self._clean(message)
        if status == 429:
            if code == "insufficient_quota":
                return self._gone("its quota is used up (HTTP 429)")
            return _Momentary(
                "it limits the rate (HTTP 429)", limited=True, retry_after=_retry_after(response.headers)
            )
        if status >= 500 or status in (408, 409, 425):
            after = _retry_after(response.headers)
            return _Momentary(f"HTTP {status}{said}", limited=after is not None, retry_after=after)
        if status in (401, 403):
            return ProviderConfigError(
                f"{self.name} at {self.where} refuses the key (HTTP {status})",
                hint=f"Correct {KEY_VARIABLE}, or the file that {KEY_FILE_VARIABLE} names.",
            )
        if status in (404, 405):
            return ProviderConfigError(
                f"{self.name} at {self.where} has no embeddings there, or no model {self._model} (HTTP {status}){said}",
                hint=f"Correct {URL_VARIABLE} (it usually ends in /v1) or model_id.",
            )
        if 300 <= status < 400:
            return ProviderConfigError(
                f"{self.name} at {self.where} sends its callers elsewhere (HTTP {status})",
                hint=f"Set {URL_VARIABLE} to where it really is; texts are not sent after a redirect.",
            )
        return _Refused(f"HTTP {status}{said}")

    def _clean(self, said: str) -> str:
        """What the server says, in one short line without the key."""
        # No NUL and no half of a character, which the database could not hold, and nothing that moves a terminal.
        said = "".join(c if c.isprintable() else " " for c in said)
        said = " ".join(said.split())
        if self._key:
            said = said.replace(self._key, "***")
        said = re.sub(r"(?i)\b(sk|pa|bearer)[-_ ][\w.*-]{6,}", "***", said)
        return f": {said[:200]}" if said else ""

    # ---------------------------------------------------------------- the answer

    def _read(self, answer: bytes, count: int) -> list[Outcome]:
        """The vectors of an answer, in the order of the texts."""
        import numpy as np

        try:
            document = json.loads(answer)
        except (ValueError, RecursionError):
            raise _Momentary("the answer is cut off or is not JSON") from None
        rows = document.get("data") if isinstance(document, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise _Momentary("the answer has no list of embeddings")
        if len(rows) != count:
            raise _Momentary(f"{len(rows)} embeddings for {count} texts")
        numbers = [row.get("index") for row in rows]
        if any(number is not None for number in numbers):
            if sorted(n for n in numbers if type(n) is int) != list(range(count)):
                raise _Momentary("the embeddings are not numbered 0 to count - 1")
            rows = sorted(rows, key=lambda row: int(row["index"]))
        outcomes: list[Outcome] = []
        for row in rows:
            vector = _numbers(row.get("embedding"))
            if vector is None:
                outcomes.append(TextRejected("its vector is not a list of numbers"))
            elif len(vector) != self._dim:
                outcomes.append(_WrongSize(len(vector), self._dim))
            else:
                outcomes.append(vector)
        good = [(i, outcome) for i, outcome in enumerate(outcomes) if not isinstance(outcome, TextRejected)]
        if good:
            fitted = fit(np.stack([vector for _, vector in good]), self._dim)
            for (index, _), outcome in zip(good, fitted, strict=True):
                outcomes[index] = outcome
        return outcomes

    @cached_property
    def _client(self) -> httpx2.Client:
        import httpx2

        try:
            # No redirects: texts go where the configuration says, and nowhere else.
            return httpx2.Client(
                headers={
                    "Authorization": f"Bearer {self._key or 'none'}",
                    "User-Agent": f"trecho/{__version__}",
                },
                timeout=self._timeout,
            )
        except (ImportError, OSError, ValueError) as error:
            # From variables that every HTTP client reads.
            raise ProviderConfigError(
                f"no connection to provider {self.name} can be made: {_reason(error)}",
                hint="Correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY (an http:// address), or SSL_CERT_FILE.",
            ) from None


class _WrongSize(TextRejected):
    """A vector of another size than the recipe says."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__(f"its vector has {size} numbers instead of {dim}")
        self.size = size


def _numbers(value: object) -> Vector | None:
    """The vector in an answer; None when there is none. A number beyond float32 becomes infinite, to be found later."""
    import numpy as np

    try:
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
        if isinstance(value, list) and {int, float}.issuperset(map(type, value)):
            with np.errstate(over="ignore"):
                vector = np.asarray(value, dtype=np.float64).astype(np.float32)
            return vector if vector.ndim == 1 else None
    except (ValueError, TypeError, OverflowError, binascii.Error):
        pass
    return None


def _is_address(url: str) -> bool:
    """Whether a base URL has what a request needs: a scheme, a host that can be one, a port."""
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _endpoint(base: str) -> str:
    """Where embeddings are asked for: beside what the base URL names, its query kept."""
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/embeddings", fragment=""))


def _complaint(answer: bytes) -> tuple[str, str]:
    """Message and code of an error, in any of the forms servers give it; else its text."""
    text = answer.decode(errors="replace")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return text, ""
    if isinstance(said, dict):
        said = said.get("error", said)
    if isinstance(said, dict):
        message = said.get("message") or said.get("detail") or said.get("error") or ""
        return str(message), str(said.get("code") or "")
    return str(said or ""), ""


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200] if str(error) else type(error).__name__


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: retry-after-ms, or Retry-After as seconds or as a date; None without."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        if "retry-after" in headers:
            value = headers["retry-after"]
            try:
                return max(0.0, float(value))
            except ValueError:
                return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        pass
    return None


def _timeout() -> float:
    value = os.environ.get(TIMEOUT_VARIABLE) or "60"
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise ProviderConfigError(
            f"{TIMEOUT_VARIABLE} is {value!r}", hint="Give the seconds to wait for one answer, up to 3600."
        )
    return seconds


def _key() -> str:
    """The key, from the environment or the file it names; empty when there is none."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    path = os.environ.get(KEY_FILE_VARIABLE)
    if key or not path:
        return key
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ProviderConfigError(
            f"the key file {path} cannot be read: {error.strerror if isinstance(error, OSError) else 'not text'}",
            hint=f"Correct {KEY_FILE_VARIABLE}.",
        ) from None
