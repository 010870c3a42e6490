-- Search: candidates by words and by vector, both scores for each of them, fusion, k distinct documents.

CREATE OR REPLACE FUNCTION trecho._text_setting(p_name text, p_default text)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
-- No SET clause, so that it is inlined.
AS $function$
    SELECT coalesce(nullif(pg_catalog.current_setting(p_name, true), ''), p_default)
$function$;
COMMENT ON FUNCTION trecho._text_setting(text, text) IS 'A setting, or the default where it is not set or empty.';
REVOKE ALL ON FUNCTION trecho._text_setting(text, text) FROM PUBLIC;

-- The version to search, after every check that needs no candidate, and its totals, in one look. Raises TR001, TR002, TR003, TR006.
CREATE OR REPLACE FUNCTION trecho._search_target(
    p_index_version integer,
    p_embedding     @extschema:vector@.vector,
    p_project       text,
    p_branch        text,
    OUT o_version   integer,           -- NULL when there is no version yet and no vector was given
    OUT o_total     bigint,            -- chunks of the version when it was last counted; NULL before
    OUT o_unseen    double precision,  -- chunks that a lexeme without statistics is taken to be in
    OUT o_rows      bigint,            -- placements of the branch, then
    OUT o_longest   integer            -- chunks of its longest document, then
)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, @extschema:vector@, pg_temp
SET plan_cache_mode = force_generic_plan  -- one row from each table by its key: planning would cost twice as much as all else
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
DECLARE
    v_active   integer;
    v_standing integer;
    v_state    trecho.index_version_state;
    v_dim      integer;
    v_usable   boolean;
BEGIN
    SELECT s.active_version, v.index_version, v.state, v.dim, t.chunk_count, 1 / t.sample_fraction, b.chunk_count, b.max_chunks
      INTO v_active, o_version, v_state, v_dim, o_total, o_unseen, o_rows, o_longest
      FROM trecho.index_state AS s
      LEFT JOIN trecho.index_versions AS v ON v.index_version = coalesce(p_index_version, s.active_version)
      LEFT JOIN trecho.lexeme_totals AS t ON t.index_version = v.index_version
      LEFT JOIN trecho.branch_totals AS b ON b.index_version = v.index_version AND b.project = p_project AND b.branch = p_branch;
    IF p_embedding IS NOT NULL AND p_index_version IS NULL THEN
        SELECT count(*) INTO v_standing FROM trecho.index_versions;
        IF v_standing > 1 THEN
            RAISE EXCEPTION 'a query vector without its index_version, while % versions stand', v_standing
                USING ERRCODE = 'TR003', HINT = 'Embed the query as trecho.query_recipe() says and pass the index_version it gives.';
        END IF;
    END IF;
    IF o_version IS NULL AND p_index_version IS NOT NULL THEN
        IF p_embedding IS NOT NULL AND p_index_version < v_active THEN
            RAISE EXCEPTION 'the query vector was made for index version %, which is gone', p_index_version
                USING ERRCODE = 'TR006', HINT = 'Read trecho.query_recipe() again and embed the query for the version it gives.';
        END IF;
        RAISE EXCEPTION 'index version % does not exist', p_index_version
            USING ERRCODE = 'TR001', HINT = 'Leave index_version out, or take it from trecho.query_recipe().';
    END IF;
    IF p_embedding IS NULL THEN
        RETURN;
    END IF;

    v_usable := o_version IS NOT NULL AND o_rows > 0;
    IF v_usable IS NOT TRUE THEN
        v_usable := EXISTS (SELECT FROM trecho.branches AS r
                             WHERE r.project = p_project AND r.branch = p_branch AND r.last_completed_at IS NOT NULL AND v_state <> 'building')
                    OR EXISTS (SELECT FROM trecho.documents AS d
                                 JOIN trecho.indexed_documents AS i ON i.index_version = o_version AND i.document_id = d.document_id
                                WHERE d.project = p_project AND d.branch = p_branch);
    END IF;
    IF o_version IS NULL OR NOT v_usable THEN
        RAISE EXCEPTION 'nothing is indexed yet for project %, branch %', quote_literal(p_project), quote_literal(p_branch)
            USING ERRCODE = 'TR002',
                  HINT = coalesce((SELECT 'Branches of this project that are indexed: ' || string_agg(quote_literal(r.branch), ', ') || '.'
                                     FROM (SELECT r.branch FROM trecho.branches AS r
                                            WHERE r.project = p_project AND r.branch <> p_branch AND r.last_completed_at IS NOT NULL
                                            ORDER BY r.branch LIMIT 10) AS r),
                                  'Run trecho sync, or put a document; mode lexical answers without an index.');
    END IF;
    -- trecho version compare looks into a version before searches turn to it.
    IF v_state = 'building' AND coalesce(current_setting('trecho.read_building', true), '') <> 'on' THEN
        RAISE EXCEPTION 'the query vector was made for index version %, which is being built; searches read version %', o_version, v_active
            USING ERRCODE = 'TR006', HINT = 'Embed the query as trecho.query_recipe() says.';
    END IF;
    IF vector_dims(p_embedding) <> 768 THEN
        RAISE EXCEPTION 'the query vector must have 768 numbers, got %', vector_dims(p_embedding)
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('Version %s takes %s numbers from its model, padded with zeros to 768.', o_version, coalesce(v_dim::text, 'an unknown count of'));
    END IF;
    IF vector_norm(p_embedding) = 0 THEN
        RAISE EXCEPTION 'the query vector is zero' USING ERRCODE = 'invalid_parameter_value', HINT = 'Check the answer of the embedding provider.';
    END IF;
    IF v_dim < 768 AND vector_norm(subvector(p_embedding, v_dim + 1, 768 - v_dim)) <> 0 THEN
        RAISE EXCEPTION 'the query vector has numbers after the %th, so it is not of index version %', v_dim, o_version
            USING ERRCODE = 'TR006', HINT = 'Embed the query as trecho.query_recipe() says.';
    END IF;
END
$function$;
COMMENT ON FUNCTION trecho._search_target(integer, @extschema:vector@.vector, text, text) IS
    'Version that a search reads, and its totals. Raises TR001, TR002, TR003, TR006, or 22023 for a vector of the wrong size.';
REVOKE ALL ON FUNCTION trecho._search_target(integer, @extschema:vector@.vector, text, text) FROM PUBLIC;

