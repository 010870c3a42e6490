-- why: text search configurations and the immutable helper that the generated column of chunks depends on
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

CREATE FUNCTION trecho.search_vector_1(
    p_context text,
    p_content text,
    p_is_code boolean
)
RETURNS tsvector
LANGUAGE sql IMMUTABLE PARALLEL SAFE
-- No SET clause: it would stop inlining, and every name is qualified.
AS $function$
    SELECT pg_catalog.to_tsvector('pg_catalog.portuguese'::pg_catalog.regconfig, p_context OPERATOR(pg_catalog.||) E'\n' OPERATOR(pg_catalog.||) p_content)
           OPERATOR(pg_catalog.||)
           pg_catalog.to_tsvector('trecho.portuguese_unaccent_1'::pg_catalog.regconfig,
               CASE WHEN p_is_code
                    THEN pg_catalog.regexp_replace(
                             pg_catalog.regexp_replace(p_context OPERATOR(pg_catalog.||) E'\n' OPERATOR(pg_catalog.||) p_content,
                                                       '([[:lower:][:digit:]])([[:upper:]])', '\1 \2', 'g'),
                             '[_./:-]+', ' ', 'g')
                    ELSE p_context OPERATOR(pg_catalog.||) E'\n' OPERATOR(pg_catalog.||) p_content
               END)
$function$;
COMMENT ON FUNCTION trecho.search_vector_1(text, text, boolean) IS
    'Lexemes of a chunk: stock Portuguese, then the unaccented form (for code, identifiers split into their parts). Version 1; never replaced, because stored rows keep what it gave.';
