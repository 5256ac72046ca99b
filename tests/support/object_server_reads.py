"""What an object server answers to readers: objects and lists of them."""

import re
import time
from email.utils import formatdate
from urllib.parse import quote
from xml.sax.saxutils import escape

from tests.support.object_server_rules import Refusal


def send_object(exchange):
    """Answer GET and HEAD of an object."""
    store = exchange.store
    stored = store.find(exchange.name)
    check_version(exchange, stored)
    begin, end, status = 0, stored.size, 200
    asked = None if store.without_ranges else find_range(exchange.headers.get("Range", ""), stored.size)
    if asked is not None:
        (begin, end), status = asked, 206
    headers = {"Content-Type": "binary/octet-stream", **stored.headers, "Accept-Ranges": "bytes"}
    headers["Last-Modified"] = formatdate(stored.modified, usegmt=True)
    if status == 206:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{stored.size}"
    if not store.without_etag:
        headers |= exchange.describe(stored)
    if exchange.begin_answer(status, end - begin, headers) and exchange.command == "GET":
        exchange.send_content(stored, begin, end)


def check_version(exchange, stored):
    """Compare the version that a reader wants with the one that is there.

    Raises:
        Refusal: It is not the one.
    """
    versions = {stored.etag, stored.etag.strip('"'), "*"}
    if exchange.headers.get("If-Match", "*") not in versions:
        raise Refusal(412, "PreconditionFailed", Condition="If-Match")
    if exchange.headers.get("If-None-Match", "") in versions:
        raise Refusal(304, "NotModified")


def find_range(header, size):
    """Return begin and end of a range that is asked for; None if none is, or not in a way that S3 understands."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if match is None or match[1] == match[2] == "" or (match[1] and match[2] and int(match[1]) > int(match[2])):
        return None
    if not match[1]:
        begin, end = max(0, size - int(match[2])), size
    else:
        begin, end = int(match[1]), min(size, int(match[2] or size) + 1)
    if begin >= end:
        raise Refusal(416, "InvalidRange", ActualObjectSize=str(size))
    return begin, end


def show_key(exchange, key):
    """Return a key or prefix as an answer has it."""
    return quote(key) if exchange.query.get("encoding-type") else escape(key)


def show_time(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def list_objects(exchange):
    """Answer ListObjectsV2."""
    store, query, bucket = exchange.store, exchange.query, exchange.name.partition("/")[0]
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    limit = min(exchange.number("max-keys", 1000), store.page_size)
    shown, last, rest = [], "", False
    common = {}
    for key in store.names(bucket, prefix):
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        entry = key if cut < 0 else key[: cut + len(delimiter)]
        if entry.encode() <= after.encode() or entry in common:
            continue
        if len(shown) + len(common) >= limit:
            rest = limit > 0
            break
        last = entry
        if cut >= 0:
            common[entry] = None
        else:
            shown.append(key)
    fields = {"Name": bucket, "Prefix": show_key(exchange, prefix), "KeyCount": str(len(shown) + len(common))}
    fields |= {"MaxKeys": str(limit), "IsTruncated": "true" if rest else "false"}
    if rest:
        fields["NextContinuationToken"] = escape(last)
    if query.get("encoding-type"):
        fields["EncodingType"] = "url"
    content = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    content += "".join(show_entry(exchange, bucket, key) for key in shown)
    content += "".join(f"<CommonPrefixes><Prefix>{show_key(exchange, key)}</Prefix></CommonPrefixes>" for key in common)
    exchange.answer_xml("ListBucketResult", content)


def show_entry(exchange, bucket, key):
    try:
        stored = exchange.store.find(f"{bucket}/{key}")
    except Refusal:
        return ""  # removed while it was listed
    return (
        f"<Contents><Key>{show_key(exchange, key)}</Key><Size>{stored.size}</Size><ETag>{escape(stored.etag)}</ETag>"
        f"<LastModified>{show_time(stored.modified)}</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
    )


def list_blobs(exchange):
    """Answer as Azure does, whose listings have ETags without quotes."""
    store, blobs = exchange.store, []
    container = exchange.name
    for name in store.all_names():
        key = name.removeprefix(f"{container}/")
        if key != name and key.startswith(exchange.query.get("prefix", "")):
            stored = store.find(name)
            etag = stored.etag.strip('"')
            blobs.append(
                f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>"
                f"{formatdate(stored.modified, usegmt=True)}</Last-Modified><Content-Length>{stored.size}"
                f"</Content-Length><Content-Type>text</Content-Type><Etag>{etag}</Etag></Properties></Blob>"
            )
    body = f"<EnumerationResults><Blobs>{''.join(blobs)}</Blobs><NextMarker/></EnumerationResults>"
    exchange.answer(200, body.encode())


def answer_bucket(exchange):
    """Answer HeadBucket and GetBucketLocation."""
    region = exchange.store.region or "us-east-1"
    if exchange.command == "HEAD":
        return exchange.answer(200, headers={"x-amz-bucket-region": region})
    return exchange.answer_xml("LocationConstraint", "" if region == "us-east-1" else region)
