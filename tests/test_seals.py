import pytest

from schemas.documents.seals import BLANK_SEAL, is_sealed, sealed

TEXT = f"<!-- {BLANK_SEAL} -->\n# Straße\n"


def test_a_seal_is_of_all_of_the_text() -> None:
    data = sealed(TEXT).encode()
    assert is_sealed(data)
    assert [
        place for place in range(len(data)) if is_sealed(data[:place] + data[place + 1 :])
    ] == []
    assert not is_sealed(data + b" ")


def test_the_first_place_is_the_seal_s() -> None:
    text = sealed(TEXT + BLANK_SEAL)
    assert text.endswith(BLANK_SEAL)
    assert is_sealed(text.encode())


@pytest.mark.parametrize("data", [b"", b"# My data", TEXT.encode(), b"\xff\x00" * 9])
def test_what_no_run_has_written_is_not_sealed(data: bytes) -> None:
    assert not is_sealed(data)
