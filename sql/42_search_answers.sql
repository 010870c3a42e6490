-- What people read of a search: how it came about, excerpts, evidence.

CREATE OR REPLACE FUNCTION trecho.explain_search(
    query           text,
    embedding       @extschema:vector@.vector DEFAULT NULL,
    index_version   integer DEFAULT NULL,
    k               integer DEFAULT 10,
    skip            integer DEFAULT 0,
    mode            text DEFAULT 'hybrid',
    project         text DEFAULT 'default',
    branch          text DEFAULT 'main',
    scopes          trecho.chunk_scope[] DEFAULT NULL,
    session_id      uuid DEFAULT NULL,
    path_prefix     text DEFAULT NULL,
    languages       text[] DEFAULT NULL,
    metadata_filter jsonb DEFAULT NULL,
    updated_after   timestamptz DEFAULT NULL,
    per_document    integer DEFAULT 1,
    lexical_weight  double precision DEFAULT 0.5,
    fusion          text DEFAULT 'minmax',
    prefix          boolean DEFAULT false,
    ef_search       integer DEFAULT NULL
)
RETURNS TABLE (part text, row_count bigint, milliseconds double precision, detail text, plan text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER  -- volatile, because EXPLAIN is not allowed in a stable function
SET search_path = pg_catalog, @extschema:vector@, pg_temp
AS $function$
DECLARE
    v_version integer;
    v_hits    trecho.search_hit[];
    v_parts   jsonb;
    v_part    jsonb;
    v_start   timestamptz := clock_timestamp();
    v_line    text;
BEGIN
    PERFORM trecho._search_allowed(explain_search.k, explain_search.skip, explain_search.mode, explain_search.embedding, explain_search.project,
                                 explain_search.branch, explain_search.per_document, explain_search.lexical_weight, explain_search.fusion,
                                 explain_search.ef_search);
    SELECT s.o_version, s.o_hits, s.o_details INTO v_version, v_hits, v_parts
      FROM trecho._search(coalesce(explain_search.query, ''), explain_search.embedding, explain_search.index_version, explain_search.k,
                          explain_search.skip, explain_search.mode, explain_search.project, explain_search.branch, explain_search.scopes,
                          explain_search.session_id, explain_search.path_prefix, explain_search.languages, explain_search.metadata_filter,
                          explain_search.updated_after, explain_search.per_document, explain_search.lexical_weight, explain_search.fusion,
                          explain_search.prefix, explain_search.ef_search, true) AS s;
    part := 'total';
    row_count := cardinality(v_hits);
    milliseconds := extract(epoch FROM clock_timestamp() - v_start) * 1000;
    detail := format('index version %s', v_version);
    RETURN NEXT;
    FOR v_part IN SELECT p FROM jsonb_array_elements(v_parts) AS p LOOP
        part := v_part ->> 'part';
        row_count := (v_part ->> 'rows')::bigint;
        milliseconds := (v_part ->> 'milliseconds')::double precision;
        detail := v_part ->> 'detail';
        plan := NULL;
        IF v_part ? 'sql' AND part <> 'fusion' THEN
            -- The settings under which it ran, so that the plan shown is the plan used.
            PERFORM set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true);
            FOR v_line IN EXECUTE 'EXPLAIN (COSTS off) ' || (v_part ->> 'sql')
                USING explain_search.embedding, explain_search.project, explain_search.branch, explain_search.scopes, explain_search.session_id,
                      explain_search.path_prefix, explain_search.languages, explain_search.metadata_filter, explain_search.updated_after
            LOOP
                plan := concat_ws(E'\n', plan, left(v_line, 300));
            END LOOP;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho.explain_search IS
    'Run trecho.search and show how the answer came about: rows, time (milliseconds), what was chosen and the plan of each part (filter, query, words, vectors, fusion). Takes the arguments of trecho.search and raises what it raises.';
REVOKE ALL ON FUNCTION trecho.explain_search FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.explain_search TO trecho_reader;

-- Own highlighting and not ts_headline: a match counts by either half of search_vector, parts of identifiers and plurals included.
CREATE OR REPLACE FUNCTION trecho.excerpt(
    content    text,
    query      text,
    max_chars  integer DEFAULT 240,  -- of content; marks and ellipses come on top
    start_mark text DEFAULT '**',
    stop_mark  text DEFAULT '**'
)
RETURNS text                         -- in one line
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    c_config constant regconfig := 'trecho.portuguese_unaccent_1';
    v_text    text := btrim(regexp_replace(coalesce(excerpt.content, ''), '\s+', ' ', 'g'));
    v_lexemes text[];
    v_heads   text[];
    v_words   text[];
    v_starts  integer[] := '{}';
    v_lengths integer[] := '{}';
    v_found   text[] := '{}';   -- one lexeme for each match
    v_place   integer := 1;
    v_word    text;
    v_lexeme  text;
    v_known   jsonb := '{}';
    v_from    integer := 1;
    v_until   integer;
    v_count   integer;
    v_best    integer := 0;
    v_result  text := '';
