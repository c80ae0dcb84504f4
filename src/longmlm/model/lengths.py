"""Keys of a model's configuration files that some library reads as its longest input."""

from typing import Any

from transformers import PretrainedConfig

LENGTH_KEYS = (  # vLLM takes the smallest of these; llama.cpp and others know some of them
    *("n_positions", "n_ctx", "max_seq_len", "max_seq_length", "max_sequence_length", "seq_len", "seq_length"),
    *("model_max_length", "max_target_positions", "max_trained_positions"),
)
POSITIONS = "max_position_embeddings"


def set_lengths(config: PretrainedConfig, num_positions: int) -> None:
    """Sets the keys of a config that state a length, except for the number of rows of the position table."""
    for key in LENGTH_KEYS:
        if isinstance(vars(config).get(key), int):
            setattr(config, key, num_positions)


def with_lengths(content: Any, num_positions: int) -> Any:
    """Returns the content of another JSON file with all lengths in it set, at any depth.

    max_position_embeddings, which would replace that of config.json, is left out.
    """
    if isinstance(content, list):
        return [with_lengths(item, num_positions) for item in content]
    if not isinstance(content, dict):
        return content
    kept = {key: with_lengths(value, num_positions) for key, value in content.items() if key != POSITIONS}
    lengths = {key: num_positions for key in (*LENGTH_KEYS, "max_length") if isinstance(kept.get(key), int)}
    return kept | lengths
