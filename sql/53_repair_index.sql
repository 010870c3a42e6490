-- What trecho.check_index found is mended: from the stored text, from the source, or by building an index again.

-- Cut a document anew from its stored text and make its placements so. Damaged chunk rows must be gone before, or they would be found again.
CREATE OR REPLACE FUNCTION trecho._recut_document(p_index_version integer, p_document_id bigint, p_chunks jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_doc  record;
    v_cuts trecho.cut_chunk[];
    v_new  trecho.new_placement[];
BEGIN
    PERFORM FROM trecho.documents AS d WHERE d.document_id = p_document_id FOR NO KEY UPDATE;
    SELECT d.document_id, d.project, d.branch, d.scope, d.source, d.source_path, d.session_id, d.doc_id, d.language, d.blob_sha, b.content,
           coalesce(d.source_path, d.metadata ->> 'origin', d.session_id || '.jsonl') AS path INTO v_doc
      FROM trecho.documents AS d JOIN trecho.blobs AS b ON b.blob_sha = d.blob_sha
     WHERE d.document_id = p_document_id AND sha256(convert_to(b.content, 'UTF8')) = b.blob_sha;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    BEGIN
        v_cuts := trecho._cut_document(p_index_version, v_doc.scope, v_doc.source_path, v_doc.session_id, v_doc.path, v_doc.language, v_doc.content, p_chunks);
    EXCEPTION WHEN SQLSTATE 'TR008' THEN
        RAISE WARNING '% is left as it is in index version %: %', v_doc.source, p_index_version, regexp_replace(SQLERRM, '^plpy\.Error: ', '');
        RETURN false;
    END;
    PERFORM trecho._store_chunks(p_index_version, v_doc.project, v_cuts);
    SELECT coalesce(array_agg(ROW(v_doc.document_id, u.ordinal, c.chunk_key, v_doc.doc_id || ':' || u.ordinal || ':' || u.digest,
                         trecho._anchor(v_doc.doc_id, u.anchor_path), u.start_line, u.end_line)::trecho.new_placement), '{}')
      INTO v_new
      FROM unnest(v_cuts) AS u
      JOIN trecho.chunks AS c ON c.index_version = p_index_version AND c.project = v_doc.project AND c.scope = u.scope
                             AND c.content_hash = u.content_hash AND c.text_hash = u.text_hash;
    UPDATE trecho.placements AS p SET project = v_doc.project, branch = v_doc.branch
     WHERE p.index_version = p_index_version AND p.document_id = v_doc.document_id AND (p.project, p.branch) <> (v_doc.project, v_doc.branch);
    PERFORM trecho._replace_placements(p_index_version, ARRAY[v_doc.document_id], v_new, NULL);
    INSERT INTO trecho.indexed_documents AS i (index_version, document_id, blob_sha, chunk_count)
    VALUES (p_index_version, v_doc.document_id, v_doc.blob_sha, coalesce(cardinality(v_cuts), 0))
    ON CONFLICT ON CONSTRAINT indexed_documents_pkey DO UPDATE SET blob_sha = excluded.blob_sha, chunk_count = excluded.chunk_count;
    RETURN true;
END
$function$;
COMMENT ON FUNCTION trecho._recut_document(integer, bigint, jsonb) IS
    'Make the passages of a document in a version what its stored text gives; p_chunks where the client cuts. False when it is gone, its text is damaged or cannot be cut.';
REVOKE ALL ON FUNCTION trecho._recut_document(integer, bigint, jsonb) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._damaged(p_check_name text, p_index_version integer, p_project text, p_max_rows integer)
RETURNS bigint[]
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
DECLARE
    v_query text := (SELECT c.query FROM trecho._index_checks(p_index_version) AS c WHERE c.check_name = p_check_name);
    v_keys  bigint[];
BEGIN
    IF trecho._check_obstacle(p_check_name, p_index_version) IS NULL THEN
        EXECUTE format('SELECT array_agg(q.key) FROM (SELECT s.key FROM (%s) AS s (key, example) LIMIT %s) AS q', v_query, p_max_rows)
           INTO v_keys USING p_index_version, p_project;
    END IF;
    RETURN coalesce(v_keys, '{}');
END
$function$;
COMMENT ON FUNCTION trecho._damaged(text, integer, text, integer) IS 'Keys of the first findings of a check.';
REVOKE ALL ON FUNCTION trecho._damaged(text, integer, text, integer) FROM PUBLIC;

-- Rows of chunks whose content or hashes are not what they were. The row goes, its vector is kept under the text it was made for, and the documents
-- it stands in are cut again. Left alone: what a running pass is about to place, what another transaction holds, and what stands in a document
-- whose own text is damaged, since nothing could bring it back.
CREATE OR REPLACE FUNCTION trecho._rewrite_chunks(p_index_version integer, p_keys bigint[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_keys      bigint[];
    v_documents bigint[];
    v_document  bigint;
    v_old       trecho.chunks[];
BEGIN
    v_keys := ARRAY(
        SELECT c.chunk_key FROM trecho.chunks AS c
         WHERE c.index_version = p_index_version AND c.chunk_key = ANY (p_keys)
           AND NOT EXISTS (SELECT FROM trecho.placements AS p
                             JOIN trecho.documents AS d ON d.document_id = p.document_id
                             JOIN trecho.blobs AS b ON b.blob_sha = d.blob_sha
                            WHERE p.index_version = p_index_version AND p.chunk_key = c.chunk_key AND sha256(convert_to(b.content, 'UTF8')) <> b.blob_sha));
    PERFORM FROM trecho.documents AS d
     WHERE d.document_id IN (SELECT p.document_id FROM trecho.placements AS p WHERE p.index_version = p_index_version AND p.chunk_key = ANY (v_keys))
     ORDER BY d.source FOR NO KEY UPDATE;
    v_keys := ARRAY(
        SELECT c.chunk_key FROM trecho.chunks AS c
         WHERE c.index_version = p_index_version AND c.chunk_key = ANY (v_keys)
           AND NOT EXISTS (SELECT FROM trecho.staged_placements AS s WHERE s.index_version = p_index_version AND s.chunk_key = c.chunk_key)
         ORDER BY c.content_hash, c.text_hash FOR UPDATE OF c SKIP LOCKED);
    v_documents := ARRAY(SELECT DISTINCT p.document_id FROM trecho.placements AS p WHERE p.index_version = p_index_version AND p.chunk_key = ANY (v_keys) ORDER BY 1);
    INSERT INTO trecho.staged_embeddings (index_version, text_hash, embedding)
    SELECT DISTINCT ON (c.text_hash) p_index_version, c.text_hash, c.embedding
      FROM trecho.chunks AS c
     WHERE c.index_version = p_index_version AND c.chunk_key = ANY (v_keys) AND c.embedding IS NOT NULL
       AND NOT EXISTS (SELECT FROM trecho.chunks AS o WHERE o.index_version = p_index_version AND o.text_hash = c.text_hash AND o.chunk_key <> ALL (v_keys))
     ORDER BY c.text_hash
    ON CONFLICT ON CONSTRAINT staged_embeddings_pkey DO NOTHING;
    WITH gone AS (
        DELETE FROM trecho.chunks AS c WHERE c.index_version = p_index_version AND c.chunk_key = ANY (v_keys)
        RETURNING c.*)
    SELECT array_agg(ROW(g.index_version, g.chunk_key, g.project, g.scope, g.source_path, g.session_id, '', '', NULL, '', g.content, 0, g.content_hash,
                         g.text_hash, false, now(), NULL, NULL)::trecho.chunks)
      INTO v_old FROM gone AS g;
    IF trecho._has_chunkers() THEN
        FOREACH v_document IN ARRAY v_documents LOOP
            PERFORM trecho._recut_document(p_index_version, v_document, NULL);
        END LOOP;
    END IF;
    -- Ids retired before still resolve to the same text: hash or content of the row that went was right.
    UPDATE trecho.retired_chunks AS r SET chunk_key = n.new_key
      FROM (SELECT DISTINCT ON (o.chunk_key) o.chunk_key, c.chunk_key AS new_key
              FROM unnest(v_old) AS o
              JOIN trecho.chunks AS c ON c.index_version = p_index_version AND c.project = o.project AND c.scope = o.scope
                                     AND coalesce(c.source_path, c.session_id::text) = coalesce(o.source_path, o.session_id::text)
                                     AND (c.content_hash = o.content_hash OR c.content = o.content)
             ORDER BY o.chunk_key, c.content_hash = o.content_hash DESC, c.chunk_key) AS n
     WHERE r.index_version = p_index_version AND r.chunk_key = n.chunk_key;
    RETURN cardinality(v_keys);
END
$function$;
COMMENT ON FUNCTION trecho._rewrite_chunks(integer, bigint[]) IS
    'Replace damaged chunks by what the stored text of their documents gives. Returns how many rows went; those that somebody uses, or whose text is damaged too, stay.';
REVOKE ALL ON FUNCTION trecho._rewrite_chunks(integer, bigint[]) FROM PUBLIC;

-- trecho.apply_embeddings throws away what no chunk wants at the moment; here the chunk may be about to come back.
CREATE OR REPLACE FUNCTION trecho._apply_wanted(p_index_version integer, p_max_rows integer)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_hashes bytea[];
BEGIN
    v_hashes := ARRAY(
        SELECT s.text_hash FROM trecho.staged_embeddings AS s
         WHERE s.index_version = p_index_version
           AND EXISTS (SELECT FROM trecho.chunks AS c WHERE c.index_version = p_index_version AND c.text_hash = s.text_hash AND c.embedding IS NULL AND NOT c.quarantined)
         ORDER BY s.text_hash LIMIT p_max_rows FOR UPDATE SKIP LOCKED);
    UPDATE trecho.chunks AS c SET embedding = s.embedding
      FROM trecho.staged_embeddings AS s
     WHERE c.index_version = p_index_version AND c.text_hash = ANY (v_hashes) AND c.embedding IS NULL AND NOT c.quarantined
       AND s.index_version = p_index_version AND s.text_hash = c.text_hash;
    DELETE FROM trecho.staged_embeddings AS s WHERE s.index_version = p_index_version AND s.text_hash = ANY (v_hashes);
    RETURN cardinality(v_hashes);
END
$function$;
COMMENT ON FUNCTION trecho._apply_wanted(integer, integer) IS 'Put staged vectors on the chunks that want them, and leave the others staged. Returns how many.';
REVOKE ALL ON FUNCTION trecho._apply_wanted(integer, integer) FROM PUBLIC;

-- Not CONCURRENTLY, which no function can: writers of the table wait while it is built, readers only for the exchange at the end.
CREATE OR REPLACE FUNCTION trecho._rebuild_indexes(p_index_version integer)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $function$
DECLARE
    v_index record;
    v_count bigint := 0;
    v_aside text;
BEGIN
    FOR v_index IN
        SELECT w.*, i.indexrelid, EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = i.indexrelid) AS of_constraint
          FROM trecho._wanted_indexes(p_index_version) AS w
          LEFT JOIN (pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam)
            ON i.indrelid = to_regclass('trecho.' || w.table_name) AND c.relname = w.index_name
         WHERE CASE WHEN i.indexrelid IS NULL
                    THEN w.ddl IS NOT NULL OR EXISTS (SELECT FROM trecho.index_versions AS v WHERE v.index_version = p_index_version AND v.state <> 'building')
                    ELSE m.amname <> w.method OR NOT (i.indisvalid AND i.indisready AND i.indislive) END
    LOOP
        v_count := v_count + 1;
        IF v_index.of_constraint THEN
            EXECUTE format('REINDEX INDEX trecho.%I', v_index.index_name);
            CONTINUE;
        END IF;
        v_aside := v_index.index_name || '_damaged';
        IF v_index.indexrelid IS NOT NULL THEN
            EXECUTE format('ALTER INDEX trecho.%I RENAME TO %I', v_index.index_name, v_aside);
        END IF;
        IF v_index.ddl IS NULL THEN
            PERFORM trecho._create_search_indexes(p_index_version);
        ELSE
            EXECUTE v_index.ddl;
        END IF;
        IF v_index.indexrelid IS NOT NULL THEN
            EXECUTE format('DROP INDEX trecho.%I', v_aside);
        END IF;
    END LOOP;
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho._rebuild_indexes(integer) IS
    'Make the indexes of a version that are missing or not valid, but for the search indexes of one that is being built. Returns how many. Writers wait meanwhile. Raises 55P03 when the lock is not to be had, 23505 when rows do not allow a unique one.';
REVOKE ALL ON FUNCTION trecho._rebuild_indexes(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.repair_index(
    project  text DEFAULT NULL,       -- NULL: every project
    checks   text[] DEFAULT NULL,     -- only these (check_name of trecho.check_index); NULL: all
    max_rows integer DEFAULT 1000     -- findings of each check that this call mends, at most
)
RETURNS TABLE (check_name text, object text, repaired bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_version record;
    v_check   record;
    v_keys    bigint[];
    v_key     bigint;
BEGIN
    IF coalesce(repair_index.max_rows, 0) < 1 THEN
        RAISE EXCEPTION 'max_rows must be at least 1, got %', coalesce(repair_index.max_rows::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for the usual batch.';
    END IF;
    FOR v_version IN
        SELECT NULL::integer AS index_version, NULL::trecho.index_version_state AS state
        UNION ALL
        SELECT v.index_version, v.state FROM trecho.index_versions AS v
         ORDER BY index_version NULLS FIRST
    LOOP
        CONTINUE WHEN v_version.index_version IS NOT NULL AND NOT trecho._attached(v_version.index_version);
        FOR v_check IN
            SELECT c.check_name, c.action FROM trecho._index_checks(v_version.index_version) AS c
             WHERE c.action <> '' AND (repair_index.checks IS NULL OR c.check_name = ANY (repair_index.checks))
               AND (v_version.state IS DISTINCT FROM 'retired' OR c.check_name = 'indexes')
               AND NOT (c.action = 'recut' AND NOT trecho._has_chunkers())
             ORDER BY c.n
        LOOP
            v_keys := trecho._damaged(v_check.check_name, v_version.index_version, repair_index.project, repair_index.max_rows);
            CONTINUE WHEN v_keys = '{}';
            repaired := cardinality(v_keys);
            CASE v_check.action
            WHEN 'attach' THEN
                repaired := 0;
                FOREACH v_key IN ARRAY v_keys LOOP
                    repaired := repaired + trecho._attach_partitions(v_key::integer);
                END LOOP;
            WHEN 'reindex' THEN
                FOREACH v_key IN ARRAY v_keys LOOP
                    EXECUTE format('REINDEX INDEX %s', v_key::oid::regclass);
                END LOOP;
            WHEN 'indexes' THEN repaired := trecho._rebuild_indexes(v_version.index_version);
            WHEN 'settle' THEN
                PERFORM trecho._settle_doc_ids(s.project, s.branch, s.wanted)
                   FROM (SELECT d.project, d.branch, array_agg(DISTINCT d.wanted_doc_id) AS wanted
                           FROM trecho.documents AS d WHERE d.document_id = ANY (v_keys) GROUP BY d.project, d.branch) AS s;
            WHEN 'rewrite' THEN
                repaired := trecho._rewrite_chunks(v_version.index_version, v_keys);
            WHEN 'recompute' THEN
                UPDATE trecho.chunks AS c SET content = c.content, context = c.context
                 WHERE c.index_version = v_version.index_version AND c.chunk_key = ANY (v_keys);
            WHEN 'forget' THEN
                UPDATE trecho.chunks AS c SET embedding = NULL WHERE c.index_version = v_version.index_version AND c.chunk_key = ANY (v_keys);
                PERFORM trecho._notify_embedding();
            WHEN 'quarantine' THEN
                UPDATE trecho.chunks AS c
                   SET quarantined = h.held, embedding = CASE WHEN NOT h.held THEN c.embedding END
                  FROM (SELECT k.chunk_key, trecho._is_held(k.context, k.content) AS held
                          FROM trecho.chunks AS k WHERE k.index_version = v_version.index_version AND k.chunk_key = ANY (v_keys)) AS h
                 WHERE c.index_version = v_version.index_version AND c.chunk_key = h.chunk_key;
            WHEN 'unplace' THEN
                DELETE FROM trecho.placements AS p
                 WHERE p.index_version = v_version.index_version AND p.document_id = ANY (v_keys)
                   AND NOT EXISTS (SELECT FROM trecho.documents AS d WHERE d.document_id = p.document_id);
            WHEN 'unindex' THEN
                DELETE FROM trecho.indexed_documents AS i
                 WHERE i.index_version = v_version.index_version AND i.document_id = ANY (v_keys)
                   AND NOT EXISTS (SELECT FROM trecho.documents AS d WHERE d.document_id = i.document_id);
            WHEN 'recut' THEN
                repaired := 0;
                FOREACH v_key IN ARRAY ARRAY(SELECT DISTINCT k FROM unnest(v_keys) AS k ORDER BY 1) LOOP
                    repaired := repaired + trecho._recut_document(v_version.index_version, v_key, NULL)::integer;
                END LOOP;
                PERFORM trecho._notify_embedding();
            WHEN 'apply' THEN repaired := trecho._apply_wanted(v_version.index_version, repair_index.max_rows);
            WHEN 'statistics' THEN
                repaired := CASE WHEN trecho.refresh_lexeme_stats(v_version.index_version) IS NULL THEN 0 ELSE repaired END;  -- NULL: somebody is at it
            WHEN 'passes' THEN
                repaired := 0;
                FOREACH v_key IN ARRAY v_keys LOOP
                    -- The lock of the project: a pass that begins now clears the others away itself.
                    CONTINUE WHEN NOT pg_try_advisory_xact_lock(trecho._pass_lock_key((SELECT p.project FROM trecho.passes AS p WHERE p.pass_id = v_key)));
                    UPDATE trecho.passes AS p SET outcome = 'abandoned', finished_at = now(), error = 'its connection ended before it was published'
                     WHERE p.pass_id = v_key AND p.outcome = 'running';
                    DELETE FROM trecho.staged_documents AS s WHERE s.pass_id = v_key;
                    repaired := repaired + 1;
                END LOOP;
            WHEN 'leases' THEN PERFORM trecho._end_dead_leases();
            WHEN 'gc' THEN PERFORM trecho.gc(repair_index.max_rows);
            END CASE;
            IF repaired > 0 THEN
                check_name := v_check.check_name;
                object := CASE WHEN v_version.index_version IS NULL THEN 'database' ELSE 'version ' || v_version.index_version END;
                RETURN NEXT;
            END IF;
        END LOOP;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho.repair_index(text, text[], integer) IS
    'Mend what trecho.check_index finds, as its column repair says; call it, and commit, until it gives no row. Searches see the old state or the mended one. Chunks that come back without a vector are embedded by the next worker. What it cannot mend (texts, failed vectors) it leaves. On a server without chunkers use trecho doctor --repair. Raises 22023 for a bad max_rows, 55P03 when an index cannot be locked.';
REVOKE ALL ON FUNCTION trecho.repair_index(text, text[], integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.repair_index(text, text[], integer) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho._attach_partitions(p_index_version integer)
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_parent text;
    v_count  integer := 0;
BEGIN
    FOREACH v_parent IN ARRAY ARRAY['chunks', 'placements'] LOOP
        IF to_regclass(format('trecho.%I', v_parent || '_' || p_index_version)) IS NOT NULL
           AND NOT EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = to_regclass(format('trecho.%I', v_parent || '_' || p_index_version))) THEN
            EXECUTE format('ALTER TABLE trecho.%I ATTACH PARTITION trecho.%I FOR VALUES IN (%L)', v_parent, v_parent || '_' || p_index_version, p_index_version);
            v_count := v_count + 1;
        END IF;
    END LOOP;
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho._attach_partitions(integer) IS 'Attach the partitions of a version that stand alone. Returns how many.';
REVOKE ALL ON FUNCTION trecho._attach_partitions(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.documents_to_recut(
    project       text DEFAULT NULL,
    max_documents integer DEFAULT 100
)
RETURNS TABLE (index_version integer, document_id bigint, project_name text, path text, scope trecho.chunk_scope, content text, chunk_settings jsonb)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_version record;
    v_name    text;
    v_keys    bigint[];
BEGIN
    FOR v_version IN SELECT v.index_version, v.chunk_settings FROM trecho.index_versions AS v WHERE v.state IN ('active', 'building') ORDER BY 1 LOOP
        CONTINUE WHEN NOT trecho._attached(v_version.index_version);
        v_keys := '{}';
        FOR v_name IN SELECT c.check_name FROM trecho._index_checks(v_version.index_version) AS c WHERE c.action = 'recut' ORDER BY c.n LOOP
            v_keys := v_keys || trecho._damaged(v_name, v_version.index_version, documents_to_recut.project, documents_to_recut.max_documents);
            EXIT WHEN cardinality(v_keys) >= documents_to_recut.max_documents;
        END LOOP;
        RETURN QUERY
        SELECT v_version.index_version, d.document_id, d.project, coalesce(d.source_path, d.metadata ->> 'origin', d.session_id || '.jsonl'), d.scope, b.content,
               v_version.chunk_settings
          FROM trecho.documents AS d JOIN trecho.blobs AS b ON b.blob_sha = d.blob_sha
         WHERE d.document_id = ANY (v_keys) AND sha256(convert_to(b.content, 'UTF8')) = b.blob_sha
         ORDER BY d.document_id LIMIT documents_to_recut.max_documents;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho.documents_to_recut(text, integer) IS
    'For clients that chunk themselves: documents whose passages are damaged, with their stored text and the settings of the version. Give the chunks to trecho.recut_document.';
REVOKE ALL ON FUNCTION trecho.documents_to_recut(text, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.documents_to_recut(text, integer) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.recut_document(
    index_version integer,
    document_id   bigint,
    client_chunks jsonb DEFAULT NULL  -- only where the server has no chunkers: array of chunks, each with digest
)
RETURNS boolean                       -- false: the document is gone, or its text is damaged or cannot be cut
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    PERFORM trecho._passage_prefix(recut_document.index_version);  -- TR001
    RETURN trecho._recut_document(recut_document.index_version, recut_document.document_id, recut_document.client_chunks);
END
$function$;
COMMENT ON FUNCTION trecho.recut_document(integer, bigint, jsonb) IS
    'Make the passages of one document in a version what its stored text gives. Returns false when it is gone, or its text is damaged or cannot be cut. Raises TR001 for an unknown version, TR010 when the server has no chunkers and none were given.';
REVOKE ALL ON FUNCTION trecho.recut_document(integer, bigint, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.recut_document(integer, bigint, jsonb) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.restore_text(content text)
RETURNS boolean  -- true: a damaged text was mended; false: this text is not damaged, or is not stored
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_bytes bytea := convert_to(restore_text.content, 'UTF8');
BEGIN
    -- Its own hash proves that it is the text that was stored.
    UPDATE trecho.blobs AS b SET content = restore_text.content, byte_count = length(v_bytes)
     WHERE b.blob_sha = sha256(v_bytes) AND (b.content <> restore_text.content OR b.byte_count <> length(v_bytes));
    RETURN FOUND;
END
$function$;
COMMENT ON FUNCTION trecho.restore_text(text) IS
    'Put the right text of a document back where the stored one is damaged: give the whole text, whose hash says where it belongs. Returns whether something was mended.';
REVOKE ALL ON FUNCTION trecho.restore_text(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.restore_text(text) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.forget_vectors(
    index_version integer,
    chunk_keys    bigint[]
)
RETURNS integer  -- chunks that lost their vector, those with the same text included
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_count integer;
BEGIN
    PERFORM trecho._passage_prefix(forget_vectors.index_version);  -- TR001
    UPDATE trecho.chunks AS c SET embedding = NULL
     WHERE c.index_version = forget_vectors.index_version AND c.embedding IS NOT NULL
       AND c.text_hash IN (SELECT k.text_hash FROM trecho.chunks AS k
                            WHERE k.index_version = forget_vectors.index_version AND k.chunk_key = ANY (forget_vectors.chunk_keys));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    PERFORM trecho._notify_embedding();
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho.forget_vectors(integer, bigint[]) IS
    'Take the vectors of some chunks away, so that a worker makes them again; until then they are found by words. Returns how many. Raises TR001 for an unknown version.';
REVOKE ALL ON FUNCTION trecho.forget_vectors(integer, bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.forget_vectors(integer, bigint[]) TO trecho_operator;
