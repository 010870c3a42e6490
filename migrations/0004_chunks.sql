-- why: chunks with vector and tsvector on one row, and where each chunk stands, partitioned by index version
-- breaks old clients: no
-- needs operator: no

CREATE SEQUENCE trecho.chunk_key_seq;
COMMENT ON SEQUENCE trecho.chunk_key_seq IS 'Keys of chunks. A sequence, not IDENTITY: a table with an identity column cannot be attached as a partition.';

-- No key, HNSW or GIN on the parent: they are made on each leaf after loading (an index on the parent would be built row by row, and a
-- primary key on an extension-owned parent makes pg_restore fail on leaves made at run time).
CREATE TABLE trecho.chunks (
    index_version   integer NOT NULL,
    chunk_key       bigint NOT NULL DEFAULT nextval('trecho.chunk_key_seq'),
    project         text NOT NULL,
    scope           trecho.chunk_scope NOT NULL,
    source_path     text,
    session_id      uuid,
    kind            text NOT NULL,
    symbol          text NOT NULL DEFAULT '',
    language        text,
    context         text NOT NULL DEFAULT '',
    content         text NOT NULL,
    chunk_max_bytes integer NOT NULL DEFAULT 6000,
    content_hash    bytea NOT NULL CHECK (octet_length(content_hash) = 32),
    text_hash       bytea NOT NULL CHECK (octet_length(text_hash) = 32),
    quarantined     boolean NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL DEFAULT now(),
    embedding       @extschema:vector@.vector(768),
    search_vector   tsvector GENERATED ALWAYS AS (trecho.search_vector_1(context, content)) STORED,
    CONSTRAINT chunks_source_check CHECK (
        CASE WHEN scope = 'session' THEN session_id IS NOT NULL AND source_path IS NULL
             ELSE source_path IS NOT NULL AND session_id IS NULL END),
    CONSTRAINT chunks_max_bytes_check CHECK (octet_length(content) <= chunk_max_bytes)
) PARTITION BY LIST (index_version);
-- Words are ranked from search_vector, so it stays in line and the vector goes out: 7 to 8 times faster at 500,000 rows.
ALTER TABLE trecho.chunks ALTER COLUMN search_vector SET STORAGE MAIN;
COMMENT ON TABLE trecho.chunks IS
    'Passages: one row per (index_version, project, scope, content_hash, text_hash), shared by every branch that holds it. One partition per index version. A chunk that no placement refers to is invisible to searches.';
COMMENT ON COLUMN trecho.chunks.index_version IS 'Recipe that cut and embedded the chunk; the partition key.';
COMMENT ON COLUMN trecho.chunks.chunk_key IS 'Internal key; the public one is placements.chunk_id.';
COMMENT ON COLUMN trecho.chunks.project IS 'Project.';
COMMENT ON COLUMN trecho.chunks.scope IS 'docs, adr, session or code.';
COMMENT ON COLUMN trecho.chunks.source_path IS 'Path of the source; NULL for a session, required otherwise.';
COMMENT ON COLUMN trecho.chunks.session_id IS 'Session; required for scope session, NULL otherwise.';
COMMENT ON COLUMN trecho.chunks.kind IS 'What the chunk is: section, symbol, window, turns, ...; a suffix after a colon says why.';
COMMENT ON COLUMN trecho.chunks.symbol IS 'Heading path or qualified code symbol; empty for a window.';
COMMENT ON COLUMN trecho.chunks.language IS 'Natural or programming language; NULL when unknown.';
COMMENT ON COLUMN trecho.chunks.context IS 'What the slice alone does not say (title, heading path, container or table header); embedded and indexed with it.';
COMMENT ON COLUMN trecho.chunks.content IS 'One contiguous slice of the normalised text.';
COMMENT ON COLUMN trecho.chunks.chunk_max_bytes IS 'Cap that held when it was cut, in bytes of UTF-8.';
COMMENT ON COLUMN trecho.chunks.content_hash IS 'SHA-256 of source, NUL, symbol, NUL, content.';
COMMENT ON COLUMN trecho.chunks.text_hash IS 'SHA-256 of exactly the text that is embedded (trecho.embedding_text).';
COMMENT ON COLUMN trecho.chunks.quarantined IS 'True while the secret scan holds its text back.';
COMMENT ON COLUMN trecho.chunks.created_at IS 'When the row was written, which may be before it was published.';
COMMENT ON COLUMN trecho.chunks.embedding IS 'Vector of the text, 768 numbers, zero-padded where the model gives fewer; NULL until computed.';
COMMENT ON COLUMN trecho.chunks.search_vector IS 'Lexemes of context and content, accented and unaccented.';

CREATE TABLE trecho.placements (
    index_version integer NOT NULL,
    document_id   bigint NOT NULL,
    ordinal       integer NOT NULL CHECK (ordinal >= 1),
    chunk_key     bigint NOT NULL,
    project       text NOT NULL,
    branch        text NOT NULL,
    chunk_id      text NOT NULL,
    anchor        text NOT NULL,
    start_line    integer NOT NULL CHECK (start_line >= 1),
    end_line      integer NOT NULL,
    CONSTRAINT placements_lines_check CHECK (end_line >= start_line)
) PARTITION BY LIST (index_version);
COMMENT ON TABLE trecho.placements IS 'Where a chunk stands: (index_version, document, ordinal) -> chunk. Publication writes here and nowhere readers look before.';
COMMENT ON COLUMN trecho.placements.index_version IS 'Recipe; the partition key.';
COMMENT ON COLUMN trecho.placements.document_id IS 'Document.';
COMMENT ON COLUMN trecho.placements.ordinal IS 'Position in the document, from 1.';
COMMENT ON COLUMN trecho.placements.chunk_key IS 'Chunk that stands there.';
COMMENT ON COLUMN trecho.placements.project IS 'Project of the document, repeated here for filters.';
COMMENT ON COLUMN trecho.placements.branch IS 'Branch of the document, repeated here for filters.';
COMMENT ON COLUMN trecho.placements.chunk_id IS 'Readable identity: doc_id:ordinal:first 10 hexadecimal digits of SHA-1 of the content.';
COMMENT ON COLUMN trecho.placements.anchor IS 'doc_id#heading-slug[/sub-slug]; doc_id alone before the first heading.';
COMMENT ON COLUMN trecho.placements.start_line IS 'First line in the original, from 1.';
COMMENT ON COLUMN trecho.placements.end_line IS 'Last line in the original, inclusive.';

CREATE TABLE trecho.indexed_documents (
    index_version integer NOT NULL REFERENCES trecho.index_versions (index_version) ON DELETE CASCADE,
    document_id   bigint NOT NULL,
    blob_sha      bytea NOT NULL,
    chunk_count   integer NOT NULL CHECK (chunk_count >= 0),
    PRIMARY KEY (index_version, document_id)
);
CREATE INDEX indexed_documents_document_idx ON trecho.indexed_documents (document_id);
COMMENT ON TABLE trecho.indexed_documents IS 'Which text of each document each index version holds; a building version is complete when every document is here with its current blob_sha.';
COMMENT ON COLUMN trecho.indexed_documents.index_version IS 'Index version.';
COMMENT ON COLUMN trecho.indexed_documents.document_id IS 'Document.';
COMMENT ON COLUMN trecho.indexed_documents.blob_sha IS 'Text the placements were made from.';
COMMENT ON COLUMN trecho.indexed_documents.chunk_count IS 'Placements of the document in this version.';
