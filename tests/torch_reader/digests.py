"""Digests of records by their values, equal for all readers; only NumPy is needed."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def digest(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record's values by key, as lists of numbers and of hex strings."""
    values = {key: _listed(value) for key, value in sorted(record.items())}
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _listed(value: Any) -> list:
    """Return a value, list or array as a flat list; ints and floats stay apart, as 1 and 1.0."""
    if isinstance(value, bytes):
        return [value.hex()]
    if isinstance(value, np.ndarray | np.generic):
        value = value.reshape(-1).tolist()
    items = value if isinstance(value, list | tuple) else [value]
    return [item.hex() if isinstance(item, bytes) else item for item in items]
