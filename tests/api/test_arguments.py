"""Every argument of the Python API is checked: what a command would refuse raises ValueError or a UserError."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

import longmlm
from longmlm.artifacts.artifact import version
from longmlm.errors import UserError
from longmlm.settings.evaluate import EvaluateRecipe
from longmlm.settings.masking import HeldOut, Masking
from tests.support.families import tiny_tokenizer
from tests.support.tiny import LONG_POSITIONS, NUM_POSITIONS, World

SENTENCES = ["One sentence. Another one. " * 9] * 3


class Named(str):
    """The name of a wrong argument that the fixture `named` makes."""


MODELS = tuple(map(Named, ("tokenizer", "encoder", "meta")))
TOKENIZERS = (None, "name", 3, object(), *map(Named, ("model", "backend", "without mask")))
OTHERS = tuple(map(Named, ("lowercase", "bert")))
ROWS = (None, 3, "rows", ["text"], [None], [{"input_ids": [1]}], {}, *map(Named, ("rows of bert", "lower rows", "cut")))
WRONG_NUMBERS = (None, "5", 2.5, True, -1, float("nan"), float("inf"), [3], 2**64, "")
WRONG_CHOICES = (None, "", "other", 3, ["whole"], object())
WRONG_SETTINGS = ("x", {}, 3, object(), Masking, True)
WRONG_MODELS = (None, "", 3, [], {}, object, b"x")
STATIC = EvaluateRecipe(held_out=HeldOut(masking=Masking(mask_patterns=1)))
BAD: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "extend": {
        "model": (*WRONG_MODELS, "no/such/folder", Path("missing"), *MODELS),
        "num_positions": (*WRONG_NUMBERS, 0, 1, NUM_POSITIONS, NUM_POSITIONS**2 + 1),
        "initialisation": WRONG_CHOICES,
        "alpha": (None, "x", -0.1, 0.3, 0.5, 1, 7, float("nan"), [0.4], object(), True),
        "smooth_terms": (*WRONG_NUMBERS, 0, NUM_POSITIONS + 1),
        "revision": ("", 3, [], object(), "main"),
    },
    "pack": {
        "texts": (None, "one", 3, [None], ["a", 3], [b"x"], b"x", {"a": "b"}, ["\ud800"], [["x"]], [float("nan")]),
        "tokenizer": TOKENIZERS,
        "row_length": (*WRONG_NUMBERS, 0, 2),
        "language": (None, "", "xx", "dutch", 3, ["en"], object(), b"en"),
        "packing": WRONG_CHOICES,
    },
    "mask": {
        "rows": (*ROWS, iter([])),
        "row_ids": (None, 3, "0", [], [None], ["0"], [0.5], [True], [10**9], [-1], {}, [[0]]),
        "tokenizer": (*TOKENIZERS, *OTHERS),
        "epoch": WRONG_NUMBERS,
        "seed": (*WRONG_NUMBERS, 2**63),
        "masking": (*WRONG_SETTINGS, Masking(selected_fraction=2.0)),
    },
    "read_rows": {
        "folder": (None, "", 3, [], object(), "no/such/folder", Path("missing"), ".", "hf:name"),
        "tokenizer": (*TOKENIZERS[1:], *OTHERS),
        "split": WRONG_CHOICES,
        "rows_per_batch": (*WRONG_NUMBERS, 0, 10**9),
        "seed": (*WRONG_NUMBERS, 2**63),
        "masking": WRONG_SETTINGS,
    },
    "evaluate": {
        "model": (*WRONG_MODELS, "name", *MODELS, Named("small")),
        "rows": (*ROWS, [], Named("long")),
        "tokenizer": (*TOKENIZERS, *OTHERS),
        "view": WRONG_CHOICES,
        "base_positions": ("5", 2.5, True, 0, 2, -1, [3], 2**64),
        "recipe": (*WRONG_SETTINGS, STATIC, EvaluateRecipe(held_out=HeldOut(max_rows=0))),
    },
    "export": {
        "model": (*WRONG_MODELS, "name", *MODELS, Named("small")),
        "tokenizer": TOKENIZERS,
        "folder": (None, "", 3, [], object(), "."),
        "weights": WRONG_CHOICES,
        "max_shard_size": ("", "5", 5, "5 GB", "-1GB", [], "5gb"),
    },
}


@pytest.fixture
def good(
    world: World, base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> Mapping[str, dict[str, Any]]:
    """Arguments with which each function works."""
    rows = longmlm.pack(SENTENCES, tokenizer, NUM_POSITIONS)
    return {
        "extend": {"model": base, "num_positions": LONG_POSITIONS},
        "pack": {"texts": ["One sentence."], "tokenizer": tokenizer, "row_length": NUM_POSITIONS},
        "mask": {"rows": rows, "row_ids": [0, 1], "tokenizer": tokenizer},
        "read_rows": {"folder": world.rows, "tokenizer": tokenizer},
        "evaluate": {"model": base, "rows": rows, "tokenizer": tokenizer},
        "export": {"model": base, "tokenizer": tokenizer, "folder": tmp_path / "new"},
    }


@pytest.fixture
def named(world: World, base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Mapping[str, Any]:
    """Wrong models, tokenizers and rows."""
    lowercase = AutoTokenizer.from_pretrained(world.base)
    lowercase.backend_tokenizer.normalizer = Lowercase()  # the same ids, other tokens
    bert = tiny_tokenizer("bert", 0)
    small = AutoModelForMaskedLM.from_config(base.config)
    small.resize_token_embeddings(20)
    with torch.device("meta"):
        meta = AutoModelForMaskedLM.from_config(base.config)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    without = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"<s>": 0, "</s>": 1, "<pad>": 2})))
    return {
        "tokenizer": tokenizer,
        "encoder": AutoModel.from_pretrained(world.base),
        "meta": meta,
        "small": small,
        "model": base,
        "backend": backend,
        "without mask": without,
        "lowercase": lowercase,
        "bert": bert,
        "rows of bert": longmlm.pack(SENTENCES, bert, NUM_POSITIONS),
        "lower rows": longmlm.pack(SENTENCES, lowercase, NUM_POSITIONS),
        "cut": [row.with_input_ids(row.input_ids[1:]) for row in longmlm.pack(SENTENCES, tokenizer, NUM_POSITIONS)],
        "long": longmlm.pack(SENTENCES, tokenizer, LONG_POSITIONS),
    }


@pytest.mark.parametrize(("function", "argument"), [(name, key) for name, keys in BAD.items() for key in keys])
def test_a_bad_argument_is_refused_in_one_line(
    good: Mapping[str, dict[str, Any]], named: Mapping[str, Any], function: str, argument: str
) -> None:
    call, wrong = inspect.unwrap(getattr(longmlm, function)), {}  # unwrapped: types are not checked as in other tests
    for value in BAD[function][argument]:
        given = {**good[function], argument: named[value] if isinstance(value, Named) else value}
        given |= {"initialisation": "fitted"} if value == 0.3 else {}
        try:
            call(**given)
        except (ValueError, UserError, IndexError) as error:
            is_promised = type(error) is not IndexError or argument == "row_ids"
            if not is_promised or "\n" in str(error) or len(str(error)) < 10:
                wrong[repr(value)] = repr(error)
        except Exception as error:  # noqa: BLE001
            wrong[repr(value)] = repr(error)
        else:
            wrong[repr(value)] = "accepted"
    assert wrong == {}


def test_the_table_has_every_argument_of_every_function(good: Mapping[str, dict[str, Any]]) -> None:
    assert BAD.keys() == good.keys() == set(longmlm.__all__) - {"run"}  # whose arguments are settings: test_run.py
    for name, arguments in BAD.items():
        assert inspect.signature(getattr(longmlm, name)).parameters.keys() == arguments.keys()


def test_good_arguments_of_other_types_are_accepted(good: Mapping[str, dict[str, Any]], tmp_path: Path) -> None:
    """Numbers of numpy and torch, any iterable, any path."""
    extend, pack, mask = map(inspect.unwrap, (longmlm.extend, longmlm.pack, longmlm.mask))
    extended = extend(
        good["extend"]["model"], np.int64(LONG_POSITIONS), initialisation="hierarchical", alpha=np.float32(0.3)
    )
    assert extended.config.max_position_embeddings > LONG_POSITIONS
    assert type(extended.longmlm_origin.provenance.extension.num_positions) is int
    texts = (text for text in SENTENCES)
    rows = pack(texts, good["pack"]["tokenizer"], torch.tensor(NUM_POSITIONS))
    batch = mask(tuple(rows), torch.tensor([1, 0]), good["mask"]["tokenizer"], epoch=np.int32(3))
    same = mask(rows, [1, 0], good["mask"]["tokenizer"], epoch=3)
    assert torch.equal(batch["input_ids"], same["input_ids"])
    longmlm.evaluate(good["evaluate"]["model"], iter(rows), good["mask"]["tokenizer"])
    longmlm.export(**{**good["export"], "folder": str(tmp_path / "text")})


def test_the_package_has_a_version() -> None:
    assert longmlm.__version__ == version() != "unknown"
    assert "__version__" in dir(longmlm)
