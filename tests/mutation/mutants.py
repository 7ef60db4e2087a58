"""All mutants of a module: its source with one small edit each.

The edits are those of mutmut and cosmic-ray, and some that look for missing guards: a condition
that always or never holds, a statement, an exception handler's class or an element of a set that is
gone. Unlike mutmut, decorated functions and classes and module constants are edited too: here those
are the options, the transforms and the tables of error numbers.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import NamedTuple

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
}
_NEVER_CALLED = {"TypeVar", "getLogger"}  # their texts are labels for people
_NOT_VISITED = {"annotation", "returns", "decorator_list", "type_params"}


class Mutant(NamedTuple):
    """One edit.

    Attributes:
        scope: the function or class that holds it, dotted.
        line: of the source.
        kind: what was edited; `text` for a message's words.
        before: what stood there.
        after: what stands there now; empty when it is gone.
        number: of the mutants of a scope that are equal in all but the line, from 0.
        source: of the whole module.
    """

    scope: str
    line: int
    kind: str
    before: str
    after: str
    number: int
    source: str


class _Place(NamedTuple):
    """Where a node hangs in the tree."""

    owner: ast.AST
    field: str
    index: int | None
    scope: str

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.index] = node


Change = tuple[str, ast.AST]


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module's source, in its order."""
    tree = ast.parse(source)
    places = list(_places(tree, ""))  # all, before the first is changed
    numbers: Counter[tuple] = Counter()
    for place, node in places:
        before = ast.unparse(node)
        for kind, new in [*_changes(node, place)]:
            place.put(ast.fix_missing_locations(ast.copy_location(new, node)))
            mutated = ast.unparse(tree)
            place.put(node)
            after = "" if isinstance(new, ast.Pass) else ast.unparse(new)
            line = getattr(node, "lineno", 0)
            seen = (place.scope, kind, before, after)
            yield Mutant(place.scope, line, kind, before, after, numbers[seen], mutated)
            numbers[seen] += 1


def _places(owner: ast.AST, scope: str) -> Iterator[tuple[_Place, ast.AST]]:
    for field, value in ast.iter_fields(owner):
        if field in _NOT_VISITED or _is_label(owner):
            continue
        nodes = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, node in nodes:
            if not isinstance(node, ast.AST) or _is_docstring(owner, field, index, node):
                continue
            if isinstance(owner, ast.JoinedStr) and isinstance(node, ast.Constant):
                continue  # the whole of an f-string is edited
            if isinstance(owner, ast.FormattedValue) and field == "format_spec":
                continue
            yield _Place(owner, field, index, scope), node
            is_scope = isinstance(node, ast.FunctionDef | ast.ClassDef)
            yield from _places(node, f"{scope}.{node.name}".lstrip(".") if is_scope else scope)


def _is_docstring(owner: ast.AST, field: str, index: int | None, node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return field == "body" and is_text and isinstance(node.value.value, str)


def _is_label(node: ast.AST) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.arguments):
        return isinstance(node, ast.Import | ast.ImportFrom)
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.value) == "Callable"  # a type
    name = getattr(
        getattr(node, "func", None), "attr", getattr(getattr(node, "func", None), "id", "")
    )
    return isinstance(node, ast.Call) and name in _NEVER_CALLED


def _changes(node: ast.AST, place: _Place) -> Iterator[Change]:
    """Yield what a node can be replaced by."""
    if place.field in ("test", "ifs") and not isinstance(node, ast.Constant):
        if not isinstance(place.owner, ast.While):  # it would never end
            yield "condition", ast.Constant(True)
        if place.field == "test":
            yield "condition", ast.Constant(False)
    for kind in type(node).__mro__:
        if kind in _CHANGES:
            yield from _CHANGES[kind](node)


