"""What an object server answers to writers: objects put and removed, and uploads in parts."""

from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.support.object_server_http import CHECKSUMS
from tests.support.object_server_reads import show_key, show_time
from tests.support.object_server_rules import Conditions, Refusal, Stored

MAX_PARTS = 10_000
MAX_METADATA_BYTES = 2048


def put_object(exchange):
    """Answer PutObject."""
    conditions, headers = find_conditions(exchange), find_headers(exchange)
    piece = exchange.receive()
    stored = Stored(pieces=(piece,), etag=f'"{piece.digest}"', headers=headers, modified=piece.modified)
    exchange.store.write(exchange.name, stored, conditions)
    exchange.done()
    exchange.answer(200, headers={**exchange.describe(stored), **piece.checksums})


def find_conditions(exchange):
    """Return what must hold when the request writes.

    Raises:
        Refusal: S3 knows no such condition.
    """
    if exchange.headers.get("Transfer-Encoding") or "aws-chunked" in exchange.headers.get("Content-Encoding", ""):
        raise Refusal(501, "NotImplemented", Header="Transfer-Encoding")
    if "x-amz-copy-source" in exchange.headers:
        raise Refusal(501, "NotImplemented", Header="x-amz-copy-source")
    wanted = exchange.headers.get("If-None-Match")
    if wanted not in {None, "*"}:
        raise Refusal(501, "NotImplemented", Header="If-None-Match")
    removals = exchange.store.removals[exchange.name]
    return Conditions(if_none_match=wanted, if_match=exchange.headers.get("If-Match"), removals=removals)


def find_headers(exchange):
    """Return what is kept of the request's headers with the object.

    Raises:
        Refusal: It is too much.
    """
    kept = {name: value for name, value in exchange.headers.items() if name.lower().startswith("x-amz-meta-")}
    if sum(len(name) - len("x-amz-meta-") + len(value) for name, value in kept.items()) > MAX_METADATA_BYTES:
        raise Refusal(400, "MetadataTooLarge")
    if "Content-Type" in exchange.headers:
        kept["Content-Type"] = exchange.headers["Content-Type"]
    return kept


def create_upload(exchange):
    """Answer CreateMultipartUpload."""
    store = exchange.store
    checksum = exchange.headers.get("x-amz-checksum-algorithm", "")
    if checksum and store.crc32 == "refused":
        raise Refusal(501, "NotImplemented", Header="x-amz-checksum-algorithm")
    if store.crc32 == "ignored":
        checksum = ""
    upload = store.create_upload(exchange.name, find_headers(exchange), checksum=checksum)
    bucket, _, key = exchange.name.partition("/")
    exchange.done()
    shown = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload.upload_id}</UploadId>"
    headers = {"x-amz-checksum-algorithm": checksum, "x-amz-checksum-type": "COMPOSITE"} if checksum else {}
    exchange.answer_xml("InitiateMultipartUploadResult", shown, headers)


def upload_part(exchange):
    """Answer UploadPart."""
    find_conditions(exchange)
    number, upload_id = exchange.number("partNumber", 0), exchange.query.get("uploadId", "")
    if not 1 <= number <= MAX_PARTS:
        raise Refusal(400, "InvalidArgument", ArgumentName="partNumber")
    upload = exchange.store.find_upload(exchange.name, upload_id)
    told = {name.rpartition("-")[2].upper() for name in CHECKSUMS if name in exchange.headers}
    if exchange.store.sums_of_parts and exchange.store.crc32 == "checked" and told != {upload.checksum} - {""}:
        raise Refusal(400, "InvalidRequest")
    piece = exchange.receive()
    exchange.store.add_part(exchange.name, upload_id, number, piece)
    exchange.done()
    exchange.answer(200, headers={"ETag": f'"{piece.digest}"', **piece.checksums})


def complete_upload(exchange):
    """Answer CompleteMultipartUpload."""
    conditions = find_conditions(exchange)
    wanted = []
    for part in parse(exchange.receive_text(), "Part"):
        number = part.pop("PartNumber", "")
        if not number.isdigit() or "ETag" not in part:
            raise Refusal(400, "MalformedXML")
        wanted.append((int(number), part))
    etag = exchange.store.complete(exchange.name, exchange.query["uploadId"], wanted, conditions)
    exchange.done()
    bucket, _, key = exchange.name.partition("/")
    shown = f"<Location>{exchange.store.url}/{escape(exchange.name)}</Location><Bucket>{bucket}</Bucket>"
    exchange.answer_xml("CompleteMultipartUploadResult", f"{shown}<Key>{escape(key)}</Key><ETag>{escape(etag)}</ETag>")


