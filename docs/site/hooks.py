"""Differences between the site and the repository's pages."""
import html
import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(SOURCE / "docs/site"))
import messages  # noqa: E402


def on_nav(nav, config, files):
    """Adds pages of formats and of answers to their sections, and pages that are not in the list to the first one, so
    that none of them needs a line."""
    use, answers, formats = (next(item for item in nav.items if item.title == title) for title in ("Use it", "Answers", "Formats"))
    listed = {page.file.src_uri for page in nav.pages}
    for file in sorted(files.documentation_pages(), key=lambda file: file.src_uri):
        is_format = re.fullmatch(r"formats/\w+/README\.md", file.src_uri)
        section = formats if is_format else answers if file.src_uri.startswith("docs/answers/") else use
        if file.src_uri not in listed and (section is formats or file.src_uri.startswith("docs/")):
            section.children.append(file.page)
            file.page.parent = section
    return nav


def on_page_markdown(markdown, page, config, files):
    def content(match: re.Match) -> str:
        """Adds the file's content below a link to an example that is a separate paragraph."""
        language = {".yml": "yaml"}.get(Path(match[2]).suffix, "bash")
        return f"{match[1]}\n\n```{language}\n{(SOURCE / match[2]).read_text()}```\n"

    if first := re.match(r"# .*\n\n([\w`][^\n]*(?:\n[\w`][^\n]*)*)", markdown):
        words = re.sub(r"\s+", " ", re.sub(r"\]\([^)]*\)|[`*\[]", "", first[1]))
        page.meta.setdefault("description", html.escape(words))  # For search engines.
    markdown = re.sub(r"^(\[[^\]]+\]\(\.\./(scripts/examples/[^)]+)\))$", content, markdown, flags=re.MULTILINE)
    # A typed message finds its row, although other pages have the same words and fewer others; figures answer no question.
    if page.file.src_uri == "docs/troubleshooting.md":
        page.meta["search"] = {"boost": 4}
        markdown += "\n" + messages.list_of(messages.messages(SOURCE), messages.rows_of(markdown))
    if page.file.src_uri == "tests/RESULTS.md":
        page.meta["search"] = {"exclude": True}
    # Words after the language of a block are for tests.
    return re.sub(r"^(```\w+) .*$", r"\1", markdown, flags=re.MULTILINE)


def on_post_page(output, page, config):
    """Names the search for screen readers, which the theme's dialog lacks."""
    return output.replace('<div class="md-search" data-md-component="search" role="dialog">',
                          '<div class="md-search" data-md-component="search" role="dialog" aria-label="Search">')
