-- A first index is loaded without its GIN and HNSW indexes, which are then built at once, in parallel: row by row HNSW costs about 4 ms each.

CREATE OR REPLACE FUNCTION trecho.begin_bulk_load(pass_id bigint)
RETURNS boolean  -- false when the version already serves something, so that its indexes stay
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
    IF EXISTS (SELECT FROM trecho.placements AS p WHERE p.index_version = v_active)
       OR EXISTS (SELECT FROM trecho.passes AS p WHERE p.outcome = 'running' AND p.pass_id <> v_pass.pass_id) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP INDEX IF EXISTS trecho.%I, trecho.%I', 'chunks_' || v_active || '_words', 'chunks_' || v_active || '_vectors');
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$function$;
COMMENT ON FUNCTION trecho.begin_bulk_load(bigint) IS
    'Drop the search indexes of the active version when nothing is published in it yet and no other pass runs. Returns whether it did. trecho.end_bulk_load builds them again. Raises TR005 when this connection does not hold the pass lock.';
REVOKE ALL ON FUNCTION trecho.begin_bulk_load(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.begin_bulk_load(bigint) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.end_bulk_load()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_version integer;
BEGIN
    FOR v_version IN SELECT v.index_version FROM trecho.index_versions AS v WHERE v.state IN ('active', 'building') ORDER BY 1 LOOP
        IF to_regclass(format('trecho.%I', 'chunks_' || v_version || '_words')) IS NULL
           OR to_regclass(format('trecho.%I', 'chunks_' || v_version || '_vectors')) IS NULL THEN
            PERFORM trecho._create_search_indexes(v_version);
            EXECUTE format('ANALYZE trecho.%I', 'chunks_' || v_version);
        END IF;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho.end_bulk_load() IS
    'Build the search indexes that are missing from active and building versions, with the workers and memory of the session (max_parallel_maintenance_workers, maintenance_work_mem). Writers of chunks wait meanwhile; readers do not.';
REVOKE ALL ON FUNCTION trecho.end_bulk_load() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.end_bulk_load() TO trecho_writer;
