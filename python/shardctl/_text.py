"""Texts that come from files, for people to look at."""


def printable(text: str) -> str:
    """Control characters and marks of the direction of reading as escapes, so that a name cannot act on a terminal or
    make a page read otherwise. Line breaks are escaped too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
