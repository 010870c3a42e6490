-- Identity of chunks, and the step from a document's text to rows of chunks. The chunkers themselves are in privileged/.

CREATE OR REPLACE FUNCTION trecho.content_hash(
    source  text,  -- path, or session id as text
    symbol  text,  -- heading path or code symbol, empty for a window
    content text
)
RETURNS bytea      -- 32 bytes
-- No SET clause, and not IMMUTABLE, which convert_to is not: else it would not be inlined. Every name is qualified.
LANGUAGE sql STABLE PARALLEL SAFE
AS $function$
    SELECT pg_catalog.sha256(pg_catalog.convert_to(source, 'UTF8') OPERATOR(pg_catalog.||) '\x00'::pg_catalog.bytea
           OPERATOR(pg_catalog.||) pg_catalog.convert_to(symbol, 'UTF8') OPERATOR(pg_catalog.||) '\x00'::pg_catalog.bytea
           OPERATOR(pg_catalog.||) pg_catalog.convert_to(content, 'UTF8'))
$function$;
COMMENT ON FUNCTION trecho.content_hash(text, text, text) IS 'SHA-256 of source, NUL, symbol, NUL, content. NULL when an argument is NULL.';
REVOKE ALL ON FUNCTION trecho.content_hash(text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.content_hash(text, text, text) TO trecho_reader;

-- PostgreSQL itself has no SHA-1 (pgcrypto may be absent). SHA-1 names a text here, it protects nothing. Bulk work never comes here: the
-- chunkers hand out the digest with each chunk. Source: FIPS 180-4, section 6.1.
CREATE OR REPLACE FUNCTION trecho._sha1(p_bytes bytea)
RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_mask  CONSTANT bigint := 4294967295;
    v_h     bigint[] := ARRAY[1732584193, 4023233417, 2562383102, 271733878, 3285377520];
    v_len   integer := length(p_bytes);
    v_data  bytea;
    v_w     bigint[];
    a bigint; b bigint; c bigint; d bigint; e bigint; f bigint; k bigint; t bigint;
BEGIN
    v_data := p_bytes || '\x80'::bytea || decode(repeat('00', ((119 - v_len % 64) % 64)), 'hex') || int8send(v_len::bigint * 8);
    FOR v_block IN 0 .. length(v_data) / 64 - 1 LOOP
        FOR i IN 0 .. 15 LOOP
            v_w[i] := (get_byte(v_data, v_block * 64 + i * 4)::bigint << 24) | (get_byte(v_data, v_block * 64 + i * 4 + 1) << 16)
                    | (get_byte(v_data, v_block * 64 + i * 4 + 2) << 8) | get_byte(v_data, v_block * 64 + i * 4 + 3);
        END LOOP;
        FOR i IN 16 .. 79 LOOP
            t := v_w[i - 3] # v_w[i - 8] # v_w[i - 14] # v_w[i - 16];
            v_w[i] := ((t << 1) | (t >> 31)) & v_mask;
        END LOOP;
        a := v_h[1]; b := v_h[2]; c := v_h[3]; d := v_h[4]; e := v_h[5];
        FOR i IN 0 .. 79 LOOP
            IF i < 20 THEN f := (b & c) | ((~b & v_mask) & d); k := 1518500249;
            ELSIF i < 40 THEN f := b # c # d; k := 1859775393;
            ELSIF i < 60 THEN f := (b & c) | (b & d) | (c & d); k := 2400959708;
            ELSE f := b # c # d; k := 3395469782;
            END IF;
            t := ((((a << 5) | (a >> 27)) & v_mask) + f + e + k + v_w[i]) & v_mask;
            e := d; d := c; c := ((b << 30) | (b >> 2)) & v_mask; b := a; a := t;
        END LOOP;
        v_h := ARRAY[(v_h[1] + a) & v_mask, (v_h[2] + b) & v_mask, (v_h[3] + c) & v_mask, (v_h[4] + d) & v_mask, (v_h[5] + e) & v_mask];
    END LOOP;
    RETURN decode(lpad(to_hex(v_h[1]), 8, '0') || lpad(to_hex(v_h[2]), 8, '0') || lpad(to_hex(v_h[3]), 8, '0')
                  || lpad(to_hex(v_h[4]), 8, '0') || lpad(to_hex(v_h[5]), 8, '0'), 'hex');
END
$function$;
COMMENT ON FUNCTION trecho._sha1(bytea) IS 'SHA-1 (FIPS 180-4) of some bytes, 20 bytes. Milliseconds per kilobyte: for single calls only.';
REVOKE ALL ON FUNCTION trecho._sha1(bytea) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.chunk_id(
    doc_id  text,
    ordinal integer,  -- position in the document, from 1
    content text
)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT chunk_id.doc_id || ':' || chunk_id.ordinal || ':' || left(encode(trecho._sha1(convert_to(chunk_id.content, 'UTF8')), 'hex'), 10)
$function$;
COMMENT ON FUNCTION trecho.chunk_id(text, integer, text) IS 'doc_id:ordinal:first 10 hexadecimal digits of SHA-1 of the content. NULL when an argument is NULL.';
REVOKE ALL ON FUNCTION trecho.chunk_id(text, integer, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.chunk_id(text, integer, text) TO trecho_reader;

-- Cut one document for one version. p_chunks is what a client cut where the server has no PL/Python: a JSON array with the columns of
-- trecho.chunk and digest.
CREATE OR REPLACE FUNCTION trecho._cut_document(
    p_index_version integer,
    p_scope         trecho.chunk_scope,
    p_source_path   text,
    p_session_id    uuid,
    p_path          text,
    p_language      text,
    p_content       text,
    p_chunks        jsonb
)
RETURNS trecho.cut_chunk[]
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_source   text := coalesce(p_source_path, p_session_id::text);
    v_settings jsonb;
    v_prefix   text;
    v_cuts     trecho.cut_chunk[];
BEGIN
    SELECT v.chunk_settings, coalesce(v.passage_prefix, '') INTO STRICT v_settings, v_prefix
      FROM trecho.index_versions AS v WHERE v.index_version = p_index_version;
    IF p_chunks IS NULL THEN
        IF to_regprocedure('trecho._cut(text, text, jsonb, text)') IS NULL THEN
            RAISE EXCEPTION 'this server has no chunkers (plpython3u is not set up)'
                USING ERRCODE = 'TR010', HINT = 'Use the trecho command with --chunking client, or give the chunks argument.';
        END IF;
        SELECT array_agg(ROW(v_source, p_scope, p_source_path, p_session_id, p_language, c.ordinal, c.kind, c.symbol, c.anchor_path, c.context,
                             c.content, c.start_line, c.end_line, trecho.content_hash(v_source, c.symbol, c.content),
                             sha256(convert_to(trecho._embedding_text(v_prefix, c.context, c.content), 'UTF8')), c.digest)::trecho.cut_chunk
                         ORDER BY c.ordinal)
          INTO v_cuts
          FROM trecho._cut(p_path, p_content, v_settings, p_scope::text) AS c;
    ELSE
        SELECT array_agg(ROW(v_source, p_scope, p_source_path, p_session_id, p_language, c.ordinal, c.kind, c.symbol, c.anchor_path, c.context,
                             c.content, c.start_line, c.end_line, trecho.content_hash(v_source, c.symbol, c.content),
                             sha256(convert_to(trecho._embedding_text(v_prefix, c.context, c.content), 'UTF8')), c.digest)::trecho.cut_chunk
                         ORDER BY c.ordinal)
          INTO v_cuts
          FROM jsonb_to_recordset(p_chunks) AS c (ordinal integer, kind text, symbol text, anchor_path text, context text, start_line integer,
                                                  end_line integer, content text, digest text);
    END IF;
    RETURN coalesce(v_cuts, '{}');
END
$function$;
COMMENT ON FUNCTION trecho._cut_document(integer, trecho.chunk_scope, text, uuid, text, text, text, jsonb) IS
    'Cut a text with the settings of a version. Raises TR008 when it cannot be chunked, TR010 when the server has no chunkers and none were given.';
REVOKE ALL ON FUNCTION trecho._cut_document(integer, trecho.chunk_scope, text, uuid, text, text, text, jsonb) FROM PUBLIC;

-- Rows go in sorted, whatever the order of the documents: two writers that insert the same texts then wait for each other in one order
-- and cannot deadlock. A vector already known for the same text is taken along.
CREATE OR REPLACE FUNCTION trecho._store_chunks(p_index_version integer, p_project text, p_cuts trecho.cut_chunk[])
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
-- Look-ups go through the indexes whatever the statistics say: while a first index is loaded they say that the table is empty, and the plan
-- made then would be kept while it grows.
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
DECLARE
    v_count integer;
    v_cap   integer;
BEGIN
    SELECT coalesce((v.chunk_settings ->> 'chunk_max_bytes')::integer, 6000) INTO STRICT v_cap
      FROM trecho.index_versions AS v WHERE v.index_version = p_index_version;
    -- Hold the rows that are there already: gc, purge and drop_project wait for this transaction, or this one for them.
    PERFORM FROM trecho.chunks AS c
     WHERE c.index_version = p_index_version AND c.project = p_project
       AND c.content_hash = ANY (ARRAY(SELECT u.content_hash FROM unnest(p_cuts) AS u))
     ORDER BY c.content_hash, c.text_hash FOR KEY SHARE;
    INSERT INTO trecho.chunks (index_version, project, scope, source_path, session_id, kind, symbol, language, context, content,
                               chunk_max_bytes, content_hash, text_hash, quarantined, embedding)
    SELECT p_index_version, p_project, n.scope, n.source_path, n.session_id, n.kind, n.symbol, n.language, n.context, n.content,
           v_cap, n.content_hash, n.text_hash,
           -- Asked first, because it is asked once: hashing every passage costs a sixth of a first load.
           EXISTS (SELECT FROM trecho.quarantined_texts AS q WHERE q.released_at IS NULL) AND trecho._is_held(n.context, n.content),
           (SELECT k.embedding FROM trecho.chunks AS k
             WHERE k.index_version = p_index_version AND k.text_hash = n.text_hash AND k.embedding IS NOT NULL LIMIT 1)
      FROM (SELECT DISTINCT ON (u.content_hash, u.text_hash, u.scope) u.*
              FROM unnest(p_cuts) AS u
             WHERE (SELECT true FROM trecho.chunks AS c
                     WHERE c.index_version = p_index_version AND c.project = p_project AND c.scope = u.scope
                       AND c.content_hash = u.content_hash AND c.text_hash = u.text_hash) IS NULL
             ORDER BY u.content_hash, u.text_hash, u.scope) AS n
     ORDER BY n.content_hash, n.text_hash
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho._store_chunks(integer, text, trecho.cut_chunk[]) IS
    'Insert the chunks that a version does not have yet; invisible until placed. Returns how many rows were written.';
REVOKE ALL ON FUNCTION trecho._store_chunks(integer, text, trecho.cut_chunk[]) FROM PUBLIC;
