-- Is what is stored what it says it is? Every hash, count, placement, index and statistic is computed anew and compared, and mended on request.
--
-- Each check is a query of trecho._index_checks that yields what is wrong as (key, example). trecho.check_index counts them, trecho.repair_index
-- takes their keys: what is found and what is mended cannot differ. A check reads its rows once, as a stream, so memory does not grow with them.

CREATE OR REPLACE FUNCTION trecho._wanted_indexes(p_index_version integer)
RETURNS TABLE (table_name text, index_name text, method text, ddl text)
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    -- As trecho._create_partitions makes them; a test compares the two. No ddl: trecho._create_search_indexes makes it.
    SELECT w.prefix || p_index_version, w.prefix || p_index_version || w.suffix, w.method,
           replace(replace(w.ddl, '{table}', w.prefix || p_index_version), '{index}', w.prefix || p_index_version || w.suffix)
      FROM (VALUES ('chunks_', '_pkey', 'btree', 'ALTER TABLE trecho.{table} ADD CONSTRAINT {index} PRIMARY KEY (chunk_key)'),
                   ('chunks_', '_identity', 'btree', 'CREATE UNIQUE INDEX {index} ON trecho.{table} (content_hash, text_hash, project, scope)'),
                   ('chunks_', '_text', 'btree', 'CREATE INDEX {index} ON trecho.{table} (text_hash)'),
                   ('chunks_', '_pending', 'btree', 'CREATE INDEX {index} ON trecho.{table} (text_hash) WHERE embedding IS NULL'),
                   ('chunks_', '_words', 'gin', NULL),
                   ('chunks_', '_vectors', 'hnsw', NULL),
                   ('placements_', '_pkey', 'btree', 'ALTER TABLE trecho.{table} ADD CONSTRAINT {index} PRIMARY KEY (document_id, ordinal)'),
                   ('placements_', '_chunk', 'btree', 'CREATE INDEX {index} ON trecho.{table} (chunk_key)'),
                   ('placements_', '_id', 'btree', 'CREATE INDEX {index} ON trecho.{table} (chunk_id)')) AS w (prefix, suffix, method, ddl)
