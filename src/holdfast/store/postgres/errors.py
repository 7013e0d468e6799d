"""What the driver's and the server's errors mean: whether to ask again, and which of our errors to raise."""

import re
from enum import Enum

import psycopg
from psycopg import errors as pg

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    InvalidInput,
    Outcome,
    RefusedError,
    SchemaError,
    StoreAuth,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
)
from holdfast.store.postgres.address import DatabaseAddress


class NoAnswer(psycopg.OperationalError):
    """Ours: the server was silent until the deadline. The connection is of no use any more."""


class Fate(Enum):
    """What an error means for the question that was asked."""

    LOST = "lost"  # the connection is gone: what was asked may or may not have happened
    AGAIN = "again"  # it did not happen and may succeed if asked again
    FINAL = "final"  # it did not happen and will not


# Serialization failure, deadlock, lock timeout.
_AGAIN = ("40001", "40P01", "55P03")
READ_ONLY = "25006"
COLLISION = "23505"  # a key or an id that is taken, perhaps since just now
# The server ended the session: shutdown, crash, not yet started, idle limits; or another plan is needed.
_LOST = ("57P01", "57P02", "57P03", "57P05", "25P03", "0A000")


def fate_of(error: psycopg.Error, connection: "psycopg.AsyncConnection[tuple[object, ...]] | None") -> Fate:
    code = error.sqlstate
    if connection is not None and connection.closed:
        return Fate.LOST
    if code is None:
        # Without a code the driver speaks for itself: of the connection, or of values that it cannot send.
        return Fate.LOST if isinstance(error, psycopg.OperationalError) else Fate.FINAL
    if code in _LOST or code.startswith("08"):
        return Fate.LOST
    return Fate.AGAIN if code in _AGAIN else Fate.FINAL


def explain(error: psycopg.Error, address: DatabaseAddress, *, outcome: Outcome = "not_written") -> HoldfastError:
    """As one of ours. `outcome` is for errors that end a session."""
    said = address.scrub(error.diag.message_primary or str(error))
    match error.sqlstate:
        case "53100":
            return StoreFull(f"{address}: the server has no room left on its disk; nothing was written: free some")
        case code if code == READ_ONLY:
            return StoreReadOnly(
                f"{address} does not accept writes ({said}): a standby, or set read-only; connect to the primary"
            )
        case "28P01" | "28000":
            return _auth(address, said)
        case "42501":
            return StoreAuth(f"{address}: user {address.user!r} may not do this ({said}): grant it the rights")
        case "3D000":
            return _no_database(address)
        case "57014":
            return StoreTimeout(f"{address}: the server gave up at our time limit; nothing was written: try again")
        case "40001" | "40P01" | "55P03":
            return StoreTimeout(f"{address}: others held the rows until the deadline ({said}); nothing was written")
        case "23505":
            return RefusedError(
                f"there is such a row already: {said}; use a new id", reason="state", state="idle", command="create"
            )
        case "42P01" | "42703" | "3F000":
            return SchemaError(f"{address}: a table or column of ours is missing ({said}): was it dropped?")
        case "26000" | "42P05":
            return ConfigError(
                f"{address}: {said}. Is this a pooler in transaction mode? Then add pooler=transaction to the URL"
            )
        case "XX001" | "XX002":
            return StoreCorrupt(f"{address} is damaged ({said}): restore it from a backup, and keep the damaged one")
        case code if code is not None and code.startswith("22"):
            return InvalidInput("record", f"PostgreSQL does not take it: {said}")
    if isinstance(error, psycopg.DataError):
        return InvalidInput("text", said)
    if isinstance(error, NoAnswer):
        return StoreTimeout(
            f"{address} did not answer in time: is the server, or the network, stuck?", outcome=outcome
        )
    return StoreUnavailable(f"{address}: {said}; ask again", outcome=outcome)


# --- connecting ---------------------------------------------------------------------------------------------------

# A refused login has no SQLSTATE in libpq, only words; in another language than these it reads as unavailable.
_AUTH = re.compile(
    r"password authentication failed|no password supplied|authentication failed|role .* does not exist"
    r"|no pg_hba\.conf entry|is not permitted to log in|permission denied for database|SASL|no such user",
    re.IGNORECASE,
)
_NO_DATABASE = re.compile(r"database .* does not exist|no such database", re.IGNORECASE)


def explain_connecting(error: psycopg.Error, address: DatabaseAddress) -> HoldfastError:
    said = address.scrub(str(error))
    if isinstance(error, pg.InvalidPassword | pg.InvalidAuthorizationSpecification) or _AUTH.search(said):
        return _auth(address, said)
    if isinstance(error, pg.InvalidCatalogName) or _NO_DATABASE.search(said):
        return _no_database(address)
    return StoreUnavailable(f"{address} cannot be reached: {said}")


def _auth(address: DatabaseAddress, said: str) -> StoreAuth:
    return StoreAuth(
        f"{address} refused user {address.user!r} ({said}): check the user, the password and the server's pg_hba.conf"
    )


def _no_database(address: DatabaseAddress) -> ConfigError:
    return ConfigError(
        f"there is no database {address.database!r} at {address.host}:{address.port}: create it "
        f"(CREATE DATABASE …), or name another one in the URL"
    )
