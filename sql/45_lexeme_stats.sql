-- Document frequencies and totals that searches read: counted in batches, so that writers never wait for each other's counters.

CREATE OR REPLACE FUNCTION trecho._version_argument(p_index_version integer)
RETURNS integer
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_version integer := coalesce(p_index_version, (SELECT s.active_version FROM trecho.index_state AS s));
BEGIN
    IF p_index_version IS NOT NULL AND NOT EXISTS (SELECT FROM trecho.index_versions AS v WHERE v.index_version = p_index_version) THEN
        RAISE EXCEPTION 'index version % does not exist', p_index_version
            USING ERRCODE = 'TR001', HINT = 'Leave index_version out, or take it from trecho.query_recipe().';
    END IF;
    RETURN v_version;
END
$function$;
COMMENT ON FUNCTION trecho._version_argument(integer) IS 'The version named, or the active one for NULL (NULL where there is none). Raises TR001.';
REVOKE ALL ON FUNCTION trecho._version_argument(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.refresh_lexeme_stats(
    index_version integer DEFAULT NULL,  -- NULL: the active one
    sample_rows   integer DEFAULT 30000  -- read about this many chunks of a larger version
)
RETURNS bigint                           -- lexemes counted; NULL when another refresh of this version is running
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
DECLARE
    v_version  integer := trecho._version_argument(refresh_lexeme_stats.index_version);
    v_last_key bigint;
    v_total    bigint;
    v_fraction double precision;
    v_sample   text;
    v_read     bigint;
    v_lexemes  text[];
    v_counts   integer[];
BEGIN
    IF refresh_lexeme_stats.sample_rows IS NULL OR refresh_lexeme_stats.sample_rows < 1 THEN
        RAISE EXCEPTION 'sample_rows must be 1 or more, got %', coalesce(refresh_lexeme_stats.sample_rows::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave sample_rows out to use 30000.';
    END IF;
    IF v_version IS NULL THEN
        RETURN 0;
    END IF;
    -- Two refreshes would only repeat each other. Nobody else ever waits for this lock or for the rows below.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('trecho.refresh_lexeme_stats', v_version)) THEN
        RETURN NULL;
    END IF;

    SELECT q.last_value INTO v_last_key FROM trecho.chunk_key_seq AS q;
    EXECUTE format('SELECT count(*) FROM trecho.%I', 'chunks_' || v_version) INTO v_total;
    -- SYSTEM reads whole blocks: neighbours come together, which is what makes it cheap; the shares are rough, and roughly is enough.
    v_fraction := least(1, refresh_lexeme_stats.sample_rows / greatest(v_total, 1)::double precision);
    v_sample := format('SELECT c.search_vector FROM trecho.%I AS c', 'chunks_' || v_version)
                || CASE WHEN v_fraction < 1 THEN format(' TABLESAMPLE SYSTEM (%s) REPEATABLE (%s)', v_fraction * 100, v_total) ELSE '' END;
    IF v_fraction < 1 THEN
        EXECUTE format('SELECT count(*) FROM (%s) AS s', v_sample) INTO v_read;
        v_fraction := greatest(v_read, 1) / v_total::double precision;
    END IF;

    -- A lexeme seen once tells no more than one never seen: both count as rare. Arrays and not a temporary table, which a caller could
    -- have prepared with a trigger of its own.
    SELECT array_agg(t.word), array_agg(round(t.ndoc / v_fraction)::integer) INTO v_lexemes, v_counts FROM ts_stat(v_sample) AS t WHERE t.ndoc > 1;
    -- Only what moved by a tenth is written, so that a refresh of a settled index leaves no dead rows.
    MERGE INTO trecho.lexeme_stats AS s
    USING (SELECT n.lexeme COLLATE "C" AS lexeme, n.df FROM unnest(v_lexemes, v_counts) AS n (lexeme, df)) AS n
       ON s.index_version = v_version AND s.lexeme = n.lexeme
     WHEN MATCHED AND abs(s.document_frequency - n.df) > 0.1 * s.document_frequency THEN UPDATE SET document_frequency = n.df
     WHEN NOT MATCHED THEN INSERT (index_version, lexeme, document_frequency) VALUES (v_version, n.lexeme, n.df);
    DELETE FROM trecho.lexeme_stats AS s
     WHERE s.index_version = v_version AND NOT EXISTS (SELECT FROM unnest(v_lexemes) AS n (lexeme) WHERE n.lexeme COLLATE "C" = s.lexeme);
    DELETE FROM trecho.lexeme_stats AS s
     WHERE s.index_version <> v_version AND NOT EXISTS (SELECT FROM trecho.index_versions AS v WHERE v.index_version = s.index_version);

    DELETE FROM trecho.branch_totals AS b WHERE b.index_version = v_version;
    INSERT INTO trecho.branch_totals (index_version, project, branch, document_count, chunk_count, max_chunks)
    SELECT v_version, d.project, d.branch, count(*), sum(i.chunk_count), max(i.chunk_count)
      FROM trecho.indexed_documents AS i
      JOIN trecho.documents AS d ON d.document_id = i.document_id
     WHERE i.index_version = v_version AND i.chunk_count > 0
     GROUP BY d.project, d.branch;
    INSERT INTO trecho.lexeme_totals AS t (index_version, chunk_count, sample_fraction, last_chunk_key)
    VALUES (v_version, v_total, v_fraction, v_last_key)
    ON CONFLICT ON CONSTRAINT lexeme_totals_pkey DO UPDATE
       SET chunk_count = excluded.chunk_count, sample_fraction = excluded.sample_fraction, last_chunk_key = excluded.last_chunk_key, refreshed_at = now();
    RETURN coalesce(cardinality(v_lexemes), 0);
END
$function$;
COMMENT ON FUNCTION trecho.refresh_lexeme_stats(integer, integer) IS
    'Count again in how many chunks of a version each lexeme occurs, from a sample of a large one. Returns lexemes counted, NULL when a refresh of it is running elsewhere. Blocks no reader and no writer. Raises TR001 for an unknown version, 22023 for a bad sample_rows.';
REVOKE ALL ON FUNCTION trecho.refresh_lexeme_stats(integer, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.refresh_lexeme_stats(integer, integer) TO trecho_writer, trecho_operator;

CREATE OR REPLACE FUNCTION trecho.lexeme_stats_lag()
RETURNS TABLE (index_version integer, refreshed_at timestamptz, counted_chunks bigint, chunks bigint, added_chunks bigint, lag double precision)
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT v.index_version, t.refreshed_at, coalesce(t.chunk_count, 0), n.chunks, n.added,
           (n.added + abs(n.chunks - n.added - coalesce(t.chunk_count, 0)))::double precision / greatest(coalesce(t.chunk_count, 0), 1)
      FROM trecho.index_versions AS v
      LEFT JOIN trecho.lexeme_totals AS t ON t.index_version = v.index_version
     CROSS JOIN LATERAL (SELECT count(*) AS chunks, count(*) FILTER (WHERE c.chunk_key > coalesce(t.last_chunk_key, 0)) AS added
                           FROM trecho.chunks AS c WHERE c.index_version = v.index_version) AS n
     ORDER BY v.index_version
$function$;
COMMENT ON FUNCTION trecho.lexeme_stats_lag() IS
    'How far the statistics of words are behind, for every version: chunks counted then, chunks now, chunks added since, and lag = (added + gone) / counted. trecho._after_publish keeps it under about 0.2.';
REVOKE ALL ON FUNCTION trecho.lexeme_stats_lag() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.lexeme_stats_lag() TO trecho_reader, trecho_writer, trecho_operator;

CREATE OR REPLACE FUNCTION trecho._stats_due(p_index_version integer)
RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_counted  bigint;
    v_last_key bigint;
    v_now_key  bigint;
BEGIN
    SELECT t.chunk_count, t.last_chunk_key INTO v_counted, v_last_key FROM trecho.lexeme_totals AS t WHERE t.index_version = p_index_version;
    -- The sequence instead of a count: one page is read, and what other versions took from it only makes a refresh come early.
    SELECT q.last_value INTO v_now_key FROM trecho.chunk_key_seq AS q;
    RETURN v_now_key - coalesce(v_last_key, 0) > 0.2 * coalesce(v_counted, 0);
END
$function$;
COMMENT ON FUNCTION trecho._stats_due(integer) IS 'True when a fifth as many chunks were written as the statistics of words were counted from.';
REVOKE ALL ON FUNCTION trecho._stats_due(integer) FROM PUBLIC;

-- After a publication has committed: short, repeatable, and nobody waits for it.
CREATE OR REPLACE FUNCTION trecho._after_publish(
    p_index_version integer DEFAULT NULL  -- NULL: the active one
)
RETURNS boolean                           -- whether the statistics of words were counted again
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_version integer := trecho._version_argument(p_index_version);
    v_index   regclass := to_regclass(format('trecho.%I', 'chunks_' || v_version || '_words'));
BEGIN
    -- Every search reads the pending list from end to end: 4 MB of it double its time. Missing while a bulk load builds the index last.
    IF v_index IS NOT NULL THEN
        PERFORM gin_clean_pending_list(v_index);
    END IF;
    IF v_version IS NULL OR NOT trecho._stats_due(v_version) THEN
        RETURN false;
    END IF;
    RETURN trecho.refresh_lexeme_stats(v_version) IS NOT NULL;
END
$function$;
COMMENT ON FUNCTION trecho._after_publish(integer) IS
    'Merge the pending list of the word index, and count the statistics of words again where a fifth as many chunks were written since. Returns whether they were.';
REVOKE ALL ON FUNCTION trecho._after_publish(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho._after_publish(integer) TO trecho_writer;
