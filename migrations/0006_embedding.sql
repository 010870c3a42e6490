-- why: vectors in flight, attempts, quarantine, and how a changed model is noticed
-- breaks old clients: no
-- needs operator: no

CREATE TABLE trecho.embedding_attempts (
    index_version   integer NOT NULL REFERENCES trecho.index_versions (index_version) ON DELETE CASCADE,
    text_hash       bytea NOT NULL CHECK (octet_length(text_hash) = 32),
    attempt_count   integer NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    last_error      text,
    last_attempt_at timestamptz,
    lease_until     timestamptz,
    leased_by       text,
    lease_pid       integer,
    PRIMARY KEY (index_version, text_hash),
    CONSTRAINT embedding_attempts_lease_check CHECK ((lease_until IS NULL) = (leased_by IS NULL) AND (leased_by IS NULL) = (lease_pid IS NULL))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
-- Only rows under lease: how the leases of dead workers are found without reading the failures.
CREATE INDEX embedding_attempts_lease_idx ON trecho.embedding_attempts (leased_by, lease_pid) WHERE leased_by IS NOT NULL;
COMMENT ON TABLE trecho.embedding_attempts IS 'Texts that are leased to a worker or have failed; a row goes when its vector is stored.';
COMMENT ON COLUMN trecho.embedding_attempts.index_version IS 'Index version that needs the vector.';
COMMENT ON COLUMN trecho.embedding_attempts.text_hash IS 'Text, as in chunks.';
COMMENT ON COLUMN trecho.embedding_attempts.attempt_count IS 'Failures so far, a worker that died with the text included; after 5 it is not tried again until trecho.retry_failed.';
COMMENT ON COLUMN trecho.embedding_attempts.last_error IS 'Last failure, in one line, without secrets.';
COMMENT ON COLUMN trecho.embedding_attempts.last_attempt_at IS 'When it last failed.';
COMMENT ON COLUMN trecho.embedding_attempts.lease_until IS 'A worker has it until then, or until its connection ends; NULL when free.';
COMMENT ON COLUMN trecho.embedding_attempts.leased_by IS 'Name the worker gave.';
COMMENT ON COLUMN trecho.embedding_attempts.lease_pid IS 'Backend of the worker: when it is gone, so is the lease.';

CREATE TABLE trecho.staged_embeddings (
    index_version integer NOT NULL REFERENCES trecho.index_versions (index_version) ON DELETE CASCADE,
    text_hash     bytea NOT NULL CHECK (octet_length(text_hash) = 32),
    embedding     @extschema:vector@.vector(768) NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (index_version, text_hash)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
-- In line: a queue is written once and read once, and a TOAST table would double both.
ALTER TABLE trecho.staged_embeddings ALTER COLUMN embedding SET STORAGE PLAIN;
COMMENT ON TABLE trecho.staged_embeddings IS 'Vectors that are paid for and not yet on their chunks. Logged, so that a crash loses none.';
COMMENT ON COLUMN trecho.staged_embeddings.index_version IS 'Index version.';
COMMENT ON COLUMN trecho.staged_embeddings.text_hash IS 'Text, as in chunks.';
COMMENT ON COLUMN trecho.staged_embeddings.embedding IS '768 numbers, finite, not all zero.';
COMMENT ON COLUMN trecho.staged_embeddings.created_at IS 'When it arrived.';

CREATE TABLE trecho.quarantined_texts (
    passage_hash   bytea PRIMARY KEY CHECK (octet_length(passage_hash) = 32),
    text_hash      bytea NOT NULL,
    reason         text NOT NULL,
    quarantined_at timestamptz NOT NULL DEFAULT now(),
    released_at    timestamptz,
    released_by    name
);
COMMENT ON TABLE trecho.quarantined_texts IS 'Texts the secret scan holds back: no vector, hidden from search, until released.';
COMMENT ON COLUMN trecho.quarantined_texts.passage_hash IS 'SHA-256 of context and content without any prefix, so that it holds in every version.';
COMMENT ON COLUMN trecho.quarantined_texts.text_hash IS 'Hash by which it was first held, prefix included: finds it when no chunk is left.';
COMMENT ON COLUMN trecho.quarantined_texts.reason IS 'Kind of secret suspected; never the secret itself.';
COMMENT ON COLUMN trecho.quarantined_texts.quarantined_at IS 'When.';
COMMENT ON COLUMN trecho.quarantined_texts.released_at IS 'When an operator released it; NULL while held.';
COMMENT ON COLUMN trecho.quarantined_texts.released_by IS 'Who released it.';

CREATE TABLE trecho.embedding_probes (
    index_version integer PRIMARY KEY REFERENCES trecho.index_versions (index_version) ON DELETE CASCADE,
    embedding     @extschema:vector@.vector(768) NOT NULL,
    recorded_at   timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE trecho.embedding_probes IS 'Vector of a fixed text when the version was first embedded: when it moves, the server has changed its model.';
COMMENT ON COLUMN trecho.embedding_probes.index_version IS 'Index version.';
COMMENT ON COLUMN trecho.embedding_probes.embedding IS 'Vector of the probe text, as first given.';
COMMENT ON COLUMN trecho.embedding_probes.recorded_at IS 'When.';

ALTER TABLE trecho.index_versions ADD COLUMN reuse_vectors boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN trecho.index_versions.reuse_vectors IS 'False when everything is to be embedded again (--full): vectors of other versions are not copied, even of the same model.';

ALTER TABLE trecho.index_versions ADD COLUMN paused boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN trecho.index_versions.paused IS 'True while a build is paused: no backfill, no embedding; changed text still goes to it.';
ALTER TABLE trecho.index_versions ADD COLUMN opened_at timestamptz NOT NULL DEFAULT now();
COMMENT ON COLUMN trecho.index_versions.opened_at IS 'Since when changed text goes to it: made, or taken up again after it was retired.';
ALTER TABLE trecho.index_state ADD COLUMN last_version integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN trecho.index_state.last_version IS 'Highest number a version ever had; a number is never used again, because traces and query vectors name it.';

CREATE TYPE trecho.claimed_text AS (index_version integer, text_hash bytea, attempt_count integer, text text);
COMMENT ON TYPE trecho.claimed_text IS 'A text leased to a worker by trecho.claim_embeddings.';
COMMENT ON COLUMN trecho.claimed_text.index_version IS 'Index version that needs the vector.';
COMMENT ON COLUMN trecho.claimed_text.text_hash IS 'Key to hand back with the vector.';
COMMENT ON COLUMN trecho.claimed_text.attempt_count IS 'Failures so far; a text that has failed is best sent alone.';
COMMENT ON COLUMN trecho.claimed_text.text IS 'Exactly the text to embed, passage prefix included.';
