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
