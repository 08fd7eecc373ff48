"""The mutation operators: small faults that a test should notice, made one at a time in a module's syntax tree.

The set is that of mutmut 3, with conditions negated, values not returned and statements left out as in PIT, and one
argument in place of the least or greatest of several. Text that only people read is unchanged: f-strings, docstrings, and the message, `allowed` and `remedy` of a Problem.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
ARITHMETIC = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
    **{ast.Mod: ast.Div, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
NAMES = {
    **{"lower": "upper", "upper": "lower", "lstrip": "rstrip", "rstrip": "lstrip", "find": "rfind", "rfind": "find"},
    **{"partition": "rpartition", "rpartition": "partition", "startswith": "endswith", "endswith": "startswith"},
    **{"removeprefix": "removesuffix", "removesuffix": "removeprefix", "min": "max", "max": "min"},
    **{"any": "all", "all": "any"},
}
"""Functions and methods that are called by the other's name."""
LOCATED = ("problem", "Problem", "fail", "refuses_elastic")
"""Functions that make a Problem: a key path is among their positional arguments, text for people follows it."""
LOAD = ast.Load()
SPOKEN = (*LOCATED, "Notice", "notice", "Note")
"""Functions whose text arguments only people read."""
PROSE = ("message", "allowed", "remedy", "where", "source")
UNTOUCHED = ("len", "isinstance", "issubclass", "cast", "super")
"""Calls whose arguments stay: without them nothing works, so that every test would notice."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node in the tree.

    Args:
        parent: The node that holds it.
        field: The parent's field.
        index: Its place where the field is a list.
        statement: The innermost statement around it.
        function: Qualified name of the outermost function around it; "" for what runs when the module is imported.
        body: Lines of that function.
    """

    parent: ast.AST
    field: str
    index: int | None
    statement: ast.stmt
    function: str
    body: range

    def put(self, node: Any) -> None:
        """Replace the node."""
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    Args:
        function: Qualified name of the function, "" for what runs when the module is imported.
        text: The faulty statement in one line; with the function's name it identifies the mutant.
        original: The original statement.
        first_line: First line of the statement.
        last_line: Last line of the statement; of a compound one, of its head.
        place: Where the tree differs.
        node: The node there.
        replacement: The faulty node.
    """

    function: str
    text: str
    original: str
    first_line: int
    last_line: int
    place: Place
    node: ast.AST
    replacement: ast.AST

    @property
    def body(self) -> range:
        """Lines of the function."""
        return self.place.body


def mutants(tree: ast.Module) -> list[Mutant]:
    """Return every mutant of a module, in the order of its text."""
    found: list[Mutant] = []
    seen: Counter[tuple[str, str]] = Counter()
    for node, place in _places(tree):
        for replacement in _replacements(node, place):
            if not hasattr(replacement, "lineno"):
                ast.copy_location(replacement, node)
            ast.fix_missing_locations(replacement)
            original = _text(place.statement)
            place.put(replacement)
            text = f"{_text(replacement)}  # {original}" if isinstance(node, ast.stmt) else _text(place.statement)
            place.put(node)
            seen[place.function, text] += 1
            if (count := seen[place.function, text]) > 1:
                text = f"{text}  # {count}"
            first, last = place.statement.lineno, _last_line(place.statement)
            found.append(Mutant(place.function, text, original, first, last, place, node, replacement))
    return found


class _WithoutText(ast.NodeTransformer):
    """Leaves out what only people read, so that a mutant keeps its name when a message is reworded."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return ast.Constant("…")

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("…") if isinstance(node.value, str) and " " in node.value else node


def _text(statement: ast.stmt) -> str:
    """Return a simple statement, or the head of a compound one, in one line."""
    head = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers", "decorator_list", "cases"):
        if hasattr(head, field):
            setattr(head, field, [ast.Pass()] if field == "body" else [])
    lines = ast.unparse(_WithoutText().visit(copy.deepcopy(head))).splitlines()
    if hasattr(head, "body"):
        lines = lines[:-1]
    return " ".join(line.strip() for line in lines)


def _last_line(statement: ast.stmt) -> int:
    body = getattr(statement, "body", None)
    return max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno or statement.lineno


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, Place]]:
    """Yield every node that may be mutated."""
    top = Place(tree, "body", 0, tree.body[0], "", range(0))
    yield from _below(tree, top, [])


def _below(node: ast.AST, at: Place, names: list[str]) -> Iterator[tuple[ast.AST, Place]]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "type"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            own = child if isinstance(child, ast.stmt) else at.statement
            within, body = at.function, at.body
            if not within and isinstance(node, ast.FunctionDef) and field == "body":
                within, body = ".".join(names), range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
            place = Place(node, field, index, own, within, body)
            yield child, place
            is_named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            yield from _below(child, place, [*names, child.name] if is_named else names)


