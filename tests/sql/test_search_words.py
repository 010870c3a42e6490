"""What words find, as people type them."""

from __future__ import annotations

import unicodedata
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import Connection


def put(db: Connection, path: str, text: str, scope: str = "docs", **more: Any) -> None:
    names = "".join(f", {name} => %({name})s" for name in more)
    db.execute(
        f"SELECT trecho.put_document(%(scope)s::trecho.chunk_scope, %(text)s, source_path => %(path)s{names})".encode(),
        {"scope": scope, "text": text, "path": path, **more},
    )


def found(db: Connection, query: str, **more: Any) -> list[str]:
    """Paths of what a search by words finds, best first."""
    arguments = {"mode": "lexical", **more}
    names = "".join(f", {name} => %({name})s" for name in arguments)
    rows = db.execute(
        f"SELECT s.source_path FROM trecho.search(%(query)s{names}) AS s ORDER BY s.rank".encode(),
        {"query": query, **arguments},
    ).fetchall()
    return [row["source_path"] for row in rows]


def bare(text: str) -> str:
    """The text without its accents."""
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


@pytest.fixture
def library(shared_db: Connection) -> Connection:
    put(shared_db, "reuniao.md", "A reunião da equipe aprovou a migração do banco.")
    put(shared_db, "reunioes.md", "As reuniões de segunda tratam de decisões e variáveis.")
    put(shared_db, "backup.md", "O backup noturno grava a cópia em disco e a mensagem no diário.")
    put(
        shared_db,
        "pedidos.md",
        "O módulo carregarPedidos chama http_client e lê src/vendas/itens.rs; ver trecho.search.",
    )
    put(shared_db, "outro.md", "Texto sobre jardins, pães e mães de família.")
    return shared_db


@pytest.mark.parametrize(
    "query",
    [
        "reunião",
        "reuniao",
        "reuniões",
        "reunioes",
        "REUNIÕES",
        unicodedata.normalize("NFD", "reunião"),
        "Reunioes",
    ],
)
def test_plurals_in_oes__meet_their_singular_with_and_without_accents(
    library: Connection, query: str
) -> None:
    assert set(found(library, query)) == {"reuniao.md", "reunioes.md"}


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("decisão", "reunioes.md"),
        ("variavel", "reunioes.md"),
        ("mensagens", "backup.md"),
        ("cópias", "backup.md"),
        ("pão", "outro.md"),
        ("mãe", "outro.md"),
        ("jardim", "outro.md"),
        ("migracoes", "reuniao.md"),
    ],
)
def test_other_plurals__meet_their_singular(library: Connection, query: str, path: str) -> None:
    assert found(library, query) == [path]


def test_maes__are_not_hands(shared_db: Connection) -> None:
    put(shared_db, "mao.md", "A mão direita.")
    put(shared_db, "mae.md", "A mãe dele.")
    assert found(shared_db, "maes") == ["mae.md"]
    assert found(shared_db, "mães")[0] == "mae.md"  # the stock stemmer gives both mã
    assert found(shared_db, "mãos")[0] == "mao.md"


@pytest.mark.parametrize(
    "query",
    [
        "carregarPedidos",
        "carregar",
        "pedidos",
        "http_client",
        "http",
        "client",
        "vendas",
        "src/vendas/itens.rs",
        "itens",
        "search",
    ],
)
def test_identifiers_and_paths__are_found_whole_and_by_their_parts(library: Connection, query: str) -> None:
    assert found(library, query) == ["pedidos.md"]


def test_a_cased_name__meets_its_lower_case(shared_db: Connection) -> None:
    put(shared_db, "lower.md", "Sobre postgresql e seus índices.")
    put(shared_db, "cased.md", "Sobre PostgreSQL e suas tabelas.")
    assert set(found(shared_db, "PostgreSQL")) == {"lower.md", "cased.md"}
    assert set(found(shared_db, "postgresql")) == {"lower.md", "cased.md"}


@pytest.mark.parametrize(
    "query", ["não", "nao", "você", "voce", "também", "tambem", "são", "até ate", "de a o que", "", "   "]
)
def test_stop_words__find_nothing_with_and_without_accents(shared_db: Connection, query: str) -> None:
    put(shared_db, "a.md", "Você não sabe, também, até onde são de a o que voce nao tambem ate sao.")
    assert found(shared_db, query) == []


def test_natural_questions__need_not_match_every_word(library: Connection) -> None:
    assert (
        found(library, "Como é que faço para saber onde fica o backup do servidor de homologação?")[0]
        == "backup.md"
    )


