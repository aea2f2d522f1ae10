"""What mkdocs makes differently of the repository's pages."""
import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent


def on_nav(nav, config, files):
    """Every format's page stands in the section of formats, so that a new format needs no line here."""
    section = next(item for item in nav.items if item.title == "Formats")
    for file in sorted(files.documentation_pages(), key=lambda file: file.src_uri):
        if re.fullmatch(r"formats/\w+/README\.md", file.src_uri):
            section.children.append(file.page)
            file.page.parent = section
    return nav


def on_page_markdown(markdown, page, config, files):
    def content(match: re.Match) -> str:
        """A link to an example that stands alone has the file below it."""
        language = {".yml": "yaml"}.get(Path(match[2]).suffix, "bash")
        return f"{match[1]}\n\n```{language}\n{(SOURCE / match[2]).read_text()}```\n"

    markdown = re.sub(r"^(\[[^\]]+\]\(\.\./(scripts/examples/[^)]+)\))$", content, markdown, flags=re.MULTILINE)
    # What follows the language of a block is for tests.
    return re.sub(r"^(```\w+) .*$", r"\1", markdown, flags=re.MULTILINE)
