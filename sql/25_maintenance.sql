-- What happens to chunks and documents after they leave: resolving retired ids, collecting what nothing refers to, erasing for good.

CREATE OR REPLACE FUNCTION trecho._grace()
RETURNS interval
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT coalesce(nullif(current_setting('trecho.grace', true), ''), '7 days')::interval
$function$;
COMMENT ON FUNCTION trecho._grace() IS 'How long unplaced chunks, their vectors and their text are kept: setting trecho.grace, 7 days by default.';
REVOKE ALL ON FUNCTION trecho._grace() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._retention()
RETURNS interval
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT coalesce(nullif(current_setting('trecho.retention', true), ''), '365 days')::interval
$function$;
COMMENT ON FUNCTION trecho._retention() IS 'How long passes, tombstones and retired ids are kept for audit: setting trecho.retention, 365 days by default.';
REVOKE ALL ON FUNCTION trecho._retention() FROM PUBLIC;

-- A file that was renamed is one removed and one written with the same bytes: its passages stand at the new path now.
CREATE OR REPLACE FUNCTION trecho._link_renamed(p_pass trecho.passes, p_written bigint[])
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    WITH pair AS MATERIALIZED (
        SELECT DISTINCT ON (t.tombstone_id) t.doc_id AS old_id, d.document_id, d.doc_id
          FROM trecho.documents AS d
         CROSS JOIN LATERAL (SELECT o.* FROM trecho.tombstones AS o WHERE o.blob_sha = d.blob_sha AND o.pass_id = p_pass.pass_id OFFSET 0) AS t
         WHERE d.document_id = ANY (p_written)
         ORDER BY t.tombstone_id, d.source
    ), moved AS MATERIALIZED (
        SELECT p.index_version, m.old_id || substr(p.chunk_id, length(m.doc_id) + 1) AS old_id, p.chunk_id AS new_id
          FROM pair AS m
          JOIN trecho.placements AS p ON p.document_id = m.document_id
         WHERE m.old_id <> m.doc_id
    )
    UPDATE trecho.retired_chunks AS r SET successor = m.new_id
      FROM moved AS m
     WHERE r.project = p_pass.project AND r.branch = p_pass.branch AND r.chunk_id = m.old_id AND r.index_version = m.index_version
       AND r.pass_id = p_pass.pass_id AND r.successor IS NULL
$function$;
COMMENT ON FUNCTION trecho._link_renamed(trecho.passes, bigint[]) IS
    'Name the passages of documents that this pass wrote as successors of those it retired with a removed document of the same bytes.';
REVOKE ALL ON FUNCTION trecho._link_renamed(trecho.passes, bigint[]) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.resolve(
    chunk_id text,
    project  text DEFAULT 'default',
    branch   text DEFAULT 'main'
)
RETURNS TABLE (state text, successor text, retired_at timestamptz, pass_id bigint, source text, start_line integer, end_line integer, content text)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_active integer := (SELECT s.active_version FROM trecho.index_state AS s);
BEGIN
    PERFORM trecho._require_read(resolve.project);
    RETURN QUERY
    SELECT 'live', NULL::text, NULL::timestamptz, NULL::bigint, coalesce(c.source_path, c.session_id::text), p.start_line, p.end_line, c.content
      FROM trecho.placements AS p
      JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key
     WHERE p.index_version = v_active AND p.chunk_id = resolve.chunk_id AND p.project = resolve.project AND p.branch = resolve.branch
     LIMIT 1;
    IF FOUND THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT 'retired', r.successor, r.retired_at, r.pass_id, coalesce(c.source_path, c.session_id::text), NULL::integer, NULL::integer, c.content
      FROM trecho.retired_chunks AS r
      LEFT JOIN trecho.chunks AS c ON c.index_version = r.index_version AND c.chunk_key = r.chunk_key
     WHERE r.chunk_id = resolve.chunk_id AND r.project = resolve.project AND r.branch = resolve.branch
     ORDER BY r.retired_at DESC, r.index_version DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'unknown', NULL::text, NULL::timestamptz, NULL::bigint, NULL::text, NULL::integer, NULL::integer, NULL::text;
    END IF;
