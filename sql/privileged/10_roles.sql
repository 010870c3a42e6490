-- Roles belong to the whole cluster: another database may have made them, or may be making them at this moment.
DO $do$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['trecho_owner', 'trecho_reader', 'trecho_writer', 'trecho_operator'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles AS r WHERE r.rolname = v_role) THEN
            BEGIN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', v_role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL;  -- made in between by another session; it is there now
            END;
        END IF;
    END LOOP;
END
$do$;

-- operator holds writer, and writer holds reader. Granted only where missing: two sessions that grant at once would collide.
DO $do$
DECLARE
    v_pair text[];
BEGIN
    FOREACH v_pair SLICE 1 IN ARRAY ARRAY[['trecho_reader', 'trecho_writer'], ['trecho_writer', 'trecho_operator']] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_auth_members AS m
                        WHERE m.roleid = v_pair[1]::regrole AND m.member = v_pair[2]::regrole) THEN
            BEGIN
                EXECUTE pg_catalog.format('GRANT %I TO %I', v_pair[1], v_pair[2]);
            EXCEPTION WHEN unique_violation THEN
                NULL;
            END;
        END IF;
    END LOOP;
    -- Who migrates acts as trecho_owner. A superuser may already; a role that may create roles may grant it to itself.
    IF NOT pg_catalog.pg_has_role(current_user, 'trecho_owner', 'SET') THEN
        EXECUTE pg_catalog.format('GRANT trecho_owner TO %I', current_user);
    END IF;
END
$do$;

DO $do$
BEGIN
    IF pg_catalog.to_regnamespace('trecho') IS NULL THEN
        CREATE SCHEMA trecho AUTHORIZATION trecho_owner;
    ELSIF (SELECT n.nspowner FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'trecho') <> 'trecho_owner'::regrole THEN
        RAISE EXCEPTION 'schema trecho exists and belongs to %',
            (SELECT n.nspowner::regrole FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'trecho')
            USING ERRCODE = 'duplicate_schema',
                  HINT = 'If nothing else uses it: ALTER SCHEMA trecho OWNER TO trecho_owner.';
    END IF;
END
$do$;
COMMENT ON SCHEMA trecho IS 'Searchable, embedded index of documents: functions for applications, tables behind them.';
GRANT USAGE ON SCHEMA trecho TO trecho_reader, trecho_writer, trecho_operator;

-- The types and operators of the extensions, where their schema is not open to everyone.
DO $do$
DECLARE
    v_schema name;
BEGIN
    FOR v_schema IN
        SELECT DISTINCT n.nspname
          FROM pg_catalog.pg_extension AS e
          JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
         WHERE e.extname IN ('vector', 'unaccent')
           AND NOT (pg_catalog.has_schema_privilege('trecho_owner', n.oid, 'USAGE')
                    AND pg_catalog.has_schema_privilege('trecho_reader', n.oid, 'USAGE'))
    LOOP
        EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA %I TO trecho_owner, trecho_reader, trecho_writer, trecho_operator', v_schema);
    END LOOP;
END
$do$;
