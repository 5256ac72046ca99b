"""Check the token file of a dataset of any kind: its digest by blocks, and every token in the same pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.checks.tokens import TokenPieceResult, plan_token_pieces, verify_tokens
from dsindex.readable import stored_size
from dsindex.storage import combine_digests
from workflows.execution.calls import Call
from workflows.verification.checks import Check, Step, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workflows.state.manifest import Content
    from workflows.verification.manifest_checks import Recorded


def check_tokens(
    recorded: Recorded,
    *,
    suffix: str,
    dtype: str,
    tokens: tuple[int, int],
    judge_num_eod: Callable[[Content, int], Verdict],
) -> Check:
    """Digest a token file by blocks, and check every token in the same pass.

    Args:
        recorded: The dataset's manifest.
        suffix: Suffix of the file, which must exist.
        dtype: The stored token type.
        tokens: First byte of the tokens, and one past the last.
        judge_num_eod: Judges the number of EOD tokens.
    """
    path = f"{recorded.prefix}.{suffix}"
    content = recorded.content
    tokenizer = content.tokenizer if content is not None else None
    size_bytes = stored_size(path)
    pieces = plan_token_pieces(
        path,
        size_bytes,
        token_bytes=tokens,
        dtype=dtype,
        vocabulary_size=tokenizer.vocabulary_size if tokenizer is not None else None,
        eod_id=content.eod_id if content is not None else None,
    )

    def judge(results: Iterable[TokenPieceResult]) -> Verdict:
        findings: list[str] = []
        blocks: list[str] = []
        num_eod = num_unread = 0
        for result in results:
            findings += result.findings
            blocks += result.block_digests
            num_eod += result.num_eod
            num_unread += not result.block_digests
        if content is None:
            return Verdict(findings=tuple(findings))
        if num_unread:
            note = f"{path} cannot be read to its end: its digest, vocabulary and EOD could not be checked"
            return Verdict(findings=tuple(findings), notes=(note,))
        vocabulary = ("every token id is in the vocabulary",) if tokenizer is not None and tokens[0] < tokens[1] else ()
        digest, eod = _judge_digest(path, content, suffix, blocks), judge_num_eod(content, num_eod)
        return Verdict(
            checked=(*digest.checked, *vocabulary, *eod.checked), findings=(*findings, *digest.findings, *eod.findings)
        )

    return Check(
        steps=(
            Step(
                call=Call(name=f"verify[{number:05d}]", place=path, function=verify_tokens, arguments=(piece,)),
                size=piece.end - piece.begin,
            )
            for number, piece in enumerate(pieces)
        ),
        size=size_bytes,
        judge=judge,
    )


def _judge_digest(path: str, content: Content, suffix: str, block_digests: Iterable[str]) -> Verdict:
    recorded = content.digests.get(suffix)
    if recorded is None:
        return Verdict()
    digest = combine_digests(map(bytes.fromhex, block_digests))
    finding = (
        f"{path}: expected the digest {recorded.digest}, got {digest}; its content changed, "
        f"restore it or build it again"
    )
    return Verdict(checked=(f"digest of the .{suffix}",), findings=() if digest == recorded.digest else (finding,))
