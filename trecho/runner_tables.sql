-- The runner's own tables. Additive only: every release must be able to read what another one wrote.
CREATE TABLE IF NOT EXISTS trecho.schema_migrations (
    name        text PRIMARY KEY,
    kind        text NOT NULL CHECK (kind IN ('privileged', 'migration', 'sql')),
    checksum    text NOT NULL,
    release     text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT now(),
    applied_by  name NOT NULL DEFAULT session_user,
    duration_ms integer
);
COMMENT ON TABLE trecho.schema_migrations IS 'What trecho migrate has run here: migrations once each, the other files again whenever their checksum changes.';
COMMENT ON COLUMN trecho.schema_migrations.name IS 'File, with its folder.';
COMMENT ON COLUMN trecho.schema_migrations.kind IS 'privileged: needs a superuser; migration: runs once; sql: functions, views and grants.';
COMMENT ON COLUMN trecho.schema_migrations.checksum IS 'SHA-256 of the file as shipped (migration) or with the schemas of extensions filled in (the others), in hexadecimal.';
COMMENT ON COLUMN trecho.schema_migrations.release IS 'Version of trecho that ran it.';
COMMENT ON COLUMN trecho.schema_migrations.applied_at IS 'When, as the time of its transaction.';
COMMENT ON COLUMN trecho.schema_migrations.applied_by IS 'Role that was logged in.';
COMMENT ON COLUMN trecho.schema_migrations.duration_ms IS 'How long it took, in milliseconds; NULL when a printed script ran it.';
CREATE TABLE IF NOT EXISTS trecho.installation (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    chunking     text NOT NULL CHECK (chunking IN ('server', 'client')),
    installed_at timestamptz NOT NULL DEFAULT now(),
    installed_by name NOT NULL DEFAULT session_user
);
COMMENT ON TABLE trecho.installation IS 'One row: choices made when this database was set up.';
COMMENT ON COLUMN trecho.installation.singleton IS 'Always true.';
COMMENT ON COLUMN trecho.installation.chunking IS 'server: documents are cut by PL/Python in this server; client: by the client, because the server has no plpython3u.';
COMMENT ON COLUMN trecho.installation.installed_at IS 'When trecho migrate first ran here.';
COMMENT ON COLUMN trecho.installation.installed_by IS 'Role that was logged in.';
CREATE TABLE IF NOT EXISTS trecho.schema_objects (
    object      text PRIMARY KEY,
    file        text NOT NULL,
    fingerprint text NOT NULL
);
COMMENT ON TABLE trecho.schema_objects IS 'Functions and views as their files made them, so that one that was dropped or altered by hand is noticed and put back.';
COMMENT ON COLUMN trecho.schema_objects.object IS 'Function with the types of its arguments, or view.';
COMMENT ON COLUMN trecho.schema_objects.file IS 'File that makes it.';
COMMENT ON COLUMN trecho.schema_objects.fingerprint IS 'SHA-256 of its definition, owner, comment and rights, in hexadecimal.';
