import ast

import pytest

from tests.mutation.mutants import mutants


@pytest.mark.parametrize(
    ("source", "edited"),
    [
        ("a < 1", ["a <= 1", "a < 2", "pass"]),
        ("x = a and b", ["x = None", "x = a or b", "x = b", "x = a"]),
        (
            "if a:\n    raise b",
            ["if True:\n    raise b", "if False:\n    raise b", "if a:\n    pass"],
        ),
        ("while a:\n    a -= 2", ["while False:\n    a -= 2", "while a:\n    a += 2"]),
        ("return_ = not a", ["return_ = None", "return_ = a"]),
        ("f(a, b=None)", ["pass", "f(a)"]),
        ("suppress(A, B)", ["pass", "suppress(B)", "suppress(A)"]),
        ("T = (AError, b.Gone)", ["T = (b.Gone,)", "T = (AError,)"]),
        ("T = {A, B}", ["T = None", "T = {B}", "T = {A}"]),
        ("def f(a: int=2) -> int:\n    'Say 1.'\n    return a", ["def f(a: int=3)", "return None"]),
        ("try:\n    a\nexcept (A, B):\n    b", ["except (B,):", "except (A,):"]),
        ("f'{a:05}b c'", ["f'XX{a:05}b c'", "f'{a}b c'"]),
        ("@f(2)\ndef g():\n    return 1", ["return 2"]),
        ("F = Callable[[A, B], C]", ["F = None"]),
        ("import a\nT = TypeVar('T')", ["T = None"]),
    ],
)
def test_edits(source: str, edited: list[str]) -> None:
    found = [mutant.source for mutant in mutants(source)]
    assert [text for text in edited if not any(text in mutant for mutant in found)] == []
    assert ast.unparse(ast.parse(source)) not in found


def test_a_mutant_tells_where_and_what() -> None:
    (mutant,) = (
        m
        for m in mutants("class A:\n    def f(self):\n        return 'a b'")
        if m.after == "'XXa bXX'"
    )
    assert mutant[:5] == ("A.f", 3, "text", "'a b'", "'XXa bXX'")
