-- What state the index is in, computed from the rows themselves.

CREATE OR REPLACE FUNCTION trecho.index_health(project text DEFAULT 'default')
RETURNS TABLE (usable boolean, current boolean, active_version integer, active_label text, configured_version text, last_completed_at timestamptz,
               documents integer, application_documents integer, chunks integer, pending_embeddings integer, failed_embeddings integer,
               quarantined integer, last_pass bigint, running_pass bigint, running_since timestamptz, running_pid integer, failed_documents integer)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_holder record;
BEGIN
    PERFORM trecho._require_read(index_health.project);
    SELECT s.active_version, v.label INTO index_health.active_version, index_health.active_label
      FROM trecho.index_state AS s LEFT JOIN trecho.index_versions AS v ON v.index_version = s.active_version;
    index_health.configured_version := trecho._recipe_label(trecho._wanted_recipe());
    SELECT max(b.last_completed_at) INTO index_health.last_completed_at FROM trecho.branches AS b WHERE b.project = index_health.project;
    SELECT count(*), count(*) FILTER (WHERE d.source_set = '') INTO index_health.documents, index_health.application_documents
      FROM trecho.documents AS d WHERE d.project = index_health.project;
    -- Placed chunks only: what is written ahead of a publication, or retired, is nobody's backlog.
    SELECT count(*), count(*) FILTER (WHERE c.embedding IS NULL AND NOT c.quarantined AND coalesce(a.attempt_count, 0) < 5),
           count(*) FILTER (WHERE c.embedding IS NULL AND NOT c.quarantined AND a.attempt_count >= 5), count(*) FILTER (WHERE c.quarantined)
      INTO index_health.chunks, index_health.pending_embeddings, index_health.failed_embeddings, index_health.quarantined
      FROM trecho.chunks AS c
      LEFT JOIN trecho.embedding_attempts AS a ON c.embedding IS NULL AND a.index_version = c.index_version AND a.text_hash = c.text_hash
     WHERE c.index_version = index_health.active_version AND c.project = index_health.project
       AND EXISTS (SELECT FROM trecho.placements AS p WHERE p.index_version = index_health.active_version AND p.chunk_key = c.chunk_key);
    SELECT max(p.pass_id) INTO index_health.last_pass FROM trecho.passes AS p WHERE p.project = index_health.project;
    SELECT h.pass_id, h.started_at, h.backend_pid INTO index_health.running_pass, index_health.running_since, index_health.running_pid
      FROM trecho.pass_holder(index_health.project) AS h;
    -- Of the last publication of each set: one that has no document, because none could be published, counts most of all.
    SELECT coalesce(sum(l.documents_failed), 0) INTO index_health.failed_documents
      FROM (SELECT DISTINCT ON (p.branch, p.source_set) p.documents_failed
              FROM trecho.passes AS p
             WHERE p.project = index_health.project AND p.outcome = 'published'
               AND EXISTS (SELECT FROM trecho.branches AS b WHERE b.project = p.project AND b.branch = p.branch)
             ORDER BY p.branch, p.source_set, p.pass_id DESC) AS l;
    index_health.usable := index_health.last_completed_at IS NOT NULL
        OR EXISTS (SELECT FROM trecho.documents AS d JOIN trecho.indexed_documents AS i ON i.document_id = d.document_id
                    WHERE d.project = index_health.project AND i.index_version = index_health.active_version);
    index_health.current := coalesce(index_health.usable AND trecho._version_recipe(index_health.active_version) = trecho._wanted_recipe()
        AND index_health.pending_embeddings = 0 AND index_health.failed_embeddings = 0 AND index_health.failed_documents = 0
        AND index_health.running_pass IS NULL
        AND NOT EXISTS (SELECT FROM trecho.branches AS b WHERE b.project = index_health.project
                           AND b.completed_index_version IS DISTINCT FROM index_health.active_version), false);
    RETURN NEXT;
END
$function$;
COMMENT ON FUNCTION trecho.index_health(text) IS
    'One row about a project. usable: a pass has completed or a document was put into the active version. current: the active recipe is the configured one, every branch is completed in it, no vector is pending or failed, no document was left out by the last publication of its set, no pass runs. configured_version is the label of the configured recipe. Raises 42501 for a project the caller may not read.';