def test_rare_words__outweigh_common_ones(shared_db: Connection) -> None:
    for i in range(20):
        put(shared_db, f"comum/{i}.md", f"O servidor de produção número {i} foi trocado.")
    put(shared_db, "raro.md", "O termo xaxim aparece neste servidor.")
    shared_db.execute("SELECT trecho.refresh_lexeme_stats()")
    assert found(shared_db, "servidor de produção xaxim")[0] == "raro.md"


def test_quoted_phrases__are_hard_filters_that_need_no_accents(library: Connection) -> None:
    assert found(library, '"migracao do banco"') == ["reuniao.md"]
    assert found(library, '"banco da migração"') == []
    assert found(library, 'jardins "migração do banco"') == ["reuniao.md"]


def test_phrases_with_stop_words__match_with_and_without_accents(shared_db: Connection) -> None:
    put(shared_db, "a.md", "Ele disse: eu já sei que não posso.")
    for query in ('"sei que não posso"', '"sei que nao posso"'):
        assert found(shared_db, query) == ["a.md"]


def test_excluded_words__are_hard_filters(library: Connection) -> None:
    assert found(library, "reunião -segunda") == ["reuniao.md"]
    assert found(library, "reunião -reunioes") == []
    assert found(library, 'reunião -"migração do banco"') == ["reunioes.md"]
    assert found(library, "-reunião") == []


def test_a_phrase_across_two_halves_of_the_vector__does_not_match(shared_db: Connection) -> None:
    put(shared_db, "fim.md", "abacate melancia", title="abacate")
    assert found(shared_db, '"melancia abacate"') == []


@pytest.mark.parametrize("query", ["reuni", "Reuniõ", "migraç", "carregarPed"])
def test_prefix__finds_by_an_unfinished_last_word(library: Connection, query: str) -> None:
    assert found(library, query, prefix=True)


def test_prefix__is_off_by_default(library: Connection) -> None:
    assert found(library, "migr") == []
    assert found(library, "migr", prefix=True) == ["reuniao.md"]


def test_neighbours_in_the_query__rank_above_the_same_words_apart(shared_db: Connection) -> None:
    put(shared_db, "longe.md", "O banco guarda muito; outro dado qualquer existe para o registro.")
    put(
        shared_db,
        "perto.md",
        "O registro guarda muito; existe para outro qualquer banco dado.".replace(
            "banco dado", "banco de dado"
        ),
    )
    assert found(shared_db, "banco de dados")[0] == "perto.md"


WEIRD = [
    "'",
    "''",
    "\\",
    "!",
    "a:b?x=1",
    "Foo::bar",
    '"',
    '""',
    '"sem fim',
    '-"',
    "-",
    "--",
    "- -",
    "a & b | !c <-> (d)",
    "%s %(x)s {} $1 :x",
    "😀 emoji 👩‍👩‍👧",
    "a\tb\r\nc",
    "x" * 10_000,
    "palavra " * 1_250,
    '"' * 5_000,
    "-a " * 3_000,
    "\u0301\u0301",
    "\u202e\ufeff\u200b",
    "E'\\'' || 'x'",
    "it's o'brien d\\'água",
    "1.2.3 10:30 50% R$ 1.000,00",
    "http://exemplo.com/a?b=c#d user@exemplo.com",
]


@pytest.mark.parametrize("query", WEIRD)
@pytest.mark.parametrize("prefix", [False, True])
def test_any_string__is_a_query(library: Connection, query: str, prefix: bool) -> None:
    found(library, query, prefix=prefix)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=200), st.booleans()
)
def test_any_generated_string__is_a_query(library: Connection, query: str, prefix: bool) -> None:
    found(library, query, prefix=prefix)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(
            ['"', "-", "'", "\\", "!", ":*", "&", "|", "(", ")", "<->", "banco", "não", "ção", " "]
        ),
        max_size=30,
    )
)
def test_any_mixture_of_operators__is_a_query(library: Connection, parts: list[str]) -> None:
    found(library, "".join(parts))


def test_a_text_with_words_of_its_own__finds_itself(library: Connection) -> None:
    row = library.execute(
        "SELECT c.content FROM trecho.chunks AS c WHERE c.source_path = 'pedidos.md' LIMIT 1"
    ).fetchone()
    assert row is not None
    assert found(library, row["content"])[0] == "pedidos.md"
    assert found(library, bare(row["content"]))[0] == "pedidos.md"


def test_lexemes__are_not_stemmed_again(shared_db: Connection) -> None:
    # The stem of a stem may differ: every lexeme of a text must still be found through the query built from it.
    words = [
        "internacionalização",
        "desenvolvimentos",
        "casamentos",
        "l'água",
        "d\\e",
        "organizacionais",
        "felizmente",
    ]
    for i, word in enumerate(words):
        put(shared_db, f"{i}.md", f"Aqui se fala de {word} somente.")
    for i, word in enumerate(words):
        assert f"{i}.md" in found(shared_db, word)