$function$;
COMMENT ON FUNCTION trecho._wanted_indexes(integer) IS 'Every index that the partitions of a version must have, and how to make it.';
REVOKE ALL ON FUNCTION trecho._wanted_indexes(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._attached(p_index_version integer)
RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT count(*) = 2
      FROM pg_inherits AS i
     WHERE NOT i.inhdetachpending
       AND ((i.inhparent = 'trecho.chunks'::regclass AND i.inhrelid = to_regclass('trecho.chunks_' || p_index_version))
            OR (i.inhparent = 'trecho.placements'::regclass AND i.inhrelid = to_regclass('trecho.placements_' || p_index_version)))
$function$;
COMMENT ON FUNCTION trecho._attached(integer) IS 'True when both partitions of a version are there and attached.';
REVOKE ALL ON FUNCTION trecho._attached(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._has_chunkers()
RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT to_regprocedure('trecho._cut(text, text, jsonb, text)') IS NOT NULL
$function$;
COMMENT ON FUNCTION trecho._has_chunkers() IS 'True when this server can cut documents itself.';
REVOKE ALL ON FUNCTION trecho._has_chunkers() FROM PUBLIC;

-- What a document would be in a version if it were cut now from its stored text. A text that is damaged itself says nothing about its chunks.
CREATE OR REPLACE FUNCTION trecho._recut_differs(p_index_version integer, p_document_id bigint)
RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_doc  record;
    v_cuts trecho.cut_chunk[];
BEGIN
    SELECT d.scope, d.source_path, d.session_id, d.source, d.doc_id, d.language, b.content,
           coalesce(d.source_path, d.metadata ->> 'origin', d.session_id || '.jsonl') AS path INTO v_doc
      FROM trecho.documents AS d JOIN trecho.blobs AS b ON b.blob_sha = d.blob_sha
     WHERE d.document_id = p_document_id AND sha256(convert_to(b.content, 'UTF8')) = b.blob_sha;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    BEGIN
        v_cuts := trecho._cut_document(p_index_version, v_doc.scope, v_doc.source_path, v_doc.session_id, v_doc.path, v_doc.language, v_doc.content, NULL);
    EXCEPTION WHEN SQLSTATE 'TR008' THEN
        RAISE WARNING '% was not compared: %', v_doc.source, regexp_replace(SQLERRM, '^plpy\.Error: ', '');
        RETURN false;
    END;
    RETURN EXISTS (
        SELECT FROM (SELECT u.ordinal, u.content_hash, u.text_hash, v_doc.doc_id || ':' || u.ordinal || ':' || u.digest AS chunk_id,
                            trecho._anchor(v_doc.doc_id, u.anchor_path) AS anchor, u.start_line, u.end_line
                       FROM unnest(v_cuts) AS u) AS n
          FULL JOIN (SELECT p.ordinal, c.content_hash, c.text_hash, p.chunk_id, p.anchor, p.start_line, p.end_line
                       FROM trecho.placements AS p
                       LEFT JOIN trecho.chunks AS c ON c.index_version = p.index_version AND c.chunk_key = p.chunk_key
                      WHERE p.index_version = p_index_version AND p.document_id = p_document_id) AS o ON o.ordinal = n.ordinal
         WHERE (n.ordinal, n.content_hash, n.text_hash, n.chunk_id, n.anchor, n.start_line, n.end_line)
               IS DISTINCT FROM (o.ordinal, o.content_hash, o.text_hash, o.chunk_id, o.anchor, o.start_line, o.end_line));
END
$function$;
COMMENT ON FUNCTION trecho._recut_differs(integer, bigint) IS
    'True when cutting the stored text of a document anew gives other passages than a version holds. False for a text that is damaged, or that cannot be cut (a warning says so).';
REVOKE ALL ON FUNCTION trecho._recut_differs(integer, bigint) FROM PUBLIC;

-- $1 is the version (NULL in checks of the whole database), $2 the project (NULL: all). Each query yields (key, example): the key is what action
-- works on, a chunk_key, document_id or pass_id; the example is made from it where the query gives none.
CREATE OR REPLACE FUNCTION trecho._index_checks(p_index_version integer)
RETURNS TABLE (n integer, check_name text, severity text, thorough boolean, key_of text, action text, query text, repair text)
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_expression text;
    v_sample     text := '';
    v_rows       real;
    v_holder     text;
BEGIN
    IF p_index_version IS NULL THEN
        RETURN QUERY SELECT c.* FROM (VALUES
        (10, 'partitions', 'damage', false, 'text', 'attach', $q$
            SELECT v.index_version::bigint, t.name || CASE WHEN to_regclass('trecho.' || t.name) IS NULL THEN ' is missing' ELSE ' is not attached' END
              FROM trecho.index_versions AS v
             CROSS JOIN LATERAL (VALUES ('chunks', 'chunks_' || v.index_version), ('placements', 'placements_' || v.index_version)) AS t (parent, name)
             WHERE NOT EXISTS (SELECT FROM pg_inherits AS i
                                WHERE i.inhparent = ('trecho.' || t.parent)::regclass AND i.inhrelid = to_regclass('trecho.' || t.name) AND NOT i.inhdetachpending)
         $q$, 'attach it again; one that is missing comes back from a backup, or trecho sync --full builds another version'),
        (12, 'other indexes', 'damage', false, 'text', 'reindex', $q$
            SELECT i.indexrelid::bigint, format('%s is not valid', i.indexrelid::regclass)
              FROM pg_index AS i
              JOIN pg_class AS t ON t.oid = i.indrelid
              JOIN pg_namespace AS s ON s.oid = t.relnamespace AND s.nspname = 'trecho'
             WHERE NOT (i.indisvalid AND i.indisready AND i.indislive) AND t.relname !~ '^(chunks|placements)_[0-9]+$'
         $q$, 'REINDEX INDEX'),
        (20, 'texts', 'damage', true, 'document', '', $q$
            SELECT d.document_id, NULL::text
              FROM trecho.documents AS d JOIN trecho.blobs AS b ON b.blob_sha = d.blob_sha
             WHERE ($2 IS NULL OR d.project = $2)
               AND (sha256(convert_to(b.content, 'UTF8')) <> b.blob_sha OR b.byte_count <> octet_length(b.content))
         $q$, 'trecho doctor --repair takes the text from its source; what applications put: SELECT trecho.restore_text(the text), or restore a backup'),
        (22, 'doc_ids', 'damage', false, 'document', 'settle', $q$
            SELECT s.document_id, NULL::text
              FROM (SELECT d.document_id, d.doc_id, CASE WHEN d.doc_id_claimed OR count(*) OVER (PARTITION BY d.project, d.branch, d.wanted_doc_id) = 1
                                                         THEN d.wanted_doc_id ELSE d.source END AS settled_id
                      FROM trecho.documents AS d WHERE $2 IS NULL OR d.project = $2) AS s
             WHERE s.doc_id <> s.settled_id
         $q$, 'give the documents the doc_id that the rule for clashes gives'),
        (80, 'passes', 'leftover', false, 'text', 'passes', $q$
            SELECT p.pass_id, format('pass %s over %s (%s), %s', p.pass_id, p.project, p.source_set,
                                     CASE p.outcome WHEN 'running' THEN 'its connection is gone' ELSE 'ended, its staged documents are still there' END)
              FROM trecho.passes AS p
             WHERE ($2 IS NULL OR p.project = $2)
               AND CASE p.outcome WHEN 'running' THEN trecho._pass_lock_holder(p.project) IS DISTINCT FROM p.backend_pid
                        ELSE EXISTS (SELECT FROM trecho.staged_documents AS s WHERE s.pass_id = p.pass_id) END
         $q$, 'record dead passes as abandoned and drop what they staged (the next pass does so too); their vectors stay'),
        (82, 'leases', 'leftover', false, 'text', 'leases', $q$
            SELECT NULL::bigint, format('worker %s, pid %s', a.leased_by, a.lease_pid)
              FROM trecho.embedding_attempts AS a
             WHERE a.leased_by IS NOT NULL AND NOT EXISTS (SELECT FROM pg_stat_activity AS s WHERE s.pid = a.lease_pid)
         $q$, 'free the texts of workers that are gone (the next worker does so too)'),
        (84, 'unused texts', 'leftover', false, 'text', 'gc', $q$
            SELECT NULL::bigint, encode(b.blob_sha, 'hex') FROM trecho.blobs AS b
             WHERE $2 IS NULL AND b.created_at < now() - trecho._grace()
               AND NOT EXISTS (SELECT FROM trecho.documents AS d WHERE d.blob_sha = b.blob_sha)
               AND NOT EXISTS (SELECT FROM trecho.staged_documents AS s WHERE s.blob_sha = b.blob_sha)
               AND NOT EXISTS (SELECT FROM trecho.tombstones AS t WHERE t.blob_sha = b.blob_sha AND t.removed_at >= now() - trecho._grace())
         $q$, 'SELECT trecho.gc()')
        ) AS c (n, check_name, severity, thorough, key_of, action, query, repair);
        RETURN;
    END IF;

    SELECT pg_get_expr(e.adbin, e.adrelid) INTO v_expression
      FROM pg_attrdef AS e JOIN pg_attribute AS a ON a.attrelid = e.adrelid AND a.attnum = e.adnum
     WHERE e.adrelid = to_regclass('trecho.chunks_' || p_index_version) AND a.attname = 'search_vector';
    SELECT c.reltuples INTO v_rows FROM pg_class AS c WHERE c.oid = to_regclass('trecho.chunks_' || p_index_version);
    IF v_rows > 30000 THEN
        v_sample := format('TABLESAMPLE SYSTEM (%s) REPEATABLE (1)', 100 * 30000 / v_rows);
    END IF;
    RETURN QUERY SELECT c.n, c.check_name, c.severity, c.thorough, c.key_of, c.action,
                        replace(replace(replace(c.query, '{version}', p_index_version::text), '{expression}', v_expression), '{sample}', v_sample), c.repair
      FROM (VALUES
        (11, 'indexes', 'damage', false, 'text', 'indexes', $q$
            SELECT NULL::bigint, w.index_name || CASE WHEN i.indexrelid IS NULL THEN ' is missing' ELSE ' is not valid' END
              FROM trecho._wanted_indexes({version}) AS w
              LEFT JOIN (pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam)
                ON i.indrelid = to_regclass('trecho.' || w.table_name) AND c.relname = w.index_name AND m.amname = w.method
             WHERE (i.indexrelid IS NULL OR NOT (i.indisvalid AND i.indisready AND i.indislive))
               -- A first load has dropped them and builds them at its end, and so does the build of a version.
               AND NOT (i.indexrelid IS NULL AND w.method IN ('gin', 'hnsw')
                        AND EXISTS (SELECT FROM trecho.index_versions AS v WHERE v.index_version = {version} AND v.state = 'building'))
               AND NOT (i.indexrelid IS NULL AND w.method IN ('gin', 'hnsw') AND NOT EXISTS (SELECT FROM trecho.placements_{version})
                        AND EXISTS (SELECT FROM trecho.passes AS p WHERE p.outcome = 'running' AND trecho._pass_lock_holder(p.project) = p.backend_pid))
         $q$, 'REINDEX INDEX CONCURRENTLY by a member of trecho_owner (trecho doctor does it); trecho.repair_index builds it while writers wait'),
        (30, 'content_hash', 'damage', true, 'chunk', 'rewrite', $q$
            SELECT c.chunk_key, NULL::text FROM trecho.chunks_{version} AS c
             WHERE ($2 IS NULL OR c.project = $2) AND c.content_hash <> trecho.content_hash(coalesce(c.source_path, c.session_id::text), c.symbol, c.content)
         $q$, 'cut its documents again from their stored text; a vector that is still right is kept'),
        (31, 'text_hash', 'damage', true, 'chunk', 'rewrite', $q$
            SELECT c.chunk_key, NULL::text FROM trecho.chunks_{version} AS c
             WHERE ($2 IS NULL OR c.project = $2)
               AND c.text_hash <> sha256(convert_to(trecho._embedding_text(
                       (SELECT v.passage_prefix FROM trecho.index_versions AS v WHERE v.index_version = {version}), c.context, c.content), 'UTF8'))
         $q$, 'cut its documents again from their stored text; a vector that is still right is kept'),
        (32, 'search_vector', 'damage', true, 'chunk', 'recompute', $q$
            SELECT c.chunk_key, NULL::text FROM trecho.chunks_{version} AS c
             WHERE ($2 IS NULL OR c.project = $2) AND c.search_vector IS DISTINCT FROM {expression}
         $q$, 'compute the column again'),
        (33, 'vectors', 'damage', true, 'chunk', 'forget', $q$
            SELECT c.chunk_key, NULL::text FROM trecho.chunks_{version} AS c
             WHERE ($2 IS NULL OR c.project = $2) AND c.embedding IS NOT NULL
               AND (NOT @extschema:vector@.vector_norm(c.embedding) < 'infinity'
                    OR trecho._check_embedding(c.embedding, (SELECT v.dim FROM trecho.index_versions AS v WHERE v.index_version = {version})) IS NOT NULL)
         $q$, 'forget the vector; a worker (trecho embed) makes it again'),
        (34, 'quarantine', 'damage', false, 'chunk', 'quarantine', $q$
            SELECT c.chunk_key, NULL::text
              FROM trecho.chunks_{version} AS c
             WHERE ($2 IS NULL OR c.project = $2)
               AND (c.quarantined OR EXISTS (SELECT FROM trecho.quarantined_texts AS q WHERE q.released_at IS NULL))
               AND (c.quarantined <> trecho._is_held(c.context, c.content) OR (c.quarantined AND c.embedding IS NOT NULL))
         $q$, 'hide what is held back and take its vector; show what is not'),
        (40, 'placements without a document', 'damage', false, 'text', 'unplace', $q$
            SELECT DISTINCT p.document_id, p.chunk_id FROM trecho.placements_{version} AS p
             WHERE ($2 IS NULL OR p.project = $2) AND NOT EXISTS (SELECT FROM trecho.documents AS d WHERE d.document_id = p.document_id)
         $q$, 'remove them'),
        (41, 'placements without a chunk', 'damage', false, 'document', 'recut', $q$
            SELECT DISTINCT p.document_id, NULL::text FROM trecho.placements_{version} AS p
             WHERE ($2 IS NULL OR p.project = $2) AND NOT EXISTS (SELECT FROM trecho.chunks_{version} AS c WHERE c.chunk_key = p.chunk_key)
               AND EXISTS (SELECT FROM trecho.documents AS d WHERE d.document_id = p.document_id)
         $q$, 'cut the document again from its stored text'),
        (42, 'placements of another document', 'damage', false, 'document', 'recut', $q$
            SELECT DISTINCT d.document_id, NULL::text
              FROM trecho.placements_{version} AS p
              JOIN trecho.documents AS d ON d.document_id = p.document_id
              JOIN trecho.chunks_{version} AS c ON c.chunk_key = p.chunk_key
             WHERE ($2 IS NULL OR d.project = $2)
               AND ((p.project, p.branch) <> (d.project, d.branch) OR c.project <> d.project OR coalesce(c.source_path, c.session_id::text) <> d.source
                    OR NOT starts_with(p.chunk_id, d.doc_id || ':' || p.ordinal || ':')
                    OR NOT (p.anchor = d.doc_id OR starts_with(p.anchor, d.doc_id || '#')))
         $q$, 'cut the document again from its stored text'),
        (43, 'placement counts', 'damage', false, 'document', 'recut', $q$
            SELECT d.document_id, NULL::text
              FROM trecho.documents AS d
              LEFT JOIN trecho.indexed_documents AS i ON i.index_version = {version} AND i.document_id = d.document_id
              LEFT JOIN (SELECT p.document_id, count(*) AS placements, max(p.ordinal) AS last FROM trecho.placements_{version} AS p GROUP BY p.document_id) AS p
                ON p.document_id = d.document_id
             WHERE ($2 IS NULL OR d.project = $2) AND i.blob_sha = d.blob_sha
               AND (coalesce(p.placements, 0) <> i.chunk_count OR coalesce(p.last, 0) <> i.chunk_count)
         $q$, 'cut the document again from its stored text'),
        (44, 'missing documents', 'stale', false, 'document', 'recut', $q$
            SELECT d.document_id, NULL::text FROM trecho.documents AS d
             WHERE ($2 IS NULL OR d.project = $2)
               AND EXISTS (SELECT FROM trecho.index_versions AS v WHERE v.index_version = {version} AND v.state = 'active')
               AND NOT EXISTS (SELECT FROM trecho.indexed_documents AS i WHERE i.index_version = {version} AND i.document_id = d.document_id AND i.blob_sha = d.blob_sha)
         $q$, 'cut the document again from its stored text'),
        (45, 'indexed documents without a document', 'damage', false, 'text', 'unindex', $q$
            SELECT i.document_id, 'document ' || i.document_id FROM trecho.indexed_documents AS i
             WHERE i.index_version = {version} AND NOT EXISTS (SELECT FROM trecho.documents AS d WHERE d.document_id = i.document_id)
         $q$, 'remove them'),
        (46, 'passages', 'damage', true, 'document', 'recut', $q$
            SELECT d.document_id, NULL::text
              FROM trecho.documents AS d
              JOIN trecho.indexed_documents AS i ON i.index_version = {version} AND i.document_id = d.document_id AND i.blob_sha = d.blob_sha
             WHERE ($2 IS NULL OR d.project = $2) AND trecho._recut_differs({version}, d.document_id)
         $q$, 'cut the document again from its stored text'),
        (47, 'chunk ids', 'damage', true, 'document', 'recut', $q$
            SELECT DISTINCT d.document_id, NULL::text
              FROM trecho.placements_{version} AS p
              JOIN trecho.documents AS d ON d.document_id = p.document_id
              JOIN trecho.chunks_{version} AS c ON c.chunk_key = p.chunk_key
             WHERE ($2 IS NULL OR d.project = $2) AND p.chunk_id <> trecho.chunk_id(d.doc_id, p.ordinal, c.content)
         $q$, 'cut the document again from its stored text'),
        (50, 'vectors to apply', 'stale', false, 'text', 'apply', $q$
            SELECT NULL::bigint, encode(s.text_hash, 'hex') FROM trecho.staged_embeddings AS s
             WHERE s.index_version = {version}
               AND EXISTS (SELECT FROM trecho.chunks_{version} AS c WHERE c.text_hash = s.text_hash AND c.embedding IS NULL AND NOT c.quarantined
                              AND ($2 IS NULL OR c.project = $2))
         $q$, 'put vectors that are paid for on their chunks (trecho embed does so too)'),
        (51, 'pending vectors', 'stale', false, 'chunk', '', $q$
            SELECT c.chunk_key, NULL::text FROM trecho.chunks_{version} AS c
             WHERE ($2 IS NULL OR c.project = $2) AND c.embedding IS NULL AND NOT c.quarantined
               AND EXISTS (SELECT FROM trecho.placements_{version} AS p WHERE p.chunk_key = c.chunk_key)
               AND EXISTS (SELECT FROM trecho.index_versions AS v WHERE v.index_version = {version} AND v.state = 'active')
               AND NOT EXISTS (SELECT FROM trecho.staged_embeddings AS s WHERE s.index_version = {version} AND s.text_hash = c.text_hash)
               AND NOT EXISTS (SELECT FROM trecho.embedding_attempts AS a
                                WHERE a.index_version = {version} AND a.text_hash = c.text_hash AND a.attempt_count >= trecho._max_attempts())
         $q$, 'a worker makes them: trecho embed'),
        (52, 'failed vectors', 'failed', false, 'chunk', '', $q$
            SELECT c.chunk_key, NULL::text FROM trecho.chunks_{version} AS c
              JOIN trecho.embedding_attempts AS a ON a.index_version = {version} AND a.text_hash = c.text_hash AND a.attempt_count >= trecho._max_attempts()
             WHERE ($2 IS NULL OR c.project = $2) AND c.embedding IS NULL AND NOT c.quarantined
               AND EXISTS (SELECT FROM trecho.placements_{version} AS p WHERE p.chunk_key = c.chunk_key)
         $q$, 'trecho embed --retry-failed'),
        (60, 'word statistics', 'damage', true, 'text', 'statistics', $q$
            WITH now_held AS (
                SELECT count(*) AS chunks, count(*) FILTER (WHERE c.chunk_key > coalesce(t.last_chunk_key, 0)) AS added,
                       coalesce(max(t.chunk_count), 0) AS counted, coalesce(max(t.sample_fraction), 1) AS fraction
                  FROM trecho.chunks_{version} AS c LEFT JOIN trecho.lexeme_totals AS t ON t.index_version = {version}),
            read AS (
                SELECT n.added + abs(n.chunks - n.added - n.counted) AS slack, n.chunks, r.sampled,
                       n.chunks::double precision / greatest(r.sampled, 1) AS factor, n.fraction = 1 AND n.chunks = r.sampled AS whole
                  FROM now_held AS n, (SELECT count(*) AS sampled FROM trecho.chunks_{version} AS c {sample}) AS r)
            SELECT NULL::bigint, format('%s: %s recorded, %s counted', coalesce(s.lexeme, a.word), coalesce(s.document_frequency, 0), coalesce(a.df, 0))
              FROM (SELECT l.lexeme, l.document_frequency FROM trecho.lexeme_stats AS l WHERE l.index_version = {version}) AS s
              FULL JOIN (SELECT t.word COLLATE "C" AS word, round(t.ndoc * r.factor) AS df
                           FROM read AS r, ts_stat('SELECT c.search_vector FROM trecho.chunks_{version} AS c {sample}') AS t) AS a ON a.word = s.lexeme
             CROSS JOIN read AS r
             -- A refresh leaves what moved by less than a tenth, and words seen once; chunks written or gone since may move any word by one each.
             WHERE CASE WHEN r.whole THEN abs(coalesce(s.document_frequency, 1) - coalesce(a.df, 0)) > r.slack + 0.1 * coalesce(s.document_frequency, 0)
                                          AND NOT (s.lexeme IS NULL AND a.df <= 1)
                        ELSE greatest(s.document_frequency, a.df) >= 0.02 * r.chunks
                             AND abs(coalesce(s.document_frequency, 1) - coalesce(a.df, 0)) > r.slack + 0.5 * greatest(s.document_frequency, a.df) END
         $q$, 'count the words again (trecho.refresh_lexeme_stats)'),
        (61, 'word statistics lag', 'stale', false, 'text', 'statistics', $q$
            SELECT NULL::bigint, format('%s chunks counted, %s written and %s gone since', l.counted_chunks, l.added_chunks,
                                        abs(l.chunks - l.added_chunks - l.counted_chunks))
              FROM trecho.lexeme_stats_lag() AS l
             WHERE l.index_version = {version} AND l.added_chunks + abs(l.chunks - l.added_chunks - l.counted_chunks) > greatest(1000, l.counted_chunks / 2)
         $q$, 'count the words again (trecho.refresh_lexeme_stats)'),
        (62, 'branch totals', 'damage', false, 'text', 'statistics', $q$
            SELECT NULL::bigint, format('%s/%s: %s documents and %s chunks recorded, %s and %s there', a.project, a.branch, coalesce(b.document_count, 0),
                                        coalesce(b.chunk_count, 0), a.documents, a.chunks)
              FROM (SELECT d.project, d.branch, count(*) AS documents, sum(i.chunk_count) AS chunks, max(i.chunk_count) AS longest, min(d.updated_at) AS oldest,
                           count(*) FILTER (WHERE d.updated_at >= t.refreshed_at) AS changed, t.refreshed_at
                      FROM trecho.lexeme_totals AS t
                      JOIN trecho.indexed_documents AS i ON i.index_version = t.index_version AND i.chunk_count > 0
                      JOIN trecho.documents AS d ON d.document_id = i.document_id
                     WHERE t.index_version = {version} AND ($2 IS NULL OR d.project = $2)
                     GROUP BY d.project, d.branch, t.refreshed_at) AS a
              LEFT JOIN trecho.branch_totals AS b ON b.index_version = {version} AND b.project = a.project AND b.branch = a.branch
             CROSS JOIN LATERAL (SELECT a.changed + count(*) AS moved FROM trecho.tombstones AS x
                                  WHERE x.project = a.project AND x.branch = a.branch AND x.removed_at >= a.refreshed_at) AS m
             WHERE CASE WHEN b.project IS NULL THEN a.oldest < a.refreshed_at AND m.moved = 0
                        ELSE abs(b.document_count - a.documents) > 5 + m.moved + 0.2 * greatest(b.document_count, a.documents)
                          OR (m.moved = 0 AND (abs(b.chunk_count - a.chunks) > 50 + 0.2 * greatest(b.chunk_count, a.chunks)
                                               OR abs(b.max_chunks - a.longest) > 5 + 0.5 * greatest(b.max_chunks, a.longest))) END
         $q$, 'count the branches again (trecho.refresh_lexeme_stats)'),
        (86, 'unplaced chunks', 'leftover', false, 'chunk', 'gc', $q$
            SELECT c.chunk_key, NULL::text FROM trecho.chunks_{version} AS c
             WHERE ($2 IS NULL OR c.project = $2) AND c.created_at < now() - trecho._grace()
               AND NOT EXISTS (SELECT FROM trecho.placements_{version} AS p WHERE p.chunk_key = c.chunk_key)
               AND NOT EXISTS (SELECT FROM trecho.staged_placements AS s WHERE s.index_version = {version} AND s.chunk_key = c.chunk_key)
               AND NOT EXISTS (SELECT FROM trecho.retired_chunks AS r
                                WHERE r.index_version = {version} AND r.chunk_key = c.chunk_key AND r.retired_at >= now() - trecho._grace())
         $q$, 'SELECT trecho.gc()'),
        (88, 'retired ids', 'leftover', false, 'text', '', $q$
            SELECT NULL::bigint, r.chunk_id FROM trecho.retired_chunks AS r
             WHERE r.index_version = {version} AND ($2 IS NULL OR r.project = $2) AND r.retired_at >= now() - trecho._grace()
               AND NOT EXISTS (SELECT FROM trecho.chunks_{version} AS c WHERE c.chunk_key = r.chunk_key)
         $q$, 'nothing: their text is gone before its time, and trecho.resolve answers without it')
      ) AS c (n, check_name, severity, thorough, key_of, action, query, repair);
END
$function$;
COMMENT ON FUNCTION trecho._index_checks(integer) IS
    'The checks of one version, or for NULL those of the whole database: in which order, how bad a finding is, whether rows are computed anew, the query, and what repair does.';
REVOKE ALL ON FUNCTION trecho._index_checks(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._check_examples(p_key_of text, p_index_version integer, p_keys bigint[], p_examples text[])
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT string_agg(CASE p_key_of
               WHEN 'chunk' THEN coalesce(
                   (SELECT p.chunk_id FROM trecho.placements AS p WHERE p.index_version = p_index_version AND p.chunk_key = u.key ORDER BY p.branch, p.ordinal LIMIT 1),
                   (SELECT format('chunk %s of %s', c.chunk_key, coalesce(c.source_path, c.session_id::text)) FROM trecho.chunks AS c
                     WHERE c.index_version = p_index_version AND c.chunk_key = u.key))
               WHEN 'document' THEN (SELECT format('%s (%s/%s)', d.source, d.project, d.branch) FROM trecho.documents AS d WHERE d.document_id = u.key)
               ELSE u.example END, '; ' ORDER BY u.n)
      FROM unnest(p_keys, p_examples) WITH ORDINALITY AS u (key, example, n)
$function$;
COMMENT ON FUNCTION trecho._check_examples(text, integer, bigint[], text[]) IS 'The first findings of a check as a person reads them.';
REVOKE ALL ON FUNCTION trecho._check_examples(text, integer, bigint[], text[]) FROM PUBLIC;

-- Why a check cannot be made here; NULL when it can. trecho.chunker_version is named in dynamic SQL, since it may not be there.
CREATE OR REPLACE FUNCTION trecho._check_obstacle(p_check_name text, p_index_version integer)
RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_installed integer;
    v_cut_by    integer;
BEGIN
    IF p_check_name = 'passages' AND NOT trecho._has_chunkers() THEN
        RETURN 'this server has no chunkers';
    END IF;
    IF p_check_name = 'chunk ids' AND trecho._has_chunkers() THEN
        RETURN 'passages compares them';
    END IF;
    IF p_check_name = 'passages' THEN
        EXECUTE 'SELECT trecho.chunker_version()' INTO v_installed;
        SELECT v.chunker_version INTO v_cut_by FROM trecho.index_versions AS v WHERE v.index_version = p_index_version;
        IF v_cut_by IS DISTINCT FROM v_installed THEN
            RETURN format('cut by chunker %s, installed is %s', coalesce(v_cut_by::text, '?'), v_installed);
        END IF;
    END IF;
    RETURN NULL;
END
$function$;
COMMENT ON FUNCTION trecho._check_obstacle(text, integer) IS 'Why a check cannot be made on this server; NULL when it can.';
REVOKE ALL ON FUNCTION trecho._check_obstacle(text, integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.check_index(
    project  text DEFAULT NULL,      -- NULL: every project
    thorough boolean DEFAULT true,   -- false: leave out what reads and computes every row anew
    all_rows boolean DEFAULT false   -- true: a row for every check, those without a finding included
)
RETURNS TABLE (check_name text, severity text, object text, findings bigint, example text, repair text)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
    v_version  record;
    v_check    record;
    v_keys     bigint[];
    v_examples text[];
BEGIN
    FOR v_version IN
        SELECT NULL::integer AS index_version, NULL::trecho.index_version_state AS state
        UNION ALL
        SELECT v.index_version, v.state FROM trecho.index_versions AS v
         ORDER BY index_version NULLS FIRST
    LOOP
        object := CASE WHEN v_version.index_version IS NULL THEN 'database' ELSE 'version ' || v_version.index_version END;
        IF v_version.index_version IS NOT NULL AND NOT trecho._attached(v_version.index_version) THEN
            check_name := 'version'; severity := 'skipped'; findings := NULL; example := 'its partitions are not all attached'; repair := '';
            RETURN NEXT;
            CONTINUE;
        END IF;
        FOR v_check IN SELECT c.* FROM trecho._index_checks(v_version.index_version) AS c ORDER BY c.n LOOP
            -- A retired version no longer follows its documents: only what searches need of it must hold.
            CONTINUE WHEN v_version.state = 'retired' AND v_check.check_name <> 'indexes';
            check_name := v_check.check_name; findings := NULL; repair := v_check.repair;
            example := CASE WHEN v_check.thorough AND NOT coalesce(check_index.thorough, true) THEN 'not asked for (thorough => true)'
                            ELSE trecho._check_obstacle(v_check.check_name, v_version.index_version) END;
            IF example IS NOT NULL THEN
                severity := 'skipped';
                IF check_index.all_rows AND example <> 'passages compares them' OR v_check.check_name = 'passages' AND coalesce(check_index.thorough, true) THEN
                    RETURN NEXT;
                END IF;
                CONTINUE;
            END IF;
            EXECUTE format('SELECT count(*), array_agg(q.key) FILTER (WHERE q.n <= 5), array_agg(q.example) FILTER (WHERE q.n <= 5) '
                           'FROM (SELECT s.key, s.example, row_number() OVER () AS n FROM (%s) AS s (key, example)) AS q', v_check.query)
               INTO findings, v_keys, v_examples USING v_version.index_version, check_index.project;
            severity := CASE WHEN findings > 0 THEN v_check.severity ELSE 'ok' END;
            example := coalesce(trecho._check_examples(v_check.key_of, v_version.index_version, v_keys, v_examples), '');
            IF findings > 0 OR check_index.all_rows THEN
                RETURN NEXT;
            END IF;
        END LOOP;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho.check_index(text, boolean, boolean) IS
    'Compare what is stored with what it must be: partitions, indexes, hashes recomputed from content, placements, vectors, quarantine, statistics, what dead passes left. One row per finding: check_name, severity (damage, stale: behind, failed: vectors given up, leftover: harmless, skipped: not checked, and so not passed; with all_rows also ok), object, findings (how many), example (up to five), repair (what trecho.repair_index or a person would do). Reads every chunk and cuts every document: minutes on a large index; changes and blocks nothing.';
REVOKE ALL ON FUNCTION trecho.check_index(text, boolean, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.check_index(text, boolean, boolean) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.document_hashes(
    project    text,
    branch     text,
    source_set text
)
RETURNS TABLE (path text, source text, scope trecho.chunk_scope, blob_sha bytea, diverged boolean, damaged boolean)
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT coalesce(d.path, d.source), d.source, d.scope, d.blob_sha, d.diverged,
           sha256(convert_to(b.content, 'UTF8')) <> b.blob_sha OR b.byte_count <> octet_length(b.content)
      FROM trecho.documents AS d JOIN trecho.blobs AS b ON b.blob_sha = d.blob_sha
     WHERE d.project = document_hashes.project AND d.branch = document_hashes.branch AND d.source_set = document_hashes.source_set
$function$;
COMMENT ON FUNCTION trecho.document_hashes(text, text, text) IS
    'What the index holds of a source set, to compare with the source: path, SHA-256 of the bytes, whether an application wrote over it, whether the stored text still has that hash.';
REVOKE ALL ON FUNCTION trecho.document_hashes(text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.document_hashes(text, text, text) TO trecho_operator;

-- A vector that is wrong and looks right shows only beside the one that its text gives now.
CREATE OR REPLACE FUNCTION trecho.sample_vectors(
    max_texts integer DEFAULT 100,
    project   text DEFAULT NULL     -- NULL: every project
)
RETURNS TABLE (index_version integer, chunk_key bigint, chunk_id text, text text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
    v_version integer := (SELECT s.active_version FROM trecho.index_state AS s);
BEGIN
    IF v_version IS NULL OR NOT trecho._attached(v_version) THEN
        RETURN;
    END IF;
    RETURN QUERY EXECUTE format($sql$
        SELECT $1, c.chunk_key, k.chunk_id, trecho._embedding_text(trecho._passage_prefix($1), c.context, c.content)
          FROM (SELECT DISTINCT ON (p.chunk_key) p.chunk_key, p.chunk_id
                  FROM trecho.%1$I AS p
                  JOIN trecho.%2$I AS o ON o.chunk_key = p.chunk_key AND o.embedding IS NOT NULL AND NOT o.quarantined
                 WHERE $2 IS NULL OR p.project = $2) AS k
          JOIN trecho.%2$I AS c ON c.chunk_key = k.chunk_key
         ORDER BY random() LIMIT $3
        $sql$, 'placements_' || v_version, 'chunks_' || v_version) USING v_version, sample_vectors.project, sample_vectors.max_texts;
END
$function$;
COMMENT ON FUNCTION trecho.sample_vectors(integer, text) IS
    'Passages of the active version that have a vector, drawn at random, with exactly the text that was embedded: embed it again and give the vectors to trecho.vector_distances.';
REVOKE ALL ON FUNCTION trecho.sample_vectors(integer, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.sample_vectors(integer, text) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.vector_distances(
    index_version integer,
    chunk_keys    bigint[],
    embeddings    text[]  -- in the order of chunk_keys, each as pgvector reads it: [0.1,0.2,...], 768 numbers
)
RETURNS TABLE (chunk_key bigint, distance double precision)
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT c.chunk_key, c.embedding OPERATOR(@extschema:vector@.<=>) u.embedding::@extschema:vector@.vector
      FROM unnest(vector_distances.chunk_keys, vector_distances.embeddings) AS u (chunk_key, embedding)
      JOIN trecho.chunks AS c ON c.index_version = vector_distances.index_version AND c.chunk_key = u.chunk_key AND c.embedding IS NOT NULL
$function$;
COMMENT ON FUNCTION trecho.vector_distances(integer, bigint[], text[]) IS
    'Cosine distance of stored vectors from those given. Over 0.02 the stored one is of another text or another model.';
REVOKE ALL ON FUNCTION trecho.vector_distances(integer, bigint[], text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.vector_distances(integer, bigint[], text[]) TO trecho_operator;