-- The nearest passages where all of a branch is asked for and it is most of the version: one pass over the graph, read only as far as needed.
-- Static, over all versions and planned once: planning would cost as much as all else around the scan. With sorting and sequential
-- scans off there is no other plan than by the index.
CREATE OR REPLACE FUNCTION trecho._search_nearest(
    p_index_version integer,
    p_embedding     @extschema:vector@.vector,
    p_project       text,
    p_branch        text,
    p_k             integer,
    p_skip          integer,
    p_per_document  integer,
    p_ef_search     integer,
    p_hidden        boolean             -- leave out what is quarantined
)
RETURNS trecho.search_hit[]             -- fewer than k where one pass did not find enough
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, @extschema:vector@, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_sort = off
SET plan_cache_mode = force_generic_plan
AS $function$
DECLARE
    c_equal     constant double precision := 1e-6;  -- the index and the operator round differently
    v_need      integer := p_skip + p_k;
    v_old_ef    text := current_setting('hnsw.ef_search');
    v_old_scan  text := current_setting('hnsw.iterative_scan');
    v_hit       trecho.search_hit;
    v_all       trecho.search_hit[] := '{}';
    v_kept      trecho.search_hit[] := '{}';
    v_documents bigint[] := '{}';
    v_found     integer := 0;
    v_lowest    double precision := 2;
    v_sorted    boolean := true;
    v_set       text;
    v_near CURSOR FOR
        SELECT h.chunk_key, v.document_id, v.ordinal, 1 - h.distance AS semantic
          FROM (SELECT c.chunk_key, c.embedding <=> p_embedding AS distance FROM trecho.chunks AS c
                 WHERE c.index_version = p_index_version AND c.project = p_project AND NOT (c.quarantined AND p_hidden)
                 ORDER BY c.embedding <=> p_embedding LIMIT p_ef_search) AS h
         CROSS JOIN LATERAL (SELECT p.document_id, p.ordinal FROM trecho.placements AS p
                              WHERE p.index_version = p_index_version AND p.chunk_key = h.chunk_key AND p.project = p_project AND p.branch = p_branch
                              LIMIT 1) AS v;
BEGIN
    v_set := set_config('hnsw.ef_search', p_ef_search::text, true) || set_config('hnsw.iterative_scan', 'off', true);
    OPEN v_near;
    LOOP
        FETCH v_near INTO v_hit.chunk_key, v_hit.document_id, v_hit.ordinal, v_hit.semantic;
        EXIT WHEN NOT FOUND OR (v_found >= v_need AND v_hit.semantic < v_lowest - c_equal);  -- equals of the last one are read, too
        v_sorted := v_sorted AND v_hit.semantic < v_lowest;
        v_lowest := least(v_lowest, v_hit.semantic);
        v_hit.score := v_hit.semantic;
        v_all := v_all || v_hit;
        IF cardinality(array_positions(v_documents, v_hit.document_id)) < p_per_document THEN
            v_found := v_found + 1;
            v_hit.rank := v_found;
            v_documents := v_documents || v_hit.document_id;
            IF v_found > p_skip THEN
                v_kept := v_kept || v_hit;
            END IF;
        END IF;
    END LOOP;
    CLOSE v_near;
    v_set := set_config('hnsw.ef_search', v_old_ef, true) || set_config('hnsw.iterative_scan', v_old_scan, true);
    IF v_sorted THEN
        RETURN v_kept[: p_k];
    END IF;
    RETURN coalesce(array_agg(ROW(f.chunk_key, f.document_id, f.ordinal, NULL, f.semantic, f.semantic, f.rank)::trecho.search_hit ORDER BY f.rank), '{}')
      FROM (SELECT c.*, row_number() OVER (ORDER BY c.semantic DESC, c.document_id, c.ordinal) AS rank
              FROM (SELECT h.chunk_key, h.document_id, h.ordinal, h.semantic,
                           row_number() OVER (PARTITION BY h.document_id ORDER BY h.semantic DESC, h.ordinal) AS place
                      FROM unnest(v_all) AS h) AS c
             WHERE c.place <= p_per_document) AS f
     WHERE f.rank > p_skip AND f.rank <= v_need;
END
$function$;
COMMENT ON FUNCTION trecho._search_nearest(integer, @extschema:vector@.vector, text, text, integer, integer, integer, integer, boolean) IS
    'Hits of one page by vector alone, for a branch that is most of its version. Puts hnsw.* back.';
REVOKE ALL ON FUNCTION trecho._search_nearest(integer, @extschema:vector@.vector, text, text, integer, integer, integer, integer, boolean) FROM PUBLIC;

