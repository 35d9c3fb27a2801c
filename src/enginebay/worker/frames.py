"""Message framing on a byte stream: four bytes of length, then the message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

LENGTH_BYTES = 4


def encode_frame(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def read_frames(stream: BinaryIO) -> Iterator[bytes]:
    """Yield complete messages until the stream ends."""
    while len(head := stream.read(LENGTH_BYTES)) == LENGTH_BYTES:
        data = stream.read(int.from_bytes(head, "little"))
        yield data


class FrameDecoder:
    """Decodes frames from chunks of any size."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._rest:
            data = self._rest + data
        start, end = 0, len(data)
        while end - start >= LENGTH_BYTES:
            stop = start + LENGTH_BYTES + int.from_bytes(data[start : start + LENGTH_BYTES], "little")
            if stop > end:
                break
            yield data[start + LENGTH_BYTES : stop]
            start = stop
        self._rest = data[start:]
