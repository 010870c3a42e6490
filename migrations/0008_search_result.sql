-- why: types of the search functions
-- breaks old clients: no
-- needs operator: no

CREATE TYPE trecho.search_result AS (
    rank           integer,
    score          double precision,
    lexical_score  double precision,
    semantic_score double precision,
    chunk_id       text,
    doc_id         text,
    scope          trecho.chunk_scope,
    source_path    text,
    session_id     uuid,
    title          text,
    anchor         text,
    ordinal        integer,
    chunk_count    integer,
    start_line     integer,
    end_line       integer,
    content        text,
    metadata       jsonb,
    symbol         text,
    index_version  integer
);
COMMENT ON TYPE trecho.search_result IS 'One passage found by trecho.search.';
COMMENT ON COLUMN trecho.search_result.rank IS 'Position, from skip + 1.';
COMMENT ON COLUMN trecho.search_result.score IS 'Order of the results, higher is better. hybrid: 0 to 1, comparable within one query only; lexical: lexical_score; semantic: semantic_score.';
COMMENT ON COLUMN trecho.search_result.lexical_score IS 'Words: 0 (none of them) upwards, higher is better, comparable within one query only; NULL when words were not asked for.';
COMMENT ON COLUMN trecho.search_result.semantic_score IS 'Cosine similarity, -1 to 1, higher is better; NULL without a query vector or where the chunk has none yet.';
COMMENT ON COLUMN trecho.search_result.chunk_id IS 'Readable identity of the chunk.';
COMMENT ON COLUMN trecho.search_result.doc_id IS 'Stable identity of the document.';
COMMENT ON COLUMN trecho.search_result.scope IS 'docs, adr, session or code.';
COMMENT ON COLUMN trecho.search_result.source_path IS 'Path; NULL for a session.';
COMMENT ON COLUMN trecho.search_result.session_id IS 'Session; NULL otherwise.';
COMMENT ON COLUMN trecho.search_result.title IS 'Title of the document.';
COMMENT ON COLUMN trecho.search_result.anchor IS 'doc_id#heading-slug.';
COMMENT ON COLUMN trecho.search_result.ordinal IS 'Position of the chunk in the document, from 1.';
COMMENT ON COLUMN trecho.search_result.chunk_count IS 'Chunks of the document.';
COMMENT ON COLUMN trecho.search_result.start_line IS 'First line in the original, from 1.';
COMMENT ON COLUMN trecho.search_result.end_line IS 'Last line in the original, inclusive.';
COMMENT ON COLUMN trecho.search_result.content IS 'Text of the chunk.';
COMMENT ON COLUMN trecho.search_result.metadata IS 'Metadata of the document.';
COMMENT ON COLUMN trecho.search_result.symbol IS 'Heading path or qualified code symbol; empty for a window.';
COMMENT ON COLUMN trecho.search_result.index_version IS 'Index version that answered.';

CREATE TYPE trecho.search_hit AS (
    chunk_key   bigint,
    document_id bigint,
    ordinal     integer,
    lexical     double precision,
    semantic    double precision,
    score       double precision,
    rank        integer
);
COMMENT ON TYPE trecho.search_hit IS 'A candidate of a search, before its text is read. Private.';
COMMENT ON COLUMN trecho.search_hit.chunk_key IS 'Chunk.';
COMMENT ON COLUMN trecho.search_hit.document_id IS 'Document in the branch that is searched.';
COMMENT ON COLUMN trecho.search_hit.ordinal IS 'First position of the chunk in the document.';
COMMENT ON COLUMN trecho.search_hit.lexical IS 'Score of words; NULL when not computed.';
COMMENT ON COLUMN trecho.search_hit.semantic IS 'Cosine similarity; NULL when not computed.';
COMMENT ON COLUMN trecho.search_hit.score IS 'What the hits are ordered by.';
COMMENT ON COLUMN trecho.search_hit.rank IS 'Position, from skip + 1.';
