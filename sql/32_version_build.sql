-- Changing the recipe of a living index: a new version is filled beside the old one, then searches turn to it in one transaction.
-- Changed text goes to both meanwhile (put_document and plan_pass write to every version of trecho._write_versions()).

CREATE OR REPLACE FUNCTION trecho.drift()
RETURNS TABLE (key text, active jsonb, wanted jsonb)
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    WITH recipes AS (
        SELECT trecho._version_recipe(s.active_version) AS active, trecho._wanted_recipe() AS wanted
          FROM trecho.index_state AS s WHERE s.active_version IS NOT NULL),
    flat AS (
        SELECT k.key, r.active -> k.key AS active, k.value AS wanted
          FROM recipes AS r CROSS JOIN jsonb_each(r.wanted - 'chunk_settings') AS k
        UNION ALL
        SELECT 'chunk_settings.' || k.key, r.active -> 'chunk_settings' -> k.key, k.value
          FROM recipes AS r CROSS JOIN jsonb_each(r.wanted -> 'chunk_settings') AS k)
    -- A NULL stands for an unknown value, which equals nothing.
    SELECT f.key, nullif(f.active, 'null'), f.wanted FROM flat AS f WHERE nullif(f.active, 'null') IS DISTINCT FROM f.wanted OR f.wanted = 'null' ORDER BY f.key
$function$;
COMMENT ON FUNCTION trecho.drift() IS
    'Parts of the recipe in which the active version differs from the wanted one, or of which it knows nothing (NULL). No row: no drift, or no version yet.';
REVOKE ALL ON FUNCTION trecho.drift() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.drift() TO trecho_reader, trecho_writer, trecho_operator;

CREATE OR REPLACE FUNCTION trecho._missing_documents(p_index_version integer)
RETURNS SETOF bigint
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT d.document_id FROM trecho.documents AS d
     WHERE NOT EXISTS (SELECT FROM trecho.indexed_documents AS i
                        WHERE i.index_version = p_index_version AND i.document_id = d.document_id AND i.blob_sha = d.blob_sha)