def _replacements(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """Yield what a node is replaced by: fewer faults in what runs at import, where most is data."""
    if isinstance(node, ast.Constant):
        yield from _constants(node, place)
    elif isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp | ast.UnaryOp):
        yield from _operations(node)
    if isinstance(node, ast.Lambda):
        yield ast.Lambda(node.args, ast.Constant(None))
    if not place.function:
        return
    if _is_condition(node, place):
        yield ast.UnaryOp(ast.Not(), node)
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.Call):
        yield from _calls(node, place)
    elif isinstance(node, ast.stmt):
        yield from _statements(node)


def _constants(node: ast.Constant, place: Place) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)
    elif isinstance(value, str) and place.function and _is_read_by_code(place):
        yield ast.Constant(f"XX{value}")


def _is_read_by_code(place: Place) -> bool:
    """Return whether a string is compared, looked up or handed to a function that is not about text for people."""
    parent = place.parent
    if isinstance(parent, ast.keyword):
        return parent.arg not in PROSE
    if isinstance(parent, ast.Call):
        return _name(parent) not in SPOKEN and not isinstance(place.statement, ast.Raise)
    is_listed = isinstance(parent, ast.Tuple | ast.List | ast.Set) and not isinstance(place.statement, ast.Assign)
    return isinstance(parent, ast.Compare | ast.Subscript) or is_listed


def _operations(node: ast.Compare | ast.BinOp | ast.BoolOp | ast.UnaryOp) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            swapped = [*node.ops[:i], COMPARISONS[type(operator)](), *node.ops[i + 1 :]]
            yield ast.Compare(node.left, swapped, node.comparators)
    elif isinstance(node, ast.BinOp):
        is_text = any(isinstance(side, ast.JoinedStr) or _is_string(side) for side in (node.left, node.right))
        if type(node.op) in ARITHMETIC and not is_text:
            yield ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node.op, ast.Not | ast.USub):
        yield node.operand


def _is_string(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_condition(node: ast.AST, place: Place) -> bool:
    """Return whether a node is a condition, or one side of `and` or `or`, that no other operator turns around."""
    is_test = place.field == "test" and isinstance(place.parent, ast.If | ast.While | ast.IfExp)
    is_filter = place.field == "ifs"
    is_side = isinstance(place.parent, ast.BoolOp) and place.field == "values"
    return (is_test or is_filter or is_side) and not isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp)


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _calls(node: ast.Call, place: Place) -> Iterator[ast.AST]:
    """Yield the call of another function, and the call with one argument less."""
    name = _name(node)
    if name in NAMES:
        renamed = NAMES[name]
        is_function = isinstance(node.func, ast.Name)
        func = ast.Name(renamed, LOAD) if is_function else ast.Attribute(node.func.value, renamed, LOAD)
        yield ast.Call(func, node.args, node.keywords)
    if name in ("min", "max") and len(node.args) > 1 and not any(isinstance(a, ast.Starred) for a in node.args):
        yield from node.args  # one bound instead of the tighter of several
    if name in UNTOUCHED or isinstance(place.statement, ast.Raise):
        return
    for i, argument in enumerate(node.args):
        is_data = not isinstance(argument, ast.Starred | ast.JoinedStr | ast.Constant)
        if name in LOCATED and i == _path_index(name):
            yield ast.Call(node.func, [*node.args[:i], ast.Constant("XX"), *node.args[i + 1 :]], node.keywords)
        elif is_data and name not in SPOKEN:
            yield ast.Call(node.func, [*node.args[:i], ast.Constant(None), *node.args[i + 1 :]], node.keywords)
    for i, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg not in PROSE:
            yield ast.Call(node.func, node.args, [*node.keywords[:i], *node.keywords[i + 1 :]])


def _path_index(name: str) -> int:
    return {"problem": 0, "Problem": 1, "fail": 1, "refuses_elastic": 2}[name]


def _statements(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield what a statement is replaced by."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.YieldFrom):
        yield ast.Expr(ast.YieldFrom(ast.Tuple([], LOAD)))  # a generator stays one
    elif (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)) or isinstance(node, ast.Raise):
        yield ast.Pass()
    elif isinstance(node, ast.Break | ast.Continue):
        yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    elif isinstance(node, ast.Return | ast.Assign | ast.AnnAssign) and not _is_none(node.value):
        yield from _without_value(node)
    elif isinstance(node, ast.AugAssign):
        yield ast.Assign([node.target], node.value)
        if type(node.op) in ARITHMETIC:
            yield ast.AugAssign(node.target, ARITHMETIC[type(node.op)](), node.value)
    elif isinstance(node, ast.Match) and len(node.cases) > 1:
        for i in range(len(node.cases)):
            yield ast.Match(node.subject, [*node.cases[:i], *node.cases[i + 1 :]])


def _is_none(node: ast.AST | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _without_value(node: ast.Return | ast.Assign | ast.AnnAssign) -> Iterator[ast.AST]:
    if isinstance(node, ast.Return):
        if not (isinstance(node.value, ast.Constant) and node.value.value is False):
            yield ast.Return(ast.Constant(None))
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    is_prose = isinstance(targets[0], ast.Name) and targets[0].id in PROSE
    if not (is_prose and (isinstance(node.value, ast.JoinedStr) or _is_string(node.value))):
        yield ast.Assign(targets, ast.Constant(None))
