"""WebSocket frames byte by byte, for what no proper client would send, and the reading of what the server sends."""

from __future__ import annotations

import struct

TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0
KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def build_upgrade(path: str = "/socket", headers: str = "", version: str = "13", key: str = KEY) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: {version}\r\n"
    return f"{head}sec-websocket-key: {key}\r\n{headers}\r\n".encode()


def build_frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, mask: bytes | None = b"mask"
) -> bytes:
    """A frame of a client. `rsv`: the reserved bits."""
    size, masked = len(payload), 0 if mask is None else 128
    head = bytes([fin << 7 | rsv << 4 | opcode])
    if size < 126:
        head += bytes([masked | size])
    elif size < 65536:
        head += struct.pack("!BH", masked | 126, size)
    else:
        head += struct.pack("!BQ", masked | 127, size)
    return head + payload if mask is None else head + mask + apply_mask(payload, mask)


def apply_mask(payload: bytes, mask: bytes) -> bytes:
    repeated = (mask * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(len(payload), "big")


def read_frames(data: bytes) -> list[tuple[int, bytes]]:
    """The opcodes and payloads of what a server sent: unmasked, unfragmented."""
    frames = []
    while data:
        assert data[0] & 0xF0 == 0x80, "final, without reserved bits"
        size, start = data[1], 2
        if size == 126:
            size, start = struct.unpack("!H", data[2:4])[0], 4
        elif size == 127:
            size, start = struct.unpack("!Q", data[2:10])[0], 10
        frames.append((data[0] & 15, data[start : start + size]))
        assert len(frames[-1][1]) == size, "complete"
        data = data[start + size :]
    return frames


def read_close(data: bytes) -> tuple[int, str]:
    """The code and reason of the last frame, a Close."""
    opcode, payload = read_frames(data)[-1]
    assert opcode == CLOSE, (opcode, payload)
    return struct.unpack("!H", payload[:2])[0], payload[2:].decode()


def build_close(code: int, reason: str | bytes = "") -> bytes:
    return build_frame(CLOSE, struct.pack("!H", code) + (reason.encode() if isinstance(reason, str) else reason))
