"""Count bad records against `--max-bad-records`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.shards.tasks import ShardResult


class BadRecordBudget:
    """Counts quarantined records against a limit.

    Args:
        limit: A number, a share of all records such as `0.1%`, or None.
    """

    def __init__(self, limit: str | None) -> None:
        self._number = int(limit) if limit is not None and not limit.endswith("%") else None
        self._share = float(limit[:-1]) / 100 if limit is not None and limit.endswith("%") else None
        self._limit = limit
        self._bad = 0

    def count(self, result: ShardResult) -> None:
        """Count a shard's bad records. A number is enforced at once, a share by `check_share` at the end.

        Raises:
            InputError: If there are more than the limit.
        """
        self._bad += result.num_quarantined
        if self._number is not None and self._bad > self._number:
            self._refuse()

    def check_share(self, results: Sequence[ShardResult]) -> None:
        """Enforce a share of all records.

        Raises:
            InputError: If there are more than the limit.
        """
        records = sum(result.num_records + result.num_filtered + result.num_quarantined for result in results)
        if self._share is not None and self._bad > self._share * records:
            self._refuse()

    def _refuse(self) -> None:
        msg = (
            f"{self._bad} bad records were set aside, more than the {self._limit} of --max-bad-records; "
            f"look at the *.quarantine files in the work folder, then fix the input or raise the limit"
        )
        raise InputError(msg)
