-- extensions
CREATE EXTENSION plpython3u;
CREATE EXTENSION unaccent;
CREATE EXTENSION vector;

-- schemas
CREATE SCHEMA trecho; -- owner trecho_owner, rights pg_monitor=usage trecho_operator=usage trecho_owner=create,usage trecho_reader=usage trecho_writer=usage

-- types
CREATE TYPE trecho._cut_row AS (ordinal integer, kind text, symbol text, anchor_path text, context text, start_line integer, end_line integer, content text, digest text);
CREATE TYPE trecho.chunk_row AS (ordinal integer, kind text, symbol text, anchor_path text, context text, start_line integer, end_line integer, content text);
CREATE TYPE trecho.chunk_scope AS ENUM ('docs', 'adr', 'session', 'code');
CREATE TYPE trecho.claimed_text AS (index_version integer, text_hash bytea, attempt_count integer, text text);
CREATE TYPE trecho.cut_chunk AS (source text, scope trecho.chunk_scope, source_path text, session_id uuid, language text, ordinal integer, kind text, symbol text, anchor_path text, context text, content text, start_line integer, end_line integer, content_hash bytea, text_hash bytea, digest text);
CREATE TYPE trecho.index_version_state AS ENUM ('building', 'active', 'retired');
CREATE TYPE trecho.new_placement AS (document_id bigint, ordinal integer, chunk_key bigint, chunk_id text, anchor text, start_line integer, end_line integer);
CREATE TYPE trecho.search_hit AS (chunk_key bigint, document_id bigint, ordinal integer, lexical double precision, semantic double precision, score double precision, rank integer);
CREATE TYPE trecho.search_result AS (rank integer, score double precision, lexical_score double precision, semantic_score double precision, chunk_id text, doc_id text, scope trecho.chunk_scope, source_path text, session_id uuid, title text, anchor text, ordinal integer, chunk_count integer, start_line integer, end_line integer, content text, metadata jsonb, symbol text, index_version integer);

-- text search
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR asciihword WITH portuguese_stem;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR asciiword WITH portuguese_stem;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR email WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR file WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR float WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR host WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR hword WITH trecho.portuguese_stop_1, @extension@.unaccent, portuguese_stem;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR hword_asciipart WITH portuguese_stem;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR hword_numpart WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR hword_part WITH trecho.portuguese_stop_1, @extension@.unaccent, portuguese_stem;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR int WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR numhword WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR numword WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR sfloat WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR uint WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR url WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR url_path WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR version WITH simple;
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 ... MAPPING FOR word WITH trecho.portuguese_stop_1, @extension@.unaccent, portuguese_stem;
CREATE TEXT SEARCH DICTIONARY trecho.portuguese_stop_1 (stopwords = 'portuguese', accept = 'false');

-- sequences
CREATE SEQUENCE trecho.chunk_key_seq AS bigint INCREMENT 1 CACHE 1; -- owner trecho_owner, rights default
CREATE SEQUENCE trecho.documents_document_id_seq AS bigint INCREMENT 1 CACHE 1; -- owner trecho_owner, rights default
CREATE SEQUENCE trecho.passes_pass_id_seq AS bigint INCREMENT 1 CACHE 1; -- owner trecho_owner, rights default
CREATE SEQUENCE trecho.revision_seq AS bigint INCREMENT 1 CACHE 1; -- owner trecho_owner, rights default
CREATE SEQUENCE trecho.tombstones_tombstone_id_seq AS bigint INCREMENT 1 CACHE 1; -- owner trecho_owner, rights default

