"""Which prompt a row of the data set is: a private column, prompt ids, fixed bins, and a fingerprint of the
content."""

import hashlib
import json

import numpy as np

ROW = "gdro_row"
PROMPT_ID = "prompt_id"


def with_rows(dataset):
    """``dataset`` with the private column `ROW`, so that equal texts in different rows stay apart.

    Errors: ``ValueError`` where the column exists, or where a format or transform of the data set would drop
    it.
    """
    if ROW in dataset.column_names:
        raise ValueError(f"the training data set has a column {ROW!r}, a name this package needs; rename it")
    dataset = dataset.add_column(ROW, np.arange(len(dataset)))
    if len(dataset) and ROW not in dataset[0]:
        raise ValueError(
            f"the data set's format {dataset.format['type']!r} drops the row number; call "
            "dataset.reset_format() and do its work with dataset.map"
        )
    return dataset


def prompt_numbers(dataset):
    """(rows,) int64: which prompt each row is, numbered by first appearance.

    Rows of one ``prompt_id`` are one prompt and share their history; without that column every row is its
    own.
    """
    if PROMPT_ID not in dataset.column_names:
        return np.arange(len(dataset))
    number: dict = {}
    return np.array([number.setdefault(key, len(number)) for key in dataset[PROMPT_ID]], dtype=np.int64)


def refuse_empty_prompts(dataset):
    """``ValueError`` naming the first row whose prompt is no text and no message: nothing comes after it."""
    for row, prompt in enumerate(dataset["prompt"]):
        if not prompt:
            raise ValueError(f"row {row} has an empty prompt ({prompt!r}); leave it out of the data set")


def positions(model):
    """Tokens that a transformers model has positions for, or None where it does not say."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def fixed_bins(dataset, column, numbers):
    """(prompts,) bin of each prompt from ``column``: whole numbers >= 0 as they are, texts in sorted order.

    Errors: ``ValueError`` for a missing column, another type of label, or one prompt with two labels.
    """
    if column not in dataset.column_names:
        raise ValueError(
            f"bin_column {column!r} is not in the data set; it has {', '.join(sorted(dataset.column_names))}"
        )
    labels = np.array(dataset[column])
    if labels.dtype.kind == "U":
        labels = np.unique(labels, return_inverse=True)[1]
    if labels.dtype.kind not in "iu" or (labels.size and labels.min() < 0):
        raise ValueError(
            f"bin_column {column!r} must hold texts, or whole numbers from 0 up, "
            f"got {labels[:3].tolist()} ...; map it to those"
        )
    bins = np.full(numbers.max(initial=-1) + 1, -1, dtype=np.int64)
    bins[numbers] = labels
    if (bins[numbers] != labels).any():
        row = int(np.argmax(bins[numbers] != labels))
        raise ValueError(
            f"row {row} has label {labels[row]} in {column!r}, another row of the same {PROMPT_ID} "
            f"{dataset[PROMPT_ID][row]!r} has {bins[numbers[row]]}; give them one label, or different ids"
        )
    return bins


def fingerprint(dataset):
    """Hash of the content of all columns, the same in every process and on every machine."""
    digest = hashlib.sha256(json.dumps(sorted(dataset.column_names)).encode())
    for table in dataset.with_format("arrow").iter(batch_size=1000):
        digest.update(json.dumps(table.to_pydict(), sort_keys=True, default=_plain).encode())
    return digest.hexdigest()[:32]


def _plain(value):
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else str(value)
