-- Documents: the one path on which placements change, and the direct SQL path of applications.

-- Placements of some documents become p_new: only rows that differ are written. What no longer stands is retired with its successor:
-- the placement that took over the chunk, else the anchor, else the position.
CREATE OR REPLACE FUNCTION trecho._replace_placements(
    p_index_version integer,
    p_document_ids  bigint[],
    p_new           trecho.new_placement[],
    p_pass_id       bigint
)
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
-- An array is taken for ten rows, and every old placement would be compared with every new one: these joins are to be hashed.
SET enable_nestloop = off
AS $function$
DECLARE
    v_count integer;
    v_rows  integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT p.* FROM trecho.placements AS p WHERE p.index_version = p_index_version AND p.document_id = ANY (p_document_ids)
    ), new AS MATERIALIZED (
        SELECT n.* FROM unnest(p_new) AS n
    ), gone AS (
        SELECT o.* FROM old AS o
         WHERE NOT EXISTS (SELECT FROM new AS n WHERE n.document_id = o.document_id AND n.chunk_id = o.chunk_id)
    )
    INSERT INTO trecho.retired_chunks (index_version, chunk_id, project, branch, chunk_key, successor, pass_id)
    SELECT DISTINCT ON (g.document_id, g.chunk_id) p_index_version, g.chunk_id, g.project, g.branch, g.chunk_key, n.chunk_id, p_pass_id
      FROM gone AS g
      LEFT JOIN new AS n ON n.document_id = g.document_id
                        AND (n.chunk_key = g.chunk_key OR n.anchor = g.anchor OR n.ordinal = g.ordinal)
     ORDER BY g.document_id, g.chunk_id, n.chunk_key = g.chunk_key DESC NULLS LAST, n.anchor = g.anchor DESC NULLS LAST,
              abs(n.ordinal - g.ordinal), n.ordinal;

    DELETE FROM trecho.placements AS p
     WHERE p.index_version = p_index_version AND p.document_id = ANY (p_document_ids)
       AND NOT EXISTS (SELECT FROM unnest(p_new) AS n WHERE n.document_id = p.document_id AND n.ordinal = p.ordinal);
    GET DIAGNOSTICS v_count = ROW_COUNT;

    -- The leaf is named because the keys are on the leaves, which ON CONFLICT must infer.
    EXECUTE format($sql$
        INSERT INTO trecho.%I AS p (index_version, document_id, ordinal, chunk_key, project, branch, chunk_id, anchor, start_line, end_line)
        SELECT $1, n.document_id, n.ordinal, n.chunk_key, d.project, d.branch, n.chunk_id, n.anchor, n.start_line, n.end_line
          FROM unnest($2) AS n
          JOIN (SELECT o.* FROM trecho.documents AS o WHERE o.document_id = ANY ($3) OFFSET 0) AS d ON d.document_id = n.document_id
         ORDER BY n.document_id, n.ordinal
        ON CONFLICT (document_id, ordinal) DO UPDATE
           SET chunk_key = excluded.chunk_key, chunk_id = excluded.chunk_id, anchor = excluded.anchor,
               start_line = excluded.start_line, end_line = excluded.end_line
         WHERE (p.chunk_key, p.chunk_id, p.anchor, p.start_line, p.end_line)
               IS DISTINCT FROM (excluded.chunk_key, excluded.chunk_id, excluded.anchor, excluded.start_line, excluded.end_line)
        $sql$, 'placements_' || p_index_version)
    USING p_index_version, p_new, p_document_ids;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_count + v_rows;
END
$function$;
COMMENT ON FUNCTION trecho._replace_placements(integer, bigint[], trecho.new_placement[], bigint) IS
    'Make the placements of some documents in one version equal to p_new. Returns rows written.';
