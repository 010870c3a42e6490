-- Passes: begin, stage, plan, publish or abandon. One pass at a time per project, guarded by an advisory lock of its connection.

CREATE OR REPLACE FUNCTION trecho._pass_lock_key(p_project text)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT hashtextextended('trecho.pass:' || p_project, 0)
$function$;
COMMENT ON FUNCTION trecho._pass_lock_key(text) IS 'Key of the advisory lock that a pass over a project holds.';
REVOKE ALL ON FUNCTION trecho._pass_lock_key(text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._pass_lock_holder(p_project text)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT l.pid
      FROM pg_locks AS l
     WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.mode = 'ExclusiveLock'
       AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
       AND (l.classid::bigint << 32) | l.objid::bigint = trecho._pass_lock_key(p_project)
$function$;
COMMENT ON FUNCTION trecho._pass_lock_holder(text) IS 'Backend pid that holds the pass lock of a project; NULL when free.';
REVOKE ALL ON FUNCTION trecho._pass_lock_holder(text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._running_pass(p_pass_id bigint)
RETURNS trecho.passes
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_pass trecho.passes;
BEGIN
    SELECT p.* INTO v_pass FROM trecho.passes AS p WHERE p.pass_id = p_pass_id;
    IF v_pass.pass_id IS NULL THEN
        RAISE EXCEPTION 'pass % does not exist', coalesce(p_pass_id::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'trecho.begin_pass returns the number of a pass.';
    END IF;
    IF v_pass.outcome <> 'running' THEN
        RAISE EXCEPTION 'pass % is already %', p_pass_id, v_pass.outcome
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Begin a new pass.';
    END IF;
    RETURN v_pass;
END
$function$;
COMMENT ON FUNCTION trecho._running_pass(bigint) IS 'The row of a running pass. Raises 22023 for an unknown one, 55000 for one that has ended.';
REVOKE ALL ON FUNCTION trecho._running_pass(bigint) FROM PUBLIC;

-- Without statistics any index of documents that begins with project and branch looks as good as the one by source, and one that reads the
-- whole branch for each staged document may be chosen. So there are some before the first pass that finds documents; autovacuum goes on.
CREATE OR REPLACE FUNCTION trecho._know_documents()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
AS $function$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_stats AS s WHERE s.schemaname = 'trecho' AND s.tablename = 'documents' AND s.attname = 'branch')
       AND EXISTS (SELECT FROM trecho.documents) THEN
        ANALYZE trecho.documents (project, branch, source_set, source, doc_id, wanted_doc_id, path);
    END IF;
EXCEPTION WHEN lock_not_available THEN
    RETURN;  -- a vacuum is at it, which brings them as well
END
$function$;
COMMENT ON FUNCTION trecho._know_documents() IS 'Gather the statistics of documents that plans of a pass need, where there are none yet.';
REVOKE ALL ON FUNCTION trecho._know_documents() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.begin_pass(
    project    text,
    branch     text,
    source_set text,
    scopes     trecho.chunk_scope[],
    kind       text DEFAULT 'full'  -- full: what is not seen is removed; difference: only what is staged changes
)
RETURNS bigint                      -- pass_id, or NULL when another connection runs a pass over the project
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_pass_id bigint;
    v_caller  name := coalesce(nullif(current_setting('role'), 'none'), session_user::text);
BEGIN
    IF coalesce(begin_pass.project, '') = '' OR coalesce(begin_pass.branch, '') = '' OR coalesce(begin_pass.source_set, '') = ''
       OR coalesce(array_length(begin_pass.scopes, 1), 0) = 0 THEN
        RAISE EXCEPTION 'project, branch, source_set and scopes must not be empty'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'An empty source_set means documents put by applications, which no pass owns.';
    END IF;
    IF begin_pass.kind IS NULL OR begin_pass.kind NOT IN ('full', 'difference') THEN
        RAISE EXCEPTION 'kind must be full or difference, got %', coalesce(begin_pass.kind, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'full removes what is not staged; difference changes only what is staged.';
    END IF;
    -- The lock is re-entrant, so ask first whether this very connection is already in a pass.
    IF EXISTS (SELECT FROM trecho.passes AS p WHERE p.project = begin_pass.project AND p.outcome = 'running' AND p.backend_pid = pg_backend_pid())
       AND trecho._pass_lock_holder(begin_pass.project) = pg_backend_pid() THEN
        RAISE EXCEPTION 'this connection already runs a pass over project %', begin_pass.project
            USING ERRCODE = 'object_in_use', HINT = 'Publish or abandon it first.';
    END IF;
    IF NOT pg_try_advisory_lock(trecho._pass_lock_key(begin_pass.project)) THEN
        RETURN NULL;
    END IF;
    PERFORM trecho._ensure_version();
    PERFORM trecho._know_documents();

    -- Whoever ran these held the lock that is now ours, so they are gone. Their vectors stay.
    UPDATE trecho.passes AS p SET outcome = 'abandoned', finished_at = now(), error = 'its connection ended before it was published'
     WHERE p.project = begin_pass.project AND p.outcome = 'running';
    DELETE FROM trecho.staged_documents AS s USING trecho.passes AS p
     WHERE p.pass_id = s.pass_id AND p.project = begin_pass.project;

    INSERT INTO trecho.passes AS p (project, branch, source_set, scopes, kind, role_name, backend_pid, backend_start)
    VALUES (begin_pass.project, begin_pass.branch, begin_pass.source_set, begin_pass.scopes, begin_pass.kind, v_caller, pg_backend_pid(),
            coalesce((SELECT a.backend_start FROM pg_stat_get_activity(pg_backend_pid()) AS a), now()))
    RETURNING p.pass_id INTO v_pass_id;
    RETURN v_pass_id;
END
$function$;
COMMENT ON FUNCTION trecho.begin_pass(text, text, text, trecho.chunk_scope[], text) IS
    'Begin to make the index equal to a source set. Takes the advisory lock of the project for this connection, which must stay open and outside a transaction-pooling proxy until release_pass. Returns the pass_id, or NULL at once when another connection holds the lock (trecho.index_health tells who). Raises 22023 for empty arguments, 55006 when this connection already runs one.';
REVOKE ALL ON FUNCTION trecho.begin_pass(text, text, text, trecho.chunk_scope[], text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.begin_pass(text, text, text, trecho.chunk_scope[], text) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.pass_holder(project text DEFAULT 'default')
RETURNS TABLE (pass_id bigint, backend_pid integer, role_name name, source_set text, branch text, started_at timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT p.pass_id, h.pid, p.role_name, p.source_set, p.branch, p.started_at
      FROM (SELECT trecho._pass_lock_holder(pass_holder.project) AS pid) AS h
      LEFT JOIN trecho.passes AS p ON p.project = pass_holder.project AND p.outcome = 'running' AND p.backend_pid = h.pid
     WHERE h.pid IS NOT NULL
     ORDER BY p.pass_id DESC LIMIT 1
$function$;
COMMENT ON FUNCTION trecho.pass_holder(text) IS 'Who holds the pass lock of a project and since when; no row when it is free. pass_id is NULL while the holder has not committed its begin_pass, or is gc.';
REVOKE ALL ON FUNCTION trecho.pass_holder(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.pass_holder(text) TO trecho_reader;

CREATE OR REPLACE FUNCTION trecho.pass_documents(pass_id bigint)
RETURNS TABLE (path text, source text, scope trecho.chunk_scope, blob_sha bytea, revision bigint)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_pass     trecho.passes := trecho._running_pass(pass_documents.pass_id);
    v_versions integer[] := ARRAY(SELECT v.index_version FROM trecho.index_versions AS v WHERE v.state = 'active');
BEGIN
    -- A text that the active version lacks, or that an application wrote over the source's, is shown as unknown, so that it is staged again.
    RETURN QUERY
    SELECT coalesce(d.path, d.source), d.source, d.scope, i.blob_sha, d.revision
      FROM trecho.documents AS d
      LEFT JOIN trecho.indexed_documents AS i ON i.document_id = d.document_id AND i.index_version = ANY (v_versions) AND i.blob_sha = d.blob_sha
            AND NOT d.diverged
     WHERE d.project = v_pass.project AND d.branch = v_pass.branch AND d.source_set = v_pass.source_set;
END
$function$;
COMMENT ON FUNCTION trecho.pass_documents(bigint) IS
    'What the index holds of the source set of a pass: read it before reading any source, compare blob_sha (SHA-256 of the bytes; NULL: stage it again) and give revision back to stage_document and stage_removal.';
REVOKE ALL ON FUNCTION trecho.pass_documents(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.pass_documents(bigint) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho._claimed_elsewhere(p_source text, p_owner text, p_source_set text, p_project text, p_branch text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT CASE WHEN p_owner IS NULL OR p_owner = p_source_set THEN NULL
                WHEN p_owner = '' THEN format('%s was put by an application, and source set %s also claims it (exclude the file, or take away the other with trecho.remove_document)',
                                              p_source, p_source_set)
                ELSE format('%s is claimed by two source sets, %s and %s (give it to one of them; to hand over all of the first: SELECT trecho.rename_source_set(%L, %L, %L, %L))',
                            p_source, p_owner, p_source_set, p_owner, p_source_set, p_project, p_branch) END
$function$;
COMMENT ON FUNCTION trecho._claimed_elsewhere(text, text, text, text, text) IS 'Why a source set may not write a source that p_owner has (empty: an application; NULL: nobody), and what to do; NULL when it may.';
REVOKE ALL ON FUNCTION trecho._claimed_elsewhere(text, text, text, text, text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.stage_document(
    pass_id       bigint,
    scope         trecho.chunk_scope,
    path          text,
    content       text,
    base_revision bigint DEFAULT NULL,  -- revision that pass_documents gave for it; NULL when it gave none
    session_id    uuid DEFAULT NULL,    -- scope session: NULL asks the chunkers
    metadata      jsonb DEFAULT '{}'
)
RETURNS text                            -- the source: path, or session id as text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_pass   trecho.passes := trecho._running_pass(stage_document.pass_id);
    v_source text := stage_document.path;
    v_id     uuid := stage_document.session_id;
    v_base   bigint := stage_document.base_revision;
    v_old    record;
    v_owner  text;
    v_twin   text;
    v_error  text;
BEGIN
    IF stage_document.scope IS NULL OR stage_document.content IS NULL OR coalesce(stage_document.path, '') = '' THEN
        RAISE EXCEPTION 'scope, path and content must not be NULL'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Give all three; a document without text has the content ''''.';
    END IF;
    IF stage_document.scope <> 'session' AND v_id IS NOT NULL THEN
        RAISE EXCEPTION 'document % of scope % has session_id %', stage_document.path, stage_document.scope, v_id
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Only scope session takes a session_id.';
    END IF;
    IF jsonb_typeof(coalesce(stage_document.metadata, '{}')) <> 'object' THEN
        RAISE EXCEPTION 'metadata of document % must be a JSON object, got %', stage_document.path, jsonb_typeof(stage_document.metadata)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass an object such as {"team": "dba"}.';
    END IF;
    IF stage_document.scope = 'session' THEN
        IF v_id IS NULL THEN
            IF to_regprocedure('trecho.describe(text, text, text, text)') IS NULL THEN
                RAISE EXCEPTION 'this server has no chunkers (plpython3u is not set up)'
                    USING ERRCODE = 'TR010', HINT = 'Use the trecho command with --chunking client, or give session_id.';
            END IF;
            SELECT a.session_id INTO v_id FROM trecho.describe(stage_document.path, stage_document.content, 'session', v_pass.project) AS a;
        END IF;
        v_source := v_id::text;
    END IF;

    IF octet_length(v_source) > 1000 THEN
        RAISE EXCEPTION 'path has % bytes, at most 1000 can be indexed', octet_length(v_source)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Shorten the path.';
    END IF;
    -- The caller compares paths, but a session is known by its id: what stood at this path may be another document, which is gone now,
    -- and this one may have stood at another path.
    SELECT d.source_set, d.path, d.revision, d.updated_at INTO v_old FROM trecho.documents AS d
     WHERE d.project = v_pass.project AND d.branch = v_pass.branch AND d.source = v_source;
    v_owner := v_old.source_set;
    INSERT INTO trecho.staged_documents (pass_id, source, action, scope, source_path, session_id, base_revision, planned_at)
    SELECT v_pass.pass_id, d.source, 'remove', d.scope, d.source_path, d.session_id, d.revision, now()
      FROM trecho.documents AS d
     WHERE d.project = v_pass.project AND d.branch = v_pass.branch AND d.source_set = v_pass.source_set AND d.path = stage_document.path
       AND d.source <> v_source
    ON CONFLICT ON CONSTRAINT staged_documents_pkey DO NOTHING;
    IF v_owner IS NULL AND FOUND THEN
        v_base := NULL;
    ELSIF v_owner IS NOT NULL AND v_old.path IS DISTINCT FROM stage_document.path AND v_old.updated_at < v_pass.started_at THEN
        v_base := v_old.revision;
    END IF;
    v_error := trecho._claimed_elsewhere(v_source, v_owner, v_pass.source_set, v_pass.project, v_pass.branch);
    SELECT s.metadata ->> 'origin' INTO v_twin FROM trecho.staged_documents AS s
     WHERE s.pass_id = v_pass.pass_id AND s.source = v_source AND s.scope = 'session' AND s.metadata ->> 'origin' <> stage_document.path;
    IF v_twin IS NOT NULL THEN
        v_error := format('session %s is in two files, %s and %s', v_source, v_twin, stage_document.path);
    END IF;

    INSERT INTO trecho.staged_documents AS s (pass_id, source, action, scope, source_path, session_id, base_revision, blob_sha, metadata, error)
    VALUES (v_pass.pass_id, v_source, 'write', stage_document.scope, CASE WHEN v_id IS NULL THEN stage_document.path END, v_id,
            v_base, trecho._store_blob(stage_document.content),
            coalesce(stage_document.metadata, '{}') || CASE WHEN v_id IS NULL THEN '{}' ELSE jsonb_build_object('origin', stage_document.path) END,
            v_error)
    ON CONFLICT ON CONSTRAINT staged_documents_pkey DO UPDATE
       SET action = 'write', scope = excluded.scope, blob_sha = excluded.blob_sha, metadata = excluded.metadata, planned_at = NULL,
           error = excluded.error, base_revision = coalesce(s.base_revision, excluded.base_revision);
    RETURN v_source;
END
$function$;
COMMENT ON FUNCTION trecho.stage_document(bigint, trecho.chunk_scope, text, text, bigint, uuid, jsonb) IS
    'Give a running pass one new or changed document. A source that another set or an application owns is recorded as an error of that document; the rest of the pass goes on. Returns the source. Raises 22004 for NULL arguments, 22023 for metadata that is no object or a session_id of another scope, 22023 or 55000 for a pass that is not running, TR010 for a session without session_id when the server has no chunkers.';
REVOKE ALL ON FUNCTION trecho.stage_document(bigint, trecho.chunk_scope, text, text, bigint, uuid, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.stage_document(bigint, trecho.chunk_scope, text, text, bigint, uuid, jsonb) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.stage_documents(
    pass_id        bigint,
    scope          trecho.chunk_scope,
    paths          text[],
    contents       text[],   -- of the same length
    base_revisions bigint[]  -- of the same length: what pass_documents gave, NULL where it gave none
)
RETURNS integer              -- documents staged
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_pass  trecho.passes;
    v_count integer := coalesce(cardinality(stage_documents.paths), 0);
    v_shas  bytea[];
BEGIN
    IF coalesce(cardinality(stage_documents.contents), 0) <> v_count OR coalesce(cardinality(stage_documents.base_revisions), 0) <> v_count THEN
        RAISE EXCEPTION 'paths has % elements, contents %, base_revisions %', v_count,
                        coalesce(cardinality(stage_documents.contents), 0), coalesce(cardinality(stage_documents.base_revisions), 0)
            USING ERRCODE = 'array_subscript_error', HINT = 'Give one text and one revision for each path.';
    END IF;
    -- What is looked at one by one: the id of a session is in its text, and a path given twice is a document staged again.
    IF stage_documents.scope = 'session' OR (SELECT count(DISTINCT p) FROM unnest(stage_documents.paths) AS p) <> v_count THEN
        PERFORM trecho.stage_document(stage_documents.pass_id, stage_documents.scope, g.path, g.content, g.base_revision)
           FROM unnest(stage_documents.paths, stage_documents.contents, stage_documents.base_revisions) AS g (path, content, base_revision);
        RETURN v_count;
    END IF;
    v_pass := trecho._running_pass(stage_documents.pass_id);
    IF stage_documents.scope IS NULL OR array_position(stage_documents.contents, NULL) IS NOT NULL
       OR EXISTS (SELECT FROM unnest(stage_documents.paths) AS p WHERE coalesce(p, '') = '') THEN
        RAISE EXCEPTION 'scope, paths and contents must not be NULL'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Give a path and a text for each document; one without text has the content ''''.';
    END IF;
    IF (SELECT max(octet_length(p)) FROM unnest(stage_documents.paths) AS p) > 1000 THEN
        RAISE EXCEPTION 'a path has more than 1000 bytes'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Stage the documents one by one: trecho.stage_document names the path.';
    END IF;

    v_shas := ARRAY(SELECT sha256(convert_to(g.content, 'UTF8')) FROM unnest(stage_documents.contents) WITH ORDINALITY AS g (content, n) ORDER BY g.n);
    INSERT INTO trecho.blobs (blob_sha, content, byte_count)
    SELECT g.blob_sha, g.content, octet_length(g.content) FROM unnest(v_shas, stage_documents.contents) AS g (blob_sha, content)
     ORDER BY g.blob_sha
    ON CONFLICT (blob_sha) DO NOTHING;
    -- The rest is trecho.stage_document for all of them at once.
    INSERT INTO trecho.staged_documents (pass_id, source, action, scope, source_path, session_id, base_revision, planned_at)
    SELECT v_pass.pass_id, d.source, 'remove', d.scope, d.source_path, d.session_id, d.revision, now()
      FROM unnest(stage_documents.paths) AS g (path)
      JOIN trecho.documents AS d ON d.project = v_pass.project AND d.branch = v_pass.branch AND d.path = g.path AND d.source <> g.path
     WHERE d.source_set = v_pass.source_set
    ON CONFLICT ON CONSTRAINT staged_documents_pkey DO NOTHING;
    INSERT INTO trecho.staged_documents AS s (pass_id, source, action, scope, source_path, base_revision, blob_sha, error)
    SELECT v_pass.pass_id, g.path, 'write', stage_documents.scope, g.path,
           CASE WHEN o.source IS NULL AND EXISTS (SELECT FROM trecho.documents AS d
                                                   WHERE d.project = v_pass.project AND d.branch = v_pass.branch AND d.path = g.path
                                                     AND d.source_set = v_pass.source_set) THEN NULL
                WHEN o.path IS DISTINCT FROM g.path AND o.updated_at < v_pass.started_at THEN o.revision
                ELSE g.base_revision END,
           g.blob_sha, trecho._claimed_elsewhere(g.path, o.source_set, v_pass.source_set, v_pass.project, v_pass.branch)
      FROM unnest(stage_documents.paths, v_shas, stage_documents.base_revisions) AS g (path, blob_sha, base_revision)
      LEFT JOIN trecho.documents AS o ON o.project = v_pass.project AND o.branch = v_pass.branch AND o.source = g.path
    ON CONFLICT ON CONSTRAINT staged_documents_pkey DO UPDATE
       SET action = 'write', scope = excluded.scope, blob_sha = excluded.blob_sha, metadata = excluded.metadata, planned_at = NULL,
           error = excluded.error, base_revision = coalesce(s.base_revision, excluded.base_revision);
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho.stage_documents(bigint, trecho.chunk_scope, text[], text[], bigint[]) IS
    'What trecho.stage_document does, for many documents at once; all or none of them are staged. Returns how many. Raises 2202E when the arrays differ in length, 22004 for NULL elements, 22023 for a path that is too long, 22023 or 55000 for a pass that is not running.';
REVOKE ALL ON FUNCTION trecho.stage_documents(bigint, trecho.chunk_scope, text[], text[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.stage_documents(bigint, trecho.chunk_scope, text[], text[], bigint[]) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.stage_removals(
    pass_id   bigint,
    sources   text[],   -- as pass_documents gave them
    revisions bigint[]  -- of the same length
)
RETURNS integer         -- how many were staged
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_pass  trecho.passes := trecho._running_pass(stage_removals.pass_id);
    v_count integer;
BEGIN
    IF cardinality(stage_removals.sources) IS DISTINCT FROM cardinality(stage_removals.revisions) THEN
        RAISE EXCEPTION 'sources has % elements, revisions %', cardinality(stage_removals.sources), cardinality(stage_removals.revisions)
            USING ERRCODE = 'array_subscript_error', HINT = 'Give one revision for each source.';
    END IF;
    INSERT INTO trecho.staged_documents (pass_id, source, action, scope, source_path, session_id, base_revision, planned_at)
    SELECT v_pass.pass_id, d.source, 'remove', d.scope, d.source_path, d.session_id, r.revision, now()
      FROM unnest(stage_removals.sources, stage_removals.revisions) AS r (source, revision)
      JOIN trecho.documents AS d ON d.project = v_pass.project AND d.branch = v_pass.branch AND d.source = r.source
                                AND d.source_set = v_pass.source_set
    ON CONFLICT ON CONSTRAINT staged_documents_pkey DO NOTHING;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho.stage_removals(bigint, text[], bigint[]) IS
    'Tell a running pass which documents of its source set are gone. Documents of other sets, and those staged as written, are left alone. Returns how many.';
REVOKE ALL ON FUNCTION trecho.stage_removals(bigint, text[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.stage_removals(bigint, text[], bigint[]) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.refuse_twins(
    pass_id bigint,
    paths   text[]  -- files of the source set that are there and unchanged
)
RETURNS integer     -- staged documents that one of these files already is
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_pass  trecho.passes := trecho._running_pass(refuse_twins.pass_id);
    v_count integer;
BEGIN
    UPDATE trecho.staged_documents AS s
       SET error = format('session %s is in two files, %s and %s', s.source, d.path, s.metadata ->> 'origin')
      FROM trecho.documents AS d
     WHERE s.pass_id = v_pass.pass_id AND s.scope = 'session' AND s.action = 'write'
       AND d.project = v_pass.project AND d.branch = v_pass.branch AND d.source = s.source
       AND d.path <> s.metadata ->> 'origin' AND d.path = ANY (refuse_twins.paths);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho.refuse_twins(bigint, text[]) IS
    'Mark staged sessions whose id an unchanged file of the source set has already: two files are one session, which is an error. Returns how many.';
REVOKE ALL ON FUNCTION trecho.refuse_twins(bigint, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.refuse_twins(bigint, text[]) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.rename_source_set(
    old_set text,
    new_set text,
    project text DEFAULT 'default',
    branch  text DEFAULT 'main'
)
RETURNS integer  -- documents handed over
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_count integer;
BEGIN
    IF coalesce(rename_source_set.old_set, '') = '' OR coalesce(rename_source_set.new_set, '') = '' THEN
        RAISE EXCEPTION 'old_set and new_set must not be empty' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'What applications put belongs to no set and stays theirs.';
    END IF;
    UPDATE trecho.documents AS d SET source_set = rename_source_set.new_set
     WHERE d.project = rename_source_set.project AND d.branch = rename_source_set.branch AND d.source_set = rename_source_set.old_set;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    -- What its last pass left out goes with the set, else nothing would ever make that good.
    UPDATE trecho.passes AS p SET source_set = rename_source_set.new_set
     WHERE p.project = rename_source_set.project AND p.branch = rename_source_set.branch AND p.source_set = rename_source_set.old_set
       AND p.outcome <> 'running';
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho.rename_source_set(text, text, text, text) IS
    'Hand every document of a source set over to another one, when a set was renamed or split, and its ended passes with what they left out. Nothing is embedded again. Returns how many.';
REVOKE ALL ON FUNCTION trecho.rename_source_set(text, text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.rename_source_set(text, text, text, text) TO trecho_writer;

-- Keep a planned document: description and placements.
CREATE OR REPLACE FUNCTION trecho._record_plan(p_pass trecho.passes, p_version integer, p_cuts trecho.cut_chunk[])
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
-- As in trecho._store_chunks: statistics of a table that is being loaded are not to be believed.
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $function$
DECLARE
    v_written integer := trecho._store_chunks(p_version, p_pass.project, p_cuts);
BEGIN
    INSERT INTO trecho.staged_placements (pass_id, source, index_version, ordinal, chunk_key, digest, anchor_path, start_line, end_line)
    SELECT p_pass.pass_id, u.source, p_version, u.ordinal,
           (SELECT c.chunk_key FROM trecho.chunks AS c
             WHERE c.index_version = p_version AND c.project = p_pass.project AND c.scope = u.scope
               AND c.content_hash = u.content_hash AND c.text_hash = u.text_hash),
           u.digest, u.anchor_path, u.start_line, u.end_line
      FROM unnest(p_cuts) AS u;
    RETURN v_written;
END
$function$;
COMMENT ON FUNCTION trecho._record_plan(trecho.passes, integer, trecho.cut_chunk[]) IS 'Store the chunks of planned documents and stage their placements. Returns rows written into chunks.';
REVOKE ALL ON FUNCTION trecho._record_plan(trecho.passes, integer, trecho.cut_chunk[]) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._plan_description(p_pass_id bigint, p_source text, p_about jsonb, p_versions integer[])
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    PERFORM trecho._check_doc_id(p_about ->> 'doc_id');
    UPDATE trecho.staged_documents AS s
       SET planned_at = clock_timestamp(), planned_versions = p_versions, title = p_about ->> 'title', language = p_about ->> 'language',
           doc_id = CASE WHEN s.scope = 'session' AND NOT coalesce((p_about ->> 'doc_id_claimed')::boolean, false) THEN s.source ELSE p_about ->> 'doc_id' END,
           doc_id_claimed = coalesce((p_about ->> 'doc_id_claimed')::boolean, false),
           metadata = coalesce(p_about -> 'metadata', '{}') || s.metadata
     WHERE s.pass_id = p_pass_id AND s.source = p_source;
END
$function$;
COMMENT ON FUNCTION trecho._plan_description(bigint, text, jsonb, integer[]) IS 'Keep what trecho.describe says about a staged document.';
REVOKE ALL ON FUNCTION trecho._plan_description(bigint, text, jsonb, integer[]) FROM PUBLIC;

-- By the index of what is left, in its order, which is that of no other index: without statistics, which nothing has of rows just staged, all
-- of them would be read for every batch.
CREATE OR REPLACE FUNCTION trecho._take_unplanned(p_pass_id bigint, p_max_documents integer)
RETURNS text[]
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $function$
BEGIN
    RETURN ARRAY(
        SELECT s.source FROM trecho.staged_documents AS s
         WHERE s.pass_id = p_pass_id AND s.planned_at IS NULL AND s.action = 'write' AND s.error IS NULL
         ORDER BY s.source COLLATE "C" LIMIT p_max_documents
           FOR UPDATE SKIP LOCKED);
END
$function$;
COMMENT ON FUNCTION trecho._take_unplanned(bigint, integer) IS 'Sources of a pass that are still to be chunked, locked; not those that another connection has.';
REVOKE ALL ON FUNCTION trecho._take_unplanned(bigint, integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.plan_pass(
    pass_id       bigint,
    max_documents integer DEFAULT 50
)
RETURNS integer  -- documents planned by this call; 0 when nothing is left to take
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_pass     trecho.passes := trecho._running_pass(plan_pass.pass_id);
    v_versions integer[] := trecho._write_versions();
    v_sources  text[];
    v_version  integer;
    v_doc      record;
    v_batch    trecho.cut_chunk[];
    v_computed integer := 0;
    v_written  integer := 0;
BEGIN
    IF coalesce(plan_pass.max_documents, 0) < 1 THEN
        RAISE EXCEPTION 'max_documents must be at least 1, got %', coalesce(plan_pass.max_documents::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for batches of 50 documents.';
    END IF;
    v_sources := trecho._take_unplanned(v_pass.pass_id, plan_pass.max_documents);
    IF cardinality(v_sources) = 0 THEN
        RETURN 0;
    END IF;
    FOREACH v_version IN ARRAY v_versions LOOP
        v_batch := '{}';
        FOR v_doc IN
            SELECT s.source, s.scope, s.source_path, s.session_id, s.language, s.planned_at, b.content, coalesce(s.source_path, s.metadata ->> 'origin') AS path
              FROM trecho.staged_documents AS s
              JOIN trecho.blobs AS b ON b.blob_sha = s.blob_sha
             WHERE s.pass_id = v_pass.pass_id AND s.source = ANY (v_sources) AND s.error IS NULL
        LOOP
            -- One text that cannot be chunked is recorded and left out; the others go on.
            BEGIN
                IF v_doc.planned_at IS NULL THEN
                    PERFORM trecho._plan_description(v_pass.pass_id, v_doc.source, to_jsonb(a), v_versions)
                       FROM trecho.describe(v_doc.path, v_doc.content, v_doc.scope::text, v_pass.project) AS a;
                    SELECT s.language INTO v_doc.language FROM trecho.staged_documents AS s
                     WHERE s.pass_id = v_pass.pass_id AND s.source = v_doc.source;
                END IF;
                v_batch := v_batch || trecho._cut_document(v_version, v_doc.scope, v_doc.source_path, v_doc.session_id, v_doc.path, v_doc.language,
                                                           v_doc.content, NULL);
            EXCEPTION WHEN SQLSTATE 'TR008' OR data_exception OR internal_error OR external_routine_exception THEN
                UPDATE trecho.staged_documents AS s SET error = format('%s: %s', v_doc.path, regexp_replace(SQLERRM, '^plpy\.Error: ', '')), planned_at = clock_timestamp()
                 WHERE s.pass_id = v_pass.pass_id AND s.source = v_doc.source;
            END;
        END LOOP;
        v_computed := v_computed + cardinality(v_batch);
        v_written := v_written + trecho._record_plan(v_pass, v_version, v_batch);
    END LOOP;
    -- Last, because several planners update this one row.
    UPDATE trecho.passes AS p SET chunks_computed = p.chunks_computed + v_computed, chunks_written = p.chunks_written + v_written
     WHERE p.pass_id = v_pass.pass_id;
    RETURN cardinality(v_sources);
END
$function$;
COMMENT ON FUNCTION trecho.plan_pass(bigint, integer) IS
    'Chunk up to max_documents staged documents; call it, and commit, until it returns 0. Any number of connections may do so at once. New chunks are written ahead of publication, invisible. A text that cannot be chunked is recorded as an error of its document. Raises 22023 or 55000 for a pass that is not running, TR010 when the server has no chunkers.';
REVOKE ALL ON FUNCTION trecho.plan_pass(bigint, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.plan_pass(bigint, integer) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.unplanned_documents(
    pass_id       bigint,
    max_documents integer DEFAULT 50
)
RETURNS TABLE (source text, scope trecho.chunk_scope, path text, content text, chunk_settings jsonb)
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off  -- as in trecho._take_unplanned
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
    SELECT s.source, s.scope, coalesce(s.source_path, s.metadata ->> 'origin'), b.content,
           (SELECT jsonb_object_agg(v.index_version, v.chunk_settings) FROM trecho.index_versions AS v WHERE v.state IN ('active', 'building'))
      FROM trecho.staged_documents AS s
      JOIN trecho.blobs AS b ON b.blob_sha = s.blob_sha
     WHERE s.pass_id = unplanned_documents.pass_id AND s.planned_at IS NULL AND s.action = 'write' AND s.error IS NULL
     ORDER BY s.source COLLATE "C" LIMIT unplanned_documents.max_documents
$function$;
COMMENT ON FUNCTION trecho.unplanned_documents(bigint, integer) IS
    'For clients that chunk themselves: staged documents still to be chunked, with the chunk settings of each index version (version -> settings).';
REVOKE ALL ON FUNCTION trecho.unplanned_documents(bigint, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.unplanned_documents(bigint, integer) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.plan_document(
    pass_id            bigint,
    source             text,
    client_description jsonb,            -- what trecho.describe would give; NULL with client_error
    client_chunks      jsonb,            -- index_version -> array of chunks, each with digest; NULL with client_error
    client_error       text DEFAULT NULL -- why the text cannot be chunked
)
RETURNS integer                          -- chunks received
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_pass     trecho.passes := trecho._running_pass(plan_document.pass_id);
    v_doc      record;
    v_version  integer;
    v_cuts     trecho.cut_chunk[];
    -- A version that came into being after the client cut the text fills it from its text.
    v_versions integer[] := ARRAY(SELECT v FROM unnest(trecho._write_versions()) AS v WHERE plan_document.client_chunks ? v::text);
    v_computed integer := 0;
    v_written  integer := 0;
BEGIN
    SELECT s.scope, s.source_path, s.session_id, coalesce(s.source_path, s.metadata ->> 'origin') AS path INTO v_doc
      FROM trecho.staged_documents AS s
     WHERE s.pass_id = v_pass.pass_id AND s.source = plan_document.source AND s.action = 'write' AND s.planned_at IS NULL
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF plan_document.client_error IS NOT NULL THEN
        UPDATE trecho.staged_documents AS s SET error = format('%s: %s', v_doc.path, plan_document.client_error), planned_at = clock_timestamp()
         WHERE s.pass_id = v_pass.pass_id AND s.source = plan_document.source;
        RETURN 0;
    END IF;
    -- As in plan_pass: one document that cannot be planned is recorded and left out; the others go on.
    BEGIN
        PERFORM trecho._plan_description(v_pass.pass_id, plan_document.source, plan_document.client_description, v_versions);
        FOREACH v_version IN ARRAY v_versions LOOP
            v_cuts := trecho._cut_document(v_version, v_doc.scope, v_doc.source_path, v_doc.session_id, v_doc.path,
                                           plan_document.client_description ->> 'language', NULL, plan_document.client_chunks -> v_version::text);
            v_computed := v_computed + cardinality(v_cuts);
            v_written := v_written + trecho._record_plan(v_pass, v_version, v_cuts);
        END LOOP;
    EXCEPTION WHEN SQLSTATE 'TR008' OR data_exception OR internal_error THEN
        UPDATE trecho.staged_documents AS s SET error = format('%s: %s', v_doc.path, regexp_replace(SQLERRM, '^plpy\.Error: ', '')), planned_at = clock_timestamp()
         WHERE s.pass_id = v_pass.pass_id AND s.source = plan_document.source;
        RETURN 0;
    END;
    UPDATE trecho.passes AS p SET chunks_computed = p.chunks_computed + v_computed, chunks_written = p.chunks_written + v_written
     WHERE p.pass_id = v_pass.pass_id;
    RETURN v_computed;
END
$function$;
COMMENT ON FUNCTION trecho.plan_document(bigint, text, jsonb, jsonb, text) IS
    'What plan_pass does, for one document that the client has chunked with the same chunkers. Returns chunks received; 0 when it was planned already.';
REVOKE ALL ON FUNCTION trecho.plan_document(bigint, text, jsonb, jsonb, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.plan_document(bigint, text, jsonb, jsonb, text) TO trecho_writer;

-- Two claims to one id are an error of every staged document among them. A staged document in error keeps its published form, which may
-- clash in turn, so this goes round until nothing changes. Nothing has statistics of rows just staged, and a join of all with all would be
-- chosen for them: every table is asked by key (OFFSET 0), and the one join left is hashed.
CREATE OR REPLACE FUNCTION trecho._refuse_duplicate_ids(p_pass trecho.passes)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET enable_nestloop = off
AS $function$
DECLARE
    v_count integer;
BEGIN
    LOOP
        WITH staged AS (
            SELECT s.source, s.doc_id AS wanted, s.doc_id_claimed AS claimed
              FROM trecho.staged_documents AS s WHERE s.pass_id = p_pass.pass_id AND s.error IS NULL AND s.action = 'write'
        ), twin AS (
            SELECT t.source, CASE WHEN t.source = t.first THEN t.second ELSE t.first END AS other, t.wanted AS id
              FROM (SELECT s.source, s.wanted, first_value(s.source) OVER w AS first, nth_value(s.source, 2) OVER w AS second
                      FROM staged AS s WHERE s.claimed
                    WINDOW w AS (PARTITION BY s.wanted ORDER BY s.source ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)) AS t
             WHERE t.second IS NOT NULL
        ), path_of_another AS (
            SELECT s.source AS claimant, o.source AS owner
              FROM staged AS s
             CROSS JOIN LATERAL (SELECT o.source FROM trecho.staged_documents AS o
                                  WHERE o.pass_id = p_pass.pass_id AND o.source = s.wanted AND o.error IS NULL AND o.action = 'write' OFFSET 0) AS o
             WHERE s.claimed AND s.wanted <> s.source
        ), standing AS (
            SELECT s.source, d.source AS other, d.id
              FROM staged AS s
             CROSS JOIN LATERAL (
                   (SELECT d.source, s.wanted AS id FROM trecho.documents AS d
                     WHERE s.claimed AND d.project = p_pass.project AND d.branch = p_pass.branch AND d.wanted_doc_id = s.wanted AND d.doc_id_claimed OFFSET 0)
                   UNION ALL
                   (SELECT d.source, s.wanted FROM trecho.documents AS d
                     WHERE s.claimed AND d.project = p_pass.project AND d.branch = p_pass.branch AND d.source = s.wanted OFFSET 0)
                   UNION ALL
                   (SELECT d.source, s.source FROM trecho.documents AS d
                     WHERE d.project = p_pass.project AND d.branch = p_pass.branch AND d.wanted_doc_id = s.source AND d.doc_id_claimed OFFSET 0)) AS d
             CROSS JOIN LATERAL (SELECT count(*) AS times FROM trecho.staged_documents AS o
                                  WHERE o.pass_id = p_pass.pass_id AND o.source = d.source AND o.error IS NULL) AS o
             WHERE d.source <> s.source AND o.times = 0
        ), clash AS (
            SELECT DISTINCT ON (c.source) c.source, c.other, c.id
              FROM (SELECT t.source, t.other, t.id FROM twin AS t
                    UNION ALL
                    SELECT p.claimant, p.owner, p.owner FROM path_of_another AS p
                    UNION ALL
                    SELECT p.owner, p.claimant, p.owner FROM path_of_another AS p
                    UNION ALL
                    SELECT s.source, s.other, s.id FROM standing AS s) AS c
             ORDER BY c.source, c.other
        )
        UPDATE trecho.staged_documents AS s
           SET error = format('%s: doc_id %s is also claimed by %s', c.source, c.id, c.other)
          FROM clash AS c
         WHERE s.pass_id = p_pass.pass_id AND s.source = c.source;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        EXIT WHEN v_count = 0;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho._refuse_duplicate_ids(trecho.passes) IS 'Mark staged documents whose claimed doc_id another document of the branch claims, or is the path of.';
REVOKE ALL ON FUNCTION trecho._refuse_duplicate_ids(trecho.passes) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.pass_pending(pass_id bigint)
RETURNS integer
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT count(DISTINCT c.text_hash)::integer
      FROM trecho.staged_placements AS s
      JOIN trecho.chunks AS c ON c.index_version = s.index_version AND c.chunk_key = s.chunk_key
      LEFT JOIN trecho.embedding_attempts AS a ON a.index_version = c.index_version AND a.text_hash = c.text_hash
     WHERE s.pass_id = pass_pending.pass_id AND s.index_version = (SELECT i.active_version FROM trecho.index_state AS i)
       AND c.embedding IS NULL AND NOT c.quarantined AND coalesce(a.attempt_count, 0) < 5
$function$;
COMMENT ON FUNCTION trecho.pass_pending(bigint) IS 'Texts of a pass that still wait for their vector in the active version: not failed for good (5 attempts), not quarantined.';
REVOKE ALL ON FUNCTION trecho.pass_pending(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.pass_pending(bigint) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.publish_pass(
    pass_id           bigint,
    allow_pending     boolean DEFAULT false,  -- publish chunks whose vector is not there yet: usable, not current
    allow_mass_delete boolean DEFAULT false,
    last_commit       text DEFAULT NULL,
    skipped           jsonb DEFAULT '{}',     -- sources the client left out: reason -> count
    rules             text DEFAULT NULL,      -- with last_commit: hash of the rules it was read with
    errors            text[] DEFAULT '{}'     -- sources the client could not read or stage, `path: why`: documents that failed, too
)
RETURNS trecho.passes                         -- the row of the pass, with its counts
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_pass      trecho.passes := trecho._running_pass(publish_pass.pass_id);
    v_active    integer := trecho._hold_versions();
    v_set_size  integer;
    v_removals  integer;
    v_count     integer;
    v_wanted    text[];
    v_ids       bigint[];
    v_slice     bigint[];
    v_planned   bigint[];
    v_version   integer;
    v_new       trecho.new_placement[];
BEGIN
    IF trecho._pass_lock_holder(v_pass.project) IS DISTINCT FROM pg_backend_pid() THEN
        RAISE EXCEPTION 'this connection does not hold the pass lock of project %', v_pass.project
            USING ERRCODE = 'TR005', HINT = 'Publish on the connection that began the pass, kept open since, without a transaction-pooling proxy between.';
    END IF;
    SELECT count(*) INTO v_count FROM trecho.staged_documents AS s
     WHERE s.pass_id = v_pass.pass_id AND s.action = 'write' AND s.planned_at IS NULL AND s.error IS NULL;
    IF v_count > 0 THEN
        RAISE EXCEPTION 'pass % has % documents that are not planned', v_pass.pass_id, v_count
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call trecho.plan_pass until it returns 0.';
    END IF;
    IF jsonb_typeof(coalesce(publish_pass.skipped, '{}')) <> 'object' OR publish_pass.last_commit = '' THEN
        RAISE EXCEPTION 'skipped must be a JSON object and last_commit not empty, got % and %', publish_pass.skipped, quote_nullable(publish_pass.last_commit)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give reason -> count, and the name of a commit; leave out what you do not have.';
    END IF;
    IF NOT publish_pass.allow_pending THEN
        v_count := trecho.pass_pending(v_pass.pass_id);
        IF v_count > 0 THEN
            RAISE EXCEPTION 'pass % still waits for % vectors', v_pass.pass_id, v_count
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Run a worker (trecho embed) first, or publish with allow_pending => true.';
        END IF;
    END IF;

    PERFORM trecho._lock_doc_ids(v_pass.project, v_pass.branch, ARRAY(
        SELECT s.doc_id FROM trecho.staged_documents AS s WHERE s.pass_id = v_pass.pass_id AND s.error IS NULL AND s.doc_id <> s.source));
    -- In order of source, as every other writer of several documents: no two can wait for each other. What an application wrote since the
    -- source was read stays as it is.
    PERFORM FROM trecho.documents AS d
      JOIN trecho.staged_documents AS s ON s.source = d.source
     WHERE s.pass_id = v_pass.pass_id AND d.project = v_pass.project AND d.branch = v_pass.branch
     ORDER BY d.source FOR UPDATE OF d;
    DELETE FROM trecho.staged_documents AS s
     WHERE s.pass_id = v_pass.pass_id AND s.error IS NULL
       AND s.base_revision IS DISTINCT FROM (SELECT d.revision FROM trecho.documents AS d
                                              WHERE d.project = v_pass.project AND d.branch = v_pass.branch AND d.source = s.source);
    GET DIAGNOSTICS v_pass.documents_superseded = ROW_COUNT;

    IF v_pass.kind = 'full' AND NOT publish_pass.allow_mass_delete THEN
        SELECT count(*) INTO v_set_size FROM trecho.documents AS d
         WHERE d.project = v_pass.project AND d.branch = v_pass.branch AND d.source_set = v_pass.source_set;
        SELECT count(*) FILTER (WHERE s.action = 'remove'), count(*) FILTER (WHERE s.action = 'write') INTO v_removals, v_count
          FROM trecho.staged_documents AS s WHERE s.pass_id = v_pass.pass_id;
        IF v_removals > 0 AND ((v_removals >= v_set_size AND v_count = 0) OR (v_removals >= 20 AND v_removals * 2 > v_set_size)) THEN
            RAISE EXCEPTION 'pass % would remove % of the % documents of source set %', v_pass.pass_id, v_removals, v_set_size, v_pass.source_set
                USING ERRCODE = 'TR009', HINT = 'Look whether the source is complete. If they are to go, sync with --allow-mass-delete (allow_mass_delete => true).';
        END IF;
    END IF;

    PERFORM trecho._refuse_duplicate_ids(v_pass);
    SELECT array_agg(DISTINCT w.id) INTO v_wanted
      FROM (SELECT s.doc_id AS id FROM trecho.staged_documents AS s WHERE s.pass_id = v_pass.pass_id AND s.error IS NULL AND s.action = 'write'
            UNION ALL
            SELECT d.wanted_doc_id FROM trecho.documents AS d
              JOIN trecho.staged_documents AS s ON s.source = d.source AND s.pass_id = v_pass.pass_id AND s.error IS NULL
             WHERE d.project = v_pass.project AND d.branch = v_pass.branch) AS w (id);

    v_ids := ARRAY(SELECT d.document_id FROM trecho.documents AS d
                     JOIN trecho.staged_documents AS s ON s.source = d.source AND s.pass_id = v_pass.pass_id AND s.error IS NULL AND s.action = 'remove'
                    WHERE d.project = v_pass.project AND d.branch = v_pass.branch AND d.source_set = v_pass.source_set);
    v_pass.documents_removed := cardinality(v_ids);
    v_pass.placements_written := 0;
    IF v_pass.documents_removed > 0 THEN
        v_pass.placements_written := trecho._remove_documents(v_ids, v_pass.pass_id);
    END IF;

    -- A document that came into being meanwhile (DO NOTHING) is a put that beats the pass.
    WITH written AS (
        INSERT INTO trecho.documents AS d (project, branch, source_set, scope, source_path, session_id, doc_id, wanted_doc_id, doc_id_claimed,
                                           title, language, metadata, blob_sha)
        SELECT v_pass.project, v_pass.branch, v_pass.source_set, s.scope, s.source_path, s.session_id, s.source, s.doc_id, s.doc_id_claimed,
               s.title, s.language, s.metadata, s.blob_sha
          FROM trecho.staged_documents AS s
         WHERE s.pass_id = v_pass.pass_id AND s.error IS NULL AND s.action = 'write' AND s.base_revision IS NULL
         ORDER BY s.source
        ON CONFLICT ON CONSTRAINT documents_source_key DO NOTHING
        RETURNING d.document_id
    ), changed AS (
        UPDATE trecho.documents AS d
           SET scope = s.scope, source_path = s.source_path, session_id = s.session_id, wanted_doc_id = s.doc_id, doc_id_claimed = s.doc_id_claimed,
               title = s.title, language = s.language, metadata = s.metadata, blob_sha = s.blob_sha, diverged = false,
               revision = nextval('trecho.revision_seq'), updated_at = now()
          FROM trecho.staged_documents AS s
         WHERE s.pass_id = v_pass.pass_id AND s.error IS NULL AND s.action = 'write' AND s.base_revision IS NOT NULL
           AND d.project = v_pass.project AND d.branch = v_pass.branch AND d.source = s.source
        RETURNING d.document_id
    )
    SELECT coalesce(array_agg(x.document_id ORDER BY x.document_id), '{}') INTO v_ids
      FROM (SELECT w.document_id FROM written AS w UNION ALL SELECT c.document_id FROM changed AS c) AS x;
    v_pass.documents_written := cardinality(v_ids);
    PERFORM trecho._settle_doc_ids(v_pass.project, v_pass.branch, v_wanted);

    FOR v_first IN 0 .. (cardinality(v_ids) + 199) / 200 - 1 LOOP
        v_slice := v_ids[v_first * 200 + 1 : v_first * 200 + 200];
        FOR v_version IN SELECT v.index_version FROM trecho.index_versions AS v WHERE v.state IN ('active', 'building') LOOP
            -- A version that was not there when a document was planned fills it from its text, so it must not count as done.
            -- Here and below, OFFSET 0: staged rows are looked up for the documents of the slice. Without statistics, which nothing has of rows
            -- just staged, the planner would read all of them for every slice.
            v_planned := ARRAY(SELECT d.document_id FROM trecho.documents AS d
                                CROSS JOIN LATERAL (SELECT s.planned_versions FROM trecho.staged_documents AS s
                                                     WHERE s.pass_id = v_pass.pass_id AND s.source = d.source OFFSET 0) AS s
                                WHERE d.document_id = ANY (v_slice) AND v_version = ANY (s.planned_versions));
            DELETE FROM trecho.indexed_documents AS i
             WHERE i.index_version = v_version AND i.document_id = ANY (v_slice) AND NOT i.document_id = ANY (v_planned);
            SELECT coalesce(array_agg(ROW(d.document_id, p.ordinal, p.chunk_key, d.doc_id || ':' || p.ordinal || ':' || p.digest,
                                          trecho._anchor(d.doc_id, p.anchor_path), p.start_line, p.end_line)::trecho.new_placement), '{}')
              INTO v_new
              FROM trecho.documents AS d
             CROSS JOIN LATERAL (SELECT s.* FROM trecho.staged_placements AS s
                                  WHERE s.pass_id = v_pass.pass_id AND s.source = d.source AND s.index_version = v_version OFFSET 0) AS p
             WHERE d.document_id = ANY (v_planned);
            v_pass.placements_written := v_pass.placements_written + trecho._replace_placements(v_version, v_planned, v_new, v_pass.pass_id);
            INSERT INTO trecho.indexed_documents AS i (index_version, document_id, blob_sha, chunk_count)
            SELECT v_version, d.document_id, d.blob_sha, coalesce(n.placed, 0)
              FROM trecho.documents AS d
              LEFT JOIN (SELECT u.document_id, count(*) AS placed FROM unnest(v_new) AS u GROUP BY u.document_id) AS n ON n.document_id = d.document_id
             WHERE d.document_id = ANY (v_planned)
            ON CONFLICT ON CONSTRAINT indexed_documents_pkey DO UPDATE SET blob_sha = excluded.blob_sha, chunk_count = excluded.chunk_count;
        END LOOP;
    END LOOP;
    IF v_pass.documents_removed > 0 AND v_pass.documents_written > 0 THEN
        PERFORM trecho._link_renamed(v_pass, v_ids);
    END IF;

    INSERT INTO trecho.branches AS b (project, branch, last_completed_at, completed_index_version, last_commit, last_rules)
    VALUES (v_pass.project, v_pass.branch, now(), v_active, publish_pass.last_commit, publish_pass.rules)
    ON CONFLICT ON CONSTRAINT branches_pkey DO UPDATE
       SET last_completed_at = now(), completed_index_version = v_active, last_commit = coalesce(excluded.last_commit, b.last_commit),
           last_rules = CASE WHEN excluded.last_commit IS NULL THEN b.last_rules ELSE excluded.last_rules END;

    UPDATE trecho.passes AS p
       SET outcome = 'published', finished_at = clock_timestamp(), documents_written = v_pass.documents_written,
           documents_removed = v_pass.documents_removed, documents_superseded = v_pass.documents_superseded,
           placements_written = v_pass.placements_written, skipped = coalesce(publish_pass.skipped, '{}'), last_commit = publish_pass.last_commit,
           documents_staged = (SELECT count(*) FROM trecho.staged_documents AS s WHERE s.pass_id = v_pass.pass_id AND s.action = 'write') + v_pass.documents_superseded,
           documents_failed = (SELECT count(*) FROM trecho.staged_documents AS s WHERE s.pass_id = v_pass.pass_id AND s.error IS NOT NULL)
                              + (SELECT count(e) FROM unnest(publish_pass.errors) AS e),
           errors = coalesce((SELECT jsonb_agg(left(e.line, 2000)) FROM (SELECT e AS line FROM unnest(publish_pass.errors) AS e WHERE e IS NOT NULL LIMIT 1000) AS e), '[]')
                    || coalesce((SELECT jsonb_agg(s.error ORDER BY s.source) FROM (SELECT e.source, e.error FROM trecho.staged_documents AS e
                                  WHERE e.pass_id = v_pass.pass_id AND e.error IS NOT NULL ORDER BY e.source LIMIT 1000) AS s), '[]')
     WHERE p.pass_id = v_pass.pass_id
    RETURNING p.* INTO v_pass;
    -- The lock is kept: freed before the commit, it would let another pass begin on what this one is about to replace.
    DELETE FROM trecho.staged_documents AS s WHERE s.pass_id = v_pass.pass_id;
    RETURN v_pass;
END
$function$;
COMMENT ON FUNCTION trecho.publish_pass(bigint, boolean, boolean, text, jsonb, text, text[]) IS
    'Make a planned pass visible, all of it in this transaction: placements, documents, removals, tombstones, branch. The lock stays until trecho.release_pass after the commit, or the end of the connection. Documents in error keep their published form and are listed in errors; what an application wrote meanwhile stays. Raises TR005 when this connection does not hold the lock, 22023 when skipped is no object or last_commit empty, 55000 when something is not planned or embedded, TR009 when a full pass would remove everything, or over half and at least 20 documents.';
REVOKE ALL ON FUNCTION trecho.publish_pass(bigint, boolean, boolean, text, jsonb, text, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.publish_pass(bigint, boolean, boolean, text, jsonb, text, text[]) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.abandon_pass(
    pass_id bigint,
    reason  text DEFAULT 'abandoned by its caller'
)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_pass trecho.passes := trecho._running_pass(abandon_pass.pass_id);
BEGIN
    IF trecho._pass_lock_holder(v_pass.project) IS DISTINCT FROM pg_backend_pid() THEN
        RAISE EXCEPTION 'this connection does not hold the pass lock of project %', v_pass.project
            USING ERRCODE = 'TR005', HINT = 'Abandon it on the connection that began it, or end that connection: the next pass clears it away.';
    END IF;
    UPDATE trecho.passes AS p SET outcome = 'abandoned', finished_at = clock_timestamp(), error = abandon_pass.reason WHERE p.pass_id = v_pass.pass_id;
    -- The lock is kept: freed before the commit, it would let another pass begin on what this one is about to replace.
    DELETE FROM trecho.staged_documents AS s WHERE s.pass_id = v_pass.pass_id;
END
$function$;
COMMENT ON FUNCTION trecho.abandon_pass(bigint, text) IS
    'Give a running pass up; the lock stays until trecho.release_pass after the commit, or the end of the connection. What searches see is unchanged; vectors already computed stay for the next pass. Raises TR005 when this connection does not hold the lock.';
REVOKE ALL ON FUNCTION trecho.abandon_pass(bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.abandon_pass(bigint, text) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.release_pass(project text DEFAULT 'default')
RETURNS boolean  -- false when this connection did not hold the lock
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_held boolean := false;
BEGIN
    -- The lock counts how often it was taken.
    WHILE trecho._pass_lock_holder(release_pass.project) = pg_backend_pid() LOOP
        PERFORM pg_advisory_unlock(trecho._pass_lock_key(release_pass.project));
        v_held := true;
    END LOOP;
    RETURN v_held;
END
$function$;
COMMENT ON FUNCTION trecho.release_pass(text) IS
    'Free the pass lock of a project that this connection holds; call it after the commit of publish_pass or abandon_pass. Returns false when it held none.';
REVOKE ALL ON FUNCTION trecho.release_pass(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.release_pass(text) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.branch_commit(project text, branch text)
RETURNS TABLE (last_commit text, unclean_sets text[], last_rules text)
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    WITH published AS (
        SELECT p.source_set, max(p.pass_id) AS last_pass, max(p.started_at) FILTER (WHERE p.kind = 'full') AS read_whole_at
          FROM trecho.passes AS p
         WHERE p.project = branch_commit.project AND p.branch = branch_commit.branch AND p.outcome = 'published'
         GROUP BY p.source_set
    )
    SELECT b.last_commit,
           ARRAY(SELECT l.source_set FROM published AS l JOIN trecho.passes AS p ON p.pass_id = l.last_pass WHERE p.documents_failed > 0
                 -- What an application wrote over, or removed from, a source is in no difference between commits.
                 UNION
                 SELECT d.source_set FROM trecho.documents AS d
                  WHERE d.project = branch_commit.project AND d.branch = branch_commit.branch AND d.diverged
                 UNION
                 SELECT t.source_set FROM trecho.tombstones AS t LEFT JOIN published AS l ON l.source_set = t.source_set
                  WHERE t.project = branch_commit.project AND t.branch = branch_commit.branch AND t.source_set <> ''
                    AND t.pass_id IS NULL AND t.removed_at >= coalesce(l.read_whole_at, '-infinity')
                 ORDER BY 1),
           b.last_rules
      FROM trecho.branches AS b
     WHERE b.project = branch_commit.project AND b.branch = branch_commit.branch
$function$;
COMMENT ON FUNCTION trecho.branch_commit(text, text) IS
    'Commit a branch was last brought to from git; the source sets whose next pass must read all of their files, because the last one left a document out or an application changed one since; and the hash of the rules it was read with: with other rules, every set must be read whole. No row for a branch without a completed pass.';
REVOKE ALL ON FUNCTION trecho.branch_commit(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.branch_commit(text, text) TO trecho_writer;
