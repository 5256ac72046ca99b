"""Folders that `datasets.save_to_disk` writes: which Arrow files hold the records, in which order.

A Dataset's folder has a state.json with `_data_files`; a DatasetDict's has a dataset_dict.json with `splits`, and a
Dataset's folder for each.

Source: datasets 4.0, Dataset.save_to_disk and DatasetDict.save_to_disk.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dsindex.errors import InputError
from dsindex.json_text import decode_json
from dsindex.regular_files import open_file

STATE_FILE = "state.json"
DICT_FILE = "dataset_dict.json"
MAX_STATE_BYTES = 64 << 20

Form = TypeVar("Form", bound=BaseModel)


def _require_name(name: str) -> str:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        msg = f"expected a name inside the folder, got {name!r}"
        raise ValueError(msg)
    return name


Name = Annotated[str, AfterValidator(_require_name)]


class _DataFile(BaseModel):
    model_config = ConfigDict(strict=True)

    filename: Name


class _State(BaseModel):
    model_config = ConfigDict(strict=True)

    data_files: list[_DataFile] = Field(alias="_data_files", min_length=1)
    split: str | None = Field(default=None, alias="_split")
    indices_files: list[object] | None = Field(default=None, alias="_indices_data_files")


class _Dict(BaseModel):
    model_config = ConfigDict(strict=True)

    splits: list[Name] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDataset:
    """The data files of a folder that `Dataset.save_to_disk` wrote."""

    names: tuple[str, ...]
    split: str | None


def read_data_files(folder: str) -> SavedDataset | None:
    """Read a folder's state.json; return None if it is one of something else.

    Raises:
        InputError: If it cannot be read, or names files that cannot be taken one after the other.
    """
    path = os.path.join(folder, STATE_FILE)
    stored = _read(path)
    if not isinstance(stored, dict) or "_data_files" not in stored:
        return None
    state = _validated(path, stored, _State)
    if state.indices_files:
        msg = (
            f"{path}: expected records in the order of their files, got a dataset with an indices mapping; load it, "
            f"call flatten_indices(), and save it again"
        )
        raise InputError(msg)
    names = tuple(file.filename for file in state.data_files)
    for name in names:
        if not os.path.exists(os.path.join(folder, name)):
            msg = f"{path}: expected the file {name!r} beside it, found none; copy the whole folder again"
            raise InputError(msg)
    return SavedDataset(names=names, split=state.split)


def read_split_names(folder: str) -> tuple[str, ...]:
    """Read the splits in a folder's dataset_dict.json; each is a subfolder.

    Raises:
        InputError: If it cannot be read, or a subfolder is missing.
    """
    path = os.path.join(folder, DICT_FILE)
    names = tuple(_validated(path, _read(path), _Dict).splits)
    for name in names:
        if not os.path.isdir(os.path.join(folder, name)):
            msg = f"{path}: expected a folder {name!r} beside it, found none; copy the whole folder again"
            raise InputError(msg)
    return names


def _read(path: str) -> object:
    try:
        with open_file(path) as file:
            content = file.read(MAX_STATE_BYTES + 1)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); check --input"
        raise InputError(msg) from error
    try:
        return decode_json(content[:MAX_STATE_BYTES])
    except ValueError as error:
        msg = f"{path}: expected JSON as datasets.save_to_disk writes it, got something else; save the dataset again"
        raise InputError(msg) from error


def _validated(path: str, stored: object, form: type[Form]) -> Form:
    try:
        return form.model_validate(stored)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        msg = f"{path}: {place}: {problem['msg']}; save the dataset again with datasets.save_to_disk"
        raise InputError(msg) from error
