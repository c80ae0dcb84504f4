"""Precision: what `auto` resolves to on this hardware."""

import torch

from longmlm.settings.pretrain import ComputePrecision, Precision


def resolved_precision(precision: Precision) -> ComputePrecision:
    """Returns the precision; for `auto`, bf16 if the GPU or CPU supports it, else no (fp32).

    On a CPU without bf16 instructions, bf16 is about a hundred times slower than fp32. `auto` is never fp16, which
    needs loss scaling, skips updates, and does not run under DeepSpeed: a user has to choose it.
    """
    if precision != "auto":
        return precision
    if torch.cuda.is_available():
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
    return "bf16" if has_bf16 else "no"


def supported_precision(precision: ComputePrecision) -> ComputePrecision:
    """Returns the precision if this machine computes in it at full speed, else no (fp32)."""
    is_supported = torch.cuda.is_available() if precision == "fp16" else precision == resolved_precision("auto")
    return precision if is_supported else "no"
