"""Completion in bash, which splits words at `=`, `:` and `@`; typer's own completion does not handle that.

Source: Bash manual, Programmable Completion, and Bash Variables, COMP_WORDBREAKS.
"""

import os

from click.shell_completion import CompletionItem, add_completion_class, split_arg_string
from typer import _completion_classes, _completion_shared

_BASH = "bash"
_LINE, _BREAKS = "COMP_LINE", "COMP_WORDBREAKS"
_SCRIPT = """
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   COMP_LINE="${COMP_LINE:0:COMP_POINT}" \\
                   COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
                   %(autocomplete_var)s=complete_bash $1 ) )
    if [[ ${COMPREPLY[0]-} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
"""typer's script, with the line as typed, and without a blank after a key that needs a value."""


class BashComplete(_completion_classes.BashComplete):
    """Reads the line up to the cursor, and returns the part after the last character at which bash splits a word."""

    def get_completion_args(self) -> tuple[list[str], str]:
        if not os.environ.get(_LINE):  # a script of an earlier version
            return super().get_completion_args()
        line = os.environ[_LINE]
        words = split_arg_string(line)[1:]
        return (words[:-1], words[-1]) if words and not line[-1:].isspace() else (words, "")

    def format_completion(self, item: CompletionItem) -> str:
        incomplete = self.get_completion_args()[1] if os.environ.get(_LINE) else ""
        breaks = os.environ.get(_BREAKS, "")
        kept = max((i + 1 for i, sign in enumerate(incomplete) if sign in breaks), default=0)
        value = str(item.value)
        return value[kept:] if value.startswith(incomplete[:kept]) else value


def register() -> None:
    """Register this in place of typer's; call it after typer has registered its own."""
    add_completion_class(BashComplete, _BASH)
    _completion_shared._completion_scripts[_BASH] = _SCRIPT
