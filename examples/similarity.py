"""Tunes a long model for similarity of texts, by contrast with the other pairs of a batch, and saves it.

    python similarity.py MODEL PAIRS.jsonl OUTPUT

MODEL is a folder that longmlm released, or a hub name. Each line of PAIRS.jsonl has two texts that belong together, in
the fields "text" and "text2". OUTPUT is a model of sentence-transformers: SentenceTransformer(OUTPUT).encode(texts).
The script needs sentence-transformers and datasets, not longmlm. With cached gradients, a large batch, and with it many
negatives, fits into memory however long the texts are.
"""

import argparse

from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss


def main() -> None:
    """Trains on all pairs, and saves the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("pairs")
    parser.add_argument("output")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=64, help="pairs per step; all but one are negatives of each")
    arguments = parser.parse_args()
    pairs = load_dataset("json", data_files=arguments.pairs, split="train").select_columns(["text", "text2"])
    model = SentenceTransformer(arguments.model, model_kwargs={"dtype": "float32"})  # fp16 weights would not learn
    settings = SentenceTransformerTrainingArguments(
        output_dir=f"{arguments.output}/checkpoints",
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=arguments.batch,
        learning_rate=2e-5,
        warmup_steps=0.1,
        batch_sampler="no_duplicates",
        save_strategy="no",
        report_to="none",
    )
    loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=4)
    SentenceTransformerTrainer(model, settings, train_dataset=pairs, loss=loss).train()
    model.save(arguments.output)


if __name__ == "__main__":
    main()