def _constant(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        yield "bool", ast.Constant(not value)
    elif isinstance(value, int | float):
        yield "number", ast.Constant(value + 1)
        if value > 1:
            yield "number", ast.Constant(value - 1)
    elif isinstance(value, str):
        yield "text" if " " in value else "string", ast.Constant(f"XX{value}XX")
    elif isinstance(value, bytes):
        yield "string", ast.Constant(b"XX" + value)


def _fstring(node: ast.JoinedStr) -> Iterator[Change]:
    texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
    kind = "text" if any(" " in text for text in texts) else "string"
    yield kind, ast.JoinedStr([ast.Constant("XX"), *node.values])


def _formatted(node: ast.FormattedValue) -> Iterator[Change]:
    if node.format_spec is not None:
        yield "format", ast.FormattedValue(node.value, node.conversion, None)


def _compare(node: ast.Compare) -> Iterator[Change]:
    for place, operator in enumerate(node.ops):
        new = _SWAPS.get(type(operator))
        if new:
            operators = [*node.ops[:place], new(), *node.ops[place + 1 :]]
            yield "comparison", ast.Compare(node.left, operators, node.comparators)


def _bool_op(node: ast.BoolOp) -> Iterator[Change]:
    yield "and/or", ast.BoolOp(_SWAPS[type(node.op)](), node.values)
    for place in range(len(node.values)):
        left = [*node.values[:place], *node.values[place + 1 :]]
        yield "operand", left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


def _bin_op(node: ast.BinOp) -> Iterator[Change]:
    new = _SWAPS.get(type(node.op))
    if new:
        yield "operator", ast.BinOp(node.left, new(), node.right)


def _unary(node: ast.UnaryOp) -> Iterator[Change]:
    yield "operator", node.operand


def _aug_assign(node: ast.AugAssign) -> Iterator[Change]:
    new = _SWAPS.get(type(node.op))
    if new:
        yield "operator", ast.AugAssign(node.target, new(), node.value)
    yield "statement", ast.Pass()


def _assign(node: ast.Assign) -> Iterator[Change]:
    if not (isinstance(node.value, ast.Constant) and node.value.value is None):
        targets = node.targets[0]
        if not isinstance(targets, ast.Tuple):
            yield "assignment", ast.Assign(node.targets, ast.Constant(None))


def _statement(_: ast.AST) -> Iterator[Change]:
    yield "statement", ast.Pass()


def _return(node: ast.Return) -> Iterator[Change]:
    value = node.value
    if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
        yield "return", ast.Return(ast.Constant(None))


def _leave(node: ast.Break | ast.Continue) -> Iterator[Change]:
    yield "statement", ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _call(node: ast.Call) -> Iterator[Change]:
    for place, keyword in enumerate(node.keywords):
        rest = [*node.keywords[:place], *node.keywords[place + 1 :]]
        if keyword.arg is not None:
            yield "argument", ast.Call(node.func, node.args, rest)
    if ast.unparse(node.func).endswith("suppress"):
        for place in range(len(node.args)):
            fewer = [*node.args[:place], *node.args[place + 1 :]]
            yield "exception", ast.Call(node.func, fewer, node.keywords)


def _handler(node: ast.ExceptHandler) -> Iterator[Change]:
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    for place in range(len(caught)):
        fewer: list = [*caught[:place], *caught[place + 1 :]]
        new = deepcopy(node)
        new.type = ast.Tuple(fewer, ast.Load())
        yield "exception", new


def _display(node: ast.Set | ast.List) -> Iterator[Change]:
    for place in range(len(node.elts) if len(node.elts) > 1 else 0):
        fewer = [*node.elts[:place], *node.elts[place + 1 :]]
        yield (
            "element",
            type(node)(fewer, **({"ctx": ast.Load()} if type(node) is ast.List else {})),
        )


def _dict(node: ast.Dict) -> Iterator[Change]:
    for place in range(len(node.keys)):
        keys = [*node.keys[:place], *node.keys[place + 1 :]]
        values = [*node.values[:place], *node.values[place + 1 :]]
        yield "element", ast.Dict(keys, values)


def _tuple(node: ast.Tuple) -> Iterator[Change]:
    """Yield tables and tuples of exceptions without an element; other tuples have their length."""
    names = [element for element in node.elts if isinstance(element, ast.Name | ast.Attribute)]
    is_table = all(isinstance(element, ast.Tuple) for element in node.elts)
    is_classes = len(names) > 1 and all(_is_exception(name) for name in names)
    for place in range(len(node.elts) if isinstance(node.ctx, ast.Load) else 0):
        if is_table or is_classes or isinstance(node.elts[place], ast.Starred):
            yield "element", ast.Tuple([*node.elts[:place], *node.elts[place + 1 :]], ast.Load())


def _is_exception(name: ast.Name | ast.Attribute) -> bool:
    """Return whether a name looks like an exception's: some libraries' do not end in `Error`."""
    if isinstance(name, ast.Name):
        return name.id.endswith("Error")
    return name.attr[0].isupper() and not name.attr.isupper()


def _slice(node: ast.Slice) -> Iterator[Change]:
    if node.lower:
        yield "slice", ast.Slice(None, node.upper, node.step)
    if node.upper:
        yield "slice", ast.Slice(node.lower, None, node.step)


def _lambda(node: ast.Lambda) -> Iterator[Change]:
    yield "lambda", ast.Lambda(node.args, ast.Constant(None))


_CHANGES: dict[type, Callable[..., Iterator[Change]]] = {
    ast.Constant: _constant,
    ast.JoinedStr: _fstring,
    ast.FormattedValue: _formatted,
    ast.Compare: _compare,
    ast.BoolOp: _bool_op,
    ast.BinOp: _bin_op,
    ast.UnaryOp: _unary,
    ast.AugAssign: _aug_assign,
    ast.Assign: _assign,
    ast.Expr: _statement,
    ast.Raise: _statement,
    ast.Return: _return,
    ast.Break: _leave,
    ast.Continue: _leave,
    ast.Call: _call,
    ast.ExceptHandler: _handler,
    ast.Set: _display,
    ast.List: _display,
    ast.Dict: _dict,
    ast.Tuple: _tuple,
    ast.Slice: _slice,
    ast.Lambda: _lambda,
}
