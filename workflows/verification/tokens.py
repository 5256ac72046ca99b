"""The file of tokens of a dataset of any kind: its digest by blocks, and every token of it on the way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsindex.storage import combine_digests
from dsindex.verify.tokens import TokenPieceResult, plan_token_pieces, verify_tokens
from workflows.execution.calls import Call
from workflows.verification.checks import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from workflows.state.manifest import Content
    from workflows.verification.checks import Checks
    from workflows.verification.manifest_checks import Recorded
    from workflows.verification.report import VerifyReport


def plan_tokens(
    checks: Checks,
    report: VerifyReport,
    recorded: Recorded,
    *,
    suffix: str,
    dtype: str,
    tokens: tuple[int, int],
    take_num_eod: Callable[[int], None],
) -> None:
    """Plan to digest a file of tokens by blocks, and to look at every token on the way.

    Args:
        checks: What is to be run.
        report: Is told what was found.
        recorded: The manifest.
        suffix: Of the file, which is there.
        dtype: How a token lies in it.
        tokens: First byte of the tokens, and the one after the last.
        take_num_eod: Is told how many EOD tokens there are.
    """
    path = f"{recorded.prefix}.{suffix}"
    content = recorded.content
    tokenizer = content.tokenizer if content is not None else None
    size_bytes = os.path.getsize(path)
    pieces = plan_token_pieces(
        path,
        size_bytes,
        token_bytes=tokens,
        dtype=dtype,
        vocabulary_size=tokenizer.vocabulary_size if tokenizer is not None else None,
        eod_id=content.eod_id if content is not None else None,
    )
    blocks: list[str] = []
    num_eod: list[int] = []

    def take(result: TokenPieceResult) -> None:
        report.findings.extend(result.findings)
        blocks.extend(result.block_digests)
        num_eod.append(result.num_eod)
        if len(num_eod) == len(pieces):
            finish()

    def finish() -> None:
        if content is None:
            return
        _compare_digest(report, path, content, suffix, blocks)
        if tokenizer is not None and tokens[0] < tokens[1]:
            report.checks.append("every token id lies in the vocabulary")
        take_num_eod(sum(num_eod))

    if not pieces:
        finish()
    checks.plan(
        [
            Check(
                call=Call(name=f"verify[{number:05d}]", place=path, function=verify_tokens, arguments=(piece,)),
                take=take,
                size_bytes=piece.end - piece.begin,
            )
            for number, piece in enumerate(pieces)
        ],
        size_bytes=size_bytes,
    )


def _compare_digest(
    report: VerifyReport, path: str, content: Content, suffix: str, block_digests: Sequence[str]
) -> None:
    recorded = content.digests.get(suffix)
    if recorded is None:
        return
    digest = combine_digests(map(bytes.fromhex, block_digests))
    if digest != recorded.digest:
        report.findings.append(
            f"{path}: expected the digest {recorded.digest}, got {digest}; its content changed, "
            f"restore it or build it again"
        )
    report.checks.append(f"digest of the .{suffix}")
