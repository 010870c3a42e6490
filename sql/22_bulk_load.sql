-- A first index, and a new version beside the old one, are loaded without GIN and HNSW indexes, which are then built at once, in parallel: row by
-- row HNSW costs about 4 ms each.

CREATE OR REPLACE FUNCTION trecho._bulk_documents()
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT 20
$function$;
COMMENT ON FUNCTION trecho._bulk_documents() IS 'Documents from which on a version is loaded without its search indexes.';
REVOKE ALL ON FUNCTION trecho._bulk_documents() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._has_search_indexes(p_index_version integer)
RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT to_regclass(format('trecho.%I', 'chunks_' || p_index_version || '_words')) IS NOT NULL
       AND to_regclass(format('trecho.%I', 'chunks_' || p_index_version || '_vectors')) IS NOT NULL
$function$;
COMMENT ON FUNCTION trecho._has_search_indexes(integer) IS 'Whether the GIN and the HNSW index of a version are there.';
REVOKE ALL ON FUNCTION trecho._has_search_indexes(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.begin_bulk_load(
    pass_id   bigint,
    documents bigint DEFAULT NULL  -- how many the pass writes; NULL: many
)
RETURNS boolean                    -- false when they are too few, or the version already serves something: its indexes stay
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
AS $function$
#variable_conflict use_column
DECLARE
    v_pass   trecho.passes := trecho._running_pass(begin_bulk_load.pass_id);
    v_active integer := trecho._ensure_version();
BEGIN
    IF trecho._pass_lock_holder(v_pass.project) IS DISTINCT FROM pg_backend_pid() THEN
        RAISE EXCEPTION 'this connection does not hold the pass lock of project %', v_pass.project
            USING ERRCODE = 'TR005', HINT = 'Call it on the connection that began the pass.';
    END IF;
    IF begin_bulk_load.documents < trecho._bulk_documents() OR EXISTS (SELECT FROM trecho.placements AS p WHERE p.index_version = v_active)
       OR EXISTS (SELECT FROM trecho.passes AS p WHERE p.outcome = 'running' AND p.pass_id <> v_pass.pass_id) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP INDEX IF EXISTS trecho.%I, trecho.%I', 'chunks_' || v_active || '_words', 'chunks_' || v_active || '_vectors');
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$function$;
COMMENT ON FUNCTION trecho.begin_bulk_load(bigint, bigint) IS
    'Drop the search indexes of the active version when nothing is published in it yet, no other pass runs and 20 documents or more are to come. Returns whether it did. trecho.end_bulk_load builds them again. Raises TR005 when this connection does not hold the pass lock.';
REVOKE ALL ON FUNCTION trecho.begin_bulk_load(bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.begin_bulk_load(bigint, bigint) TO trecho_writer;

-- A graph that does not fit into maintenance_work_mem is built about six times slower, and only a NOTICE says so: it is given what it needs,
-- up to the setting trecho.build_memory. A parallel build takes that memory from /dev/shm, which containers often keep at 64 MB: where it is
-- not to be had, the build goes on without help.
CREATE OR REPLACE FUNCTION trecho._build_search_indexes(p_index_version integer)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_memory  text := current_setting('maintenance_work_mem');
    v_workers text := current_setting('max_parallel_maintenance_workers');
    v_most    bigint := pg_size_bytes(coalesce(nullif(current_setting('trecho.build_memory', true), ''), '512MB'));
    v_vectors bigint;
BEGIN
    EXECUTE format('SELECT count(*) FROM trecho.%I AS c WHERE c.embedding IS NOT NULL', 'chunks_' || p_index_version) INTO v_vectors;
    -- 768 numbers of 4 bytes, and the neighbours of pgvector's element with m = 16.
    PERFORM set_config('maintenance_work_mem',
                       greatest(pg_size_bytes(v_memory), least(v_most, 16777216 + v_vectors * 4600)) / 1024 || 'kB', true);
    BEGIN
        PERFORM trecho._create_search_indexes(p_index_version);
    EXCEPTION WHEN disk_full OR insufficient_resources THEN
        PERFORM set_config('max_parallel_maintenance_workers', '0', true);
        PERFORM trecho._create_search_indexes(p_index_version);
    END;
    PERFORM set_config('maintenance_work_mem', v_memory, true);
    PERFORM set_config('max_parallel_maintenance_workers', v_workers, true);
    EXECUTE format('ANALYZE trecho.%I', 'chunks_' || p_index_version);
END
$function$;
COMMENT ON FUNCTION trecho._build_search_indexes(integer) IS
    'Build the missing search indexes of a version, with memory for its vectors: maintenance_work_mem, or more up to the setting trecho.build_memory (512MB).';
REVOKE ALL ON FUNCTION trecho._build_search_indexes(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.end_bulk_load(
    index_version integer DEFAULT NULL  -- NULL: the active version
)
RETURNS boolean                         -- whether there was anything to build
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_version integer := coalesce(end_bulk_load.index_version, (SELECT s.active_version FROM trecho.index_state AS s));
BEGIN
    IF end_bulk_load.index_version IS NOT NULL THEN
        PERFORM trecho._passage_prefix(end_bulk_load.index_version);  -- TR001
    END IF;
    IF v_version IS NULL OR trecho._has_search_indexes(v_version) THEN
        RETURN false;
    END IF;
    -- Writers under way end first; those that come now leave out a version that is being built (trecho._write_versions).
    PERFORM pg_advisory_xact_lock(trecho._load_lock_key(v_version));
    PERFORM trecho._build_search_indexes(v_version);
    RETURN true;
END
$function$;
COMMENT ON FUNCTION trecho.end_bulk_load(integer) IS
    'Build the search indexes that a version lacks after a first load, with the workers of the session (max_parallel_maintenance_workers) and memory for the vectors (maintenance_work_mem, or more up to the setting trecho.build_memory, 512MB by default). Readers go on, and so do writers where the version is being built beside the active one; on the active version, which serves nothing before its first load ends, writers wait. Returns whether there was anything to do. Raises TR001 for an unknown version.';
REVOKE ALL ON FUNCTION trecho.end_bulk_load(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.end_bulk_load(integer) TO trecho_writer, trecho_operator;
