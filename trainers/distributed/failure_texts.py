"""Failures that are known by what torch and Ray say of them, neither of which is imported.

Memory that ran out, and what to do about it; a connection to another rank that broke, which does not say why.
"""

import re

# ray.exceptions.OutOfMemoryError is what calls to a worker raise that Ray's memory monitor has killed;
# torch.OutOfMemoryError is CUDA's.
CLASSES = {"OutOfMemoryError", "MemoryError"}
TEXTS = ("CUDA out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")

ADVICE = (
    "lower training.per_device_train_batch_size and raise training.gradient_accumulation_steps by the same factor, "
    "set training.gradient_checkpointing: true, or use larger nodes"
)
# Of gloo, NCCL and torch's store, where the other end is gone.
_BROKEN = re.compile(
    "Connection closed by (remote )?peer|Connection reset by peer|Broken pipe|remote process exit|Socket Timeout"
    r"|NCCL communicator|failed to recv, got 0 bytes|client socket has timed out|Timed out waiting \d+ms"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error itself says that memory ran out, of the node or of a GPU."""
    return type(error).__name__ in CLASSES or any(text in str(error) for text in TEXTS)


def is_broken_connection(text: str) -> bool:
    """Whether a text, such as the last lines of a program, has such an error."""
    return _BROKEN.search(text) is not None
