"""Memory of this process: free and peak."""

import resource

import psutil
import torch

from longmlm.runtime.launch import local_world_size


def free_memory_bytes() -> int:
    """Returns how much this process can still allocate: on its GPU, or its share of what the machine has left."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return psutil.virtual_memory().available // local_world_size()


def peak_memory_bytes() -> int:
    """Returns the most memory this process has held: on the GPU where there is one, resident otherwise."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