END
$function$;
COMMENT ON FUNCTION trecho.resolve(text, text, text) IS
    'What became of a chunk_id: one row whose state is live, retired (with its successor, when, by which pass, and its text until the grace period ends) or unknown. Raises 42501 for a project the caller may not read.';
REVOKE ALL ON FUNCTION trecho.resolve(text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.resolve(text, text, text) TO trecho_reader;

-- A project whose pass runs now is left for the next call: its chunks may be about to be placed.
CREATE OR REPLACE FUNCTION trecho.gc(
    max_rows integer DEFAULT 10000  -- rows deleted by one call, at most
)
RETURNS integer                     -- rows that could go but did not yet; call again until 0
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_before timestamptz := now() - trecho._grace();
    v_audit  timestamptz := now() - trecho._retention();
    v_left   integer := gc.max_rows;
    v_count  integer;
    v_busy   text[];
    v_versions integer[];
    v_keys   bigint[];
BEGIN
    IF coalesce(gc.max_rows, 0) < 1 THEN
        RAISE EXCEPTION 'max_rows must be at least 1, got %', coalesce(gc.max_rows::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for 10000 rows a call.';
    END IF;
    v_busy := ARRAY(SELECT p.project FROM (SELECT DISTINCT d.project FROM trecho.chunks AS d) AS p
                     WHERE NOT pg_try_advisory_xact_lock(trecho._pass_lock_key(p.project)));

    -- What killed passes staged: the lock that they held is to be had. (A session that runs a pass itself would get it, too.)
    UPDATE trecho.passes AS p SET outcome = 'abandoned', finished_at = now(), error = 'its connection ended before it was published'
     WHERE p.outcome = 'running' AND p.backend_pid <> pg_backend_pid()
       AND p.project IN (SELECT d.project FROM (SELECT DISTINCT r.project FROM trecho.passes AS r WHERE r.outcome = 'running') AS d
                          WHERE pg_try_advisory_xact_lock(trecho._pass_lock_key(d.project)));
    DELETE FROM trecho.staged_documents AS s
     WHERE s.ctid = ANY (ARRAY(SELECT o.ctid FROM trecho.staged_documents AS o JOIN trecho.passes AS p ON p.pass_id = o.pass_id
                                WHERE p.outcome <> 'running' LIMIT v_left));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_left := v_left - v_count;

    -- Locked first and looked at again in a second statement, which sees what was placed meanwhile.
    SELECT array_agg(u.index_version), array_agg(u.chunk_key) INTO v_versions, v_keys
      FROM (SELECT c.index_version, c.chunk_key FROM trecho.chunks AS c
             WHERE c.created_at < v_before AND NOT c.project = ANY (v_busy)
               AND NOT EXISTS (SELECT FROM trecho.placements AS p WHERE p.index_version = c.index_version AND p.chunk_key = c.chunk_key)
               AND NOT EXISTS (SELECT FROM trecho.staged_placements AS s WHERE s.index_version = c.index_version AND s.chunk_key = c.chunk_key)
               AND NOT EXISTS (SELECT FROM trecho.retired_chunks AS r
                                WHERE r.index_version = c.index_version AND r.chunk_key = c.chunk_key AND r.retired_at >= v_before)
             LIMIT greatest(v_left, 0) FOR UPDATE OF c SKIP LOCKED) AS u;
    DELETE FROM trecho.chunks AS c
     USING unnest(v_versions, v_keys) AS u (index_version, chunk_key)
     WHERE c.index_version = u.index_version AND c.chunk_key = u.chunk_key
       AND NOT EXISTS (SELECT FROM trecho.placements AS p WHERE p.index_version = c.index_version AND p.chunk_key = c.chunk_key);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_left := v_left - v_count;

    -- Vectors whose text no chunk has any more, and attempts likewise.
    DELETE FROM trecho.staged_embeddings AS e
     WHERE e.ctid = ANY (ARRAY(
           SELECT o.ctid FROM trecho.staged_embeddings AS o
            WHERE o.created_at < v_before
              AND NOT EXISTS (SELECT FROM trecho.chunks AS c WHERE c.index_version = o.index_version AND c.text_hash = o.text_hash)
            LIMIT greatest(v_left, 0) FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_left := v_left - v_count;
    DELETE FROM trecho.embedding_attempts AS a
     WHERE a.ctid = ANY (ARRAY(
           SELECT o.ctid FROM trecho.embedding_attempts AS o
            WHERE coalesce(o.lease_until, '-infinity') < now()
              AND NOT EXISTS (SELECT FROM trecho.chunks AS c WHERE c.index_version = o.index_version AND c.text_hash = o.text_hash)
            LIMIT greatest(v_left, 0) FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_left := v_left - v_count;

    WITH unused AS (
        SELECT b.blob_sha FROM trecho.blobs AS b
         WHERE b.created_at < v_before
           AND NOT EXISTS (SELECT FROM trecho.documents AS d WHERE d.blob_sha = b.blob_sha)
           AND NOT EXISTS (SELECT FROM trecho.staged_documents AS s WHERE s.blob_sha = b.blob_sha)
           AND NOT EXISTS (SELECT FROM trecho.tombstones AS t WHERE t.blob_sha = b.blob_sha AND t.removed_at >= v_before)
         ORDER BY b.blob_sha LIMIT greatest(v_left, 0)
           FOR UPDATE SKIP LOCKED
    )
    DELETE FROM trecho.blobs AS b USING unused AS u WHERE b.blob_sha = u.blob_sha;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_left := v_left - v_count;

    DELETE FROM trecho.retired_chunks AS r WHERE r.ctid = ANY (ARRAY(SELECT o.ctid FROM trecho.retired_chunks AS o WHERE o.retired_at < v_audit LIMIT greatest(v_left, 0)));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_left := v_left - v_count;
    DELETE FROM trecho.tombstones AS t WHERE t.ctid = ANY (ARRAY(SELECT o.ctid FROM trecho.tombstones AS o WHERE o.removed_at < v_audit LIMIT greatest(v_left, 0)));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_left := v_left - v_count;
    DELETE FROM trecho.passes AS p WHERE p.ctid = ANY (ARRAY(SELECT o.ctid FROM trecho.passes AS o
                                                              WHERE o.outcome <> 'running' AND o.finished_at < v_audit LIMIT greatest(v_left, 0)));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_left := v_left - v_count;
    IF v_left > 0 THEN
        RETURN 0;
    END IF;
    RETURN (SELECT count(*) FROM (
        SELECT FROM trecho.chunks AS c
         WHERE c.created_at < v_before AND NOT c.project = ANY (v_busy)
           AND NOT EXISTS (SELECT FROM trecho.placements AS p WHERE p.index_version = c.index_version AND p.chunk_key = c.chunk_key)
           AND NOT EXISTS (SELECT FROM trecho.staged_placements AS s WHERE s.index_version = c.index_version AND s.chunk_key = c.chunk_key)
           AND NOT EXISTS (SELECT FROM trecho.retired_chunks AS r
                            WHERE r.index_version = c.index_version AND r.chunk_key = c.chunk_key AND r.retired_at >= v_before)
        UNION ALL SELECT FROM trecho.staged_documents AS s JOIN trecho.passes AS p ON p.pass_id = s.pass_id WHERE p.outcome <> 'running'
        UNION ALL SELECT FROM trecho.retired_chunks AS r WHERE r.retired_at < v_audit
        UNION ALL SELECT FROM trecho.tombstones AS t WHERE t.removed_at < v_audit) AS x);
END
$function$;
COMMENT ON FUNCTION trecho.gc(integer) IS
    'Delete what killed passes staged, after the grace period chunks that no placement refers to, their vectors and texts, and, after the retention period, old audit rows; at most max_rows per call. Readers are not blocked. A project with a running pass is left for later. Returns how many rows are left, 0 when done. Raises 22023 for max_rows below 1.';
REVOKE ALL ON FUNCTION trecho.gc(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.gc(integer) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.purge(
    scope       trecho.chunk_scope,
    source_path text DEFAULT NULL,
    session_id  uuid DEFAULT NULL,
    project     text DEFAULT 'default'
)
RETURNS integer  -- documents erased, over all branches
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_source text := coalesce(purge.source_path, purge.session_id::text);
    v_ids    bigint[];
    v_keys   bigint[];
    v_texts  bytea[];
    v_passages bytea[];
BEGIN
    IF v_source IS NULL OR purge.scope IS NULL THEN
        RAISE EXCEPTION 'scope and one of source_path and session_id must be given'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Give the session_id of a session, and the source_path of any other document, as trecho.list_documents shows them.';
    END IF;
    -- A put under way that uses some of these chunks ends first, so that what it wrote is erased, too.
    PERFORM FROM trecho.chunks AS c
     WHERE c.project = purge.project AND c.scope = purge.scope AND coalesce(c.source_path, c.session_id::text) = v_source
     ORDER BY c.content_hash, c.text_hash FOR UPDATE;
    v_ids := ARRAY(SELECT d.document_id FROM trecho.documents AS d
                    WHERE d.project = purge.project AND d.scope = purge.scope AND d.source = v_source ORDER BY d.document_id FOR UPDATE);
    PERFORM trecho._remove_documents(v_ids, NULL);
    -- Chunks belong to one source (content_hash covers it), so every one of this source goes, placed or retired, in every version.
    WITH gone AS (
        DELETE FROM trecho.chunks AS c
         WHERE c.project = purge.project AND c.scope = purge.scope AND coalesce(c.source_path, c.session_id::text) = v_source
        RETURNING c.chunk_key, c.text_hash, trecho._passage_hash(c.context, c.content) AS passage_hash
    )
    SELECT array_agg(g.chunk_key), array_agg(g.text_hash), array_agg(g.passage_hash) INTO v_keys, v_texts, v_passages FROM gone AS g;
    DELETE FROM trecho.retired_chunks AS r WHERE r.chunk_key = ANY (v_keys);
    DELETE FROM trecho.tombstones AS t WHERE t.project = purge.project AND t.scope = purge.scope AND t.source = v_source;
    DELETE FROM trecho.staged_documents AS s USING trecho.passes AS p
     WHERE p.pass_id = s.pass_id AND p.project = purge.project AND s.scope = purge.scope AND s.source = v_source;
    UPDATE trecho.passes AS p SET errors = '[]' WHERE p.project = purge.project AND p.errors::text LIKE '%' || v_source || '%';
    DELETE FROM trecho.staged_embeddings AS e
     WHERE e.text_hash = ANY (v_texts) AND NOT EXISTS (SELECT FROM trecho.chunks AS c WHERE c.index_version = e.index_version AND c.text_hash = e.text_hash);
    DELETE FROM trecho.embedding_attempts AS a
     WHERE a.text_hash = ANY (v_texts) AND NOT EXISTS (SELECT FROM trecho.chunks AS c WHERE c.index_version = a.index_version AND c.text_hash = a.text_hash);
    DELETE FROM trecho.quarantined_texts AS q
     WHERE q.passage_hash = ANY (v_passages)
       AND NOT EXISTS (SELECT FROM unnest(v_texts, v_passages) AS u (text_hash, passage_hash)
                         JOIN trecho.chunks AS c ON c.text_hash = u.text_hash WHERE u.passage_hash = q.passage_hash);
    -- Earlier texts of a document are tied to it no longer, so every text that nothing refers to goes. A source can bring them again.
    DELETE FROM trecho.blobs AS b
     WHERE NOT EXISTS (SELECT FROM trecho.documents AS d WHERE d.blob_sha = b.blob_sha)
       AND NOT EXISTS (SELECT FROM trecho.staged_documents AS s WHERE s.blob_sha = b.blob_sha)
       AND NOT EXISTS (SELECT FROM trecho.tombstones AS t WHERE t.blob_sha = b.blob_sha);
    RETURN cardinality(v_ids);
END
$function$;
COMMENT ON FUNCTION trecho.purge(trecho.chunk_scope, text, uuid, text) IS
    'Erase one source everywhere: every branch, every version, text, vectors, retired ids and tombstones, for a request to erase personal data. Text stays in WAL and backups until they expire. Returns documents erased; what was removed before is erased too. Raises 22004 without a source.';
REVOKE ALL ON FUNCTION trecho.purge(trecho.chunk_scope, text, uuid, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.purge(trecho.chunk_scope, text, uuid, text) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.drop_project(project text)
RETURNS integer  -- documents removed
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_count integer;
BEGIN
    IF coalesce(drop_project.project, '') = '' THEN
        RAISE EXCEPTION 'project must not be NULL or empty'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Name the project to erase; the one that is used where none is named is called default.';
    END IF;
    IF NOT pg_try_advisory_xact_lock(trecho._pass_lock_key(drop_project.project)) THEN
        RAISE EXCEPTION 'a pass over project % is running', drop_project.project
            USING ERRCODE = 'object_in_use', HINT = 'Wait for it, or end its connection; trecho.pass_holder tells who it is.';
    END IF;
    PERFORM FROM trecho.documents AS d WHERE d.project = drop_project.project ORDER BY d.source FOR UPDATE;
    PERFORM FROM trecho.chunks AS c WHERE c.project = drop_project.project ORDER BY c.content_hash, c.text_hash FOR UPDATE;
    DELETE FROM trecho.placements AS p WHERE p.project = drop_project.project;
    DELETE FROM trecho.indexed_documents AS i USING trecho.documents AS d WHERE d.document_id = i.document_id AND d.project = drop_project.project;
    DELETE FROM trecho.documents AS d WHERE d.project = drop_project.project;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    DELETE FROM trecho.chunks AS c WHERE c.project = drop_project.project;
    DELETE FROM trecho.retired_chunks AS r WHERE r.project = drop_project.project;
    DELETE FROM trecho.tombstones AS t WHERE t.project = drop_project.project;
    DELETE FROM trecho.branches AS b WHERE b.project = drop_project.project;
    DELETE FROM trecho.source_sets AS s WHERE s.project = drop_project.project;
    DELETE FROM trecho.passes AS p WHERE p.project = drop_project.project;
    DELETE FROM trecho.project_grants AS g WHERE g.project = drop_project.project;
    DELETE FROM trecho.staged_embeddings AS e
     WHERE NOT EXISTS (SELECT FROM trecho.chunks AS c WHERE c.index_version = e.index_version AND c.text_hash = e.text_hash);
    DELETE FROM trecho.embedding_attempts AS a
     WHERE NOT EXISTS (SELECT FROM trecho.chunks AS c WHERE c.index_version = a.index_version AND c.text_hash = a.text_hash);
    DELETE FROM trecho.blobs AS b
     WHERE NOT EXISTS (SELECT FROM trecho.documents AS d WHERE d.blob_sha = b.blob_sha)
       AND NOT EXISTS (SELECT FROM trecho.staged_documents AS s WHERE s.blob_sha = b.blob_sha)
       AND NOT EXISTS (SELECT FROM trecho.tombstones AS t WHERE t.blob_sha = b.blob_sha);
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho.drop_project(text) IS
    'Erase a project: documents, chunks, history, grants. Returns documents removed. Raises 22004 without a name, 55006 while a pass over it runs.';
REVOKE ALL ON FUNCTION trecho.drop_project(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.drop_project(text) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.drop_branch(project text, branch text)
RETURNS integer  -- documents removed
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_ids bigint[];
BEGIN
    IF coalesce(drop_branch.project, '') = '' OR coalesce(drop_branch.branch, '') = '' THEN
        RAISE EXCEPTION 'project and branch must not be NULL or empty'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Name both; trecho.index_contents(project) lists the branches that hold documents.';
    END IF;
    IF NOT pg_try_advisory_xact_lock(trecho._pass_lock_key(drop_branch.project)) THEN
        RAISE EXCEPTION 'a pass over project % is running', drop_branch.project
            USING ERRCODE = 'object_in_use', HINT = 'Wait for it; trecho.pass_holder tells who it is.';
    END IF;
    v_ids := ARRAY(SELECT d.document_id FROM trecho.documents AS d
                    WHERE d.project = drop_branch.project AND d.branch = drop_branch.branch ORDER BY d.source FOR UPDATE);
    PERFORM trecho._remove_documents(v_ids, NULL);
    DELETE FROM trecho.branches AS b WHERE b.project = drop_branch.project AND b.branch = drop_branch.branch;
    DELETE FROM trecho.source_sets AS s WHERE s.project = drop_branch.project AND s.branch = drop_branch.branch;
    RETURN cardinality(v_ids);
END
$function$;
COMMENT ON FUNCTION trecho.drop_branch(text, text) IS
    'Remove a branch with all its documents; chunks that other branches share stay. Returns documents removed. Raises 22004 without project or branch, 55006 while a pass over the project runs.';
REVOKE ALL ON FUNCTION trecho.drop_branch(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.drop_branch(text, text) TO trecho_writer;
