-- Who may read which project. Functions are SECURITY DEFINER and ask here for the role that called them.

CREATE OR REPLACE FUNCTION trecho._caller()
RETURNS name
LANGUAGE sql STABLE PARALLEL SAFE
-- No SET clause, so that it is inlined into every search.
AS $function$
    -- current_user is the owner inside a SECURITY DEFINER function; SET ROLE is still seen in the setting.
    SELECT coalesce(nullif(pg_catalog.current_setting('role', true), 'none'), session_user::pg_catalog.text)::pg_catalog.name
$function$;
COMMENT ON FUNCTION trecho._caller() IS 'Role that called: the one of SET ROLE, else the one that logged in.';
REVOKE ALL ON FUNCTION trecho._caller() FROM PUBLIC;

-- plpgsql keeps the plan; a SQL function with a SET clause would be planned at every call.
CREATE OR REPLACE FUNCTION trecho._may_read(p_project text)
RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF pg_has_role(trecho._caller(), 'trecho_owner', 'MEMBER') THEN
        RETURN true;  -- apart, because this alone needs no executor
    END IF;
    RETURN EXISTS (SELECT FROM trecho.project_grants AS g
                     JOIN pg_roles AS r ON r.rolname = g.role_name
                    WHERE g.project IN (p_project, '*') AND pg_has_role(trecho._caller(), r.oid, 'MEMBER'))
        OR NOT EXISTS (SELECT FROM trecho.index_state);  -- nothing was ever written, and the first grant comes with it
END
$function$;
COMMENT ON FUNCTION trecho._may_read(text) IS 'True when the caller is a member of trecho_owner, or of a role that project_grants lets read the project.';
REVOKE ALL ON FUNCTION trecho._may_read(text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho._require_read(p_project text)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF p_project IS NULL THEN
        RAISE EXCEPTION 'project must not be NULL' USING ERRCODE = 'null_value_not_allowed', HINT = 'Leave it out to use the project default.';
    END IF;
    IF NOT trecho._may_read(p_project) THEN
        RAISE EXCEPTION 'role % may not read project %', trecho._caller(), quote_literal(p_project)
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('An operator can allow it: SELECT trecho.grant_project(%L, %L).', trecho._caller(), p_project);
    END IF;
END
$function$;
COMMENT ON FUNCTION trecho._require_read(text) IS 'Raises 42501 unless the caller may read the project.';
REVOKE ALL ON FUNCTION trecho._require_read(text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION trecho.grant_project(
    role    name,  -- its members may read, too
    project text   -- * means every project
)
RETURNS boolean    -- false when it was granted already
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    IF coalesce(grant_project.project, '') = '' THEN
        RAISE EXCEPTION 'project must not be empty' USING ERRCODE = 'invalid_parameter_value', HINT = 'Use * for every project.';
    END IF;
    IF to_regrole(quote_ident(grant_project.role)) IS NULL THEN
        RAISE EXCEPTION 'role % does not exist', coalesce(quote_ident(grant_project.role), 'NULL')
            USING ERRCODE = 'undefined_object', HINT = 'Create the role first.';
    END IF;
    PERFORM trecho._ensure_state();
    INSERT INTO trecho.project_grants (role_name, project) VALUES (grant_project.role, grant_project.project)
    ON CONFLICT ON CONSTRAINT project_grants_pkey DO NOTHING;
    RETURN FOUND;
END
$function$;
COMMENT ON FUNCTION trecho.grant_project(name, text) IS
    'Let a role and its members read a project (* for all). Returns false when they could already. A new database lets trecho_reader read everything: revoke that first to separate projects. Raises 42704 for an unknown role.';
REVOKE ALL ON FUNCTION trecho.grant_project(name, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.grant_project(name, text) TO trecho_operator;

CREATE OR REPLACE FUNCTION trecho.revoke_project(
    role    name,
    project text   -- as it was granted; * takes away only the grant on all projects
)
RETURNS boolean    -- false when there was no such grant
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
    PERFORM trecho._ensure_state();
    DELETE FROM trecho.project_grants AS g
     WHERE g.role_name = revoke_project.role AND g.project = revoke_project.project;
    RETURN FOUND;
END
$function$;
COMMENT ON FUNCTION trecho.revoke_project(name, text) IS 'Take a grant on a project back. Returns false when there was none.';
REVOKE ALL ON FUNCTION trecho.revoke_project(name, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.revoke_project(name, text) TO trecho_operator;
