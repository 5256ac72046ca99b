"""`dsindex.mix`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsindex.api.boundary import OptionsError, api_function
from dsindex.api.index import blend_options
from dsindex.api.subjects import find_prefix, list_text_prefixes
from dsindex.options.config import validated
from dsindex.options.mix import MixConfig
from dsindex.tools.mix import MixResult, run_mix

if TYPE_CHECKING:
    from dsindex.api.index import Blend
    from dsindex.api.subjects import Subject, Subjects


@api_function(MixConfig)
def mix(
    source: Mapping[Subject, str | None] | Subjects = (),
    *,
    data_path: Blend | None = None,
    valid_data_path: Blend | None = None,
    test_data_path: Blend | None = None,
    **options: Any,  # noqa: ANN401 - those of MixConfig
) -> MixResult:
    """Plan a mixture from the tokens that datasets really have, as `dsindex mix` does.

    Args:
        source: Datasets with how much of each: `{"web": "60%", "books": "2epochs", "code": "10B", "rest": None}`, where
            None is the rest. Datasets are prefixes or results; without amounts, a list of them.
        data_path: A blend with weights, as for `build_index`, to be explained instead.
        valid_data_path: Datasets of valid, such as what was held out, as `data_path`.
        test_data_path: The same for test.

    Returns:
        The mixture; its `data_path` goes to `build_index` or Megatron as it is.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If a dataset is missing or has no tokens, or Megatron would refuse the blend.
    """
    options |= blend_options(data_path=data_path, valid_data_path=valid_data_path, test_data_path=test_data_path)
    if source != ():
        options["source"] = _source_words(source)
    return run_mix(validated(options, MixConfig))


def _source_words(source: Mapping[Subject, str | None] | Subjects) -> tuple[str, ...]:
    """Return datasets with amounts as on the command line.

    Raises:
        OptionsError: If something is no dataset, or an amount is no text.
    """
    if not isinstance(source, Mapping):
        return tuple(list_text_prefixes("source", source))
    words = []
    for subject, amount in source.items():
        if not isinstance(amount, str | None):
            raise OptionsError(f"source: expected an amount such as '40%', '2epochs' or '10B', or None, got {amount!r}")
        prefix = find_prefix("source", subject)
        words.append(f"{prefix}={'rest' if amount is None else amount}")
    return tuple(words)
