-- why: document frequencies for ranking words, and totals that searches read instead of counting
-- breaks old clients: no
-- needs operator: no

-- No foreign key: it would be checked for each of some 100,000 rows; rows of dropped versions go at the next refresh.
CREATE TABLE trecho.lexeme_stats (
    index_version      integer NOT NULL,
    lexeme             text COLLATE "C" NOT NULL,
    document_frequency integer NOT NULL CHECK (document_frequency >= 0),
    PRIMARY KEY (index_version, lexeme)
);
COMMENT ON TABLE trecho.lexeme_stats IS 'In how many chunks of a version a lexeme occurs. Counted in batches, so it lags; an unseen lexeme counts as rare.';
COMMENT ON COLUMN trecho.lexeme_stats.index_version IS 'Index version.';
COMMENT ON COLUMN trecho.lexeme_stats.lexeme IS 'Lexeme of search_vector.';
COMMENT ON COLUMN trecho.lexeme_stats.document_frequency IS 'Chunks it occurs in.';

CREATE TABLE trecho.lexeme_totals (
    index_version   integer PRIMARY KEY REFERENCES trecho.index_versions (index_version) ON DELETE CASCADE,
    chunk_count     bigint NOT NULL CHECK (chunk_count >= 0),
    sample_fraction double precision NOT NULL CHECK (sample_fraction > 0 AND sample_fraction <= 1),
    last_chunk_key  bigint NOT NULL,
    refreshed_at    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE trecho.lexeme_totals IS 'What lexeme_stats was counted from, one row per version; the distance from it to the present is its lag.';
COMMENT ON COLUMN trecho.lexeme_totals.index_version IS 'Index version.';
COMMENT ON COLUMN trecho.lexeme_totals.chunk_count IS 'Chunks of the version when it was counted.';
COMMENT ON COLUMN trecho.lexeme_totals.sample_fraction IS 'Share of the chunks that was read, above 0 and up to 1.';
COMMENT ON COLUMN trecho.lexeme_totals.last_chunk_key IS 'Highest chunk_key handed out when it was counted.';
COMMENT ON COLUMN trecho.lexeme_totals.refreshed_at IS 'When it was counted.';

CREATE TABLE trecho.branch_totals (
    index_version  integer NOT NULL REFERENCES trecho.index_versions (index_version) ON DELETE CASCADE,
    project        text NOT NULL,
    branch         text NOT NULL,
    document_count bigint NOT NULL,
    chunk_count    bigint NOT NULL,
    max_chunks     integer NOT NULL,
    PRIMARY KEY (index_version, project, branch)
);
COMMENT ON TABLE trecho.branch_totals IS 'Size of every branch when lexeme_stats was last counted: how many rows a search expects, and how far it over-fetches.';
COMMENT ON COLUMN trecho.branch_totals.index_version IS 'Index version.';
COMMENT ON COLUMN trecho.branch_totals.project IS 'Project.';
COMMENT ON COLUMN trecho.branch_totals.branch IS 'Branch.';
COMMENT ON COLUMN trecho.branch_totals.document_count IS 'Documents with at least one chunk.';
COMMENT ON COLUMN trecho.branch_totals.chunk_count IS 'Placements.';
COMMENT ON COLUMN trecho.branch_totals.max_chunks IS 'Chunks of the longest document.';
