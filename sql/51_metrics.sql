-- Figures for monitors, one row each. Cheap: documents are counted and so are the texts that wait for a vector; chunks are not.

CREATE OR REPLACE FUNCTION trecho._metrics()
RETURNS TABLE (name text, labels jsonb, value double precision, help text)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
    v_active   integer := (SELECT s.active_version FROM trecho.index_state AS s);
    v_all      boolean := pg_has_role(trecho._caller(), 'pg_monitor', 'MEMBER') OR pg_has_role(trecho._caller(), 'trecho_operator', 'MEMBER');
    v_projects text[];
    v_version  integer;
    v_last_key bigint := (SELECT CASE WHEN q.is_called THEN q.last_value ELSE 0 END FROM trecho.chunk_key_seq AS q);
BEGIN
    -- One step for each project, whatever the number of documents.
    WITH RECURSIVE projects AS (
        (SELECT d.project FROM trecho.documents AS d ORDER BY d.project LIMIT 1)
        UNION ALL
        SELECT (SELECT d.project FROM trecho.documents AS d WHERE d.project > p.project ORDER BY d.project LIMIT 1)
          FROM projects AS p WHERE p.project IS NOT NULL)
    SELECT coalesce(array_agg(x.project), '{}') INTO v_projects
      FROM (SELECT p.project FROM projects AS p WHERE p.project IS NOT NULL UNION SELECT b.project FROM trecho.branches AS b) AS x
     WHERE v_all OR trecho._may_read(x.project);

    RETURN QUERY
    SELECT m.name, m.labels, m.value::double precision, m.help
      FROM (SELECT d.project, d.branch, d.scope, count(*) AS documents, sum(coalesce(i.chunk_count, 0)) AS chunks,
                   count(*) FILTER (WHERE i.document_id IS NULL) AS missing, count(*) FILTER (WHERE d.source_set = '') AS put
              FROM trecho.documents AS d
              LEFT JOIN trecho.indexed_documents AS i ON i.index_version = v_active AND i.document_id = d.document_id AND i.blob_sha = d.blob_sha
             WHERE d.project = ANY (v_projects)
             GROUP BY d.project, d.branch, d.scope) AS c
     CROSS JOIN LATERAL (VALUES
            ('trecho_documents', c.documents, 'Published documents.'),
            ('trecho_documents_put', c.put, 'Of these, put by applications and in no source: back them up.'),
            ('trecho_documents_missing', c.missing, 'Of these, not in the active version with their present text.'),
            ('trecho_chunks', c.chunks, 'Passages of published documents in the active version.')) AS v (name, value, help)
     CROSS JOIN LATERAL (SELECT v.name, jsonb_build_object('project', c.project, 'branch', c.branch, 'scope', c.scope) AS labels, v.value, v.help) AS m;

    RETURN QUERY
    SELECT m.name, m.labels, m.value::double precision, m.help
      FROM trecho.branches AS b
     CROSS JOIN LATERAL (VALUES
            ('trecho_pass_completed_age_seconds', extract(epoch FROM now() - b.last_completed_at), 'Since the last pass was published.'),
            ('trecho_branch_current', (b.completed_index_version IS NOT DISTINCT FROM v_active)::integer, '1: last completed in the active version.')) AS v (name, value, help)
     CROSS JOIN LATERAL (SELECT v.name, jsonb_build_object('project', b.project, 'branch', b.branch) AS labels, v.value, v.help) AS m
     WHERE b.project = ANY (v_projects);

    RETURN QUERY
    SELECT m.name, m.labels, m.value::double precision, m.help
      FROM unnest(v_projects) AS r (project)
     CROSS JOIN LATERAL (SELECT p.* FROM trecho.passes AS p WHERE p.project = r.project ORDER BY p.pass_id DESC LIMIT 1) AS p
     CROSS JOIN LATERAL (SELECT p.outcome = 'running' AND trecho._pass_lock_holder(p.project) IS NOT DISTINCT FROM p.backend_pid AS alive) AS a
     CROSS JOIN LATERAL (VALUES
            ('trecho_pass_running', jsonb_build_object('project', r.project), a.alive::integer::numeric, '1: a pass over the project runs.'),
            ('trecho_pass_running_seconds', jsonb_build_object('project', r.project), CASE WHEN a.alive THEN extract(epoch FROM now() - p.started_at) ELSE 0 END,
             'How long it has been running.'),
            ('trecho_pass_last_outcome', jsonb_build_object('project', r.project, 'outcome',
                CASE WHEN p.outcome = 'running' AND NOT a.alive THEN 'killed' ELSE p.outcome END), 1, 'Always 1; the outcome of the last pass is the label.'),
            ('trecho_pass_last_documents_failed', jsonb_build_object('project', r.project), p.documents_failed, 'Documents that the last pass left out because of an error.'))
           AS m (name, labels, value, help);

    FOR v_version IN SELECT v.index_version FROM trecho.index_versions AS v ORDER BY 1 LOOP
        CONTINUE WHEN NOT trecho._attached(v_version);
        RETURN QUERY
        SELECT 'trecho_version', jsonb_build_object('index_version', v_version, 'state', v.state, 'label', v.label), 1::double precision,
               'Always 1; one row for each version, its state and recipe are labels.'
          FROM trecho.index_versions AS v WHERE v.index_version = v_version;
        IF v_version = v_active OR EXISTS (SELECT FROM trecho.index_versions AS v WHERE v.index_version = v_version AND v.state = 'building') THEN
            -- Only rows of the partial index of chunks without a vector are read.
            RETURN QUERY EXECUTE format($sql$
                SELECT m.name, m.labels, m.value::double precision, m.help
                  FROM unnest($2) AS r (project)
                  LEFT JOIN (SELECT c.project,
                                    count(DISTINCT c.text_hash) FILTER (WHERE NOT c.quarantined AND coalesce(a.attempt_count, 0) < trecho._max_attempts()) AS pending,
                                    count(DISTINCT c.text_hash) FILTER (WHERE NOT c.quarantined AND a.attempt_count >= trecho._max_attempts()) AS failed,
                                    count(DISTINCT c.text_hash) FILTER (WHERE c.quarantined) AS quarantined
                               FROM trecho.%I AS c
                               LEFT JOIN trecho.embedding_attempts AS a ON a.index_version = $1 AND a.text_hash = c.text_hash
                              WHERE c.embedding IS NULL AND EXISTS (SELECT FROM trecho.%I AS p WHERE p.chunk_key = c.chunk_key)
                              GROUP BY c.project) AS w ON w.project = r.project
                 CROSS JOIN LATERAL (VALUES
                        ('trecho_texts_pending', coalesce(w.pending, 0), 'Published texts that wait for a vector.'),
                        ('trecho_texts_failed', coalesce(w.failed, 0), 'Published texts whose embedding was given up.'),
                        ('trecho_texts_quarantined', coalesce(w.quarantined, 0), 'Published texts that the secret scan holds back.')) AS v (name, value, help)
                 CROSS JOIN LATERAL (SELECT v.name, jsonb_build_object('project', r.project, 'index_version', $1) AS labels, v.value, v.help) AS m
                $sql$, 'chunks_' || v_version, 'placements_' || v_version) USING v_version, v_projects;
        END IF;
        RETURN QUERY
        SELECT 'trecho_relation_bytes', jsonb_build_object('index_version', v_version, 'relation', c.relname,
                    'kind', CASE WHEN c.relkind = 'r' THEN 'table' ELSE m.amname END),
               CASE WHEN c.relkind = 'r' THEN pg_table_size(c.oid) ELSE pg_relation_size(c.oid) END::double precision,
               'Size of a table (with its TOAST) or an index of a version.'
          FROM pg_class AS t
          JOIN pg_class AS c ON c.oid = t.oid OR c.oid IN (SELECT i.indexrelid FROM pg_index AS i WHERE i.indrelid = t.oid)
          JOIN pg_am AS m ON m.oid = c.relam
         WHERE t.oid IN (to_regclass('trecho.chunks_' || v_version), to_regclass('trecho.placements_' || v_version));
        RETURN QUERY
        SELECT 'trecho_indexes_not_usable', jsonb_build_object('index_version', v_version), count(*)::double precision, 'Indexes of a version that are missing or not valid; the search indexes of one that is being built come last.'
          FROM trecho._wanted_indexes(v_version) AS w
          LEFT JOIN (pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid)
            ON i.indrelid = to_regclass('trecho.' || w.table_name) AND c.relname = w.index_name
         WHERE CASE WHEN i.indexrelid IS NULL
                    THEN w.ddl IS NOT NULL OR EXISTS (SELECT FROM trecho.index_versions AS v WHERE v.index_version = v_version AND v.state <> 'building')
                    ELSE NOT (i.indisvalid AND i.indisready AND i.indislive) END;
    END LOOP;

    RETURN QUERY
    SELECT v.name, v.labels, v.value::double precision, v.help
      FROM (VALUES
            ('trecho_usable', '{}'::jsonb, (v_active IS NOT NULL AND EXISTS (SELECT FROM trecho.indexed_documents AS i WHERE i.index_version = v_active))::integer::numeric,
             '1: something can be found.'),
            ('trecho_recipe_drift', '{}', (SELECT count(*) FROM trecho.drift()), 'Parts of the recipe in which the active version differs from the wanted one.'),
            ('trecho_leases', '{}', (SELECT count(*) FROM trecho.embedding_attempts AS a WHERE a.leased_by IS NOT NULL), 'Texts that a worker holds now.'),
            ('trecho_vectors_staged', '{}', (SELECT count(*) FROM (SELECT FROM trecho.staged_embeddings AS s LIMIT 10001) AS s),
             'Vectors that are paid for and not on their chunks yet; 10001 stands for more than 10000.')) AS v (name, labels, value, help)
    UNION ALL
    -- What other versions took from the sequence makes the lag look larger, never smaller.
    SELECT v.name, jsonb_build_object('index_version', t.index_version), v.value::double precision, v.help
      FROM trecho.lexeme_totals AS t
     CROSS JOIN LATERAL (VALUES
            ('trecho_word_statistics_lag', (v_last_key - t.last_chunk_key)::numeric / greatest(t.chunk_count, 1), 'Chunks written since the words were counted, as a share of those counted.'),
            ('trecho_word_statistics_age_seconds', extract(epoch FROM now() - t.refreshed_at), 'Since the words were counted.')) AS v (name, value, help)
     WHERE t.index_version = v_active;
