"""Let functions of `os` fail, as a disk or a file system does."""

import os


def fail_calls(monkeypatch, name, code, *, times):
    """Let the next calls of a function of `os` raise an error, and no reader wait before it tries again."""
    function, remaining = getattr(os, name), [code] * times

    def call(*arguments, **options):
        if remaining:
            raise OSError(remaining.pop(), os.strerror(code), arguments[0] if isinstance(arguments[0], str) else None)
        return function(*arguments, **options)

    monkeypatch.setattr(os, name, call)
    monkeypatch.setattr("dsindex.store.local.READ_PAUSES", (0.0, 0.0, 0.0))
