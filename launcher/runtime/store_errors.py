"""Errors of a tracking store as short messages: without SQL and links to libraries' documentation."""

import logging
import sqlite3

_PRIMARY = 0xFF
"""Bits of the primary result code. Source: SQLite, Result and Error Codes."""


def raised() -> tuple[type[Exception], ...]:
    """Return the exceptions of a store: MLflow wraps only some errors of its database.

    Call it before a store is used: otherwise MLflow logs each error with its traceback and SQL.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return (MlflowException, SQLAlchemyError, OSError)


def plain(error: BaseException) -> str:
    """Return the error of a store in one line."""
    found = _of_sqlite(error)
    text = str(found or error).partition("[SQL:")[0].strip()
    return text.splitlines()[0] if text else type(error).__name__


def code(error: BaseException) -> int | None:
    """Return the SQLite result code behind an error; None if there is none."""
    found = _of_sqlite(error)
    number = getattr(found, "sqlite_errorcode", None)
    return None if number is None else number & _PRIMARY


def _of_sqlite(error: BaseException | None) -> sqlite3.Error | None:
    while not (error is None or isinstance(error, sqlite3.Error)):
        error = error.__cause__ or error.__context__
    return error
