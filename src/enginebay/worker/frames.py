"""Messages on a stream of bytes: four bytes of length, then the message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

LENGTH_BYTES = 4


def encode_frame(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def read_frames(stream: BinaryIO) -> Iterator[bytes]:
    """Whole messages as they come, until the stream ends."""
    while len(head := stream.read(LENGTH_BYTES)) == LENGTH_BYTES:
        data = stream.read(int.from_bytes(head, "little"))
        yield data


class FrameDecoder:
    """The same for pieces that come at any size."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._rest:
            data = self._rest + data
        place, end = 0, len(data)
        while end - place >= LENGTH_BYTES:
            stop = place + LENGTH_BYTES + int.from_bytes(data[place : place + LENGTH_BYTES], "little")
            if stop > end:
                break
            yield data[place + LENGTH_BYTES : stop]
            place = stop
        self._rest = data[place:]
