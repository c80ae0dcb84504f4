"""Save a model, its tokenizer and what it carries as a folder that transformers loads."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from longmlm.data.pretrained import save_pretrained
from longmlm.errors import naming
from longmlm.model.carried import Carried
from longmlm.progress import quiet_libraries

LARGEST_FILE = "50GB"
LOADING_ARGUMENTS = (  # transformers notes in a tokenizer how it was loaded, and would save that
    *("is_local", "local_files_only", "_commit_hash", "cache_dir", "force_download", "proxies", "revision"),
    *("subfolder", "token", "use_auth_token", "trust_remote_code", "name_or_path", "special_tokens_map_file"),
)


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    carried: Carried,
    folder: Path,
    weights: Mapping[str, Tensor] | None = None,
    max_shard_size: str | None = None,
) -> None:
    """Writes the model, or `weights` in place of its own, and the carried weights into the same files.

    A carried file is skipped if the model or the tokenizer has already written one with its name; how and from where
    the tokenizer was loaded is not saved. Raises OSError when
    the disk is full.
    """
    for name in LOADING_ARGUMENTS:
        tokenizer.init_kwargs.pop(name, None)
    state = {**(model.state_dict() if weights is None else weights), **carried.weights}
    with quiet_libraries(), naming(folder):
        model.save_pretrained(folder, state_dict=state, max_shard_size=max_shard_size or LARGEST_FILE)
        save_pretrained(tokenizer, folder, signature(type(model).forward).parameters)
    for path, content in ((folder / name, content) for name, content in carried.files.items()):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
