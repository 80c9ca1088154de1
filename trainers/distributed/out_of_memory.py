"""Whether an error means that memory ran out, and what to do about it. Imports neither torch nor Ray."""

# ray.exceptions.OutOfMemoryError is what calls to a worker raise that Ray's memory monitor has killed;
# torch.OutOfMemoryError is CUDA's.
CLASSES = {"OutOfMemoryError", "MemoryError"}
TEXTS = ("CUDA out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")

ADVICE = (
    "lower training.per_device_train_batch_size and raise training.gradient_accumulation_steps by the same factor, "
    "set training.gradient_checkpointing: true, or use larger nodes"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error itself says that memory ran out, of the node or of a GPU."""
    return type(error).__name__ in CLASSES or any(text in str(error) for text in TEXTS)
