-- why: vectors in flight, attempts and quarantine
-- breaks old clients: no
-- needs operator: no

CREATE TABLE trecho.embedding_attempts (
    index_version   integer NOT NULL,
    text_hash       bytea NOT NULL CHECK (octet_length(text_hash) = 32),
    attempt_count   integer NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    last_error      text,
    last_attempt_at timestamptz,
    lease_until     timestamptz,
    leased_by       text,
    PRIMARY KEY (index_version, text_hash)
);
COMMENT ON TABLE trecho.embedding_attempts IS 'Texts that are leased to a worker or have failed; a row goes when its vector is stored.';
COMMENT ON COLUMN trecho.embedding_attempts.index_version IS 'Index version that needs the vector.';
COMMENT ON COLUMN trecho.embedding_attempts.text_hash IS 'Text, as in chunks.';
COMMENT ON COLUMN trecho.embedding_attempts.attempt_count IS 'Failures so far; after 5 it is not tried again until trecho.retry_failed.';
COMMENT ON COLUMN trecho.embedding_attempts.last_error IS 'Last failure, in one line, without secrets.';
COMMENT ON COLUMN trecho.embedding_attempts.last_attempt_at IS 'When it last failed.';
COMMENT ON COLUMN trecho.embedding_attempts.lease_until IS 'A worker has it until then; NULL when free.';
COMMENT ON COLUMN trecho.embedding_attempts.leased_by IS 'Name the worker gave.';

CREATE TABLE trecho.staged_embeddings (
    index_version integer NOT NULL,
    text_hash     bytea NOT NULL CHECK (octet_length(text_hash) = 32),
    embedding     @extschema:vector@.vector(768) NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (index_version, text_hash)
);
COMMENT ON TABLE trecho.staged_embeddings IS 'Vectors that are paid for and not yet on their chunks. Logged, so that a crash loses none.';
COMMENT ON COLUMN trecho.staged_embeddings.index_version IS 'Index version.';
COMMENT ON COLUMN trecho.staged_embeddings.text_hash IS 'Text, as in chunks.';
COMMENT ON COLUMN trecho.staged_embeddings.embedding IS '768 numbers, finite, not all zero.';
COMMENT ON COLUMN trecho.staged_embeddings.created_at IS 'When it arrived.';

CREATE TABLE trecho.quarantined_texts (
    text_hash      bytea PRIMARY KEY CHECK (octet_length(text_hash) = 32),
    reason         text NOT NULL,
    quarantined_at timestamptz NOT NULL DEFAULT now(),
    released_at    timestamptz,
    released_by    name
);
COMMENT ON TABLE trecho.quarantined_texts IS 'Texts the secret scan holds back: no vector, hidden from search, until released.';
COMMENT ON COLUMN trecho.quarantined_texts.text_hash IS 'Text, as in chunks.';
COMMENT ON COLUMN trecho.quarantined_texts.reason IS 'Kind of secret suspected; never the secret itself.';
COMMENT ON COLUMN trecho.quarantined_texts.quarantined_at IS 'When.';
COMMENT ON COLUMN trecho.quarantined_texts.released_at IS 'When an operator released it; NULL while held.';
COMMENT ON COLUMN trecho.quarantined_texts.released_by IS 'Who released it.';
