"""`dsindex.ray_datasource`: the documents of a dataset as rows of a `ray.data.Dataset`.

ray.data needs pandas, which dsindex itself does not; it is imported when the function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.datasets.tensors import MissingPackageError
from workflows.api.boundary import OptionsError, api_function
from workflows.api.subjects import list_text_prefixes

if TYPE_CHECKING:
    from workflows.api.subjects import Subject


@api_function
def ray_datasource(prefix: Subject) -> Any:  # noqa: ANN401 - ray.data is not there for type checkers
    """Return a `ray.data.Datasource` of a dataset's documents, for `ray.data.read_datasource`.

    Its rows have two columns: `document`, the number of the document, and `tokens`, a list in the type of the dataset.
    The order of rows is the order of documents. Each reading task has a range of documents, of about as many bytes as
    the others, and reads the files itself: all nodes must see them under the same path, and have dsindex.

    Args:
        prefix: An MMIDIDX dataset, or a result with one.

    Raises:
        OptionsError: If it is no such dataset.
        FormatError: If it is damaged.
        MissingPackageError: If ray.data cannot be imported, for which pandas must be installed.
    """
    found = list_text_prefixes("prefix", prefix)
    if len(found) > 1:
        msg = f"prefix: expected one dataset, got {len(found)} ({', '.join(found)}); choose one"
        raise OptionsError(msg)
    try:
        from workflows.api.ray_source import DocumentSource
    except ImportError as error:
        msg = f"ray_datasource needs ray.data, which cannot be imported ({error}); install it: pip install pandas"
        raise MissingPackageError(msg) from error
    return DocumentSource(found[0])
