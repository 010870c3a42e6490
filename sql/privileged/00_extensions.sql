-- Extensions. On Debian pgvector is not a trusted extension, so creating it takes a superuser; unaccent is trusted.
-- Each may live in any schema; the runner writes the one that holds it (public where it is new).
CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA @extschema:vector@;
CREATE EXTENSION IF NOT EXISTS unaccent WITH SCHEMA @extschema:unaccent@;
