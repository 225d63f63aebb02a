"""How a party's log is written. Lines are short, and few a minute about each subject, so no peer can flood the log."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

__all__ = ["JsonLines", "LimitedLog", "LoggedProgress", "shortened"]

LINES = 10
"""The most lines about one subject in `SECONDS`; further ones are only counted."""
SECONDS = 60.0
SUBJECTS = 1000
"""Subjects that are told apart in one period; what is about a further one is counted with the others."""
PROGRESS_SECONDS = 5.0
"""How often the log says how far long work is."""
LONGEST_LINE = 1000
"""Characters of the longest message in a log."""


def shortened(text: str) -> str:
    """The text, or its beginning and how much of it is left out."""
    more = len(text) - LONGEST_LINE
    return text if more <= 0 else f"{text[:LONGEST_LINE]}... ({more} characters more)"


class JsonLines(logging.Formatter):
    """One JSON object a line, with a message of at most about 1,000 characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, who and what."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": shortened(record.getMessage()),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class LoggedProgress:
    """Says from time to time in a log how far long work on `of` things is, and about how long the rest takes."""

    def __init__(self, log: logging.Logger, what: str, of: int) -> None:
        self._log, self._what, self._of = log, what, of
        self._began = self._said = time.monotonic()

    def tell(self, done: int) -> None:
        """So many are done; work that takes a few seconds in all is not talked about."""
        now = time.monotonic()
        if now - self._said < PROGRESS_SECONDS:
            return
        self._said, left = now, (now - self._began) * (self._of - done) / done
        bar = ("#" * (20 * done // self._of)).ljust(20, ".")
        self._log.info("%s: [%s] %d of %d, about %.0f s left", self._what, bar, done, self._of, left)


class LimitedLog:
    """Logs to `log` from within an event loop; what is too much about a subject is counted, and told once a minute."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lines: dict[str, int] = {}

    def write(self, level: int, subject: str, text: str) -> None:
        """Log a line about `subject`, or count it if there were many in the last minute."""
        if subject not in self._lines and len(self._lines) >= SUBJECTS:
            subject = "other subjects"
        if subject not in self._lines:
            self._lines[subject] = 0
            asyncio.get_running_loop().call_later(SECONDS, self._count, level, subject)
        self._lines[subject] += 1
        if self._lines[subject] <= LINES:
            self._log.log(level, "%s", shortened(text))

    def _count(self, level: int, subject: str) -> None:
        """The period of a subject is over: say how many lines were left out."""
        left_out = self._lines.pop(subject) - LINES
        if left_out > 0:
            self._log.log(level, "%d more lines about %s in %g s were left out", left_out, subject, SECONDS)
