"""What a tracking store raises, in its own words: without SQL and without the links of the libraries around it."""

import logging
import sqlite3
from collections.abc import Iterator

_PRIMARY = 0xFF
"""Bits of a result code that are not its details. Source: SQLite, Result and Error Codes."""


def raised() -> tuple[type[Exception], ...]:
    """Return what a store raises: MLflow wraps only part of what its database does.

    To be called before a store is used: MLflow logs a traceback, SQL included, of what it raises, and then no more.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return (MlflowException, SQLAlchemyError, OSError)


def plain(error: BaseException) -> str:
    """Return in one line why a store refused."""
    found = _of_sqlite(error)
    text = str(found or error).partition("[SQL:")[0].strip()
    return text.splitlines()[0] if text else type(error).__name__


def code(error: BaseException) -> int | None:
    """Return the result code of SQLite behind an error, None where it is not SQLite's."""
    found = _of_sqlite(error)
    number = getattr(found, "sqlite_errorcode", None)
    return None if number is None else number & _PRIMARY


def _of_sqlite(error: BaseException) -> sqlite3.Error | None:
    return next((each for each in _chain(error) if isinstance(each, sqlite3.Error)), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
