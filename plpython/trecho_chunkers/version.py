"""The version of the chunking rules.

It is part of every recipe: two chunkers with one version give byte-identical chunks for the same
(path, text, settings). Raise it with any change of the rules, the normaliser included.
"""

CHUNKER_VERSION: int = 1
