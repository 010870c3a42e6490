-- Choices of the installation that every client needs to know. Roles and their schema are in privileged/10_roles.sql.

CREATE OR REPLACE FUNCTION trecho.chunking()
RETURNS text                                    -- server or client
LANGUAGE sql STABLE PARALLEL SAFE SECURITY DEFINER  -- callers have no right on the table
SET search_path = pg_catalog, pg_temp
AS $function$
    SELECT i.chunking FROM trecho.installation AS i
$function$;
COMMENT ON FUNCTION trecho.chunking() IS
    'Where documents are cut: server (PL/Python, trecho.chunk) or client (no plpython3u here; the client hands over the chunks). Set by trecho migrate --chunking.';
REVOKE ALL ON FUNCTION trecho.chunking() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.chunking() TO trecho_reader;
