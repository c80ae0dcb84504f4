"""Precision: what `auto` resolves to on this hardware."""

from typing import Literal

import torch


def resolved_precision(precision: str) -> Literal["no", "bf16"]:
    """Returns what `auto` stands for on this machine: bf16 where GPU or CPU support it, else no (fp32).

    Without instructions for it a CPU takes some hundred times as long in bf16 as in fp32.
    """
    if precision != "auto":
        return "bf16" if precision == "bf16" else "no"
    if torch.cuda.is_available():
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
    return "bf16" if has_bf16 else "no"
