"""A clock that the tests turn, and a display that keeps what it is shown."""

from dsindex.execution.progress.reporter import Display, Snapshot

MB = 10**6


class Clock:
    """Plays time.monotonic()."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Kept(Display):
    """A display that keeps what it is shown."""

    def __init__(self, seconds=0.0):
        self.seconds = seconds
        self.shown = []
        self.ended = []
        self.said = []
        self.errors = []

    def show(self, snapshot):
        self.shown.append(snapshot)

    def end(self, snapshot):
        self.ended.append(snapshot)

    def say(self, text):
        self.said.append(text)

    def close(self, error):
        self.errors.append(error)


SNAPSHOT = Snapshot(
    stage="tokenize", unit="bytes", done=250 * MB, total=1000 * MB, tasks="shards", tasks_done=4, tasks_total=16,
    documents=123_456, tokens=60 * MB, seconds=10.0, speed=25.0 * MB, average_speed=20.0 * MB,
    tokens_per_second=6.0 * MB, eta_seconds=192.0, retries=0, lost_workers=0, stragglers=0,
)  # fmt: skip