REVOKE ALL ON FUNCTION trecho._replace_placements(integer, bigint[], trecho.new_placement[], bigint) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._anchor(p_doc_id text, p_anchor_path text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
-- No SET clause, so that it is inlined; every name is qualified.
AS $function$
    SELECT CASE WHEN p_anchor_path = '' THEN p_doc_id ELSE p_doc_id OPERATOR(pg_catalog.||) '#' OPERATOR(pg_catalog.||) p_anchor_path END
$function$;
COMMENT ON FUNCTION trecho._anchor(text, text) IS 'doc_id#anchor_path, or doc_id alone where the path is empty.';
REVOKE ALL ON FUNCTION trecho._anchor(text, text) FROM PUBLIC;

-- A claimed id is kept. A derived one (an ADR number) is kept while nobody else wants it, else each derived claimant goes by its source.
CREATE OR REPLACE FUNCTION trecho._settle_doc_ids(p_project text, p_branch text, p_wanted text[])
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_changed record;
    v_version integer;
    v_ids     bigint[];
    v_old     text[];
    v_settled text[];
BEGIN
    SELECT array_agg(s.document_id), array_agg(s.doc_id), array_agg(s.settled_id) INTO v_ids, v_old, v_settled
      FROM (SELECT d.document_id, d.doc_id,
                   CASE WHEN d.doc_id_claimed OR count(*) OVER (PARTITION BY d.wanted_doc_id) = 1 THEN d.wanted_doc_id ELSE d.source END AS settled_id
              FROM trecho.documents AS d
             WHERE d.project = p_project AND d.branch = p_branch AND d.wanted_doc_id = ANY (p_wanted)) AS s
     WHERE s.doc_id <> s.settled_id;
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE trecho.documents AS d SET doc_id = u.settled_id, revision = nextval('trecho.revision_seq')
      FROM unnest(v_ids, v_settled) AS u (document_id, settled_id)
     WHERE d.document_id = u.document_id;
    -- Those that stand already carry the old id in their placements.
    FOR v_changed IN
        SELECT DISTINCT u.document_id, u.old_id, u.settled_id
          FROM unnest(v_ids, v_old, v_settled) AS u (document_id, old_id, settled_id)
          JOIN trecho.indexed_documents AS i ON i.document_id = u.document_id
         ORDER BY u.document_id
    LOOP
        FOR v_version IN SELECT v.index_version FROM trecho.index_versions AS v LOOP
            PERFORM trecho._replace_placements(v_version, ARRAY[v_changed.document_id],
                ARRAY(SELECT ROW(p.document_id, p.ordinal, p.chunk_key,
                                 v_changed.settled_id || substr(p.chunk_id, length(v_changed.old_id) + 1),
                                 v_changed.settled_id || substr(p.anchor, length(v_changed.old_id) + 1),
                                 p.start_line, p.end_line)::trecho.new_placement
                        FROM trecho.placements AS p
                       WHERE p.index_version = v_version AND p.document_id = v_changed.document_id), NULL);
        END LOOP;
    END LOOP;
    RETURN cardinality(v_ids);
END
$function$;
COMMENT ON FUNCTION trecho._settle_doc_ids(text, text, text[]) IS
    'Give every document of a branch that wants one of these ids its final doc_id. Returns how many changed.';
REVOKE ALL ON FUNCTION trecho._settle_doc_ids(text, text, text[]) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._check_doc_id(p_doc_id text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF octet_length(p_doc_id) > 1000 THEN
        RAISE EXCEPTION 'doc_id has % bytes, at most 1000 can be indexed', octet_length(p_doc_id)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the document a shorter id.';
    END IF;
END
$function$;
COMMENT ON FUNCTION trecho._check_doc_id(text) IS 'Raises 22023 for an identity that no index can hold.';
REVOKE ALL ON FUNCTION trecho._check_doc_id(text) FROM PUBLIC;

-- Taken before any row of documents, by whoever gives an id that is not the source: two transactions that want one id decide in turn.
-- 64 locks per branch, so that a pass over many documents does not fill the lock table.
CREATE OR REPLACE FUNCTION trecho._lock_doc_ids(p_project text, p_branch text, p_wanted text[])
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_bucket integer;
BEGIN
    FOR v_bucket IN SELECT DISTINCT hashtext(w) & 63 AS bucket FROM unnest(p_wanted) AS w ORDER BY bucket LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(concat_ws(E'\x01', 'trecho.doc_id', p_project, p_branch), v_bucket));
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho._lock_doc_ids(text, text, text[]) IS 'Serialise, until the end of the transaction, those who want one of these ids in a branch.';
REVOKE ALL ON FUNCTION trecho._lock_doc_ids(text, text, text[]) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._store_blob(p_content text)
RETURNS bytea
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_bytes bytea := convert_to(p_content, 'UTF8');
    v_sha   bytea := sha256(v_bytes);
BEGIN
    INSERT INTO trecho.blobs (blob_sha, content, byte_count) VALUES (v_sha, p_content, length(v_bytes)) ON CONFLICT (blob_sha) DO NOTHING;
    RETURN v_sha;
END
$function$;
COMMENT ON FUNCTION trecho._store_blob(text) IS 'Keep a text under the SHA-256 of its UTF-8 bytes, which is returned.';
REVOKE ALL ON FUNCTION trecho._store_blob(text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._check_place(p_scope trecho.chunk_scope, p_project text, p_branch text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_null  text := CASE WHEN p_scope IS NULL THEN 'scope' WHEN p_project IS NULL THEN 'project' WHEN p_branch IS NULL THEN 'branch' END;
    v_empty text := CASE WHEN p_project = '' THEN 'project' WHEN p_branch = '' THEN 'branch' END;
BEGIN
    IF v_null IS NOT NULL THEN
        RAISE EXCEPTION '% must not be NULL', v_null
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = CASE v_null WHEN 'scope' THEN 'Pass docs, adr, session or code.' ELSE format('Leave %s out to use its default.', v_null) END;
    END IF;
    IF v_empty IS NOT NULL THEN
        RAISE EXCEPTION '% must not be empty', v_empty
            USING ERRCODE = 'invalid_parameter_value', HINT = format('Leave %s out to use its default.', v_empty);
    END IF;
END
$function$;
COMMENT ON FUNCTION trecho._check_place(trecho.chunk_scope, text, text) IS 'Raises 22004 and names the argument that is NULL, 22023 for one that is empty.';
REVOKE ALL ON FUNCTION trecho._check_place(trecho.chunk_scope, text, text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.put_document(
    scope       trecho.chunk_scope,
    content     text,
    source_path text DEFAULT NULL,    -- required unless scope is session
    session_id  uuid DEFAULT NULL,    -- required for scope session
    project     text DEFAULT 'default',
    branch      text DEFAULT 'main',
    doc_id      text DEFAULT NULL,    -- NULL: front matter id, ADR number, session or path
    title       text DEFAULT NULL,    -- NULL: front matter title, first heading or file name
    metadata    jsonb DEFAULT '{}',   -- merged over the front matter
    client_description jsonb DEFAULT NULL,  -- only where the server has no chunkers: what trecho.describe would give
    client_chunks      jsonb DEFAULT NULL   -- with client_description: index_version -> array of chunks, each with digest
)
RETURNS TABLE (document_id bigint, chunks integer, pending_embeddings integer)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_active   integer := trecho._hold_versions();
    v_versions integer[] := trecho._write_versions();
    v_path     text;
    v_about    record;
    v_doc      trecho.documents;
    v_old      trecho.documents;
    v_other    text;
    v_version  integer;
    v_cuts     trecho.cut_chunk[];
    v_new      trecho.new_placement[];
BEGIN
    IF put_document.content IS NULL THEN
        RAISE EXCEPTION 'content must not be NULL'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'To take a document away, call trecho.remove_document.';
    END IF;
    PERFORM trecho._check_place(put_document.scope, put_document.project, put_document.branch);
    IF put_document.doc_id = '' THEN
        RAISE EXCEPTION 'doc_id must not be empty'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out to use the id the document has by itself.';
    END IF;
    IF (put_document.scope = 'session') <> (put_document.session_id IS NOT NULL)
       OR (put_document.scope <> 'session') <> (coalesce(put_document.source_path, '') <> '') THEN
        RAISE EXCEPTION 'scope % with source_path % and session_id %', put_document.scope,
                        coalesce(quote_literal(put_document.source_path), 'NULL'), coalesce(put_document.session_id::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Scope session takes session_id and no source_path; every other scope takes source_path and no session_id.';
    END IF;
    IF jsonb_typeof(coalesce(put_document.metadata, '{}')) <> 'object' THEN
        RAISE EXCEPTION 'metadata must be a JSON object, got %', jsonb_typeof(put_document.metadata)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write it as {"name": value}, or leave it out.';
    END IF;

    v_path := coalesce(put_document.source_path, put_document.metadata ->> 'origin', put_document.session_id || '.jsonl');
    IF put_document.client_description IS NULL THEN
        IF to_regprocedure('trecho.describe(text, text, text, text)') IS NULL THEN
            RAISE EXCEPTION 'this server has no chunkers (plpython3u is not set up)'
                USING ERRCODE = 'TR010', HINT = 'Use the trecho command with --chunking client, or give client_description and client_chunks.';
        END IF;
        SELECT a.title, a.doc_id, a.doc_id_claimed, a.language, a.metadata INTO v_about
          FROM trecho.describe(v_path, put_document.content, put_document.scope::text, put_document.project) AS a;
    ELSE
        IF NOT coalesce(put_document.client_chunks ? v_active::text, false) THEN
            RAISE EXCEPTION 'client_chunks has nothing for index version %, which searches read', v_active
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Give an object: number of each version of trecho.list_versions() that is not retired -> array of its chunks.';
        END IF;
        SELECT a.title, a.doc_id, coalesce(a.doc_id_claimed, false) AS doc_id_claimed, a.language, coalesce(a.metadata, '{}') AS metadata INTO v_about
          FROM jsonb_to_record(put_document.client_description) AS a (title text, doc_id text, doc_id_claimed boolean, language text, metadata jsonb);
    END IF;
    IF put_document.scope = 'session' AND NOT v_about.doc_id_claimed THEN
        v_about.doc_id := put_document.session_id::text;
    END IF;

    PERFORM trecho._check_doc_id(coalesce(put_document.doc_id, v_about.doc_id));
    PERFORM trecho._check_doc_id(put_document.source_path);
    IF coalesce(put_document.doc_id, v_about.doc_id) <> coalesce(put_document.source_path, put_document.session_id::text) THEN
        PERFORM trecho._lock_doc_ids(put_document.project, put_document.branch, ARRAY[coalesce(put_document.doc_id, v_about.doc_id)]);
    END IF;
    SELECT d.* INTO v_old FROM trecho.documents AS d
     WHERE d.project = put_document.project AND d.branch = put_document.branch
       AND d.source = coalesce(put_document.source_path, put_document.session_id::text)
       FOR UPDATE;
    INSERT INTO trecho.documents AS d (project, branch, scope, source_path, session_id, doc_id, wanted_doc_id, doc_id_claimed, title, language, metadata, blob_sha)
    SELECT put_document.project, put_document.branch, put_document.scope, put_document.source_path, put_document.session_id,
           -- Settled below; the source is free for sure, since no other document has it.
           coalesce(put_document.source_path, put_document.session_id::text),
           coalesce(put_document.doc_id, v_about.doc_id), put_document.doc_id IS NOT NULL OR v_about.doc_id_claimed,
           coalesce(put_document.title, v_about.title), v_about.language, v_about.metadata || coalesce(put_document.metadata, '{}'),
           trecho._store_blob(put_document.content)
    ON CONFLICT ON CONSTRAINT documents_source_key DO UPDATE
       SET scope = excluded.scope, source_path = excluded.source_path, session_id = excluded.session_id, wanted_doc_id = excluded.wanted_doc_id,
           doc_id_claimed = excluded.doc_id_claimed, title = excluded.title, language = excluded.language, metadata = excluded.metadata,
           blob_sha = excluded.blob_sha, diverged = d.source_set <> '', revision = nextval('trecho.revision_seq'), updated_at = now()
    RETURNING d.* INTO v_doc;

    SELECT d.source INTO v_other FROM trecho.documents AS d
     WHERE v_doc.doc_id_claimed AND d.project = v_doc.project AND d.branch = v_doc.branch AND d.document_id <> v_doc.document_id
       AND ((d.wanted_doc_id = v_doc.wanted_doc_id AND d.doc_id_claimed) OR d.source = v_doc.wanted_doc_id)
        OR (d.project = v_doc.project AND d.branch = v_doc.branch AND d.document_id <> v_doc.document_id
            AND d.doc_id_claimed AND d.wanted_doc_id = v_doc.source)
     LIMIT 1;
    IF v_other IS NOT NULL THEN
        RAISE EXCEPTION 'doc_id % of % is also claimed by %', v_doc.wanted_doc_id, v_doc.source, v_other
            USING ERRCODE = 'TR007', HINT = 'Give one of the two documents another id in its front matter, or another doc_id argument.';
    END IF;
    PERFORM trecho._settle_doc_ids(v_doc.project, v_doc.branch, ARRAY[v_doc.wanted_doc_id, coalesce(v_old.wanted_doc_id, v_doc.wanted_doc_id)]);
    SELECT d.doc_id INTO v_doc.doc_id FROM trecho.documents AS d WHERE d.document_id = v_doc.document_id;

    FOREACH v_version IN ARRAY v_versions LOOP
        -- A version that came into being after the client cut the text fills it from its text.
        CONTINUE WHEN put_document.client_description IS NOT NULL AND NOT put_document.client_chunks ? v_version::text;
        v_cuts := trecho._cut_document(v_version, v_doc.scope, v_doc.source_path, v_doc.session_id, v_path, v_doc.language, put_document.content,
                                       CASE WHEN put_document.client_description IS NOT NULL THEN put_document.client_chunks -> v_version::text END);
        PERFORM trecho._store_chunks(v_version, v_doc.project, v_cuts);
        SELECT coalesce(array_agg(ROW(v_doc.document_id, u.ordinal, c.chunk_key, v_doc.doc_id || ':' || u.ordinal || ':' || u.digest,
                             trecho._anchor(v_doc.doc_id, u.anchor_path), u.start_line, u.end_line)::trecho.new_placement), '{}')
          INTO v_new
          FROM unnest(v_cuts) AS u
          JOIN trecho.chunks AS c ON c.index_version = v_version AND c.project = v_doc.project AND c.scope = u.scope
                                 AND c.content_hash = u.content_hash AND c.text_hash = u.text_hash;
        PERFORM trecho._replace_placements(v_version, ARRAY[v_doc.document_id], v_new, NULL);
        INSERT INTO trecho.indexed_documents AS i (index_version, document_id, blob_sha, chunk_count)
        VALUES (v_version, v_doc.document_id, v_doc.blob_sha, coalesce(array_length(v_cuts, 1), 0))
        ON CONFLICT ON CONSTRAINT indexed_documents_pkey DO UPDATE SET blob_sha = excluded.blob_sha, chunk_count = excluded.chunk_count;
    END LOOP;

    SELECT v_doc.document_id, count(*)::integer, (count(*) FILTER (WHERE c.embedding IS NULL))::integer
      INTO put_document.document_id, put_document.chunks, put_document.pending_embeddings
      FROM trecho.placements AS p
      JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key
     WHERE p.index_version = v_active AND p.document_id = v_doc.document_id;
    IF put_document.pending_embeddings > 0 THEN
        PERFORM trecho._notify_embedding();
    END IF;
    RETURN NEXT;
END
$function$;
COMMENT ON FUNCTION trecho.put_document(trecho.chunk_scope, text, text, uuid, text, text, text, text, jsonb, jsonb, jsonb) IS
    'Insert or replace one document: chunked and searchable by words in this transaction, its vectors follow from a worker. Returns document_id, chunks and how many of them wait for a vector. Raises 22004 for NULL scope or content, 22023 for a wrong source, TR007 when another document claims the doc_id, TR008 when the text cannot be chunked, TR010 when the server has no chunkers.';
REVOKE ALL ON FUNCTION trecho.put_document(trecho.chunk_scope, text, text, uuid, text, text, text, text, jsonb, jsonb, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.put_document(trecho.chunk_scope, text, text, uuid, text, text, text, text, jsonb, jsonb, jsonb) TO trecho_writer;

-- Every version loses them at once, a retired one too: what was removed must not be found through an old version.
CREATE OR REPLACE FUNCTION trecho._remove_documents(p_document_ids bigint[], p_pass_id bigint)
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_version integer;
    v_count   integer := 0;
    v_key     record;
BEGIN
    FOR v_version IN SELECT v.index_version FROM trecho.index_versions AS v LOOP
        v_count := v_count + trecho._replace_placements(v_version, p_document_ids, '{}', p_pass_id);
    END LOOP;
    DELETE FROM trecho.indexed_documents AS i WHERE i.document_id = ANY (p_document_ids);
    FOR v_key IN
        WITH gone AS (
            DELETE FROM trecho.documents AS d WHERE d.document_id = ANY (p_document_ids) RETURNING d.*
        ), buried AS (
            INSERT INTO trecho.tombstones (project, branch, source_set, scope, source, doc_id, blob_sha, pass_id)
            SELECT g.project, g.branch, g.source_set, g.scope, g.source, g.doc_id, g.blob_sha, p_pass_id FROM gone AS g
        )
        SELECT g.project, g.branch, array_agg(DISTINCT g.wanted_doc_id) AS wanted FROM gone AS g GROUP BY g.project, g.branch
    LOOP
        PERFORM trecho._settle_doc_ids(v_key.project, v_key.branch, v_key.wanted);
    END LOOP;
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho._remove_documents(bigint[], bigint) IS 'Remove documents with their placements and leave tombstones. Returns placements written.';
REVOKE ALL ON FUNCTION trecho._remove_documents(bigint[], bigint) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.remove_document(
    scope       trecho.chunk_scope,
    source_path text DEFAULT NULL,
    session_id  uuid DEFAULT NULL,
    project     text DEFAULT 'default',
    branch      text DEFAULT 'main'
)
RETURNS boolean  -- false when there was no such document
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_id bigint;
BEGIN
    PERFORM trecho._check_place(remove_document.scope, remove_document.project, remove_document.branch);
    IF coalesce(remove_document.source_path, remove_document.session_id::text) IS NULL THEN
        RAISE EXCEPTION 'source_path and session_id are both NULL'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass the session_id of a session, and the source_path of any other document.';
    END IF;
    SELECT d.document_id INTO v_id FROM trecho.documents AS d
     WHERE d.project = remove_document.project AND d.branch = remove_document.branch AND d.scope = remove_document.scope
       AND d.source = coalesce(remove_document.source_path, remove_document.session_id::text)
       FOR UPDATE;
    IF v_id IS NULL THEN
        RETURN false;
    END IF;
    PERFORM trecho._remove_documents(ARRAY[v_id], NULL);
    RETURN true;
END
$function$;
COMMENT ON FUNCTION trecho.remove_document(trecho.chunk_scope, text, uuid, text, text) IS
    'Remove one document; it is gone from every search when this transaction commits. Returns false when there was none.';
REVOKE ALL ON FUNCTION trecho.remove_document(trecho.chunk_scope, text, uuid, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.remove_document(trecho.chunk_scope, text, uuid, text, text) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.list_documents(
    project     text DEFAULT 'default',
    branch      text DEFAULT 'main',
    path_prefix text DEFAULT NULL,
    scopes      trecho.chunk_scope[] DEFAULT NULL,
    k           integer DEFAULT 1000,
    skip        integer DEFAULT 0
)
RETURNS TABLE (doc_id text, scope trecho.chunk_scope, source_path text, session_id uuid, source_set text, title text, language text,
               metadata jsonb, chunk_count integer, byte_count integer, updated_at timestamptz)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
BEGIN
    PERFORM trecho._require_read(list_documents.project);
    IF list_documents.k < 0 OR list_documents.skip < 0 THEN
        RAISE EXCEPTION 'k and skip must be zero or more, got % and %', list_documents.k, list_documents.skip
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave k out for the first 1000 documents, or pass NULL for all of them.';
    END IF;
    RETURN QUERY
    SELECT d.doc_id, d.scope, d.source_path, d.session_id, d.source_set, d.title, d.language, d.metadata, coalesce(i.chunk_count, 0), b.byte_count, d.updated_at
      FROM trecho.documents AS d
      JOIN trecho.blobs AS b ON b.blob_sha = d.blob_sha
      LEFT JOIN trecho.indexed_documents AS i ON i.document_id = d.document_id
            AND i.index_version = (SELECT s.active_version FROM trecho.index_state AS s)
     WHERE d.project = list_documents.project AND d.branch = list_documents.branch
       AND (list_documents.path_prefix IS NULL OR starts_with(d.path, list_documents.path_prefix))
       AND (list_documents.scopes IS NULL OR d.scope = ANY (list_documents.scopes))
     ORDER BY coalesce(d.path, d.source), d.document_id
     LIMIT list_documents.k OFFSET list_documents.skip;
END
$function$;
COMMENT ON FUNCTION trecho.list_documents(text, text, text, trecho.chunk_scope[], integer, integer) IS
    'Published documents of a branch in order of path; k rows after skip. Raises 42501 for a project the caller may not read.';
REVOKE ALL ON FUNCTION trecho.list_documents(text, text, text, trecho.chunk_scope[], integer, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.list_documents(text, text, text, trecho.chunk_scope[], integer, integer) TO trecho_reader;

CREATE OR REPLACE FUNCTION trecho.get_document(
    doc_id  text,
    project text DEFAULT 'default',
    branch  text DEFAULT 'main'
)
RETURNS TABLE (scope trecho.chunk_scope, source_path text, session_id uuid, title text, language text, metadata jsonb,
               content text, chunk_count integer, updated_at timestamptz)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
BEGIN
    PERFORM trecho._require_read(get_document.project);
    RETURN QUERY
    SELECT d.scope, d.source_path, d.session_id, d.title, d.language, d.metadata, b.content, coalesce(i.chunk_count, 0), d.updated_at
      FROM trecho.documents AS d
      JOIN trecho.blobs AS b ON b.blob_sha = d.blob_sha
      LEFT JOIN trecho.indexed_documents AS i ON i.document_id = d.document_id
            AND i.index_version = (SELECT s.active_version FROM trecho.index_state AS s)
     WHERE d.project = get_document.project AND d.branch = get_document.branch AND d.doc_id = get_document.doc_id;
END
$function$;
COMMENT ON FUNCTION trecho.get_document(text, text, text) IS
    'One published document with its whole text, by doc_id; no row when there is none. Raises 42501 for a project the caller may not read.';
REVOKE ALL ON FUNCTION trecho.get_document(text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.get_document(text, text, text) TO trecho_reader;
