"""Unpacking what a server sent, never further than a limit: a body may hold a thousand times its size."""

from __future__ import annotations

import zlib

_GZIP_OR_ZLIB, _RAW = 47, -15


class TooLarge(Exception):
    """More bytes than are wanted."""


class Damaged(Exception):
    """Packed data that cannot be unpacked, or that ends too soon."""


class Inflater:
    """Collects a body of at most `most` bytes, sent with the Content-Encoding `encoding`.

    Raises LookupError for an encoding that was not asked for.
    """

    def __init__(self, encoding: str, most: int) -> None:
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise LookupError(encoding)
        self._packed = encoding not in ("", "identity")
        self._most, self._body = most, bytearray()
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._begun = False

    def feed(self, data: bytes) -> None:
        """More of the body.  Raises TooLarge and Damaged."""
        if not self._packed:
            self._body += data
        while self._packed and data:
            room = self._most - len(self._body) + 1
            data = self._inflate(data, room)
            if len(self._body) > self._most:
                break
        if len(self._body) > self._most:
            raise TooLarge

    def _inflate(self, data: bytes, room: int) -> bytes:
        """Appends at most `room` bytes; returns what is left to unpack."""
        try:
            self._body += self._stream.decompress(data, room)
        except zlib.error as error:
            if self._begun:
                raise Damaged(str(error)) from error
            self._begun, self._stream = True, zlib.decompressobj(_RAW)  # some call that deflate
            return data
        self._begun = True
        if self._stream.eof and self._stream.unused_data.strip(b"\0"):  # a further member
            rest, self._stream = self._stream.unused_data, zlib.decompressobj(_GZIP_OR_ZLIB)
            return rest
        return self._stream.unconsumed_tail

    def done(self) -> bytes:
        """The whole body.  Raises Damaged when packed data ended too soon."""
        if self._packed and self._begun and not self._stream.eof:
            raise Damaged("the packed data ends too soon")
        return bytes(self._body)
