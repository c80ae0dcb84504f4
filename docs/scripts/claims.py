"""Tables of differences with intervals: labelled tasks, and findings of papers on a small model (experiment 11)."""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

Data = dict[str, Any]  # of a comparison, as docs/experiments/scripts/kept_comparison.py writes it
RESULTS = {True: "held", False: "**not held**", None: "not resolved"}


class Claim(NamedTuple):
    """A finding: one arm is better than another."""

    paper: str
    words: str
    comparison: str
    arm: str
    other: str
    page: str = ""  # of docs/, which quotes it

    def measured(self, data: Data) -> Data:
        """Returns the difference that is positive if the finding holds, with its interval."""
        return next(one for one in data["differences"] if (one["arm"], one["other"]) == (self.arm, self.other))

    @property
    def compared(self) -> str:
        """What is subtracted from what."""
        return f"{self.arm} − {self.other}"


CLAIMS = (
    Claim(
        "RoBERTa", "dynamic masking outperforms static masking", "bert-masks", "dynamic", "static", page="masking.md"
    ),
    Claim("RoBERTa", "dynamic masking outperforms ten static masks per row", "bert-masks", "dynamic", "ten"),
    Claim("RoBERTa", "ten static masks per row outperform one", "bert-masks", "ten", "static"),
    Claim(
        "BERT, whole words",
        "whole-word masking outperforms token masking",
        "bert-formats",
        "word",
        "full-sentences",
        page="masking.md",
    ),
    Claim(
        "SpanBERT",
        "span masking outperforms token masking",
        "bert-formats",
        "span",
        "full-sentences",
        page="masking.md",
    ),
    Claim("–", "isolating documents improves accuracy", "bert-formats", "isolated", "full-sentences", page="method.md"),
    Claim("RoBERTa", "SEGMENT-PAIR outperforms SENTENCE-PAIR", "bert-formats", "segment-pair-nsp", "sentence-pair-nsp"),
    Claim("RoBERTa", "FULL-SENTENCES outperforms SEGMENT-PAIR", "bert-formats", "full-sentences", "segment-pair-nsp"),
    Claim(
        *("RoBERTa", "FULL-SENTENCES outperforms SENTENCE-PAIR", "bert-formats"),
        *("full-sentences", "sentence-pair-nsp"),
        page="pairs.md",
    ),
    Claim("RoBERTa", "DOC-SENTENCES outperforms FULL-SENTENCES", "bert-formats", "doc-sentences", "full-sentences"),
    Claim("RoBERTa", "larger batches outperform small ones", "bert-batches", "batch-3072", "batch-768"),
    Claim("RoBERTa", "the largest batches outperform small ones", "bert-batches", "batch-12288", "batch-768"),
    Claim("ALBERT", "SOP outperforms NSP, in a BERT", "bert-pairs", "sop", "nsp"),
    Claim("ALBERT", "SOP outperforms NSP, in an ALBERT", "albert-pairs", "sop", "nsp"),
)

PAIRS = {"bert-pairs": "BERT", "albert-pairs": "ALBERT"}  # comparisons whose models were measured on pairs
PAIRS_HEAD = (
    "| model | trained on | measured on | correct pairs by seed (%) | larger class (%) | difference, 95 % interval |",
    "|---|---|---|---|---:|---|",
)
COMPARED = (
    ("hyperpartisan-frozen", "chunks-attention", "chunks of 512 − first 512 tokens"),
    ("hyperpartisan-frozen", "recovered-1536", "long model, 1536 tokens − first 512"),
    ("litbank", "recovered-1536", "long model, inputs of 1536 − base model, 512"),
    ("laws", "tfidf-128", "TF-IDF, 128 characters − BERT, 128 tokens"),
)


def holds(measured: Data) -> bool | None:
    """Returns whether a finding holds; None if the interval includes zero, or is unknown because of a single seed."""
    if "low" not in measured or measured["low"] <= 0 <= measured["high"]:
        return None
    return measured["points"] > 0


def interval(measured: Data, signed: Callable[[float], str]) -> str:
    """Returns a difference with its interval or, of a single seed, with its standard error."""
    if "low" not in measured:
        return f"{signed(measured['points'])} ± {measured['standard_error']:.2f}"
    return f"{signed(measured['points'])} [{signed(measured['low'])}, {signed(measured['high'])}]"


def cells(data: Callable[[str], Data], signed: Callable[[float], str]) -> list[list[str]]:
    """Returns a line of the table for each finding."""
    found = [(claim, claim.measured(data(claim.comparison))) for claim in CLAIMS]
    return [
        [claim.paper, claim.words, claim.compared, interval(one, signed), str(one["seeds"]), RESULTS[holds(one)]]
        for claim, one in found
    ]


def pair_cells(data: Callable[[str], Data], signed: Callable[[float], str]) -> list[list[str]]:
    """Returns a line for each model, the pairs that it was trained on, and those on which it was measured."""
    lines = []
    for comparison, model in PAIRS.items():
        for arm, kinds in data(comparison)["pairs"].items():
            for kind, found in kinds.items():
                by_seed = ", ".join(f"{accuracy:.1f}" for accuracy in found["accuracies"].values())
                label = f"{found['larger_share']:.1f}"
                lines.append([model, arm.upper(), kind.upper(), by_seed, label, interval(found, signed)])
    return lines


def task_cells(study: Data, signed: Callable[[float], str]) -> list[list[str]]:
    """Returns a line for each compared pair of arms, its interval also corrected for the comparisons of the task."""
    lines = []
    for task, arm, words in COMPARED:
        found, arms = study[task]["arms"][arm]["differences"][0], study[task]["arms"].values()
        number = sum(bool(each["differences"]) for each in arms)
        wider = NormalDist().inv_cdf(1 - 0.025 / number) / NormalDist().inv_cdf(0.975)
        half = wider * (found["high"] - found["low"]) / 2
        corrected = f"[{signed(found['mean'] - half)}, {signed(found['mean'] + half)}] ({number})"
        plain = f"{signed(found['mean'])} [{signed(found['low'])}, {signed(found['high'])}]"
        lines.append([task.partition("-")[0], words, plain, corrected])
    return lines
