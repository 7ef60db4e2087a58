"""Beam coders for our structs: MessagePack instead of pickle.

Importing this module registers them: whatever makes a graph imports it, or imports what does.
"""

import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from apache_beam import coders
from apache_beam.coders import coder_impl

from schemas.faults import Rejected
from schemas.manifest import Manifest
from schemas.samples import Blob, Sample
from schemas.shards import ShardInfo, ShardPlan
from transforms.blobs import PinTally
from transforms.sources.read_samples import SourceNote, SplitSource
from transforms.storage import Entry


class StructCoder(coders.Coder):
    """The compact, deterministic coder of a msgspec struct."""

    def __init__(self, struct: type) -> None:
        """Take the struct's type."""
        self.struct = struct
        self._encode = msgspec.msgpack.Encoder(order="deterministic").encode
        self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(struct).decode

    def _create_impl(self) -> coder_impl.CoderImpl:
        # The codec's own functions: one Python frame less an element than encode and decode below.
        return coder_impl.CallbackCoderImpl(self._encode, self._decode)

    def encode(self, value: Any) -> bytes:
        """Return the value's MessagePack."""
        return self._encode(value)

    def decode(self, encoded: bytes) -> Any:
        """Return the value, validated against its type."""
        return self._decode(encoded)

    def is_deterministic(self) -> bool:
        """Return True: equal structs have equal bytes."""
        return True

    def to_type_hint(self) -> type:
        """Return the struct's type."""
        return self.struct

    @classmethod
    def from_type_hint(cls, typehint: Any, registry: Any) -> Any:
        """Return the coder of a registered struct."""
        return cls(typehint)

    def __reduce__(self) -> tuple:
        """Pickle by the type: encoders and decoders do not pickle."""
        return type(self), (self.struct,)

    def __eq__(self, other: object) -> bool:
        """Return whether both encode the same struct in the same way."""
        return type(other) is type(self) and self.struct is other.struct

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash(self.struct)


class CompressedCoder(StructCoder):
    """The coder of batches of samples, which travel at half their size.

    Names and pins of neighbours are much alike. It takes 7 us a sample and group-by, on machines
    that read an image for each, and what a cluster shuffles is billed by its bytes.
    """

    def __init__(self, struct: type) -> None:
        """Take the struct's type."""
        super().__init__(struct)
        self._plain = plain = self._encode
        decode = self._decode
        self._encode = lambda value: zlib.compress(plain(value), level=1)
        self._decode = lambda data: decode(zlib.decompress(data))

    def _create_impl(self) -> coder_impl.CoderImpl:
        # Beam asks for sizes wherever a batch passes, to display them: plain ones will do.
        return coder_impl.CallbackCoderImpl(
            self._encode, self._decode, lambda value: len(self._plain(value))
        )


def register(*structs: type, coder: type[StructCoder] = StructCoder) -> None:
    """Give each struct its coder wherever Beam meets it in a type hint."""
    for struct in structs:
        coders.registry.register_coder(struct, coder)


register(Blob, Entry, Manifest, PinTally, Rejected, Sample)
register(ShardInfo, ShardPlan, SourceNote, SplitSource)
