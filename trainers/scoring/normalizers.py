"""What is done to reference and hypothesis before they are compared."""

from collections.abc import Callable

from transformers.models.whisper.english_normalizer import BasicTextNormalizer

from trainers.data.text import collapse_whitespace


def scoring_normalizer(enabled: bool) -> Callable[[str], str]:
    """Return what is done to reference and hypothesis before they are compared.

    Args:
        enabled: True for Whisper's BasicTextNormalizer, which published scores commonly use: lower case, no
            text in brackets, symbols and punctuation to spaces. It also takes combining marks for symbols,
            which cuts words of Indic scripts. False compares as written.

    Returns:
        A function of one text; in both cases whitespace is collapsed and the ends are stripped.
    """
    if not enabled:
        return collapse_whitespace
    basic = BasicTextNormalizer()
    return lambda text: collapse_whitespace(basic(text))