-- Everything but the text of the results. Dynamic SQL on the leaf: each statement is planned for its values, never generically.
CREATE OR REPLACE FUNCTION trecho._search(
    p_query           text,
    p_embedding       @extschema:vector@.vector,
    p_index_version   integer,
    p_k               integer,
    p_skip            integer,
    p_mode            text,
    p_project         text,
    p_branch          text,
    p_scopes          trecho.chunk_scope[],
    p_session_id      uuid,
    p_path_prefix     text,
    p_languages       text[],
    p_metadata_filter jsonb,
    p_updated_after   timestamptz,
    p_per_document    integer,
    p_lexical_weight  double precision,
    p_fusion          text,
    p_prefix          boolean,
    p_ef_search       integer,
    p_explain         boolean,
    OUT o_version     integer,
    OUT o_hits        trecho.search_hit[],
    OUT o_details     jsonb
)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE  -- sets hnsw.*, which a parallel query may not
SET search_path = pg_catalog, @extschema:vector@, pg_temp
SET jit = off                            -- compiling costs more than the query
SET enable_seqscan = off                 -- no estimate may lead to a scan of everything
SET plan_cache_mode = auto               -- EXECUTE then plans for its values
AS $function$
DECLARE
    c_operators   constant text := '"|(^|\s)-\S';     -- phrases and exclusions
    c_min_depth   constant integer := 80;            -- fewest candidates of each kind
    c_reranked    constant integer := 80;            -- by words, how many get the whole score
    c_max_factor  constant double precision := 10;   -- most candidates per wanted result
    c_left_out    constant integer := 1000000000;    -- added to the rank of what pruning left out
    c_words_limit constant integer := 20000;         -- and never more than this where common words let more through
    c_batch       constant integer := 50;            -- vectors read at once where there is a filter
    c_few         constant integer := 2000;          -- below this an exact scan has better recall, and soon better time, than HNSW
    v_lexical  boolean := p_mode <> 'semantic';
    v_semantic boolean := p_mode <> 'lexical' AND p_embedding IS NOT NULL;
    v_need     integer := p_skip + p_k;
    v_where    text := '';   -- on documents d
    v_chunk    text;         -- on chunks c
    v_filtered text;         -- visible placements that pass every filter
    v_placed   text;         -- the same for one chunk s.chunk_key
    v_chunks   text;
    v_placements text;
    v_total    bigint;            -- chunks of the version
    v_unseen   double precision;  -- chunks that a lexeme without statistics is taken to be in
    v_rows     bigint;       -- placements that pass the filters, counted up to a bound
    v_longest  integer;
    v_bound    bigint;
    v_few      boolean;
    v_exact    boolean;
    v_depth    integer;
    v_limit    integer := 0;   -- vectors asked of the index last time
    v_level    integer := 1;
    v_target   record;
    v_words    record;
    v_matches  text;
    v_sql      text;
    v_lex      trecho.search_hit[] := '{}';
    v_sem      trecho.search_hit[] := '{}';
    v_lex_done boolean;
    v_sem_done boolean;
    v_found    integer;
    v_ef       integer;
    v_cursor   refcursor;
    v_hit      trecho.search_hit;
    v_documents bigint[] := '{}';
    v_stopped  boolean := false;
    v_whole    bigint;        -- how far into both lists the order is final
    v_hidden   boolean := trecho._text_setting('trecho.hide_quarantined', 'on')::boolean;
    v_step     boolean;       -- read vectors one by one
    v_hard     boolean := false;  -- the query has phrases or exclusions
    v_once     boolean;       -- one pass over the graph is expected to give enough
    v_scan     text;
    v_old_ef   text;
    v_old_scan text;
    v_clock    timestamptz := clock_timestamp();
    v_parts    jsonb := '[]';