def test_search_vector__keeps_its_storage_on_every_partition(shared_db: Connection) -> None:
    shared_db.execute("SELECT trecho._ensure_version()")
    row = shared_db.execute(
        "SELECT a.attstorage, c.reloptions FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid"
        " WHERE c.relname = 'chunks_1' AND a.attname = 'search_vector'"
    ).fetchone()
    assert row is not None
    assert row["attstorage"] == "m"
    assert row["reloptions"] == ["toast_tuple_target=4080"]


def test_refresh_lexeme_stats__counts_and_shows_its_lag(shared_db: Connection) -> None:
    for i in range(10):
        put(shared_db, f"{i}.md", f"palavra comum, número {i}")
    shared_db.execute("SELECT trecho.refresh_lexeme_stats()")
    row = shared_db.execute(
        "SELECT document_frequency FROM trecho.lexeme_stats WHERE lexeme = 'comum'"
    ).fetchone()
    assert row is not None and row["document_frequency"] == 10
    lag = shared_db.execute(
        "SELECT counted_chunks, chunks, added_chunks, lag FROM trecho.lexeme_stats_lag()"
    ).fetchone()
    assert lag == {"counted_chunks": 10, "chunks": 10, "added_chunks": 0, "lag": 0}
    put(shared_db, "mais.md", "outra palavra comum")
    lag = shared_db.execute("SELECT added_chunks, lag FROM trecho.lexeme_stats_lag()").fetchone()
    assert lag == {"added_chunks": 1, "lag": 0.1}


def test_after_publish__refreshes_only_past_its_bound(shared_db: Connection) -> None:
    def due() -> bool:
        row = shared_db.execute("SELECT trecho._after_publish() AS refreshed").fetchone()
        assert row is not None
        return bool(row["refreshed"])

    for i in range(10):
        put(shared_db, f"{i}.md", f"palavra comum, número {i}")
    assert due()
    assert not due()
    put(shared_db, "a.md", "um texto")
    assert not due()
    for i in range(5):
        put(shared_db, f"b/{i}.md", f"palavra {i}")
    assert due()


def test_a_word_without_statistics__counts_as_rare(shared_db: Connection) -> None:
    for i in range(10):
        put(shared_db, f"{i}.md", f"palavra comum, número {i}")
    shared_db.execute("SELECT trecho.refresh_lexeme_stats()")
    put(shared_db, "novo.md", "palavra comum jabuticaba")
    assert found(shared_db, "comum jabuticaba")[0] == "novo.md"


def test_refresh_lexeme_stats__makes_no_writer_wait(dsn: str) -> None:
    with psycopg.connect(dsn) as refresher, psycopg.connect(dsn) as writer, psycopg.connect(dsn) as other:
        writer.execute("SELECT trecho.put_document('docs', 'um texto', 'a.md')")
        writer.commit()
        refresher.execute("SELECT trecho.refresh_lexeme_stats()")  # not committed
        writer.execute("SET lock_timeout = '2s'")
        writer.execute("SELECT trecho.put_document('docs', 'outro texto', 'b.md')")
        other.execute("SET lock_timeout = '2s'")
        row = other.execute("SELECT trecho.refresh_lexeme_stats()").fetchone()
        assert row == (None,)


def test_refresh_lexeme_stats__bad_arguments_are_refused(shared_db: Connection) -> None:
    for call, state in (
        ("trecho.refresh_lexeme_stats(99)", "TR001"),
        ("trecho.refresh_lexeme_stats(NULL, 0)", "22023"),
    ):
        with pytest.raises(psycopg.Error) as caught, shared_db.transaction():
            shared_db.execute(f"SELECT {call}".encode())
        assert caught.value.sqlstate == state
        assert caught.value.diag.message_hint


def test_decomposed_text__is_found_like_composed_text(shared_db: Connection) -> None:
    apart = unicodedata.normalize("NFD", "A revisão de março terminou em Itaú.")
    put(shared_db, "a.md", apart)
    put(shared_db, "b.md", unicodedata.normalize("NFD", "# Conclusões do balanço\n\nNada de novo."))
    for query in ("revisão", "revisao", "março", unicodedata.normalize("NFD", "março"), '"revisão de março"'):
        assert found(shared_db, query) == ["a.md"]
    for query in ("conclusão", "balanço", unicodedata.normalize("NFD", "balanço"), "balanco"):
        assert found(shared_db, query) == ["b.md"]
