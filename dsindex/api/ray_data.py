"""`dsindex.ray_datasource`: the documents of a dataset as rows of a `ray.data.Dataset`.

ray.data needs pandas, which dsindex does not require; it is imported when the function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.api.boundary import OptionsError, api_function
from dsindex.api.subjects import list_text_prefixes
from dsindex.errors import MissingPackageError

if TYPE_CHECKING:
    from dsindex.api.subjects import Subject


@api_function()
def ray_datasource(prefix: Subject) -> Any:  # noqa: ANN401 - ray.data has no types
    """Return a `ray.data.Datasource` of a dataset's documents, for `ray.data.read_datasource`.

    Rows have two columns: `document`, the number of the document, and `tokens`, a list in the type of the dataset. They
    are in the order of documents. Read tasks have ranges of documents of about equal size and read the files
    themselves, so all nodes must have dsindex and see the files under the same path.

    Args:
        prefix: An MMIDIDX dataset, or a result with one.

    Raises:
        OptionsError: If `prefix` is not such a dataset.
        FormatError: If the dataset is damaged.
        MissingPackageError: If ray.data cannot be imported; it needs pandas.
    """
    found = list_text_prefixes("prefix", prefix)
    if len(found) > 1:
        raise OptionsError(f"prefix: expected one dataset, got {len(found)} ({', '.join(found)}); choose one")
    try:
        from dsindex.execution.ray_source import DocumentSource
    except ImportError as error:
        msg = f"ray_datasource needs ray.data, which cannot be imported ({error}); install it: pip install pandas"
        raise MissingPackageError(msg) from error
    return DocumentSource(found[0])
