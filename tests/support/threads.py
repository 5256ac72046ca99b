"""Threads that tests let run side by side."""

import threading


def run_together(function, count):
    """Call `function(number)` for each number below `count` in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=function, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
