"""Memory of this process: free and peak."""

import os

import psutil
import torch


def _local_world_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def free_memory_bytes() -> int:
    """Returns the bytes that this process can still take: of its GPU, or its share of what the machine has left."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return psutil.virtual_memory().available // _local_world_size()


def peak_memory_bytes() -> int:
    """Returns the most memory this process has held: on the GPU where there is one, resident otherwise."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