$function$;
COMMENT ON FUNCTION trecho._missing_documents(integer) IS 'Documents whose present text a version does not hold.';
REVOKE ALL ON FUNCTION trecho._missing_documents(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.list_versions()
RETURNS TABLE (index_version integer, state trecho.index_version_state, paused boolean, label text, documents bigint, documents_missing bigint,
               chunks bigint, pending bigint, failed bigint, quarantined bigint, staged bigint, created_at timestamptz, activated_at timestamptz,
               retired_at timestamptz, recipe jsonb)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT v.index_version, v.state, v.paused, v.label,
           (SELECT count(*) FROM trecho.indexed_documents AS i WHERE i.index_version = v.index_version),
           CASE WHEN v.state <> 'retired' THEN (SELECT count(*) FROM trecho._missing_documents(v.index_version)) END,
           (SELECT count(*) FROM trecho.chunks AS c WHERE c.index_version = v.index_version),
           p.pending, p.failed, p.quarantined, p.staged, v.created_at, v.activated_at, v.retired_at, trecho._version_recipe(v.index_version)
      FROM trecho.index_versions AS v
     CROSS JOIN LATERAL trecho.pending_embeddings(v.index_version) AS p
     ORDER BY v.index_version;
END
$function$;
COMMENT ON FUNCTION trecho.list_versions() IS
    'Every index version: state, what it holds, what it still lacks (documents whose present text is not in it, texts that need a vector), and its recipe. Counts chunks: not for every request.';
REVOKE ALL ON FUNCTION trecho.list_versions() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.list_versions() TO trecho_reader, trecho_writer, trecho_operator;

CREATE OR REPLACE FUNCTION trecho.begin_version_build(
    "full" boolean DEFAULT false  -- true: embed everything again, with or without drift
)
RETURNS integer                   -- version to fill; NULL when there is no drift
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_active  integer := trecho._ensure_version();
    v_wanted  jsonb;
    v_version integer;
BEGIN
    PERFORM FROM trecho.index_state AS s FOR UPDATE;  -- two builders at once would make two versions
    v_wanted := trecho._wanted_recipe();
    SELECT v.index_version INTO v_version FROM trecho.index_versions AS v
     WHERE v.state = 'building' AND trecho._version_recipe(v.index_version) = v_wanted
       AND (NOT v.reuse_vectors OR (NOT begin_version_build."full" AND EXISTS (SELECT FROM trecho.drift())))
     ORDER BY v.index_version DESC LIMIT 1;
    -- Builds of a recipe that is no longer wanted.
    UPDATE trecho.index_versions AS v SET state = 'retired', retired_at = CASE WHEN v.activated_at IS NULL THEN 'epoch' ELSE now() END
     WHERE v.state = 'building' AND v.index_version IS DISTINCT FROM v_version;
    IF v_version IS NULL AND (begin_version_build."full" OR EXISTS (SELECT FROM trecho.drift())) THEN
        v_version := trecho._create_version(v_wanted, 'building');
        -- Much is about to be loaded: the search indexes come after it (trecho.end_bulk_load).
        IF (SELECT count(*) FROM (SELECT FROM trecho.documents AS d LIMIT trecho._bulk_documents()) AS l) >= trecho._bulk_documents() THEN
            EXECUTE format('DROP INDEX trecho.%I, trecho.%I', 'chunks_' || v_version || '_words', 'chunks_' || v_version || '_vectors');
        END IF;
        UPDATE trecho.index_versions AS v SET reuse_vectors = NOT begin_version_build."full" WHERE v.index_version = v_version;
    END IF;
    RETURN v_version;
END
$function$;
COMMENT ON FUNCTION trecho.begin_version_build(boolean) IS
    'Version that is being built for the wanted recipe: the one begun before, or a new one when the active version drifted or full is true. Builds of other recipes are given up. From then on changed text goes to it too. Where there is much to load it has no search indexes yet: trecho.end_bulk_load builds them after the load. NULL: nothing to build.';
REVOKE ALL ON FUNCTION trecho.begin_version_build(boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.begin_version_build(boolean) TO trecho_writer, trecho_operator;

-- Locks the rows of the documents it takes, SKIP LOCKED, to its end: a put of one of them waits that long. Keep the batches small.
CREATE OR REPLACE FUNCTION trecho.backfill_version(
    index_version integer,
    max_documents integer DEFAULT 10,
    client_chunks jsonb DEFAULT NULL  -- only where the server has no chunkers: what the client made of documents_to_fill, an array
                                      -- of document_id, blob_sha (hexadecimal) and chunks, each with digest; NULL chunks: cannot be cut
)
RETURNS bigint  -- documents still missing, those that another backfill is at included; 0 when the version is retired or gone
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_version integer;
    v_paused  boolean;
    v_ids     bigint[];
    v_doc     record;
    v_cuts    trecho.cut_chunk[];
    v_new     trecho.new_placement[];
    v_left    bigint;
BEGIN
    IF backfill_version.max_documents IS NULL OR backfill_version.max_documents < 1 THEN
        RAISE EXCEPTION 'max_documents must be positive, got %', coalesce(backfill_version.max_documents::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave max_documents out to use 10.';
    END IF;
    SELECT v.index_version, v.paused INTO v_version, v_paused FROM trecho.index_versions AS v
     WHERE v.index_version = backfill_version.index_version AND v.state IN ('active', 'building') FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF v_paused THEN
        RAISE EXCEPTION 'the build of index version % is paused', v_version
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('trecho version resume %s lets it go on.', v_version);
    END IF;
    v_ids := ARRAY(SELECT d.document_id FROM trecho.documents AS d
                    WHERE d.document_id IN (SELECT m FROM trecho._missing_documents(v_version) AS m
                                             WHERE backfill_version.client_chunks IS NULL
                                                OR m IN (SELECT (g ->> 'document_id')::bigint FROM jsonb_array_elements(backfill_version.client_chunks) AS g)
                                             ORDER BY m LIMIT backfill_version.max_documents * 4)
                    ORDER BY d.document_id LIMIT backfill_version.max_documents
                      FOR NO KEY UPDATE SKIP LOCKED);
    -- A new statement: what was changed before the lock was had is seen as it is now.
    FOR v_doc IN
        SELECT d.document_id, d.project, d.scope, d.source, d.source_path, d.session_id, d.doc_id, d.language, d.blob_sha, b.content,
               coalesce(d.source_path, d.metadata ->> 'origin', d.session_id || '.jsonl') AS path, g.chunks
          FROM trecho.documents AS d
          JOIN trecho.blobs AS b ON b.blob_sha = d.blob_sha
          LEFT JOIN jsonb_to_recordset(backfill_version.client_chunks) AS g (document_id bigint, blob_sha text, chunks jsonb)
            ON g.document_id = d.document_id AND g.blob_sha = encode(d.blob_sha, 'hex')
         WHERE d.document_id = ANY (v_ids) AND (backfill_version.client_chunks IS NULL OR g.document_id IS NOT NULL)
         ORDER BY d.document_id
    LOOP
        BEGIN
            IF backfill_version.client_chunks IS NOT NULL AND v_doc.chunks IS NULL THEN
                RAISE EXCEPTION 'the client could not cut it' USING ERRCODE = 'TR008';
            END IF;
            v_cuts := trecho._cut_document(v_version, v_doc.scope, v_doc.source_path, v_doc.session_id, v_doc.path, v_doc.language, v_doc.content, v_doc.chunks);
        EXCEPTION WHEN SQLSTATE 'TR008' THEN
            -- One text must not hold up the version for ever.
            RAISE WARNING '% is left out of index version %: %', v_doc.source, v_version, regexp_replace(SQLERRM, '^plpy\.Error: ', '');
            v_cuts := '{}';
        END;
        PERFORM trecho._store_chunks(v_version, v_doc.project, v_cuts);
        SELECT coalesce(array_agg(ROW(v_doc.document_id, u.ordinal, c.chunk_key, v_doc.doc_id || ':' || u.ordinal || ':' || u.digest,
                             trecho._anchor(v_doc.doc_id, u.anchor_path), u.start_line, u.end_line)::trecho.new_placement), '{}')
          INTO v_new
          FROM unnest(v_cuts) AS u
          JOIN trecho.chunks AS c ON c.index_version = v_version AND c.project = v_doc.project AND c.scope = u.scope
                                 AND c.content_hash = u.content_hash AND c.text_hash = u.text_hash;
        PERFORM trecho._replace_placements(v_version, ARRAY[v_doc.document_id], v_new, NULL);
        INSERT INTO trecho.indexed_documents AS i (index_version, document_id, blob_sha, chunk_count)
        VALUES (v_version, v_doc.document_id, v_doc.blob_sha, cardinality(v_cuts))
        ON CONFLICT ON CONSTRAINT indexed_documents_pkey DO UPDATE SET blob_sha = excluded.blob_sha, chunk_count = excluded.chunk_count;
    END LOOP;
    SELECT count(*) INTO v_left FROM trecho._missing_documents(v_version);
    IF cardinality(v_ids) > 0 THEN
        PERFORM trecho._notify_embedding();
    END IF;
    RETURN v_left;
END
$function$;
COMMENT ON FUNCTION trecho.backfill_version(integer, integer, jsonb) IS
    'Chunk some documents that a version lacks, from their stored text, with its settings; call it, and commit, until 0. Several callers share the work. On the active version it mends what was put while it became active. Raises 55000 while the build is paused, TR010 when the server has no chunkers and no chunks were given, 22023 for a bad max_documents.';
REVOKE ALL ON FUNCTION trecho.backfill_version(integer, integer, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.backfill_version(integer, integer, jsonb) TO trecho_writer, trecho_operator;

CREATE OR REPLACE FUNCTION trecho.documents_to_fill(
    index_version integer,
    max_documents integer DEFAULT 10
)
RETURNS TABLE (document_id bigint, blob_sha text, project text, scope trecho.chunk_scope, path text, content text, chunk_settings jsonb)
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT d.document_id, encode(d.blob_sha, 'hex'), d.project, d.scope,
           coalesce(d.source_path, d.metadata ->> 'origin', d.session_id || '.jsonl'), b.content, v.chunk_settings
      FROM trecho.documents AS d
      JOIN trecho.blobs AS b ON b.blob_sha = d.blob_sha
      JOIN trecho.index_versions AS v ON v.index_version = documents_to_fill.index_version AND v.state IN ('active', 'building')
     WHERE d.document_id IN (SELECT m FROM trecho._missing_documents(documents_to_fill.index_version) AS m)
     ORDER BY d.document_id LIMIT documents_to_fill.max_documents
$function$;
COMMENT ON FUNCTION trecho.documents_to_fill(integer, integer) IS
    'For clients that chunk themselves: documents that a version lacks, with their text and the settings of the version. Give what comes of them to trecho.backfill_version.';
REVOKE ALL ON FUNCTION trecho.documents_to_fill(integer, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.documents_to_fill(integer, integer) TO trecho_writer, trecho_operator;

CREATE OR REPLACE FUNCTION trecho._require_complete(p_index_version integer, p_written_since timestamptz, p_force boolean)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_missing bigint;
    v_waiting bigint;
    v_pass    bigint;
BEGIN
    IF NOT trecho._has_search_indexes(p_index_version) THEN
        RAISE EXCEPTION 'index version % has no search indexes yet', p_index_version
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('SELECT trecho.end_bulk_load(%s) builds them.', p_index_version);
    END IF;
    SELECT count(*) INTO v_missing FROM trecho._missing_documents(p_index_version);
    IF NOT p_force THEN
        EXECUTE format('SELECT count(DISTINCT w.text_hash) FROM (%s) AS w', trecho._pending_texts_query(p_index_version, true)) INTO v_waiting
          USING p_index_version, p_written_since;
    END IF;
    IF v_missing > 0 OR v_waiting > 0 THEN
        RAISE EXCEPTION 'index version % is not complete: % documents and % vectors are missing', p_index_version, v_missing, coalesce(v_waiting, 0)
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'trecho version build goes on with it.';
    END IF;
    -- Such a pass did not plan for this version, so what it is about to publish would be missing there.
    SELECT p.pass_id INTO v_pass
      FROM trecho.passes AS p
      JOIN trecho.index_versions AS v ON v.index_version = p_index_version
     WHERE p.outcome = 'running' AND trecho._pass_lock_holder(p.project) = p.backend_pid
       AND (p.started_at < v.opened_at
            OR EXISTS (SELECT FROM trecho.staged_documents AS s
                        WHERE s.pass_id = p.pass_id AND s.action = 'write' AND s.planned_at IS NOT NULL AND s.error IS NULL
                          AND NOT v.index_version = ANY (s.planned_versions)))
     LIMIT 1;
    IF v_pass IS NOT NULL THEN
        RAISE EXCEPTION 'pass % began before index version % and has not ended', v_pass, p_index_version
            USING ERRCODE = 'object_in_use', HINT = 'Wait for it; trecho status shows it.';
    END IF;
END
$function$;
COMMENT ON FUNCTION trecho._require_complete(integer, timestamptz, boolean) IS
    'Raises 55000 when a version lacks documents, vectors or its search indexes, 55006 while a pass runs that does not know of it.';
REVOKE ALL ON FUNCTION trecho._require_complete(integer, timestamptz, boolean) FROM PUBLIC;

-- Short: a few rows. Writers wait while it has its lock, and 80 ms while it waits for it; then it gives up and the caller tries again. Searches
-- that have begun end on the version they began with; the next ones read the new one.
CREATE OR REPLACE FUNCTION trecho.activate_version(
    index_version integer,
    force         boolean DEFAULT false,        -- true: even though vectors are pending (they are found by words until then)
    written_since timestamptz DEFAULT NULL      -- texts written since then may be pending, as those of any put are; NULL: none may
)
RETURNS boolean                                 -- false when it was active already
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '80ms'
AS $function$
DECLARE
    v_old   integer;
    v_state trecho.index_version_state;
BEGIN
    SELECT v.state INTO v_state FROM trecho.index_versions AS v WHERE v.index_version = activate_version.index_version;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'index version % does not exist', coalesce(activate_version.index_version::text, 'NULL')
            USING ERRCODE = 'TR001', HINT = 'List them with trecho version list.';
    END IF;
    IF v_state = 'building' THEN
        -- Before any lock, since it may be far from complete; and once more with the lock.
        PERFORM trecho._require_complete(activate_version.index_version, activate_version.written_since, coalesce(activate_version.force, false));
    END IF;
    PERFORM pg_advisory_xact_lock(trecho._versions_lock_key());
    SELECT s.active_version INTO v_old FROM trecho.index_state AS s FOR UPDATE;
    SELECT v.state INTO v_state FROM trecho.index_versions AS v WHERE v.index_version = activate_version.index_version FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM trecho._passage_prefix(activate_version.index_version);  -- TR001: dropped meanwhile
    END IF;
    IF v_state = 'active' THEN
        RETURN false;
    END IF;
    IF v_state = 'retired' THEN
        RAISE EXCEPTION 'index version % is retired and may lack what changed since', activate_version.index_version
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('trecho version activate %s brings it up to date first (trecho.reopen_version).', activate_version.index_version);
    END IF;
    PERFORM trecho._require_complete(activate_version.index_version, activate_version.written_since, coalesce(activate_version.force, false));
    UPDATE trecho.index_versions AS v SET state = 'retired', retired_at = now() WHERE v.index_version = v_old;
    UPDATE trecho.index_versions AS v SET state = 'active', activated_at = now(), retired_at = NULL, paused = false
     WHERE v.index_version = activate_version.index_version;
    UPDATE trecho.index_state SET active_version = activate_version.index_version;
    UPDATE trecho.branches AS b SET completed_index_version = activate_version.index_version WHERE b.completed_index_version = v_old;
    RETURN true;
END
$function$;
COMMENT ON FUNCTION trecho.activate_version(integer, boolean, timestamptz) IS
    'Let searches read a complete version. The one they read until now is retired: readable for query vectors made for it, and for going back, until the grace period ends. Returns false when it was active already. Raises TR001 for an unknown version, 55000 for one that is not complete or is retired, 55006 while a pass that began before the version runs, 55P03 when writers do not let it have its lock within 80 ms: try again.';
REVOKE ALL ON FUNCTION trecho.activate_version(integer, boolean, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.activate_version(integer, boolean, timestamptz) TO trecho_writer, trecho_operator;

CREATE OR REPLACE FUNCTION trecho.reopen_version(index_version integer)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    PERFORM trecho._passage_prefix(reopen_version.index_version);  -- TR001
    UPDATE trecho.index_versions AS v SET state = 'building', retired_at = NULL, paused = false, opened_at = clock_timestamp()
     WHERE v.index_version = reopen_version.index_version AND v.state = 'retired';
END
$function$;
COMMENT ON FUNCTION trecho.reopen_version(integer) IS
    'Take a retired version up again, to go back to it: changed text goes to it from now on; backfill_version and workers bring the rest, then activate_version. Nothing happens to one that is not retired. Raises TR001.';
REVOKE ALL ON FUNCTION trecho.reopen_version(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.reopen_version(integer) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.pause_version(
    index_version integer,
    paused        boolean DEFAULT true  -- false: go on
)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    PERFORM trecho._passage_prefix(pause_version.index_version);  -- TR001
    UPDATE trecho.index_versions AS v SET paused = coalesce(pause_version.paused, true)
     WHERE v.index_version = pause_version.index_version AND v.state = 'building';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'index version % is not being built', pause_version.index_version
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'List them with trecho version list.';
    END IF;
    PERFORM trecho._notify_embedding();
END
$function$;
COMMENT ON FUNCTION trecho.pause_version(integer, boolean) IS
    'Stop filling a version that is being built, or go on. Changed text still goes to it, so that nothing is lost. Raises TR001 for an unknown version, 55000 for one that is not being built.';
REVOKE ALL ON FUNCTION trecho.pause_version(integer, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.pause_version(integer, boolean) TO trecho_operator;

-- What is slow comes first; the partitioned tables are locked last and briefly. While it waits for that lock new searches queue behind it,
-- hence the short limit: it gives up, and the caller tries again.
CREATE OR REPLACE FUNCTION trecho.drop_version(index_version integer)
RETURNS boolean  -- false when there was no such version
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $function$
DECLARE
    v_state      trecho.index_version_state;
    v_chunks     text := 'chunks_' || drop_version.index_version;
    v_placements text := 'placements_' || drop_version.index_version;
BEGIN
    SELECT v.state INTO v_state FROM trecho.index_versions AS v WHERE v.index_version = drop_version.index_version FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF v_state = 'active' THEN
        RAISE EXCEPTION 'index version % is active', drop_version.index_version
            USING ERRCODE = 'object_in_use', HINT = 'Activate another version first.';
    END IF;
    -- Autovacuum makes way only for those who wait a second (deadlock_timeout). This lock blocks no reader and no writer, so it may be waited for,
    -- and it keeps autovacuum away until the end.
    EXECUTE format('ALTER TABLE trecho.%I SET (autovacuum_enabled = false)', v_placements);
    EXECUTE format('ALTER TABLE trecho.%I SET (autovacuum_enabled = false, toast.autovacuum_enabled = false)', v_chunks);
    PERFORM set_config('lock_timeout', '80ms', true);
    DELETE FROM trecho.staged_placements AS s WHERE s.index_version = drop_version.index_version;
    DELETE FROM trecho.lexeme_stats AS l WHERE l.index_version = drop_version.index_version;
    DELETE FROM trecho.index_versions AS v WHERE v.index_version = drop_version.index_version;
    EXECUTE format('ALTER TABLE trecho.placements DETACH PARTITION trecho.%I', v_placements);
    EXECUTE format('ALTER TABLE trecho.chunks DETACH PARTITION trecho.%I', v_chunks);
    EXECUTE format('DROP TABLE trecho.%I, trecho.%I', v_placements, v_chunks);
    RETURN true;
END
$function$;
COMMENT ON FUNCTION trecho.drop_version(integer) IS
    'Drop a version with its chunks and vectors; a build is cancelled by it. Returns false when there was none. Raises 55006 for the active version, 55P03 when searches or writers do not let it have its locks within 80 ms: try again.';
REVOKE ALL ON FUNCTION trecho.drop_version(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.drop_version(integer) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.drop_expired_version()
RETURNS integer  -- version dropped; NULL when none has expired, or none could be dropped just now
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_version integer;
BEGIN
    FOR v_version IN
        SELECT v.index_version FROM trecho.index_versions AS v
         WHERE v.state = 'retired' AND v.retired_at <= now() - trecho._grace() ORDER BY v.retired_at, v.index_version
    LOOP
        BEGIN
            IF trecho.drop_version(v_version) THEN
                RETURN v_version;
            END IF;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            CONTINUE;
        END;
    END LOOP;
    RETURN NULL;
END
$function$;
COMMENT ON FUNCTION trecho.drop_expired_version() IS
    'Drop one version that was retired longer ago than the grace period, or given up while it was built; call it, and commit, until NULL.';
REVOKE ALL ON FUNCTION trecho.drop_expired_version() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.drop_expired_version() TO trecho_writer, trecho_operator;
