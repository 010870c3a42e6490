-- why: text search configurations and the immutable helpers that the generated column of chunks depends on
-- breaks old clients: no
-- needs operator: no

-- Drops Portuguese stop words before unaccent sees them ("não" would otherwise become the lexeme "nao"); passes everything else on.
CREATE TEXT SEARCH DICTIONARY trecho.portuguese_stop_1 (TEMPLATE = pg_catalog.simple, STOPWORDS = portuguese, ACCEPT = false);
COMMENT ON TEXT SEARCH DICTIONARY trecho.portuguese_stop_1 IS 'Portuguese stop words only; words that are not stop words go to the next dictionary.';

CREATE TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 (COPY = pg_catalog.portuguese);
ALTER TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1
    ALTER MAPPING FOR hword, hword_part, word
    WITH trecho.portuguese_stop_1, @extschema:unaccent@.unaccent, pg_catalog.portuguese_stem;
COMMENT ON TEXT SEARCH CONFIGURATION trecho.portuguese_unaccent_1 IS
    'Portuguese with accents removed before stemming, so that a question typed without accents finds accented text. Never replaced: a change is a new version.';

CREATE FUNCTION trecho.search_text_1(
    p_text text
)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
-- No SET clause: it would stop inlining, and every name is qualified.
-- From the inside out: camelCase and HTTPServer come apart; paths, dotted and hyphenated names come apart (the parser itself cuts at
-- underscores); plurals that the stock stemmer keeps apart from their singular become it: -ões, -ães, -ãos (mães aside), -ns, -ais, -eis...
AS $function$
    SELECT pg_catalog.regexp_replace(
             pg_catalog.regexp_replace(
               pg_catalog.regexp_replace(
                 pg_catalog.regexp_replace(
                   pg_catalog.translate(
                     pg_catalog.regexp_replace(p_text,
                       '([[:lower:][:digit:]])([[:upper:]])|([[:upper:]])([[:upper:]][[:lower:]])', '\1\3 \2\4', 'g'),
                     '_./:-', '     '),
                   '\m(m[aã]e)s\M', '\1', 'gi'),
                 '(?:[oõ]e|[aã]e|[aã]o)s\M', 'ão', 'gi'),
               'ns\M', 'm', 'gi'),
             '([aáeéoóuú])is\M', '\1l', 'gi')
$function$;
COMMENT ON FUNCTION trecho.search_text_1(text) IS
    'Text as the unaccented half of search_vector reads it: identifiers and paths cut into parts, irregular Portuguese plurals made singular. Version 1; never replaced, because stored rows keep what it gave.';
REVOKE ALL ON FUNCTION trecho.search_text_1(text) FROM PUBLIC;

CREATE FUNCTION trecho.search_vector_1(
    p_context text,
    p_content text
)
RETURNS tsvector
LANGUAGE sql IMMUTABLE PARALLEL SAFE
-- No SET clause: it would stop inlining, and every name is qualified.
-- The stop words in front of the second half keep a phrase from matching across the two.
AS $function$
    SELECT pg_catalog.to_tsvector('pg_catalog.portuguese'::pg_catalog.regconfig,
               p_context OPERATOR(pg_catalog.||) E'\n' OPERATOR(pg_catalog.||) p_content)
           OPERATOR(pg_catalog.||)
           pg_catalog.to_tsvector('trecho.portuguese_unaccent_1'::pg_catalog.regconfig,
               'de de de de de de de de ' OPERATOR(pg_catalog.||)
               trecho.search_text_1(p_context OPERATOR(pg_catalog.||) E'\n' OPERATOR(pg_catalog.||) p_content))
$function$;
COMMENT ON FUNCTION trecho.search_vector_1(text, text) IS
    'Lexemes of a chunk: stock Portuguese, then the unaccented form of trecho.search_text_1. Version 1; never replaced, because stored rows keep what it gave.';
REVOKE ALL ON FUNCTION trecho.search_vector_1(text, text) FROM PUBLIC;
