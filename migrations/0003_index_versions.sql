-- why: recipes, which of them is active, and which is wanted
-- breaks old clients: no
-- needs operator: no

CREATE TYPE trecho.index_version_state AS ENUM ('building', 'active', 'retired');
COMMENT ON TYPE trecho.index_version_state IS 'building: being filled; active: what searches read; retired: readable until its grace ends, then dropped.';

CREATE TABLE trecho.index_versions (
    index_version      integer PRIMARY KEY CHECK (index_version > 0),
    state              trecho.index_version_state NOT NULL DEFAULT 'building',
    label              text NOT NULL,
    chunker_version    integer,
    chunk_settings     jsonb,
    text_search_config text,
    provider           text,
    model_id           text,
    model_version      text,
    dim                integer CHECK (dim > 0),
    query_prefix       text,
    passage_prefix     text,
    created_at         timestamptz NOT NULL DEFAULT now(),
    activated_at       timestamptz,
    retired_at         timestamptz
);
CREATE UNIQUE INDEX index_versions_one_active ON trecho.index_versions ((true)) WHERE state = 'active';
COMMENT ON TABLE trecho.index_versions IS 'One row per recipe that has, or had, a partition of chunks. A NULL in a recipe column is unknown, which counts as drift.';
COMMENT ON COLUMN trecho.index_versions.index_version IS 'Number of the version; chunks_N and placements_N are its partitions.';
COMMENT ON COLUMN trecho.index_versions.state IS 'building, active or retired.';
COMMENT ON COLUMN trecho.index_versions.label IS 'Readable name: chunker:provider:model:dim:hash of the rest of the recipe.';
COMMENT ON COLUMN trecho.index_versions.chunker_version IS 'Version of the chunkers that cut it.';
COMMENT ON COLUMN trecho.index_versions.chunk_settings IS 'Settings given to the chunkers, all of them.';
COMMENT ON COLUMN trecho.index_versions.text_search_config IS 'Name of the helper that makes search_vector.';
COMMENT ON COLUMN trecho.index_versions.provider IS 'Embedding provider: local, or a preset of an OpenAI-compatible server.';
COMMENT ON COLUMN trecho.index_versions.model_id IS 'Name of the embedding model.';
COMMENT ON COLUMN trecho.index_versions.model_version IS 'Version of the model as the operator states it.';
COMMENT ON COLUMN trecho.index_versions.dim IS 'Numbers the model gives per text, before padding or truncation to 768.';
COMMENT ON COLUMN trecho.index_versions.query_prefix IS 'Text put before a query when it is embedded.';
COMMENT ON COLUMN trecho.index_versions.passage_prefix IS 'Text put before a passage when it is embedded.';
COMMENT ON COLUMN trecho.index_versions.created_at IS 'When the version was made.';
COMMENT ON COLUMN trecho.index_versions.activated_at IS 'When searches last began to read it.';
COMMENT ON COLUMN trecho.index_versions.retired_at IS 'When searches stopped reading it by default.';

CREATE TABLE trecho.index_state (
    singleton         boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    active_version    integer REFERENCES trecho.index_versions (index_version),
    configured_recipe jsonb NOT NULL DEFAULT '{}'
);
INSERT INTO trecho.index_state DEFAULT VALUES;
COMMENT ON TABLE trecho.index_state IS 'One row: the version that searches read and the recipe that is wanted.';
COMMENT ON COLUMN trecho.index_state.singleton IS 'Always true.';
COMMENT ON COLUMN trecho.index_state.active_version IS 'Version that searches read; NULL before the first one exists.';
COMMENT ON COLUMN trecho.index_state.configured_recipe IS 'Recipe set by trecho.configure; keys left out keep their default.';