def abort_upload(exchange):
    """Answer AbortMultipartUpload."""
    exchange.store.abort(exchange.name, exchange.query["uploadId"])
    exchange.done()
    exchange.answer(204)


def delete_object(exchange):
    """Answer DeleteObject."""
    exchange.store.remove(exchange.name, if_match=exchange.headers.get("If-Match"))
    exchange.done()
    exchange.answer(204)


def delete_objects(exchange):
    """Answer DeleteObjects; each fails or succeeds by itself."""
    if not any(name in exchange.headers for name in ("Content-MD5", *CHECKSUMS)):
        raise Refusal(400, "InvalidRequest")
    text = exchange.receive_text()
    bucket, shown = exchange.name.partition("/")[0], ""
    entries = parse(text, "Object")
    if not 1 <= len(entries) <= 1000:
        raise Refusal(400, "MalformedXML")
    is_quiet = b"<Quiet>true</Quiet>" in text
    for entry in entries:
        key = entry.get("Key", "")
        try:
            exchange.store.remove(f"{bucket}/{key}", if_match=entry.get("ETag"))
        except Refusal as refusal:
            shown += f"<Error><Key>{escape(key)}</Key><Code>{refusal.code}</Code></Error>"
        else:
            shown += "" if is_quiet else f"<Deleted><Key>{escape(key)}</Key></Deleted>"
    exchange.done()
    exchange.answer_xml("DeleteResult", shown)


def parse(text, tag):
    """Return the elements of that name, each as the texts of its children.

    Raises:
        Refusal: It is no XML.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        raise Refusal(400, "MalformedXML") from None
    return [
        {child.tag.rpartition("}")[2]: child.text or "" for child in element}
        for element in root
        if element.tag.rpartition("}")[2] == tag
    ]


def list_uploads(exchange):
    """Answer ListMultipartUploads."""
    store, query, bucket = exchange.store, exchange.query, exchange.name.partition("/")[0]
    after = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
    limit = min(exchange.number("max-uploads", 1000), store.page_size)
    found = []
    for upload in list(store.uploads.values()):
        of, _, key = upload.name.partition("/")
        is_after = (key, upload.upload_id) > after if after[1] else key > after[0]
        if of == bucket and key.startswith(query.get("prefix", "")) and is_after:
            found.append((key, upload.upload_id, upload.initiated))
    found.sort()
    page, rest = found[:limit], found[limit:]
    content = f"<Bucket>{bucket}</Bucket><IsTruncated>{'true' if rest else 'false'}</IsTruncated>"
    if query.get("encoding-type"):
        content += "<EncodingType>url</EncodingType>"
    if rest and page:
        content += f"<NextKeyMarker>{show_key(exchange, page[-1][0])}</NextKeyMarker>"
        content += f"<NextUploadIdMarker>{page[-1][1]}</NextUploadIdMarker>"
    for key, upload_id, initiated in page:
        content += f"<Upload><Key>{show_key(exchange, key)}</Key><UploadId>{upload_id}</UploadId>"
        content += f"<StorageClass>STANDARD</StorageClass><Initiated>{show_time(initiated)}</Initiated></Upload>"
    exchange.answer_xml("ListMultipartUploadsResult", content)


def list_parts(exchange):
    """Answer ListParts."""
    upload = exchange.store.find_upload(exchange.name, exchange.query["uploadId"])
    after = exchange.number("part-number-marker", 0)
    limit = min(exchange.number("max-parts", 1000), exchange.store.page_size)
    numbers = sorted(number for number in list(upload.parts) if number > after)
    page, rest = numbers[:limit], numbers[limit:]
    bucket, _, key = exchange.name.partition("/")
    content = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{upload.upload_id}</UploadId>"
    content += f"<MaxParts>{limit}</MaxParts><IsTruncated>{'true' if rest else 'false'}</IsTruncated>"
    if rest and page:
        content += f"<NextPartNumberMarker>{page[-1]}</NextPartNumberMarker>"
    for number in page:
        piece = upload.parts[number]
        content += (
            f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{piece.digest}&quot;</ETag><Size>{piece.size}</Size>"
            f"<LastModified>{show_time(piece.modified)}</LastModified>"
            + "".join(f"<{show_sum(name)}>{value}</{show_sum(name)}>" for name, value in piece.checksums.items())
            + "</Part>"
        )
    exchange.answer_xml("ListPartsResult", content)


def show_sum(header):
    """Return the name by which answers tell a checksum."""
    return f"Checksum{header.rpartition('-')[2].upper()}"


def create_bucket(exchange):
    """Answer CreateBucket."""
    bucket = exchange.name.strip("/")
    exchange.receive_text()
    exchange.store.buckets.add(bucket)
    exchange.done()
    exchange.answer(200, headers={"Location": f"/{bucket}"})
