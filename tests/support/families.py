"""Tiny models and tokenizers of every family, made of the demo text."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, SentencePieceUnigramTokenizer, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
    AddedToken,
    AlbertTokenizer,
    AutoConfig,
    AutoModelForMaskedLM,
    BertTokenizer,
    CamembertTokenizer,
    DebertaTokenizer,
    DebertaV2Tokenizer,
    MPNetTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

DEMO = Path(__file__).parents[2] / "src" / "longmlm" / "bundled" / "text" / "demo.jsonl"
NUM_DOCUMENTS, DOCUMENT_CHARACTERS, VOCABULARY_SIZE = 48, 900, 300
NUM_POSITIONS = 16
SPECIAL = {
    ("roberta", 1): ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    ("roberta", 3): ["<s>", "</s>", "<unk>", "<pad>", "<mask>"],
    ("bert", 0): ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    ("xlm-roberta", 1): ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    ("camembert", 1): ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>"],
    ("albert", 0): ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
    ("electra", 0): ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    ("distilbert", 0): ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
}
SPECIAL_OF_OTHERS = {  # families whose positions are computed
    ("modernbert", 3): ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"],
    ("deberta", 0): ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"],
    ("deberta-v2", 0): ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"],
    ("mpnet", 1): ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"],
    ("roformer", 0): ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    ("nomic_bert", 0): ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    ("eurobert", 3): ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|pad|>"],
}
BYTE_LEVEL = {"roberta": RobertaTokenizer, "deberta": DebertaTokenizer, "modernbert": None, "eurobert": None}
UNIGRAM = {
    "xlm-roberta": XLMRobertaTokenizer,
    "camembert": CamembertTokenizer,
    "albert": AlbertTokenizer,
    "deberta-v2": DebertaV2Tokenizer,
}
WIDTH = 32
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}


@functools.cache
def demo_texts() -> tuple[str, ...]:
    """Returns the beginnings of a few dozen documents."""
    lines = DEMO.read_text(encoding="utf-8").splitlines()[:NUM_DOCUMENTS]
    texts = [json.loads(line)["text"][:DOCUMENT_CHARACTERS] for line in lines]
    assert len(texts) == NUM_DOCUMENTS
    return tuple(texts)


@functools.cache
def _trained(family: str, pad: int) -> dict[str, Any]:
    """Returns vocabulary, and merges if any, of the family's kind of tokenizer, trained on the demo texts."""
    special = (SPECIAL | SPECIAL_OF_OTHERS)[family, pad]
    more = {"unk_token": next(token for token in special if "unk" in token.lower())} if family in UNIGRAM else {}
    kind = BertWordPieceTokenizer
    if family in BYTE_LEVEL or family in UNIGRAM:
        kind = ByteLevelBPETokenizer if family in BYTE_LEVEL else SentencePieceUnigramTokenizer
    tokenizer = kind()
    tokenizer.train_from_iterator(demo_texts(), VOCABULARY_SIZE, special_tokens=special, show_progress=False, **more)
    model = json.loads(tokenizer.to_str())["model"]
    if kind is BertWordPieceTokenizer:  # its trainer numbers the pieces in another order in every process
        pieces = [*special, *sorted(model["vocab"].keys() - set(special))]
        model["vocab"] = {piece: number for number, piece in enumerate(pieces)}
    return model


def tiny_tokenizer(family: str, pad: int, num_positions: int = NUM_POSITIONS) -> PreTrainedTokenizerBase:
    """Returns the family's tokenizer with about 300 tokens and the padding token at the id `pad`."""
    backend = _trained(family, pad)
    if family in UNIGRAM:
        return UNIGRAM[family](
            vocab=[(piece, score) for piece, score in backend["vocab"]], model_max_length=num_positions
        )
    if family in BYTE_LEVEL:
        merges = [tuple(pair) for pair in backend["merges"]]
        if kind := BYTE_LEVEL[family]:
            return kind(vocab=dict(backend["vocab"]), merges=merges, model_max_length=num_positions)
        return _generic_tokenizer(BPE(vocab=backend["vocab"], merges=merges), family, pad, num_positions)
    kind = MPNetTokenizer if family == "mpnet" else BertTokenizer
    return kind(vocab=dict(backend["vocab"]), model_max_length=num_positions)


def _generic_tokenizer(model: BPE, family: str, pad: int, num_positions: int) -> PreTrainedTokenizerFast:
    """Returns a byte-level tokenizer of no class of its own, as ModernBERT and EuroBERT have."""
    backend, special = Tokenizer(model), SPECIAL_OF_OTHERS[family, pad]
    backend.pre_tokenizer, backend.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    if family == "modernbert":
        roles = dict(zip(("unk_token", "cls_token", "sep_token", "pad_token", "mask_token"), special, strict=True))
        first, last = special[1:3]
    else:
        roles = dict(zip(("bos_token", "eos_token", "mask_token", "pad_token"), special, strict=True))
        first, last = special[:2]
    ids = [(token, backend.token_to_id(token)) for token in (first, last)]
    backend.post_processor = TemplateProcessing(single=f"{first} $A {last}", special_tokens=ids)
    roles["mask_token"] = AddedToken(roles["mask_token"], lstrip=True, special=True)
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=num_positions, model_input_names=inputs, **roles
    )


def tiny_config(family: str, pad: int, num_positions: int = NUM_POSITIONS, **more: object) -> PreTrainedConfig:
    """Returns the config of a model with `num_positions` usable positions, with weights large enough to matter."""
    tokenizer = tiny_tokenizer(family, pad)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "initializer_range": 0.3,
        "pad_token_id": pad,
        "max_position_embeddings": num_positions,
    }
    if family in ("modernbert", "eurobert", "mpnet", "camembert") or "roberta" in family:
        first, last = tokenizer.bos_token_id, tokenizer.eos_token_id
        sizes |= {"bos_token_id": tokenizer.cls_token_id if first is None else first}
        sizes |= {"eos_token_id": tokenizer.sep_token_id if last is None else last}
    if "roberta" in family or family == "camembert":
        sizes |= {"max_position_embeddings": num_positions + pad + 1, "type_vocab_size": 1}
    own: dict[str, dict[str, object]] = {
        "albert": {"embedding_size": WIDTH // 2, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        "electra": {"embedding_size": WIDTH // 2},
        "distilbert": {"hidden_dim": 64},
        "modernbert": {
            "local_attention": 8,
            "attention_dropout": 0.1,
            "mlp_dropout": 0.1,
            "embedding_dropout": 0.1,
            "cls_token_id": tokenizer.cls_token_id,
            "sep_token_id": tokenizer.sep_token_id,
        },
        "deberta": {**RELATIVE, "legacy": False},
        "deberta-v2": {**RELATIVE, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3},
        "mpnet": {"max_position_embeddings": num_positions + pad + 1},
        "roformer": {"embedding_size": WIDTH // 2},
        "nomic_bert": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        "eurobert": {"attention_dropout": 0.1, "num_key_value_heads": 1, "mask_token_id": tokenizer.mask_token_id},
    }
    return AutoConfig.for_model(family, **sizes | own.get(family, {}) | more)


def tiny_model(
    family: str, pad: int, num_positions: int = NUM_POSITIONS, seed: int = 0, **more: object
) -> PreTrainedModel:
    """Returns a random model in evaluation mode, with biases that are not zero; `more` are values of its config."""
    torch.manual_seed(seed)
    model = AutoModelForMaskedLM.from_config(tiny_config(family, pad, num_positions, **more)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model
