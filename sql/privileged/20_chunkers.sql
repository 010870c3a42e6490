-- The chunkers inside the server. PL/Python is untrusted, so only a superuser creates these functions, and none is SECURITY DEFINER.
-- trecho.py_load carries the sources of plpython/ in its body and puts the package into the session once; every other function only
-- calls it, and loads again when the stamp in its own body differs from that of what is loaded.
CREATE EXTENSION IF NOT EXISTS plpython3u;

-- CREATE OR REPLACE keeps the owner: a function that an ordinary role had put here before would stay in its hands.
DO $do$
DECLARE
    v_function regprocedure;
    v_owner    regrole;
BEGIN
    SELECT p.oid::regprocedure, p.proowner::regrole INTO v_function, v_owner
      FROM pg_catalog.pg_proc AS p
      JOIN pg_catalog.pg_roles AS r ON r.oid = p.proowner
     WHERE p.pronamespace = 'trecho'::regnamespace
       AND NOT r.rolsuper
       AND (p.prolang = (SELECT l.oid FROM pg_catalog.pg_language AS l WHERE l.lanname = 'plpython3u')
            OR p.proname IN ('py_load', '_cut', 'chunk', 'chunk_markdown', 'chunk_session', 'chunk_stability', 'describe',
                             'chunker_version', 'chunker_stamp', 'grammar_report'))
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'function % belongs to %, which is not a superuser', v_function, v_owner
            USING ERRCODE = 'insufficient_privilege',
                  HINT = pg_catalog.format('Look at it, then DROP FUNCTION %s and run this again.', v_function);
    END IF;
END
$do$;

-- Rows of a named type, since PL/Python looks up the columns of RETURNS TABLE anew for every row, which costs as much as the row itself.
DO $do$
BEGIN
    IF to_regtype('trecho.chunk_row') IS NULL THEN
        CREATE TYPE trecho.chunk_row AS (ordinal integer, kind text, symbol text, anchor_path text, context text, start_line integer, end_line integer, content text);
    END IF;
    IF to_regtype('trecho._cut_row') IS NULL THEN
        CREATE TYPE trecho._cut_row AS (ordinal integer, kind text, symbol text, anchor_path text, context text, start_line integer, end_line integer, content text, digest text);
    END IF;
END
$do$;
COMMENT ON TYPE trecho.chunk_row IS 'A passage as trecho.chunk cuts it.';
COMMENT ON TYPE trecho._cut_row IS 'A passage with the digest that its chunk_id ends in.';

CREATE OR REPLACE FUNCTION trecho.py_load()
RETURNS void
LANGUAGE plpython3u VOLATILE PARALLEL RESTRICTED SECURITY INVOKER
SET search_path = pg_catalog, pg_temp
AS $py$
import importlib.abc
import importlib.util
import linecache
import sys

STAMP = "{{chunker_stamp}}"
SOURCES = {{chunker_sources}}
PACKAGE = "trecho_chunkers"


def file_of(module):
    return "plpython/" + module.replace(".", "/") + ".py"


class ChunkerFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the package from SOURCES, one module when it is first needed."""

    serves = PACKAGE

    def find_spec(self, name, path=None, target=None):
        package = name + ".__init__"
        if package in SOURCES:
            return importlib.util.spec_from_loader(name, self, origin=file_of(package), is_package=True)
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, self, origin=file_of(name))
        if name.startswith(PACKAGE + "."):  # never a package of that name that the server happens to have
            raise ModuleNotFoundError("no module named %r in the chunkers" % name, name=name)
        return None

    def exec_module(self, module):
        spec = module.__spec__
        source = SOURCES[spec.name if spec.name in SOURCES else spec.name + ".__init__"]
        # PL/Python shows no file and a wrong line for module frames: real names and lines come from here.
        linecache.cache[spec.origin] = (len(source), None, source.splitlines(True), spec.origin)
        module.__file__ = spec.origin
        exec(compile(source, spec.origin, "exec"), module.__dict__)


def unload():
    sys.meta_path[:] = [f for f in sys.meta_path if getattr(f, "serves", None) != PACKAGE]
    for name in [n for n in sys.modules if n == PACKAGE or n.startswith(PACKAGE + ".")]:
        del sys.modules[name]


LOOK = plpy.prepare("SELECT 1")


def interrupted():
    """Let the server look for a cancel, statement_timeout or the end of the connection, none of which stops Python code by itself;
    the error if there is one."""
    try:
        plpy.execute(LOOK)
    except (plpy.Error, plpy.SPIError) as error:
        return error
    return None


class Service:
    """What the functions around call; SQL values in, SQL values out, errors with their SQLSTATE."""

    def __init__(self):
        import trecho_chunkers
        from trecho_chunkers import model
        model.interrupted = interrupted  # asked ten times a second
        self.chunkers = trecho_chunkers
        self.model = model
        self.settings = (None, model.DEFAULT_SETTINGS)  # the last ones given, as text and as read: they hardly change

    def call(self, work):
        """What `work` returns; its errors as SQL has them."""
        try:
            return work()
        except self.model.ChunkError as error:
            plpy.error(str(error), sqlstate=error.sqlstate, hint=error.hint or None)
        except (plpy.Error, plpy.SPIError):
            raise
        except Exception as error:
            import traceback
            frames = error.__traceback__
            while frames.tb_next and frames.tb_frame.f_code.co_filename == "<string>":  # this body, which has no file
                frames = frames.tb_next
            plpy.error(
                "chunkers failed: %s: %s" % (type(error).__name__, error),
                sqlstate="XX000",
                detail="".join(traceback.format_exception(type(error), error, frames)),
                hint="This is a defect of trecho: report it with the detail above.",
            )

    def required(self, **values):
        for name, value in values.items():
            if value is None:
                plpy.error("%s must not be null" % name, sqlstate="22004", hint="Pass a value for %s." % name)

    def read_settings(self, settings):
        text, known = self.settings
        if settings != text:
            import json
            known = self.model.Settings.from_json(None if settings is None else json.loads(settings))
            self.settings = (settings, known)
        return known

    def chunk(self, path, content, settings, scope):
        if path is None or content is None:
            self.required(path=path, content=content)
        return self.call(lambda: self.chunkers.chunk(path, content, self.read_settings(settings), scope))

    def cut(self, path, content, settings, scope):
        from hashlib import sha1
        return [(*c, sha1(c[7].encode(), usedforsecurity=False).hexdigest()[:10]) for c in self.chunk(path, content, settings, scope)]

    def chunk_markdown(self, content, settings):
        self.required(content=content)
        return self.call(lambda: self.chunkers.chunk_markdown(content, self.read_settings(settings)))

    def chunk_session(self, content, settings):
        self.required(content=content)
        return self.call(lambda: self.chunkers.chunk_session(content, self.read_settings(settings)))

    def chunk_stability(self, path, content, settings, scope):
        def work():
            from trecho_chunkers import stability
            return stability.chunk_stability(path, content, self.read_settings(settings), scope)
        self.required(path=path, content=content)
        return self.call(work)

    def describe(self, path, content, scope, project):
        def work():
            import json
            from trecho_chunkers.describe import describe
            found = describe(path, content, scope, project)
            return (found.title, found.doc_id, found.doc_id_claimed, found.language, found.session_id,
                    json.dumps(found.metadata, ensure_ascii=False))
        self.required(path=path, content=content, scope=scope, project=project)
        return self.call(work)

    def grammar_report(self):
        def work():
            import importlib
            import importlib.metadata
            from trecho_chunkers.languages import GRAMMARS
            from trecho_chunkers.parsing import grammar_problem

            def report(module, package, problem_of, label=""):
                version = path = None
                try:
                    problem = problem_of()
                    if problem is None:
                        version = importlib.metadata.version(package) if package else None
                        path = getattr(importlib.import_module(module), "__file__", None)
                except Exception as error:
                    problem = "%s: %s" % (type(error).__name__, error)
                return (module + label, version or STAMP, path, problem is None, problem)

            rows = [("python", sys.version.split()[0], sys.prefix, True, None)]
            rows += [report(name.removesuffix(".__init__"), None, lambda: None) for name in sorted(SOURCES)]
            rows.append(report("tree_sitter", "tree-sitter", lambda: None))
            rows += [report(g.module, g.package, lambda n=n: grammar_problem(n), " (%s)" % n)
                     for n, g in sorted(GRAMMARS.items())]
            return rows
        return self.call(work)


unload()
sys.meta_path.insert(0, ChunkerFinder())
GD["trecho"] = Service()
GD["trecho_stamp"] = STAMP
$py$;
COMMENT ON FUNCTION trecho.py_load() IS
    'Load the chunkers (the sources are in this body) into the session; the chunk functions call it by themselves. Called again, it loads afresh.';
REVOKE ALL ON FUNCTION trecho.py_load() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.py_load() TO trecho_owner, trecho_writer;

CREATE OR REPLACE FUNCTION trecho.chunk(
    path     text,                -- decides the chunker by its extension; never read as a file
    content  text,                -- the whole document
    settings jsonb DEFAULT NULL,  -- keys left out keep their default
    scope    text  DEFAULT NULL   -- session chooses the session chunker; anything else goes by the path
)
RETURNS SETOF trecho.chunk_row
LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER COST 10000 ROWS 20
-- No SET clause: it would be carried out again for every row. Every name is qualified.
AS $py$
if GD.get("trecho_stamp") != "{{chunker_stamp}}":
    plpy.execute("SELECT trecho.py_load()")
    if GD.get("trecho_stamp") != "{{chunker_stamp}}":
        plpy.error("trecho.chunk and trecho.py_load are of different releases", hint="Apply sql/privileged/20_chunkers.sql whole.")
return GD["trecho"].chunk(path, content, settings, scope)
$py$;
COMMENT ON FUNCTION trecho.chunk(text, text, jsonb, text) IS
    'Cut a document into passages, in order: ordinal from 1; symbol is the heading path or the code symbol; anchor_path the slugs of its headings; context what the slice alone does not say; lines from 1, inclusive, of the original; content one slice of the normalised text, at most chunk_max_bytes. No rows for blank text. Raises TR008 when it cannot be chunked, 22023 for a wrong setting, 22004 for a null path or content, 57014 when statement_timeout ends.';
REVOKE ALL ON FUNCTION trecho.chunk(text, text, jsonb, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.chunk(text, text, jsonb, text) TO trecho_owner, trecho_writer;

CREATE OR REPLACE FUNCTION trecho._cut(p_path text, p_content text, p_settings jsonb, p_scope text)
RETURNS SETOF trecho._cut_row
LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER COST 10000 ROWS 20
-- No SET clause: it would be carried out again for every row. Every name is qualified.
AS $py$
if GD.get("trecho_stamp") != "{{chunker_stamp}}":
    plpy.execute("SELECT trecho.py_load()")
    if GD.get("trecho_stamp") != "{{chunker_stamp}}":
        plpy.error("trecho._cut and trecho.py_load are of different releases", hint="Apply sql/privileged/20_chunkers.sql whole.")
return GD["trecho"].cut(p_path, p_content, p_settings, p_scope)
$py$;
COMMENT ON FUNCTION trecho._cut(text, text, jsonb, text) IS
    'As trecho.chunk, with the digest that chunk_id ends in: the first 10 hexadecimal digits of SHA-1 of the content.';
REVOKE ALL ON FUNCTION trecho._cut(text, text, jsonb, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho._cut(text, text, jsonb, text) TO trecho_owner;

CREATE OR REPLACE FUNCTION trecho.chunk_markdown(
    content  text,
    settings jsonb DEFAULT NULL
)
RETURNS SETOF trecho.chunk_row
LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER COST 10000 ROWS 20
-- No SET clause: it would be carried out again for every row. Every name is qualified.
AS $py$
if GD.get("trecho_stamp") != "{{chunker_stamp}}":
    plpy.execute("SELECT trecho.py_load()")
    if GD.get("trecho_stamp") != "{{chunker_stamp}}":
        plpy.error("trecho.chunk_markdown and trecho.py_load are of different releases", hint="Apply sql/privileged/20_chunkers.sql whole.")
return GD["trecho"].chunk_markdown(content, settings)
$py$;
COMMENT ON FUNCTION trecho.chunk_markdown(text, jsonb) IS
    'Cut Markdown into passages, whatever its path; columns and errors as trecho.chunk.';
REVOKE ALL ON FUNCTION trecho.chunk_markdown(text, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.chunk_markdown(text, jsonb) TO trecho_owner, trecho_writer;

CREATE OR REPLACE FUNCTION trecho.chunk_session(
    content  text,                -- JSON events or a plain transcript
    settings jsonb DEFAULT NULL
)
RETURNS SETOF trecho.chunk_row
LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER COST 10000 ROWS 20
-- No SET clause: it would be carried out again for every row. Every name is qualified.
AS $py$
if GD.get("trecho_stamp") != "{{chunker_stamp}}":
    plpy.execute("SELECT trecho.py_load()")
    if GD.get("trecho_stamp") != "{{chunker_stamp}}":
        plpy.error("trecho.chunk_session and trecho.py_load are of different releases", hint="Apply sql/privileged/20_chunkers.sql whole.")
return GD["trecho"].chunk_session(content, settings)
$py$;
COMMENT ON FUNCTION trecho.chunk_session(text, jsonb) IS
    'Cut a session (JSON events, or a plain transcript) into passages of whole turns; columns and errors as trecho.chunk.';
REVOKE ALL ON FUNCTION trecho.chunk_session(text, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.chunk_session(text, jsonb) TO trecho_owner, trecho_writer;

CREATE OR REPLACE FUNCTION trecho.chunk_stability(
    path     text,
    content  text,
    settings jsonb DEFAULT NULL,
    scope    text  DEFAULT NULL   -- as in trecho.chunk
)
RETURNS TABLE (edit text, chunks integer, ids_changed integer, hashes_changed integer, really_changed integer)
LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER COST 30000 ROWS 2
SET search_path = pg_catalog, pg_temp
AS $py$
if GD.get("trecho_stamp") != "{{chunker_stamp}}":
    plpy.execute("SELECT trecho.py_load()")
    if GD.get("trecho_stamp") != "{{chunker_stamp}}":
        plpy.error("trecho.chunk_stability and trecho.py_load are of different releases", hint="Apply sql/privileged/20_chunkers.sql whole.")
return GD["trecho"].chunk_stability(path, content, settings, scope)
$py$;
COMMENT ON FUNCTION trecho.chunk_stability(text, text, jsonb, text) IS
    'How still the chunks hold, for the chunker of this path and scope: one row per edit tried on the text (edit says which); chunks counts those after it, ids_changed and hashes_changed those whose chunk_id or content_hash is new, really_changed those whose text the edit touched. Errors as trecho.chunk.';
REVOKE ALL ON FUNCTION trecho.chunk_stability(text, text, jsonb, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.chunk_stability(text, text, jsonb, text) TO trecho_owner, trecho_writer;

CREATE OR REPLACE FUNCTION trecho.describe(
    path    text,
    content text,
    scope   text,                        -- docs, adr, session or code
    project text DEFAULT 'default',      -- part of the identity of a session that states none
    OUT title          text,
    OUT doc_id         text,
    OUT doc_id_claimed boolean,
    OUT language       text,
    OUT session_id     uuid,
    OUT metadata       jsonb
)
LANGUAGE plpython3u STABLE PARALLEL RESTRICTED SECURITY INVOKER COST 1000
SET search_path = pg_catalog, pg_temp
AS $py$
if GD.get("trecho_stamp") != "{{chunker_stamp}}":
    plpy.execute("SELECT trecho.py_load()")
    if GD.get("trecho_stamp") != "{{chunker_stamp}}":
        plpy.error("trecho.describe and trecho.py_load are of different releases", hint="Apply sql/privileged/20_chunkers.sql whole.")
return GD["trecho"].describe(path, content, scope, project)
$py$;
COMMENT ON FUNCTION trecho.describe(text, text, text, text) IS
    'What a document says about itself: title (front matter, first level-1 heading, file name), doc_id and whether the front matter claimed it, language (NULL when unknown), session_id (NULL unless scope is session), metadata (front matter). Raises TR008 for text that cannot be read, 22004 for a null argument.';
REVOKE ALL ON FUNCTION trecho.describe(text, text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.describe(text, text, text, text) TO trecho_owner, trecho_writer;

CREATE OR REPLACE FUNCTION trecho.grammar_report()
RETURNS TABLE (module text, version text, path text, ok boolean, error text)
LANGUAGE plpython3u VOLATILE PARALLEL RESTRICTED SECURITY INVOKER COST 100000 ROWS 20
SET search_path = pg_catalog, pg_temp
AS $py$
if GD.get("trecho_stamp") != "{{chunker_stamp}}":
    plpy.execute("SELECT trecho.py_load()")
    if GD.get("trecho_stamp") != "{{chunker_stamp}}":
        plpy.error("trecho.grammar_report and trecho.py_load are of different releases", hint="Apply sql/privileged/20_chunkers.sql whole.")
return GD["trecho"].grammar_report()
$py$;
COMMENT ON FUNCTION trecho.grammar_report() IS
    'One row per Python module that the chunkers use inside this server: imported, and for a grammar tried by a small parse. ok is false where that failed, and error says how to install it; chunking a text in such a language raises 58P01.';
REVOKE ALL ON FUNCTION trecho.grammar_report() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.grammar_report() TO trecho_owner, trecho_writer;

-- These two answer without starting Python: the client asks them before it trusts the rest.
CREATE OR REPLACE FUNCTION trecho.chunker_version()
RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
-- No SET clause: a constant needs none, and it would stop inlining.
AS $function$SELECT {{chunker_version}}$function$;
COMMENT ON FUNCTION trecho.chunker_version() IS 'Version of the chunking rules; part of every recipe.';
REVOKE ALL ON FUNCTION trecho.chunker_version() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.chunker_version() TO trecho_owner, trecho_reader;

CREATE OR REPLACE FUNCTION trecho.chunker_stamp()
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SECURITY INVOKER
-- No SET clause: a constant needs none, and it would stop inlining.
AS $function$SELECT '{{chunker_stamp}}'::text$function$;
COMMENT ON FUNCTION trecho.chunker_stamp() IS
    'Hash of the chunker sources and of the SQL around them; trecho migrate compares it with its own to see whether this layer is current.';
REVOKE ALL ON FUNCTION trecho.chunker_stamp() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION trecho.chunker_stamp() TO trecho_owner, trecho_reader;
