"""Threads that tests let run side by side."""

import contextlib
import threading


def run_together(function, count):
    """Call `function(number)` for each number below `count` in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=function, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def serving(server):
    """Run a server in a thread while the block runs."""
    with server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