REVOKE ALL ON FUNCTION trecho.index_health(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.index_health(text) TO trecho_reader;

CREATE OR REPLACE FUNCTION trecho.index_contents(project text DEFAULT 'default')
RETURNS TABLE (branch text, scope trecho.chunk_scope, source_set text, documents integer, chunks bigint, oldest timestamptz, newest timestamptz)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
BEGIN
    PERFORM trecho._require_read(index_contents.project);
    RETURN QUERY
    SELECT d.branch, d.scope, d.source_set, count(*)::integer, coalesce(sum(i.chunk_count), 0)::bigint, min(d.updated_at), max(d.updated_at)
      FROM trecho.documents AS d
      LEFT JOIN trecho.indexed_documents AS i ON i.document_id = d.document_id
            AND i.index_version = (SELECT s.active_version FROM trecho.index_state AS s)
     WHERE d.project = index_contents.project
     GROUP BY d.branch, d.scope, d.source_set
     ORDER BY d.branch, d.scope, d.source_set;
END
$function$;
COMMENT ON FUNCTION trecho.index_contents(text) IS
    'Documents and chunks of a project by branch, scope and source set, with the oldest and newest change. Raises 42501 for a project the caller may not read.';
REVOKE ALL ON FUNCTION trecho.index_contents(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.index_contents(text) TO trecho_reader;

CREATE OR REPLACE FUNCTION trecho.list_languages(project text DEFAULT 'default', branch text DEFAULT 'main')
RETURNS TABLE (language text, documents integer)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
BEGIN
    PERFORM trecho._require_read(list_languages.project);
    RETURN QUERY
    SELECT d.language, count(*)::integer FROM trecho.documents AS d
     WHERE d.project = list_languages.project AND d.branch = list_languages.branch AND d.language IS NOT NULL
     GROUP BY d.language ORDER BY count(*) DESC, d.language;
END
$function$;
COMMENT ON FUNCTION trecho.list_languages(text, text) IS
    'Languages that documents of a branch have, as the filter languages of a search takes them, the most frequent first. Raises 42501 for a project the caller may not read.';
REVOKE ALL ON FUNCTION trecho.list_languages(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.list_languages(text, text) TO trecho_reader;

CREATE OR REPLACE FUNCTION trecho.list_passes(project text DEFAULT 'default', k integer DEFAULT 20)
RETURNS SETOF trecho.passes
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
BEGIN
    PERFORM trecho._require_read(list_passes.project);
    RETURN QUERY SELECT p.* FROM trecho.passes AS p WHERE p.project = list_passes.project ORDER BY p.pass_id DESC LIMIT list_passes.k;
END
$function$;
COMMENT ON FUNCTION trecho.list_passes(text, integer) IS 'The last k passes over a project, newest first. Raises 42501 for a project the caller may not read.';
REVOKE ALL ON FUNCTION trecho.list_passes(text, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.list_passes(text, integer) TO trecho_reader;

CREATE OR REPLACE FUNCTION trecho.list_failed(project text DEFAULT 'default', k integer DEFAULT 20)
RETURNS TABLE (chunk_id text, attempt_count integer, last_error text, last_attempt_at timestamptz, text_hash bytea)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_active integer := (SELECT s.active_version FROM trecho.index_state AS s);
BEGIN
    PERFORM trecho._require_read(list_failed.project);
    RETURN QUERY
    SELECT p.chunk_id, a.attempt_count, a.last_error, a.last_attempt_at, a.text_hash
      FROM trecho.embedding_attempts AS a
      JOIN trecho.chunks AS c ON c.index_version = a.index_version AND c.text_hash = a.text_hash AND c.project = list_failed.project
      JOIN trecho.placements AS p ON p.index_version = c.index_version AND p.chunk_key = c.chunk_key
     WHERE a.index_version = v_active AND a.attempt_count >= trecho._max_attempts() AND c.embedding IS NULL AND NOT c.quarantined
     ORDER BY a.last_attempt_at DESC, p.chunk_id LIMIT list_failed.k;
END
$function$;
COMMENT ON FUNCTION trecho.list_failed(text, integer) IS
    'Passages whose text could not be embedded in 5 attempts, with the last error, newest first; k at most. trecho.retry_failed tries them again. Raises 42501 for a project the caller may not read.';
REVOKE ALL ON FUNCTION trecho.list_failed(text, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.list_failed(text, integer) TO trecho_reader;