BEGIN
    IF excerpt.max_chars IS NULL OR excerpt.max_chars < 20 THEN
        RAISE EXCEPTION 'max_chars must be 20 or more, got %', coalesce(excerpt.max_chars::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for an excerpt of the usual length.';
    END IF;
    v_lexemes := tsvector_to_array(trecho.search_vector_1('', trecho._query_text(
        regexp_replace(coalesce(excerpt.query, ''), '(?<=^|\s)-(?:"[^"]*"|[^\s"-][^\s"]*)', ' ', 'g'))));
    -- Only words that begin like a lexeme are worth the parser.
    SELECT array_agg(DISTINCT left(@extschema:unaccent@.unaccent('@extschema:unaccent@.unaccent', l), 2)) INTO v_heads FROM unnest(v_lexemes) AS l;
    IF v_heads IS NOT NULL THEN
        FOR v_words IN SELECT m FROM regexp_matches(v_text, '([\W_]*)([^\W_]+)', 'g') AS m LOOP
            v_place := v_place + length(v_words[1]);
            v_word := v_words[2];
            IF NOT v_known ? v_word THEN
                v_lexeme := NULL;
                -- Parts inside a camelCase word begin elsewhere, so such a word always goes to the parser.
                IF v_word ~ '[[:lower:][:digit:]][[:upper:]]'
                   OR left(@extschema:unaccent@.unaccent('@extschema:unaccent@.unaccent', lower(left(v_word, 2))), 2) = ANY (v_heads) THEN
                    SELECT l INTO v_lexeme FROM unnest(tsvector_to_array(trecho.search_vector_1('', v_word))) AS l WHERE l = ANY (v_lexemes) LIMIT 1;
                END IF;
                v_known := v_known || jsonb_build_object(v_word, v_lexeme);
            END IF;
            v_lexeme := v_known ->> v_word;
            IF v_lexeme IS NOT NULL THEN
                v_starts := v_starts || v_place;
                v_lengths := v_lengths || length(v_word);
                v_found := v_found || v_lexeme;
            END IF;
            v_place := v_place + length(v_word);
        END LOOP;
    END IF;

    -- The window with most distinct lexemes; the first of equals.
    IF length(v_text) > excerpt.max_chars THEN
        FOR i IN 1 .. cardinality(v_starts) LOOP
            SELECT count(DISTINCT v_found[j]) INTO v_count
              FROM generate_series(i, cardinality(v_starts)) AS j WHERE v_starts[j] + v_lengths[j] <= v_starts[i] + excerpt.max_chars * 3 / 4;
            IF v_count > v_best THEN
                v_best := v_count;
                v_from := v_starts[i];
            END IF;
        END LOOP;
        v_from := greatest(1, least(v_from - excerpt.max_chars / 8, length(v_text) - excerpt.max_chars + 1));
        IF v_from > 1 THEN  -- begin at a word
            v_count := strpos(substr(v_text, v_from, 30), ' ');
            v_from := v_from + v_count;
        END IF;
    END IF;
    v_until := least(length(v_text), v_from + excerpt.max_chars - 1);
    IF v_until < length(v_text) THEN  -- end at a word, unless it is endless
        v_count := strpos(reverse(substr(v_text, greatest(v_from, v_until - 28), v_until - greatest(v_from, v_until - 28) + 1)), ' ');
        v_until := v_until - v_count;
    END IF;

    v_place := v_from;
    FOR i IN 1 .. cardinality(v_starts) LOOP
        CONTINUE WHEN v_starts[i] < v_from OR v_starts[i] + v_lengths[i] - 1 > v_until;
        v_result := v_result || substr(v_text, v_place, v_starts[i] - v_place) || coalesce(excerpt.start_mark, '')
                    || substr(v_text, v_starts[i], v_lengths[i]) || coalesce(excerpt.stop_mark, '');
        v_place := v_starts[i] + v_lengths[i];
    END LOOP;
    v_result := v_result || substr(v_text, v_place, v_until - v_place + 1);
    RETURN CASE WHEN v_from > 1 THEN '… ' ELSE '' END || btrim(v_result) || CASE WHEN v_until < length(v_text) THEN ' …' ELSE '' END;
END
$function$;
COMMENT ON FUNCTION trecho.excerpt(text, text, integer, text, text) IS
    'The part of a passage that holds most words of a query, with these marked, in one line of about max_chars characters. Accented and unaccented forms, plurals and parts of identifiers are marked alike. Raises 22023 for max_chars under 20.';
REVOKE ALL ON FUNCTION trecho.excerpt(text, text, integer, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.excerpt(text, text, integer, text, text) TO trecho_reader;

CREATE OR REPLACE FUNCTION trecho.evidence(
    query           text,
    embedding       @extschema:vector@.vector DEFAULT NULL,
    index_version   integer DEFAULT NULL,
    max_chars       integer DEFAULT 8000,  -- budget of the whole answer
    k               integer DEFAULT 20,    -- passages considered
    mode            text DEFAULT 'hybrid',
    project         text DEFAULT 'default',
    branch          text DEFAULT 'main',
    scopes          trecho.chunk_scope[] DEFAULT NULL,
    session_id      uuid DEFAULT NULL,
    path_prefix     text DEFAULT NULL,
    languages       text[] DEFAULT NULL,
    metadata_filter jsonb DEFAULT NULL,
    updated_after   timestamptz DEFAULT NULL,
    per_document    integer DEFAULT 3,
    lexical_weight  double precision DEFAULT 0.5,
    fusion          text DEFAULT 'minmax',
    prefix          boolean DEFAULT false,
    ef_search       integer DEFAULT NULL
)
RETURNS text
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, @extschema:vector@, pg_temp
AS $function$
DECLARE
    v_block  record;
    v_text   text;
    v_head   text;
    v_result text := '';
    v_gap    text;
BEGIN
    IF evidence.max_chars IS NULL OR evidence.max_chars < 200 THEN
        RAISE EXCEPTION 'max_chars must be 200 or more, got %', coalesce(evidence.max_chars::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for the usual budget; less holds no passage with its heading.';
    END IF;
    FOR v_block IN
        WITH found AS MATERIALIZED (
            SELECT s.*, s.ordinal - row_number() OVER (PARTITION BY s.doc_id ORDER BY s.ordinal) AS run
              FROM trecho.search(evidence.query, evidence.embedding, evidence.index_version, evidence.k, 0, evidence.mode, evidence.project,
                       evidence.branch, evidence.scopes, evidence.session_id, evidence.path_prefix, evidence.languages, evidence.metadata_filter,
                       evidence.updated_after, evidence.per_document, evidence.lexical_weight, evidence.fusion, evidence.prefix, evidence.ef_search) AS s
        ), repeats AS (
            -- Windows repeat the last lines of the one before. Compared as text: a line cut in two repeats nothing.
            SELECT f.*, lag(f.content) OVER w AS before,
                   array_to_string((string_to_array(f.content, E'\n'))[: lag(f.end_line) OVER w - f.start_line + 1], E'\n') AS repeated
              FROM found AS f WINDOW w AS (PARTITION BY f.doc_id, f.run ORDER BY f.ordinal)
        ), pieces AS (
            SELECT o.*, CASE WHEN right(rtrim(o.before, E'\n'), length(o.repeated)) = o.repeated AND o.repeated <> ''
                             THEN ltrim(substr(o.content, length(o.repeated) + 1), E'\n') ELSE o.content END AS piece
              FROM repeats AS o
        )
        SELECT p.doc_id, p.title, p.chunk_count, min(p.rank) AS rank, min(p.ordinal) AS first_ordinal, max(p.ordinal) AS last_ordinal,
               string_agg(p.piece, E'\n' ORDER BY p.ordinal) FILTER (WHERE p.piece <> '') AS text
          FROM pieces AS p
         GROUP BY p.doc_id, p.title, p.chunk_count, p.run
         ORDER BY min(p.rank)
    LOOP
        v_head := format('doc_id: %s · chunk: %s/%s', v_block.doc_id,
                         concat_ws('-', v_block.first_ordinal, nullif(v_block.last_ordinal, v_block.first_ordinal)), v_block.chunk_count);
        v_gap := CASE WHEN v_result = '' THEN '' ELSE E'\n\n' END;
        v_text := v_gap || v_head || E'\n' || coalesce(v_block.text, '');
        IF length(v_result) + length(v_text) > evidence.max_chars THEN
            -- The best passage is cut to fit; a later one makes room for a shorter one.
            CONTINUE WHEN v_result <> '' OR length(v_head) + 20 > evidence.max_chars;
            v_text := left(v_text, evidence.max_chars - 2) || ' …';
        END IF;
        v_result := v_result || v_text;
    END LOOP;
    RETURN v_result;
END
$function$;
COMMENT ON FUNCTION trecho.evidence IS
    'Passages that answer a query, best first, in at most max_chars characters: each block is headed by doc_id and chunk n/m, neighbours of one document are merged (chunk: 3-4/11). Empty when nothing is found. Takes the filters of trecho.search and raises what it raises; 22023 for max_chars under 200.';
REVOKE ALL ON FUNCTION trecho.evidence FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.evidence TO trecho_reader;
