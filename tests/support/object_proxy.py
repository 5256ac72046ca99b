"""moto's server of S3, an oracle that the project did not write, and a proxy before it that fails as it is told to."""

import contextlib
import http.client
import logging
from urllib.parse import urlsplit

from tests.support.object_server import Handler, serving_objects
from tests.support.object_server_rules import Piece, Stored

NOT_PASSED_ON = {"connection", "content-length", "date", "server", "transfer-encoding"}


@contextlib.contextmanager
def serving_moto():
    """Run moto's server while the block runs; return its address."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield "http://{}:{}".format(*server.get_host_and_port())
    finally:
        server.stop()


@contextlib.contextmanager
def serving_before(upstream, *buckets):
    """Pass requests on to another server: faults and what was asked are here, the objects are there."""

    class Proxy(Handler):
        def answer_operation(self):
            host = urlsplit(upstream)
            connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            connection.request(self.command, self.path, self.receive().content or None, headers)
            with connection.getresponse() as response:
                content = response.read()
                kept = {name: value for name, value in response.getheaders() if name.lower() not in NOT_PASSED_ON}
                size = int(response.headers.get("Content-Length") or 0) if self.command == "HEAD" else len(content)
            connection.close()
            self.done()
            if self.begin_answer(response.status, size, kept) and self.command != "HEAD":
                piece = Piece(content=content, size=size, digest="")
                self.send_content(Stored(pieces=(piece,), etag=""), 0, size)

    with serving_objects(handler=Proxy, buckets={*buckets}) as store:
        yield store
