"""How inference servers read a model's folder: the longest text that they accept, and how they pool token vectors.

Text Embeddings Inference: router/src/lib.rs of huggingface/text-embeddings-inference (max_input_length, PoolConfig) and
backends/ort/src/lib.rs (which ONNX file, which output). vLLM: _get_and_verify_max_len in vllm/config/model.py, and
get_sentence_transformer_tokenizer_config and get_pooling_config in vllm/transformers_utils/config.py; the keys in
vllm/transformers_utils/model_arch_config_convertor.py (derive_max_model_len_and_key), as of 2026. fastembed:
_resolve_max_context in fastembed/common/preprocessor_utils.py of qdrant/fastembed.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer

FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
SENTENCE_CONFIGS = tuple(f"sentence_{family}_config.json" for family in FAMILIES)
OFFSET = ("xlm-roberta", "camembert", "roberta")  # whose positions start behind the padding token's id
VLLM_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
BOOLEANS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")


def _read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text()) if (folder / name).is_file() else {}


def _sentence_config(folder: Path) -> dict:
    return next((_read(folder, name) for name in SENTENCE_CONFIGS if (folder / name).is_file()), {})


def tei_length(folder: Path) -> int:
    """Returns the longest text in tokens for TEI; KeyError where it would not start.

    A sentence-transformers configuration decides, and must have a length; else the position table.
    """
    if settings := _sentence_config(folder):
        return settings["max_seq_length"]
    config = _read(folder, "config.json")
    return config["max_position_embeddings"] - (config["pad_token_id"] + 1 if config["model_type"] in OFFSET else 0)


def tei_pooling(folder: Path) -> str:
    """Returns how TEI pools without `--pooling`; KeyError where it would not start: it needs all four booleans."""
    settings = _read(folder, "1_Pooling/config.json")
    flags = {name: settings[f"pooling_mode_{name}"] for name in BOOLEANS}
    return "cls" if flags["cls_token"] else {True: "mean"}[flags["mean_tokens"]]


def tei_graph(folder: Path) -> Path:
    """Returns the ONNX file that TEI runs on a CPU."""
    return folder / "model.onnx" if (folder / "model.onnx").is_file() else folder / "onnx" / "model.onnx"


def vllm_length(folder: Path) -> int:
    """Returns max_model_len of vLLM: the smallest in config and tokenizer, unless sentence-transformers sets it.

    The position table counts RoBERTa's reserved rows: before vllm-project/vllm#19201 took the tokenizer into account, a
    text of 514 tokens crashed it. In vllm-project/vllm#25865 a model of 8,192 positions is served at 512.
    """
    tokenizer, config = (_read(folder, name) for name in ("tokenizer_config.json", "config.json"))
    positions = min(config[key] for key in VLLM_KEYS if key in config)
    return _sentence_config(folder).get("max_seq_length", min(positions, tokenizer.get("model_max_length", positions)))


def vllm_pooling(folder: Path) -> str | None:
    """Returns how vLLM pools: by the first mode that is set; None where it takes the default of the architecture.

    Versions before vllm-project/vllm#54533 know modules by their older names, and one boolean for each mode.
    """
    modules = json.loads((folder / "modules.json").read_text()) if (folder / "modules.json").is_file() else []
    paths = [module["path"] for module in modules if module["type"] == "sentence_transformers.models.Pooling"]
    settings = _read(folder, f"{paths[0]}/config.json") if paths else {}
    chosen = [name.removeprefix("pooling_mode_").split("_")[0] for name, value in settings.items() if value is True]
    return chosen[0] if chosen else None


def fastembed_length(folder: Path) -> int:
    """Returns where fastembed truncates, which needs a length: the smaller of two names."""
    settings = _read(folder, "tokenizer_config.json")
    return min(settings[key] for key in ("model_max_length", "max_length") if key in settings)


def tokenizers_lengths(folder: Path) -> tuple[int, int]:
    """Returns the numbers of tokens that the tokenizers library makes of a short and a long text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return len(tokenizer.encode("a")), len(tokenizer.encode("a " * 1000))