BEGIN
    -- An assignment, here and below: it runs no executor, as SELECT INTO would.
    v_target := trecho._search_target(p_index_version, CASE WHEN v_semantic THEN p_embedding END, p_project, p_branch);
    o_version := v_target.o_version;
    v_total := coalesce(v_target.o_total, 0);
    v_unseen := v_target.o_unseen;
    v_rows := v_target.o_rows;
    v_longest := v_target.o_longest;
    o_hits := '{}';
    IF o_version IS NULL THEN
        RETURN;
    END IF;
    IF v_semantic THEN
        v_ef := coalesce(p_ef_search, trecho._text_setting('trecho.ef_search', '300')::integer);
        IF NOT v_lexical AND num_nonnulls(p_scopes, p_session_id, p_path_prefix, p_languages, p_metadata_filter, p_updated_after) = 0
           AND p_query !~ c_operators AND v_rows > c_few AND v_ef * (v_rows::double precision / greatest(v_total, v_rows)) >= 4 * v_need THEN
            o_hits := trecho._search_nearest(o_version, p_embedding, p_project, p_branch, p_k, p_skip, p_per_document, v_ef, v_hidden);
            IF p_explain THEN
                v_parts := jsonb_build_array(jsonb_build_object('part', 'vectors', 'rows', cardinality(o_hits),
                    'milliseconds', extract(epoch FROM clock_timestamp() - v_clock) * 1000,
                    'detail', format('HNSW, ef_search %s, one pass, read until %s are found', v_ef, v_need),
                    'sql', format('SELECT c.chunk_key FROM trecho.chunks_%s AS c WHERE c.project = $2 ORDER BY c.embedding <=> $1 LIMIT %s', o_version, v_ef)));
                v_clock := clock_timestamp();
                o_details := v_parts;
            END IF;
            IF cardinality(o_hits) = p_k THEN
                RETURN;
            END IF;
            o_hits := '{}';  -- fewer documents among the nearest than wanted
        END IF;
    END IF;
    v_chunks := format('trecho.%I', 'chunks_' || o_version);
    v_placements := format('trecho.%I', 'placements_' || o_version);

    v_where := CASE WHEN p_scopes IS NOT NULL THEN ' AND d.scope = ANY ($4)' ELSE '' END
            || CASE WHEN p_session_id IS NOT NULL THEN ' AND d.session_id = $5' ELSE '' END
            || CASE WHEN p_path_prefix IS NOT NULL THEN ' AND d.path ^@ $6' ELSE '' END
            || CASE WHEN p_languages IS NOT NULL THEN ' AND d.language = ANY ($7)' ELSE '' END
            || CASE WHEN p_metadata_filter IS NOT NULL THEN ' AND d.metadata @> $8' ELSE '' END
            || CASE WHEN p_updated_after IS NOT NULL THEN ' AND d.updated_at > $9' ELSE '' END;
    v_chunk := 'c.project = $2'
            || CASE WHEN v_hidden THEN ' AND NOT c.quarantined' ELSE '' END
            || CASE WHEN p_scopes IS NOT NULL THEN ' AND c.scope = ANY ($4)' ELSE '' END
            || CASE WHEN p_session_id IS NOT NULL THEN ' AND c.session_id = $5' ELSE '' END;

    -- How many rows can match: from the totals where only project and branch filter and they are large, else counted up to a bound.
    v_depth := greatest(c_min_depth, ceil(v_need * least(c_max_factor, greatest(8, 1.5 * coalesce(v_longest, 1)))));
    v_bound := c_few;
    IF v_where <> '' OR v_rows IS NULL OR v_rows < 4 * v_bound THEN
        -- Documents first: their chunks are known without visiting placements.
        EXECUTE format('SELECT coalesce(sum(i.chunk_count), 0), coalesce(array_agg(i.document_id), ''{}'') FROM (SELECT i.document_id, i.chunk_count FROM trecho.documents AS d '
                       'JOIN trecho.indexed_documents AS i ON i.index_version = %s AND i.document_id = d.document_id AND i.chunk_count > 0 '
                       'WHERE d.project = $2 AND d.branch = $3%s LIMIT %s) AS i', o_version, v_where, v_bound + 1)
           INTO v_rows, v_documents
          USING p_embedding, p_project, p_branch, p_scopes, p_session_id, p_path_prefix, p_languages, p_metadata_filter, p_updated_after;
    END IF;
    v_few := v_rows <= v_bound;
    IF v_few THEN
        -- The documents are known, so their filter is not read again.
        v_filtered := format('SELECT DISTINCT ON (p.chunk_key) p.chunk_key, p.document_id, p.ordinal FROM %s AS p '
                             'WHERE p.document_id = ANY (%L::bigint[]) ORDER BY p.chunk_key, p.ordinal', v_placements, v_documents);
    ELSE
        v_filtered := format('SELECT DISTINCT ON (p.chunk_key) p.chunk_key, p.document_id, p.ordinal FROM trecho.documents AS d '
                             'JOIN %s AS p ON p.document_id = d.document_id WHERE d.project = $2 AND d.branch = $3%s '
                             'ORDER BY p.chunk_key, p.ordinal', v_placements, v_where);
    END IF;
    v_placed := CASE WHEN v_where = ''
                     THEN format('SELECT p.document_id, p.ordinal FROM %s AS p WHERE p.chunk_key = %%s.chunk_key AND p.project = $2 AND p.branch = $3',
                                 v_placements)
                     ELSE format('SELECT p.document_id, p.ordinal FROM %s AS p JOIN trecho.documents AS d ON d.document_id = p.document_id '
                                 'WHERE p.chunk_key = %%s.chunk_key AND p.project = $2 AND p.branch = $3%s', v_placements, replace(v_where, '%', '%%'))
                END;
    IF p_explain THEN
        v_parts := v_parts || jsonb_build_object('part', 'filter', 'rows', v_rows, 'milliseconds', extract(epoch FROM clock_timestamp() - v_clock) * 1000,
            'detail', format('%s rows pass the filters%s; %s', v_rows, CASE WHEN v_few THEN '' ELSE ' (or more)' END,
                             CASE WHEN v_few THEN 'few: exact' ELSE 'many: indexes' END));
        v_clock := clock_timestamp();
    END IF;

    -- A vector alone needs the query's text only for its phrases and exclusions.
    IF v_lexical OR p_query ~ c_operators THEN
        v_words := trecho._read_query(p_query, o_version, p_prefix AND v_lexical,
                   -- More of them where many are filtered out, fewer where there are few.
                   least(trecho._text_setting('trecho.word_candidates', '2000')::double precision, greatest(500, v_total / 10))
                   * CASE WHEN v_few OR v_total = 0 THEN 1 ELSE least(4, greatest(1, v_total::double precision / greatest(v_rows, v_bound))) END,
                   coalesce(nullif(v_total, 0), 1000), coalesce(v_unseen, 1));
        IF v_words.hard_filter IS NOT NULL THEN
            v_hard := true;
            v_chunk := v_chunk || format(' AND c.search_vector @@ %L::tsquery', v_words.hard_filter::text);
            IF NOT v_few AND querytree(v_words.hard_filter) NOT IN ('T', '') THEN
                -- A phrase that few chunks hold is looked up first; an index of vectors would look through everything for them.
                EXECUTE format('SELECT count(*) FROM (SELECT FROM %s AS c WHERE %s LIMIT %s) AS c', v_chunks, v_chunk, c_few + 1)
                   INTO v_found
                  USING p_embedding, p_project, p_branch, p_scopes, p_session_id;
                IF v_found <= c_few THEN
                    v_few := true;
                    v_filtered := format('SELECT c.chunk_key, v.document_id, v.ordinal FROM %s AS c CROSS JOIN LATERAL (%s ORDER BY p.ordinal LIMIT 1) AS v WHERE %s',
                                         v_chunks, format(v_placed, 'c'), v_chunk);
                END IF;
            END IF;
        END IF;
        v_lexical := v_lexical AND v_words.words IS NOT NULL;
        IF p_explain THEN
            v_parts := v_parts || jsonb_build_object('part', 'query', 'rows', cardinality(v_words.lexemes),
                'milliseconds', extract(epoch FROM clock_timestamp() - v_clock) * 1000,
                'detail', format('lexemes %s, in %s chunks; candidates %s; pairs %s; filter %s', v_words.lexemes, v_words.frequencies, v_words.candidates,
                                 v_words.pairs, v_words.hard_filter));
            v_clock := clock_timestamp();
        END IF;
    END IF;

    v_lex_done := NOT v_lexical;
    v_sem_done := NOT v_semantic;
    LOOP
        IF NOT v_lex_done THEN
            v_matches := format('SELECT c.chunk_key, c.search_vector FROM %s AS c WHERE %s AND c.search_vector @@ ', v_chunks, v_chunk);
            v_matches := CASE WHEN v_level > 1 THEN v_matches || format('%L::tsquery', v_words.words::text)
                              ELSE (SELECT string_agg(format('(%s%L::tsquery LIMIT %s)', v_matches, m.match::text, m.most), ' UNION ALL ')
                                      FROM (VALUES (v_words.candidates, c_words_limit), (v_words.pairs, v_words.pair_limit)) AS m (match, most)
                                     WHERE m.match IS NOT NULL) END;
            -- In order of a first score, from which the rest of the whole score is left out that costs much and moves little. What is not
            -- among the first c_reranked stays behind them, and what pruning left out behind what it did not: rank says so, depends on no
            -- limit, and is the same for those that the score orders. So pages continue each other.
            v_sql := format($sql$
                SELECT array_agg(ROW(h.chunk_key, h.document_id, h.ordinal, h.base + CASE WHEN h.place <= %s THEN %s ELSE 0 END, NULL, NULL,
                                     greatest(h.place, %s) + CASE WHEN h.chosen THEN 0 ELSE %s END)::trecho.search_hit)
                  FROM (SELECT l.*, row_number() OVER (ORDER BY l.chosen DESC, l.base DESC, %s) AS place
                          FROM (SELECT s.chunk_key, s.chosen, s.base, v.document_id, v.ordinal FROM (%s) AS s CROSS JOIN LATERAL (%s) AS v LIMIT %s) AS l) AS h
                  JOIN %s AS c ON c.chunk_key = h.chunk_key
                $sql$,
                CASE WHEN v_semantic THEN greatest(v_depth, c_reranked) ELSE c_reranked END, v_words.rest_sql, c_reranked, c_left_out,
                CASE WHEN v_few THEN 'l.document_id, l.ordinal' ELSE 'l.chunk_key' END,
                CASE WHEN v_few
                     THEN format('SELECT f.chunk_key, f.document_id, f.ordinal, true AS chosen, %s AS base FROM (%s) AS f JOIN %s AS c ON c.chunk_key = f.chunk_key WHERE %s AND c.search_vector @@ %L::tsquery ORDER BY base DESC, f.document_id, f.ordinal',
                                 v_words.base_sql, v_filtered, v_chunks, v_chunk, v_words.words::text)
                     ELSE format('SELECT c.chunk_key, %s AS chosen, %s AS base FROM (%s) AS c ORDER BY chosen DESC, base DESC, c.chunk_key',
                                 CASE WHEN v_level = 1 THEN 'true'
                                      ELSE (SELECT string_agg(format('c.search_vector @@ %L::tsquery', m.match::text), ' OR ')
                                              FROM (VALUES (v_words.candidates), (v_words.pairs)) AS m (match) WHERE m.match IS NOT NULL) END,
                                 v_words.base_sql, v_matches)
                END,
                CASE WHEN v_few THEN 'SELECT s.document_id, s.ordinal' ELSE format(v_placed, 's') || ' LIMIT 1' END,
                greatest(v_depth, c_reranked), v_chunks);
            EXECUTE v_sql INTO v_lex
              USING p_embedding, p_project, p_branch, p_scopes, p_session_id, p_path_prefix, p_languages, p_metadata_filter, p_updated_after;
            v_lex := coalesce(v_lex, '{}');
            v_lex_done := cardinality(v_lex) < greatest(v_depth, c_reranked) AND (v_few OR v_level > 1);
            IF p_explain THEN
                v_parts := v_parts || jsonb_build_object('part', 'words', 'rows', cardinality(v_lex),
                    'milliseconds', extract(epoch FROM clock_timestamp() - v_clock) * 1000,
                    'detail', format('level %s, %s, up to %s', v_level, CASE WHEN v_few THEN 'exact over the filtered rows' WHEN v_level = 1 THEN 'pruned candidates' ELSE 'every match' END, v_depth),
                    'sql', v_sql);
                v_clock := clock_timestamp();
            END IF;
        END IF;

        IF NOT v_sem_done THEN
            v_exact := v_few OR v_level > 2 OR (v_level = 2 AND v_lexical AND cardinality(v_sem) < v_limit);
            -- A vector alone is read as far as needed and no further, in batches that come one after the other, so that pages continue each other.
            v_step := NOT v_exact AND v_level = 1 AND NOT v_lexical;
            v_limit := CASE WHEN v_step THEN 1000 ELSE v_depth END;
            -- Where most of the version can match, one pass over the graph gives enough; keeping what an iteration needs costs a sixth more.
            v_once := NOT v_exact AND v_level = 1 AND NOT v_hard
                      AND v_ef * (v_rows / greatest(v_total, v_rows)::double precision) >= 1.5 * CASE WHEN v_step THEN 3 * v_need ELSE v_limit END;
            IF v_exact THEN
                -- The added zero keeps the planner from the HNSW index.
                v_sql := format($sql$
                    SELECT array_agg(ROW(h.chunk_key, h.document_id, h.ordinal, NULL, 1 - h.distance, NULL, NULL)::trecho.search_hit)
                      FROM (SELECT f.chunk_key, f.document_id, f.ordinal, (c.embedding <=> $1) + 0 AS distance
                              FROM (%s) AS f JOIN %s AS c ON c.chunk_key = f.chunk_key
                             WHERE c.embedding IS NOT NULL AND %s ORDER BY distance, f.document_id, f.ordinal LIMIT %s) AS h
                    $sql$, v_filtered, v_chunks, v_chunk, v_depth);
            ELSIF v_step THEN
                v_sql := format($sql$
                    SELECT h.chunk_key, v.document_id, v.ordinal, 1 - h.distance
                      FROM (SELECT c.chunk_key, c.embedding <=> $1 AS distance FROM %s AS c WHERE %s ORDER BY c.embedding <=> $1 LIMIT %s) AS h
                     CROSS JOIN LATERAL (%s LIMIT 1) AS v
                    $sql$, v_chunks, v_chunk, v_limit, format(v_placed, 'h'));
            ELSE
                -- OFFSET 0 keeps the probe of placements out of the join order, which keeps the index in charge of the order.
                v_sql := format($sql$
                    SELECT array_agg(ROW(h.chunk_key, v.document_id, v.ordinal, NULL, 1 - h.distance, NULL, NULL)::trecho.search_hit)
                      FROM (SELECT c.chunk_key, c.embedding <=> $1 AS distance FROM %s AS c
                             WHERE %s AND EXISTS (%s OFFSET 0) ORDER BY c.embedding <=> $1 LIMIT %s) AS h
                     CROSS JOIN LATERAL (%s LIMIT 1) AS v
                    $sql$, v_chunks, v_chunk, format(v_placed, 'c'), v_limit, format(v_placed, 'h'));
            END IF;
            IF NOT v_exact THEN
                v_old_ef := current_setting('hnsw.ef_search');
                v_old_scan := current_setting('hnsw.iterative_scan');
            END IF;
            FOREACH v_scan IN ARRAY CASE WHEN v_exact THEN '{exact}'::text[] WHEN v_once THEN '{off,relaxed_order}' ELSE '{relaxed_order}' END LOOP
                IF NOT v_exact THEN
                    PERFORM set_config('hnsw.ef_search', v_ef::text, true), set_config('hnsw.iterative_scan', v_scan, true);
                END IF;
                IF v_step THEN
                    v_found := 0;
                    v_stopped := false;
                    v_sem := '{}';
                    v_documents := '{}';
                    OPEN v_cursor NO SCROLL FOR EXECUTE v_sql
                        USING p_embedding, p_project, p_branch, p_scopes, p_session_id, p_path_prefix, p_languages, p_metadata_filter, p_updated_after;
                    LOOP
                        FETCH v_cursor INTO v_hit.chunk_key, v_hit.document_id, v_hit.ordinal, v_hit.semantic;
                        EXIT WHEN NOT FOUND;
                        v_hit.rank := cardinality(v_sem) / c_batch;
                        v_sem := v_sem || v_hit;
                        IF cardinality(array_positions(v_documents, v_hit.document_id)) < p_per_document THEN
                            v_found := v_found + 1;
                        END IF;
                        v_documents := v_documents || v_hit.document_id;
                        v_stopped := v_found >= v_need AND cardinality(v_sem) % c_batch = 0;
                        EXIT WHEN v_stopped;
                    END LOOP;
                    CLOSE v_cursor;
                    v_stopped := v_found >= v_need;
                    EXIT WHEN v_stopped;
                ELSE
                    EXECUTE v_sql INTO v_sem
                      USING p_embedding, p_project, p_branch, p_scopes, p_session_id, p_path_prefix, p_languages, p_metadata_filter, p_updated_after;
                    EXIT WHEN cardinality(v_sem) >= v_limit;
                END IF;
            END LOOP;
            IF NOT v_exact THEN
                PERFORM set_config('hnsw.ef_search', v_old_ef, true), set_config('hnsw.iterative_scan', v_old_scan, true);
            END IF;
            v_sem := coalesce(v_sem, '{}');
            v_sem_done := v_exact AND cardinality(v_sem) < v_depth;
            IF p_explain THEN
                v_parts := v_parts || jsonb_build_object('part', 'vectors', 'rows', cardinality(v_sem),
                    'milliseconds', extract(epoch FROM clock_timestamp() - v_clock) * 1000,
                    'detail', format('level %s, %s, up to %s', v_level, CASE WHEN v_exact THEN 'exact over the filtered rows' ELSE format('HNSW, ef_search %s, %s', v_ef, CASE v_scan WHEN 'off' THEN 'one pass' ELSE 'iterative' END) END, v_depth),
                    'sql', v_sql);
                v_clock := clock_timestamp();
            END IF;
        END IF;

        EXIT WHEN v_stopped OR (v_lex_done AND v_sem_done);
        -- Of two lists only the tiers that are read to their ends count: those below would be ordered anew by a deeper page.
        v_whole := CASE WHEN v_lexical AND v_semantic THEN c_min_depth * 8 ^ floor(ln(v_depth::double precision / c_min_depth) / ln(8::double precision) + 1e-9) END;
        SELECT coalesce(sum(least(d.chunks, p_per_document)), 0) INTO v_found
          FROM (SELECT count(DISTINCT h.chunk_key) AS chunks
                  FROM (SELECT l.chunk_key, l.document_id FROM unnest(v_lex) AS l WHERE v_whole IS NULL OR l.rank % c_left_out <= v_whole
                        UNION ALL
                        (SELECT s.chunk_key, s.document_id FROM unnest(v_sem) AS s ORDER BY s.semantic DESC LIMIT v_whole)) AS h
                 GROUP BY h.document_id) AS d;
        EXIT WHEN v_found >= v_need;
        v_level := v_level + 1;
        v_depth := least(v_depth::bigint * 8, 100000000);
    END LOOP;

    IF v_lexical AND v_semantic THEN
        -- Both scores for every candidate. The bounds and the first page come from the best c_min_depth of each list, however deep the
        -- lists are, so that a later page continues an earlier one. For the same reason a rank is a place in a list, never among all
        -- candidates, and one below the tier counts as the first below it. A chunk that has no vector yet gets the average of those that have.
        v_sql := format($sql$
            WITH pool AS (
                SELECT h.chunk_key, min(h.document_id) AS document_id, min(h.ordinal) AS ordinal, max(h.lexical) AS lexical, max(h.semantic) AS semantic,
                       max(h.rank) AS lexical_place
                  FROM unnest($10::trecho.search_hit[]) AS h GROUP BY h.chunk_key
            ), scored AS MATERIALIZED (
                SELECT p.chunk_key, p.document_id, p.ordinal, coalesce(p.lexical, %s) AS lexical, coalesce(p.semantic, 1 - (c.embedding <=> $1)) AS semantic,
                       p.lexical_place, p.semantic AS listed
                  FROM pool AS p JOIN %s AS c ON c.chunk_key = p.chunk_key
            ), listed AS (
                SELECT s.*, CASE WHEN s.lexical_place < %s
                                 THEN row_number() OVER (ORDER BY s.lexical_place, s.lexical DESC, s.document_id, s.ordinal) END AS lexical_rank,
                       CASE WHEN s.listed IS NOT NULL
                            THEN row_number() OVER (ORDER BY s.listed DESC NULLS LAST, s.document_id, s.ordinal) END AS semantic_rank
                  FROM scored AS s
            ), tiered AS (
                SELECT l.*, CASE WHEN least(l.lexical_rank, l.semantic_rank) <= %s THEN 0
                                 ELSE coalesce(1 + floor(ln(least(l.lexical_rank, l.semantic_rank)::double precision / %s) / ln(8::double precision)), 99) END AS tier
                  FROM listed AS l
            ), bounds AS (
                SELECT min(t.lexical) AS lexical_low, nullif(max(t.lexical) - min(t.lexical), 0) AS lexical_range,
                       min(t.semantic) AS semantic_low, nullif(max(t.semantic) - min(t.semantic), 0) AS semantic_range, avg(t.semantic) AS semantic_mean
                  FROM tiered AS t WHERE t.tier = 0
            ), fused AS (
                SELECT t.*, %s AS score FROM tiered AS t CROSS JOIN bounds AS b
            ), cut AS (
                SELECT f.*, row_number() OVER (PARTITION BY f.document_id ORDER BY f.tier, f.score DESC, f.lexical DESC, f.ordinal) AS place FROM fused AS f
            ), final AS (
                SELECT f.*, row_number() OVER (ORDER BY f.tier, f.score DESC, f.lexical DESC, f.document_id, f.ordinal) AS rank FROM cut AS f WHERE f.place <= $11
            )
            SELECT array_agg(ROW(f.chunk_key, f.document_id, f.ordinal, f.lexical, f.semantic, f.score, f.rank)::trecho.search_hit ORDER BY f.rank)
              FROM final AS f WHERE f.rank > $12 AND f.rank <= $12 + $13
            $sql$,
            v_words.base_sql || ' + ' || v_words.rest_sql, v_chunks, c_left_out, c_min_depth, c_min_depth,
            CASE p_fusion
                WHEN 'rrf' THEN format('greatest(0, $14 * CASE WHEN t.lexical > 0 THEN 61.0 / (60 + least(t.lexical_rank, 1 + %1$s * 8 ^ t.tier)) ELSE 0 END + (1 - $14) * CASE WHEN t.semantic IS NULL THEN 0 ELSE 61.0 / (60 + least(t.semantic_rank, 1 + %1$s * 8 ^ t.tier)) END)::double precision', c_min_depth)
                ELSE 'least(1, greatest(0, $14 * coalesce((t.lexical - b.lexical_low) / b.lexical_range, 1) + (1 - $14) * coalesce((coalesce(t.semantic, b.semantic_mean) - b.semantic_low) / b.semantic_range, 1)))'
            END);
        EXECUTE v_sql INTO o_hits
          USING p_embedding, p_project, p_branch, p_scopes, p_session_id, p_path_prefix, p_languages, p_metadata_filter, p_updated_after,
                v_lex || v_sem, p_per_document, p_skip, p_k, p_lexical_weight;
    ELSE
        v_sql := NULL;
        SELECT array_agg(ROW(f.chunk_key, f.document_id, f.ordinal, f.lexical, f.semantic, f.score, f.rank)::trecho.search_hit ORDER BY f.rank)
          INTO o_hits
          FROM (SELECT c.*, row_number() OVER (ORDER BY c.batch, c.score DESC, c.document_id, c.ordinal) AS rank
                  FROM (SELECT h.chunk_key, h.document_id, h.ordinal, h.lexical, h.semantic, coalesce(h.lexical, h.semantic) AS score,
                               coalesce(h.rank, 0) AS batch,
                               row_number() OVER (PARTITION BY h.document_id ORDER BY coalesce(h.rank, 0), coalesce(h.lexical, h.semantic) DESC, h.ordinal) AS place
                          FROM unnest(v_lex || v_sem) AS h) AS c
                 WHERE c.place <= p_per_document) AS f
         WHERE f.rank > p_skip AND f.rank <= v_need;
    END IF;
    o_hits := coalesce(o_hits, '{}');
    IF p_explain THEN
        v_parts := v_parts || jsonb_build_object('part', 'fusion', 'rows', cardinality(o_hits),
            'milliseconds', extract(epoch FROM clock_timestamp() - v_clock) * 1000,
            'detail', format('%s by words, %s by vector, over-fetch %s for %s wanted', cardinality(v_lex), cardinality(v_sem), v_depth, v_need), 'sql', v_sql);
        o_details := v_parts;
    END IF;
