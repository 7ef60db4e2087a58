"""Where our code asks a storage for something: every such call, found in the source itself.

`python -m tests.call_sites` prints them. A call of a method that a storage or a spool has must be
on a receiver that is known to be one, or known not to be: a new name is an error until it is added
to one of the two lists, so that no call site can be overlooked.
"""

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from transforms.storage import Spool, Storage

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = ("transforms", "pipelines")
STORES = PROJECT / "transforms/storage"  # what lies below the protocol is no user of it
LOOKING = ("verify", "show", "find_records", "report", "look_at")
"""What modules, or their folders, are called that are no part of a run; `test_verify_in_stores`
sees verify read."""


def _methods(protocol: type) -> set[str]:
    return {name for name, value in vars(protocol).items() if callable(value) and name[0] != "_"}


STORAGE_METHODS = _methods(Storage)
SPOOL_METHODS = _methods(Spool)
ARE_STORES = {
    "open_storage(root, access)",
    "open_storage(uri, config.access)",
    "output",
    "root",
    "storage",
}
ARE_SPOOLS = {"spool", "self._spool"}
ARE_NEITHER = {
    "columns",  # of an index's bytes
    "file",  # of this machine, or a stream over a storage
    "packed",  # a compressed member of an archive
    "self._reading",  # of annotation files
    "self._connection",  # to a process beside this one
    "self._file",  # of this machine, for payloads
    "self._file()",
    "os",  # the signal handler's last line
    "socket.create_connection((host.strip('[]'), int(port)), _CONNECT_S)",
}


class Site(NamedTuple):
    """One call in our source.

    Attributes:
        module: such as `transforms.commit`.
        function: qualified name of the function that it stands in.
        call: receiver and method, such as `output.stat`.
        nth: which of that function's equal calls, from 1.
        operation: `stat`, `spool.publish` …
    """

    module: str
    function: str
    call: str
    nth: int
    operation: str

    def __str__(self) -> str:
        nth = f" #{self.nth}" if self.nth > 1 else ""
        return f"{self.module}.{self.function}: {self.call}{nth}"


Place = tuple[str, int, int]
"""File, and line and column of a call's closing parenthesis."""


@functools.cache
def call_sites() -> dict[Place, Site]:
    """Return every call site by its place, in the order of files and lines."""
    sites: dict[Place, Site] = {}
    for package in PACKAGES:
        for path in sorted((PROJECT / package).rglob("*.py")):
            if path.stem.startswith(LOOKING) or path.parent.name.startswith(LOOKING):
                continue
            if STORES not in path.parents or path.name == "__init__.py":
                sites |= _sites_in(path)
    return sites


def site_of(frame: FrameType | None) -> Site | None:
    """Return the site that a frame is calling from now, None for none of ours."""
    return None if frame is None else _site_at(frame.f_code, frame.f_lasti)


@functools.cache
def _site_at(code: CodeType, instruction: int) -> Site | None:
    places = list(code.co_positions())
    _, end_line, _, end_column = places[instruction // 2]
    return call_sites().get((code.co_filename, end_line or 0, end_column or 0))


def _sites_in(path: Path) -> dict[Place, Site]:
    module = ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")
    sites: dict[Place, Site] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for function, call in _calls(ast.parse(path.read_text())):
        operation = _operation(call, path)
        if operation:
            text = ast.unparse(call.func)
            seen[function, text] += 1
            site = Site(module, function, text, seen[function, text], operation)
            sites[str(path), call.end_lineno or 0, call.end_col_offset or 0] = site
    return sites


def _calls(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of an attribute with the function it stands in, in the order of lines."""
    for child in ast.iter_child_nodes(tree):
        name = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{function}.{child.name}" if function else child.name
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            yield name, child
        yield from _calls(child, name)


def _operation(call: ast.Call, path: Path) -> str:
    assert isinstance(call.func, ast.Attribute)
    method, receiver = call.func.attr, ast.unparse(call.func.value)
    if receiver in ARE_STORES and method in STORAGE_METHODS:
        return method
    if receiver in ARE_SPOOLS and method in SPOOL_METHODS:
        return f"spool.{method}"
    if method in STORAGE_METHODS | SPOOL_METHODS and receiver not in ARE_NEITHER:
        where = f"{path.relative_to(PROJECT)}:{call.lineno}"
        raise AssertionError(f"{where}: is {receiver!r} a storage? add it to a list of {__name__}")
    return ""


if __name__ == "__main__":
    print(*call_sites().values(), sep="\n")
