"""Writes the bundled RoBERTa as a BERT with two token types, which can be trained on pairs of segments.

    python docs/experiments/scripts/as_bert.py out/bert-mini

The BERT computes the same; its positions have no offset. The second token type starts as a copy of the first. Pooler
and pair head are missing: new_head = true adds them.
"""

import functools
import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast, RobertaForMaskedLM

ROBERTA = Path(__file__).parents[3] / "src/longmlm/bundled/roberta-mini"
OFFSET = 2  # of RoBERTa's positions
POSITIONS, TYPES = "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"
NAMES = {
    "lm_head.dense": "cls.predictions.transform.dense",
    "lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
    "lm_head.": "cls.predictions.",
    "roberta.": "bert.",
}


def bert_of(roberta: RobertaForMaskedLM) -> BertForMaskedLM:
    """Returns a BERT that computes the same logits."""
    config = roberta.config.to_dict() | {"type_vocab_size": 2}
    config["max_position_embeddings"] -= OFFSET
    bert = BertForMaskedLM(BertConfig(**{key: value for key, value in config.items() if key != "model_type"}))
    weights = {}
    for name, weight in roberta.state_dict().items():
        own = weight[OFFSET:] if name.endswith(POSITIONS) else weight
        own = own.repeat(2, 1) if name.endswith(TYPES) else own
        weights[functools.reduce(lambda text, part: text.replace(*part), NAMES.items(), name)] = own
    bert.load_state_dict(weights)
    return bert


if __name__ == "__main__":
    output = Path(sys.argv[1])
    roberta = RobertaForMaskedLM.from_pretrained(ROBERTA, dtype=torch.float32)
    bert, ids = bert_of(roberta), torch.arange(100, 228)[None]
    with torch.no_grad():
        torch.testing.assert_close(bert.eval()(ids).logits, roberta.eval()(ids).logits, rtol=1e-4, atol=1e-4)
    bert.save_pretrained(output)
    PreTrainedTokenizerFast.from_pretrained(ROBERTA).save_pretrained(output)