END
$function$;
COMMENT ON FUNCTION trecho._search IS 'Hits of a search, in order, and with p_explain how they came about.';
REVOKE ALL ON FUNCTION trecho._search FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._search_allowed(
    p_k integer, p_skip integer, p_mode text, p_embedding @extschema:vector@.vector, p_project text, p_branch text, p_per_document integer, p_lexical_weight double precision, p_fusion text, p_ef_search integer
)
RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF p_k IS NULL OR p_k NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'k must be between 1 and 1000, got %', coalesce(p_k::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use skip to read further pages.';
    END IF;
    IF p_skip IS NULL OR p_skip NOT BETWEEN 0 AND 100000 THEN
        RAISE EXCEPTION 'skip must be between 0 and 100000, got %', coalesce(p_skip::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for the first page; narrow the question instead of reading on.';
    END IF;
    IF p_mode IS NULL OR p_mode NOT IN ('hybrid', 'lexical', 'semantic') THEN
        RAISE EXCEPTION 'mode must be hybrid, lexical or semantic, got %', coalesce(quote_literal(p_mode), 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'hybrid answers by words where no vector is given.';
    END IF;
    IF p_mode = 'semantic' AND p_embedding IS NULL THEN
        RAISE EXCEPTION 'mode semantic needs a query vector' USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass embedding, or use mode lexical.';
    END IF;
    IF p_per_document IS NULL OR p_per_document < 1 THEN
        RAISE EXCEPTION 'per_document must be 1 or more, got %', coalesce(p_per_document::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for the best passage of each document.';
    END IF;
    IF p_lexical_weight IS NULL OR NOT p_lexical_weight BETWEEN 0 AND 1 THEN
        RAISE EXCEPTION 'lexical_weight must be between 0 and 1, got %', coalesce(p_lexical_weight::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for equal weights: 0 counts meaning alone, 1 words alone.';
    END IF;
    IF p_fusion IS NULL OR p_fusion NOT IN ('minmax', 'rrf') THEN
        RAISE EXCEPTION 'fusion must be minmax or rrf, got %', coalesce(quote_literal(p_fusion), 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for minmax, which adds scores; rrf adds reciprocal ranks.';
    END IF;
    IF p_ef_search NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'ef_search must be between 1 and 1000, got %', p_ef_search
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for the setting trecho.ef_search, else 300.';
    END IF;
    IF p_branch IS NULL THEN
        RAISE EXCEPTION 'branch must not be NULL' USING ERRCODE = 'null_value_not_allowed', HINT = 'Leave it out to use the branch main.';
    END IF;
    IF p_project IS NULL OR NOT trecho._may_read(p_project) THEN
        PERFORM trecho._require_read(p_project);  -- raises
    END IF;
    RETURN true;
END
$function$;
COMMENT ON FUNCTION trecho._search_allowed(integer, integer, text, @extschema:vector@.vector, text, text, integer, double precision, text, integer) IS
    'True, or raises 22023 for a bad argument of a search, 42501 for a project the caller may not read.';
REVOKE ALL ON FUNCTION trecho._search_allowed(integer, integer, text, @extschema:vector@.vector, text, text, integer, double precision, text, integer) FROM PUBLIC;

-- A STABLE function sees the snapshot of its caller, but tables as they are now: where the version that the snapshot shows has been dropped
-- meanwhile, only a look with a snapshot of its own tells what to read instead.
CREATE OR REPLACE FUNCTION trecho._versions_now()
RETURNS integer[]
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT ARRAY(SELECT v.index_version FROM trecho.index_versions AS v ORDER BY v.index_version)
$function$;
COMMENT ON FUNCTION trecho._versions_now() IS 'The versions that stand at the moment of the call, whatever the snapshot of the caller shows.';
REVOKE ALL ON FUNCTION trecho._versions_now() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._search_anew(
    p_query           text,
    p_embedding       @extschema:vector@.vector,
    p_index_version   integer,
    p_k               integer,
    p_skip            integer,
    p_mode            text,
    p_project         text,
    p_branch          text,
    p_scopes          trecho.chunk_scope[],
    p_session_id      uuid,
    p_path_prefix     text,
    p_languages       text[],
    p_metadata_filter jsonb,
    p_updated_after   timestamptz,
    p_per_document    integer,
    p_lexical_weight  double precision,
    p_fusion          text,
    p_prefix          boolean,
    p_ef_search       integer
)
RETURNS SETOF trecho.search_result
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, @extschema:vector@, pg_temp
AS $function$
BEGIN
    RETURN QUERY
    SELECT * FROM trecho.search(p_query, p_embedding, p_index_version, p_k, p_skip, p_mode, p_project, p_branch, p_scopes, p_session_id,
                                p_path_prefix, p_languages, p_metadata_filter, p_updated_after, p_per_document, p_lexical_weight, p_fusion, p_prefix,
                                p_ef_search);
END
$function$;
COMMENT ON FUNCTION trecho._search_anew IS 'trecho.search with a snapshot taken now: takes its arguments, raises what it raises.';
REVOKE ALL ON FUNCTION trecho._search_anew FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.search(
    query           text,
    embedding       @extschema:vector@.vector DEFAULT NULL,  -- of the query, 768 numbers, made as trecho.query_recipe() says
    index_version   integer DEFAULT NULL,                   -- NULL: the active one
    k               integer DEFAULT 10,
    skip            integer DEFAULT 0,                      -- results of earlier pages
    mode            text DEFAULT 'hybrid',
    project         text DEFAULT 'default',
    branch          text DEFAULT 'main',
    scopes          trecho.chunk_scope[] DEFAULT NULL,      -- NULL in a filter: do not filter
    session_id      uuid DEFAULT NULL,
    path_prefix     text DEFAULT NULL,
    languages       text[] DEFAULT NULL,
    metadata_filter jsonb DEFAULT NULL,                     -- the metadata of the document contains it
    updated_after   timestamptz DEFAULT NULL,
    per_document    integer DEFAULT 1,                      -- most passages of one document
    lexical_weight  double precision DEFAULT 0.5,           -- of words against vectors, 0 to 1
    fusion          text DEFAULT 'minmax',                  -- or rrf
    prefix          boolean DEFAULT false,                  -- the last word may be unfinished
    ef_search       integer DEFAULT NULL                    -- NULL: setting trecho.ef_search, else 300
)
RETURNS SETOF trecho.search_result
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER ROWS 10
SET search_path = pg_catalog, @extschema:vector@, pg_temp
SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan  -- of the last statement, which goes by key alone
AS $function$
DECLARE
    v_found record;
BEGIN
    IF trecho._search_allowed(search.k, search.skip, search.mode, search.embedding, search.project, search.branch, search.per_document, search.lexical_weight,
                            search.fusion, search.ef_search) THEN
        BEGIN
            v_found := trecho._search(coalesce(search.query, ''), search.embedding, search.index_version, search.k, search.skip, search.mode, search.project,
                                      search.branch, search.scopes, search.session_id, search.path_prefix, search.languages, search.metadata_filter,
                                      search.updated_after, search.per_document, search.lexical_weight, search.fusion, search.prefix, search.ef_search, false);
        EXCEPTION WHEN undefined_table THEN
            IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
                RAISE EXCEPTION 'the index version to search was dropped after this transaction began'
                    USING ERRCODE = 'serialization_failure', HINT = 'Begin the transaction again.';
            END IF;
            IF trecho._versions_now() = ARRAY(SELECT v.index_version FROM trecho.index_versions AS v ORDER BY v.index_version) THEN
                RAISE;
            END IF;
            RETURN QUERY
            SELECT * FROM trecho._search_anew(search.query, search.embedding, search.index_version, search.k, search.skip, search.mode, search.project,
                                              search.branch, search.scopes, search.session_id, search.path_prefix, search.languages,
                                              search.metadata_filter, search.updated_after, search.per_document, search.lexical_weight, search.fusion,
                                              search.prefix, search.ef_search);
            RETURN;
        END;
    END IF;
    IF cardinality(v_found.o_hits) > 0 THEN
        -- OFFSET 0 keeps each table a lookup by its key, in the order of the hits.
        RETURN QUERY
        SELECT h.rank, h.score, h.lexical, h.semantic, p.chunk_id, d.doc_id, d.scope, d.source_path, d.session_id, d.title, p.anchor, p.ordinal,
               i.chunk_count, p.start_line, p.end_line, c.content, d.metadata, c.symbol, v_found.o_version
          FROM unnest(v_found.o_hits) AS h
         CROSS JOIN LATERAL (SELECT c.content, c.symbol FROM trecho.chunks AS c
                              WHERE c.index_version = v_found.o_version AND c.chunk_key = h.chunk_key OFFSET 0) AS c
         CROSS JOIN LATERAL (SELECT p.chunk_id, p.anchor, p.ordinal, p.start_line, p.end_line FROM trecho.placements AS p
                              WHERE p.index_version = v_found.o_version AND p.document_id = h.document_id AND p.ordinal = h.ordinal OFFSET 0) AS p
         CROSS JOIN LATERAL (SELECT d.doc_id, d.scope, d.source_path, d.session_id, d.title, d.metadata FROM trecho.documents AS d
                              WHERE d.document_id = h.document_id OFFSET 0) AS d
         CROSS JOIN LATERAL (SELECT i.chunk_count FROM trecho.indexed_documents AS i
                              WHERE i.index_version = v_found.o_version AND i.document_id = h.document_id OFFSET 0) AS i
         ORDER BY h.rank;
    END IF;
END
$function$;
COMMENT ON FUNCTION trecho.search IS
    'Search passages by words (lexical), by vector (semantic) or both (hybrid, the default; without a vector it answers by words). Quoted phrases and -words are hard filters; any string is a query. Returns k passages, at most per_document of one document, best first (trecho.search_result documents the scores). Raises 42501 for a project the caller may not read; TR001 for an unknown version; TR002 when a vector is given and nothing is indexed; TR003 for a vector without index_version while several versions stand; TR006 for a vector of another version; 22023 for a bad argument; 40001 in a transaction at repeatable read whose version was dropped after it began.';
REVOKE ALL ON FUNCTION trecho.search FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.search TO trecho_reader;
