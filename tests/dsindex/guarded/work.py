"""Work for guarded processes to be tested with: a record names what is done with it."""

import os
import signal

_kept = []


def prepare(definition):
    if "prepare" in definition:
        answer(definition["prepare"].encode())
    return {"pid": os.getpid(), "hash": hash("text")}, answer


def answer(record):
    name, _, argument = record.decode().partition(" ")
    return _WAYS[name](argument)


def _hang(_):
    left, right = (), ()
    for _level in range(60):
        left, right = (left, left), (right, right)
    return left == right  # in C, where no signal handler of Python's ever runs


def _nest(_):
    os.kill(os.getpid(), signal.SIGSEGV)  # what an overflow of the C stack leads to; Python 3.14 prevents some
    return 0


def _keep(mebibytes):
    _kept.append(bytearray(int(mebibytes) << 20))
    return len(_kept)


def _die_once(path):
    if not os.path.exists(path):
        os.close(os.open(path, os.O_CREAT))
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def _fail(argument):
    raise KeyError(argument)


_WAYS = {
    "echo": lambda argument: argument,
    "pid": lambda _: os.getpid(),
    "hang": _hang,
    "nest": _nest,
    "take": lambda mebibytes: len(bytearray(int(mebibytes) << 20)),
    "keep": _keep,
    "die-once": _die_once,
    "repeat": lambda times: "x" * int(times),
    "surrogate": lambda _: "\ud800",
    "fail": _fail,
}
