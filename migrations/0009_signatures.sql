-- why: these functions took fewer arguments; their old forms would make calls ambiguous, and what replaces them serves old callers by defaults
-- breaks old clients: no
-- needs operator: no

DROP FUNCTION IF EXISTS trecho.publish_pass(bigint, boolean, boolean, text, jsonb, text);
DROP FUNCTION IF EXISTS trecho.claim_embeddings(text, integer, bigint, interval, integer);
DROP FUNCTION IF EXISTS trecho.pending_embeddings(integer);
DROP FUNCTION IF EXISTS trecho.has_pending_embeddings(integer, timestamptz);
DROP FUNCTION IF EXISTS trecho._claim_embeddings(text, integer, integer, bigint, interval);
DROP FUNCTION IF EXISTS trecho._pending_texts_query(integer, boolean);
DROP FUNCTION IF EXISTS trecho._wanted_condition(integer);
