-- Source sets: which configuration names which, where the paths of a plain folder begin, and removing one that nothing names any more.

CREATE OR REPLACE FUNCTION trecho.record_source_sets(
    project       text,
    branch        text,
    configuration text,   -- what tells it from others: its path, or git; empty: the sets were synced without one
    source_sets   text[]  -- every set it names
)
RETURNS TABLE (source_set text, documents integer, left_configuration boolean, doubled integer)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
BEGIN
    IF coalesce(record_source_sets.project, '') = '' OR coalesce(record_source_sets.branch, '') = '' OR record_source_sets.configuration IS NULL
       OR record_source_sets.source_sets IS NULL THEN
        RAISE EXCEPTION 'project, branch, configuration and source_sets must be given'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'For sets synced without a configuration give an empty one.';
    END IF;
    IF record_source_sets.configuration = '' THEN
        DELETE FROM trecho.source_sets AS s
         WHERE s.project = record_source_sets.project AND s.branch = record_source_sets.branch AND s.source_set = ANY (record_source_sets.source_sets);
        RETURN;
    END IF;
    INSERT INTO trecho.source_sets AS s (project, branch, source_set, configuration)
    SELECT DISTINCT record_source_sets.project, record_source_sets.branch, u.name, record_source_sets.configuration
      FROM unnest(record_source_sets.source_sets) AS u (name) ORDER BY u.name
    ON CONFLICT ON CONSTRAINT source_sets_pkey DO UPDATE SET configuration = excluded.configuration, named = true
     WHERE s.configuration <> excluded.configuration OR NOT s.named;
    UPDATE trecho.source_sets AS s SET named = false
     WHERE s.project = record_source_sets.project AND s.branch = record_source_sets.branch AND s.configuration = record_source_sets.configuration
       AND s.named AND NOT s.source_set = ANY (record_source_sets.source_sets);
    DELETE FROM trecho.source_sets AS s
     WHERE s.project = record_source_sets.project AND s.branch = record_source_sets.branch AND NOT s.named
       AND NOT EXISTS (SELECT FROM trecho.documents AS d WHERE d.project = s.project AND d.branch = s.branch AND d.source_set = s.source_set);
    RETURN QUERY
    SELECT d.source_set, count(*)::integer, bool_or(s.source_set IS NOT NULL),
           (count(*) FILTER (WHERE s.source_set IS NULL
                               AND EXISTS (SELECT FROM trecho.documents AS o
                                            WHERE o.blob_sha = d.blob_sha AND o.project = d.project AND o.branch = d.branch
                                              AND o.source_set = ANY (record_source_sets.source_sets))))::integer
      FROM trecho.documents AS d
      LEFT JOIN trecho.source_sets AS s ON s.project = d.project AND s.branch = d.branch AND s.source_set = d.source_set
     WHERE d.project = record_source_sets.project AND d.branch = record_source_sets.branch
       AND NOT d.source_set = ANY (record_source_sets.source_sets)
       AND ((s.configuration = record_source_sets.configuration AND NOT s.named) OR (s.source_set IS NULL AND d.source_set ~ '^(/|[A-Za-z]:/)'))
     GROUP BY d.source_set ORDER BY d.source_set;
END
$function$;
COMMENT ON FUNCTION trecho.record_source_sets(text, text, text, text[]) IS
    'Remember which sets of a branch a configuration names. Returns the sets it named once and names no more that still have documents (left_configuration), and those called like a folder that no configuration names, with how many of their documents this one has, too (doubled); nothing is removed. Raises 22004 for NULL arguments.';
