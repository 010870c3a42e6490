-- Reading a query: its lexemes with their weights, the candidates worth scoring, and the parts that filter.

CREATE OR REPLACE FUNCTION trecho._quote_lexeme(p_lexeme text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
-- No SET clause, so that it is inlined. Not quote_literal, which gives E'...' on a backslash.
AS $function$
    SELECT '''' OPERATOR(pg_catalog.||) pg_catalog.replace(pg_catalog.replace(p_lexeme, '\', '\\'), '''', '''''') OPERATOR(pg_catalog.||) ''''
$function$;
COMMENT ON FUNCTION trecho._quote_lexeme(text) IS 'A lexeme as text that casts to the same tsquery operand, without being stemmed again.';
REVOKE ALL ON FUNCTION trecho._quote_lexeme(text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._query_text(p_query text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
-- No SET clause, so that it is inlined.
-- Bounded, because everything after it is linear in its length or worse; words no index can hold are dropped before the parser gives a notice.
-- Stop words typed without their accent, and é, which the list lacks, become one that is dropped but keeps its place in a phrase.
AS $function$
    SELECT pg_catalog.regexp_replace(
             pg_catalog.regexp_replace(pg_catalog.normalize(pg_catalog."left"(p_query, 10000), 'NFC'), '\S{255}\S*', ' ', 'g'),
             '(?<![\w./:-])(?:é|nao|ja|tambem|so|ate|voces?|estao|estavamos|estiveramos|estivessemos|ha|hao|houveramos|houvessemos'
             '|houverao|houveriamos|sao|eramos|foramos|fossemos|sera|serao|seriamos|tinhamos|tiveramos|tivessemos|tera|terao|teriamos)(?![\w/:-]|\.\w)',
             'de', 'gi')
$function$;
COMMENT ON FUNCTION trecho._query_text(text) IS 'The first 10,000 characters of a query, in NFC, with stop words recognised that lack their accent.';
REVOKE ALL ON FUNCTION trecho._query_text(text) FROM PUBLIC;

-- Candidates: chunks with any of the rarest lexemes while their document frequencies add up to p_cap, and with pairs of the others while
-- those are estimated to fit the rest; words that go together make more of them than estimated, so they are also limited. All lexemes score. A natural question of ten words over 100,000 chunks so looks at 5,000, not 60,000.
CREATE OR REPLACE FUNCTION trecho._read_query(
    p_query         text,
    p_index_version integer,
    p_prefix        boolean,           -- the last word is also a prefix
    p_cap           double precision,  -- candidates wanted
    p_total         double precision,  -- chunks that the statistics were counted from
    p_unseen        double precision,  -- document frequency of a lexeme without statistics
    OUT lexemes     text[],            -- rarest first
    OUT words       tsquery,           -- any of them; NULL when there is none
    OUT candidates  tsquery,           -- the part of words worth scoring: all of these,
    OUT pairs       tsquery,           -- and of these at most pair_limit; NULL when there is none
    OUT pair_limit  integer,
    OUT hard_filter tsquery,           -- quoted phrases and -words; NULL when there is none
    OUT base_sql    text,              -- first score: expression over c.search_vector
    OUT rest_sql    text,              -- what the whole score adds to it, 0 or more
    OUT frequencies bigint[]           -- document frequency of each lexeme
)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    c_max_lexemes constant integer := 48;
    c_max_phrases constant integer := 16;
    c_config      constant regconfig := 'trecho.portuguese_unaccent_1';
    c_operators   constant text := '(?:(?<=^|\s)(-))?"([^"]*)"|(?<=^|\s)-([^\s"-][^\s"]*)';
    v_text     text := trecho._query_text(p_query);
    v_total    double precision := greatest(p_total, 1);
    v_unseen   double precision := least(p_unseen, greatest(p_total, 1));
    v_vector   tsvector;
    v_second   tsvector;
    v_folded   text[];
    v_aligned  boolean;
    v_twins    integer[];
    v_part     text[];
    v_phrase   tsquery;
    v_phrased  boolean := false;
    v_last     text;
    v_idfs     double precision[];
    v_operands text[];
    v_term     text;
    v_all      text[] := '{}';
    v_first    text[] := '{}';
    v_main     boolean[];
    v_sum      double precision := 0;
    v_budget   double precision;
    v_rest     integer[] := '{}';
    v_chosen   text[] := '{}';
    v_pairs    text[] := '{}';
    v_estimate double precision;
BEGIN
    IF v_text ~ '"|(^|\s)-\S' THEN
        FOR v_part IN SELECT m FROM regexp_matches(v_text, c_operators, 'g') AS m LIMIT c_max_phrases LOOP
            v_phrase := phraseto_tsquery(c_config, trecho.search_text_1(coalesce(v_part[2], v_part[3])));
            CONTINUE WHEN v_phrase IS NULL OR numnode(v_phrase) = 0;  -- only stop words
            IF v_part[1] IS NOT NULL OR v_part[3] IS NOT NULL THEN
                v_phrase := !! v_phrase;
            ELSE
                v_phrased := true;
            END IF;
            hard_filter := coalesce(hard_filter && v_phrase, v_phrase);
        END LOOP;
        -- What is quoted scores, too; what is excluded does not.
        v_text := regexp_replace(regexp_replace(v_text, '(?<=^|\s)-(?:"[^"]*"|[^\s"-][^\s"]*)', ' ', 'g'), '"', ' ', 'g');
    END IF;

    v_vector := trecho.search_vector_1('', v_text);
    v_second := to_tsvector(c_config, trecho.search_text_1(v_text));
    v_folded := tsvector_to_array(v_second);

    SELECT array_agg(l.lexeme ORDER BY l.df, l.lexeme), array_agg(l.df ORDER BY l.df, l.lexeme),
           array_agg(ln(1 + (v_total - l.df + 0.5) / (l.df + 0.5)) ORDER BY l.df, l.lexeme),
           array_agg(trecho._quote_lexeme(l.lexeme) ORDER BY l.df, l.lexeme),
           array_agg(l.lexeme = ANY (v_folded) ORDER BY l.df, l.lexeme)
      INTO lexemes, frequencies, v_idfs, v_operands, v_main
      FROM (SELECT u.lexeme, least(coalesce(s.document_frequency, v_unseen), v_total) AS df
              FROM unnest(v_vector) AS u
              LEFT JOIN trecho.lexeme_stats AS s ON s.index_version = p_index_version AND s.lexeme = u.lexeme COLLATE "C"
             ORDER BY 2, u.lexeme LIMIT c_max_lexemes) AS l;

    IF p_prefix THEN
        v_last := lower((regexp_match(v_text, '(\w{2,})\W*$'))[1]);
        IF v_last IS NOT NULL THEN
            v_last := lower(@extschema:unaccent@.unaccent('@extschema:unaccent@.unaccent', v_last));
            SELECT least(greatest(coalesce(sum(s.document_frequency), 0), v_unseen), v_total) INTO v_estimate
              FROM trecho.lexeme_stats AS s
             WHERE s.index_version = p_index_version AND s.lexeme >= v_last COLLATE "C" AND s.lexeme < (v_last || U&'\+10FFFF') COLLATE "C";
            lexemes := lexemes || v_last;
            frequencies := frequencies || v_estimate::bigint;
            v_idfs := v_idfs || ln(1 + (v_total - v_estimate + 0.5) / (v_estimate + 0.5));
            v_operands := v_operands || (trecho._quote_lexeme(v_last) || ':*');
            v_main := v_main || true;
        END IF;
    END IF;
    IF lexemes IS NULL THEN
        RETURN;
    END IF;

    words := array_to_string(v_operands, ' | ')::tsquery;
    -- The accented form of a word moves little where its unaccented form is about as frequent. Both halves count the same words as long as
    -- no identifier is cut; else the forms are matched by how they begin.
    v_aligned := v_text !~ '[_./:-]|[[:lower:][:digit:]][[:upper:]]|[[:upper:]][[:upper:]][[:lower:]]';
    IF v_aligned THEN
        SELECT array_agg(DISTINCT array_position(lexemes, a.lexeme)) INTO v_twins
          FROM unnest(to_tsvector('pg_catalog.portuguese', v_text)) AS a
          JOIN unnest(v_second) AS b ON b.positions && a.positions
         WHERE a.lexeme <> b.lexeme
           AND frequencies[array_position(lexemes, b.lexeme)] >= 0.7 * frequencies[array_position(lexemes, a.lexeme)];
    END IF;
    FOR i IN 1 .. cardinality(lexemes) LOOP
        CONTINUE WHEN v_main[i];
        v_main[i] := true;
        IF v_aligned THEN
            v_main[i] := coalesce(i <> ALL (v_twins), true);
            CONTINUE;
        END IF;
        v_last := left(@extschema:unaccent@.unaccent('@extschema:unaccent@.unaccent', lexemes[i]), greatest(3, length(lexemes[i]) - 2));
        FOR j IN 1 .. cardinality(lexemes) LOOP
            IF j <> i AND v_main[j] AND frequencies[j] >= frequencies[i] AND starts_with(lexemes[j], v_last) THEN
                v_main[i] := false;
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
    FOR i IN 1 .. cardinality(lexemes) LOOP
        -- Lexemes have no weights, so each counts 0.1, the default of the weight D; an array of weights would be unpacked at every call.
        v_term := format('%s * ts_rank(c.search_vector, %L::tsquery)', 10 * v_idfs[i], v_operands[i]);
        -- What weighs little can wait until few are left.
        IF v_main[i] AND (cardinality(v_first) < 3 OR v_idfs[i] >= 0.3 * v_idfs[1]) THEN
            v_first := v_first || v_term;
        ELSE
            v_all := v_all || v_term;
        END IF;
    END LOOP;
    base_sql := '(' || array_to_string(v_first, ' + ') || ') / ln(2 + length(c.search_vector))';
    -- Neighbours in the query that are neighbours in the chunk: 0.1 of their two weights (sequential dependence; flat between 0.05 and 0.3
    -- on the questions measured, docs/search.md).
    SELECT v_all || coalesce(array_agg(format('CASE WHEN c.search_vector @@ %L::tsquery THEN %s ELSE 0 END',
                                     trecho._quote_lexeme(n.lexeme) || ' <' || n.gap || '> ' || trecho._quote_lexeme(n.next_lexeme),
                                     0.1 * (v_idfs[array_position(lexemes, n.lexeme)] + v_idfs[array_position(lexemes, n.next_lexeme)]))), '{}')
      INTO v_all
      FROM (SELECT DISTINCT q.lexeme, q.next_lexeme, q.gap
              FROM (SELECT u.lexeme, lead(u.lexeme) OVER w AS next_lexeme, lead(o.place) OVER w - o.place AS gap
                      FROM unnest(v_vector) AS u CROSS JOIN unnest(u.positions) AS o (place)
                    WINDOW w AS (ORDER BY o.place, u.lexeme)) AS q
             WHERE q.gap BETWEEN 1 AND 4 AND q.lexeme <> q.next_lexeme AND q.lexeme = ANY (lexemes) AND q.next_lexeme = ANY (lexemes)
             LIMIT c_max_lexemes) AS n;
    rest_sql := '(' || coalesce(nullif(array_to_string(v_all, ' + '), ''), '0') || ') / ln(2 + length(c.search_vector))';

    IF hard_filter IS NOT NULL THEN
        words := words && hard_filter;
    END IF;
    IF v_phrased THEN
        candidates := hard_filter;  -- a phrase is more selective than anything chosen below, and its words score
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(lexemes) LOOP
        IF v_main[i] AND v_sum + frequencies[i] <= p_cap THEN
            v_sum := v_sum + frequencies[i];
            v_chosen := v_chosen || v_operands[i];
        ELSIF v_main[i] THEN
            v_rest := v_rest || i;
        END IF;
    END LOOP;
    v_budget := greatest(p_cap - v_sum, 0.3 * p_cap);
    pair_limit := 5 * v_budget;  -- a guard: what it cuts is cut blindly
    <<choose>>
    FOR i IN 1 .. cardinality(v_rest) - 1 LOOP
        FOR j IN i + 1 .. cardinality(v_rest) LOOP
            v_estimate := 2.0 * frequencies[v_rest[i]] * frequencies[v_rest[j]] / v_total;
            CONTINUE WHEN v_estimate > v_budget;
            v_budget := v_budget - v_estimate;
            v_pairs := v_pairs || format('(%s & %s)', v_operands[v_rest[i]], v_operands[v_rest[j]]);
            EXIT choose WHEN cardinality(v_pairs) >= c_max_lexemes;
        END LOOP;
    END LOOP;
    IF cardinality(v_chosen) = 0 AND cardinality(v_pairs) = 0 THEN
        v_chosen := ARRAY[v_operands[v_rest[1]]];  -- only common words: the rarest of them
    END IF;
    candidates := nullif(array_to_string(v_chosen, ' | '), '')::tsquery;
    pairs := nullif(array_to_string(v_pairs, ' | '), '')::tsquery;
    IF candidates IS NOT NULL AND pairs IS NOT NULL THEN
        pairs := pairs && !! candidates;
    END IF;
    IF hard_filter IS NOT NULL THEN
        candidates := candidates && hard_filter;
        pairs := pairs && hard_filter;
    END IF;
END
$function$;
COMMENT ON FUNCTION trecho._read_query(text, integer, boolean, double precision, double precision, double precision) IS
    'What a query means for the words of one version. Any string is a query; one with no word left gives NULLs.';
REVOKE ALL ON FUNCTION trecho._read_query(text, integer, boolean, double precision, double precision, double precision) FROM PUBLIC;
