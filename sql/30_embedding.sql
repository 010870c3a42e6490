-- Embedding: what text a vector is made of, the queue of texts that need one, vectors in flight, failures, quarantine.
--
-- The queue is derived from rows. A text is pending while a chunk of an active or building version that is placed, or staged by a running pass,
-- has no vector, none is staged for it, it is not held back, and it has not failed too often. The partial index chunks_N_pending is that queue;
-- embedding_attempts adds who has a text now.
-- Dynamic SQL names the leaf, so that no other partition (one that is being dropped, say) is locked. Functions that read the queue hold
-- the planner to index scans, because statistics of a queue are always stale, and write look-ups as scalar subqueries, which cannot be turned into
-- a join the wrong way round; jit is off there, since a scan that is switched off and taken all the same has a cost that would start it.

-- A standard body (RETURN) is parsed once, here: it is inlined into the caller's query and no search_path can change what it means.
CREATE OR REPLACE FUNCTION trecho._embedding_text(p_passage_prefix text, p_context text, p_content text)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(p_passage_prefix, '') || CASE WHEN p_context <> '' THEN p_context || E'\n\n' ELSE '' END || p_content;
COMMENT ON FUNCTION trecho._embedding_text(text, text, text) IS 'The one rule for the text that is embedded: prefix, context, blank line, content.';
REVOKE ALL ON FUNCTION trecho._embedding_text(text, text, text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._passage_hash(p_context text, p_content text)
RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE  -- as convert_to is: declared IMMUTABLE it would not be inlined
RETURN sha256(convert_to(trecho._embedding_text(NULL, p_context, p_content), 'UTF8'));
COMMENT ON FUNCTION trecho._passage_hash(text, text) IS 'SHA-256 of what is embedded less the prefix: the same in versions that differ in their prefix.';
REVOKE ALL ON FUNCTION trecho._passage_hash(text, text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._is_held(p_context text, p_content text)
RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN EXISTS (SELECT FROM trecho.quarantined_texts AS q
                WHERE q.passage_hash = trecho._passage_hash(p_context, p_content) AND q.released_at IS NULL);
COMMENT ON FUNCTION trecho._is_held(text, text) IS 'Whether the secret scan holds a passage back.';
REVOKE ALL ON FUNCTION trecho._is_held(text, text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._max_attempts()
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 5;
COMMENT ON FUNCTION trecho._max_attempts() IS 'Failures after which a text is left alone until trecho.retry_failed.';
REVOKE ALL ON FUNCTION trecho._max_attempts() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._retry_delay(p_attempt_count integer)
RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_attempt_count > 0 THEN make_interval(secs => least(300, 2 ^ (p_attempt_count - 1))) ELSE interval '0' END;
COMMENT ON FUNCTION trecho._retry_delay(integer) IS 'Pause after so many failures of one text: 1, 2, 4, 8 s ..., never over 5 minutes.';
REVOKE ALL ON FUNCTION trecho._retry_delay(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._passage_prefix(p_index_version integer)
RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_prefix text;
BEGIN
    SELECT v.passage_prefix INTO v_prefix FROM trecho.index_versions AS v WHERE v.index_version = p_index_version;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'index version % does not exist', coalesce(p_index_version::text, 'NULL')
            USING ERRCODE = 'TR001', HINT = 'List them with trecho version list.';
    END IF;
    RETURN v_prefix;
END
$function$;
COMMENT ON FUNCTION trecho._passage_prefix(integer) IS 'Passage prefix of a version, NULL when unknown. Raises TR001.';
REVOKE ALL ON FUNCTION trecho._passage_prefix(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.embedding_text(
    index_version integer,
    context       text,  -- NULL as empty
    content       text
)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT trecho._embedding_text(trecho._passage_prefix(embedding_text.index_version), coalesce(embedding_text.context, ''), embedding_text.content)
$function$;
COMMENT ON FUNCTION trecho.embedding_text(integer, text, text) IS
    'Exactly the text a version embeds for a chunk: passage prefix, context, blank line, content. NULL for a NULL content. Raises TR001 for an unknown version.';
REVOKE ALL ON FUNCTION trecho.embedding_text(integer, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.embedding_text(integer, text, text) TO trecho_reader, trecho_writer;

CREATE OR REPLACE FUNCTION trecho.text_hash(
    index_version integer,
    context       text,  -- NULL as empty
    content       text
)
RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT sha256(convert_to(trecho.embedding_text(text_hash.index_version, text_hash.context, text_hash.content), 'UTF8'))
$function$;
COMMENT ON FUNCTION trecho.text_hash(integer, text, text) IS
    'SHA-256 of trecho.embedding_text, as in chunks.text_hash: equal hashes share one vector. Raises TR001 for an unknown version.';
REVOKE ALL ON FUNCTION trecho.text_hash(integer, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.text_hash(integer, text, text) TO trecho_reader, trecho_writer;

CREATE OR REPLACE FUNCTION trecho._notify_embedding()
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT pg_notify('trecho_embed', '')
$function$;
COMMENT ON FUNCTION trecho._notify_embedding() IS 'Wake the workers that LISTEN on trecho_embed, at commit; several calls in a transaction count as one.';
REVOKE ALL ON FUNCTION trecho._notify_embedding() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.embedding_recipes()
RETURNS TABLE (index_version integer, state trecho.index_version_state, recipe jsonb)
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT v.index_version, v.state, trecho._version_recipe(v.index_version)
      FROM trecho.index_versions AS v
     WHERE v.state IN ('active', 'building') AND NOT v.paused
     ORDER BY v.state = 'active' DESC, v.index_version
$function$;
COMMENT ON FUNCTION trecho.embedding_recipes() IS 'Versions that workers embed for, the active one first, and the recipe of each; not those that are paused.';
REVOKE ALL ON FUNCTION trecho.embedding_recipes() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.embedding_recipes() TO trecho_reader, trecho_writer;

-- Vectors already paid for: on another chunk of this version with the same text, or, under the same model, on or staged for a chunk of another.
-- Unknown (NULL) parts of a recipe equal nothing.
CREATE OR REPLACE FUNCTION trecho._known_embeddings(p_index_version integer, p_text_hashes bytea[])
RETURNS TABLE (text_hash bytea, embedding @extschema:vector@.vector)
LANGUAGE plpgsql STABLE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
DECLARE
    v_donor   integer;
    v_missing bytea[] := p_text_hashes;
    v_found   bytea[];
BEGIN
    FOR v_donor IN
        SELECT d.index_version
          FROM trecho.index_versions AS v
          JOIN trecho.index_versions AS d
            ON d.index_version = v.index_version
            OR (v.reuse_vectors AND d.provider = v.provider AND d.model_id = v.model_id AND d.model_version = v.model_version
                AND d.dim = v.dim AND d.passage_prefix = v.passage_prefix)
         WHERE v.index_version = p_index_version
         ORDER BY d.index_version <> v.index_version, d.index_version DESC
    LOOP
        CONTINUE WHEN to_regclass(format('trecho.%I', 'chunks_' || v_donor)) IS NULL;
        v_found := '{}';
        BEGIN
            FOR text_hash, embedding IN EXECUTE format($query$
                SELECT h.text_hash, k.embedding
                  FROM unnest($1) AS h (text_hash)
                 CROSS JOIN LATERAL (
                       (SELECT c.embedding FROM trecho.%I AS c WHERE c.text_hash = h.text_hash AND c.embedding IS NOT NULL LIMIT 1)
                       UNION ALL
                       (SELECT s.embedding FROM trecho.staged_embeddings AS s WHERE s.index_version = $2 AND s.text_hash = h.text_hash AND $2 <> $3)
                       LIMIT 1) AS k
                $query$, 'chunks_' || v_donor) USING v_missing, v_donor, p_index_version
            LOOP
                v_found := v_found || text_hash;
                RETURN NEXT;
            END LOOP;
        EXCEPTION WHEN undefined_table THEN
            CONTINUE;  -- the donor was dropped meanwhile
        END;
        IF v_found <> '{}' THEN
            v_missing := ARRAY(SELECT m FROM unnest(v_missing) AS m WHERE m <> ALL (v_found));
        END IF;
        EXIT WHEN v_missing = '{}';
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho._known_embeddings(integer, bytea[]) IS
    'Vectors already known for texts of a version: from equal texts of this version, and of versions with the same provider, model, dim and prefix.';
REVOKE ALL ON FUNCTION trecho._known_embeddings(integer, bytea[]) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._adopt_embeddings(p_index_version integer, p_text_hashes bytea[])
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
DECLARE
    v_count integer;
BEGIN
    EXECUTE format($query$
        UPDATE trecho.%I AS c SET embedding = k.embedding
          FROM trecho._known_embeddings($1, $2) AS k
         WHERE c.text_hash = k.text_hash AND c.embedding IS NULL AND NOT c.quarantined
        $query$, 'chunks_' || p_index_version) USING p_index_version, p_text_hashes;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho._adopt_embeddings(integer, bytea[]) IS
    'Give chunks of these texts the vectors that equal texts already have, at once. Returns how many chunks got one.';
REVOKE ALL ON FUNCTION trecho._adopt_embeddings(integer, bytea[]) FROM PUBLIC;

-- A worker that was killed took its connection with it, so its texts need not wait for the lease to run out. The leases are read before the list
-- of backends: a worker that appears in between is in the list. Each counts as a failure, so that a text that kills its workers comes to rest.
CREATE OR REPLACE FUNCTION trecho._end_dead_leases()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_pids integer[];
BEGIN
    v_pids := ARRAY(SELECT DISTINCT a.lease_pid FROM trecho.embedding_attempts AS a WHERE a.leased_by IS NOT NULL AND a.lease_pid <> pg_backend_pid());
    IF v_pids = '{}' THEN
        RETURN;
    END IF;
    PERFORM pg_stat_clear_snapshot();
    v_pids := ARRAY(SELECT p FROM unnest(v_pids) AS p WHERE NOT EXISTS (SELECT FROM pg_stat_activity AS s WHERE s.pid = p));
    IF v_pids = '{}' THEN
        RETURN;
    END IF;
    UPDATE trecho.embedding_attempts AS a
       SET lease_until = NULL, leased_by = NULL, lease_pid = NULL, attempt_count = a.attempt_count + 1,
           last_error = format('worker %s ended without reporting back', a.leased_by), last_attempt_at = clock_timestamp()
      FROM (SELECT d.index_version, d.text_hash FROM trecho.embedding_attempts AS d
             WHERE d.leased_by IS NOT NULL AND d.lease_pid = ANY (v_pids)
               FOR UPDATE SKIP LOCKED) AS dead
     WHERE a.index_version = dead.index_version AND a.text_hash = dead.text_hash;
END
$function$;
COMMENT ON FUNCTION trecho._end_dead_leases() IS 'Free the texts of workers whose connection is gone, counting a failure for each.';
REVOKE ALL ON FUNCTION trecho._end_dead_leases() FROM PUBLIC;

-- Passes whose connection still holds the lock of its project: what a killed one staged is nobody's work until a pass stages it again.
CREATE OR REPLACE FUNCTION trecho._live_passes()
RETURNS bigint[]
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT coalesce(array_agg(p.pass_id), '{}') FROM trecho.passes AS p
     WHERE p.outcome = 'running' AND trecho._pass_lock_holder(p.project) = p.backend_pid
$function$;
COMMENT ON FUNCTION trecho._live_passes() IS 'Passes that run and whose connection lives.';
REVOKE ALL ON FUNCTION trecho._live_passes() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._wanted_condition(p_index_version integer, p_pass_id bigint DEFAULT NULL, p_project text DEFAULT NULL)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT CASE WHEN p_pass_id IS NULL THEN format($query$coalesce(
        (SELECT true FROM trecho.%I AS p WHERE p.chunk_key = c.chunk_key LIMIT 1),
        (SELECT true FROM trecho.staged_placements AS s
          WHERE s.index_version = %s AND s.chunk_key = c.chunk_key AND s.pass_id = ANY ((SELECT trecho._live_passes())::bigint[]) LIMIT 1))
        $query$, 'placements_' || p_index_version, p_index_version)
        ELSE format($query$(SELECT true FROM trecho.staged_placements AS s
          WHERE s.index_version = %s AND s.chunk_key = c.chunk_key AND s.pass_id = %s LIMIT 1)
        $query$, p_index_version, p_pass_id) END
        || CASE WHEN p_project IS NULL THEN '' ELSE format(' AND c.project = %L', p_project) END
$function$;
COMMENT ON FUNCTION trecho._wanted_condition(integer, bigint, text) IS
    'Condition on a chunk c of a version, as text: it is placed, or a running pass is about to place it (p_pass_id: that pass is); it is of p_project. What is neither placed nor about to be is left to gc.';
REVOKE ALL ON FUNCTION trecho._wanted_condition(integer, bigint, text) FROM PUBLIC;

-- Starts at a random point of the hash order and wraps round: workers meet seldom, and texts whose vectors are staged already are not all read
-- again by every call.
CREATE OR REPLACE FUNCTION trecho._claim_embeddings(p_worker text, p_index_version integer, p_max_texts integer, p_max_bytes bigint, p_lease interval,
                                                    p_pass_id bigint, p_project text)
RETURNS SETOF trecho.claimed_text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
DECLARE
    v_leaf    text := 'chunks_' || p_index_version;
    v_prefix  text;
    v_start   bytea := uuid_send(gen_random_uuid());
    v_from    bytea := v_start;
    v_to      bytea;  -- NULL in the first half of the circle
    v_texts   integer := 0;
    v_bytes   bigint := 0;
    v_read    bytea[];
    v_sizes   integer[];
    v_full    boolean;
    v_hashes  bytea[];
    v_held    bytea[];
    v_claimed trecho.claimed_text;
BEGIN
    -- Held to the end: the version cannot be dropped under this call.
    SELECT coalesce(v.passage_prefix, '') INTO v_prefix
      FROM trecho.index_versions AS v
     WHERE v.index_version = p_index_version AND v.state IN ('active', 'building') AND NOT v.paused
       FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    LOOP
        EXECUTE format($query$
            SELECT array_agg(q.text_hash ORDER BY q.text_hash), array_agg(q.size_bytes ORDER BY q.text_hash)
              FROM (SELECT p.text_hash, min(p.size_bytes) AS size_bytes
                      FROM (SELECT c.text_hash, octet_length(c.context) + octet_length(c.content) AS size_bytes
                              FROM trecho.%I AS c
                             WHERE c.embedding IS NULL AND NOT c.quarantined AND c.text_hash > $2 AND ($3 IS NULL OR c.text_hash <= $3)
                               AND (SELECT true FROM trecho.staged_embeddings AS s WHERE s.index_version = $1 AND s.text_hash = c.text_hash) IS NULL
                               AND (SELECT true FROM trecho.embedding_attempts AS a
                                     WHERE a.index_version = $1 AND a.text_hash = c.text_hash
                                       AND (a.lease_until > clock_timestamp() OR a.attempt_count >= trecho._max_attempts()
                                            OR a.last_attempt_at + trecho._retry_delay(a.attempt_count) > clock_timestamp())) IS NULL
                               AND %s
                             ORDER BY c.text_hash LIMIT $4
                               FOR UPDATE OF c SKIP LOCKED) AS p
                     GROUP BY p.text_hash) AS q
            $query$, v_leaf, trecho._wanted_condition(p_index_version, p_pass_id, p_project))
           INTO v_read, v_sizes USING p_index_version, v_from, v_to, p_max_texts - v_texts;
        IF v_read IS NULL THEN
            EXIT WHEN v_to IS NOT NULL;
            v_from := '';
            v_to := v_start;
            CONTINUE;
        END IF;
        v_from := v_read[cardinality(v_read)];

        -- As many as the byte budget takes, and never none.
        v_hashes := '{}';
        v_full := false;
        FOR i IN 1 .. cardinality(v_read) LOOP
            IF v_bytes + v_sizes[i] > p_max_bytes AND v_texts + cardinality(v_hashes) > 0 THEN
                v_full := true;
                EXIT;
            END IF;
            v_bytes := v_bytes + v_sizes[i];
            v_hashes := v_hashes || v_read[i];
        END LOOP;

        -- A chunk written while its text was being held back, or while a version with another prefix was.
        v_held := '{}';
        IF EXISTS (SELECT FROM trecho.quarantined_texts AS q WHERE q.released_at IS NULL) THEN
            EXECUTE format('WITH held AS (UPDATE trecho.%I AS c SET quarantined = true '
                           'WHERE c.text_hash = ANY ($1) AND c.embedding IS NULL AND NOT c.quarantined AND trecho._is_held(c.context, c.content) '
                           'RETURNING c.text_hash) SELECT coalesce(array_agg(h.text_hash), ''{}'') FROM held AS h', v_leaf) INTO v_held USING v_hashes;
        END IF;
        IF v_held <> '{}' THEN
            v_hashes := ARRAY(SELECT h FROM unnest(v_hashes) AS h WHERE h <> ALL (v_held));
        END IF;
        -- A vector that is known is staged, so that the costly insertion into HNSW happens in trecho.apply_embeddings alone.
        WITH staged AS (
            INSERT INTO trecho.staged_embeddings AS s (index_version, text_hash, embedding)
            SELECT p_index_version, k.text_hash, k.embedding FROM trecho._known_embeddings(p_index_version, v_hashes) AS k ORDER BY k.text_hash
            ON CONFLICT ON CONSTRAINT staged_embeddings_pkey DO NOTHING
            RETURNING s.text_hash)
        SELECT coalesce(array_agg(s.text_hash), '{}') INTO v_held FROM staged AS s;
        IF v_held <> '{}' THEN
            v_hashes := ARRAY(SELECT h FROM unnest(v_hashes) AS h WHERE h <> ALL (v_held));
        END IF;

        -- In hash order, so that two workers that meet on a text wait for each other in one direction only.
        WITH leased AS (
            INSERT INTO trecho.embedding_attempts AS a (index_version, text_hash, lease_until, leased_by, lease_pid)
            SELECT p_index_version, h, clock_timestamp() + p_lease, p_worker, pg_backend_pid() FROM unnest(v_hashes) AS h ORDER BY h
            ON CONFLICT ON CONSTRAINT embedding_attempts_pkey DO UPDATE
               SET lease_until = excluded.lease_until, leased_by = excluded.leased_by, lease_pid = excluded.lease_pid,
                   -- a lease that ran out is a failure too
                   attempt_count = a.attempt_count + (a.lease_until IS NOT NULL)::integer,
                   last_error = CASE WHEN a.lease_until IS NULL THEN a.last_error ELSE format('worker %s let its lease run out', a.leased_by) END,
                   last_attempt_at = CASE WHEN a.lease_until IS NULL THEN a.last_attempt_at ELSE clock_timestamp() END
             WHERE (a.lease_until IS NULL OR a.lease_until <= clock_timestamp()) AND a.attempt_count < trecho._max_attempts()
               AND (a.last_attempt_at IS NULL OR a.last_attempt_at + trecho._retry_delay(a.attempt_count) <= clock_timestamp())
            RETURNING a.text_hash)
        SELECT coalesce(array_agg(l.text_hash), '{}') INTO v_hashes FROM leased AS l;

        -- A new statement sees what another worker stored and released since the pick: those are not handed out again.
        FOR v_claimed IN EXECUTE format($query$
            SELECT $1, h.text_hash,
                   (SELECT a.attempt_count FROM trecho.embedding_attempts AS a WHERE a.index_version = $1 AND a.text_hash = h.text_hash), t.text
              FROM unnest($2) AS h (text_hash)
              LEFT JOIN LATERAL (SELECT trecho._embedding_text($3, c.context, c.content) AS text
                                   FROM trecho.%I AS c
                                  WHERE c.text_hash = h.text_hash AND c.embedding IS NULL AND NOT c.quarantined
                                    AND (SELECT true FROM trecho.staged_embeddings AS s WHERE s.index_version = $1 AND s.text_hash = h.text_hash) IS NULL
                                  LIMIT 1) AS t ON true
            $query$, v_leaf) USING p_index_version, v_hashes, v_prefix
        LOOP
            IF v_claimed.text IS NULL THEN
                DELETE FROM trecho.embedding_attempts AS a WHERE a.index_version = p_index_version AND a.text_hash = v_claimed.text_hash;
            ELSE
                v_texts := v_texts + 1;
                RETURN NEXT v_claimed;
            END IF;
        END LOOP;
        EXIT WHEN v_full OR v_texts >= p_max_texts OR v_bytes >= p_max_bytes;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho._claim_embeddings(text, integer, integer, bigint, interval, bigint, text) IS 'trecho.claim_embeddings for one version.';
REVOKE ALL ON FUNCTION trecho._claim_embeddings(text, integer, integer, bigint, interval, bigint, text) FROM PUBLIC;

-- Locks rows of chunks (SKIP LOCKED) and of embedding_attempts to the end of the transaction: commit at once.
CREATE OR REPLACE FUNCTION trecho.claim_embeddings(
    worker        text,                                -- name of the caller, the same in store_embeddings
    max_texts     integer  DEFAULT 64,
    max_bytes     bigint   DEFAULT 262144,             -- of UTF-8, all texts together; one text always fits
    lease         interval DEFAULT '5 minutes',        -- the texts are free again after it, or when the connection ends
    index_version integer  DEFAULT NULL,               -- NULL: the active version, then those being built
    pass_id       bigint   DEFAULT NULL,               -- only texts that this pass is about to place
    project       text     DEFAULT NULL                -- only texts of this project
)
RETURNS SETOF trecho.claimed_text                      -- all of one version
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_version integer;
BEGIN
    IF coalesce(claim_embeddings.worker, '') = '' THEN
        RAISE EXCEPTION 'worker must not be empty'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a name that no other worker has, such as host:pid.';
    END IF;
    IF claim_embeddings.max_texts IS NULL OR claim_embeddings.max_texts NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'max_texts must be between 1 and 10000, got %', coalesce(claim_embeddings.max_texts::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave max_texts out to use 64.';
    END IF;
    IF claim_embeddings.max_bytes IS NULL OR claim_embeddings.max_bytes < 1 THEN
        RAISE EXCEPTION 'max_bytes must be positive, got %', coalesce(claim_embeddings.max_bytes::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave max_bytes out to use 262144.';
    END IF;
    IF claim_embeddings.lease IS NULL OR claim_embeddings.lease <= interval '0' OR claim_embeddings.lease > interval '1 day' THEN
        RAISE EXCEPTION 'lease must be positive and at most a day, got %', coalesce(claim_embeddings.lease::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave lease out to use 5 minutes.';
    END IF;
    IF claim_embeddings.index_version IS NOT NULL THEN
        PERFORM trecho._passage_prefix(claim_embeddings.index_version);  -- TR001
    END IF;
    PERFORM trecho._end_dead_leases();
    FOR v_version IN
        SELECT v.index_version FROM trecho.index_versions AS v
         WHERE v.state IN ('active', 'building') AND v.index_version = coalesce(claim_embeddings.index_version, v.index_version)
         ORDER BY v.state = 'active' DESC, v.index_version
    LOOP
        RETURN QUERY SELECT c.* FROM trecho._claim_embeddings(claim_embeddings.worker, v_version, claim_embeddings.max_texts,
                                                              claim_embeddings.max_bytes, claim_embeddings.lease, claim_embeddings.pass_id,
                                                              claim_embeddings.project) AS c;
        EXIT WHEN FOUND;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho.claim_embeddings(text, integer, bigint, interval, integer, bigint, text) IS
    'Lease texts that need a vector, each to one worker. Texts whose vector is already known are staged instead. No row: nothing to do now (retries may be waiting, see trecho.pending_embeddings), as for a pass or project that is unknown. Raises TR001 for an unknown version, 22023 for a bad argument.';
REVOKE ALL ON FUNCTION trecho.claim_embeddings(text, integer, bigint, interval, integer, bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.claim_embeddings(text, integer, bigint, interval, integer, bigint, text) TO trecho_writer;

-- NaN and infinity cannot get here: the type vector refuses them. Without format(), which is not immutable, so that it is inlined.
CREATE OR REPLACE FUNCTION trecho._check_embedding(p_embedding @extschema:vector@.vector, p_dim integer)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN p_embedding IS NULL THEN 'is NULL'
    WHEN @extschema:vector@.vector_dims(p_embedding) <> 768 THEN 'has ' || @extschema:vector@.vector_dims(p_embedding)::text || ' numbers instead of 768'
    WHEN @extschema:vector@.vector_norm(p_embedding) < 1e-6 THEN 'is zero'
    WHEN p_dim < 768 AND @extschema:vector@.vector_norm(@extschema:vector@.subvector(p_embedding, p_dim + 1, 768 - p_dim)) > 0
        THEN 'has numbers after the ' || p_dim::text || ' of its model'
END;
COMMENT ON FUNCTION trecho._check_embedding(@extschema:vector@.vector, integer) IS 'What is wrong with a vector of a model of p_dim numbers; NULL when nothing.';
REVOKE ALL ON FUNCTION trecho._check_embedding(@extschema:vector@.vector, integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.store_embeddings(
    worker        text,       -- as given to claim_embeddings
    index_version integer,
    text_hashes   bytea[],
    embeddings    @extschema:vector@.vector[]  -- in the order of text_hashes, 768 numbers each
)
RETURNS integer               -- vectors stored; fewer than given when texts are no longer wanted or are leased to another worker
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
DECLARE
    v_dim   integer;
    v_bad   text;
    v_count integer;
BEGIN
    IF coalesce(cardinality(store_embeddings.text_hashes), 0) <> coalesce(cardinality(store_embeddings.embeddings), 0) THEN
        RAISE EXCEPTION '% text hashes and % embeddings', coalesce(cardinality(store_embeddings.text_hashes), 0),
                        coalesce(cardinality(store_embeddings.embeddings), 0)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one vector for each text hash, in the same order.';
    END IF;
    -- The lock holds off a drop of the version until this is committed; after a drop there is nothing to store.
    SELECT v.dim INTO v_dim FROM trecho.index_versions AS v
     WHERE v.index_version = store_embeddings.index_version AND v.state IN ('active', 'building') FOR KEY SHARE;
    IF NOT FOUND OR coalesce(cardinality(store_embeddings.text_hashes), 0) = 0 THEN
        RETURN 0;
    END IF;
    SELECT format('embedding %s of %s %s', i.n, cardinality(store_embeddings.embeddings), trecho._check_embedding(i.embedding, v_dim)) INTO v_bad
      FROM unnest(store_embeddings.embeddings) WITH ORDINALITY AS i (embedding, n)
     WHERE trecho._check_embedding(i.embedding, v_dim) IS NOT NULL
     ORDER BY i.n LIMIT 1;
    IF v_bad IS NOT NULL THEN
        RAISE EXCEPTION '%', v_bad
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Record the text with trecho.fail_embedding and store the others.';
    END IF;

    EXECUTE format($query$
        WITH given AS MATERIALIZED (
            SELECT DISTINCT ON (i.text_hash) i.text_hash, i.embedding
              FROM unnest($1, $2) AS i (text_hash, embedding)
             WHERE (SELECT true FROM trecho.%1$I AS c WHERE c.text_hash = i.text_hash AND c.embedding IS NULL AND NOT c.quarantined LIMIT 1)
               AND (SELECT a.lease_until > clock_timestamp() AND a.leased_by <> $4 FROM trecho.embedding_attempts AS a
                     WHERE a.index_version = $3 AND a.text_hash = i.text_hash) IS NOT TRUE
             ORDER BY i.text_hash)
        $query$ || CASE WHEN to_regclass(format('trecho.%I', 'chunks_' || store_embeddings.index_version || '_vectors')) IS NULL THEN $query$
        -- No HNSW, as while an index is loaded for the first time: onto the chunk at once costs half of staging and moving.
        , applied AS (
            UPDATE trecho.%1$I AS c SET embedding = g.embedding FROM given AS g
             WHERE c.text_hash = g.text_hash AND c.embedding IS NULL AND NOT c.quarantined
            RETURNING c.text_hash)
        SELECT count(DISTINCT a.text_hash) FROM applied AS a
        $query$ ELSE $query$
        , staged AS (
            INSERT INTO trecho.staged_embeddings (index_version, text_hash, embedding)
            SELECT $3, g.text_hash, g.embedding FROM given AS g ORDER BY g.text_hash
            ON CONFLICT ON CONSTRAINT staged_embeddings_pkey DO NOTHING
            RETURNING text_hash)
        SELECT count(*) FROM staged
        $query$ END, 'chunks_' || store_embeddings.index_version)
      INTO v_count
      USING store_embeddings.text_hashes, store_embeddings.embeddings, store_embeddings.index_version, store_embeddings.worker;

    -- Gone with their leases are the failures of these texts; what another worker holds stays.
    DELETE FROM trecho.embedding_attempts AS a
     WHERE a.index_version = store_embeddings.index_version AND a.text_hash = ANY (store_embeddings.text_hashes)
       AND (a.leased_by = store_embeddings.worker OR a.lease_until IS NULL OR a.lease_until <= clock_timestamp());
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho.store_embeddings(text, integer, bytea[], @extschema:vector@.vector[]) IS
    'Stage vectors for texts of a version; trecho.apply_embeddings puts them on chunks (they go there at once while the version has no HNSW index). Texts that no chunk wants any more, or that another worker holds, are skipped. Raises 22023 when counts differ or a vector is NULL, zero or not of 768 numbers; then nothing is stored.';
REVOKE ALL ON FUNCTION trecho.store_embeddings(text, integer, bytea[], @extschema:vector@.vector[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.store_embeddings(text, integer, bytea[], @extschema:vector@.vector[]) TO trecho_writer;

-- About 4 ms a row, nearly all of it HNSW. Row locks only; several callers share the work.
CREATE OR REPLACE FUNCTION trecho.apply_embeddings(
    index_version integer,
    max_rows      integer DEFAULT 1000  -- staged vectors taken in this call, one transaction
)
RETURNS bigint                          -- staged vectors left, those that other callers hold included
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
DECLARE
    v_hashes bytea[];
    v_left   bigint;
BEGIN
    IF apply_embeddings.max_rows IS NULL OR apply_embeddings.max_rows < 1 THEN
        RAISE EXCEPTION 'max_rows must be positive, got %', coalesce(apply_embeddings.max_rows::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave max_rows out to use 1000.';
    END IF;
    PERFORM FROM trecho.index_versions AS v WHERE v.index_version = apply_embeddings.index_version FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN 0;  -- dropped, and its staged vectors with it
    END IF;
    v_hashes := ARRAY(SELECT s.text_hash FROM trecho.staged_embeddings AS s
                       WHERE s.index_version = apply_embeddings.index_version ORDER BY s.text_hash LIMIT apply_embeddings.max_rows
                         FOR UPDATE SKIP LOCKED);
    EXECUTE format($query$
        UPDATE trecho.%I AS c
           SET embedding = (SELECT s.embedding FROM trecho.staged_embeddings AS s WHERE s.index_version = $1 AND s.text_hash = c.text_hash)
         WHERE c.text_hash = ANY ($2) AND c.embedding IS NULL AND NOT c.quarantined
        $query$, 'chunks_' || apply_embeddings.index_version) USING apply_embeddings.index_version, v_hashes;
    DELETE FROM trecho.staged_embeddings AS s WHERE s.index_version = apply_embeddings.index_version AND s.text_hash = ANY (v_hashes);
    SELECT count(*) INTO v_left FROM trecho.staged_embeddings AS s WHERE s.index_version = apply_embeddings.index_version;
    RETURN v_left;
END
$function$;
COMMENT ON FUNCTION trecho.apply_embeddings(integer, integer) IS
    'Move staged vectors onto the chunks of their texts, in one bounded transaction. Returns how many are left: call until 0. An unknown version has none. Raises 22023 for a bad max_rows.';
REVOKE ALL ON FUNCTION trecho.apply_embeddings(integer, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.apply_embeddings(integer, integer) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.fail_embedding(
    worker        text,
    index_version integer,
    text_hash     bytea,
    error         text,                   -- one line, no secrets; cut at 500 characters
    permanent     boolean DEFAULT false   -- true: the provider refused the text itself, so more attempts are useless
)
RETURNS integer                           -- failures so far; NULL when the text is not the caller's any more
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_count integer;
BEGIN
    UPDATE trecho.embedding_attempts AS a
       SET attempt_count = CASE WHEN fail_embedding.permanent THEN greatest(a.attempt_count + 1, trecho._max_attempts()) ELSE a.attempt_count + 1 END,
           last_error = left(regexp_replace(coalesce(nullif(fail_embedding.error, ''), 'no reason given'), '\s+', ' ', 'g'), 500),
           last_attempt_at = clock_timestamp(), lease_until = NULL, leased_by = NULL, lease_pid = NULL
     WHERE a.index_version = fail_embedding.index_version AND a.text_hash = fail_embedding.text_hash AND a.leased_by = fail_embedding.worker
    RETURNING a.attempt_count INTO v_count;
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho.fail_embedding(text, integer, bytea, text, boolean) IS
    'Record that a leased text could not be embedded, and why. It is tried again after a pause, up to 5 times. NULL: the lease has ended and nothing was recorded.';
REVOKE ALL ON FUNCTION trecho.fail_embedding(text, integer, bytea, text, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.fail_embedding(text, integer, bytea, text, boolean) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.release_embeddings(
    worker      text,
    text_hashes bytea[] DEFAULT NULL  -- NULL: everything the worker holds
)
RETURNS integer                       -- texts given back
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_count integer;
    v_more  integer;
BEGIN
    DELETE FROM trecho.embedding_attempts AS a
     WHERE a.leased_by = release_embeddings.worker AND a.attempt_count = 0
       AND (release_embeddings.text_hashes IS NULL OR a.text_hash = ANY (release_embeddings.text_hashes));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    UPDATE trecho.embedding_attempts AS a SET lease_until = NULL, leased_by = NULL, lease_pid = NULL
     WHERE a.leased_by = release_embeddings.worker
       AND (release_embeddings.text_hashes IS NULL OR a.text_hash = ANY (release_embeddings.text_hashes));
    GET DIAGNOSTICS v_more = ROW_COUNT;
    RETURN v_count + v_more;
END
$function$;
COMMENT ON FUNCTION trecho.release_embeddings(text, bytea[]) IS 'Give leased texts back, as if they had not been claimed. Returns how many.';
REVOKE ALL ON FUNCTION trecho.release_embeddings(text, bytea[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.release_embeddings(text, bytea[]) TO trecho_writer;

-- Let workers try failed texts again. Takes row locks only; safe while workers run.
CREATE OR REPLACE FUNCTION trecho.retry_failed(
    index_version integer,
    min_age       interval DEFAULT '5 minutes'  -- leave texts that failed more recently
)
RETURNS integer                                 -- texts released; 0 when none had failed
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_count integer;
BEGIN
    IF retry_failed.min_age IS NULL OR retry_failed.min_age < interval '0' THEN
        RAISE EXCEPTION 'min_age must be zero or more, got %', coalesce(retry_failed.min_age::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave min_age out to use 5 minutes.';
    END IF;
    PERFORM trecho._passage_prefix(retry_failed.index_version);  -- TR001
    UPDATE trecho.embedding_attempts AS a SET attempt_count = 0, last_error = NULL, last_attempt_at = NULL
     WHERE a.index_version = retry_failed.index_version AND a.attempt_count > 0 AND a.leased_by IS NULL
       AND a.last_attempt_at <= clock_timestamp() - retry_failed.min_age;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count > 0 THEN
        PERFORM trecho._notify_embedding();
    END IF;
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho.retry_failed(integer, interval) IS
    'Release texts whose embedding failed. Returns how many. Raises TR001 for an unknown version, 22023 for a bad min_age.';
REVOKE ALL ON FUNCTION trecho.retry_failed(integer, interval) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.retry_failed(integer, interval) TO trecho_writer, trecho_operator;

CREATE OR REPLACE FUNCTION trecho.pending_embeddings(
    index_version integer DEFAULT NULL, -- NULL: the active version and those being built
    pass_id       bigint  DEFAULT NULL, -- only texts that this pass is about to place
    project       text    DEFAULT NULL  -- only texts of this project
)
RETURNS TABLE (
    version     integer,
    pending     bigint,      -- texts that still need a vector, leased and waiting ones included
    leased      bigint,      -- of these, with a worker now
    waiting     bigint,      -- of these, waiting after a failure
    retry_at    timestamptz, -- when the first of the waiting ones may be claimed; NULL when none waits
    failed      bigint,      -- texts given up after 5 failures
    quarantined bigint,      -- texts held back
    staged      bigint       -- vectors of the version to be applied, whatever pass or project
)
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF pending_embeddings.index_version IS NOT NULL THEN
        PERFORM trecho._passage_prefix(pending_embeddings.index_version);  -- TR001
    END IF;
    FOR version IN
        SELECT v.index_version FROM trecho.index_versions AS v
         WHERE v.index_version = pending_embeddings.index_version
            OR (pending_embeddings.index_version IS NULL AND v.state IN ('active', 'building'))
         ORDER BY v.state = 'active' DESC, v.index_version
    LOOP
        RETURN QUERY EXECUTE format($query$
            WITH wanted AS MATERIALIZED (
                SELECT c.text_hash, c.quarantined FROM trecho.%I AS c
                 WHERE c.embedding IS NULL AND %s
                 GROUP BY 1, 2),
            texts AS (
                SELECT w.quarantined, a.lease_until > clock_timestamp() AS leased, coalesce(a.attempt_count, 0) AS attempt_count,
                       a.last_attempt_at + trecho._retry_delay(a.attempt_count) AS retry_at
                  FROM wanted AS w
                  LEFT JOIN trecho.embedding_attempts AS a ON a.index_version = $1 AND a.text_hash = w.text_hash
                 WHERE NOT EXISTS (SELECT FROM trecho.staged_embeddings AS s WHERE s.index_version = $1 AND s.text_hash = w.text_hash)),
            states AS (
                SELECT CASE WHEN t.quarantined THEN 'quarantined' WHEN t.leased THEN 'leased'
                            WHEN t.attempt_count >= trecho._max_attempts() THEN 'failed'
                            WHEN t.retry_at > clock_timestamp() THEN 'waiting' ELSE 'free' END AS state, t.retry_at
                  FROM texts AS t)
            SELECT $1, count(*) FILTER (WHERE s.state IN ('free', 'leased', 'waiting')), count(*) FILTER (WHERE s.state = 'leased'),
                   count(*) FILTER (WHERE s.state = 'waiting'), min(s.retry_at) FILTER (WHERE s.state = 'waiting'),
                   count(*) FILTER (WHERE s.state = 'failed'), count(*) FILTER (WHERE s.state = 'quarantined'),
                   (SELECT count(*) FROM trecho.staged_embeddings AS e WHERE e.index_version = $1)
              FROM states AS s
            $query$, 'chunks_' || version, trecho._wanted_condition(version, pending_embeddings.pass_id, pending_embeddings.project)) USING version;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho.pending_embeddings(integer, bigint, text) IS
    'One row per version: how many texts need a vector, are with a worker, wait after a failure, have failed, are held back; and vectors to be applied. Texts, not chunks: equal texts count once, and texts that nothing places or is about to place do not count. Raises TR001 for an unknown version.';
REVOKE ALL ON FUNCTION trecho.pending_embeddings(integer, bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.pending_embeddings(integer, bigint, text) TO trecho_writer, trecho_operator;

CREATE OR REPLACE FUNCTION trecho.has_pending_embeddings(
    index_version  integer,
    written_before timestamptz DEFAULT NULL, -- NULL: whenever it was written
    pass_id        bigint      DEFAULT NULL, -- only texts that this pass is about to place
    project        text        DEFAULT NULL  -- only texts of this project
)
RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
DECLARE
    v_found boolean;
BEGIN
    PERFORM trecho._passage_prefix(has_pending_embeddings.index_version);  -- TR001
    EXECUTE format('SELECT EXISTS (%s)', trecho._pending_texts_query(has_pending_embeddings.index_version, false, has_pending_embeddings.pass_id,
                                                                   has_pending_embeddings.project)) INTO v_found
      USING has_pending_embeddings.index_version, has_pending_embeddings.written_before;
    RETURN v_found;
END
$function$;
COMMENT ON FUNCTION trecho.has_pending_embeddings(integer, timestamptz, bigint, text) IS
    'Whether a text of a version, written before a time, has no vector yet, with a worker or waiting included; not one that failed for good or is held back. Cheaper than trecho.pending_embeddings. Raises TR001 for an unknown version.';
REVOKE ALL ON FUNCTION trecho.has_pending_embeddings(integer, timestamptz, bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.has_pending_embeddings(integer, timestamptz, bigint, text) TO trecho_writer, trecho_operator;

CREATE OR REPLACE FUNCTION trecho._pending_texts_query(p_index_version integer, p_staged boolean, p_pass_id bigint DEFAULT NULL, p_project text DEFAULT NULL)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT format($query$
        SELECT c.text_hash FROM trecho.%I AS c
         WHERE c.embedding IS NULL AND NOT c.quarantined AND ($2 IS NULL OR c.created_at < $2)
           AND NOT EXISTS (SELECT FROM trecho.embedding_attempts AS a
                            WHERE a.index_version = $1 AND a.text_hash = c.text_hash AND a.attempt_count >= trecho._max_attempts())
           AND %s
        $query$, 'chunks_' || p_index_version, trecho._wanted_condition(p_index_version, p_pass_id, p_project))
        || CASE WHEN p_staged THEN '' ELSE
           'AND NOT EXISTS (SELECT FROM trecho.staged_embeddings AS s WHERE s.index_version = $1 AND s.text_hash = c.text_hash)' END
$function$;
COMMENT ON FUNCTION trecho._pending_texts_query(integer, boolean, bigint, text) IS
    'Query for the texts of a version ($1) that wait for a vector and were written before a time ($2, NULL: any); p_staged: those too whose vector is staged.';
REVOKE ALL ON FUNCTION trecho._pending_texts_query(integer, boolean, bigint, text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.check_embedding_probe(
    index_version integer,
    embedding     @extschema:vector@.vector  -- vector of the probe text, as the provider gives it now
)
RETURNS double precision                     -- cosine distance from the first one; 0 when this is the first
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_dim      integer;
    v_distance double precision;
    v_bad      text;
BEGIN
    SELECT v.dim INTO v_dim FROM trecho.index_versions AS v WHERE v.index_version = check_embedding_probe.index_version;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'index version % does not exist', coalesce(check_embedding_probe.index_version::text, 'NULL')
            USING ERRCODE = 'TR001', HINT = 'List them with trecho version list.';
    END IF;
    v_bad := trecho._check_embedding(check_embedding_probe.embedding, v_dim);
    IF v_bad IS NOT NULL THEN
        RAISE EXCEPTION 'embedding %', v_bad
            USING ERRCODE = 'invalid_parameter_value', HINT = 'The provider does not give what the recipe says: compare dim with the model.';
    END IF;
    INSERT INTO trecho.embedding_probes (index_version, embedding)
    VALUES (check_embedding_probe.index_version, check_embedding_probe.embedding)
    ON CONFLICT ON CONSTRAINT embedding_probes_pkey DO NOTHING;
    SELECT p.embedding OPERATOR(@extschema:vector@.<=>) check_embedding_probe.embedding INTO v_distance
      FROM trecho.embedding_probes AS p WHERE p.index_version = check_embedding_probe.index_version;
    RETURN v_distance;
END
$function$;
COMMENT ON FUNCTION trecho.check_embedding_probe(integer, @extschema:vector@.vector) IS
    'Compare the vector of the probe text with the first one recorded for the version, which this call records where there is none. A distance over 0.02 means another model. Raises TR001 for an unknown version, 22023 for a bad vector.';
REVOKE ALL ON FUNCTION trecho.check_embedding_probe(integer, @extschema:vector@.vector) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.check_embedding_probe(integer, @extschema:vector@.vector) TO trecho_writer;

-- Set or clear the mark on every chunk of a passage, in every version: its text hash is another where the prefix is. A passage held back loses
-- its vectors, staged or not. p_text_hash finds it where no chunk is left to tell its words.
CREATE OR REPLACE FUNCTION trecho._mark_quarantined(p_text_hash bytea, p_context text, p_content text, p_quarantined boolean)
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET jit = off
SET enable_seqscan = off
AS $function$
DECLARE
    v_version record;
    v_hash    bytea;
    v_count   integer;
    v_total   integer := 0;
BEGIN
    FOR v_version IN SELECT v.index_version, v.passage_prefix FROM trecho.index_versions AS v ORDER BY 1 FOR KEY SHARE LOOP
        CONTINUE WHEN to_regclass(format('trecho.%I', 'chunks_' || v_version.index_version)) IS NULL;
        v_hash := coalesce(sha256(convert_to(trecho._embedding_text(v_version.passage_prefix, p_context, p_content), 'UTF8')), p_text_hash);
        EXECUTE format('UPDATE trecho.%I AS c SET quarantined = $2, embedding = CASE WHEN NOT $2 THEN c.embedding END '
                       'WHERE c.text_hash = $1 AND c.quarantined <> $2', 'chunks_' || v_version.index_version) USING v_hash, p_quarantined;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_total := v_total + v_count;
        IF p_quarantined THEN
            DELETE FROM trecho.staged_embeddings AS s WHERE s.index_version = v_version.index_version AND s.text_hash = v_hash;
            DELETE FROM trecho.embedding_attempts AS a WHERE a.index_version = v_version.index_version AND a.text_hash = v_hash;
        END IF;
    END LOOP;
    RETURN v_total;
END
$function$;
COMMENT ON FUNCTION trecho._mark_quarantined(bytea, text, text, boolean) IS 'Set or clear the quarantine of the chunks of a passage, in every version. Returns how many chunks changed.';
REVOKE ALL ON FUNCTION trecho._mark_quarantined(bytea, text, text, boolean) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.quarantine_text(
    text_hash bytea,
    reason    text     -- kind of secret suspected, never the secret
)
RETURNS boolean        -- true: held back now; false: an operator has released it, so it may be embedded
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_passage  record;
    v_key      bytea := quarantine_text.text_hash;
    v_released boolean;
BEGIN
    IF quarantine_text.text_hash IS NULL OR octet_length(quarantine_text.text_hash) <> 32 THEN
        RAISE EXCEPTION 'text_hash must be 32 bytes, got %', coalesce(octet_length(quarantine_text.text_hash)::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use trecho.text_hash.';
    END IF;
    SELECT c.context, c.content INTO v_passage FROM trecho.chunks AS c WHERE c.text_hash = quarantine_text.text_hash LIMIT 1;
    IF FOUND THEN
        v_key := trecho._passage_hash(v_passage.context, v_passage.content);
    ELSE
        v_key := coalesce((SELECT q.passage_hash FROM trecho.quarantined_texts AS q WHERE q.text_hash = quarantine_text.text_hash LIMIT 1), v_key);
    END IF;
    INSERT INTO trecho.quarantined_texts AS q (passage_hash, text_hash, reason)
    VALUES (v_key, quarantine_text.text_hash, left(coalesce(nullif(quarantine_text.reason, ''), 'no reason given'), 200))
    ON CONFLICT ON CONSTRAINT quarantined_texts_pkey DO UPDATE SET reason = excluded.reason WHERE q.released_at IS NULL;
    SELECT q.released_at IS NOT NULL INTO v_released FROM trecho.quarantined_texts AS q WHERE q.passage_hash = v_key;
    IF v_released THEN
        RETURN false;
    END IF;
    PERFORM trecho._mark_quarantined(quarantine_text.text_hash, v_passage.context, v_passage.content, true);
    RETURN true;
END
$function$;
COMMENT ON FUNCTION trecho.quarantine_text(bytea, text) IS
    'Hold a text back: its chunks lose their vectors in every version, whatever the prefix, and are hidden from search. Returns false, and does nothing, when an operator released it before. Raises 22023 for a bad hash.';
REVOKE ALL ON FUNCTION trecho.quarantine_text(bytea, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.quarantine_text(bytea, text) TO trecho_writer, trecho_operator;

-- The gate of sync: what it finds is held before publication, so that it is hidden though no worker ever runs. What has its vector has passed before.
CREATE OR REPLACE FUNCTION trecho.texts_to_scan(pass_id bigint)
RETURNS TABLE (text_hash bytea, text text)
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT DISTINCT ON (trecho._passage_hash(c.context, c.content)) c.text_hash, trecho._embedding_text(NULL, c.context, c.content)
      FROM trecho.staged_placements AS s
      JOIN trecho.index_versions AS v ON v.index_version = s.index_version AND v.provider IS DISTINCT FROM 'local'
      JOIN trecho.chunks AS c ON c.index_version = s.index_version AND c.chunk_key = s.chunk_key
     WHERE s.pass_id = texts_to_scan.pass_id AND c.embedding IS NULL AND NOT c.quarantined
$function$;
COMMENT ON FUNCTION trecho.texts_to_scan(bigint) IS
    'Texts of a pass that are to leave for a provider, without prefix: new ones, and those that still wait for a vector. None where the provider is local. Scan them for secrets, and hold what is found with trecho.quarantine_text.';
REVOKE ALL ON FUNCTION trecho.texts_to_scan(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.texts_to_scan(bigint) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.pass_quarantined(pass_id bigint)
RETURNS integer
LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT count(DISTINCT c.text_hash)::integer
      FROM trecho.staged_placements AS s
      JOIN trecho.chunks AS c ON c.index_version = s.index_version AND c.chunk_key = s.chunk_key
     WHERE s.pass_id = pass_quarantined.pass_id AND s.index_version = (SELECT i.active_version FROM trecho.index_state AS i) AND c.quarantined
$function$;
COMMENT ON FUNCTION trecho.pass_quarantined(bigint) IS 'Texts in the documents of a pass that the secret scan holds back, now or since before.';
REVOKE ALL ON FUNCTION trecho.pass_quarantined(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.pass_quarantined(bigint) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.release_text(
    text_hash bytea
)
RETURNS integer  -- chunks that search shows again; workers embed them next
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_passage record;
    v_key     bytea := release_text.text_hash;
    v_count   integer;
BEGIN
    SELECT c.context, c.content INTO v_passage FROM trecho.chunks AS c WHERE c.text_hash = release_text.text_hash LIMIT 1;
    IF FOUND THEN
        v_key := trecho._passage_hash(v_passage.context, v_passage.content);
    ELSE
        v_key := coalesce((SELECT q.passage_hash FROM trecho.quarantined_texts AS q WHERE q.text_hash = release_text.text_hash LIMIT 1), v_key);
    END IF;
    UPDATE trecho.quarantined_texts AS q SET released_at = clock_timestamp(), released_by = session_user
     WHERE q.passage_hash = v_key AND q.released_at IS NULL;
    IF NOT FOUND AND NOT EXISTS (SELECT FROM trecho.quarantined_texts AS q WHERE q.passage_hash = v_key) THEN
        RAISE EXCEPTION 'no text with hash % is quarantined', coalesce(encode(release_text.text_hash, 'hex'), 'NULL')
            USING ERRCODE = 'no_data_found', HINT = 'List them with SELECT * FROM trecho.list_quarantined().';
    END IF;
    v_count := trecho._mark_quarantined(release_text.text_hash, v_passage.context, v_passage.content, false);
    PERFORM trecho._notify_embedding();
    RETURN v_count;
END
$function$;
COMMENT ON FUNCTION trecho.release_text(bytea) IS
    'Let a quarantined text be embedded and found, for good and in every version: the scan does not hold it again. Returns how many chunks it has. Raises P0002 when it is not quarantined.';
REVOKE ALL ON FUNCTION trecho.release_text(bytea) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.release_text(bytea) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.list_quarantined(
    project text DEFAULT NULL  -- NULL: every project
)
RETURNS TABLE (text_hash bytea, reason text, quarantined_at timestamptz, index_version integer, project_name text, scope trecho.chunk_scope,
               source text, symbol text, chunk_ids text[])
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT c.text_hash, q.reason, q.quarantined_at, c.index_version, c.project, c.scope, coalesce(c.source_path, c.session_id::text), c.symbol,
           ARRAY(SELECT p.chunk_id FROM trecho.placements AS p
                  WHERE p.index_version = c.index_version AND p.chunk_key = c.chunk_key ORDER BY p.branch, p.ordinal)
      FROM trecho.chunks AS c
      JOIN trecho.quarantined_texts AS q ON q.passage_hash = trecho._passage_hash(c.context, c.content)
     WHERE c.quarantined AND q.released_at IS NULL AND (list_quarantined.project IS NULL OR c.project = list_quarantined.project)
     ORDER BY q.quarantined_at, c.text_hash, c.index_version, c.chunk_key
$function$;
COMMENT ON FUNCTION trecho.list_quarantined(text) IS
    'Chunks held back by the secret scan: why, since when, and where they stand. The text itself is not shown. trecho.release_text lets one go.';
REVOKE ALL ON FUNCTION trecho.list_quarantined(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.list_quarantined(text) TO trecho_operator;
