"""A TLS connection that speaks HTTP/2 frame by frame, as a gRPC client would, and in any other way too."""

from __future__ import annotations

import argparse
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Link", "arguments"]

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
ACK = END = 1
END_HEADERS = 4
INITIAL_WINDOW = 4
FIRST_WINDOW = 65_535
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LONGEST = 16_384
PATH = "/dpzv.Session/Run"


def literal(name: str, value: str) -> bytes:
    """A header as HPACK writes one that is in no table."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class Link:
    """One connection with one call on it, whose certificate is that of party `name` in the folder `keys`.

    It answers pings and settings whenever it is pumped. With `reads` it gives the server new windows for what it got.
    """

    def __init__(self, port: int, keys: Path, name: str, *, window: int = FIRST_WINDOW, encoding: str = "") -> None:
        context = ssl.create_default_context(cafile=str(keys / name / "ca.crt"))
        context.load_cert_chain(keys / name / f"{name}.crt", keys / name / f"{name}.key")
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._socket = context.wrap_socket(plain, server_hostname="server")
        self._socket.settimeout(0.02)
        self._bytes, self._body = b"", b""
        self._windows = {0: FIRST_WINDOW, 1: FIRST_WINDOW}  # what the server allows this side to send
        self.messages: list[bytes] = []
        self.reads, self.ended, self.sent = True, "", 0
        self._out(PREFACE + _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, window)))
        headers = {":method": "POST", ":scheme": "https", ":path": PATH, ":authority": "server"}
        headers |= {"content-type": "application/grpc", "te": "trailers"}
        headers |= {"grpc-encoding": encoding} if encoding else {}
        self._out(_frame(HEADERS, END_HEADERS, 1, b"".join(literal(*item) for item in headers.items())))

    def say(self, message: bytes, *, compressed: bool = False, seconds: float = 10) -> bool:
        """Send one gRPC message as the server's windows allow; false if the call ended, or it took too long."""
        data = struct.pack(">BI", compressed, len(message)) + message
        deadline = time.monotonic() + seconds
        while data:
            room = min(*self._windows.values(), LONGEST, len(data))
            if room > 0:
                self._out(_frame(DATA, 0, 1, data[:room]))
                data, self.sent = data[room:], self.sent + room
                self._windows = {stream: left - room for stream, left in self._windows.items()}
            self.pump(0.0 if room > 0 else 0.02)
            if self.ended or time.monotonic() > deadline:
                return False
        return True

    def say_quickly(self, messages: list[bytes]) -> bool:
        """Send many small messages in full DATA frames."""
        together = b"".join(struct.pack(">BI", 0, len(message)) + message for message in messages)
        for start in range(0, len(together), LONGEST):
            part = together[start : start + LONGEST]
            while min(*self._windows.values()) < len(part) and not self.ended:
                self.pump(0.02)
            if self.ended:
                return False
            self._out(_frame(DATA, 0, 1, part))
            self._windows = {stream: left - len(part) for stream, left in self._windows.items()}
            self.sent += len(part)
        return True

    def freeze(self) -> None:
        """Allow the server to send nothing more on this call, and go on answering pings."""
        self.reads = False
        self._out(_frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))

    def pump(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Take what the server sends for so long, or until something is reached or the connection has ended."""
        deadline = time.monotonic() + seconds
        while not self.ended and not until():
            try:
                got = self._socket.recv(1 << 16)
                if not got:
                    self.ended = "the server closed the connection"
                self._bytes += got
            except TimeoutError:
                pass
            except OSError as error:
                self.ended = str(error) or type(error).__name__
            self._take_frames()
            if time.monotonic() >= deadline:
                return

    @property
    def refused(self) -> bool:
        """Whether the server has said goodbye, or ended the call."""
        return bool(self.ended) or any(b"\xa4stop" in message[:8] for message in self.messages)

    def close(self) -> None:
        self._socket.close()

    def _take_frames(self) -> None:
        while len(self._bytes) >= 9:
            size = int.from_bytes(self._bytes[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", self._bytes[3:9])
            if len(self._bytes) < 9 + size:
                return
            payload, self._bytes = self._bytes[9 : 9 + size], self._bytes[9 + size :]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for i in range(0, len(payload), 6):
                key, value = struct.unpack(">HI", payload[i : i + 6])
                if key == INITIAL_WINDOW:
                    self._windows[1] += value - FIRST_WINDOW
            self._out(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._out(_frame(PING, ACK, 0, payload))
        elif kind == WINDOW:
            self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(payload, "big")
        elif kind == DATA:
            self._body += payload
            while len(self._body) >= 5 and len(self._body) >= 5 + int.from_bytes(self._body[1:5], "big"):
                size = int.from_bytes(self._body[1:5], "big")
                self.messages.append(self._body[5 : 5 + size])
                self._body = self._body[5 + size :]
            if self.reads and payload:
                more = struct.pack(">I", len(payload))
                self._out(_frame(WINDOW, 0, 0, more) + _frame(WINDOW, 0, 1, more))
        elif kind in (RESET, GOAWAY) or (kind == HEADERS and flags & END):
            self.ended = self.ended or {RESET: "reset", GOAWAY: "goaway", HEADERS: "ended"}[kind]

    def _out(self, data: bytes) -> None:
        try:
            self._socket.settimeout(10)
            self._socket.sendall(data)
        except OSError as error:
            self.ended = self.ended or str(error) or type(error).__name__
        finally:
            self._socket.settimeout(0.02)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def arguments(what: str, *, certified: bool = True) -> argparse.ArgumentParser:
    """What every client is told: the port and for how long, and whose certificate it has."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the attack goes on")
    if certified:
        parser.add_argument("--keys", type=Path, required=True, help="the folder with a folder of keys for each party")
        parser.add_argument("--name", required=True, help="the party whose certificate is shown")
        parser.add_argument("--words", type=Path, help="a file: the frames of its hello and its ids as lines of hex")
    return parser
