"""Precision: what `auto` resolves to on this hardware."""

from typing import Literal

import torch

from longmlm.settings.pretrain import Precision


def resolved_precision(precision: Precision) -> Literal["no", "bf16"]:
    """Returns the precision; for `auto`, bf16 if the GPU or CPU supports it, else no (fp32).

    On a CPU without bf16 instructions, bf16 is about a hundred times slower than fp32.
    """
    if precision != "auto":
        return precision
    if torch.cuda.is_available():
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
    return "bf16" if has_bf16 else "no"
