"""Public data: gsm8k and mmlu as folders in the schema of the Hugging Face Hub, with questions that are made here.

Beside them the task files of lm-eval, and a saved model with a tokenizer: all that `hicache accuracy` reads.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lm_eval.tasks
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .families import FAMILIES

SUBJECTS = ("anatomy", "marketing", "philosophy", "sociology")
"""The subjects of mmlu that have questions: one of each of its groups."""

TASK_FILES = ("gsm8k/gsm8k.yaml", "mmlu/default/_*", *(f"mmlu/default/mmlu_{subject}.yaml" for subject in SUBJECTS))
"""Files of lm-eval: gsm8k, the groups of mmlu, the template of its subjects, and the subjects that have questions."""

SHOTS, QUESTIONS = 5, 2
"""Documents of the split of examples, and of the split that is asked."""

Split = Sequence[Mapping[str, Any]]


def write_public_data(folder: Path) -> None:
    """Write `openai/gsm8k` and `cais/mmlu` into a folder: a process in it loads them by these names."""
    splits = {"train": [sum_question(number) for number in range(SHOTS)]}
    splits["test"] = [sum_question(SHOTS + number) for number in range(QUESTIONS)]
    _write(folder / "openai" / "gsm8k", {"main": splits})
    _write(folder / "cais" / "mmlu", {subject: _subject_splits(subject) for subject in SUBJECTS})


def sum_question(number: int) -> dict[str, Any]:
    """A question of gsm8k's schema: the answer has its calculation in double angle brackets, and ends with ####."""
    more, total = number + 3, 2 * number + 3
    return {
        "question": f"Tom has {number} apples and buys {more} more. How many apples has Tom?",
        "answer": f"Tom has {number} + {more} = <<{number}+{more}={total}>>{total} apples.\n#### {total}",
    }


def choice_question(subject: str, number: int) -> dict[str, Any]:
    """A question of mmlu's schema: `answer` is the index of the right choice."""
    right = number % 4
    choices = [str(number + 1 + other - right) for other in range(4)]
    question = f"Which number of {subject} follows {number}?"
    return {"question": question, "subject": subject, "choices": choices, "answer": right}


def write_task_files(folder: Path) -> None:
    """Copy lm-eval's own files of gsm8k and of mmlu. Of the subjects the group then has those that have questions."""
    folder.mkdir()
    for pattern in TASK_FILES:
        for file in Path(lm_eval.tasks.__file__).parent.glob(pattern):
            shutil.copy(file, folder)


VOCABULARY = 512
END, PAD = "</s>", "<pad>"

END_FACTOR = 4.0
"""A factor for the end token's row of the output, so that answers end after some tokens."""


def write_model(folder: Path, family: str) -> None:
    """Save a tiny model of a family, and a byte-level BPE tokenizer that is trained on the documents."""
    words, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[PAD, END], initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator(_texts(), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token=PAD, eos_token=END)
    tokenizer.save_pretrained(folder)
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    options = {**FAMILIES[family].options, **ends, "vocab_size": VOCABULARY}
    model = replace(FAMILIES[family], options=options).open(torch.float32, "cpu")
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] *= END_FACTOR
    model.save_pretrained(folder)


def _texts() -> Iterator[str]:
    for number in range(SHOTS + QUESTIONS):
        yield from (f"{name}: {value}" for name, value in sum_question(number).items())
        yield from (choice_question(subject, number)["question"] for subject in SUBJECTS)


def _subject_splits(subject: str) -> Mapping[str, Split]:
    questions = [choice_question(subject, number) for number in range(SHOTS + QUESTIONS)]
    return {"test": questions[SHOTS:], "validation": questions[:1], "dev": questions[:SHOTS]}


def _write(folder: Path, by_config: Mapping[str, Mapping[str, Split]]) -> None:
    """Write a data set: a Parquet file for each split of each configuration, and a README.md that lists them."""
    configs = []
    for config, splits in by_config.items():
        (folder / config).mkdir(parents=True)
        for split, documents in splits.items():
            Dataset.from_list(list(documents)).to_parquet(folder / config / f"{split}-00000-of-00001.parquet")
        files = [{"split": split, "path": f"{config}/{split}-*"} for split in splits]
        configs.append({"config_name": config, "data_files": files})
    # YAML contains JSON.
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n", encoding="utf-8")