-- tables
CREATE TABLE trecho.blobs (
    blob_sha bytea NOT NULL,
    content text NOT NULL,
    byte_count integer NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT blobs_blob_sha_check CHECK ((octet_length(blob_sha) = 32)),
    CONSTRAINT blobs_byte_count_check CHECK ((byte_count >= 0)),
    CONSTRAINT blobs_pkey PRIMARY KEY (blob_sha)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.branch_totals (
    index_version integer NOT NULL,
    project text NOT NULL,
    branch text NOT NULL,
    document_count bigint NOT NULL,
    chunk_count bigint NOT NULL,
    max_chunks integer NOT NULL,
    CONSTRAINT branch_totals_index_version_fkey FOREIGN KEY (index_version) REFERENCES trecho.index_versions(index_version) ON DELETE CASCADE,
    CONSTRAINT branch_totals_pkey PRIMARY KEY (index_version, project, branch)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.branches (
    project text NOT NULL,
    branch text NOT NULL,
    last_completed_at timestamp with time zone,
    completed_index_version integer,
    last_commit text,
    last_rules text,
    CONSTRAINT branches_pkey PRIMARY KEY (project, branch)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.chunks (
    index_version integer NOT NULL,
    chunk_key bigint NOT NULL DEFAULT nextval('trecho.chunk_key_seq'::regclass),
    project text NOT NULL,
    scope trecho.chunk_scope NOT NULL,
    source_path text,
    session_id uuid,
    kind text NOT NULL,
    symbol text NOT NULL DEFAULT ''::text,
    language text,
    context text NOT NULL DEFAULT ''::text,
    content text NOT NULL,
    chunk_max_bytes integer NOT NULL DEFAULT 6000,
    content_hash bytea NOT NULL,
    text_hash bytea NOT NULL,
    quarantined boolean NOT NULL DEFAULT false,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    embedding @extension@.vector(768),
    search_vector tsvector GENERATED ALWAYS AS (trecho.search_vector_1(context, content)) STORED STORAGE m,
    CONSTRAINT chunks_content_hash_check CHECK ((octet_length(content_hash) = 32)),
    CONSTRAINT chunks_max_bytes_check CHECK ((octet_length(content) <= chunk_max_bytes)),
    CONSTRAINT chunks_source_check CHECK (
CASE
    WHEN (scope = 'session'::trecho.chunk_scope) THEN ((session_id IS NOT NULL) AND (source_path IS NULL))
    ELSE ((source_path IS NOT NULL) AND (session_id IS NULL))
END),
    CONSTRAINT chunks_text_hash_check CHECK ((octet_length(text_hash) = 32))
) PARTITION BY LIST (index_version); -- owner trecho_owner, rights default
CREATE TABLE trecho.chunks_1 (
    index_version integer NOT NULL,
    chunk_key bigint NOT NULL DEFAULT nextval('trecho.chunk_key_seq'::regclass),
    project text NOT NULL,
    scope trecho.chunk_scope NOT NULL,
    source_path text,
    session_id uuid,
    kind text NOT NULL,
    symbol text NOT NULL DEFAULT ''::text,
    language text,
    context text NOT NULL DEFAULT ''::text,
    content text NOT NULL,
    chunk_max_bytes integer NOT NULL DEFAULT 6000,
    content_hash bytea NOT NULL,
    text_hash bytea NOT NULL,
    quarantined boolean NOT NULL DEFAULT false,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    embedding @extension@.vector(768),
    search_vector tsvector GENERATED ALWAYS AS (trecho.search_vector_1(context, content)) STORED STORAGE m,
    CONSTRAINT chunks_1_pkey PRIMARY KEY (chunk_key),
    CONSTRAINT chunks_1_version CHECK (((index_version IS NOT NULL) AND (index_version = 1))),
    CONSTRAINT chunks_content_hash_check CHECK ((octet_length(content_hash) = 32)),
    CONSTRAINT chunks_max_bytes_check CHECK ((octet_length(content) <= chunk_max_bytes)),
    CONSTRAINT chunks_source_check CHECK (
CASE
    WHEN (scope = 'session'::trecho.chunk_scope) THEN ((session_id IS NOT NULL) AND (source_path IS NULL))
    ELSE ((source_path IS NOT NULL) AND (session_id IS NULL))
END),
    CONSTRAINT chunks_text_hash_check CHECK ((octet_length(text_hash) = 32))
) FOR VALUES IN (1) WITH (toast_tuple_target=4080); -- owner trecho_owner, rights default
CREATE TABLE trecho.documents (
    document_id bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY,
    project text NOT NULL DEFAULT 'default'::text,
    branch text NOT NULL DEFAULT 'main'::text,
    source_set text NOT NULL DEFAULT ''::text,
    scope trecho.chunk_scope NOT NULL,
    source_path text,
    session_id uuid,
    source text NOT NULL GENERATED ALWAYS AS (COALESCE(source_path, (session_id)::text)) STORED,
    doc_id text NOT NULL,
    wanted_doc_id text NOT NULL,
    doc_id_claimed boolean NOT NULL DEFAULT false,
    title text NOT NULL DEFAULT ''::text,
    language text,
    metadata jsonb NOT NULL DEFAULT '{}'::jsonb,
    path text GENERATED ALWAYS AS (COALESCE(source_path, (metadata ->> 'origin'::text))) STORED,
    blob_sha bytea NOT NULL,
    revision bigint NOT NULL DEFAULT nextval('trecho.revision_seq'::regclass),
    diverged boolean NOT NULL DEFAULT false,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT documents_blob_sha_fkey FOREIGN KEY (blob_sha) REFERENCES trecho.blobs(blob_sha),
    CONSTRAINT documents_branch_check CHECK ((branch <> ''::text)),
    CONSTRAINT documents_doc_id_check CHECK ((doc_id <> ''::text)),
    CONSTRAINT documents_doc_id_key UNIQUE (project, branch, doc_id) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT documents_metadata_check CHECK ((jsonb_typeof(metadata) = 'object'::text)),
    CONSTRAINT documents_pkey PRIMARY KEY (document_id),
    CONSTRAINT documents_project_check CHECK ((project <> ''::text)),
    CONSTRAINT documents_source_check CHECK (
CASE
    WHEN (scope = 'session'::trecho.chunk_scope) THEN ((session_id IS NOT NULL) AND (source_path IS NULL))
    ELSE ((source_path IS NOT NULL) AND (session_id IS NULL))
END),
    CONSTRAINT documents_source_key UNIQUE (project, branch, source),
    CONSTRAINT documents_source_path_check CHECK ((source_path <> ''::text)),
    CONSTRAINT documents_wanted_doc_id_check CHECK ((wanted_doc_id <> ''::text))
); -- owner trecho_owner, rights default
CREATE TABLE trecho.embedding_attempts (
    index_version integer NOT NULL,
    text_hash bytea NOT NULL,
    attempt_count integer NOT NULL DEFAULT 0,
    last_error text,
    last_attempt_at timestamp with time zone,
    lease_until timestamp with time zone,
    leased_by text,
    lease_pid integer,
    CONSTRAINT embedding_attempts_attempt_count_check CHECK ((attempt_count >= 0)),
    CONSTRAINT embedding_attempts_index_version_fkey FOREIGN KEY (index_version) REFERENCES trecho.index_versions(index_version) ON DELETE CASCADE,
    CONSTRAINT embedding_attempts_lease_check CHECK ((((lease_until IS NULL) = (leased_by IS NULL)) AND ((leased_by IS NULL) = (lease_pid IS NULL)))),
    CONSTRAINT embedding_attempts_pkey PRIMARY KEY (index_version, text_hash),
    CONSTRAINT embedding_attempts_text_hash_check CHECK ((octet_length(text_hash) = 32))
) WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000); -- owner trecho_owner, rights default
CREATE TABLE trecho.embedding_probes (
    index_version integer NOT NULL,
    embedding @extension@.vector(768) NOT NULL,
    recorded_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT embedding_probes_index_version_fkey FOREIGN KEY (index_version) REFERENCES trecho.index_versions(index_version) ON DELETE CASCADE,
    CONSTRAINT embedding_probes_pkey PRIMARY KEY (index_version)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.index_state (
    singleton boolean NOT NULL DEFAULT true,
    active_version integer,
    configured_recipe jsonb NOT NULL DEFAULT '{}'::jsonb,
    last_version integer NOT NULL DEFAULT 0,
    CONSTRAINT index_state_active_version_fkey FOREIGN KEY (active_version) REFERENCES trecho.index_versions(index_version),
    CONSTRAINT index_state_pkey PRIMARY KEY (singleton),
    CONSTRAINT index_state_singleton_check CHECK (singleton)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.index_versions (
    index_version integer NOT NULL,
    state trecho.index_version_state NOT NULL DEFAULT 'building'::trecho.index_version_state,
    label text NOT NULL,
    chunker_version integer,
    chunk_settings jsonb,
    text_search_config text,
    provider text,
    model_id text,
    model_version text,
    dim integer,
    query_prefix text,
    passage_prefix text,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    activated_at timestamp with time zone,
    retired_at timestamp with time zone,
    reuse_vectors boolean NOT NULL DEFAULT true,
    paused boolean NOT NULL DEFAULT false,
    opened_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT index_versions_dim_check CHECK ((dim > 0)),
    CONSTRAINT index_versions_index_version_check CHECK ((index_version > 0)),
    CONSTRAINT index_versions_pkey PRIMARY KEY (index_version)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.indexed_documents (
    index_version integer NOT NULL,
    document_id bigint NOT NULL,
    blob_sha bytea NOT NULL,
    chunk_count integer NOT NULL,
    CONSTRAINT indexed_documents_chunk_count_check CHECK ((chunk_count >= 0)),
    CONSTRAINT indexed_documents_index_version_fkey FOREIGN KEY (index_version) REFERENCES trecho.index_versions(index_version) ON DELETE CASCADE,
    CONSTRAINT indexed_documents_pkey PRIMARY KEY (index_version, document_id)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.installation (
    singleton boolean NOT NULL DEFAULT true,
    chunking text NOT NULL,
    installed_at timestamp with time zone NOT NULL DEFAULT now(),
    installed_by name NOT NULL DEFAULT SESSION_USER,
    CONSTRAINT installation_chunking_check CHECK ((chunking = ANY (ARRAY['server'::text, 'client'::text]))),
    CONSTRAINT installation_pkey PRIMARY KEY (singleton),
    CONSTRAINT installation_singleton_check CHECK (singleton)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.lexeme_stats (
    index_version integer NOT NULL,
    lexeme text NOT NULL COLLATE "C",
    document_frequency integer NOT NULL,
    CONSTRAINT lexeme_stats_document_frequency_check CHECK ((document_frequency >= 0)),
    CONSTRAINT lexeme_stats_pkey PRIMARY KEY (index_version, lexeme)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.lexeme_totals (
    index_version integer NOT NULL,
    chunk_count bigint NOT NULL,
    sample_fraction double precision NOT NULL,
    last_chunk_key bigint NOT NULL,
    refreshed_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT lexeme_totals_chunk_count_check CHECK ((chunk_count >= 0)),
    CONSTRAINT lexeme_totals_index_version_fkey FOREIGN KEY (index_version) REFERENCES trecho.index_versions(index_version) ON DELETE CASCADE,
    CONSTRAINT lexeme_totals_pkey PRIMARY KEY (index_version),
    CONSTRAINT lexeme_totals_sample_fraction_check CHECK (((sample_fraction > (0)::double precision) AND (sample_fraction <= (1)::double precision)))
); -- owner trecho_owner, rights default
CREATE TABLE trecho.passes (
    pass_id bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY,
    project text NOT NULL,
    branch text NOT NULL,
    source_set text NOT NULL,
    scopes trecho.chunk_scope[] NOT NULL,
    kind text NOT NULL,
    outcome text NOT NULL DEFAULT 'running'::text,
    role_name name NOT NULL,
    backend_pid integer NOT NULL,
    backend_start timestamp with time zone NOT NULL,
    started_at timestamp with time zone NOT NULL DEFAULT now(),
    finished_at timestamp with time zone,
    error text,
    documents_staged integer NOT NULL DEFAULT 0,
    documents_written integer NOT NULL DEFAULT 0,
    documents_removed integer NOT NULL DEFAULT 0,
    documents_failed integer NOT NULL DEFAULT 0,
    documents_superseded integer NOT NULL DEFAULT 0,
    chunks_computed integer NOT NULL DEFAULT 0,
    chunks_written integer NOT NULL DEFAULT 0,
    placements_written integer NOT NULL DEFAULT 0,
    skipped jsonb NOT NULL DEFAULT '{}'::jsonb,
    errors jsonb NOT NULL DEFAULT '[]'::jsonb,
    last_commit text,
    CONSTRAINT passes_kind_check CHECK ((kind = ANY (ARRAY['full'::text, 'difference'::text]))),
    CONSTRAINT passes_outcome_check CHECK ((outcome = ANY (ARRAY['running'::text, 'published'::text, 'abandoned'::text]))),
    CONSTRAINT passes_pkey PRIMARY KEY (pass_id)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.placements (
    index_version integer NOT NULL,
    document_id bigint NOT NULL,
    ordinal integer NOT NULL,
    chunk_key bigint NOT NULL,
    project text NOT NULL,
    branch text NOT NULL,
    chunk_id text NOT NULL,
    anchor text NOT NULL,
    start_line integer NOT NULL,
    end_line integer NOT NULL,
    CONSTRAINT placements_lines_check CHECK ((end_line >= start_line)),
    CONSTRAINT placements_ordinal_check CHECK ((ordinal >= 1)),
    CONSTRAINT placements_start_line_check CHECK ((start_line >= 1))
) PARTITION BY LIST (index_version); -- owner trecho_owner, rights default
CREATE TABLE trecho.placements_1 (
    index_version integer NOT NULL,
    document_id bigint NOT NULL,
    ordinal integer NOT NULL,
    chunk_key bigint NOT NULL,
    project text NOT NULL,
    branch text NOT NULL,
    chunk_id text NOT NULL,
    anchor text NOT NULL,
    start_line integer NOT NULL,
    end_line integer NOT NULL,
    CONSTRAINT placements_1_pkey PRIMARY KEY (document_id, ordinal),
    CONSTRAINT placements_1_version CHECK (((index_version IS NOT NULL) AND (index_version = 1))),
    CONSTRAINT placements_lines_check CHECK ((end_line >= start_line)),
    CONSTRAINT placements_ordinal_check CHECK ((ordinal >= 1)),
    CONSTRAINT placements_start_line_check CHECK ((start_line >= 1))
) FOR VALUES IN (1); -- owner trecho_owner, rights default
CREATE TABLE trecho.project_grants (
    role_name name NOT NULL,
    project text NOT NULL,
    CONSTRAINT project_grants_pkey PRIMARY KEY (role_name, project)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.quarantined_texts (
    passage_hash bytea NOT NULL,
    text_hash bytea NOT NULL,
    reason text NOT NULL,
    quarantined_at timestamp with time zone NOT NULL DEFAULT now(),
    released_at timestamp with time zone,
    released_by name,
    CONSTRAINT quarantined_texts_passage_hash_check CHECK ((octet_length(passage_hash) = 32)),
    CONSTRAINT quarantined_texts_pkey PRIMARY KEY (passage_hash)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.retired_chunks (
    index_version integer NOT NULL,
    chunk_id text NOT NULL,
    project text NOT NULL,
    branch text NOT NULL,
    chunk_key bigint NOT NULL,
    successor text,
    retired_at timestamp with time zone NOT NULL DEFAULT now(),
    pass_id bigint
); -- owner trecho_owner, rights default
CREATE TABLE trecho.schema_migrations (
    name text NOT NULL,
    kind text NOT NULL,
    checksum text NOT NULL,
    release text NOT NULL,
    applied_at timestamp with time zone NOT NULL DEFAULT now(),
    applied_by name NOT NULL DEFAULT SESSION_USER,
    duration_ms integer,
    CONSTRAINT schema_migrations_kind_check CHECK ((kind = ANY (ARRAY['privileged'::text, 'migration'::text, 'sql'::text]))),
    CONSTRAINT schema_migrations_pkey PRIMARY KEY (name)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.schema_objects (
    object text NOT NULL,
    file text NOT NULL,
    fingerprint text NOT NULL,
    CONSTRAINT schema_objects_pkey PRIMARY KEY (object)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.source_sets (
    project text NOT NULL,
    branch text NOT NULL,
    source_set text NOT NULL,
    configuration text NOT NULL,
    named boolean NOT NULL DEFAULT true,
    CONSTRAINT source_sets_configuration_check CHECK ((configuration <> ''::text)),
    CONSTRAINT source_sets_pkey PRIMARY KEY (project, branch, source_set)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.staged_documents (
    pass_id bigint NOT NULL,
    source text NOT NULL,
    action text NOT NULL,
    scope trecho.chunk_scope NOT NULL,
    source_path text,
    session_id uuid,
    base_revision bigint,
    blob_sha bytea,
    doc_id text,
    doc_id_claimed boolean NOT NULL DEFAULT false,
    title text,
    language text,
    metadata jsonb NOT NULL DEFAULT '{}'::jsonb,
    planned_at timestamp with time zone,
    planned_versions integer[] NOT NULL DEFAULT '{}'::integer[],
    error text,
    CONSTRAINT staged_documents_action_check CHECK ((action = ANY (ARRAY['write'::text, 'remove'::text]))),
    CONSTRAINT staged_documents_pass_id_fkey FOREIGN KEY (pass_id) REFERENCES trecho.passes(pass_id) ON DELETE CASCADE,
    CONSTRAINT staged_documents_pkey PRIMARY KEY (pass_id, source)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.staged_embeddings (
    index_version integer NOT NULL,
    text_hash bytea NOT NULL,
    embedding @extension@.vector(768) NOT NULL STORAGE p,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT staged_embeddings_index_version_fkey FOREIGN KEY (index_version) REFERENCES trecho.index_versions(index_version) ON DELETE CASCADE,
    CONSTRAINT staged_embeddings_pkey PRIMARY KEY (index_version, text_hash),
    CONSTRAINT staged_embeddings_text_hash_check CHECK ((octet_length(text_hash) = 32))
) WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000); -- owner trecho_owner, rights default
CREATE TABLE trecho.staged_placements (
    pass_id bigint NOT NULL,
    source text NOT NULL,
    index_version integer NOT NULL,
    ordinal integer NOT NULL,
    chunk_key bigint NOT NULL,
    digest text NOT NULL,
    anchor_path text NOT NULL,
    start_line integer NOT NULL,
    end_line integer NOT NULL,
    CONSTRAINT staged_placements_pass_id_source_fkey FOREIGN KEY (pass_id, source) REFERENCES trecho.staged_documents(pass_id, source) ON DELETE CASCADE,
    CONSTRAINT staged_placements_pkey PRIMARY KEY (pass_id, source, index_version, ordinal)
); -- owner trecho_owner, rights default
CREATE TABLE trecho.tombstones (
    tombstone_id bigint NOT NULL GENERATED BY DEFAULT AS IDENTITY,
    project text NOT NULL,
    branch text NOT NULL,
    source_set text NOT NULL DEFAULT ''::text,
    scope trecho.chunk_scope NOT NULL,
    source text NOT NULL,
    doc_id text NOT NULL,
    blob_sha bytea NOT NULL,
    removed_at timestamp with time zone NOT NULL DEFAULT now(),
    pass_id bigint,
    CONSTRAINT tombstones_pkey PRIMARY KEY (tombstone_id)
); -- owner trecho_owner, rights default

-- indexes
CREATE UNIQUE INDEX blobs_pkey ON trecho.blobs USING btree (blob_sha);
CREATE UNIQUE INDEX branch_totals_pkey ON trecho.branch_totals USING btree (index_version, project, branch);
CREATE UNIQUE INDEX branches_pkey ON trecho.branches USING btree (project, branch);
CREATE UNIQUE INDEX chunks_1_identity ON trecho.chunks_1 USING btree (content_hash, text_hash, project, scope);
CREATE INDEX chunks_1_pending ON trecho.chunks_1 USING btree (text_hash) WHERE (embedding IS NULL);
CREATE UNIQUE INDEX chunks_1_pkey ON trecho.chunks_1 USING btree (chunk_key);
CREATE INDEX chunks_1_text ON trecho.chunks_1 USING btree (text_hash);
CREATE INDEX chunks_1_vectors ON trecho.chunks_1 USING hnsw (embedding @extension@.vector_cosine_ops) WITH (m='16', ef_construction='200');
CREATE INDEX chunks_1_words ON trecho.chunks_1 USING gin (search_vector);
CREATE INDEX documents_blob_sha_idx ON trecho.documents USING btree (blob_sha);
CREATE UNIQUE INDEX documents_doc_id_key ON trecho.documents USING btree (project, branch, doc_id);
CREATE INDEX documents_path_idx ON trecho.documents USING btree (project, branch, path text_pattern_ops);
CREATE UNIQUE INDEX documents_pkey ON trecho.documents USING btree (document_id);
CREATE UNIQUE INDEX documents_source_key ON trecho.documents USING btree (project, branch, source);
CREATE INDEX documents_source_set_idx ON trecho.documents USING btree (project, branch, source_set);
CREATE INDEX documents_wanted_doc_id_idx ON trecho.documents USING btree (project, branch, wanted_doc_id);
CREATE INDEX embedding_attempts_lease_idx ON trecho.embedding_attempts USING btree (leased_by, lease_pid) WHERE (leased_by IS NOT NULL);
CREATE UNIQUE INDEX embedding_attempts_pkey ON trecho.embedding_attempts USING btree (index_version, text_hash);
CREATE UNIQUE INDEX embedding_probes_pkey ON trecho.embedding_probes USING btree (index_version);
CREATE UNIQUE INDEX index_state_pkey ON trecho.index_state USING btree (singleton);
CREATE UNIQUE INDEX index_versions_one_active ON trecho.index_versions USING btree ((true)) WHERE (state = 'active'::trecho.index_version_state);
CREATE UNIQUE INDEX index_versions_pkey ON trecho.index_versions USING btree (index_version);
CREATE INDEX indexed_documents_document_idx ON trecho.indexed_documents USING btree (document_id);
CREATE UNIQUE INDEX indexed_documents_pkey ON trecho.indexed_documents USING btree (index_version, document_id);
CREATE UNIQUE INDEX installation_pkey ON trecho.installation USING btree (singleton);
CREATE UNIQUE INDEX lexeme_stats_pkey ON trecho.lexeme_stats USING btree (index_version, lexeme);
CREATE UNIQUE INDEX lexeme_totals_pkey ON trecho.lexeme_totals USING btree (index_version);
CREATE UNIQUE INDEX passes_pkey ON trecho.passes USING btree (pass_id);
CREATE INDEX passes_project_idx ON trecho.passes USING btree (project, branch, pass_id DESC);
CREATE INDEX placements_1_chunk ON trecho.placements_1 USING btree (chunk_key);
CREATE INDEX placements_1_id ON trecho.placements_1 USING btree (chunk_id);
CREATE UNIQUE INDEX placements_1_pkey ON trecho.placements_1 USING btree (document_id, ordinal);
CREATE UNIQUE INDEX project_grants_pkey ON trecho.project_grants USING btree (role_name, project);
CREATE UNIQUE INDEX quarantined_texts_pkey ON trecho.quarantined_texts USING btree (passage_hash);
CREATE INDEX retired_chunks_chunk_id_idx ON trecho.retired_chunks USING btree (project, branch, chunk_id);
CREATE INDEX retired_chunks_chunk_key_idx ON trecho.retired_chunks USING btree (index_version, chunk_key);
CREATE UNIQUE INDEX schema_migrations_pkey ON trecho.schema_migrations USING btree (name);
CREATE UNIQUE INDEX schema_objects_pkey ON trecho.schema_objects USING btree (object);
CREATE UNIQUE INDEX source_sets_pkey ON trecho.source_sets USING btree (project, branch, source_set);
CREATE INDEX staged_documents_blob_idx ON trecho.staged_documents USING btree (blob_sha);
CREATE UNIQUE INDEX staged_documents_pkey ON trecho.staged_documents USING btree (pass_id, source);
CREATE INDEX staged_documents_unplanned_idx ON trecho.staged_documents USING btree (pass_id, source COLLATE "C") WHERE ((planned_at IS NULL) AND (action = 'write'::text) AND (error IS NULL));
CREATE UNIQUE INDEX staged_embeddings_pkey ON trecho.staged_embeddings USING btree (index_version, text_hash);
CREATE INDEX staged_placements_chunk_idx ON trecho.staged_placements USING btree (index_version, chunk_key);
CREATE UNIQUE INDEX staged_placements_pkey ON trecho.staged_placements USING btree (pass_id, source, index_version, ordinal);
CREATE INDEX tombstones_blob_idx ON trecho.tombstones USING btree (blob_sha);
CREATE UNIQUE INDEX tombstones_pkey ON trecho.tombstones USING btree (tombstone_id);
CREATE INDEX tombstones_source_idx ON trecho.tombstones USING btree (project, branch, source);

-- views
CREATE VIEW trecho.metrics AS
 SELECT name,
    labels,
    value,
    help
   FROM trecho._metrics() m(name, labels, value, help); -- owner trecho_owner, rights pg_monitor=select trecho_operator=select trecho_owner=delete,insert,maintain,references,select,trigger,truncate,update trecho_reader=select

-- triggers

-- functions
CREATE FUNCTION trecho._adopt_embeddings(p_index_version integer, p_text_hashes bytea[])
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_hashjoin=off SET enable_mergejoin=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._after_publish(p_index_version integer DEFAULT NULL::integer)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho._anchor(p_doc_id text, p_anchor_path text)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._apply_wanted(p_index_version integer, p_max_rows integer)
    RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._attach_partitions(p_index_version integer)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._attached(p_index_version integer)
    RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._build_search_indexes(p_index_version integer)
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._bulk_documents()
    RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._caller()
    RETURNS name
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._check_doc_id(p_doc_id text)
    RETURNS void
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._check_embedding(p_embedding @extension@.vector, p_dim integer)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._check_examples(p_key_of text, p_index_version integer, p_keys bigint[], p_examples text[])
    RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._check_obstacle(p_check_name text, p_index_version integer)
    RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._check_place(p_scope trecho.chunk_scope, p_project text, p_branch text)
    RETURNS void
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._check_recipe(p_recipe jsonb)
    RETURNS void
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._claim_embeddings(p_worker text, p_index_version integer, p_max_texts integer, p_max_bytes bigint, p_lease interval, p_pass_id bigint, p_project text)
    RETURNS SETOF trecho.claimed_text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._claimed_elsewhere(p_source text, p_owner text, p_source_set text, p_project text, p_branch text)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._create_partitions(p_index_version integer)
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._create_search_indexes(p_index_version integer)
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._create_version(p_recipe jsonb, p_state trecho.index_version_state)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._cut(p_path text, p_content text, p_settings jsonb, p_scope text)
    RETURNS SETOF trecho._cut_row
    LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER
    -- owner superuser, rights superuser=execute trecho_owner=execute
CREATE FUNCTION trecho._cut_document(p_index_version integer, p_scope trecho.chunk_scope, p_source_path text, p_session_id uuid, p_path text, p_language text, p_content text, p_chunks jsonb)
    RETURNS trecho.cut_chunk[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._damaged(p_check_name text, p_index_version integer, p_project text, p_max_rows integer)
    RETURNS bigint[]
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET jit=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._default_recipe()
    RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._embedding_text(p_passage_prefix text, p_context text, p_content text)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._end_dead_leases()
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._ensure_state()
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._ensure_version()
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._grace()
    RETURNS interval
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._has_chunkers()
    RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._has_search_indexes(p_index_version integer)
    RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._hold_versions()
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._index_checks(p_index_version integer)
    RETURNS TABLE(n integer, check_name text, severity text, thorough boolean, key_of text, action text, query text, repair text)
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._is_held(p_context text, p_content text)
    RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._know_documents()
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET lock_timeout=1s
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._known_embeddings(p_index_version integer, p_text_hashes bytea[])
    RETURNS TABLE(text_hash bytea, embedding @extension@.vector)
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_hashjoin=off SET enable_mergejoin=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._link_renamed(p_pass trecho.passes, p_written bigint[])
    RETURNS void
    LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._live_passes()
    RETURNS bigint[]
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._load_lock_key(p_index_version integer)
    RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._lock_doc_ids(p_project text, p_branch text, p_wanted text[])
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._mark_quarantined(p_text_hash bytea, p_context text, p_content text, p_quarantined boolean)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._max_attempts()
    RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._may_read(p_project text)
    RETURNS boolean
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._metrics()
    RETURNS TABLE(name text, labels jsonb, value double precision, help text)
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
    -- owner trecho_owner, rights pg_monitor=execute trecho_operator=execute trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho._missing_documents(p_index_version integer)
    RETURNS SETOF bigint
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._notify_embedding()
    RETURNS void
    LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._pass_lock_holder(p_project text)
    RETURNS integer
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._pass_lock_key(p_project text)
    RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._passage_hash(p_context text, p_content text)
    RETURNS bytea
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._passage_prefix(p_index_version integer)
    RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._pending_texts_query(p_index_version integer, p_staged boolean, p_pass_id bigint DEFAULT NULL::bigint, p_project text DEFAULT NULL::text)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._plan_description(p_pass_id bigint, p_source text, p_about jsonb, p_versions integer[])
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._query_text(p_query text)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._quote_lexeme(p_lexeme text)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._read_query(p_query text, p_index_version integer, p_prefix boolean, p_cap double precision, p_total double precision, p_unseen double precision, OUT lexemes text[], OUT words tsquery, OUT candidates tsquery, OUT pairs tsquery, OUT pair_limit integer, OUT hard_filter tsquery, OUT base_sql text, OUT rest_sql text, OUT frequencies bigint[])
    RETURNS record
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._rebuild_indexes(p_index_version integer)
    RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET lock_timeout=10s
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._recipe_label(p_recipe jsonb)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._record_plan(p_pass trecho.passes, p_version integer, p_cuts trecho.cut_chunk[])
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._recut_differs(p_index_version integer, p_document_id bigint)
    RETURNS boolean
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._recut_document(p_index_version integer, p_document_id bigint, p_chunks jsonb)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._refuse_duplicate_ids(p_pass trecho.passes)
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET enable_nestloop=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._remove_documents(p_document_ids bigint[], p_pass_id bigint)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._replace_placements(p_index_version integer, p_document_ids bigint[], p_new trecho.new_placement[], p_pass_id bigint)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET enable_nestloop=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._require_complete(p_index_version integer, p_written_since timestamp with time zone, p_force boolean)
    RETURNS void
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._require_read(p_project text)
    RETURNS void
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._retention()
    RETURNS interval
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._retry_delay(p_attempt_count integer)
    RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._rewrite_chunks(p_index_version integer, p_keys bigint[])
    RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._running_pass(p_pass_id bigint)
    RETURNS trecho.passes
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._search(p_query text, p_embedding @extension@.vector, p_index_version integer, p_k integer, p_skip integer, p_mode text, p_project text, p_branch text, p_scopes trecho.chunk_scope[], p_session_id uuid, p_path_prefix text, p_languages text[], p_metadata_filter jsonb, p_updated_after timestamp with time zone, p_per_document integer, p_lexical_weight double precision, p_fusion text, p_prefix boolean, p_ef_search integer, p_explain boolean, OUT o_version integer, OUT o_hits trecho.search_hit[], OUT o_details jsonb)
    RETURNS record
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, @extension@, pg_temp SET jit=off SET enable_seqscan=off SET plan_cache_mode=auto
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._search_allowed(p_k integer, p_skip integer, p_mode text, p_embedding @extension@.vector, p_project text, p_branch text, p_per_document integer, p_lexical_weight double precision, p_fusion text, p_ef_search integer)
    RETURNS boolean
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._search_anew(p_query text, p_embedding @extension@.vector, p_index_version integer, p_k integer, p_skip integer, p_mode text, p_project text, p_branch text, p_scopes trecho.chunk_scope[], p_session_id uuid, p_path_prefix text, p_languages text[], p_metadata_filter jsonb, p_updated_after timestamp with time zone, p_per_document integer, p_lexical_weight double precision, p_fusion text, p_prefix boolean, p_ef_search integer)
    RETURNS SETOF trecho.search_result
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, @extension@, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._search_nearest(p_index_version integer, p_embedding @extension@.vector, p_project text, p_branch text, p_k integer, p_skip integer, p_per_document integer, p_ef_search integer, p_hidden boolean)
    RETURNS trecho.search_hit[]
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, @extension@, pg_temp SET jit=off SET enable_seqscan=off SET enable_sort=off SET plan_cache_mode=force_generic_plan
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._search_target(p_index_version integer, p_embedding @extension@.vector, p_project text, p_branch text, OUT o_version integer, OUT o_total bigint, OUT o_unseen double precision, OUT o_rows bigint, OUT o_longest integer)
    RETURNS record
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, @extension@, pg_temp SET plan_cache_mode=force_generic_plan SET enable_hashjoin=off SET enable_mergejoin=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._set_recipe(p_index_version integer, p_recipe jsonb)
    RETURNS void
    LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._settle_doc_ids(p_project text, p_branch text, p_wanted text[])
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._sha1(p_bytes bytea)
    RETURNS bytea
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._stats_due(p_index_version integer)
    RETURNS boolean
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._store_blob(p_content text)
    RETURNS bytea
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._store_chunks(p_index_version integer, p_project text, p_cuts trecho.cut_chunk[])
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_bitmapscan=off SET enable_hashjoin=off SET enable_mergejoin=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._take_unplanned(p_pass_id bigint, p_max_documents integer)
    RETURNS text[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._text_setting(p_name text, p_default text)
    RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._version_argument(p_index_version integer)
    RETURNS integer
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._version_recipe(p_index_version integer)
    RETURNS jsonb
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._versions_lock_key()
    RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._versions_now()
    RETURNS integer[]
    LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._wanted_condition(p_index_version integer, p_pass_id bigint DEFAULT NULL::bigint, p_project text DEFAULT NULL::text)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._wanted_indexes(p_index_version integer)
    RETURNS TABLE(table_name text, index_name text, method text, ddl text)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._wanted_recipe()
    RETURNS jsonb
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho._write_versions()
    RETURNS integer[]
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho.abandon_pass(pass_id bigint, reason text DEFAULT 'abandoned by its caller'::text)
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.activate_version(index_version integer, force boolean DEFAULT false, written_since timestamp with time zone DEFAULT NULL::timestamp with time zone)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET lock_timeout=80ms
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.apply_embeddings(index_version integer, max_rows integer DEFAULT 1000)
    RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_hashjoin=off SET enable_mergejoin=off
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.backfill_version(index_version integer, max_documents integer DEFAULT 10, client_chunks jsonb DEFAULT NULL::jsonb)
    RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.begin_bulk_load(pass_id bigint, documents bigint DEFAULT NULL::bigint)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET lock_timeout=1s
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.begin_pass(project text, branch text, source_set text, scopes trecho.chunk_scope[], kind text DEFAULT 'full'::text)
    RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.begin_version_build("full" boolean DEFAULT false)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.branch_commit(project text, branch text)
    RETURNS TABLE(last_commit text, unclean_sets text[], last_rules text)
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.check_embedding_probe(index_version integer, embedding @extension@.vector)
    RETURNS double precision
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.check_index(project text DEFAULT NULL::text, thorough boolean DEFAULT true, all_rows boolean DEFAULT false)
    RETURNS TABLE(check_name text, severity text, object text, findings bigint, example text, repair text)
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.chunk(path text, content text, settings jsonb DEFAULT NULL::jsonb, scope text DEFAULT NULL::text)
    RETURNS SETOF trecho.chunk_row
    LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER
    -- owner superuser, rights superuser=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.chunk_id(doc_id text, ordinal integer, content text)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.chunk_markdown(content text, settings jsonb DEFAULT NULL::jsonb)
    RETURNS SETOF trecho.chunk_row
    LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER
    -- owner superuser, rights superuser=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.chunk_session(content text, settings jsonb DEFAULT NULL::jsonb)
    RETURNS SETOF trecho.chunk_row
    LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER
    -- owner superuser, rights superuser=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.chunk_stability(path text, content text, settings jsonb DEFAULT NULL::jsonb, scope text DEFAULT NULL::text)
    RETURNS TABLE(edit text, chunks integer, ids_changed integer, hashes_changed integer, really_changed integer)
    LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner superuser, rights superuser=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.chunker_stamp()
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner superuser, rights superuser=execute trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.chunker_version()
    RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner superuser, rights superuser=execute trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.chunking()
    RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.claim_embeddings(worker text, max_texts integer DEFAULT 64, max_bytes bigint DEFAULT 262144, lease interval DEFAULT '00:05:00'::interval, index_version integer DEFAULT NULL::integer, pass_id bigint DEFAULT NULL::bigint, project text DEFAULT NULL::text)
    RETURNS SETOF trecho.claimed_text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.configure(recipe jsonb)
    RETURNS jsonb
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.content_hash(source text, symbol text, content text)
    RETURNS bytea
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.describe(path text, content text, scope text, project text DEFAULT 'default'::text, OUT title text, OUT doc_id text, OUT doc_id_claimed boolean, OUT language text, OUT session_id uuid, OUT metadata jsonb)
    RETURNS record
    LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner superuser, rights superuser=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.document_hashes(project text, branch text, source_set text)
    RETURNS TABLE(path text, source text, scope trecho.chunk_scope, blob_sha bytea, diverged boolean, damaged boolean)
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.documents_to_fill(index_version integer, max_documents integer DEFAULT 10)
    RETURNS TABLE(document_id bigint, blob_sha text, project text, scope trecho.chunk_scope, path text, content text, chunk_settings jsonb)
    LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.documents_to_recut(project text DEFAULT NULL::text, max_documents integer DEFAULT 100)
    RETURNS TABLE(index_version integer, document_id bigint, project_name text, path text, scope trecho.chunk_scope, content text, chunk_settings jsonb)
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.drift()
    RETURNS TABLE(key text, active jsonb, wanted jsonb)
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_reader=execute trecho_writer=execute
CREATE FUNCTION trecho.drop_branch(project text, branch text)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.drop_expired_version()
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.drop_project(project text)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.drop_source_set(source_set text, project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.drop_version(index_version integer)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET lock_timeout=5s
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.embedding_recipes()
    RETURNS TABLE(index_version integer, state trecho.index_version_state, recipe jsonb)
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute trecho_writer=execute
CREATE FUNCTION trecho.embedding_text(index_version integer, context text, content text)
    RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute trecho_writer=execute
CREATE FUNCTION trecho.end_bulk_load(index_version integer DEFAULT NULL::integer)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.evidence(query text, embedding @extension@.vector DEFAULT NULL::@extension@.vector, index_version integer DEFAULT NULL::integer, max_chars integer DEFAULT 8000, k integer DEFAULT 20, mode text DEFAULT 'hybrid'::text, project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text, scopes trecho.chunk_scope[] DEFAULT NULL::trecho.chunk_scope[], session_id uuid DEFAULT NULL::uuid, path_prefix text DEFAULT NULL::text, languages text[] DEFAULT NULL::text[], metadata_filter jsonb DEFAULT NULL::jsonb, updated_after timestamp with time zone DEFAULT NULL::timestamp with time zone, per_document integer DEFAULT 3, lexical_weight double precision DEFAULT 0.5, fusion text DEFAULT 'minmax'::text, prefix boolean DEFAULT false, ef_search integer DEFAULT NULL::integer)
    RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, @extension@, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.excerpt(content text, query text, max_chars integer DEFAULT 240, start_mark text DEFAULT '**'::text, stop_mark text DEFAULT '**'::text)
    RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.explain_search(query text, embedding @extension@.vector DEFAULT NULL::@extension@.vector, index_version integer DEFAULT NULL::integer, k integer DEFAULT 10, skip integer DEFAULT 0, mode text DEFAULT 'hybrid'::text, project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text, scopes trecho.chunk_scope[] DEFAULT NULL::trecho.chunk_scope[], session_id uuid DEFAULT NULL::uuid, path_prefix text DEFAULT NULL::text, languages text[] DEFAULT NULL::text[], metadata_filter jsonb DEFAULT NULL::jsonb, updated_after timestamp with time zone DEFAULT NULL::timestamp with time zone, per_document integer DEFAULT 1, lexical_weight double precision DEFAULT 0.5, fusion text DEFAULT 'minmax'::text, prefix boolean DEFAULT false, ef_search integer DEFAULT NULL::integer)
    RETURNS TABLE(part text, row_count bigint, milliseconds double precision, detail text, plan text)
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, @extension@, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.fail_embedding(worker text, index_version integer, text_hash bytea, error text, permanent boolean DEFAULT false)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.folder_prefix(project text, branch text, source_set text, prefixes text[])
    RETURNS TABLE(prefix text, taken_by text)
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.forget_vectors(index_version integer, chunk_keys bigint[])
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.gc(max_rows integer DEFAULT 10000)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.get_document(doc_id text, project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text)
    RETURNS TABLE(scope trecho.chunk_scope, source_path text, session_id uuid, title text, language text, metadata jsonb, content text, chunk_count integer, updated_at timestamp with time zone)
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.grammar_report()
    RETURNS TABLE(module text, version text, path text, ok boolean, error text)
    LANGUAGE plpython3u VOLATILE PARALLEL RESTRICTED SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner superuser, rights superuser=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.grant_project(role name, project text)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.has_pending_embeddings(index_version integer, written_before timestamp with time zone DEFAULT NULL::timestamp with time zone, pass_id bigint DEFAULT NULL::bigint, project text DEFAULT NULL::text)
    RETURNS boolean
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.index_contents(project text DEFAULT 'default'::text)
    RETURNS TABLE(branch text, scope trecho.chunk_scope, source_set text, documents integer, chunks bigint, oldest timestamp with time zone, newest timestamp with time zone)
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.index_health(project text DEFAULT 'default'::text)
    RETURNS TABLE(usable boolean, current boolean, active_version integer, active_label text, configured_version text, last_completed_at timestamp with time zone, documents integer, application_documents integer, chunks integer, pending_embeddings integer, failed_embeddings integer, quarantined integer, last_pass bigint, running_pass bigint, running_since timestamp with time zone, running_pid integer, failed_documents integer)
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.lexeme_stats_lag()
    RETURNS TABLE(index_version integer, refreshed_at timestamp with time zone, counted_chunks bigint, chunks bigint, added_chunks bigint, lag double precision)
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_reader=execute trecho_writer=execute
CREATE FUNCTION trecho.list_documents(project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text, path_prefix text DEFAULT NULL::text, scopes trecho.chunk_scope[] DEFAULT NULL::trecho.chunk_scope[], k integer DEFAULT 1000, skip integer DEFAULT 0)
    RETURNS TABLE(doc_id text, scope trecho.chunk_scope, source_path text, session_id uuid, source_set text, title text, language text, metadata jsonb, chunk_count integer, byte_count integer, updated_at timestamp with time zone)
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.list_failed(project text DEFAULT 'default'::text, k integer DEFAULT 20)
    RETURNS TABLE(chunk_id text, attempt_count integer, last_error text, last_attempt_at timestamp with time zone, text_hash bytea)
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.list_languages(project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text)
    RETURNS TABLE(language text, documents integer)
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.list_passes(project text DEFAULT 'default'::text, k integer DEFAULT 20)
    RETURNS SETOF trecho.passes
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.list_quarantined(project text DEFAULT NULL::text)
    RETURNS TABLE(text_hash bytea, reason text, quarantined_at timestamp with time zone, index_version integer, project_name text, scope trecho.chunk_scope, source text, symbol text, chunk_ids text[])
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.list_source_sets(project text DEFAULT 'default'::text)
    RETURNS TABLE(branch text, source_set text, documents integer, configuration text, named boolean)
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.list_versions()
    RETURNS TABLE(index_version integer, state trecho.index_version_state, paused boolean, label text, documents bigint, documents_missing bigint, chunks bigint, pending bigint, failed bigint, quarantined bigint, staged bigint, created_at timestamp with time zone, activated_at timestamp with time zone, retired_at timestamp with time zone, recipe jsonb)
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_reader=execute trecho_writer=execute
CREATE FUNCTION trecho.pass_documents(pass_id bigint)
    RETURNS TABLE(path text, source text, scope trecho.chunk_scope, blob_sha bytea, revision bigint)
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.pass_holder(project text DEFAULT 'default'::text)
    RETURNS TABLE(pass_id bigint, backend_pid integer, role_name name, source_set text, branch text, started_at timestamp with time zone)
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.pass_pending(pass_id bigint)
    RETURNS integer
    LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.pass_quarantined(pass_id bigint)
    RETURNS integer
    LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.pause_version(index_version integer, paused boolean DEFAULT true)
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.pending_embeddings(index_version integer DEFAULT NULL::integer, pass_id bigint DEFAULT NULL::bigint, project text DEFAULT NULL::text)
    RETURNS TABLE(version integer, pending bigint, leased bigint, waiting bigint, retry_at timestamp with time zone, failed bigint, quarantined bigint, staged bigint)
    LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.plan_document(pass_id bigint, source text, client_description jsonb, client_chunks jsonb, client_error text DEFAULT NULL::text)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.plan_pass(pass_id bigint, max_documents integer DEFAULT 50)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.publish_pass(pass_id bigint, allow_pending boolean DEFAULT false, allow_mass_delete boolean DEFAULT false, last_commit text DEFAULT NULL::text, skipped jsonb DEFAULT '{}'::jsonb, rules text DEFAULT NULL::text, errors text[] DEFAULT '{}'::text[])
    RETURNS trecho.passes
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.purge(scope trecho.chunk_scope, source_path text DEFAULT NULL::text, session_id uuid DEFAULT NULL::uuid, project text DEFAULT 'default'::text)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.put_document(scope trecho.chunk_scope, content text, source_path text DEFAULT NULL::text, session_id uuid DEFAULT NULL::uuid, project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text, doc_id text DEFAULT NULL::text, title text DEFAULT NULL::text, metadata jsonb DEFAULT '{}'::jsonb, client_description jsonb DEFAULT NULL::jsonb, client_chunks jsonb DEFAULT NULL::jsonb)
    RETURNS TABLE(document_id bigint, chunks integer, pending_embeddings integer)
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.py_load()
    RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL RESTRICTED SECURITY INVOKER SET search_path=pg_catalog, pg_temp
    -- owner superuser, rights superuser=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.quarantine_text(text_hash bytea, reason text)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.query_recipe()
    RETURNS TABLE(index_version integer, label text, provider text, model_id text, model_version text, dim integer, query_prefix text)
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.record_source_sets(project text, branch text, configuration text, source_sets text[])
    RETURNS TABLE(source_set text, documents integer, left_configuration boolean, doubled integer)
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.recut_document(index_version integer, document_id bigint, client_chunks jsonb DEFAULT NULL::jsonb)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.refresh_lexeme_stats(index_version integer DEFAULT NULL::integer, sample_rows integer DEFAULT 30000)
    RETURNS bigint
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.refuse_twins(pass_id bigint, paths text[])
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.release_embeddings(worker text, text_hashes bytea[] DEFAULT NULL::bytea[])
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.release_pass(project text DEFAULT 'default'::text)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.release_text(text_hash bytea)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.remove_document(scope trecho.chunk_scope, source_path text DEFAULT NULL::text, session_id uuid DEFAULT NULL::uuid, project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.rename_source_set(old_set text, new_set text, project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.reopen_version(index_version integer)
    RETURNS void
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.repair_index(project text DEFAULT NULL::text, checks text[] DEFAULT NULL::text[], max_rows integer DEFAULT 1000)
    RETURNS TABLE(check_name text, object text, repaired bigint)
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.resolve(chunk_id text, project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text)
    RETURNS TABLE(state text, successor text, retired_at timestamp with time zone, pass_id bigint, source text, start_line integer, end_line integer, content text)
    LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.restore_text(content text)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.retry_failed(index_version integer, min_age interval DEFAULT '00:05:00'::interval)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.revoke_project(role name, project text)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.sample_vectors(max_texts integer DEFAULT 100, project text DEFAULT NULL::text)
    RETURNS TABLE(index_version integer, chunk_key bigint, chunk_id text, text text)
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
CREATE FUNCTION trecho.search(query text, embedding @extension@.vector DEFAULT NULL::@extension@.vector, index_version integer DEFAULT NULL::integer, k integer DEFAULT 10, skip integer DEFAULT 0, mode text DEFAULT 'hybrid'::text, project text DEFAULT 'default'::text, branch text DEFAULT 'main'::text, scopes trecho.chunk_scope[] DEFAULT NULL::trecho.chunk_scope[], session_id uuid DEFAULT NULL::uuid, path_prefix text DEFAULT NULL::text, languages text[] DEFAULT NULL::text[], metadata_filter jsonb DEFAULT NULL::jsonb, updated_after timestamp with time zone DEFAULT NULL::timestamp with time zone, per_document integer DEFAULT 1, lexical_weight double precision DEFAULT 0.5, fusion text DEFAULT 'minmax'::text, prefix boolean DEFAULT false, ef_search integer DEFAULT NULL::integer)
    RETURNS SETOF trecho.search_result
    LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, @extension@, pg_temp SET enable_seqscan=off SET plan_cache_mode=force_generic_plan
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute
CREATE FUNCTION trecho.search_text_1(p_text text)
    RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho.search_vector_1(p_context text, p_content text)
    RETURNS tsvector
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
    -- owner trecho_owner, rights trecho_owner=execute
CREATE FUNCTION trecho.stage_document(pass_id bigint, scope trecho.chunk_scope, path text, content text, base_revision bigint DEFAULT NULL::bigint, session_id uuid DEFAULT NULL::uuid, metadata jsonb DEFAULT '{}'::jsonb)
    RETURNS text
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.stage_documents(pass_id bigint, scope trecho.chunk_scope, paths text[], contents text[], base_revisions bigint[])
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.stage_removals(pass_id bigint, sources text[], revisions bigint[])
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.store_embeddings(worker text, index_version integer, text_hashes bytea[], embeddings @extension@.vector[])
    RETURNS integer
    LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET jit=off SET enable_seqscan=off SET enable_hashjoin=off SET enable_mergejoin=off
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.text_hash(index_version integer, context text, content text)
    RETURNS bytea
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_reader=execute trecho_writer=execute
CREATE FUNCTION trecho.texts_to_scan(pass_id bigint)
    RETURNS TABLE(text_hash bytea, text text)
    LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.unplanned_documents(pass_id bigint, max_documents integer DEFAULT 50)
    RETURNS TABLE(source text, scope trecho.chunk_scope, path text, content text, chunk_settings jsonb)
    LANGUAGE sql STABLE PARALLEL UNSAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp SET enable_seqscan=off SET enable_bitmapscan=off SET enable_sort=off SET enable_hashjoin=off SET enable_mergejoin=off
    -- owner trecho_owner, rights trecho_owner=execute trecho_writer=execute
CREATE FUNCTION trecho.vector_distances(index_version integer, chunk_keys bigint[], embeddings text[])
    RETURNS TABLE(chunk_key bigint, distance double precision)
    LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path=pg_catalog, pg_temp
    -- owner trecho_owner, rights trecho_operator=execute trecho_owner=execute
