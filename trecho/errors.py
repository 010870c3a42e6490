"""Exit codes, errors of the client, and what the SQLSTATEs of the database mean (docs/errors.md)."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # trecho --version must not pay for the driver
    import psycopg


class ExitCode(IntEnum):
    """How a command ends. The same table stands in docs/errors.md."""

    DONE = 0  # done, or skipped because there was nothing to do
    ERROR = 1
    USAGE = 2
    OPERATOR = 3  # an operator (usually a superuser) must act first; nothing was changed
    REFUSED = 4  # a guard refused: edited migration, mass delete, ...
    NOT_USABLE = 5
    NOT_CURRENT = 6  # not current, or something is pending
    SOME_FAILED = 7  # some texts failed; the rest is done


class TrechoError(Exception):
    """The command cannot go on."""

    sqlstate: str | None = None
    exit_code: ExitCode = ExitCode.ERROR
    kind: str = (
        ""  # name of the error for programs, where it has no SQLSTATE and its exit code says too little
    )

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str = "",
        detail: str = "",
        exit_code: ExitCode | None = None,
    ) -> None:
        """The class docstring is the default message. hint: a step the reader can take. detail: evidence."""
        super().__init__(message or (type(self).__doc__ or "").strip().rstrip("."))
        self.hint = hint
        self.detail = detail
        if exit_code is not None:
            self.exit_code = exit_code

    @property
    def code(self) -> str:
        """For programs: the SQLSTATE where there is one, else the kind, else what the exit code means."""
        return self.sqlstate or self.kind or self.exit_code.name.lower()

    def as_json(self) -> dict[str, object]:
        """What `--json` prints."""
        return {
            "error": str(self),
            "code": self.code,
            "hint": self.hint,
            "detail": self.detail,
            "sqlstate": self.sqlstate,
            "exit_code": int(self.exit_code),
        }


class UsageError(TrechoError):
    """The command line or the configuration is wrong."""

    exit_code = ExitCode.USAGE


class OperatorNeeded(TrechoError):
    """An operator must act first."""

    exit_code = ExitCode.OPERATOR


class Refused(TrechoError):
    """Refused by a guard."""

    exit_code = ExitCode.REFUSED


class ConnectionFailed(TrechoError):
    """The server cannot be reached."""

    kind = "connection_failed"


class NotMigrated(TrechoError):
    """The database has no schema trecho."""

    kind = "not_migrated"
    exit_code = ExitCode.NOT_USABLE


class OtherRelease(TrechoError):
    """The database lacks something this client calls."""

    kind = "other_release"
    exit_code = ExitCode.NOT_CURRENT


class UnknownVersion(TrechoError):
    """The index version does not exist."""

    sqlstate = "TR001"


class NotUsable(TrechoError):
    """The index is not usable yet."""

    sqlstate = "TR002"
    exit_code = ExitCode.NOT_USABLE


class VectorWithoutVersion(TrechoError):
    """A vector came without the index version it was made for, and more than one stands."""

    sqlstate = "TR003"


class ClientTooOld(TrechoError):
    """The client is older than the chunkers of the database."""

    sqlstate = "TR004"
    exit_code = ExitCode.REFUSED


class LockNotHeld(TrechoError):
    """This connection does not hold the lock of the pass."""

    sqlstate = "TR005"


class VectorOfOtherVersion(TrechoError):
    """The vector was made for another index version."""

    sqlstate = "TR006"


class DuplicateDocId(TrechoError):
    """Two documents of a branch claim one doc_id."""

    sqlstate = "TR007"


class CannotChunk(TrechoError):
    """The text cannot be chunked."""

    sqlstate = "TR008"
    exit_code = ExitCode.SOME_FAILED


class MassDelete(TrechoError):
    """The pass would remove most of its set."""

    sqlstate = "TR009"
    exit_code = ExitCode.REFUSED


class NoChunkers(TrechoError):
    """The server has no chunkers: this database chunks in the client."""

    sqlstate = "TR010"


BY_SQLSTATE: dict[str, type[TrechoError]] = {
    cls.sqlstate: cls
    for cls in (
        UnknownVersion,
        NotUsable,
        VectorWithoutVersion,
        ClientTooOld,
        LockNotHeld,
        VectorOfOtherVersion,
        DuplicateDocId,
        CannotChunk,
        MassDelete,
        NoChunkers,
    )
    if cls.sqlstate is not None
}

# Something that the client calls by name is not there: no schema, table, column, function or type.
MISSING = frozenset({"3F000", "42P01", "42703", "42883", "42704"})

# Standard SQLSTATEs for which the server's own message leaves the reader without a next step.
_HINTS: dict[str, str] = {
    "3F000": "Run trecho migrate first: this database has no schema trecho.",
    "42P01": "Run trecho migrate: the schema of this database is older than this client.",
    "42703": "Run trecho migrate: the schema of this database is older than this client.",
    "42883": "Run trecho migrate: the functions of this database are older than this client.",
    "42501": "Grant trecho_reader, trecho_writer or trecho_operator to this role; docs/roles.md says which.",
    "25006": "This server or session is read-only: connect to the primary.",
    "57P01": "The server ended the connection: run the command again.",
}


def from_database(error: psycopg.Error) -> TrechoError:
    """Turn an error of the server into ours: decided by SQLSTATE, never by text; cause kept by the caller."""
    diag = error.diag
    sqlstate = error.sqlstate or ""
    message = (diag.message_primary or str(error).strip() or type(error).__name__).removeprefix(
        "plpy.Error: "
    )
    hint = diag.message_hint or _HINTS.get(sqlstate, "")
    cls = BY_SQLSTATE.get(sqlstate)
    if cls is not None:
        return cls(message, hint=hint, detail=diag.message_detail or "")
    result = TrechoError(
        f"{message} (SQLSTATE {sqlstate})" if sqlstate else message,
        hint=hint,
        detail=diag.message_detail or "",
    )
    result.sqlstate = sqlstate or None
    return result
