"""trecho: the client of a searchable, embedded, always-true index of documents inside PostgreSQL."""

from __future__ import annotations

__version__ = "0.1.0"
