"""Pictures one after the other in a file: an animated PNG, which every browser shows."""

import struct
import zlib
from collections.abc import Iterator
from itertools import count

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each chunk of a PNG (https://www.w3.org/TR/png-3/#5Chunk-layout)."""
    at = len(SIGNATURE)
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += 12 + size


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk as it is written."""
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def moving(pictures: list[tuple[bytes, int]]) -> bytes:
    """An animated PNG of PNGs of one size, each shown for so many milliseconds, over and over."""
    first = dict(chunks(pictures[0][0]))
    size = first[b"IHDR"][:8]
    numbers = count()
    out = [SIGNATURE, chunk(b"IHDR", first[b"IHDR"])]
    out.append(chunk(b"acTL", struct.pack(">II", len(pictures), 0)))
    for place, (png, shown_ms) in enumerate(pictures):
        assert dict(chunks(png))[b"IHDR"] == first[b"IHDR"], "of one size and kind"
        control = struct.pack(">I", next(numbers)) + size + struct.pack(">II", 0, 0)
        out.append(chunk(b"fcTL", control + struct.pack(">HHBB", shown_ms, 1_000, 0, 0)))
        content = b"".join(part for kind, part in chunks(png) if kind == b"IDAT")
        if place == 0:
            out.append(chunk(b"IDAT", content))
        else:
            out.append(chunk(b"fdAT", struct.pack(">I", next(numbers)) + content))
    return b"".join([*out, chunk(b"IEND", b"")])
