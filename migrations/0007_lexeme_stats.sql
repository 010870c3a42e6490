-- why: document frequencies for ranking words
-- breaks old clients: no
-- needs operator: no

CREATE TABLE trecho.lexeme_stats (
    index_version      integer NOT NULL,
    lexeme             text NOT NULL,
    document_frequency integer NOT NULL CHECK (document_frequency >= 0),
    PRIMARY KEY (index_version, lexeme)
);
COMMENT ON TABLE trecho.lexeme_stats IS 'In how many chunks of a version a lexeme occurs. Counted in batches, so it lags; an unseen lexeme counts as rare.';
COMMENT ON COLUMN trecho.lexeme_stats.index_version IS 'Index version.';
COMMENT ON COLUMN trecho.lexeme_stats.lexeme IS 'Lexeme of search_vector.';
COMMENT ON COLUMN trecho.lexeme_stats.document_frequency IS 'Chunks it occurs in.';