REVOKE ALL ON FUNCTION trecho.record_source_sets(text, text, text, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.record_source_sets(text, text, text, text[]) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.list_source_sets(project text DEFAULT 'default')
RETURNS TABLE (branch text, source_set text, documents integer, configuration text, named boolean)
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
BEGIN
    PERFORM trecho._require_read(list_source_sets.project);
    RETURN QUERY
    SELECT d.branch, d.source_set, count(*)::integer, min(s.configuration), bool_and(s.named)
      FROM trecho.documents AS d
      LEFT JOIN trecho.source_sets AS s ON s.project = d.project AND s.branch = d.branch AND s.source_set = d.source_set
     WHERE d.project = list_source_sets.project AND d.source_set <> ''
     GROUP BY d.branch, d.source_set ORDER BY d.branch, d.source_set;
END
$function$;
COMMENT ON FUNCTION trecho.list_source_sets(text) IS
    'The source sets of a project that have documents: how many, which configuration brought the set last (a path, or git; NULL: none), and whether its last sync still named it. Raises 42501 for a project the caller may not read.';
REVOKE ALL ON FUNCTION trecho.list_source_sets(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.list_source_sets(text) TO trecho_reader;

CREATE OR REPLACE FUNCTION trecho.folder_prefix(
    project    text,
    branch     text,
    source_set text,
    prefixes   text[]  -- beginnings that would do, each with its slash, the shortest first
)
RETURNS TABLE (prefix text, taken_by text)
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
    WITH choice AS (
        SELECT u.prefix, u.n,
               (SELECT d.source_set FROM trecho.documents AS d
                 WHERE d.project = folder_prefix.project AND d.branch = folder_prefix.branch AND d.source_set <> folder_prefix.source_set
                   AND d.source_set ~ '^(/|[A-Za-z]:/)' AND starts_with(d.path, u.prefix) LIMIT 1) AS other,
               EXISTS (SELECT FROM trecho.documents AS d
                        WHERE d.project = folder_prefix.project AND d.branch = folder_prefix.branch AND d.source_set = folder_prefix.source_set)
               AND NOT EXISTS (SELECT FROM trecho.documents AS d
                                WHERE d.project = folder_prefix.project AND d.branch = folder_prefix.branch AND d.source_set = folder_prefix.source_set
                                  AND NOT starts_with(d.path, u.prefix)) AS mine
          FROM unnest(folder_prefix.prefixes) WITH ORDINALITY AS u (prefix, n)
    )
    SELECT c.prefix, CASE WHEN NOT c.mine THEN (SELECT b.other FROM choice AS b WHERE b.n = 1) END
      FROM choice AS c
     ORDER BY c.mine DESC, CASE WHEN c.mine THEN -c.n END, c.other IS NOT NULL, CASE WHEN c.other IS NULL THEN c.n ELSE -c.n END
     LIMIT 1
$function$;
COMMENT ON FUNCTION trecho.folder_prefix(text, text, text, text[]) IS
    'How the paths of a folder that is synced without a configuration begin: as those of its set do, else the shortest of the given beginnings below which no other folder has documents, else the longest. taken_by: which folder has documents below the shortest one, where that is why another was chosen. Sets with names of their own are not asked: they may be this very folder, and a file that both have is to be an error.';
REVOKE ALL ON FUNCTION trecho.folder_prefix(text, text, text, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.folder_prefix(text, text, text, text[]) TO trecho_writer;

CREATE OR REPLACE FUNCTION trecho.drop_source_set(
    source_set text,
    project    text DEFAULT 'default',
    branch     text DEFAULT 'main'
)
RETURNS integer  -- documents removed
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
    v_caller name := coalesce(nullif(current_setting('role'), 'none'), session_user::text);
    v_ids    bigint[];
    v_scopes trecho.chunk_scope[];
BEGIN
    IF coalesce(drop_source_set.source_set, '') = '' THEN
        RAISE EXCEPTION 'source_set must not be NULL or empty'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'What applications put belongs to no set: trecho.remove_document removes one of it.';
    END IF;
    PERFORM trecho._check_place('docs', drop_source_set.project, drop_source_set.branch);
    IF NOT pg_try_advisory_xact_lock(trecho._pass_lock_key(drop_source_set.project)) THEN
        RAISE EXCEPTION 'a pass over project % is running', drop_source_set.project
            USING ERRCODE = 'object_in_use', HINT = 'Wait for it; trecho.pass_holder tells who it is.';
    END IF;
    v_ids := ARRAY(SELECT d.document_id FROM trecho.documents AS d
                    WHERE d.project = drop_source_set.project AND d.branch = drop_source_set.branch AND d.source_set = drop_source_set.source_set
                    ORDER BY d.source FOR UPDATE);
    DELETE FROM trecho.source_sets AS s
     WHERE s.project = drop_source_set.project AND s.branch = drop_source_set.branch AND s.source_set = drop_source_set.source_set;
    IF cardinality(v_ids) > 0 OR EXISTS (SELECT FROM trecho.passes AS p
                                          WHERE p.project = drop_source_set.project AND p.branch = drop_source_set.branch
                                            AND p.source_set = drop_source_set.source_set) THEN
        v_scopes := ARRAY(SELECT DISTINCT d.scope FROM trecho.documents AS d WHERE d.document_id = ANY (v_ids));
        -- A publication that found nothing: what earlier ones left out counts no more.
        INSERT INTO trecho.passes AS p (project, branch, source_set, scopes, kind, outcome, role_name, backend_pid, backend_start, finished_at, documents_removed)
        VALUES (drop_source_set.project, drop_source_set.branch, drop_source_set.source_set, v_scopes, 'full', 'published', v_caller, pg_backend_pid(),
                coalesce((SELECT a.backend_start FROM pg_stat_get_activity(pg_backend_pid()) AS a), now()), now(), cardinality(v_ids));
        -- As if an application did: should a configuration still name the set, its next sync reads it whole.
        PERFORM trecho._remove_documents(v_ids, NULL);
    END IF;
    RETURN cardinality(v_ids);
END
$function$;
COMMENT ON FUNCTION trecho.drop_source_set(text, text, text) IS
    'Remove every document of a source set from a branch; gone from every search at the commit, and kept as trecho.gc keeps what is removed. A configuration that still names the set brings them back. Returns documents removed. Raises 22023 for an empty name, 55006 while a pass over the project runs.';
REVOKE ALL ON FUNCTION trecho.drop_source_set(text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.drop_source_set(text, text, text) TO trecho_writer;