END
$function$;
COMMENT ON FUNCTION trecho._metrics() IS
    'Rows of trecho.metrics. Projects are those the caller may read; members of pg_monitor and trecho_operator see every one.';
REVOKE ALL ON FUNCTION trecho._metrics() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho._metrics() TO trecho_reader, trecho_operator, pg_monitor;

-- lint: allow blocks-readers (of this view, while it is replaced)
CREATE OR REPLACE VIEW trecho.metrics AS
    SELECT m.name, m.labels, m.value, m.help FROM trecho._metrics() AS m;
COMMENT ON VIEW trecho.metrics IS
    'Figures for monitors, one row each: what the index holds, what waits or failed, passes, versions, drift, statistics, sizes. Chunks are never counted one by one.';
COMMENT ON COLUMN trecho.metrics.name IS 'Name in the manner of Prometheus, with its unit.';
COMMENT ON COLUMN trecho.metrics.labels IS 'Labels: project, branch, scope, index_version, state, outcome, relation, kind, as far as they apply.';
COMMENT ON COLUMN trecho.metrics.value IS 'The figure; a gauge.';
COMMENT ON COLUMN trecho.metrics.help IS 'What it says, in one sentence.';
REVOKE ALL ON trecho.metrics FROM PUBLIC;
GRANT SELECT ON trecho.metrics TO trecho_reader, trecho_operator, pg_monitor;
GRANT USAGE ON SCHEMA trecho TO pg_monitor;
