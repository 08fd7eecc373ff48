"""Tables of a plan or a job: rows, a data frame, and HTML for notebooks."""

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

_SHOWN = 30
"""Rows that a notebook shows at the start and at the end of a long table."""


class Table(tuple[Mapping[str, Any], ...]):
    """Rows, which `frame` makes a data frame. A row may lack some of the columns."""

    __slots__ = ()

    def __getitem__(self, place: Any) -> Any:
        """Return a row, or the table of a slice."""
        found = super().__getitem__(place)
        return Table(found) if isinstance(place, slice) else found

    def __add__(self, other: Any) -> "Table":
        """Return a table with the rows of another one after its own."""
        return Table((*self, *other))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every key of the rows, in the order in which they appear."""
        return tuple(dict.fromkeys(key for row in self for key in row))

    def frame(self) -> "pandas.DataFrame":
        """Return the rows as a data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        return pandas.DataFrame(list(self))

    def _repr_html_(self) -> str:
        head, left_out = self.columns, len(self) - 2 * _SHOWN
        rows = [[str(row.get(key, "")) for key in head] for row in (self if left_out <= 0 else self[:_SHOWN])]
        if left_out > 0:
            rows.append([f"… {left_out} rows", *[""] * (len(head) - 1)])
            rows += [[str(row.get(key, "")) for key in head] for row in self[-_SHOWN:]]
        return html_table(head, rows)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose cells show as they are, whatever markup they hold."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return (
        f"<table><thead>{line('th', head)}</thead><tbody>{''.join(line('td', row) for row in rows)}</tbody></table>"
    )
