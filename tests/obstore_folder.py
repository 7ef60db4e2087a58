"""What a root's objects look like from outside, in any store of obstore."""

from typing import Any

import obstore


class ObstoreFolder:
    """Objects below `root/`."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, files: dict[str, bytes], mtime_s: int | None = None) -> None:
        for name, data in files.items():
            obstore.put(self._store, f"root/{name}", data)

    def get(self, name: str) -> bytes:
        return bytes(obstore.get(self._store, f"root/{name}").bytes())

    def names(self) -> list[str]:
        return sorted(found["path"].removeprefix("root/") for found in self._all())

    def sizes(self) -> list[int]:
        return [found["size"] for found in self._all()]

    def touch(self, name: str) -> None:
        self.put({name: self.get(name)[::-1]})  # where an ETag is a hash, equal bytes are equal

    def remove(self, name: str) -> None:
        obstore.delete(self._store, f"root/{name}")

    def _all(self) -> list[Any]:
        return [found for page in obstore.list(self._store) for found in page]
