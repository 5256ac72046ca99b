"""The uploads of a job to final names in object stores: recorded in the ledger, found again, given up.

The ledger says that uploads to a final name are about to be begun, and which others there are already. So a later run
also finds an upload whose id was never recorded, and never gives up one of somebody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.objects.uploads import Upload, abort_upload, begin_upload, find_parts, list_uploads
from dsindex.objects.urls import ObjectUrl
from dsindex.objects.writing import find_object
from workflows.state.ledger import output_key

if TYPE_CHECKING:
    from dsindex.objects.urls import Access
    from workflows.state.history import History
    from workflows.state.ledger import Ledger


def current_upload(url: str, partial: str, ledger: Ledger) -> Upload | None:
    """Return the upload that was recorded last for a plan's file; None if there is none.

    Args:
        url: The final address.
        partial: The file's name until it is published, which contains the plan's id.
        ledger: The job's ledger.
    """
    if isinstance(url, ObjectUrl):
        for recorded in reversed(ledger.history.uploads):
            if recorded.url == url and recorded.partial == output_key(partial):
                return Upload(url=url, upload_id=recorded.upload_id, tag=recorded.tag, checksum=recorded.checksum)
    return None


def require_upload(url: str, partial: str, ledger: Ledger) -> Upload:
    """Return the upload of a plan's file, which was begun before.

    Raises:
        ValueError: If it was not.
    """
    upload = current_upload(url, partial, ledger)
    if upload is None:
        msg = f"{url}: expected an upload that was begun"
        raise ValueError(msg)
    return upload


def new_upload(url: ObjectUrl, partial: str, ledger: Ledger) -> Upload:
    """Begin an upload in place of those that runs of the job began to the same address, which are given up.

    Raises:
        OutputError: If the store refuses.
    """
    others = ledger.history.uploading.get(url)
    if others is None:
        ledger.record_uploading(url, list_uploads(url))
    else:
        _give_up(url, others)
    upload = begin_upload(url)
    ledger.record_upload(upload, partial)
    return upload


def live_upload(url: ObjectUrl, partial: str, ledger: Ledger) -> Upload:
    """Return the upload of a plan's file, begun now unless it goes on.

    Raises:
        OutputError: If the store refuses.
    """
    upload = current_upload(url, partial, ledger)
    return upload if upload is not None and find_parts(upload) is not None else new_upload(url, partial, ledger)


def stored_bytes(upload: Upload) -> int | None:
    """Return the size of what an upload has, or made; None if it is gone.

    Raises:
        OutputError: If the store refuses.
    """
    parts = find_parts(upload)
    if parts is not None:
        return sum(part.size_bytes for part in parts.values())
    found = find_object(upload.url)
    return found.size_bytes if found is not None and found.tag == upload.tag else None


def give_up_uploads(history: History, access: Access) -> None:
    """Give up all uploads that the runs of a job began and did not complete.

    Raises:
        OutputError: If the store refuses.
    """
    for url, others in history.uploading.items():
        _give_up(ObjectUrl(url, access=access), others)


def _give_up(url: ObjectUrl, others: frozenset[str]) -> None:
    for upload_id in list_uploads(url):
        if upload_id not in others:
            abort_upload(Upload(url=url, upload_id=upload_id, tag=""))
