"""What an encoder is made from, as plain data that is sent to every worker."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsindex.instruction.tokens import as_reference, make_fast_texts
from dsindex.text.guarded.limits import Limits, default_limits
from dsindex.text.tokenizer import shared_tokenizer
from dsindex.text.tokenizer_file import find_tokenizer

if TYPE_CHECKING:
    from dsindex.instruction.config import InstructionConfig
    from dsindex.instruction.encoder import InstructionEncoder
    from dsindex.text.engines import Engine
    from dsindex.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderRecipe:
    """The texts from which an InstructionEncoder is made; equal recipes share one encoder in a process."""

    config: str
    """An InstructionConfig as JSON."""
    tokenizer: Tokenizer
    engine: Engine
    """What tokenizes; the fast engine only where masks need nothing that it cannot tell."""
    special_tokens: tuple[tuple[str, str], ...]
    """Names such as `bos_token` and texts from the tokenizer's folder, sorted."""
    chat_templates: tuple[tuple[str, str], ...]
    """Names and texts from the tokenizer's folder, sorted."""


def make_recipe(
    config: InstructionConfig, tokenizer: Tokenizer, tokenizer_model: str, *, engine: Engine
) -> EncoderRecipe:
    """Return the recipe of an encoder, in which the reference takes the place of an engine that cannot make masks.

    Args:
        config: The form of the records, and what is trainable.
        tokenizer: The tokenizer.
        tokenizer_model: The path that it was loaded from, where a folder may have chat templates.
        engine: The engine that was chosen for the tokenizer, without its post-processor.

    Raises:
        TokenizerError: If a file of the folder is invalid, the tokenizer is no tokenizer.json, or a special token is
            not exactly one id.
        InputError: If a pattern or the template cannot be used.
    """
    from dsindex.instruction.tokenizer_files import read_tokenizer_folder

    shared_tokenizer(tokenizer)  # refuses other formats
    files = read_tokenizer_folder(Path(find_tokenizer(tokenizer_model).path))
    recipe = EncoderRecipe(
        config=config.model_dump_json(),
        tokenizer=tokenizer,
        engine=engine,
        special_tokens=tuple(sorted(files.special_tokens.items())),
        chat_templates=tuple(sorted(files.chat_templates.items())),
    )
    reason = make_instruction_encoder(recipe).why_not_fast()
    return recipe if reason is None else replace(recipe, engine=as_reference(engine, reason))


def make_instruction_encoder(recipe: EncoderRecipe, limits: Limits | None = None) -> InstructionEncoder:
    """Return the process-wide encoder of a recipe.

    Args:
        recipe: The encoder's recipe.
        limits: Time and memory limits of templates and patterns for one record; None for the defaults.

    Raises:
        TokenizerError: If a special token is not exactly one id.
        InputError: If a pattern or the template cannot be used.
    """
    return _make_instruction_encoder(recipe, limits or default_limits())


@functools.lru_cache(maxsize=2)
def _make_instruction_encoder(recipe: EncoderRecipe, limits: Limits) -> InstructionEncoder:
    from dsindex.instruction.config import InstructionConfig
    from dsindex.instruction.encoder import InstructionEncoder
    from dsindex.instruction.tokens import ChatTokenizer

    tokenizer = ChatTokenizer(
        recipe.tokenizer.json.decode(),
        special_tokens=dict(recipe.special_tokens),
        chat_templates=dict(recipe.chat_templates),
    )
    fast = make_fast_texts(recipe.tokenizer, recipe.engine, tokenizer)
    return InstructionEncoder(InstructionConfig.model_validate_json(recipe.config), tokenizer, fast=fast, limits=limits)
